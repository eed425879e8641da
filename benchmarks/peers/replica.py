"""What every peer trains, and what it writes down: the same model, samples and steps as in `benchmarks.elastic_job`."""

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.training import BATCH, SAMPLES, Ballast, Job, Rises, collate, new_model, new_optimizer
from elastic.control.batch_size import ConstantBatch
from elastic.control.data import BatchPlan, deal, even
from examples.bytes_gpt import StepLog, digest, loss_fn


class Replica:
    """Model, optimizer, place in the data and step log of one worker.

    Args:
        name: of the worker, in its step log.

    Attributes:
        step: the next one. generation: rises whenever the group is formed anew; the same for all members.
    """

    def __init__(self, job: Job, name: str) -> None:
        torch.set_num_threads(1)
        self.job, self.step, self.generation, self.attempt = job, 0, 0, 1
        self.log = StepLog(job.log_folder, f"{name}-{os.getpid()}")
        self.model = new_model(job.seed)
        self.optimizer = new_optimizer(self.model)
        self._ballast = Ballast(job.state_bytes)
        self._samples = Rises()
        size = ConstantBatch(size=BATCH)
        self._plan = BatchPlan(samples=SAMPLES, batch_size=size, micro_batch_size=job.micro_batch, seed=job.seed)
        self.log.write("started", model_id=id(self.model), optimizer_id=id(self.optimizer))

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ballast": self._ballast.state_dict(),
            "step": self.step,
            "generation": self.generation,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._ballast.load_state_dict(state["ballast"])
        self.step, self.generation = state["step"], state["generation"]

    def save(self, path: Path) -> None:
        """Write the state into a file, all of it or nothing."""
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        torch.save(self.state_dict(), partial)
        partial.rename(path)

    def load(self, path: Path) -> bool:
        """Take the state from a file, if it is there."""
        if not path.exists():
            return False
        self.load_state_dict(torch.load(path, weights_only=True))
        return True

    def is_due(self) -> bool:
        """Whether a checkpoint is to be taken now."""
        every = self.job.knobs["checkpoint_steps"]
        return self.job.saves and bool(every) and self.step % every == 0

    # --- a step ---

    def backward(self, model: torch.nn.Module, rank: int, part: int, parts: int, heard: bool = True) -> float:
        """Forward and backward of this worker's part of the step's samples, micro-batch by micro-batch.

        Args:
            model: the model, or what wraps it; where that has `no_sync`, gradients are exchanged in the last backward.
            heard: what is consumed here counts, and is written down.

        Returns:
            Mean loss over the samples.
        """
        pieces = list(self._micro_batches(part, parts))
        total = 0.0
        for number, (ids, x, y) in enumerate(pieces):
            if heard:
                self.log.write("consumed", **self.place, rank=rank, ids=ids)
            self.job.compute(self.job.workers[1])
            with _quiet(model) if number + 1 < len(pieces) else contextlib.nullcontext():
                loss = loss_fn(model, x, y) / len(pieces)
                loss.backward()
            total += loss.item()
        return total

    def committed(self, rank: int, loss: float) -> None:
        """Write down that the step was applied, and go on to the next one."""
        self.log.write("committed", **self.place, rank=rank, loss=loss)
        self.step += 1

    def finish(self) -> None:
        """Write down how the run ended."""
        self.log.write("finished", digest=digest(self.model))
        partial = self.job.final_file.with_name(f"final.{os.getpid()}")
        torch.save(self.model.state_dict(), partial)
        partial.rename(self.job.final_file)

    @property
    def place(self) -> dict[str, int]:
        """What an attempt is known by, to all members alike."""
        return {"step": self.step, "generation": self.generation, "attempt": self.attempt}

    def _micro_batches(self, part: int, parts: int) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
        pieces = self._plan.cut(self.step * BATCH, parts)
        for number in deal(len(pieces), even(parts), part):
            ids = self._plan.sample_indices(pieces[number])
            yield collate([self._samples[index] for index in ids])


def train(replica: Replica, model: torch.nn.Module, checkpoint: Path | None) -> None:
    """Train in a group whose ranks all began together, to the run's end.

    Args:
        model: the replica's, as DistributedDataParallel.
        checkpoint: rank 0 keeps the state there.
    """
    rank, workers = dist.get_rank(), dist.get_world_size()
    replica.generation = agreed_generation()
    while not replica.job.is_over(replica.step):
        loss = replica.backward(model, rank, rank, workers)
        replica.optimizer.step()
        replica.optimizer.zero_grad()
        replica.committed(rank, loss)
        if checkpoint is not None and rank == 0 and replica.is_due():
            replica.save(checkpoint)
    replica.finish()


def agreed_generation() -> int:
    """A number that is the same on all ranks of a new group, and higher than those of earlier groups."""
    now_ms = torch.tensor([int(time.time() * 1000)])
    dist.broadcast(now_ms, 0)
    return int(now_ms.item())


def _quiet(model: torch.nn.Module) -> AbstractContextManager[Any]:
    return model.no_sync() if isinstance(model, torch.nn.parallel.DistributedDataParallel) else contextlib.nullcontext()
