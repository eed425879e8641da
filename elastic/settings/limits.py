"""Pure. How long each wait may last, and how often something may be tried."""

from dataclasses import dataclass

from elastic.errors import SettingError

_MAY_BE_ZERO = frozenset({"max_in_job_restarts", "max_workload_restarts", "connect_ahead_s"})
_MOST = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long each wait may last, and how often something may be tried.

    Attributes:
        start_timeout_s: from the start until the minimum of replicas stands at its first step; begins anew, up to
            start_tries times, where it did and some are lost before the run begins, or after a pause. (s; default 120:
            an autoscaler brings a node in one to two minutes)
        load_timeout_s: from a worker's start until it stands at its first step: imports, model building. (s;
            default 600: large models are built in minutes)
        grow_after_s: a joiner waits this long at the door while others load, so that those who come soon after join
            with it. (s; default 0.5: workers that were asked for together come within that)
        flap_cost_s: a worker was lost too soon if it was a member for less than so many seconds for each replica of the
            group: what it did in them is less than what its joining and its loss cost the others. (s; default 1: both
            together stop everybody for some tenths of a second, and its start takes processors)
        flap_losses: a node that lost so many workers too soon within flap_window_s is flapping. (workers; default 3:
            two may be one cause seen twice)
        flap_window_s: see flap_losses. (s; default 60: a worker that dies at its first step has been loaded, and lost,
            well within it)
        flap_cooldown_s: no worker of a flapping node joins for so long after its last loss, unless the group would fall
            below its minimum. (s; default 120: twice the window, so that a node that goes on so is seen again)
        notice_window_s: notices that come within this time are one departure; those of machines within 1.25 s at least,
            since their monitors are asked in turn. (s; default 0.2: workers of one node hear of it together)
        connect_ahead_s: before a planned stop those who go on connect, while all still train, for so long at most; 0:
            they connect after it. (s; default 2: it takes tenths of one, and notices come seconds ahead)
        hang_floor_s: a phase of a step without progress for this long, or for twice a usual step if that is longer,
            makes its worker a suspect; for twice that long, dead; a large value switches this off. (s; default 0.5:
            five looks of the host monitor)
        stopped_timeout_s: a worker whose process a signal has stopped for this long is dead, whatever it did. (s;
            default 0.05: two looks of the host monitor after the one that found it so, since it looks four times as
            often then; no load makes a process look so)
        first_steps_timeout_s: as hang_floor_s, for the first steps of a process, which compile and warm up. (s;
            default 600: compilation takes minutes)
        fetch_timeout_s: how long the samples of one micro-batch may take to load. (s; default 60: storage answers
            within that, or is broken)
        heartbeat_polling_period_s: how often host monitors are asked. (s; default 0.25: an answer costs 0.2 ms of a
            core)
        heartbeat_timeout_s: a host that is silent for this long, while all others wait, is out of reach. (s;
            default 1.25: five beats in a row that did not come)
        knock_timeout_s: a host that is silent for three tenths of heartbeat_timeout_s is knocked at for so long; where
            nothing comes back from it, it is out of reach already then; a large value switches this off. (s; default
            0.3: three connections in vain, each of which a kernel answers within a round trip, busy or not)
        relay_above_hosts: where more hosts than this have workers, their monitors are heard through relays; give such
            runs a heartbeat_polling_period_s of about 1, and a heartbeat_timeout_s of three times that or more. (hosts;
            default 64: below it the driver hears each itself at little cost)
        hosts_per_relay: how many monitors a relay hears. (hosts; default 64: a relay is lost with few of them)
        exile_after_s: members out of reach that have not answered a freeze by then are left behind. (s; default 0.3:
            an answer takes milliseconds, and a loaded driver some tenths of a second)
        doubt_after_s: a member that has not answered a freeze by then, or a joiner for which the others wait at the
            door, is probed for a sign of death. (s; default 0.03: a probe harms nobody, an answer takes milliseconds)
        freeze_timeout_s: a member that has not answered a freeze by then is fenced, that is, killed by its host
            monitor. (s; default 10: who lives answers, unless its machine is overloaded)
        pause_timeout_s: members still busy after the step at whose end all should stop are frozen where they are. (s;
            default 1: they leave the step together, within milliseconds)
        door_timeout_s: how long code between two steps, such as evaluation, may keep others from forming a generation.
            (s; default 600: an evaluation takes minutes)
        forming_timeout_s: a generation that forms, with all members at the door, and in which nothing has got on for so
            long, is given up, and the next one is formed without the joiners. (s; default 30: connecting takes 0.03 s)
        heal_timeout_s: the same, however much state still arrives at the joiners. (s; default 900: 100 GB at 1 Gbit/s)
        settle_timeout_s: reductions of a broken attempt that have not ended by then lose their buffers. (s;
            default 0.05: they end within a millisecond once their group is cut, or never)
        collective_timeout_s: a reduction without progress for this long breaks the attempt. (s; default 900: others
            may wait in it for one that compiles, or is slow and says so, for as long as first_steps_timeout_s and
            door_timeout_s; the sensing of hangs is quicker, this is for what it does not see)
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
        start_tries: consecutive workers that may die or raise before their first step, until a run that has not begun
            ends, and one that trains starts no others for half a minute, then for twice as long each time, up to ten
            minutes; those of one node count once, those of a lost node do not. (workers; default 3: a mistake shows at
            once, a bad node not thrice)
        slow_ratio: a worker is slow whose micro-batches take so many times the group's median. (ratio; default 1.5:
            above what noise and uneven batches do)
        slow_steps: a worker that is slow for so many steps in a row is a straggler; the policy is asked what to do.
            (steps; default 20: longer than a page fault, a checkpoint or a log rotation)
        max_in_job_restarts: incidents in a row, without a committed step between them, that are answered by going on in
            the job, with the lost restarted; one more, and the policy gives up. (incidents; default 10: several nodes
            may fail in a row, a run that makes no step at all is broken)
        max_workload_restarts: how often in a row all workers may start again from a checkpoint, since nobody held the
            state any more, or the policy wanted it, without the run getting past the step it had reached; one more ends
            it. (restarts; default 10: what kills all of them at the same step each time will do so again)
        poison_deaths: a micro-batch in flight at so many deaths, in one attempt after the other at its step, is taken
            for their cause: the policy ends the run, or has the step left out. (deaths; default 3: in a small group two
            may strike it by chance)
        budget_incidents: incidents of a class that a policy mends the usual way before it goes further. (incidents;
            default 10: as many as max_in_job_restarts)
        budget_refill_s: one of them is forgotten after so long. (s; default 600: what happens less often is no series)
        quarantine_s: how long a node that the policy puts in quarantine gets no worker. (s; default 300: a reboot or a
            reset takes minutes)
        place_timeout_s: a worker that is to start on one certain node is started on any if there is no room by then.
            (s; default 60: the old process has ended by then)
        gpu_reset_timeout_s: how long the reset of a GPU may take, the end of its workers included. (s; default 60: a
            reset takes seconds, a worker that hangs is killed within ten)
        hold_timeout_s: a run that is paused goes on by itself after so long. (s; default 3600: somebody has
            looked by then)
        exit_timeout_s: how long a run that saves and exits may take to save. (s; default 25: spot machines give 30)
    """

    start_timeout_s: float = 120.0
    load_timeout_s: float = 600.0
    grow_after_s: float = 0.5
    flap_cost_s: float = 1.0
    flap_losses: int = 3
    flap_window_s: float = 60.0
    flap_cooldown_s: float = 120.0
    notice_window_s: float = 0.2
    connect_ahead_s: float = 2.0
    hang_floor_s: float = 0.5
    stopped_timeout_s: float = 0.05
    first_steps_timeout_s: float = 600.0
    fetch_timeout_s: float = 60.0
    heartbeat_polling_period_s: float = 0.25
    heartbeat_timeout_s: float = 1.25
    knock_timeout_s: float = 0.3
    relay_above_hosts: int = 64
    hosts_per_relay: int = 64
    exile_after_s: float = 0.3
    doubt_after_s: float = 0.03
    freeze_timeout_s: float = 10.0
    pause_timeout_s: float = 1.0
    door_timeout_s: float = 600.0
    forming_timeout_s: float = 30.0
    heal_timeout_s: float = 900.0
    settle_timeout_s: float = 0.05
    collective_timeout_s: float = 900.0
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
    poison_deaths: int = 3
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
            if value > _MOST:  # clocks of libraries and of the kernel take no more
                raise SettingError(f"Limits.{name}={value} must be at most {_MOST:g}: of seconds these are 31 years")
        if self.heartbeat_timeout_s <= self.heartbeat_polling_period_s:
            raise SettingError(
                f"Limits.heartbeat_timeout_s={self.heartbeat_timeout_s} must be longer than "
                f"heartbeat_polling_period_s={self.heartbeat_polling_period_s}: between two beats every host is silent"
            )
