"""A state, and this library's snapshots of it: what the benchmarks of a checkpoint take turns with. Without Ray."""

import itertools
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from benchmarks.checkpoints.state import as_dict, new_state, timed
from elastic.checkpoint.manifest import chunk_count
from elastic.control.values import CommitId, Member, View
from elastic.settings import Checkpoint, Interval, Limits
from elastic.train import snapshot
from elastic.train.flight import FlightPage
from elastic.train.link import Link
from elastic.train.surroundings import Surroundings
from elastic.train.tracked import Tracked

RUN = "benchmark-checkpoint"
DEADLINE_S = 60.0
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is measured. `step_memcpys`: length of a step; `steps`: of them in a repetition of `plain` and `every`."""

    nbytes: int = 1 << 30
    repeats: int = 12
    step_memcpys: float = 10.0
    steps: int = 3
    directory: str = "/dev/shm"


class Measured(snapshot.Snapshots):
    """With parts that can be left out. `is_blocking`: all is copied at the door. `has_sums`: chunks are summed."""

    is_blocking = False
    has_sums = True

    def _steady(self) -> set[int]:
        return set() if self.is_blocking else super()._steady()

    def _running_sums(self, slot: Any) -> Any:
        running = super()._running_sums(slot)
        running.is_stopped = not self.has_sums
        return running

    def _seal(self, taken: snapshot.Snapshot) -> None:
        if self.has_sums:
            super()._seal(taken)
            return
        taken.copies.wait(DEADLINE_S)
        count = chunk_count(taken.manifest.nbytes)
        self._arena.seal(taken.slot, replace(taken.manifest, chunks=(0,) * count))


class Bench:
    """A state, and one worker's snapshots of it.

    Args:
        run: its slots have names with it. device: where the state is.
    """

    def __init__(self, settings: Settings, scratch: Path, run: str = RUN, device: str = "cpu") -> None:
        self.settings, self.scratch, self.run, self.device = settings, scratch, run, device
        self.model, self.optimizer = new_state(settings.nbytes, device)
        self.tracked = Tracked()
        self.tracked.add({"model": self.model, "optimizer": self.optimizer})
        self.tensors = self.tracked.flatten().tensors
        self.buffers = [torch.zeros_like(tensor).fill_(1) for tensor in self.tensors]
        self.nbytes = sum(tensor.nbytes for tensor in self.tensors)
        self.stager = DefaultStager(StagingOptions(False, False, False, False))
        self.small = torch.randn(192, 192)
        self.rounds = 0
        self.snapshots = self._make_snapshots()
        self._number = itertools.count()

    def calibrate(self) -> None:
        """How many products of matrices make a step."""
        memcpy_s = statistics.median(self.memcpy() for _ in range(5))
        self.rounds = 200
        round_s = statistics.median(timed(self.compute) for _ in range(3)) / self.rounds
        self.rounds = max(1, round(self.settings.step_memcpys * memcpy_s / round_s))

    def compute(self) -> None:
        for _ in range(self.rounds):
            self.small @ self.small

    def _make_snapshots(self) -> Measured:
        """Ready to take some."""
        link, limits = Link("w0", 1e9), Limits()
        page = FlightPage(self.scratch / "page")
        checkpoint = Checkpoint(local_interval=Interval(steps=1), memory=self.settings.directory)
        around = Surroundings(
            run=self.run,
            worker="w0",
            host="127.0.0.1",
            device=torch.device(self.device),
            seed=0,
            limits=limits,
            link=link,
            page=page,
            checkpoint=checkpoint,
        )
        replica: Any = SimpleNamespace(
            link=link,
            page=page,
            tracked=self.tracked,
            model=self.model,
            rank=0,
            shard=0,
            width=1,
            replicas=1,
            last_number=-1,
        )
        made = Measured(replica, around, checkpoint)
        made.expect(self.tensors, [self.optimizer])
        start = CommitId(1, 1, 1, -1, "")
        members = (Member("w0", "127.0.0.1", 1),)
        made.joined(
            View(run=self.run, incarnation=1, generation=1, members=members, resume=start, donors=(0,), behind=())
        )
        made.flush()
        return made

    def door(self) -> CommitId:
        """The next step is applied, and all is at rest."""
        number = next(self._number)
        commit = CommitId(1, 1, 1, number, f"{number:016x}")
        step: Any = SimpleNamespace(
            number=number, index=number, commit=commit, is_staged=True, replicas=1, wants_pause=True
        )
        self.snapshots.committed(step)
        self.snapshots.at_door()
        return commit

    # --- the variants: each returns seconds ---

    def memcpy(self) -> float:
        def copy() -> None:
            for target, source in zip(self.buffers, self.tensors, strict=True):
                target.copy_(source)

        return timed(copy)

    def stall(self, between: Callable[[], None], is_blocking: bool = False) -> float:
        """Door and fence."""
        self.snapshots.is_blocking = is_blocking
        started_s = time.perf_counter()
        commit = self.door()
        stall_s = time.perf_counter() - started_s
        between()
        stall_s += timed(self.snapshots.fence)
        self.snapshots.is_blocking = False
        self.snapshots.stable(commit)
        self.snapshots.flush()
        return stall_s

    def survivable(self) -> float:
        started_s = time.perf_counter()
        self.snapshots.stable(self.door())
        self.snapshots.fence()
        self.snapshots.flush()
        return time.perf_counter() - started_s

    def dcp(self) -> float:
        folder = self.scratch / "dcp"
        shutil.rmtree(folder, ignore_errors=True)
        state = as_dict(self.model, self.optimizer)
        writer = dcp.FileSystemWriter(folder, sync_files=False)
        started_s = time.perf_counter()
        saving: Any = dcp.async_save(state, storage_writer=writer, async_stager=self.stager, no_dist=True)
        getattr(saving, "upload_completion", saving).result()
        return time.perf_counter() - started_s

    def plain(self) -> float:
        """A step, on average."""
        return timed(lambda: [self.compute() for _ in range(self.settings.steps)]) / self.settings.steps

    def every(self, has_sums: bool = True) -> float:
        """A step with a snapshot, on average: one is sealed while the next is copied."""
        snapshots = self.snapshots
        snapshots.has_sums = has_sums

        def steps() -> None:
            commit = None
            for _ in range(self.settings.steps):
                self.compute()
                if commit is not None:
                    snapshots.stable(commit)
                snapshots.fence()
                commit = self.door()

        step_s = timed(steps) / self.settings.steps
        snapshots.fence()
        snapshots.drop()
        snapshots.flush()
        snapshots.has_sums = True
        return step_s


def size(text: str) -> int:
    """Bytes: 64MiB, 1GiB, 4096."""
    digits = text.rstrip("KMGiB")
    return int(digits) * UNITS[text.removeprefix(digits)]
