"""Effect. Slots as files, one folder for each node of a test cluster, all of whose nodes share this machine."""

from pathlib import Path
from typing import Any

import numpy as np

from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.checkpoint.source import Tier
from elastic.checkpoint.store import MissingError


class FileMemory:
    """A node's slots; they stay for ever."""

    tier = Tier.MEMORY

    def __init__(self, root: Path, node: str) -> None:
        self.where, self._folder = f"slots of {node}", root / node
        self._folder.mkdir(parents=True, exist_ok=True)

    def seal(self, manifest: Manifest, payload: Any) -> None:
        path = self._folder / f"{manifest.commit.step:06d}-{manifest.shard}"
        payload.tofile(path.with_suffix(".payload"))
        path.with_suffix(".partial").write_bytes(manifest.encode())
        path.with_suffix(".partial").rename(path.with_suffix(".manifest"))

    def manifests(self) -> list[Manifest]:
        paths = sorted(self._folder.glob("*.manifest"), reverse=True)
        return [Manifest.decode(path.read_bytes()) for path in paths]

    def read(self, key: ShardKey, begin: int, end: int) -> Any:
        path = self._folder / f"{key.commit.step:06d}-{key.shard}.payload"
        try:
            return np.fromfile(path, dtype=np.uint8, count=end - begin, offset=begin)
        except FileNotFoundError:
            raise MissingError(f"{self.where} hold no shard {key.shard} of step {key.commit.step}") from None


def in_folders(root: Path) -> Any:
    """node id -> its slots."""
    return lambda node: FileMemory(root, node)
