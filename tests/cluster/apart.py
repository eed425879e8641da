"""Effect. Nodes on one machine, each of which sees the slots of its own worker alone; carried to others by value."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastic.checkpoint.memory import MemorySource
from elastic.checkpoint.store import MissingError


def on_its_node(train_fn: Callable[[Any], Any], folder: Path) -> Callable[[Any], Any]:
    """The same, by a worker that finds nobody else's slots; its node gets a file that names its shard."""

    def train(session: Any) -> Any:
        import ray

        manifests = MemorySource.manifests
        MemorySource.manifests = lambda self, step=None: [  # type: ignore[method-assign]
            one for one in manifests(self, step) if one.shard == session.shard
        ]
        (folder / f"{ray.get_runtime_context().get_node_id()}.shard").write_text(str(session.shard))
        return train_fn(session)

    return train


class OwnSlots(MemorySource):
    """Those of the shard that a file names."""

    def __init__(self, file: Path, directory: Path, run: str, node: str) -> None:
        super().__init__(directory, run, f"memory of node {node[:12]}")
        self._file = file

    def manifests(self, step: int | None = None) -> Any:
        return [one for one in super().manifests(step) if self._is_here(one.shard)]

    def read(self, key: Any, begin: int, end: int) -> Any:
        if not self._is_here(key.shard):
            raise MissingError(f"{self.where} has no slot of shard {key.shard}")
        return super().read(key, begin, end)

    def _is_here(self, shard: int) -> bool:
        return self._file.exists() and self._file.read_text() == str(shard)


def slots_of(folder: Path, directory: Path, run: str, node: str) -> MemorySource:
    return OwnSlots(folder / f"{node}.shard", directory, run, node)


def own_slots(folder: Path) -> Callable[..., MemorySource]:
    """In place of `elastic.actors.equipment.slots_in`."""
    return functools.partial(slots_of, folder)
