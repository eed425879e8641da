"""Pure. How far a simulated job has come, and what its seconds were spent on: steps are counted, not played."""

import math

from elastic.sim.account import Account, Cause
from elastic.sim.scenario import Scenario


class Kept:
    """Checkpoints of one tier.

    Attributes:
        since_s: the last one was begun; the first one follows the first steps.
        newest_s, before_s: productive seconds that the last two hold.
    """

    def __init__(self, cycle_s: float, first_s: float) -> None:
        self.cycle_s = cycle_s
        self.since_s = max(0.0, cycle_s - first_s)
        self.newest_s = self.before_s = 0.0

    def trained(self, seconds: float, rate: float, done_s: float, is_down: bool) -> None:
        """So many seconds have passed, in none or all of which nothing could be kept."""
        is_late = self.since_s >= self.cycle_s
        self.since_s += seconds
        if is_down:
            return
        if is_late:
            self._keep(done_s - seconds * rate, 0.0)
            self.since_s = seconds
        if self.since_s >= self.cycle_s:
            before_s = self.cycle_s * rate if self.since_s >= 2 * self.cycle_s else 0.0
            self.since_s %= self.cycle_s
            self._keep(done_s - self.since_s * rate, before_s)

    def _keep(self, done_s: float, before_s: float) -> None:
        self.before_s = done_s - before_s if before_s else self.newest_s
        self.newest_s = done_s

    def damage(self) -> None:
        """The newest one cannot be read; who wants it takes the one before."""
        self.newest_s = self.before_s

    def go_back(self, done_s: float) -> None:
        self.newest_s, self.before_s = min(self.newest_s, done_s), min(self.before_s, done_s)


class Progress:
    """Time since the start, booked as it passes.

    Attributes:
        cause: what is booked while nobody trains. replicas: that train now, 0: none.
        done_s: productive seconds of the full group that are committed or under way.
        saved: checkpoints that are gone with all machines that trained; uploaded: those that are not.
        slow_until_s, slow_factor: a machine drags all others until then. held_until_s: all wait for one until then.
        storage_down_until_s: nothing can be uploaded, or be read from there, until then.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.account = Account()
        self.now_s = 0.0
        self.cause = Cause.WORKER_START
        self.replicas = 0
        self.done_s = 0.0
        times, first_s = scenario.times, 2 * scenario.job.step_s
        self.saved = Kept(times.save_interval_s + times.save_stall_s, first_s)
        self.uploaded = Kept(times.upload_interval_s, first_s) if times.upload_interval_s else self.saved
        self.slow_until_s, self.slow_factor = 0.0, 1.0
        self.held_until_s = self.storage_down_until_s = 0.0

    def advance(self, until_s: float) -> None:
        """Time passes."""
        until_s = min(until_s, self.scenario.end_s)
        for change_s in sorted((self.slow_until_s, self.held_until_s, self.storage_down_until_s)):
            if self.now_s < change_s < until_s:
                self._pass(change_s)
        self._pass(until_s)

    def _pass(self, until_s: float) -> None:
        """Nothing changes on the way. Times are taken over as they are: a sum that is rounded may fall short of one."""
        since_s, seconds = self.now_s, until_s - self.now_s
        if seconds <= 0.0:
            return
        self.now_s = until_s
        if not self.replicas:
            self.account.add(self.cause, seconds)
            return
        if self.now_s <= self.held_until_s:
            self.account.add(Cause.DETECTING, seconds)
            return
        working_s, capacity = seconds * (1.0 - self.stall_share), self.replicas / self.scenario.cluster.replicas
        productive_s = seconds * self._rate(since_s)
        self.account.add(Cause.CHECKPOINT_STALL, seconds - working_s)
        self.account.add(Cause.REDUCED_CAPACITY, working_s * (1.0 - capacity))
        self.account.add(Cause.STRAGGLER_DRAG, working_s * capacity - productive_s)
        self.account.add(Cause.PRODUCTIVE, productive_s)
        self.done_s += productive_s
        is_down, rate = self.now_s <= self.storage_down_until_s, productive_s / seconds
        if self.uploaded is not self.saved:
            self.saved.trained(seconds, rate, self.done_s, is_down=False)
        self.uploaded.trained(seconds, rate, self.done_s, is_down)

    @property
    def stall_share(self) -> float:
        times = self.scenario.times
        return times.save_stall_s / (times.save_interval_s + times.save_stall_s)

    def _rate(self, at_s: float) -> float:
        """Productive seconds of the full group in one second."""
        factor = self.slow_factor if at_s < self.slow_until_s else 1.0
        capacity = self.replicas / self.scenario.cluster.replicas
        return (1.0 - self.stall_share) * capacity * (1.0 - self.scenario.job.slowdown) / factor

    @property
    def steps(self) -> int:
        """That are complete."""
        return math.floor(self.done_s / self.scenario.job.step_s + 1e-9)

    def until_step_s(self) -> float:
        """Until the step under way is complete, while some train."""
        left_s = (self.steps + 1) * self.scenario.job.step_s - self.done_s
        return left_s / self._rate(self.now_s) + max(0.0, self.held_until_s - self.now_s)

    def halt(self, cause: Cause) -> float:
        """All stop now; what was begun is done again. Returns its productive seconds."""
        whole_s = min(self.done_s, self.steps * self.scenario.job.step_s)
        redone_s, self.done_s = self.done_s - whole_s, whole_s
        self.account.move(redone_s, Cause.PRODUCTIVE, Cause.REDONE)
        self.replicas, self.cause = 0, cause
        self._forget()
        return redone_s

    def go_back(self, steps: int) -> None:
        """To the state after so many steps: what came later is done again."""
        back_s = max(0.0, self.done_s - steps * self.scenario.job.step_s)
        self.done_s -= back_s
        self._forget()
        self.account.move(back_s, Cause.PRODUCTIVE, Cause.REDONE)

    def _forget(self) -> None:
        self.saved.go_back(self.done_s)
        self.uploaded.go_back(self.done_s)

    def saved_steps(self, is_local: bool) -> int:
        """That can be restored; `is_local`: of those, too, that lie on machines."""
        saved_s = max(self.saved.newest_s, self.uploaded.newest_s) if is_local else self.uploaded.newest_s
        return math.floor(saved_s / self.scenario.job.step_s + 1e-9)
