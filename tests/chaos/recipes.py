"""Effect. What people do in a step, each as a small way of training that a saboteur can strike.

`train` runs one of them, and writes down what the checks of `tests.chaos.group` ask for.
"""

import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
import torchmetrics
from torch import nn
from torch.utils.checkpoint import checkpoint

from elastic.train import session, tree
from tests.chaos import syncbn
from tests.chaos.saboteur import BATCH, Sabotage, Saboteur, Samples
from tests.effects.helpers import eventually

Tensor = torch.Tensor


class Recipe:
    """The plainest one; others replace a part of it.

    Attributes:
        phases: of a step; options: of `session.batches`.
    """

    phases = 1
    options: dict[str, Any] = {}

    def __init__(self, session: session.Session) -> None:
        self.session = session
        self.model = session.prepare(self.net().double(), bucket_bytes=300)
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-2)
        session.track(model=self.model, optimizer=self.optimizer, **self.more())

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Dropout(0.2), nn.Linear(10, 6))

    def more(self) -> dict[str, Any]:
        """What else is tracked."""
        return {}

    def loss(self, x: Tensor) -> Tensor:
        return (self.model(x) - x).square().mean()

    def backward(self, step: Any, x: Tensor, ids: Tensor) -> None:
        step.backward(self.loss(x))

    def talk(self, step: Any) -> None:
        """What comes between the micro-batches and `update`."""

    def update(self, step: Any) -> None:
        step.apply(self.optimizer)

    def facts(self) -> dict[str, float]:
        """Numbers that must come out as without a fault."""
        return {}


class Clipping(Recipe):
    def update(self, step: Any) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        step.apply(self.optimizer)


class MixedPrecision(Recipe):
    """Autocast to bfloat16, a gradient scaler, clipping after unscale_, and a loss that overflows once."""

    def more(self) -> dict[str, Any]:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        return {"scaler": self.scaler}

    def loss(self, x: Tensor) -> Tensor:
        first, *_, last = self.model
        with torch.autocast("cpu", dtype=torch.bfloat16):  # which leaves float64 alone
            hidden = torch.tanh(nn.functional.linear(x.float(), first.weight.float(), first.bias.float()))
            assert hidden.dtype is torch.bfloat16
        return (last(hidden.double()) - x).square().mean()

    def backward(self, step: Any, x: Tensor, ids: Tensor) -> None:
        loss = self.loss(x)
        step.backward(loss * float("inf") if step.index == 2 else loss, scaler=self.scaler)

    def update(self, step: Any) -> None:
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        step.apply(self.optimizer, scaler=self.scaler)

    def facts(self) -> dict[str, float]:
        return {"scale": self.scaler.get_scale()}


class Compiled(Recipe):
    """Without a compiler on the machine: aot_eager traces forward and backward, and generates no code."""

    backend = "aot_eager"

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 6))

    def __init__(self, session: session.Session) -> None:
        super().__init__(session)
        self.compiled = torch.compile(self.model, backend=self.backend)

    def loss(self, x: Tensor) -> Tensor:
        return (self.compiled(x) - x).square().mean()


class Checkpointing(Recipe):
    """Activations computed anew in the backward, with the random numbers of the forward."""

    def loss(self, x: Tensor) -> Tensor:
        return (checkpoint(self.model, x, use_reentrant=False) - x).square().mean()


class SeveralOptimizers(Recipe):
    def more(self) -> dict[str, Any]:
        first, *_, last = self.model
        self.pair = [torch.optim.SGD(first.parameters(), lr=0.05, momentum=0.9), torch.optim.Adam(last.parameters())]
        self.schedulers = [torch.optim.lr_scheduler.StepLR(one, step_size=3, gamma=0.5) for one in self.pair]
        return {f"part{n}": thing for n, thing in enumerate(self.pair + self.schedulers)}

    def update(self, step: Any) -> None:
        step.apply(*self.pair, scheduler=self.schedulers)


class MovingAverage(Recipe):
    """A second copy of the parameters that follows the first."""

    def more(self) -> dict[str, Any]:
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        self.average = torch.optim.swa_utils.AveragedModel(self.model, multi_avg_fn=average)
        return {"average": self.average}

    def update(self, step: Any) -> None:
        step.apply(self.optimizer)
        self.average.update_parameters(self.model)

    def facts(self) -> dict[str, float]:
        return {"updates": float(self.average.n_averaged)}


