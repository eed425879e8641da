"""Effect. Small shards for tests of the checkpoint tiers, and a memory of slots without files."""

import weakref
from typing import Any

import google_crc32c
import numpy as np

from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.checkpoint.source import Tier
from elastic.checkpoint.store import MissingError
from elastic.control.values import CommitId

CHUNK_BYTES = 1 << 10


def key(step: int, shard: int = 0, shards: int = 1) -> ShardKey:
    commit = CommitId(incarnation=1, generation=1, attempt=0, step=step, lineage=f"lineage{step}")
    return ShardKey(commit=commit, shard=shard, shards=shards)


def payload(of: ShardKey, nbytes: int) -> Any:
    return np.random.default_rng([of.commit.step, of.shard]).integers(0, 256, nbytes, dtype=np.uint8)


def manifest(of: ShardKey, data: Any, chunk_bytes: int = CHUNK_BYTES, run: str = "night") -> Manifest:
    cuts = range(0, len(data), chunk_bytes)
    return Manifest(
        run=run,
        commit=of.commit,
        shard=of.shard,
        shards=of.shards,
        layout="layout",
        skeleton="{}",
        entries=(),
        nbytes=len(data),
        chunk_bytes=chunk_bytes,
        chunks=tuple(google_crc32c.value(data[at : at + chunk_bytes]) for at in cuts),
    )


class FakeMemory:
    """Slots of a node; an array that was handed out pins its slot as long as it lives."""

    tier = Tier.MEMORY
    where = "fake memory"

    def __init__(self) -> None:
        self.slots: dict[ShardKey, tuple[Manifest, Any]] = {}
        self._lent: list[tuple[ShardKey, Any]] = []

    def seal(self, of: ShardKey, nbytes: int = 10 * CHUNK_BYTES) -> Any:
        data = payload(of, nbytes)
        self.slots[of] = (manifest(of, data), data)
        return data

    def held(self) -> set[ShardKey]:
        """Shards whose slots somebody holds."""
        return {one for one, array in list(self._lent) if array() is not None}

    def overwrite(self, of: ShardKey) -> bool:
        """What a worker does that needs the slot; False where somebody holds it."""
        if of in self.held():
            return False
        del self.slots[of]
        return True

    def manifests(self, step: int | None = None) -> list[Manifest]:
        found = (one for one, _ in self.slots.values() if step in (None, one.commit.step))
        return sorted(found, key=lambda one: -one.commit.step)

    def read(self, of: ShardKey, begin: int, end: int) -> Any:
        found = next((data for (one, data) in self.slots.values() if one.key.is_same(of)), None)
        if found is None:
            raise MissingError(f"no slot holds {of}")
        view = found[begin:end]
        self._lent.append((of, weakref.ref(view)))
        return view
