"""torch's own ways: distributed checkpoint (DCP), in turn and beside the training, and torch.save.

DCP beside the training, twice: as it comes (a stager for each save, files synced), and with one stager that is used
again, all its options False (on a CPU the others fail), files not synced. Files go to the ramdisk, and for `durable_s`
to the disk, synced.
"""

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from benchmarks.checkpoints.serving import Keeper, Task, serve, task_from_arguments
from benchmarks.checkpoints.state import Work, as_dict, copy_into, new_state, tensors_of


class Files(Keeper):
    """What all of them share: a folder in the ramdisk, and one on the disk."""

    has = ("stall_s", "process_s", "durable_s", "restore_s")

    def __init__(self, state: dict[str, Any], task: Task, name: str) -> None:
        self._state = state
        self._folder, self._durable = self.storage = (task.ramdisk / name, task.disk / name)

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(self._durable, ignore_errors=True)


class Dcp(Files):
    """dcp.save, while the training waits."""

    def begin(self) -> None:
        self._save(self._folder, is_synced=False)

    def durable(self) -> None:
        self._save(self._durable, is_synced=True)

    def restore(self) -> None:
        dcp.load(self._state, storage_reader=dcp.FileSystemReader(self._folder), no_dist=True)

    def _save(self, folder: Path, is_synced: bool) -> None:
        dcp.save(self._state, storage_writer=dcp.FileSystemWriter(folder, sync_files=is_synced), no_dist=True)


class AsyncDcp(Dcp):
    """dcp.async_save. `save`: (state, folder) -> what it returns."""

    has = ("stall_s", "process_s", "restore_s")

    def __init__(self, state: dict[str, Any], task: Task, name: str, save: Callable[[Any, Path], Any]) -> None:
        super().__init__(state, task, name)
        self._start = save
        self._saving: Any = None

    def begin(self) -> None:
        self._saving = self._start(self._state, self._folder)

    def fence(self) -> None:
        if (staging := getattr(self._saving, "staging_completion", None)) is not None:
            staging.result()

    def process(self) -> None:
        getattr(self._saving, "upload_completion", self._saving).result()


class TorchSave(Files):
    """torch.save into one file."""

    def begin(self) -> None:
        self._folder.mkdir()
        torch.save(self._state, self._folder / "state.pt")

    def durable(self) -> None:
        self._durable.mkdir()
        with (self._durable / "state.pt").open("wb") as file:
            torch.save(self._state, file)
            os.fsync(file.fileno())
        folder = os.open(self._durable, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def restore(self) -> None:
        copy_into(self._state, torch.load(self._folder / "state.pt", weights_only=True))


def reused(stager: DefaultStager) -> Callable[[Any, Path], Any]:
    """async_save with this stager, files not synced."""

    def save(state: Any, folder: Path) -> Any:
        writer = dcp.FileSystemWriter(folder, sync_files=False)
        return dcp.async_save(state, storage_writer=writer, async_stager=stager, no_dist=True)

    return save


def as_it_comes(state: Any, folder: Path) -> Any:
    """async_save with nothing set."""
    return dcp.async_save(state, checkpoint_id=folder, no_dist=True)


def keepers(state: dict[str, Any], task: Task) -> dict[str, Keeper]:
    """By name."""
    stager = DefaultStager(StagingOptions(False, False, False, False))
    return {
        "dcp-sync": Dcp(state, task, "dcp-sync"),
        "dcp-async": AsyncDcp(state, task, "dcp-async", reused(stager)),
        "dcp-async-default": AsyncDcp(state, task, "dcp-async-default", as_it_comes),
        "torch-save": TorchSave(state, task, "torch-save"),
    }


def main() -> None:
    task = task_from_arguments()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    state = as_dict(*new_state(task.nbytes))
    serve(task, keepers(state, task), Work(tensors_of(state), task.step_memcpys))


if __name__ == "__main__":
    main()
