"""Pure. How large the buckets are in which gradients are summed: sizes are tried while a run trains, by its own steps.

Small buckets are on their way while the last backward still computes, large ones cost less in all; which size is best
depends on the network, the model and the replicas (Li et al., "PyTorch Distributed: Experiences on Accelerating Data
Parallel Training", 2020, section 5.2).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from elastic.control.tuning import NOT_TUNED, Tuning
from elastic.control.values import StepReport
from elastic.errors import SettingError

_PATIENCE = 4  # times the steps of a trial; then a wish counts as lost, with the supervisor that was asked
_MOST_WISHES = 12  # however often a trial must begin anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Which sizes are tried, and how.

    Attributes:
        start_bytes: what `session.prepare` was given. least_bytes, most_bytes: no size beyond these is tried.
        factor: between two sizes. gain: the share by which steps must be shorter for a size to count as better.
        steps: that are measured at a size; the median counts. settle_steps: before them, that do not count.

    Raises:
        SettingError: a number is out of its range.
    """

    start_bytes: int
    least_bytes: int
    most_bytes: int
    factor: int = 4
    gain: float = 0.03
    steps: int = 20
    settle_steps: int = 5

    def __post_init__(self) -> None:
        if not 1 <= self.least_bytes <= self.start_bytes <= self.most_bytes:
            raise SettingError(
                f"buckets of {self.least_bytes} to {self.most_bytes} bytes, from {self.start_bytes} on: least_bytes "
                "must be at least 1, and start_bytes lie between the two"
            )
        if self.factor < 2 or not 0 <= self.gain < 1 or self.steps < 1 or self.settle_steps < 0:
            raise SettingError(
                f"factor={self.factor} must be at least 2, gain={self.gain} in [0, 1), steps={self.steps} at least 1, "
                f"settle_steps={self.settle_steps} not negative"
            )


def next_size(tried: Mapping[int, float], trials: Trials) -> int | None:
    """The size to try next; None: the best is known.

    From the first size on, larger ones as long as each makes steps shorter; if the first does not, smaller ones.

    Args:
        tried: seconds of a step, by size in bytes; the first one first.
    """
    first = next(iter(tried))
    for is_up in (True, False):
        best = first
        while True:
            size = best * trials.factor if is_up else best // trials.factor
            if not trials.least_bytes <= size <= trials.most_bytes:
                break
            if size not in tried:
                return size
            if tried[size] >= tried[best] * (1 - trials.gain):
                break
            best = size
        if best != first:
            break
    return None


def best_size(tried: Mapping[int, float], trials: Trials) -> int:
    """The size with the shortest steps; the first one, unless another is better by `Trials.gain`."""
    first = next(iter(tried))
    best = min(tried, key=lambda size: tried[size])
    return best if tried[best] < tried[first] * (1 - trials.gain) else first


class Search:
    """Takes stable steps in, and says which size is to be had.

    What was measured at one size of the group, or of steps, says nothing of another: where they change in the middle,
    it begins anew, from the size that there is.

    Attributes:
        tried: seconds of a step, by size. chosen: None before it is known. is_over: steps are computed with it.
    """

    def __init__(self, trials: Trials) -> None:
        self._trials = trials
        self.tried: dict[int, float] = {}
        self.chosen: int | None = None
        self.is_over = False
        self._size = trials.start_bytes  # that is measured, or waited for
        self._wish: Tuning | None = None
        self._wishes = self._waited = 0
        self._shape = (0, NOT_TUNED)
        self._place = (0, 0)
        self._restart()

    def heed(self, report: StepReport) -> Tuning | None:
        """A step is stable; returns what is to be asked for, if anything."""
        if self.is_over:
            return None
        size = report.tuning.bucket_bytes or self._trials.start_bytes
        shape = (report.replicas, report.tuning.felt)
        if self.chosen is None and shape != self._shape:
            self._shape = shape
            self._begin_anew(size)
        if size != self._size:
            return self._wait(size)
        self._wish = None
        if self.chosen is not None:
            self.is_over = True
            return None
        took_s = self._measured(report)
        return self._judged(took_s) if took_s is not None else None

    def _begin_anew(self, size: int) -> None:
        self.tried, self._size, self._wish = {}, size, None
        self._restart()

    def _restart(self) -> None:
        """A size is measured from the beginning."""
        self._seen = self._samples = 0
        self._part_s = 0.0
        self._took_s: list[float] = []

    def _wait(self, size: int) -> Tuning | None:
        """Another size is in force than the one that was asked for, or somebody else asks."""
        if self._wish is None:
            self._begin_anew(size)
            return None
        self._waited += 1
        if self._waited % (_PATIENCE * self._trials.steps):
            return None
        return self._wish

    def _measured(self, report: StepReport) -> float | None:
        """Median seconds of a step, once there are enough; without what buckets have nothing to do with."""
        place = (report.commit.incarnation, report.commit.generation)
        if place != self._place:
            self._place = place
            self._restart()
        times = report.times
        since_s = times.since_s or report.started_at_s
        beside_s = times.data_s + times.stall_s + times.evaluation_s + times.callback_s
        self._part_s += report.committed_at_s - since_s - beside_s
        if report.skipped or 0 < report.samples < self._samples:
            self._part_s = 0.0  # a step without work; the rest of an epoch
            return None
        if not report.samples:
            return None  # an update that is not the last of its step
        if report.samples > self._samples:
            self._samples, self._took_s = report.samples, []
        took_s, self._part_s = self._part_s, 0.0
        self._seen += 1
        if self._seen > self._trials.settle_steps:
            self._took_s.append(took_s)
        return median(self._took_s) if len(self._took_s) >= self._trials.steps else None

    def _judged(self, took_s: float) -> Tuning | None:
        size, self.tried[self._size] = self._size, took_s
        following = next_size(self.tried, self._trials) if self._wishes < _MOST_WISHES else None
        if following is None:
            following = self.chosen = best_size(self.tried, self._trials)
        if following == size:
            self.is_over = True
            return None
        self._restart()
        self._size, self._wish, self._waited = following, Tuning(bucket_bytes=following), 0
        self._wishes += 1
        return self._wish
