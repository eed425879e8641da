"""Effect. What replicas of several workers train under sabotage: a model cut by hand, by columns, or by `fully_shard`.

The rank of a sabotage is replica * width + shard. Beside the usual points there are two of the agreement: preparing
(before a worker gives its word), agreed (when it has heard everybody's, before its apply); and mid-backward (fsdp).
"""

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from elastic.control.values import CommitId
from elastic.train.replica import Replica
from elastic.train.session import Session
from tests.chaos.saboteur import BATCH, HalfwayOptimizer, Sabotage, Saboteur, Samples, wait_at_gate

HIDDEN = 12


class _SumInside(torch.autograd.Function):
    """The sum over the workers of a replica; each of them goes on with all of it, so gradients pass as they are."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Columns(torch.nn.Module):
    """A perceptron of which each worker holds some hidden units."""

    def __init__(self, shard: int, width: int) -> None:
        super().__init__()
        whole = torch.nn.Linear(6, HIDDEN), torch.nn.Linear(HIDDEN, 6, bias=False)
        part = slice(shard * HIDDEN // width, (shard + 1) * HIDDEN // width)
        self.first = torch.nn.Parameter(whole[0].weight[part].detach().clone())
        self.bias = torch.nn.Parameter(whole[0].bias[part].detach().clone())
        self.second = torch.nn.Parameter(whole[1].weight[:, part].detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(torch.nn.functional.linear(x, self.first, self.bias))
        out: torch.Tensor = _SumInside.apply(torch.nn.functional.linear(hidden, self.second))
        return out


class _Receive(torch.autograd.Function):
    """What the stage before has sent; its gradient goes back there."""

    @staticmethod
    def forward(ctx: Any, like: torch.Tensor, stage: int) -> torch.Tensor:
        ctx.stage = stage
        received = torch.empty_like(like)
        dist.recv(received, stage)
        return received

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        dist.send(grad.contiguous(), ctx.stage)
        return torch.zeros_like(grad), None


class _Send(torch.autograd.Function):
    """Hands on to the next stage; the loss there is the loss, the one here is 0, and brings its gradient back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, stage: int) -> torch.Tensor:
        ctx.stage, ctx.like = stage, x
        dist.send(x.contiguous(), stage)
        return x.new_zeros(())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        received = torch.empty_like(ctx.like)
        dist.recv(received, ctx.stage)
        return received, None


class Stage(torch.nn.Module):
    """One stage of a pipeline."""

    def __init__(self, shard: int, width: int) -> None:
        super().__init__()
        self.shard, self.is_last = shard, shard == width - 1
        layers = [torch.nn.Linear(6, 6) for _ in range(width)]  # all draw alike, each keeps its own
        self.layer = layers[shard]

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        hidden = _Receive.apply(x.clone().requires_grad_(), self.shard - 1) if self.shard else x
        hidden = hidden + torch.tanh(self.layer(hidden))
        loss: torch.Tensor = ((hidden - x) ** 2).mean() if self.is_last else _Send.apply(hidden, self.shard + 1)
        return loss


def train(  # noqa: PLR0913
    session: Session,
    *,
    folder: Path,
    plan: tuple[Sabotage, ...],
    steps: int,
    micro_batch: int,
    pause_s: float,
    width: int = 2,
    kind: str = "columns",
    skipping: tuple[int, ...] = (),
    overflowing: tuple[int, ...] = (),
    leaving: tuple[int, ...] = (),
    slow: tuple[str, float] = ("", 0.0),
) -> str:
    """Train and log.

    Args:
        skipping: shards of replica 0 that drop step 4 when they have computed their part.
        overflowing: shards whose part of the gradients is infinite in step 4.
        leaving: shards that leave the loop before step 8.
        slow: a worker, and the seconds that each of its micro-batches takes longer.
        kind: columns; pipeline; fsdp: `fully_shard`, where each worker computes its part of a micro-batch, and clips;
            mesh: the same over one dimension of a mesh, and tensor parallelism over the other; apart: shards that
            never talk to each other.
    """
    saboteur = Saboteur(plan, folder)
    parts = SHARDED[kind](session) if kind in SHARDED else None
    model = parts.model if parts is not None else KINDS[kind](session.shard, width).double()
    session.prepare(model, bucket_bytes=300)
    optimizer = HalfwayOptimizer([{"params": [p]} for p in model.parameters()], lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)
    session.track(model=model, optimizer=optimizer, scaler=scaler)
    overflows = {(4, shard) for shard in overflowing}
    log = os.open(folder / f"{session.worker}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(event: str, **facts: Any) -> None:
        line = {"event": event, "t": time.time(), "pid": os.getpid(), "worker": session.worker, **facts}
        os.write(log, json.dumps({**line, "shard": session.shard}).encode() + b"\n")

    def at(point: str) -> None:
        rank = session.rank * width + session.shard
        saboteur.at(point, rank, session._link.state.commit.step + 1, session.generation)

    if plan:
        optimizer.halfway = lambda: at("in-apply")
        sabotage_the_agreement(at)
        if parts is not None:
            model[1].register_full_backward_pre_hook(lambda *_: at("mid-backward"))
    write("started", objects=[id(model), id(optimizer)])
    for step in session.steps(session.batches(Samples(), batch_size=BATCH, micro_batch_size=micro_batch), steps):
        wait_at_gate(folder, step.index)
        if step.index == 8 and session.shard in leaving:
            break
        with step:
            place = {"step": step.index, "generation": step.generation}
            for number, (index, x) in enumerate(step, 1):
                what = "consumed" if session.shard == 0 else "consumed with it"  # a sample counts once
                write(what, **place, ids=index.tolist(), rank=session.rank)
                time.sleep(pause_s + slow[1] * (session.worker == slow[0]))
                at("forward")
                part = x.chunk(parts.count)[parts.place] if parts is not None else x
                loss = model.loss(x) if kind == "pipeline" else ((model(part) - part) ** 2).mean()
                step.backward(loss, scaler=scaler)
                if (session.rank, step.index, number) == (0, 4, len(step.dealt)) and session.shard in skipping:
                    step.skip("a shard has had enough")
            if not step.skipped:
                is_infinite = (step.index, session.shard) in overflows
                finish_gradients(model, optimizer, scaler, clips=parts is not None, is_infinite=is_infinite)
            at("reduced")
            step.apply(optimizer, scaler=scaler)
            write("committed", **place)
            step.report(loss=step.loss)
        saboteur.flip(session.rank * width + session.shard, step.index, step.generation, optimizer)
    return finish(session, model, folder, write)


def finish_gradients(model: torch.nn.Module, optimizer: Any, scaler: Any, clips: bool, is_infinite: bool) -> None:
    """Clip them, or leave it to the scaler to find what is infinite."""
    if is_infinite:
        local(next(model.parameters()).grad).fill_(torch.inf)
    if clips:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)


