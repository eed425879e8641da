"""Pure. The usual way of living with failures: all processes end, and start anew from the last checkpoint.

The job stops with a failure of one of its machines. Somebody notices, the processes are started again where there are
machines, the state is read, and what was done since the last checkpoint is done again. Where machines are missing, the
job waits for them or, if it is elastic, goes on with fewer replicas; it grows again at a checkpoint. While there are no
processes only machines can be lost; what fails before all train again gives up the start under way, and lengthens the
incident by another one.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import fsum, inf

from elastic.control.data import hash32
from elastic.control.faults import FaultKind
from elastic.control.xid import Severity
from elastic.sim.account import Account, Cause
from elastic.sim.failures import PASSING, Failure, failures_of
from elastic.sim.machines import Machines, Slow
from elastic.sim.ran import Ran, Told
from elastic.sim.scenario import Scenario


class Restarting:
    """One run.

    Attributes:
        failures: that are to come, the last one first. now_s: virtual time.
        trained_s: since the processes were last started. is_training: they train; is_up: they are there.
        machines: replicas keep theirs while the processes are away; replicas: so many there are to be.
        ended: the failure of which the processes have ended, as long as nobody has acted on it.
        held_until_s: all wait until then for one that stands still. slow: machines that are.
        outages: of the storage, from and until, in trained_s. storage_down_until_s: the last one, in now_s.
        damaged: in trained_s, when the newest checkpoint was damaged.
        rates: (since when, in trained_s; productive seconds of the full group in one second), as often as that changed.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario, self.times, self.cluster = scenario, scenario.times, scenario.cluster
        self.account = Account()
        self.failures = sorted(failures_of(scenario, seed), key=self.struck_s, reverse=True)
        self.now_s = self.trained_s = 0.0
        self.is_training = self.is_up = False
        self.machines = Machines(self.cluster, scenario.job.spare_replicas)
        self.replicas = self.cluster.replicas
        self.names = 0
        self.ended: Failure | None = None
        self.held_until_s = 0.0
        self.slow = Slow()
        self.outages: list[tuple[float, float]] = []
        self.storage_down_until_s = 0.0
        self.damaged: list[float] = []
        self.rates: list[tuple[float, float]] = []
        self.told: list[Told] = []

    def run(self) -> Ran:
        self.spend(Cause.INITIALIZATION, self.times.start_s)
        self.find_machines()
        self.is_up = True
        self.begin()
        while self.now_s < self.scenario.end_s:
            if self.ended is not None:
                self.recover()
            elif self.now_s < self.held_until_s:
                self.spend(Cause.DETECTING, self.held_until_s - self.now_s)
            else:
                self.go_on()
        return Ran(
            account=self.account,
            incidents=tuple(self.told),
            machines=self.machines.count,
            decided=dict(Counter(told.decision for told in self.told)),
            digest=hash32(*self.account.seconds.values(), *self.told),
        )

    def struck_s(self, failure: Failure) -> float:
        is_told = failure.kind is FaultKind.NOTICE
        return failure.at_s + ((failure.lasts_s or self.scenario.failures.notice_s) if is_told else 0.0)

    def lasts_s(self, failure: Failure) -> float:
        return failure.lasts_s or self.scenario.failures.lasts_s

    # --- time passes ---

    def next_s(self) -> float:
        """When something fails next."""
        return max(self.now_s, self.struck_s(self.failures[-1])) if self.failures else inf

    def fail(self) -> None:
        """What fails by now, until the processes have ended of it."""
        while self.ended is None and self.next_s() <= self.now_s:
            self.strike(self.failures.pop())

    def spend(self, cause: Cause, seconds: float) -> None:
        """All wait; not beyond the end, nor beyond the end of the processes that are there."""
        until_s = min(self.now_s + max(0.0, seconds), self.scenario.end_s)
        while self.now_s < until_s and self.ended is None:
            next_s = min(until_s, self.next_s())
            self.account.add(cause, next_s - self.now_s)
            self.now_s = next_s
            self.fail()

    def go_on(self) -> None:
        """Train until something changes; where machines have come back and are missed, grow at the next checkpoint."""
        slowest = self.slow.slowest(self.now_s, self.machines.on.__contains__)
        grows_s = self.grows_s() if self.replicas < self.cluster.replicas else inf
        until_s = min(self.scenario.end_s, self.next_s(), grows_s, slowest.until_s)
        self.train(until_s - self.now_s, slowest.factor)
        if self.now_s >= grows_s:
            self.resize()
        else:
            self.fail()

    def grows_s(self) -> float:
        """When more replicas can take part: at the first checkpoint after enough machines are back."""
        back = sorted({self.now_s, *self.machines.away.values()})
        back_s = next(one for one in back if self.usable(one) > self.replicas)
        cycle_s = self.times.save_interval_s + self.times.save_stall_s
        left_s = max(0.0, back_s - self.now_s)
        passed_s = (self.trained_s + left_s) % cycle_s
        return self.now_s + left_s + (cycle_s - passed_s if passed_s > 0.0 else 0.0)

    def usable(self, at_s: float) -> int:
        """Replicas for which there are machines then."""
        away = sum(back_s > at_s for back_s in self.machines.away.values())
        return min(self.cluster.replicas, (self.machines.count - away) // self.machines.size)

    def train(self, seconds: float, factor: float) -> None:
        """Split by what is held up, by what is missing, and by what drags: all are so many times slower."""
        stall_s = seconds * self.times.save_stall_s / (self.times.save_interval_s + self.times.save_stall_s)
        capacity = self.replicas / self.cluster.replicas
        working_s = (seconds - stall_s) * capacity
        productive_s = working_s * (1.0 - self.scenario.job.slowdown) / factor
        self.account.add(Cause.CHECKPOINT_STALL, stall_s)
        self.account.add(Cause.REDUCED_CAPACITY, (seconds - stall_s) * (1.0 - capacity))
        self.account.add(Cause.STRAGGLER_DRAG, working_s - productive_s)
        self.account.add(Cause.PRODUCTIVE, productive_s)
        if seconds > 0.0:
            self.rates.append((self.trained_s, productive_s / seconds))
        self.now_s += seconds
        self.trained_s += seconds

    # --- something fails ---

    def strike(self, failure: Failure) -> None:
        """The processes end of what strikes a machine that they are on; others are only lost, or are not."""
        kind, lasts_s = failure.kind, self.lasts_s(failure)
        if kind is FaultKind.STORAGE_ERRORS:
            self.storage_down_until_s = max(self.storage_down_until_s, self.now_s + lasts_s)
            self.outages.append((self.trained_s, self.trained_s + lasts_s))
        elif kind is FaultKind.BIT_FLIP:
            self.damaged.append(self.trained_s)
        else:
            struck = failure.nodes or self.drawn(failure.place)
            used = [machine for machine in struck if machine in self.machines.on] if self.is_up else []
            self.harm(failure, struck, used)

    def harm(self, failure: Failure, struck: Sequence[int], used: Sequence[int]) -> None:
        """What strikes machines, some of which are used."""
        kind, lasts_s = failure.kind, self.lasts_s(failure)
        is_note = kind is FaultKind.XID and failure.severity is Severity.INFORMATIONAL
        if kind is FaultKind.SLOW:
            for machine in used:
                self.slow.add(machine, self.now_s + lasts_s, failure.factor or self.scenario.failures.slow_factor)
        elif kind in PASSING and lasts_s < self.times.detect_hang_s:
            if used and self.is_training:
                self.held_until_s = max(self.held_until_s, self.now_s + lasts_s)
                lost_s = min(lasts_s, self.scenario.end_s - self.now_s)
                self.told.append(Told(at_s=self.now_s, kind=kind.value, lost_s=lost_s, decision="wait"))
        elif not is_note:
            away_s = self.away_s(failure)
            for machine in (used if kind is FaultKind.XID else struck) if away_s else ():
                is_there = self.machines.away.get(machine, 0.0) <= self.now_s
                if is_there or failure.said_s:  # else it is being repaired already
                    self.machines.lose(machine, self.now_s + away_s)
            if used:
                self.ended, self.is_up, self.is_training = failure, False, False

    def drawn(self, place: float) -> tuple[int, ...]:
        """One of the machines of the job; nobody's where it has none."""
        owned = [machine for machines in self.machines.of.values() for machine in machines]
        return tuple(owned[int(place * len(owned)) :][:1])

    def away_s(self, failure: Failure) -> float:
        """How long its machine is away; 0: it is not."""
        if failure.kind is FaultKind.PARTITION:
            return self.lasts_s(failure)
        if failure.kind is FaultKind.XID:
            asked = {Severity.RESET_NEEDED: self.cluster.reset_s, Severity.NODE_MUST_GO: self.cluster.repair_s}
            return asked.get(failure.severity, 0.0)
        if failure.kind is FaultKind.NOTICE:
            return failure.away_s or self.cluster.repair_s
        return (failure.lasts_s or self.cluster.repair_s) if failure.kind is FaultKind.NODE_DOWN else 0.0

    def recover(self) -> None:
        """Until all train again."""
        assert self.ended is not None
        began_s, why, decision = self.now_s, self.ended.kind, "restart"
        redone_s = self.lose_work()
        while self.ended is not None and self.now_s < self.scenario.end_s:
            kind, self.ended = self.ended.kind, None
            self.spend(Cause.DETECTING, self.times.detect_hang_s if kind in PASSING else self.times.detect_s)
            found = self.find_machines()
            decision = decision if found == "restart" else found
            self.restart()
        lost_s = self.now_s - began_s + redone_s
        self.told.append(Told(at_s=began_s, kind=why.value, lost_s=lost_s, decision=decision))

    def lose_work(self) -> float:
        """What was done since the last checkpoint that can be read is done again; returns its seconds."""
        cycle_s = self.times.save_interval_s + self.times.save_stall_s
        since_s = self.trained_s % cycle_s
        while since_s < self.trained_s and not self.is_readable(self.trained_s - since_s):
            since_s += cycle_s
        redone_s = self.done_s(self.trained_s - min(since_s, self.trained_s))
        self.trained_s = 0.0
        for of_this_start in (self.outages, self.damaged, self.rates):
            of_this_start.clear()
        self.account.move(redone_s, Cause.PRODUCTIVE, Cause.REDONE)
        return redone_s

    def done_s(self, from_s: float) -> float:
        """Productive seconds of the full group from then on, in trained_s, until now."""
        pieces = pairwise((*self.rates, (self.trained_s, 0.0)))
        return fsum(
            (until_s - max(since_s, from_s)) * rate for (since_s, rate), (until_s, _) in pieces if until_s > from_s
        )

    def is_readable(self, saved_s: float) -> bool:
        """Whether a checkpoint that was begun then, in trained_s, can be read now."""
        cycle_s = self.times.save_interval_s + self.times.save_stall_s
        is_damaged = any(0.0 <= damaged_s - saved_s < cycle_s for damaged_s in self.damaged)
        is_there = self.trained_s - saved_s >= self.times.save_lag_s
        return is_there and not is_damaged and not any(begun <= saved_s < over for begun, over in self.outages)

    def find_machines(self) -> str:
        """Until the replicas that go on have machines; returns what was decided."""
        decision, is_found = "", False
        while not is_found and self.now_s < self.scenario.end_s:
            decision, seconds = self.chosen()
            self.spend(Cause.FORMING, seconds)
            is_found = self.occupy()  # others may have been lost meanwhile
        return decision

    def chosen(self) -> tuple[str, float]:
        """How it goes on with the machines that are there, once there are enough, and how long that takes."""
        self.bring_back()
        least = max(1, self.scenario.job.minimum_replicas) if self.scenario.is_elastic else self.replicas
        left = self.usable(self.now_s)
        if left >= self.replicas:
            is_missing = any(machine in self.machines.on for machine in self.machines.away)
            return ("replace the node", self.times.replace_s) if is_missing else ("restart", 0.0)
        if left >= least:
            self.replicas = left
            return "shrink", self.times.resize_s
        while self.usable(self.now_s) < least and self.now_s < self.scenario.end_s:
            self.spend(Cause.PAUSED, min(one for one in self.machines.away.values() if one > self.now_s) - self.now_s)
        self.replicas = max(least, self.usable(self.now_s))
        return "wait", self.times.replace_s

    def bring_back(self) -> None:
        for machine in list(self.machines.away):
            self.machines.come_back(machine, self.now_s)

    def occupy(self) -> bool:
        """Replicas whose machines are there keep them; whether all others have found some."""
        self.bring_back()
        for name in {self.machines.on[machine] for machine in self.machines.away if machine in self.machines.on}:
            self.machines.release(name)
        while len(self.machines.of) < self.replicas:
            self.names += 1
            if not self.machines.take(f"r{self.names}"):
                return False
        return True

    def restart(self) -> None:
        """Processes start; the next failure of any ends them all."""
        self.is_up = True
        self.spend(Cause.FORMING, self.times.relaunch_s)
        self.spend(Cause.RESTORE, max(0.0, self.storage_down_until_s - self.now_s) + self.times.load_s)
        self.spend(Cause.INITIALIZATION, self.times.warmup_s)
        self.begin()

    def begin(self) -> None:
        """All train, unless something has failed meanwhile."""
        self.is_training = self.ended is None
        self.trained_s = self.held_until_s = 0.0
        self.rates.clear()
        self.damaged.clear()
        self.outages = [(0.0, self.storage_down_until_s - self.now_s)]

    def resize(self) -> None:
        """Grow, right after a checkpoint."""
        began_s = self.now_s
        self.is_up = self.is_training = False
        self.replicas = self.usable(self.now_s)
        self.spend(Cause.FORMING, self.times.resize_s)
        self.find_machines()
        self.restart()
        lost_s = self.now_s - began_s
        self.told.append(Told(at_s=began_s, kind="capacity is back", lost_s=lost_s, decision="grow", is_planned=True))
