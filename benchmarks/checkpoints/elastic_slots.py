"""This library's slots in shared memory, and its persistent tier: the product's own `Snapshots`, reader and vault."""

import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.checkpoints.bench import Bench, Settings
from benchmarks.checkpoints.serving import Keeper, Task, serve, task_from_arguments
from benchmarks.checkpoints.state import Work
from elastic.checkpoint import memory
from elastic.checkpoint.catalog import candidates
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.memory import MemorySource
from elastic.checkpoint.reader import take_inventory
from elastic.checkpoint.source import Source
from elastic.checkpoint.vault import open_vault
from elastic.control.values import CommitId
from elastic.train.landing import Landing
from elastic.train.restore import fetch
from elastic.train.tracked import Tracked


class Slots(Keeper):
    """A copy beside the step, summed and sealed."""

    has = ("stall_s", "process_s", "durable_s", "restore_s")

    def __init__(self, bench: Bench, task: Task) -> None:
        self._snapshots, self._door, self.run = bench.snapshots, bench.door, bench.run
        self.source = MemorySource(task.ramdisk, bench.run)
        self._vaults = task.disk / "vaults"
        self.storage = (self._vaults,)
        self._commit: CommitId | None = None
        self._tracked, self._landing = bench.tracked, Landing()
        reserve(self._landing, self._tracked)

    def begin(self) -> None:
        self._commit = self._door()

    def fence(self) -> None:
        self._snapshots.fence()

    def process(self) -> None:
        """As if the step were known to be stable; in a run that is known during the next one."""
        assert self._commit is not None
        self._snapshots.stable(self._commit)
        self._snapshots.flush()

    def durable(self) -> None:
        """From the door to COMMIT; all files are synced."""
        self.begin()
        self.fence()
        self.process()
        manifest = newest(self.source, self.run)
        vault = open_vault(str(self._vaults / f"{manifest.commit.step}"), self.run, incarnation=1)
        vault.register("a benchmark")
        vault.commit(manifest.commit, [vault.upload(manifest, partial(self.source.read, manifest.key))])
        vault.close()

    def restore(self) -> None:
        restore([self.source], self.run, self._tracked, self._landing)

    def clear(self) -> None:
        shutil.rmtree(self._vaults, ignore_errors=True)
        reserve(self._landing, self._tracked)


def newest(source: Source, run: str) -> Manifest:
    """Of the step that was sealed last."""
    return candidates(take_inventory([source]).holders, run)[0].manifests[0]


def restore(sources: Sequence[Source], run: str, tracked: Tracked, landing: Landing) -> None:
    """The newest step, as a worker does it: every chunk is verified, and the objects, once they have taken it over."""
    candidate = candidates(take_inventory(sources).holders, run)[0]
    fetch(tracked, candidate, 0, 1, landing).install()


def reserve(landing: Landing, tracked: Tracked) -> None:
    """Memory that a worker touches on its way to the door, before it restores."""
    landing.reserve(tracked.flatten().tensors, tracked.optimizers)


def new_bench(task: Task) -> Bench:
    """A state, and its snapshots in the ramdisk; the name of the run is this process's own."""
    settings = Settings(nbytes=task.nbytes, step_memcpys=task.step_memcpys, directory=str(task.ramdisk))
    return Bench(settings, Path(task.ramdisk), run=f"benchmark-slots-{os.getpid()}")


def main() -> None:
    task = task_from_arguments()
    bench = new_bench(task)
    try:
        serve(task, {"elastic": Slots(bench, task)}, Work(bench.tensors, task.step_memcpys))
    finally:
        memory.remove(task.ramdisk, bench.run)


if __name__ == "__main__":
    main()
