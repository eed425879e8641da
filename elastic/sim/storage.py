"""Pure. Where the bytes of a small world lie: the memory of nodes, and a persistent store that fails for a while.

Bytes are counted, not held. A shard is where it is in full, or it is torn: no reader ever sees a part of one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.checkpoint.records import Committed
from elastic.checkpoint.rungs import Copy, Holding, copy_of
from elastic.checkpoint.source import Tier
from elastic.control.values import CommitId, Fork

SLOTS = 3  # of a worker
ROOM = 3  # copies of a shard that a node takes
SHARD_BYTES = 8 << 30
COPY_BYTES_PER_S = 40 << 30  # from a worker's state into its slot
RUN = "r"


@dataclass(slots=True)
class Host:
    """A node's memory.

    Attributes:
        name: of the node. worker: that runs on it. number: counts what it has told of itself.
        slots: snapshots, sealed. pinned: those of them that nobody overwrites. copies: of other nodes' shards.
        busy_until_s: its link has been promised to others until then.
    """

    name: str
    worker: str
    number: int = 0
    slots: dict[Copy, ShardKey] = field(default_factory=dict)
    pinned: set[Copy] = field(default_factory=set)
    copies: dict[Copy, ShardKey] = field(default_factory=dict)
    busy_until_s: float = 0.0
    tier: Tier = Tier.PEER

    @property
    def where(self) -> str:
        return f"node {self.name}"

    @property
    def readable(self) -> dict[Copy, ShardKey]:
        return self.slots | self.copies

    @property
    def kept(self) -> set[Copy]:
        return self.pinned | self.copies.keys()

    def claim_slot(self) -> bool:
        """Begin to overwrite a free slot, or else the oldest that is not pinned; False if all are."""
        if len(self.slots) < SLOTS:
            return True
        free = [copy for copy in self.slots if copy not in self.pinned]
        if free:
            del self.slots[free[0]]
        return bool(free)

    def pin(self, keys: Iterable[ShardKey]) -> None:
        self.pinned = {copy_of(key) for key in keys} & self.slots.keys()

    def has_room(self, key: ShardKey) -> bool:
        return sum(one.shard == key.shard for one in self.copies.values()) < ROOM

    def holding(self) -> Holding:
        self.number += 1
        return Holding(
            life="1",
            number=self.number,
            slots=frozenset(self.slots.values()),
            pinned=frozenset(self.slots[copy] for copy in self.pinned),
            copies=frozenset(self.copies.values()),
        )


@dataclass(slots=True)
class Store:
    """The persistent tier.

    Attributes:
        parts: by shard, the share of its bytes that is there. committed: by name, steps that are durable.
        down_until_s: it answers nothing until then. failed_s: when its last outage began.
    """

    parts: dict[Copy, float] = field(default_factory=dict)
    committed: dict[str, Committed] = field(default_factory=dict)
    down_until_s: float = 0.0
    failed_s: float = -1.0
    where: str = "the store"
    tier: Tier = Tier.PERSISTENT

    def is_down(self, now_s: float) -> bool:
        return now_s < self.down_until_s

    def fail(self, now_s: float, for_s: float) -> None:
        self.failed_s, self.down_until_s = now_s, now_s + for_s

    def write(self, copy: Copy, began_s: float, now_s: float) -> bool:
        """Whether an upload that has lasted so long is there in full; an outage has torn it."""
        is_torn = began_s < self.down_until_s and self.failed_s <= now_s
        if self.parts.get(copy, 0.0) < 1.0:
            self.parts[copy] = 0.5 if is_torn else 1.0
        return not is_torn

    def is_whole(self, keys: Iterable[ShardKey]) -> bool:
        return all(self.parts.get(copy_of(key), 0.0) == 1.0 for key in keys)

    def delete(self, record: Committed) -> None:
        """The COMMIT first, so that no reader meets half a step."""
        del self.committed[record.name]
        for key in keys_of(record.commit, record.shards):
            self.parts.pop(copy_of(key), None)


def keys_of(commit: CommitId, shards: int) -> list[ShardKey]:
    return [ShardKey(commit=commit, shard=shard, shards=shards) for shard in range(shards)]


def manifest_of(key: ShardKey, forks: tuple[Fork, ...] = ()) -> Manifest:
    """What a reader is told of a shard."""
    told = {"commit": key.commit, "shard": key.shard, "shards": key.shards}
    return Manifest(run=RUN, layout="l", skeleton="{}", entries=(), nbytes=0, chunks=(), forks=forks, **told)  # type: ignore[arg-type]


def digest_of(key: ShardKey) -> str:
    """What a COMMIT calls this shard."""
    return f"{key.commit.step}-{key.commit.lineage}-{key.shard}"
