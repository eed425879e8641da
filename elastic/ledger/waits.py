"""Pure. What training has waited for in callbacks, by name: on the worker that tells of steps, and on others."""

from collections.abc import Mapping

from elastic.ledger.stretch import Stretch

Noted = Mapping[int, Mapping[tuple[str, str], float]]  # by step; by worker and what it was, seconds
Waits = dict[int, dict[str, float]]  # by step, and what it was


def waits(noted: Noted, stretch: Stretch) -> Waits:
    """What workers have noted, other than the one whose times are told: it shows in that one's steps alone."""
    found: Waits = {}
    for step in range(stretch.first - 1, stretch.last + 1) if noted else ():
        for (worker, what), seconds in noted.get(step, {}).items():
            if worker != stretch.worker:
                waited = found.setdefault(step, {})
                waited[what] = max(seconds, waited.get(what, 0.0))  # all at once
    return found


def take(left: Waits, step: int, most_s: float, taken: dict[str, float]) -> float:
    """Move what was noted of a step, or behind the commit before it, to `taken`; returns the seconds, at most `most_s`.

    Args:
        left: what is taken is there no more.
    """
    left_s = most_s
    for waited in (left.get(step - 1, {}), left.get(step, {})):
        for what, seconds in waited.items():
            part_s = min(seconds, left_s)
            if part_s > 0:
                waited[what], left_s = seconds - part_s, left_s - part_s
                taken[what] = taken.get(what, 0.0) + part_s
    return most_s - left_s


def by_name(stretch: Stretch, elsewhere_s: Mapping[str, float]) -> dict[str, float]:
    """Seconds in callbacks by their names: those of the worker that tells, and what it waited for elsewhere.

    A callback after a commit is told with that step, and takes its time from the next one: so names share in what the
    clock says, in proportion.
    """
    told_s = sum(stretch.callbacks.values())
    factor = stretch.callback_s / told_s if told_s > 0 else 0.0
    found = {name: seconds * factor for name, seconds in stretch.callbacks.items() if seconds * factor > 0}
    for what, seconds in elsewhere_s.items():
        found[what] = found.get(what, 0.0) + seconds
    return found
