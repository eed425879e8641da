"""Pure. The usual way of living with failures: all processes end, and start anew from the last checkpoint.

The job stops with the failure. Somebody notices, the processes are started again where there are machines, the state
is read, and what was done since the last checkpoint is done again. Where machines are missing, the job waits for them
or, if it is elastic, goes on with fewer replicas; it grows again at a checkpoint.
"""

import heapq

from elastic.control.faults import FaultKind
from elastic.sim.account import Account, Cause
from elastic.sim.failures import HARMLESS, OF_MACHINES, PASSING, Failure, failures_of
from elastic.sim.ran import Ran, Told
from elastic.sim.scenario import Scenario


class Restarting:
    """One run.

    Attributes:
        now_s: virtual time. trained_s: since the processes were last started.
        returns: when machines that are away come back. slow: (until when, how many times slower).
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario, self.times, self.cluster = scenario, scenario.times, scenario.cluster
        self.account = Account()
        self.failures = failures_of(scenario, seed)
        self.now_s = self.trained_s = 0.0
        self.returns: list[float] = []
        self.replicas = self.cluster.replicas
        self.slow = (0.0, 1.0)
        self.told: list[Told] = []

    def run(self) -> Ran:
        self.spend(Cause.INITIALIZATION, self.times.start_s)
        for failure in self.failures:
            if failure.kind in HARMLESS or failure.kind is FaultKind.BIT_FLIP:  # nobody notices the latter
                continue
            struck_s = failure.at_s + (self.scenario.failures.notice_s if failure.kind is FaultKind.NOTICE else 0.0)
            self.train_until(struck_s)
            if self.now_s < self.scenario.end_s:
                self.suffer(failure)
        self.train_until(self.scenario.end_s)
        return Ran(
            account=self.account, incidents=tuple(self.told), machines=self.cluster.nodes + self.cluster.spare_nodes
        )

    # --- time passes ---

    def spend(self, cause: Cause, seconds: float) -> None:
        """All wait; not beyond the end."""
        seconds = max(0.0, min(seconds, self.scenario.end_s - self.now_s))
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
        machines = self.cluster.nodes + self.cluster.spare_nodes - away
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
        self.now_s += seconds
        self.trained_s += seconds

    # --- something fails ---

    def suffer(self, failure: Failure) -> None:
        began_s, kind = self.now_s, failure.kind
        wanted = self.scenario.failures
        lasts_s = failure.lasts_s or wanted.lasts_s
        if kind is FaultKind.SLOW:
            self.slow = (self.now_s + lasts_s, wanted.slow_factor)
            return
        if kind in PASSING and lasts_s < self.times.detect_hang_s:
            self.spend(Cause.DETECTING, lasts_s)
            self.told.append(Told(at_s=began_s, kind=kind.value, lost_s=self.now_s - began_s, decision="wait"))
            return
        redone_s = self.lose_work()
        self.spend(Cause.DETECTING, self.times.detect_hang_s if kind in PASSING else self.times.detect_s)
        decision = "restart"
        if kind in OF_MACHINES:
            decision = self.lose_machines(failure, began_s)
        self.restart()
        self.told.append(Told(at_s=began_s, kind=kind.value, lost_s=self.now_s - began_s + redone_s, decision=decision))

    def lose_work(self) -> float:
        """What was done since the last checkpoint that can be read is done again; returns its seconds."""
        cycle_s = self.times.save_interval_s + self.times.save_stall_s
        since_s = self.trained_s % cycle_s
        if since_s < self.times.save_lag_s:
            since_s += cycle_s
        since_s = min(since_s, self.trained_s)
        share = self.times.save_interval_s / cycle_s * self.replicas / self.cluster.replicas
        redone_s = since_s * share * (1.0 - self.scenario.job.slowdown)
        self.account.move(redone_s, Cause.PRODUCTIVE, Cause.REDONE)
        return redone_s

    def lose_machines(self, failure: Failure, at_s: float) -> str:
        """They are away for a while; what is left decides how it goes on."""
        back_s = at_s + (failure.lasts_s or self.cluster.repair_s)
        self.returns = [one for one in self.returns if one > self.now_s]
        for _ in range(max(1, len(failure.nodes))):
            heapq.heappush(self.returns, back_s)
        left = self.usable(self.now_s)
        if left >= self.replicas:
            self.spend(Cause.FORMING, self.times.replace_s)
            return "replace the node"
        least = max(1, self.scenario.job.minimum_replicas) if self.scenario.is_elastic else self.replicas
        if left >= least:
            self.replicas = left
            self.spend(Cause.FORMING, self.times.resize_s)
            return "shrink"
        while self.returns and self.usable(self.now_s) < least and self.now_s < self.scenario.end_s:
            self.spend(Cause.PAUSED, max(0.0, min(one for one in self.returns if one > self.now_s) - self.now_s))
        self.replicas = max(least, min(self.usable(self.now_s), self.cluster.replicas))
        self.spend(Cause.FORMING, self.times.replace_s)
        return "wait"

    def restart(self) -> None:
        self.spend(Cause.FORMING, self.times.relaunch_s)
        self.spend(Cause.RESTORE, self.times.load_s)
        self.spend(Cause.INITIALIZATION, self.times.warmup_s)
        self.trained_s = 0.0

    def resize(self) -> None:
        """Grow, right after a checkpoint."""
        began_s = self.now_s
        self.replicas = self.usable(self.now_s)
        self.spend(Cause.FORMING, self.times.resize_s)
        self.spend(Cause.RESTORE, self.times.load_s)
        self.spend(Cause.INITIALIZATION, self.times.warmup_s)
        self.trained_s = 0.0
        self.told.append(Told(at_s=began_s, kind="capacity is back", lost_s=self.now_s - began_s, decision="grow"))
