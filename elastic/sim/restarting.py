"""Pure. The usual way of living with failures: all processes end, and start anew from the last checkpoint.

The job stops with the failure. Somebody notices, the processes are started again where there are machines, the state
is read, and what was done since the last checkpoint is done again. Where machines are missing, the job waits for them
or, if it is elastic, goes on with fewer replicas; it grows again at a checkpoint. What fails before all train again
lengthens the incident: the start under way is given up, and another one begins.
"""

from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from math import fsum

from elastic.control.data import hash32
from elastic.control.faults import FaultKind
from elastic.control.xid import Severity
from elastic.sim.account import Account, Cause
from elastic.sim.failures import ASIDE, PASSING, Failure, failures_of
from elastic.sim.ran import Ran, Told
from elastic.sim.scenario import Scenario


class Restarting:
    """One run.

    Attributes:
        now_s: virtual time. trained_s: since the processes were last started.
        returns: when machines that are away come back. slow: (until when, how many times slower).
        ends_s: when processes end of a failure. down: from and until when there were no processes.
        cut_s: when the start under way is ended by the next failure; is_cut: it was.
        outages: of the storage, from and until, in trained_s. storage_down_until_s: the last one, in now_s.
        damaged: in trained_s, when the newest checkpoint was damaged.
        rates: (since when, in trained_s; productive seconds of the full group in one second), as often as that changed.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario, self.times, self.cluster = scenario, scenario.times, scenario.cluster
        self.account = Account()
        self.failures = sorted(failures_of(scenario, seed), key=self.struck_s)
        self.now_s = self.trained_s = 0.0
        self.returns: list[float] = []
        self.replicas = self.cluster.replicas
        self.slow = (0.0, 1.0)
        self.ends_s: list[float] = []
        self.down = (0.0, 0.0)
        self.cut_s, self.is_cut = float("inf"), False
        self.outages: list[tuple[float, float]] = []
        self.storage_down_until_s = 0.0
        self.damaged: list[float] = []
        self.rates: list[tuple[float, float]] = []
        self.told: list[Told] = []

    def run(self) -> Ran:
        self.spend(Cause.INITIALIZATION, self.times.start_s)
        self.ends_s = [self.struck_s(one) for one in self.failures if self.is_end(one)]
        for failure in self.failures:
            struck_s = self.struck_s(failure)
            self.train_until(struck_s)
            is_felt = not self.down[0] <= struck_s < self.down[1] or self.away_s(failure) > 0.0
            if self.now_s < self.scenario.end_s and is_felt:
                self.suffer(failure)
        self.train_until(self.scenario.end_s)
        return Ran(
            account=self.account,
            incidents=tuple(self.told),
            machines=self.scenario.machine_count,
            decided=dict(Counter(told.decision for told in self.told)),
            digest=hash32(*self.account.seconds.values(), *self.told),
        )

    def struck_s(self, failure: Failure) -> float:
        is_told = failure.kind is FaultKind.NOTICE
        return failure.at_s + ((failure.lasts_s or self.scenario.failures.notice_s) if is_told else 0.0)

    def lasts_s(self, failure: Failure) -> float:
        return failure.lasts_s or self.scenario.failures.lasts_s

    def is_end(self, failure: Failure) -> bool:
        """Whether processes end of it."""
        if failure.kind in PASSING:
            return self.lasts_s(failure) >= self.times.detect_hang_s
        is_note = failure.kind is FaultKind.XID and failure.severity is Severity.INFORMATIONAL
        return failure.kind not in ASIDE and not is_note

    # --- time passes ---

    def spend(self, cause: Cause, seconds: float) -> None:
        """All wait; not beyond the end."""
        seconds = max(0.0, min(seconds, self.scenario.end_s - self.now_s))
        if self.now_s + seconds > self.cut_s:
            seconds, self.is_cut = self.cut_s - self.now_s, True
        self.account.add(cause, seconds)
        self.now_s += seconds

    def train_until(self, until_s: float) -> None:
        """Train; where machines have come back and are missed, grow at the next checkpoint."""
        until_s = min(until_s, self.scenario.end_s)
        while self.now_s < until_s:
            next_s = until_s
            if self.is_small():
                next_s = min(until_s, max(self.now_s, self.grows_s()))
            self.train(next_s - self.now_s)
            if self.is_small() and self.now_s >= self.grows_s():
                self.resize()

    def is_small(self) -> bool:
        return self.replicas < self.cluster.replicas

    def grows_s(self) -> float:
        """When more replicas can take part: at the first checkpoint after enough machines are back."""
        back_s = next(one for one in sorted({self.now_s, *self.returns}) if self.usable(one) > self.replicas)
        cycle_s = self.times.save_interval_s + self.times.save_stall_s
        left_s = max(0.0, back_s - self.now_s)
        passed_s = (self.trained_s + left_s) % cycle_s
        return self.now_s + left_s + (cycle_s - passed_s if passed_s > 0.0 else 0.0)

    def usable(self, at_s: float) -> int:
        """Replicas for which there are machines then."""
        away = sum(back_s > at_s for back_s in self.returns)
        machines = self.scenario.machine_count - away
        return min(self.cluster.replicas, machines // self.cluster.nodes_per_replica)

    def train(self, seconds: float) -> None:
        """Split by what is held up, by what is missing, and by what drags."""
        until_s, factor = self.slow
        if self.now_s < until_s < self.now_s + seconds:
            first_s = until_s - self.now_s
            self.train(first_s)
            self.train(seconds - first_s)
            return
        factor = factor if self.now_s < until_s else 1.0
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

    def suffer(self, failure: Failure) -> None:
        began_s, lasts_s = self.now_s, self.lasts_s(failure)
        if not self.is_end(failure):
            self.bear(failure, lasts_s)
            return
        before = self.told.pop() if self.is_cut and not self.told[-1].is_planned else None
        self.is_cut = False
        redone_s = self.lose_work()
        self.spend(Cause.DETECTING, self.times.detect_hang_s if failure.kind in PASSING else self.times.detect_s)
        if away_s := self.away_s(failure):
            self.returns += [began_s + away_s] * max(1, len(failure.nodes))
        decision = self.find_machines(is_missing=away_s > 0.0)
        self.down = (began_s, self.now_s)
        self.restart()
        lost_s, kind = self.now_s - began_s + redone_s, failure.kind.value
        if before is not None:
            began_s, lost_s, kind = before.at_s, before.lost_s + lost_s, before.kind
            decision = before.decision if decision == "restart" else decision
        self.told.append(Told(at_s=began_s, kind=kind, lost_s=lost_s, decision=decision))

    def bear(self, failure: Failure, lasts_s: float) -> None:
        """What ends nobody's process."""
        if failure.kind is FaultKind.SLOW:
            self.slow = (self.now_s + lasts_s, failure.factor or self.scenario.failures.slow_factor)
        elif failure.kind is FaultKind.STORAGE_ERRORS:
            self.storage_down_until_s = max(self.storage_down_until_s, self.now_s + lasts_s)
            self.outages.append((self.trained_s, self.trained_s + lasts_s))
        elif failure.kind is FaultKind.BIT_FLIP:
            self.damaged.append(self.trained_s)
        elif failure.kind in PASSING:
            began_s = self.now_s
            self.spend(Cause.DETECTING, lasts_s)
            self.told.append(Told(at_s=began_s, kind=failure.kind.value, lost_s=self.now_s - began_s, decision="wait"))

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

    def find_machines(self, is_missing: bool) -> str:
        """Those that are there decide how it goes on; `is_missing`: one was lost, and another one comes first."""
        self.returns = [one for one in self.returns if one > self.now_s]
        left = self.usable(self.now_s)
        if left >= self.replicas:
            self.spend(Cause.FORMING, self.times.replace_s if is_missing else 0.0)
            return "replace the node" if is_missing else "restart"
        least = max(1, self.scenario.job.minimum_replicas) if self.scenario.is_elastic else self.replicas
        if left >= least:
            self.replicas = left
            self.spend(Cause.FORMING, self.times.resize_s)
            return "shrink"
        while self.usable(self.now_s) < least and self.now_s < self.scenario.end_s:
            self.spend(Cause.PAUSED, min(one for one in self.returns if one > self.now_s) - self.now_s)
        self.replicas = max(least, min(self.usable(self.now_s), self.cluster.replicas))
        self.spend(Cause.FORMING, self.times.replace_s)
        return "wait"

    def restart(self) -> None:
        """Processes start; the next failure of any ends them all."""
        place = bisect_left(self.ends_s, self.now_s)
        self.cut_s = self.ends_s[place] if place < len(self.ends_s) else float("inf")
        self.spend(Cause.FORMING, self.times.relaunch_s)
        self.spend(Cause.RESTORE, max(0.0, self.storage_down_until_s - self.now_s) + self.times.load_s)
        self.spend(Cause.INITIALIZATION, self.times.warmup_s)
        self.cut_s, self.trained_s = float("inf"), 0.0
        self.rates.clear()

    def resize(self) -> None:
        """Grow, right after a checkpoint."""
        began_s = self.now_s
        self.replicas = self.usable(self.now_s)
        self.spend(Cause.FORMING, self.times.resize_s)
        self.down = (began_s, self.now_s)
        self.restart()
        lost_s = self.now_s - began_s
        self.told.append(Told(at_s=began_s, kind="capacity is back", lost_s=lost_s, decision="grow", is_planned=True))
