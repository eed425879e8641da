"""Pure. When something that is done between two steps is due: by steps, by seconds, or as its measured cost allows."""

import math
from dataclasses import dataclass

from elastic.settings import Interval

_SMOOTHING = 0.2


@dataclass(slots=True)
class Due:
    """One interval, and what has been measured so far.

    Attributes:
        interval: as set. overhead: share of the time that a measured interval may cost.
        last_step, last_s: when it was last done; -1 and a time before the run, if never.
        step_s, stall_s: smoothed seconds of a step, and for which doing it once held a step up; 0 before the first.
    """

    interval: Interval
    overhead: float
    last_step: int = -1
    last_s: float = -math.inf
    step_s: float = 0.0
    stall_s: float = 0.0

    def is_due(self, step: int, now_s: float) -> bool:
        """Whether to do it after step `step`."""
        interval = self.interval
        if interval.is_auto:
            return self.last_step < 0 or not self.last_step < step < self.last_step + self.every_steps
        by_step = interval.steps is not None and step % interval.steps == 0
        return by_step or (interval.seconds is not None and now_s >= self.last_s + interval.seconds)

    @property
    def every_steps(self) -> int:
        """The smallest n with stall_s <= overhead * n * step_s: so often that the stalls stay below their share."""
        if self.step_s <= 0:
            return 1
        return max(1, math.ceil(self.stall_s / (self.overhead * self.step_s)))

    def done(self, step: int, now_s: float) -> None:
        """It is being done after this step."""
        self.last_step, self.last_s = step, now_s

    def took_step(self, seconds: float) -> None:
        """How long a step took, without the stalls."""
        self.step_s = _smoothed(self.step_s, seconds)

    def stalled(self, seconds: float) -> None:
        """For how long doing it once has held the steps up."""
        self.stall_s = _smoothed(self.stall_s, seconds)


def _smoothed(before: float, now: float) -> float:
    return now if before <= 0 else before + _SMOOTHING * (now - before)