class Schedulers(Recipe):
    """One that counts steps, chained of two, and one that looks at the loss."""

    def __init__(self, session: session.Session) -> None:
        super().__init__(session)
        warm = torch.optim.lr_scheduler.LinearLR(self.optimizer, total_iters=3)
        fall = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=10)
        self.chain = torch.optim.lr_scheduler.SequentialLR(self.optimizer, [warm, fall], milestones=[3])
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=0, threshold=0.5)
        session.track(chain=self.chain, plateau=self.plateau)

    def update(self, step: Any) -> None:
        step.apply(self.optimizer, scheduler=self.chain)
        self.plateau.step(step.loss)

    def facts(self) -> dict[str, float]:
        return {"rate": self.optimizer.param_groups[0]["lr"]}


class Frozen(Recipe):
    """A frozen layer in the middle, and a layer that is used in every other step."""

    def net(self) -> nn.Module:
        net = nn.ModuleDict({name: nn.Linear(6, 6) for name in ("first", "frozen", "rare", "never", "last")})
        net["frozen"].requires_grad_(False)
        return net

    def backward(self, step: Any, x: Tensor, ids: Tensor) -> None:
        parts = self.model
        hidden = torch.tanh(parts["frozen"](torch.tanh(parts["first"](x))))
        if step.index % 2:
            hidden = hidden + parts["rare"](x)
        step.backward((parts["last"](hidden) - x).square().mean())

    def update(self, step: Any) -> None:
        gradients = {name: part.weight.grad for name, part in self.model.items()}
        assert gradients["frozen"] is None and gradients["never"] is None
        assert (gradients["rare"] is None) == (step.index % 2 == 0)
        step.apply(self.optimizer)


class Adversaries(Recipe):
    """Two networks, updated in turn from the same samples: phase 0 the critic, phase 1 the generator."""

    phases = 2

    def net(self) -> nn.Module:
        generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6))
        critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        return nn.ModuleDict({"generator": generator, "critic": critic})

    def more(self) -> dict[str, Any]:
        self.turns = [torch.optim.Adam(self.model[part].parameters(), lr=1e-2) for part in ("critic", "generator")]
        return {"critic_optimizer": self.turns[0], "generator_optimizer": self.turns[1]}

    def backward(self, step: Any, x: Tensor, ids: Tensor) -> None:
        made = self.model["generator"](torch.randn(len(x), 3, dtype=torch.float64))
        if step.phase == 0:
            loss = nn.functional.softplus(-self.model["critic"](x)) + nn.functional.softplus(
                self.model["critic"](made.detach())
            )
        else:
            loss = nn.functional.softplus(-self.model["critic"](made))
        step.backward(loss.mean())

    def update(self, step: Any) -> None:
        step.apply(self.turns[step.phase])


class Evaluated(Recipe):
    """An evaluation every three steps, whose result sets the rate of the next ones."""

    def __init__(self, session: session.Session) -> None:
        super().__init__(session)
        session.evaluate_every(3, self.evaluate)
        self.found: list[float] = []

    def evaluate(self, evaluation: Any) -> dict[str, float]:
        assert not self.model.training and not torch.is_grad_enabled()
        total = count = 0.0
        for _, x in evaluation.batches(Samples(), batch_size=20):
            total, count = total + float(self.loss(x)) * len(x), count + len(x)
        self.strike("evaluating", evaluation.step + 1)
        total, count = evaluation.sum(total, count)
        assert count == len(Samples())
        return {"loss": total / count}

    def update(self, step: Any) -> None:
        assert self.model.training
        if self.session.evaluated:
            self.optimizer.param_groups[0]["lr"] = 1e-2 * min(1.0, self.session.evaluated["loss"]) / (1 + step.index)
        step.apply(self.optimizer)

    def facts(self) -> dict[str, float]:
        return self.session.evaluated


class Talking(Recipe):
    """Collectives of one's own on WORLD and session.group, as metrics libraries make them."""

    seen = 0.0

    def backward(self, step: Any, x: Tensor, ids: Tensor) -> None:
        self.largest = max(getattr(self, "largest", 0.0), float(x.abs().max()))
        step.backward(self.loss(x))

    def talk(self, step: Any) -> None:
        assert dist.get_world_size() == self.session.replicas and dist.get_rank() == self.session.rank
        self.strike("talking", step.index)
        with self.session.slow("a sabotage"):
            self.strike("slow", step.index)
        mine = torch.tensor([getattr(self, "largest", 0.0)], dtype=torch.float64)
        rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.barrier()
        dist.all_gather(rows, mine)
        dist.all_reduce(mine, op=dist.ReduceOp.MAX, group=self.session.group)
        assert float(torch.stack(rows).max()) == float(mine)
        self.now, self.largest = float(mine), 0.0

    def update(self, step: Any) -> None:
        self.optimizer.param_groups[0]["lr"] = 1e-2 / self.now
        step.apply(self.optimizer)

    def facts(self) -> dict[str, float]:
        return {"largest": self.now}


