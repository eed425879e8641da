"""Pure. Who hangs, and who only waits for them.

A worker is judged by what its training thread is doing, and for how long. In a reduction, and in a collective of the
user's, all wait for each other, so whoever stands still anywhere else is the culprit, and those in there are its
victims. How long is too long is learned from the run's own steps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from elastic.control.flight import STOPPED, Flying, Reading
from elastic.settings import Limits

YOUNG_COMMITS = 3  # first steps allocate, compile and warm up
MIN_STEPS = 5
KEPT_STEPS = 64
_STEPS = 2.0  # a phase is a part of a step: twice a usual step is long
_SPREADS = 10.0
_DEAD = 2.0  # suspected at once the limit, dead at twice the limit

IN_STEP = frozenset({Flying.IN_BODY, Flying.COMPUTING, Flying.APPLYING})
WAITING = frozenset({Flying.REDUCING, Flying.TALKING})
_BETWEEN = frozenset({Flying.OUTSIDE, Flying.SLOW, Flying.EVALUATING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A worker that makes no progress; `is_dead` once nothing better is to be expected of it."""

    worker: str
    is_dead: bool
    reason: str


def stall_limit_s(steps_s: Sequence[float], limits: Limits) -> float:
    """How long a phase of a step may last: from the median and the spread (median deviation) of the last steps."""
    if len(steps_s) < MIN_STEPS:
        return limits.first_steps_timeout_s
    middle = median(steps_s)
    spread = median(abs(one - middle) for one in steps_s)
    return max(limits.hang_floor_s, _STEPS * middle, middle + _SPREADS * spread)


def hang_s(step_s: float, limits: Limits) -> float:
    """Until who hangs in a step is dead, in a run whose steps have all taken so long, while others wait for it."""
    return _DEAD * stall_limit_s([step_s] * MIN_STEPS, limits)


def suspicions(
    readings: Iterable[Reading], stall_s: float, limits: Limits, *, waited_s: float | None = inf
) -> list[Suspicion]:
    """Workers that stand still where they wait for nobody.

    Args:
        waited_s: how long somebody has waited for them; who is slow like all others is late only from then on, unless
            its process is stopped. None: nobody waits, all are slow alike, or there is only one, and a kill would help
            nobody: then only the longest limit holds.
    """
    found = []
    for reading in readings:
        limit_s = shortest_limit_s(reading, stall_s, limits)
        late_s = reading.still_s
        if waited_s is not None and reading.state != STOPPED:
            late_s = min(late_s, waited_s)
        if limit_s is None or late_s < limit_s:
            continue
        reason = _reason(reading, limit_s)
        if waited_s is None:
            limit_s = max(limit_s, limits.first_steps_timeout_s)
            reason = f"Limits.first_steps_timeout_s={limits.first_steps_timeout_s}, since nobody waits for it"
            if late_s < limit_s:
                continue
        is_dead = reading.state == STOPPED or late_s >= _DEAD * limit_s or reading.phase not in IN_STEP
        why = f"{reading.worker} has stood still for {reading.still_s:.1f} s, {reading.place} (process {reading.state})"
        if late_s < reading.still_s:
            why += f", and others have waited for {late_s:.1f} s"
        found.append(Suspicion(worker=reading.worker, is_dead=is_dead, reason=f"{why}; limit: {reason}"))
    return found


def shortest_limit_s(reading: Reading, stall_s: float, limits: Limits) -> float | None:
    """How long it may stand still where somebody waits for it; None where it waits for others."""
    if reading.state == STOPPED:
        return limits.stopped_timeout_s
    if reading.phase in IN_STEP:
        return limits.first_steps_timeout_s if reading.commits < YOUNG_COMMITS else stall_s
    if reading.phase is Flying.FETCHING:
        return limits.fetch_timeout_s
    if reading.phase is Flying.AT_DOOR:  # in a generation that trains: it alone has lost its lease
        return limits.lease_s
    if reading.phase not in _BETWEEN:
        return None
    is_young = reading.commits < YOUNG_COMMITS  # it may compile
    return max(limits.door_timeout_s, limits.first_steps_timeout_s if is_young else 0.0)


def _reason(reading: Reading, limit_s: float) -> str:
    if reading.state == STOPPED:
        return f"Limits.stopped_timeout_s={limit_s}, since its process is stopped"
    if reading.phase in IN_STEP:
        return f"{limit_s:.1f} s, learned from the run's steps (Limits.hang_floor_s, first_steps_timeout_s)"
    names = {Flying.FETCHING: "fetch_timeout_s", Flying.AT_DOOR: "lease_s"}
    usual = "door_timeout_s, first_steps_timeout_s" if reading.commits < YOUNG_COMMITS else "door_timeout_s"
    return f"Limits.{names.get(reading.phase, usual)}={limit_s}"


def presses(readings: Iterable[Reading], stopped_timeout_s: float) -> bool:
    """Somebody's process has been stopped for too long: nothing more can come of waiting for the next look."""
    return any(reading.state == STOPPED and reading.still_s >= stopped_timeout_s for reading in readings)


def all_wait(readings: Sequence[Reading], stall_s: float) -> bool:
    """Everybody that can be seen waits for others, and has for too long: whoever is missing is out of sight."""
    waits = all(reading.phase in WAITING and reading.still_s >= stall_s for reading in readings)
    return bool(readings) and waits


def some_warm_up(readings: Iterable[Reading]) -> bool:
    """Where nobody is out of sight, a first reduction may take its time."""
    return any(reading.commits < YOUNG_COMMITS for reading in readings)
