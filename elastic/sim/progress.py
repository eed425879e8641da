"""Pure. How far a simulated job has come, and what its seconds were spent on: steps are counted, not played."""

import math

from elastic.sim.account import Account, Cause
from elastic.sim.scenario import Scenario


class Progress:
    """Time since the start, booked as it passes.

    Attributes:
        cause: what is booked while nobody trains. replicas: that train now, 0: none.
        done_s: productive seconds of the full group that are committed or under way; saved_s: of these, those that can
            be read from a checkpoint.
        slow_until_s, slow_factor: a machine drags all others until then.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.account = Account()
        self.now_s = 0.0
        self.cause = Cause.WORKER_START
        self.replicas = 0
        self.done_s = self.saved_s = self.since_save_s = 0.0
        self.slow_until_s, self.slow_factor = 0.0, 1.0

    def advance(self, until_s: float) -> None:
        """Time passes."""
        until_s = min(until_s, self.scenario.end_s)
        if self.now_s < self.slow_until_s < until_s:
            self._pass(self.slow_until_s - self.now_s)
        self._pass(until_s - self.now_s)

    def _pass(self, seconds: float) -> None:
        if seconds <= 0.0:
            return
        self.now_s += seconds
        if not self.replicas:
            self.account.add(self.cause, seconds)
            return
        working_s, capacity = seconds * (1.0 - self.stall_share), self.replicas / self.scenario.cluster.replicas
        productive_s = seconds * self._rate(self.now_s - seconds)
        self.account.add(Cause.CHECKPOINT_STALL, seconds - working_s)
        self.account.add(Cause.REDUCED_CAPACITY, working_s * (1.0 - capacity))
        self.account.add(Cause.STRAGGLER_DRAG, working_s * capacity - productive_s)
        self.account.add(Cause.PRODUCTIVE, productive_s)
        self.done_s += productive_s
        self._save(seconds, productive_s / seconds)

    def _save(self, seconds: float, rate: float) -> None:
        cycle_s = self.scenario.times.save_interval_s + self.scenario.times.save_stall_s
        self.since_save_s += seconds
        if self.since_save_s >= cycle_s:
            self.since_save_s %= cycle_s
            self.saved_s = self.done_s - self.since_save_s * rate

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
        return left_s / self._rate(self.now_s)

    def halt(self, cause: Cause) -> float:
        """All stop now; what was begun is done again. Returns its productive seconds."""
        whole_s = min(self.done_s, self.steps * self.scenario.job.step_s)
        redone_s, self.done_s = self.done_s - whole_s, whole_s
        self.account.move(redone_s, Cause.PRODUCTIVE, Cause.REDONE)
        self.replicas, self.cause = 0, cause
        self.saved_s = min(self.saved_s, self.done_s)
        return redone_s

    def go_back(self, steps: int) -> None:
        """To the state after so many steps: what came later is done again."""
        back_s = max(0.0, self.done_s - steps * self.scenario.job.step_s)
        self.done_s -= back_s
        self.saved_s = min(self.saved_s, self.done_s)
        self.account.move(back_s, Cause.PRODUCTIVE, Cause.REDONE)

    @property
    def saved_steps(self) -> int:
        return math.floor(self.saved_s / self.scenario.job.step_s + 1e-9)