def apart(shard: int, width: int) -> torch.nn.Module:
    return torch.nn.Linear(6, 6)


KINDS: dict[str, Any] = {"columns": Columns, "apart": apart, "pipeline": Stage}


@dataclass(frozen=True, slots=True)
class Sharded:
    """A model over the workers of a replica; of each micro-batch this one computes part `place` of `count`."""

    model: Any
    place: int
    count: int


def fully_sharded(session: Session) -> Sharded:
    """A perceptron over the workers of the replica; one parameter does not divide evenly."""
    mesh = session.replica_mesh
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 6)).double()
    return Sharded(sharded_over(mesh, model), mesh.get_local_rank(), mesh.size())


def meshed(session: Session) -> Sharded:
    """A perceptron over a mesh of two by two: cut by tensor parallelism, and what is left of it by FSDP2."""
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tensor"))
    model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 6)).double()
    cuts = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh["tensor"], cuts, src_data_rank=None)  # all draw alike
    return Sharded(sharded_over(mesh["fsdp"], model), mesh["fsdp"].get_local_rank(), 2)


def sharded_over(mesh: Any, model: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


SHARDED: dict[str, Any] = {"fsdp": fully_sharded, "mesh": meshed}


def finish(session: Session, model: torch.nn.Module, folder: Path, write: Any) -> str:
    """Write down what this worker holds in the end."""
    state = dict(local_parameters(model))
    digest = hashlib.blake2b(b"".join(t.numpy().tobytes() for t in state.values()), digest_size=8).hexdigest()
    if session.rank == 0:
        torch.save(state, folder / f"final-{session.shard}.pt")
    write("finished", digest=digest)
    return digest


def local_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, param in model.named_parameters():
        yield name, local(param.detach())


def local(held: Any) -> torch.Tensor:
    """This worker's part."""
    part: torch.Tensor = held.to_local() if hasattr(held, "to_local") else held
    return part


def sabotage_the_agreement(at: Any) -> None:
    agree = Replica.agree

    def sabotaged(self: Replica, commit: CommitId, *votes: bool) -> list[bool]:
        at("preparing")
        result = agree(self, commit, *votes)
        at("agreed")
        at("stall")
        return result

    Replica.agree = sabotaged  # type: ignore[method-assign]


def train_llama(session: Session, *, folder: Path, steps: int, **usual: Any) -> float:
    """The tiny Llama of the examples."""
    from examples.llama import Recipe, make_train_fn

    loss = make_train_fn(Recipe(steps=steps, batch_size=8, micro_batch_size=4, learning_rate=1e-2))(session)
    (folder / f"loss-{session.rank}-{session.shard}").write_text(str(loss))
    return loss


def columns(session: Session, reproducible: bool = False) -> tuple[Columns, torch.optim.Optimizer]:
    """A small model of which each worker holds a part, and its optimizer; both are tracked."""
    model = Columns(session.shard, 2).double()
    session.prepare(model, reproducible=reproducible)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    session.track(model=model, optimizer=optimizer)
    return model, optimizer


def train_and_evaluate(session: Session, *, folder: Path, steps: int, micro_batch: int, **_: Any) -> dict[str, float]:
    """Evaluations whose forward talks inside the replica."""
    model, optimizer = columns(session)

    def evaluate(evaluation: Any) -> dict[str, float]:
        total = 0.0
        for _, x in evaluation.batches(Samples(), batch_size=4):
            total += ((model(x) - x) ** 2).sum().item()
            if not (folder / "fired").exists() and evaluation.step >= 4 and (session.rank, session.shard) == (1, 1):
                (folder / "fired").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return {"error": evaluation.sum(total)[0] / len(Samples())}

    session.evaluate_every(2, evaluate)
    for step in session.steps(session.batches(Samples(), batch_size=BATCH, micro_batch_size=micro_batch), steps):
        with step:
            for _, x in step:
                step.backward(((model(x) - x) ** 2).mean())
            step.apply(optimizer)
    return session.evaluated


def train_weighted(
    session: Session, *, steps: int, micro_batch: int, apart: float, reproducible: bool, **_: Any
) -> None:
    """Micro-batches count by a weight, which is 0 for some; that of a shard is so much more than another's."""
    model, optimizer = columns(session, reproducible)
    for step in session.steps(session.batches(Samples(), batch_size=BATCH, micro_batch_size=micro_batch), steps):
        with step:
            for index, x in step:
                weight = float(index.sum() % 3) + apart * session.shard
                step.backward(((model(x) - x) ** 2).mean(), weight=weight)
            step.apply(optimizer)
