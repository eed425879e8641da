"""Pure. How safe each step is made."""

from dataclasses import dataclass, field

from elastic.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """When something is due: after so many steps, or seconds, whichever comes first; neither: as measured costs say.

    Attributes:
        steps: between two. (optimizer steps; default none: as measured)
        seconds: between two. (s; default none: as measured)
    """

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.steps is not None and self.steps < 1) or (self.seconds is not None and self.seconds <= 0):
            raise SettingError(f"{self!r} must hold positive numbers; leave both out for an interval that is measured")

    @property
    def is_auto(self) -> bool:
        return self.steps is None and self.seconds is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Which committed steps the persistent tier keeps, beside those that nothing may delete (the newest good ones).

    Attributes:
        last: newest steps. (steps; default 2: one, and the one before it should it prove bad)
        every: the first in each so many steps, for ever; 0: none. (optimizer steps; default 0: storage costs money)
        best: so many with the best value of `metric`. (steps; default 0: not every run reports a metric to go by)
        metric: a name given to step.report. (text; default loss: what most runs report)
        mode: whether "min" or "max" is best. (min or max; default min: for a loss)
    """

    last: int = 2
    every: int = 0
    best: int = 0
    metric: str = "loss"
    mode: str = "min"

    def __post_init__(self) -> None:
        if self.last < 1 or self.every < 0 or self.best < 0 or self.mode not in ("min", "max"):
            raise SettingError(f"{self!r}: last >= 1, every >= 0, best >= 0, mode 'min' or 'max'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How safe a step is made: the tiers below the memory of live workers.

    Attributes:
        persistent: root of the durable tier: gs://bucket/prefix, a directory, or a URL that fsspec knows. (URL; default
            none: nobody can guess it)
        local_interval: between snapshots into shared memory (STAGED, LOCAL), from where peers take them (REPLICATED).
            (interval; default as measured: cost against the work that a failure loses)
        persistent_interval: between uploads (DURABLE). (interval; default as measured: the same)
        backup_interval_minutes: the persistent interval under its name in multi-tier checkpointing. (minutes; default
            none: persistent_interval)
        peers: copies of each shard on other nodes than its own; none: 2 where three nodes or more have room for them,
            else 1. (copies; default none: a node may be lost at any time, the next one before copies are made good)
        peer_bytes: what a node may hold for others. (bytes; default none: 0.7 of its object store, which spills at 0.8)
        domain_label: Ray label that tells failure domains apart: copies go to nodes where it has another value. (label;
            default ray.io/availability-zone: what GKE and Ray's autoscaler give to nodes)
        memory: directory of the node tier: a ramdisk. (path; default /dev/shm: where Linux keeps shared memory)
        disk: directory on a disk of each node, where snapshots are written from memory; they survive a reboot. (path;
            default none: not every node has a disk of its own)
        keep: what the persistent tier keeps. (see Keep; default the last two: see there)
        upload_bytes_per_s: cap for each node. (bytes per s; default none: the network's)
        overhead: share of the time that measured intervals may cost. (share; default 0.03: beyond it, more frequent
            snapshots cost more than the failures they guard against)
        memory_lease_s: copies in memory outlive the last word of a driver by so long. (s; default 3600: until a job is
            submitted again)
    """

    persistent: str | None = None
    local_interval: Interval = field(default_factory=Interval)
    persistent_interval: Interval = field(default_factory=Interval)
    backup_interval_minutes: float | None = None
    peers: int | None = None
    peer_bytes: int | None = None
    domain_label: str = "ray.io/availability-zone"
    memory: str = "/dev/shm"  # noqa: S108 - where Linux keeps shared memory
    disk: str | None = None
    keep: Keep = field(default_factory=Keep)
    upload_bytes_per_s: float | None = None
    overhead: float = 0.03
    memory_lease_s: float = 3600.0

    def __post_init__(self) -> None:
        if self.peers is not None and self.peers < 0:
            raise SettingError(f"Checkpoint.peers={self.peers} must not be negative; 0 keeps no copies on other nodes")
        for name in ("backup_interval_minutes", "peer_bytes", "upload_bytes_per_s", "overhead", "memory_lease_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise SettingError(f"Checkpoint.{name}={value} must be positive")
        if self.disk is not None and not self.disk.startswith("/"):
            raise SettingError(f"Checkpoint.disk={self.disk!r} must be an absolute path, the same on every node")
        if self.backup_interval_minutes is not None and not self.persistent_interval.is_auto:
            raise SettingError("Checkpoint.backup_interval_minutes and persistent_interval say the same: give one")

    @property
    def upload_interval(self) -> Interval:
        """The persistent interval, by whichever name it was given."""
        minutes = self.backup_interval_minutes
        return self.persistent_interval if minutes is None else Interval(seconds=60 * minutes)
