"""Pure. How often a tier is written to: as the user says, or as measured costs and observed failures say.

A checkpoint costs the time for which training stands still; a failure costs the work since the last one. The interval
at which both together cost least follows from the cost of one checkpoint and the mean time between failures. That mean
nobody knows before there were failures, so what costs next to nothing is done more often than it says.
"""

import math
from dataclasses import dataclass, replace

from elastic.settings import Interval

# One unexpected interruption in so many seconds of one host: 419 of them in 54 days on 2048 hosts of 8 GPUs.
# Grattafiori et al., "The Llama 3 Herd of Models", 2024, section 3.3.4.
PRIOR_HOST_S = 54 * 86400 * 2048 / 419
FREE_SHARE = 1e-3  # of the time: that snapshots cost so little is seen in no figure
_FREE_BESIDE = 1e-2  # of the time in which a snapshot is on its way, and takes cores and memory bandwidth
_FREE_S = 2.0  # what the actors do for a snapshot is in neither
_SMOOTHING = 0.2
_COLD = 3  # so many of the first ones are taken while a run starts, and memory is touched for the first time
_TOLD_CHANGE = 1.5  # times as long or as short


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of one tier so far.

    Attributes:
        stall_s: seconds that one checkpoint costs training, as lately measured; None before the first.
        is_cold: only checkpoints of a run that starts were measured yet, which cost more than later ones.
        what: these seconds are, in words.
        transfer_s: seconds that it takes to bring one to the tier; the next one does not begin before.
        failures: that this tier was, or would have been, needed for. watched_s: seconds in which they were counted.
        hosts: of the run.
    """

    stall_s: float | None = None
    is_cold: bool = False
    what: str = "a stall"
    transfer_s: float = 0.0
    failures: int = 0
    watched_s: float = 0.0
    hosts: int = 1

    @property
    def mean_time_between_failures_s(self) -> float:
        """Mean of a Gamma prior worth one failure in `PRIOR_HOST_S / hosts` seconds, after what was observed.

        So it is the prior before the first failure, and what was observed after many.
        """
        return (PRIOR_HOST_S / max(1, self.hosts) + self.watched_s) / (1 + self.failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """When the next checkpoint is due, and why.

    Attributes:
        steps, seconds: after the last one, whichever comes first; None: does not count.
        reason: one sentence with the numbers that it follows from.
    """

    steps: int | None
    seconds: float | None
    reason: str

    def is_due(self, steps_since: int, seconds_since: float) -> bool:
        """Whether one is due so many committed steps, and seconds, after the last one."""
        by_steps = self.steps is not None and steps_since >= self.steps
        by_seconds = self.seconds is not None and seconds_since >= self.seconds
        return steps_since > 0 and (by_steps or by_seconds)

    def is_near(self, other: "Cadence") -> bool:
        """Whether the two are so much alike that nobody need be told of the change."""
        if self.seconds is None or other.seconds is None:
            return (self.steps, self.seconds) == (other.steps, other.seconds)
        low, high = sorted((self.seconds, other.seconds))
        return self.steps == other.steps and high <= low * _TOLD_CHANGE


class Schedule:
    """When one tier is written to: its interval, what was measured, and when it was last done.

    Args:
        interval: what the user has set. overhead: share of the time that a measured interval may cost.
        free_share: share of the time for which failures are not asked, see `cadence`.

    Attributes:
        last_step: after which it was last done; None: never. After a step back it may lie ahead of the history.
    """

    def __init__(
        self, interval: Interval, overhead: float, measured: Measured = Measured(), free_share: float = 0.0
    ) -> None:
        self._interval, self._overhead, self._measured, self._free_share = interval, overhead, measured, free_share
        self._last_s = self._watched_from_s = 0.0
        self._stalls = 0
        self._told: Cadence | None = None
        self.last_step: int | None = None

    def is_due(self, step: int, now_s: float) -> bool:
        """Whether to do it after this step: at the first that is asked about, and after a step back, at once."""
        if self.last_step is None or step <= self.last_step:
            return True
        return self.cadence(now_s).is_due(step - self.last_step, now_s - self._last_s)

    def cadence(self, now_s: float) -> Cadence:
        """As things stand."""
        measured = replace(self._measured, watched_s=max(0.0, now_s - self._watched_from_s))
        return cadence(self._interval, measured, self._overhead, self._free_share)

    def news(self, now_s: float) -> Cadence | None:
        """The interval, where it has changed noticeably since it was last told; None where it has not."""
        found = self.cadence(now_s)
        if self._told is not None and found.is_near(self._told):
            return None
        self._told = found
        return found

    def done(self, step: int, now_s: float) -> None:
        """It is being done after this step."""
        self.last_step, self._last_s = step, now_s

    def stalled(self, seconds: float) -> None:
        """For how long doing it once has held training up, or what stands for that: the least of the first ones."""
        before = self._measured.stall_s
        self._stalls += 1
        if before is None:
            stall_s = seconds
        elif self._stalls <= _COLD:
            stall_s = min(before, seconds)
        else:
            stall_s = before + _SMOOTHING * (seconds - before)
        self._measured = replace(self._measured, stall_s=stall_s, is_cold=self._stalls < _COLD)

    def arrived(self, seconds: float) -> None:
        """How long one took until it was at the tier."""
        self._measured = replace(self._measured, transfer_s=seconds)

    def watched(self, *, failures: int, hosts: int, watched_s: float, now_s: float) -> None:
        """What was seen of the run up to now, in so many seconds."""
        self._watched_from_s = now_s - watched_s
        self._measured = replace(self._measured, failures=failures, hosts=hosts)


def cadence(interval: Interval, measured: Measured, overhead: float, free_share: float = 0.0) -> Cadence:
    """How often to write; asked again whenever something was measured.

    Args:
        interval: what the user has set. overhead: share of the time that a measured interval may cost.
        free_share: share of the time that is spent though failures may be too rare to be worth it; 0: none.
    """
    if not interval.is_auto:
        parts = [f"{interval.steps} steps"] if interval.steps is not None else []
        parts += [f"{interval.seconds:g} s"] if interval.seconds is not None else []
        return Cadence(steps=interval.steps, seconds=interval.seconds, reason=f"set to every {' or '.join(parts)}")
    if measured.stall_s is None:
        return Cadence(steps=1, seconds=None, reason="nothing was measured yet, and the first one measures")
    mean_s = measured.mean_time_between_failures_s
    stall = f"{measured.what} of {measured.stall_s:.3g} s"
    failure = f"a failure every {mean_s:.3g} s ({measured.failures} failures in {measured.watched_s:.0f} s)"
    best = {f"{stall} and {failure} cost least at this interval": optimal_interval_s(measured.stall_s, mean_s)}
    if free_share and measured.is_cold:
        best[f"{stall} is that of a run that starts: the next one measures again, however rare is {failure}"] = _FREE_S
    elif free_share:
        free_s = max(_FREE_S, measured.stall_s / free_share, measured.transfer_s / _FREE_BESIDE)
        best[f"{stall} costs next to nothing at this interval, however rare is {failure}"] = free_s
    why_best = min(best, key=lambda reason: best[reason])
    least_s = measured.stall_s / overhead
    found = {
        why_best: best[why_best],
        f"{stall} may cost no more than Checkpoint.overhead={overhead:g} of the time": least_s,
        f"one takes {measured.transfer_s:.3g} s to arrive, and the next one waits for it": measured.transfer_s,
    }
    reason, seconds = max(found.items(), key=lambda item: item[1])
    return Cadence(steps=None, seconds=seconds, reason=f"every {seconds:.3g} s: {reason}")


def optimal_interval_s(cost_s: float, mean_time_between_failures_s: float) -> float:
    """Seconds of work between two checkpoints that cost the least time in the long run.

    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
    Computer Systems 22(3), 2006, equation 37; its first term is J. W. Young's, "A first order approximation to the
    optimum checkpoint interval", Communications of the ACM 17(9), 1974.

    Args:
        cost_s: of one checkpoint.
    """
    if cost_s >= 2 * mean_time_between_failures_s:
        return mean_time_between_failures_s
    ratio = cost_s / (2 * mean_time_between_failures_s)
    young_s = math.sqrt(2 * cost_s * mean_time_between_failures_s)
    return max(0.0, young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s)
