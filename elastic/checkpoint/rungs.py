"""Pure. The ladder's vocabulary: how safe a step is, what the ladder is told, and what it orders."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from elastic.checkpoint.manifest import ShardKey
from elastic.control.values import CommitId, Fork, Rung

StepId = tuple[int, str, int]  # step, lineage, shards: which state, in how many parts
Copy = tuple[StepId, int]  # and which of the parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one node holds at one moment.

    Attributes:
        life: of its actor; number: counts the changes within it, so that an answer that comes late does no harm.
        slots: shards sealed in its workers' arenas; pinned: those of them that nobody overwrites.
        copies: shards pulled from other nodes, whole and verified.
        disk: shards on its disk, whole.
        nbytes: of the copies. budget_bytes: what they may take.
    """

    life: str
    number: int
    slots: frozenset[ShardKey] = frozenset()
    pinned: frozenset[ShardKey] = frozenset()
    copies: frozenset[ShardKey] = frozenset()
    disk: frozenset[ShardKey] = frozenset()
    nbytes: int = 0
    budget_bytes: int = 0


# --- what the ladder is told ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Homes:
    """Which nodes have workers of a shard: they are about to stage it themselves."""

    by_shard: Mapping[int, Collection[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeComing:
    """Its actor was started: it is up soon, or told of as lost."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUp:
    """A node can hold copies. domain: its failure domain, empty if unknown."""

    node: str
    domain: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """What a node holds is out of reach."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a node holds now; a new life of its actor starts with what it found."""

    node: str
    holding: Holding


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A pull came to nothing. is_full: the node has no room for it."""

    key: ShardKey
    node: str
    reason: str
    is_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """A shard is in the persistent tier, or its upload failed.

    Attributes:
        digest: of its manifest. reason: why it is not there, empty if it is. is_gone: since the node holds it no more.
    """

    key: ShardKey
    node: str
    digest: str = ""
    reason: str = ""
    is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A step is committed in the persistent tier; reason: why it is not, empty if it is."""

    commit: CommitId
    shards: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Nodes have been asked once more; who has not staged by now is not about to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadDue:
    """The persistent interval is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A node will be lost: what it holds does not count any more, and the newest step goes down at once."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RedundancyLost:
    """Live workers hold the newest state once only: the newest step goes down at once."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """Somebody reads a step: nothing of it is dropped until `is_over`."""

    commit: CommitId
    shards: int
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """Where the history began anew, oldest first: what that has left behind makes nothing older superfluous."""

    forks: tuple[Fork, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDisk:
    """A node has written a shard to its disk; reason: why it has not, or empty. For `Disks`, not the ladder."""

    key: ShardKey
    node: str
    reason: str = ""
    is_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersChosen:
    """So many other nodes get a copy of each shard from now on, where `Checkpoint.peers` leaves it open."""

    peers: int
    reason: str


Event = (
    Homes
    | NodeComing
    | NodeUp
    | NodeLost
    | Held
    | Refused
    | Uploaded
    | Committed
    | Beat
    | UploadDue
    | Notice
    | RedundancyLost
    | Leased
    | Forked
    | PeersChosen
)


# --- what it orders ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Keep these slots of a node from being overwritten, and no others."""

    node: str
    keys: frozenset[ShardKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Let a node take a copy from one of the sources, tried in this order."""

    key: ShardKey
    node: str
    sources: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Let a node give a copy up."""

    key: ShardKey
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Let a node write a shard to the persistent tier."""

    key: ShardKey
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Let a node commit a step in the persistent tier, all of whose shards are there; digests: by shard."""

    commit: CommitId
    digests: tuple[str, ...]
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRung:
    """A step has come to a rung, or fell back to it: for the journal.

    Attributes:
        copies: nodes that keep the shard with the fewest. degraded: why they are fewer than asked for, or empty.
    """

    commit: CommitId
    shards: int
    rung: Rung
    copies: int
    degraded: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLost:
    """Nobody holds anything any more of a step that was the newest on a rung: for the journal, once."""

    commit: CommitId
    shards: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Degraded:
    """A rung is not what was asked for, as with fewer copies; told once. An empty reason: it is again."""

    reason: str
    rung: str = Rung.REPLICATED.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadInterval:
    """Uploads begin as often as `reason` says, which is not as often as before: for the journal."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetch:
    """A node gets shards of a step that is restored, while its workers start: for the journal.

    Attributes:
        sources: of each of the shards the nodes that it is taken from, tried in this order.
    """

    commit: CommitId
    node: str
    shards: tuple[int, ...]
    sources: tuple[tuple[str, ...], ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToDisk:
    """Let a node write a shard of its slots to its disk."""

    key: ShardKey
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffDisk:
    """Let a node remove a shard from its disk."""

    key: ShardKey
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskStep:
    """A step is whole on the disks of these nodes: for the journal."""

    commit: CommitId
    shards: int
    nodes: tuple[str, ...]


Order = Pin | Pull | Drop | Upload | Commit | CheckpointRung | StepLost | Degraded


def step_id(key: ShardKey) -> StepId:
    return key.commit.step, key.commit.lineage, key.shards


def copy_of(key: ShardKey) -> Copy:
    return step_id(key), key.shard
