"""Effect. Small training functions for cluster tests, and a callback that breaks things at a step."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from elastic.callbacks import Callback
from elastic.control.state import RunState
from elastic.control.values import StepReport, View
from tests.lines import whole_lines


class Numbers:
    """Samples whose target follows from their index; `(index, x, y)`."""

    def __init__(self, size: int = 640) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        x = torch.randn(8, generator=torch.Generator().manual_seed(index), dtype=torch.float64)
        return index, x, x.sum()


def regression(
    folder: Path, steps: int = 40, pause_s: float = 0.005, until: Path | None = None, width: int = 16
) -> Callable[[Any], Any]:
    """Fits a small network in float64; each worker appends what it consumed and committed to its file in `folder`.

    With Adam's moments it takes 240 bytes for each of `width`. Once the file `until` exists, the rest is done without
    a pause.
    """

    def train_fn(session: Any) -> dict[str, Any]:
        torch.manual_seed(0)
        model = session.prepare(
            torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)).double()
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        session.track(model=model, optimizer=optimizer)
        batches = session.batches(Numbers(), batch_size=16, micro_batch_size=2)
        log = os.open(folder / f"{session.worker}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def write(**line: Any) -> None:
            os.write(log, json.dumps({"t": time.time(), "pid": os.getpid(), **line}).encode() + b"\n")

        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        write(event="started", model=id(model), optimizer=id(optimizer), node=session.worker, gpus=gpus)
        for step in session.steps(batches, max_steps=steps):
            with step:
                for index, x, y in step:
                    write(event="consumed", step=step.index, generation=step.generation, ids=index.tolist())
                    time.sleep(0 if until is not None and until.exists() else pause_s)
                    step.backward(((model(x).squeeze(-1) - y) ** 2).mean())
                step.apply(optimizer)
                step.report(loss=step.loss)
                write(event="committed", step=step.index, generation=step.generation)
        state = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        write(event="finished", digest=hashlib.blake2b(state, digest_size=8).hexdigest())
        return {"parameters": [p.detach().flatten().tolist() for p in model.parameters()], "steps": steps}

    return train_fn


def updating_slowly(train_fn: Callable[[Any], Any], when: Path, seconds: float) -> Callable[[Any], Any]:
    """Once there is a file that names a step, each worker takes so long for the update of that one."""

    def slowly(session: Any) -> Any:
        was_slow = False

        def wait(*_: object) -> None:
            nonlocal was_slow
            step = session._link.state.commit.step + 1
            if not was_slow and when.exists() and step == int(when.read_text()):
                was_slow = True
                time.sleep(seconds)

        handle = register_optimizer_step_pre_hook(wait)
        try:
            return train_fn(session)
        finally:
            handle.remove()

    return slowly


def fully_sharded(folder: Path, steps: int, pause_s: float = 0.01) -> Callable[[Any], Any]:
    """The same with FSDP2: a replica is several workers, each of which computes its part of a micro-batch."""

    def train_fn(session: Any) -> None:
        from torch.distributed.fsdp import fully_shard

        mesh = session.replica_mesh
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        session.prepare(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        session.track(model=model, optimizer=optimizer)
        log = os.open(folder / f"{session.worker}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def write(**line: Any) -> None:
            line = {"t": time.time(), "pid": os.getpid(), "shard": session.shard, **line}
            os.write(log, json.dumps(line).encode() + b"\n")

        write(event="started", worker=session.worker)
        for step in session.steps(session.batches(Numbers(), batch_size=8, micro_batch_size=4), max_steps=steps):
            with step:
                for batch in step:
                    index, x, y = (part.chunk(mesh.size())[session.shard] for part in batch)
                    write(event="consumed", step=step.index, generation=step.generation, ids=index.tolist())
                    time.sleep(pause_s)
                    step.backward(((model(x).squeeze(-1) - y) ** 2).mean())
                torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
                step.apply(optimizer)
                write(event="committed", step=step.index, generation=step.generation)
                step.report(loss=step.loss)
        state = b"".join(p.to_local().detach().numpy().tobytes() for p in model.parameters())
        write(event="finished", digest=hashlib.blake2b(state, digest_size=8).hexdigest())

    return train_fn


def stopping_apart(train_fn: Callable[[Any], Any], silent_s: float = 1.5) -> Callable[[Any], Any]:
    """Shard 1 applies nothing any more once it has heard no driver for so long; the others do, as far as they come."""

    def apart(session: Any) -> Any:
        link = session._link
        link._has_lease = lambda: session.shard != 1 or link.silent_s < silent_s
        return train_fn(session)

    return apart


def lying(train_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Worker w1 tells garbage, and what is not its to tell, before it trains."""

    def lies(session: Any) -> Any:
        from elastic.control import events as ev

        if session.worker == "w1":
            for told in (
                "garbage",
                ev.WorkerDead(worker="w0", proof="a lie"),
                ev.AtDoor(worker="w0", generation=1),
                ev.AtDoor(worker="w9", generation=1),
                ev.Overdue(worker="w1", generation="1"),
            ):
                session._link.post(told)
        return train_fn(session)

    return lies


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """All workers' lines, by time."""
    lines = [line for path in folder.glob("*.jsonl") for line in whole_lines(path)]
    return sorted(lines, key=lambda line: line["t"])


