"""Pure. What users set: how many replicas, on what, and how long each wait may last."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Size and shape of the worker group, in Ray's language for resources.

    Attributes:
        replicas: data-parallel replicas, `n` or `(minimum, maximum)`. The run starts with what the cluster places,
            grows to the maximum as slots appear, and pauses below the minimum.
        spares: workers parked at the door of their first step, ready to replace a lost one.
        workers_per_replica: workers that hold one copy of the model together, each a shard of it.
        nodes_per_replica: 1 places a replica on one node, workers_per_replica each of its workers on another.
        use_gpu: give each worker one GPU (`{"GPU": 1}`) instead of one CPU.
        resources_per_worker: Ray resources of a worker; replaces the default of `use_gpu`.
        label_selector: Ray node labels a worker's node must carry, e.g. `{"ray.io/market-type": "spot"}`.
        threads_per_worker: torch's intra-op threads in a worker; pinned, since sums change with it.
    """

    replicas: int | tuple[int, int] = 1
    spares: int = 0
    workers_per_replica: int = 1
    nodes_per_replica: int = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    label_selector: Mapping[str, str] | None = None
    threads_per_worker: int = 1

    def __post_init__(self) -> None:
        pair = self.replicas if isinstance(self.replicas, tuple) else (self.replicas, self.replicas)
        if len(pair) != 2 or not all(isinstance(number, int) for number in pair):
            raise SettingError(f"Scaling.replicas={self.replicas!r} must be an integer or (minimum, maximum)")
        low, high = self.bounds
        if not 1 <= low <= high:
            raise SettingError(
                f"Scaling.replicas={self.replicas!r} must be n >= 1 or (minimum, maximum) with 1 <= minimum <= maximum"
            )
        if self.spares < 0:
            raise SettingError(f"Scaling.spares={self.spares} must not be negative")
        if self.workers_per_replica < 1:
            raise SettingError(f"Scaling.workers_per_replica={self.workers_per_replica} must be at least 1")
        if self.nodes_per_replica not in (1, self.workers_per_replica):
            raise SettingError(
                f"Scaling.nodes_per_replica={self.nodes_per_replica} must be 1 (all workers of a replica on one node) "
                f"or workers_per_replica={self.workers_per_replica} (each on another)"
            )
        if self.threads_per_worker < 1:
            raise SettingError(f"Scaling.threads_per_worker={self.threads_per_worker} must be at least 1")
        if any(amount <= 0 for amount in self.resources.values()):
            raise SettingError(f"Scaling.resources_per_worker={self.resources_per_worker!r} must hold positive amounts")

    @property
    def bounds(self) -> tuple[int, int]:
        """(minimum, maximum) of replicas."""
        return (self.replicas, self.replicas) if isinstance(self.replicas, int) else self.replicas

    @property
    def resources(self) -> dict[str, float]:
        """Ray resources of one worker."""
        if self.resources_per_worker is not None:
            return dict(self.resources_per_worker)
        return {"GPU": 1.0} if self.use_gpu else {"CPU": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long each wait may last, and how often something may be tried.

    Attributes:
        start_timeout_s: from the start until the minimum of replicas stands at its first step.
        load_timeout_s: from a worker's start until it stands at its first step (imports, model building).
        grow_after_s: a joiner waits this long at the door, so that those who come soon after join with it.
        flap_losses: a node that lost so many workers within flap_window_s is flapping.
        flap_window_s: see flap_losses.
        flap_cooldown_s: no worker of a flapping node joins for so long after its last loss, unless the group would fall
            below its minimum.
        notice_window_s: notices that come within this time are one departure.
        hang_floor_s: a phase of a step without progress for this long, or for twice a usual step if that is longer,
            makes its worker a suspect; for twice that long, dead. A large value switches this off.
        first_steps_timeout_s: the same for the first steps of a process, which compile and warm up.
        fetch_timeout_s: how long the samples of one micro-batch may take to load.
        heartbeat_polling_period_s: how often host monitors are asked.
        heartbeat_timeout_s: a host that is silent for this long, while all others wait, is out of reach.
        relay_above_hosts: where more hosts than this have workers, their monitors are heard through relays; give such
            runs a heartbeat_polling_period_s of about 1, and a heartbeat_timeout_s of three times that or more.
        hosts_per_relay: how many monitors a relay hears.
        exile_after_s: members out of reach that have not answered a freeze by then are left behind.
        doubt_after_s: a member that has not answered a freeze by then is probed for a sign of death.
        freeze_timeout_s: a member that has not answered a freeze by then is fenced (killed by its host monitor).
        pause_timeout_s: members still busy after the step at whose end all should stop are frozen where they are.
        door_timeout_s: how long code between two steps (evaluation, saving) may keep others from forming a generation.
        forming_timeout_s: a generation that is not formed by then, with all members at the door, is given up, and the
            next one is formed without the joiners.
        settle_timeout_s: reductions of a broken attempt that have not ended by then lose their buffers.
        collective_timeout_s: a reduction without progress for this long breaks the attempt.
        below_minimum_timeout_s: how long survivors below the minimum keep their state and wait for replacements.
        restore_timeout_s: how long looking for a checkpoint, or reading one, may take until an older one is tried; a
            worker that says nothing for half as long again is ended.
        finish_timeout_s: how long train_fn may take after its last step (evaluation, export) until it is ended.
        lease_s: a member without contact counts as gone after this long, and pauses itself a little earlier.
        orphan_lease_s: a worker that has not heard from a driver for this long leaves and frees its slot.
        blame_grace_s: how long an exception in a step waits for news of a broken generation; then it is the user's.
        joiner_tries: generations a joiner may fail to form before it is dismissed.
        start_tries: consecutive workers that may die or raise before their first step.
        slow_ratio: a worker is slow whose micro-batches take so many times the group's median.
        slow_steps: a worker that is slow for so many steps in a row is a straggler; the policy is asked what to do.
        incidents_without_progress: consecutive incidents without a committed step between them that end the run.
    """

    start_timeout_s: float = 120.0
    load_timeout_s: float = 600.0
    grow_after_s: float = 0.5
    flap_losses: int = 3
    flap_window_s: float = 60.0
    flap_cooldown_s: float = 120.0
    notice_window_s: float = 0.2
    hang_floor_s: float = 0.5
    first_steps_timeout_s: float = 600.0
    fetch_timeout_s: float = 60.0
    heartbeat_polling_period_s: float = 0.25
    heartbeat_timeout_s: float = 1.25
    relay_above_hosts: int = 64
    hosts_per_relay: int = 64
    exile_after_s: float = 0.3
    doubt_after_s: float = 0.03
    freeze_timeout_s: float = 10.0
    pause_timeout_s: float = 1.0
    door_timeout_s: float = 600.0
    forming_timeout_s: float = 30.0
    settle_timeout_s: float = 0.05
    collective_timeout_s: float = 300.0
    below_minimum_timeout_s: float = 600.0
    restore_timeout_s: float = 600.0
    finish_timeout_s: float = 3600.0
    lease_s: float = 120.0
    orphan_lease_s: float = 120.0
    blame_grace_s: float = 1.0
    joiner_tries: int = 2
    start_tries: int = 3
    slow_ratio: float = 1.5
    slow_steps: int = 20
    incidents_without_progress: int = 10

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise SettingError(f"Limits.{name}={getattr(self, name)} must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """When something is due: after so many steps, or seconds, whichever comes first; neither: as measured costs say.

    Attributes:
        steps: between two, in optimizer steps. seconds: between two.
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
        last: newest steps. every: steps divisible by it, for ever; 0: none.
        best: so many with the best value of `metric` (a name given to step.report). mode: "min" or "max" is best.
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
        persistent: root of the durable tier: gs://bucket/prefix, a directory, or a URL that fsspec knows; None: none.
        local_interval: between snapshots into shared memory (STAGED, LOCAL), from where peers take them (REPLICATED).
        persistent_interval: between uploads (DURABLE).
        backup_interval_minutes: the persistent interval under its name in multi-tier checkpointing.
        peers: copies of each shard on other nodes than its own.
        peer_bytes: what a node may hold for others; None: 0.7 of its object store.
        memory: directory of the node tier: a ramdisk.
        keep: what the persistent tier keeps.
        upload_bytes_per_s: cap for each node; None: none.
        overhead: share of the time that measured intervals may cost.
        memory_lease_s: copies in memory outlive the last word of a driver by so long.
    """

    persistent: str | None = None
    local_interval: Interval = field(default_factory=Interval)
    persistent_interval: Interval = field(default_factory=Interval)
    backup_interval_minutes: float | None = None
    peers: int = 1
    peer_bytes: int | None = None
    memory: str = "/dev/shm"  # noqa: S108 - where Linux keeps shared memory
    keep: Keep = field(default_factory=Keep)
    upload_bytes_per_s: float | None = None
    overhead: float = 0.03
    memory_lease_s: float = 3600.0

    def __post_init__(self) -> None:
        if self.peers < 0:
            raise SettingError(f"Checkpoint.peers={self.peers} must not be negative; 0 keeps no copies on other nodes")
        for name in ("backup_interval_minutes", "peer_bytes", "upload_bytes_per_s", "overhead", "memory_lease_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise SettingError(f"Checkpoint.{name}={value} must be positive")
        if self.backup_interval_minutes is not None and not self.persistent_interval.is_auto:
            raise SettingError("Checkpoint.backup_interval_minutes and persistent_interval say the same: give one")

    @property
    def upload_interval(self) -> Interval:
        """The persistent interval, by whichever name it was given."""
        minutes = self.backup_interval_minutes
        return self.persistent_interval if minutes is None else Interval(seconds=60 * minutes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Everything the control plane needs to know about a run before it starts."""

    run: str
    scaling: Scaling = field(default_factory=Scaling)
    limits: Limits = field(default_factory=Limits)
    checkpoint: Checkpoint | None = None
    incarnation: int = 1
