"""Effect. A training function that breaks itself at labelled points, and writes down what it did.

The saboteur sits inside the worker, so a point is exact: between two buckets, inside an optimizer, in the middle of a
heal. Each sabotage leaves a mark before it strikes, and strikes once in the whole run.
"""

import ctypes
import hashlib
import json
import os
import signal
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from elastic.train import direct, gloo, session, tree

GATE = "gate"
SAMPLES, BATCH, MICRO_BATCH = 240, 12, 2
LINGER_S = 0.2
# The worker sleeps there, or spoils something, and lives.
HARMLESS = frozenset({"stall", "clench", "slow", "flip-weight", "flip-moment", "nan"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sabotage:
    """Kill (or stop, or delay) the worker that has `rank` when it comes to `point` of `step` (or of `generation`).

    Attributes:
        point: forward, between-buckets, pending, reduced, stall, clench (a stall in C code that lets no other thread
            run Python), slow, in-apply, forming, giving; and those that
            corrupt: flip-weight, flip-moment (one bit, between two steps), nan (the loss of one micro-batch).
        step: the step in which it strikes; -1: any.
        generation: the generation in which it strikes; 0: any.
        delay_s: how long the worker sleeps there first, so that others get ahead of it, or wait for it.
        signal: what it sends itself, except where it only sleeps.
        victim: who gets that signal instead; its pid is in `<victim>.pid`, beside the marks. Empty: the worker itself.
    """

    point: str
    rank: int
    step: int = -1
    generation: int = 0
    delay_s: float = 0.0
    signal: int = signal.SIGKILL
    victim: str = ""

    @property
    def name(self) -> str:
        whom = f"-{self.victim}" if self.victim else ""
        return f"{self.point}-rank{self.rank}-step{self.step}-generation{self.generation}{whom}"


class Saboteur:
    """The sabotages of one run, as seen by one worker."""

    def __init__(self, plan: tuple[Sabotage, ...], folder: Path) -> None:
        self._plan, self._folder = plan, folder

    def at(self, point: str, rank: int, step: int, generation: int) -> bool:
        """Strike, if it is time; returns whether it did."""
        for sabotage in self._plan:
            if sabotage.point != point or sabotage.rank != rank:
                continue
            if sabotage.step not in (-1, step) or sabotage.generation not in (0, generation):
                continue
            if self._strikes_first(sabotage):
                if point == "clench":
                    ctypes.PyDLL(None).sleep(int(sabotage.delay_s))
                else:
                    time.sleep(sabotage.delay_s)
                if point not in HARMLESS:
                    self._kill(sabotage)
                return True
        return False

    def _kill(self, sabotage: Sabotage) -> None:
        if not sabotage.victim:
            os.kill(os.getpid(), sabotage.signal)
            return
        os.kill(int((self._folder / f"{sabotage.victim}.pid").read_text()), sabotage.signal)
        time.sleep(60)  # whose death ends this process too: nothing happens here between the two

    def flip(self, rank: int, step: int, generation: int, optimizer: torch.optim.Optimizer) -> None:
        """Between two steps: a bit of a parameter, or of its moment."""
        param = optimizer.param_groups[0]["params"][0]
        if self.at("flip-weight", rank, step, generation):
            flip_bit(param)
        if self.at("flip-moment", rank, step, generation):
            flip_bit(optimizer.state[param]["exp_avg"])

    def _strikes_first(self, sabotage: Sabotage) -> bool:
        try:
            mark = os.open(self._folder / f"fired-{sabotage.name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        os.write(mark, str(os.getpid()).encode())
        os.close(mark)
        return True


class Net(torch.nn.Module):
    """Tied and unused parameters, running statistics, dropout; small enough for many runs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(6, 10, bias=False)  # a bias before a norm has gradient zero: all rounding
        self.norm = torch.nn.BatchNorm1d(10)
        self.decoder = torch.nn.Linear(10, 6)
        self.decoder.weight = torch.nn.Parameter(self.encoder.weight.detach().t().clone())
        self.tied = torch.nn.Linear(10, 10, bias=False)
        self.unused = torch.nn.Linear(3, 3)
        self.dropout = torch.nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.norm(self.encoder(x)))
        hidden = self.dropout(torch.tanh(self.tied(hidden)))
        return self.decoder(torch.nn.functional.linear(hidden, self.tied.weight))


class Samples:
    """(index, x) with x following from the index."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.randn(6, generator=torch.Generator().manual_seed(index), dtype=torch.float64)


class HalfwayOptimizer(torch.optim.AdamW):
    """AdamW that calls `halfway` in the middle of a step; remembers the rates of its last one."""

    halfway: Any = None
    rates: tuple[float, ...] = ()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.rates = tuple(group["lr"] for group in self.param_groups)
        groups, self.param_groups = self.param_groups, self.param_groups[:1]
        super().step(closure)
        if self.halfway is not None:
            self.halfway()
        self.param_groups = groups[1:]
        super().step(closure)
        self.param_groups = groups


@dataclass(slots=True)
class Replayed:
    """A batch size as if the step had been computed by as many replicas as `replay` says."""

    batch_size: Any
    replay: tuple[int, ...]
    step: int = 0

    def samples(self, replicas: int, micro_batch_size: int) -> int:
        return self.batch_size.samples(self.replay[min(self.step, len(self.replay) - 1)], micro_batch_size)

    def take_the_place_of(self, batches: Any) -> None:
        batches.plan, self.batch_size = replace(batches.plan, batch_size=self), batches.plan.batch_size


def wait_at_gate(folder: Path, step: int) -> None:
    """Before step 1, until all who shall be there are there."""
    deadline_s = time.monotonic() + 60
    while step == 1 and (folder / GATE).exists() and time.monotonic() < deadline_s:
        time.sleep(0.02)


def linger(folder: Path, plan: tuple[Sabotage, ...], step: int, steps: int) -> None:
    """From half way on, steps are slow until the generation has come in which somebody strikes.

    It may need a worker that has to start first, which takes long on a loaded machine.
    """
    waiting = [one for one in plan if one.generation > 0 and not (folder / f"fired-{one.name}").exists()]
    if waiting and step > steps // 2:
        time.sleep(LINGER_S)


def flip_bit(tensor: torch.Tensor) -> None:
    """The lowest bit of one element: nothing that a loss would show."""
    tensor.detach().view(-1)[:1].view(torch.uint8)[0] ^= 1


def train(
    session: session.Session,
    *,
    folder: Path,
    plan: tuple[Sabotage, ...],
    steps: int,
    micro_batch: int,
    pause_s: float,
    batch_size: Any = BATCH,
    dtype: torch.dtype = torch.float64,
    poison: int = -1,
    slow: dict[str, float] | None = None,
    **prepare: Any,
) -> str:
    """Train and log; returns the digest of the parameters.

    Args:
        batch_size: of `session.batches`; or what makes the batches from the session, the folder and `micro_batch`.
        poison: a sample whose loss is nan, whoever computes it.
        slow: by worker, the seconds that each of its micro-batches takes longer.
        prepare: passed on to `session.prepare`; buckets are so small that there are several.
    """
    saboteur = Saboteur(plan, folder)
    model = session.prepare(Net().to(dtype), **({"bucket_bytes": 300} | prepare))
    params = list(model.parameters())
    optimizer = HalfwayOptimizer([{"params": params[:3]}, {"params": params[3:]}], lr=1e-2, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.97)
    session.track(model=model, optimizer=optimizer, scheduler=scheduler)
    log = os.open(folder / f"{session.worker}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(event: str, **facts: Any) -> None:
        line = {"event": event, "t": time.time(), "pid": os.getpid(), "worker": session.worker, **facts}
        os.write(log, json.dumps(line).encode() + b"\n")

    if plan:
        _sabotage_internals(session, saboteur, optimizer)
    write("started", objects=[id(model), id(optimizer), *map(id, params)])
    session.on_resize(lambda resize: write("resized", **asdict(resize)))
    replayed = batch_size if isinstance(batch_size, Replayed) else None
    size = replayed.batch_size if replayed else batch_size
    if callable(size):
        batches = size(session, folder, micro_batch)
    else:
        batches = session.batches(Samples(), batch_size=size, micro_batch_size=micro_batch)
    if replayed:
        replayed.take_the_place_of(batches)
    for step in session.steps(batches, max_steps=steps):
        wait_at_gate(folder, step.index)
        linger(folder, plan, step.index, steps)
        with step:
            place = {"step": step.index, "generation": step.generation}
            for number, (index, x) in enumerate(step):
                write("consumed", **place, ids=index.tolist())
                time.sleep(pause_s + (slow or {}).get(session.worker, 0.0))
                if number == 0:
                    saboteur.at("forward", session.rank, step.index, step.generation)
                    saboteur.at("pending", session.rank, step.index, step.generation)
                x = x.to(session.device, dtype)
                loss = ((model(x) - x) ** 2).mean()
                is_odd = poison in index or saboteur.at("nan", session.rank, step.index, step.generation)
                step.backward(loss * float("nan") if is_odd else loss)
            saboteur.at("reduced", session.rank, step.index, step.generation)
            saboteur.at("stall", session.rank, step.index, step.generation)
            saboteur.at("clench", session.rank, step.index, step.generation)
            with session.slow("a sabotage"):
                saboteur.at("slow", session.rank, step.index, step.generation)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            step.apply(optimizer, scheduler=scheduler)
            held = tree.digest(session._replica.tracked.flatten())
            write("committed", **place, replicas=step.replicas, samples=step.samples, rates=optimizer.rates, state=held)
            if replayed:
                replayed.step = step.index + 1
            step.report(loss=step.loss)
        saboteur.flip(session.rank, step.index, step.generation, optimizer)
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    final = b"".join(tensor.numpy().tobytes() for tensor in state.values())
    digest = hashlib.blake2b(final, digest_size=8).hexdigest()
    if session.is_leader:
        torch.save(state, folder / "final.pt")
    write("finished", digest=digest, objects=[id(model), id(optimizer), *map(id, params)])
    return digest


def train_in_rings(session: session.Session, **options: Any) -> str:
    """The same where nothing is small enough to be summed in one message, as if the model were a large one."""
    direct.MESSAGE_BYTES = 0
    return train(session, **options)


def _sabotage_internals(session: session.Session, saboteur: Saboteur, optimizer: HalfwayOptimizer) -> None:
    """Put the points that lie inside the product."""
    replica = session._replica
    place = lambda: (session.rank, session._link.state.commit.step + 1, session.generation)  # noqa: E731
    optimizer.halfway = lambda: saboteur.at("in-apply", *place())
    started = replica.reducer._start

    def start(tensor: torch.Tensor) -> None:
        started(tensor)
        if replica.reducer._next == 1:
            saboteur.at("between-buckets", *place())

    replica.reducer._start = start  # type: ignore[method-assign]
    gloo.GlooGroup.form = _before(gloo.GlooGroup.form, partial(_at_forming, saboteur))  # type: ignore[method-assign]
    gloo.GlooGroup.send = _after(gloo.GlooGroup.send, partial(_at_forming, saboteur, point="giving"))  # type: ignore[method-assign]


def _at_forming(saboteur: Saboteur, group: gloo.GlooGroup, *args: Any, point: str = "forming") -> None:
    saboteur.at(point, group.rank, -1, group.view.generation)


def _before(method: Any, act: Any) -> Any:
    def wrapped(*args: Any) -> Any:
        act(*args)
        return method(*args)

    return wrapped


def _after(method: Any, act: Any) -> Any:
    def wrapped(*args: Any) -> Any:
        result = method(*args)
        act(*args)
        return result

    return wrapped