def relative_difference(ours: list[list[float]], theirs: list[list[float]]) -> float:
    """||a - b|| / ||b||."""
    pairs = [
        (a, b)
        for ours_one, theirs_one in zip(ours, theirs, strict=True)
        for a, b in zip(ours_one, theirs_one, strict=True)
    ]
    return (sum((a - b) ** 2 for a, b in pairs) / sum(b**2 for _, b in pairs)) ** 0.5


class At(Callback):
    """Calls `act(state)` once, when step `step` has become stable and `is_time()` too; keeps what it saw."""

    def __init__(
        self, step: int, act: Callable[[RunState], None], is_time: Callable[[], object] = lambda: True
    ) -> None:
        self._step, self._act, self._is_time = step, act, is_time
        self.fired_s: float | None = None
        self.generations: list[View] = []
        self.reports: list[StepReport] = []

    def on_generation(self, view: View) -> None:
        self.generations.append(view)

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        self.reports.append(report)
        if self.fired_s is None and report.commit.step >= self._step and self._is_time():
            self.fired_s = time.time()
            self._act(state)


def raising(at_step: int, rank: int) -> Callable[[Any], Any]:
    """Divides by zero on one rank, in a step or (at_step < 0) before the first."""

    def train_fn(session: Any) -> None:
        if at_step < 0:
            1 / 0  # noqa: B018 - the point
        model = session.prepare(torch.nn.Linear(8, 1).double())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        session.track(model=model, optimizer=optimizer)
        batches = session.batches(Numbers(), batch_size=16, micro_batch_size=2)
        for step in session.steps(batches, max_steps=1000):
            with step:
                for _, x, y in step:
                    if step.index == at_step and session.rank == rank:
                        1 / 0  # noqa: B018 - the point
                    step.backward(((model(x).squeeze(-1) - y) ** 2).mean())
                step.apply(optimizer)

    return train_fn


def mistaken(mistake: str) -> Callable[[Any], Any]:
    """A train_fn with one common mistake."""

    def train_fn(session: Any) -> None:
        if mistake == "no steps":
            return
        model = torch.nn.Linear(8, 1).double()
        if mistake != "no model":
            session.prepare(model)
        if mistake == "not stateful":
            session.track(thing=object())
        session.track(model=model)
        size = 3 if mistake == "small dataset" else 64
        batches = session.batches(Numbers(size), batch_size=16, micro_batch_size=2)
        for step in session.steps(batches, max_steps=2):
            with step:
                continue

    return train_fn


def start_python(code: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A Python process that runs `code` from a file, with the repository on its path, and heeds Ctrl-C.

    What a shell has put into the background hands on that it ignores SIGINT.
    """
    script = folder / "script.py"
    script.write_text(code)
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "RAY_AUTH_MODE": "disabled"}
    return subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, str(script), *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def python(code: str, folder: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run `code` to its end."""
    process = start_python(code, folder)
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
