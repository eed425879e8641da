"""Pure. What users set: how many replicas, on what, how long each wait may last, how safe steps are made.

Each attribute says in brackets its unit, its default, and why it is that. `docs/configuration.md` is written from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Size and shape of the worker group, in Ray's language for resources.

    Attributes:
        num_dp_replicas: data-parallel replicas, `n` or `(minimum, maximum)`: the run starts with what the cluster
            places, grows to the maximum as slots appear, and pauses below the minimum. (replicas; default 1: every
            machine has room for it)
        spares: replicas parked at the door of their first step, ready to replace a lost one. (replicas; default 0: a
            spare keeps resources that somebody pays for)
        workers_per_replica: workers that hold one copy of the model together, each a shard of it. (workers; default 1:
            plain data parallelism)
        num_nodes_per_dp: nodes of a replica: 1 places it on one, workers_per_replica each of its workers on another.
            (nodes; default 1: links within a node are the fastest)
        use_gpu: give each worker one GPU (`{"GPU": 1}`) instead of one CPU. (yes or no; default no: not every cluster
            has GPUs)
        resources_per_worker: Ray resources of a worker; replaces the default of `use_gpu`. (amounts by name; default
            none: one CPU, or one GPU, is what most need)
        label_selector: Ray node labels a worker's node must carry, e.g. `{"ray.io/market-type": "spot"}`. (values by
            label; default none: any node will do)
        threads_per_worker: torch's intra-op threads in a worker; pinned, since sums change with it. (threads;
            default 1: the only number that fits each machine)
        supervisor_labels: labels of a node for the supervisor, such as `{"pool": "cpu"}`. (values by label; default
            none: beside the driver)
        supervisor_resource: a resource that such a node has; where neither is given, or no node fits, it runs beside
            the driver. (text; default none: beside the driver)
    """

    num_dp_replicas: int | tuple[int, int] = 1
    spares: int = 0
    workers_per_replica: int = 1
    num_nodes_per_dp: int = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    label_selector: Mapping[str, str] | None = None
    threads_per_worker: int = 1
    supervisor_labels: Mapping[str, str] | None = None
    supervisor_resource: str = ""

    def __post_init__(self) -> None:
        given, pair = self.num_dp_replicas, self.num_dp_replicas
        pair = pair if isinstance(pair, tuple) else (pair, pair)
        if len(pair) != 2 or not all(isinstance(number, int) for number in pair):
            raise SettingError(f"Scaling.num_dp_replicas={given!r} must be an integer or (minimum, maximum)")
        low, high = self.bounds
        if not 1 <= low <= high:
            raise SettingError(
                f"Scaling.num_dp_replicas={given!r} must be n >= 1 or (minimum, maximum) with 1 <= minimum <= maximum"
            )
        for name in ("spares", "workers_per_replica", "num_nodes_per_dp", "threads_per_worker"):
            if not isinstance(getattr(self, name), int):
                raise SettingError(f"Scaling.{name}={getattr(self, name)!r} must be a whole number")
        if self.spares < 0:
            raise SettingError(f"Scaling.spares={self.spares} must not be negative")
        if self.workers_per_replica < 1:
            raise SettingError(f"Scaling.workers_per_replica={self.workers_per_replica} must be at least 1")
        if self.num_nodes_per_dp not in (1, self.workers_per_replica):
            raise SettingError(
                f"Scaling.num_nodes_per_dp={self.num_nodes_per_dp} must be 1 (all workers of a replica on one node) "
                f"or workers_per_replica={self.workers_per_replica} (each on another)"
            )
        if self.threads_per_worker < 1:
            raise SettingError(f"Scaling.threads_per_worker={self.threads_per_worker} must be at least 1")
        if any(amount <= 0 for amount in self.resources.values()):
            raise SettingError(f"Scaling.resources_per_worker={self.resources_per_worker!r} must hold positive amounts")

    @property
    def bounds(self) -> tuple[int, int]:
        """(minimum, maximum) of replicas."""
        given = self.num_dp_replicas
        return (given, given) if isinstance(given, int) else given

    @property
    def resources(self) -> dict[str, float]:
        """Ray resources of one worker."""
        if self.resources_per_worker is not None:
            return dict(self.resources_per_worker)
        return {"GPU": 1.0} if self.use_gpu else {"CPU": 1.0}


