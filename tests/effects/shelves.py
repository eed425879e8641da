"""Effect. Sources for tests: shards in memory and in a directory, and the faults that they are given."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elastic.checkpoint.catalog import Candidate, Holder, candidates
from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.checkpoint.source import Source, Tier
from elastic.checkpoint.store import MissingError
from elastic.control.values import CommitId
from elastic.interchange.packing import pack_shard
from elastic.train import tree

Shard = tuple[Manifest, np.ndarray]
RUN = "r"


def commit(step: int, lineage: str = "a", generation: int = 1) -> CommitId:
    return CommitId(incarnation=1, generation=generation, attempt=0, step=step, lineage=lineage)


class Shelf:
    """Holds shards in memory; `spoil(key, begin, end, data) -> data` may change what is read, or raise."""

    def __init__(
        self,
        shards: Sequence[Shard],
        tier: Tier = Tier.PEER,
        where: str = "shelf",
        spoil: Callable[[ShardKey, int, int, Any], Any] = lambda key, begin, end, data: data,
    ) -> None:
        self.tier, self.where, self.shards, self.spoil = tier, where, list(shards), spoil
        self.reads: list[tuple[int, int, int]] = []

    def manifests(self, step: int | None = None) -> list[Manifest]:
        return [manifest for manifest, _ in self.shards if step in (None, manifest.commit.step)]

    def read(self, key: ShardKey, begin: int, end: int) -> Any:
        self.reads.append((key.shard, begin, end))
        for manifest, payload in self.shards:
            if manifest.key.is_same(key):
                return self.spoil(key, begin, end, payload[begin:end])
        raise MissingError(f"{self.where} does not hold {key}")


class Folder:
    """Holds shards in a directory, as `<step>-<shard>.manifest` and `.payload`."""

    def __init__(self, path: Path, tier: Tier = Tier.PERSISTENT) -> None:
        self.tier, self.path, self.where = tier, path, str(path)

    def put(self, shard: Shard) -> None:
        manifest, payload = shard
        name = f"{manifest.commit.step}-{manifest.shard}"
        (self.path / f"{name}.payload").write_bytes(payload.tobytes())
        (self.path / f"{name}.manifest").write_bytes(manifest.encode())

    def manifests(self, step: int | None = None) -> list[Manifest]:
        wanted = "*" if step is None else f"{step}-*"
        return [Manifest.decode(path.read_bytes()) for path in sorted(self.path.glob(f"{wanted}.manifest"))]

    def read(self, key: ShardKey, begin: int, end: int) -> bytes:
        path = self.path / f"{key.commit.step}-{key.shard}.payload"
        if not path.exists():
            raise MissingError(f"{path} is gone")
        return path.read_bytes()[begin:end]


def shard_of(state: Any, step: int = 7, shard: int = 0, shards: int = 1, chunk_bytes: int = 256, **which: Any) -> Shard:
    return pack_shard(tree.flatten(state), RUN, commit(step, **which), shard, shards, chunk_bytes)


def of(*sources: Source, **more: Any) -> tuple[Candidate, ...]:
    """What these sources could restore, best first."""
    found = [Holder(source=source, manifest=manifest) for source in sources for manifest in source.manifests()]
    return candidates(found, RUN, **more)


def flipped(data: Any, bit: int) -> np.ndarray:
    """The same with one bit changed."""
    wrong = np.frombuffer(data, dtype=np.uint8).copy()
    wrong[bit // 8 % len(wrong)] ^= 1 << bit % 8
    return wrong


def numbers(*shape: int, start: float = 0.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Every element another value."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float64) + start).to(dtype).reshape(shape)