class Measured(Talking):
    """The same by torchmetrics, which takes its state together over WORLD."""

    def __init__(self, session: session.Session) -> None:
        super().__init__(session)
        self.metric = torchmetrics.MaxMetric().set_dtype(torch.float64)

    def backward(self, step: Any, x: Tensor, ids: Tensor) -> None:
        self.metric.update(x.abs())
        step.backward(self.loss(x))

    def talk(self, step: Any) -> None:
        self.strike("talking", step.index)
        self.now = float(self.metric.compute())
        self.metric.reset()


class SynchronizedNorm(Recipe):
    """torch's SyncBatchNorm; its kernels, which exist on GPUs only, are replaced by plain ones."""

    options = {"equal_rounds": True}

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 10, bias=False), syncbn.HostSyncBatchNorm(10), nn.Tanh(), nn.Linear(10, 6))


class Packed(Recipe):
    """Sequences of unequal length: each token counts alike, however they fall into micro-batches."""

    def backward(self, step: Any, x: Tensor, ids: Tensor) -> None:
        is_token = torch.arange(6)[None, :] < (ids % 7)[:, None]  # (samples, 6); some sequences are empty
        errors = (self.model(x) - x).square()[is_token]
        step.backward(errors.mean(), weight=errors.numel())


RECIPES: dict[str, type[Recipe]] = {
    kind.__name__: kind
    for kind in (
        Clipping,
        MixedPrecision,
        Compiled,
        Checkpointing,
        SeveralOptimizers,
        MovingAverage,
        Schedulers,
        Frozen,
        Adversaries,
        Evaluated,
        Talking,
        Measured,
        SynchronizedNorm,
        Packed,
    )
}


def train(
    session: session.Session,
    *,
    recipe: str,
    folder: Any,
    plan: tuple[Sabotage, ...],
    steps: int,
    micro_batch: int,
    pause_s: float,
    awaited: int = 0,
) -> None:
    """Train in float64 and log; goes on to step 1 once as many workers as `awaited` have come to the door."""
    saboteur = Saboteur(plan, folder)
    torch.manual_seed(0)
    kind = RECIPES[recipe]
    kind.strike = lambda self, point, number: saboteur.at(point, session.rank, number, session.generation)  # type: ignore[attr-defined]
    way = kind(session)
    objects = [id(way.model), *map(id, way.model.parameters())]
    log = os.open(folder / f"{session.worker}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(event: str, **facts: Any) -> None:
        line = {"event": event, "t": time.time(), "pid": os.getpid(), "worker": session.worker, **facts}
        os.write(log, json.dumps(line).encode() + b"\n")

    write("started", objects=objects)
    batches = session.batches(Samples(), batch_size=BATCH, micro_batch_size=micro_batch, **kind.options)
    for step in session.steps(batches, max_steps=steps, phases=kind.phases):
        if step.number == 1:
            eventually(lambda: len(list(folder.glob("*.jsonl"))) >= awaited, f"{awaited} workers have started")
        with step:
            place = {"step": step.number, "generation": step.generation}
            for position, (ids, x) in enumerate(step):
                write("consumed", **place, ids=ids.tolist())
                time.sleep(pause_s)
                if position == 1:
                    saboteur.at("pending", session.rank, step.number, step.generation)
                way.backward(step, x, ids)
            saboteur.at("reduced", session.rank, step.number, step.generation)
            saboteur.at("stall", session.rank, step.number, step.generation)
            way.talk(step)
            way.update(step)
            write("committed", **place, replicas=step.replicas)
            step.report(loss=step.loss)
    flat = session._replica.tracked.flatten()
    if session.is_leader:
        named = zip(tree.slots(flat.skeleton), flat.tensors, strict=True)
        torch.save({slot.path: tensor for slot, tensor in named}, folder / "final.pt")
    write("finished", digest=tree.digest(flat), objects=objects, found=way.facts())
    os.close(log)


def train_in_code(session: session.Session, *, folder: Any, **usual: Any) -> None:
    """In a process of its own: torch.compile as it comes, which writes code, and keeps what g++ makes of it here."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "code")
    Compiled.backend = "inductor"
    train(session, recipe="Compiled", folder=folder, **usual)