_MAY_BE_ZERO = frozenset({"max_in_job_restarts", "max_workload_restarts"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long each wait may last, and how often something may be tried.

    Attributes:
        start_timeout_s: from the start until the minimum of replicas stands at its first step. (s; default 120: an
            autoscaler brings a node in one to two minutes)
        load_timeout_s: from a worker's start until it stands at its first step: imports, model building. (s;
            default 600: large models are built in minutes)
        grow_after_s: a joiner waits this long at the door, so that those who come soon after join with it. (s;
            default 0.5: workers that were asked for together come within that)
        flap_losses: a node that lost so many workers within flap_window_s is flapping. (workers; default 3: two may be
            one cause seen twice)
        flap_window_s: see flap_losses. (s; default 60: a worker that dies at its first step has been loaded, and lost,
            well within it)
        flap_cooldown_s: no worker of a flapping node joins for so long after its last loss, unless the group would fall
            below its minimum. (s; default 120: twice the window, so that a node that goes on so is seen again)
        notice_window_s: notices that come within this time are one departure. (s; default 0.2: workers of one node
            hear of it together)
        hang_floor_s: a phase of a step without progress for this long, or for twice a usual step if that is longer,
            makes its worker a suspect; for twice that long, dead; a large value switches this off. (s; default 0.5:
            five looks of the host monitor)
        first_steps_timeout_s: the same for the first steps of a process, which compile and warm up. (s; default 600:
            compilation takes minutes)
        fetch_timeout_s: how long the samples of one micro-batch may take to load. (s; default 60: storage answers
            within that, or is broken)
        heartbeat_polling_period_s: how often host monitors are asked. (s; default 0.25: an answer costs 0.2 ms of a
            core)
        heartbeat_timeout_s: a host that is silent for this long, while all others wait, is out of reach. (s;
            default 1.25: five beats in a row that did not come)
        relay_above_hosts: where more hosts than this have workers, their monitors are heard through relays; give such
            runs a heartbeat_polling_period_s of about 1, and a heartbeat_timeout_s of three times that or more. (hosts;
            default 64: below it the driver hears each itself at little cost)
        hosts_per_relay: how many monitors a relay hears. (hosts; default 64: a relay is lost with few of them)
        exile_after_s: members out of reach that have not answered a freeze by then are left behind. (s; default 0.3:
            an answer takes milliseconds, and a loaded driver some tenths of a second)
        doubt_after_s: a member that has not answered a freeze by then is probed for a sign of death. (s; default 0.03:
            a probe harms nobody, an answer takes milliseconds)
        freeze_timeout_s: a member that has not answered a freeze by then is fenced, that is, killed by its host
            monitor. (s; default 10: who lives answers, unless its machine is overloaded)
        pause_timeout_s: members still busy after the step at whose end all should stop are frozen where they are. (s;
            default 1: they leave the step together, within milliseconds)
        door_timeout_s: how long code between two steps, such as evaluation, may keep others from forming a generation.
            (s; default 600: an evaluation takes minutes)
        forming_timeout_s: a generation that is not formed by then, with all members at the door, is given up, and the
            next one is formed without the joiners. (s; default 30: connecting takes 0.03 s, the rest is for the state)
        settle_timeout_s: reductions of a broken attempt that have not ended by then lose their buffers. (s;
            default 0.05: they end within a millisecond once their group is cut, or never)
        collective_timeout_s: a reduction without progress for this long breaks the attempt. (s; default 300: the
            sensing of hangs is quicker, this is for what it does not see)
        jobset_downtime_threshold_s: how long a run that is below its minimum of replicas keeps its state and waits for
            replacements; then fit() raises, and whoever started the job may restart it. (s; default 600: a node that
            reboots, or a larger pool, takes minutes)
        pod_termination_threshold_s: a worker that was told to leave and has not by then is killed by its host monitor,
            so that its slot is free. (s; default 60: time for a train_fn to end its evaluation or to close its files)
        restore_timeout_s: how long looking for a checkpoint, or reading one, may take until an older one is tried; a
            worker that says nothing for half as long again is ended. (s; default 600: 100 GB at 0.2 GB/s)
        finish_timeout_s: how long train_fn may take after its last step, with evaluation or export, until it is ended.
            (s; default 3600: exporting a large model)
        lease_s: a member without contact counts as gone after this long, and pauses itself a little earlier. (s;
            default 120: longer than any switch needs to come back)
        orphan_lease_s: a worker that has not heard from a driver for this long leaves and frees its slot. (s;
            default 120: a job is submitted again within that)
        blame_grace_s: how long an exception in a step waits for news of a broken generation; then it is the user's.
            (s; default 1: news of a loss come within 0.1 s)
        joiner_tries: generations a joiner may fail to form before it is dismissed. (tries; default 2: the first failure
            may be another's)
        start_tries: consecutive workers that may die or raise before their first step. (workers; default 3: a mistake
            shows at once, a bad node not thrice)
        slow_ratio: a worker is slow whose micro-batches take so many times the group's median. (ratio; default 1.5:
            above what noise and uneven batches do)
        slow_steps: a worker that is slow for so many steps in a row is a straggler; the policy is asked what to do.
            (steps; default 20: longer than a page fault, a checkpoint or a log rotation)
        max_in_job_restarts: incidents in a row, without a committed step between them, that are answered by going on in
            the job, with the lost restarted; one more, and the policy gives up. (incidents; default 10: several nodes
            may fail in a row, a run that makes no step at all is broken)
        max_workload_restarts: how often in a row all workers may start again from a checkpoint, since nobody held the
            state any more, without the run getting past the step it had reached; one more ends it. (restarts;
            default 10: what kills all of them at the same step each time will do so again)
        budget_incidents: incidents of a class that a policy mends the usual way before it goes further. (incidents;
            default 10: as many as max_in_job_restarts)
        budget_refill_s: one of them is forgotten after so long. (s; default 600: what happens less often is no series)
        quarantine_s: how long a node that the policy puts in quarantine gets no worker. (s; default 300: a reboot or a
            reset takes minutes)
        place_timeout_s: a worker that is to start on one certain node is started on any if there is no room by then.
            (s; default 60: the old process has ended by then)
        gpu_reset_timeout_s: how long the reset of a GPU may take, the end of its workers included. (s; default 60: a
            reset takes seconds, a worker that hangs is killed within ten)
        hold_timeout_s: a run that the policy has paused goes on by itself after so long. (s; default 3600: somebody has
            looked by then)
        exit_timeout_s: how long a run that saves and exits may take to save. (s; default 25: spot machines give 30)
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
    jobset_downtime_threshold_s: float = 600.0
    pod_termination_threshold_s: float = 60.0
    restore_timeout_s: float = 600.0
    finish_timeout_s: float = 3600.0
    lease_s: float = 120.0
    orphan_lease_s: float = 120.0
    blame_grace_s: float = 1.0
    joiner_tries: int = 2
    start_tries: int = 3
    slow_ratio: float = 1.5
    slow_steps: int = 20
    max_in_job_restarts: int = 10
    max_workload_restarts: int = 10
    budget_incidents: int = 10
    budget_refill_s: float = 600.0
    quarantine_s: float = 300.0
    place_timeout_s: float = 60.0
    gpu_reset_timeout_s: float = 60.0
    hold_timeout_s: float = 3600.0
    exit_timeout_s: float = 25.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise SettingError(f"Limits.{name}={value!r} must be a number")
            if name in _MAY_BE_ZERO and not value >= 0:
                raise SettingError(f"Limits.{name}={value} must not be negative")
            if name not in _MAY_BE_ZERO and not value > 0:  # not a number is refused too
                raise SettingError(f"Limits.{name}={value} must be positive")
        if self.heartbeat_timeout_s <= self.heartbeat_polling_period_s:
            raise SettingError(
                f"Limits.heartbeat_timeout_s={self.heartbeat_timeout_s} must be longer than "
                f"heartbeat_polling_period_s={self.heartbeat_polling_period_s}: between two beats every host is silent"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chaos:
    """Faults that a run does to itself, to show that it survives them; see `elastic chaos`.

    Attributes:
        enable_fault_injection: whether the run may be harmed on purpose at all; the other fields need it. (yes or no;
            default no: nobody harms a run by mistake)
        fault_injection_period_s: a fault after every so many seconds; 0: none by the clock. (s; default 0: how often is
            for whoever asks for faults to say)
        sim_fault_desc: `kind,seconds`: one fault of that kind, or of any for `random`, after so many seconds;
            `random,120` for instance. (text; default none: see fault_injection_period_s)
        schedule: more faults, in the words of `elastic chaos --schedule`. (text; default none: see above)
    """

    enable_fault_injection: bool = False
    fault_injection_period_s: float = 0.0
    sim_fault_desc: str = ""
    schedule: str = ""

    def __post_init__(self) -> None:
        period_s = self.fault_injection_period_s
        if not isinstance(period_s, int | float) or not period_s >= 0:
            raise SettingError(
                f"Chaos.fault_injection_period_s={period_s!r} must be seconds, or 0 for no fault by the clock"
            )
        if self.sim_fault_desc and not _is_fault(self.sim_fault_desc):
            raise SettingError(
                f"Chaos.sim_fault_desc={self.sim_fault_desc!r} must be kind,seconds with more than 0 s, as random,120"
            )
        asked = [name for name in ("fault_injection_period_s", "sim_fault_desc", "schedule") if getattr(self, name)]
        if asked and not self.enable_fault_injection:
            raise SettingError(f"Chaos.{asked[0]} needs Chaos.enable_fault_injection: without it no fault is injected")


def _is_fault(text: str) -> bool:
    kind, _, after = text.partition(",")
    try:
        return bool(kind.strip()) and 0 < float(after) < float("inf")
    except ValueError:
        return False


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
        every: steps divisible by it, for ever; 0: none. (optimizer steps; default 0: storage costs money)
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
        peers: copies of each shard on other nodes than its own. (copies; default 1: a node may be lost at any time)
        peer_bytes: what a node may hold for others. (bytes; default none: 0.7 of its object store, which spills at 0.8)
        memory: directory of the node tier: a ramdisk. (path; default /dev/shm: where Linux keeps shared memory)
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
class Health:
    """What host monitors sense of the hardware, and what a node must show before its workers may join.

    Attributes:
        sensing: look at GPUs, kernel log, memory, space, network and clock. (yes or no; default yes: it costs below 1 %
            of a core)
        period_s: between two looks; XIDs and lines of the kernel log come at once. (s; default 5: the rest changes
            slowly)
        driver_timeout_s: a look at the GPUs that takes longer means that their driver hangs. (s; default 60: a driver
            under load answers within seconds)
        cooldown_s: the same finding on the same device is told once in so long; what comes meanwhile is counted. (s;
            default 60: a broken device repeats itself many times a second)
        heat_margin_c: a GPU this close to the temperature at which it slows down is told to be hot. (degrees; default
            3: what a sensor's noise leaves)
        memory_free: least share of the host's, or container's, memory that should be free. (share; default 0.03: Ray
            kills from 0.95 in use on)
        space_free: the same for the ramdisk and for `disk`. (share; default 0.01: below it writes begin to fail)
        ramdisk: directory in shared memory. (path; default /dev/shm: where Linux keeps it)
        disk: a path on the disk that is watched. (path; default /tmp: where Ray keeps its sessions)
        clock_offset_s: how far the clock may be off, as the kernel's time discipline estimates. (s; default 0.1: leases
            and incidents are told in seconds)
        checks: check a node before its first worker may join; a node that fails is told, and left out. (yes or no;
            default yes: they take less than half a second)
        check_timeout_s: a check that takes longer has failed. (s; default 60: they take less than one)
        recheck_s: a node that failed is checked again after so long. (s; default 60: what is full may be emptied)
        memory_bytes_per_s: least speed of a copy in host memory. (bytes per s; default 2e+08: a tenth of a slow
            machine's)
        hash_bytes_per_s: least speed of one core's SHA-256; 0: any. (bytes per s; default 2e+07: the same)
        matmul: multiply matrices on each GPU (or the CPU) and compare with the exact result; needs seconds, to load
            torch in a process of its own. (yes or no; default no: it costs more than half a second)
        peer_bytes_per_s: least speed from another node of the run; 0: not measured. (bytes per s; default 0: networks
            differ)
    """

    sensing: bool = True
    period_s: float = 5.0
    driver_timeout_s: float = 60.0
    cooldown_s: float = 60.0
    heat_margin_c: float = 3.0
    memory_free: float = 0.03
    space_free: float = 0.01
    ramdisk: str = "/dev/shm"  # noqa: S108 - where Linux keeps shared memory
    disk: str = "/tmp"  # noqa: S108 - where Ray keeps its sessions
    clock_offset_s: float = 0.1
    checks: bool = True
    check_timeout_s: float = 60.0
    recheck_s: float = 60.0
    memory_bytes_per_s: float = 2e8
    hash_bytes_per_s: float = 2e7
    matmul: bool = False
    peer_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("period_s", "driver_timeout_s", "cooldown_s", "clock_offset_s", "check_timeout_s", "recheck_s"):
            if getattr(self, name) <= 0:
                raise SettingError(f"Health.{name}={getattr(self, name)} must be positive")
        for name in ("memory_free", "space_free"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingError(f"Health.{name}={getattr(self, name)} is a share: at least 0, below 1")
        for name in ("heat_margin_c", "memory_bytes_per_s", "hash_bytes_per_s", "peer_bytes_per_s"):
            if getattr(self, name) < 0:
                raise SettingError(f"Health.{name}={getattr(self, name)} must not be negative; 0 asks for nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Everything the control plane needs to know about a run before it starts."""

    run: str
    scaling: Scaling = field(default_factory=Scaling)
    limits: Limits = field(default_factory=Limits)
    checkpoint: Checkpoint | None = None
    health: Health = field(default_factory=Health)
    chaos: Chaos | None = None
    incarnation: int = 1

    @property
    def is_breakable(self) -> bool:
        """Whether faults may be injected."""
        return self.chaos is not None and self.chaos.enable_fault_injection
