"""Pure. What a driver leaves to the next one, beside its workers: what was learned of nodes, a pause, a dispute.

It is told in the journal whenever it changes, and each half minute while something of it runs down. Times are what is
left of them, so that they mean the same on another machine, and by a clock that has jumped. As while the controller
stands still (`discount_absence`), the time in which no driver lives counts for nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from elastic.control.care import Bucket, Care, Hold, Reset
from elastic.control.outcome import Ending
from elastic.control.remediation import Kind
from elastic.control.state import RunState
from elastic.control.values import IncidentClass

EVERY_S = 30.0

_KINDS = {kind.value: kind for kind in Kind}
_CLASSES = {kind.value: kind for kind in IncidentClass}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bequest:
    """See the module.

    Attributes:
        quarantine: by node that gets no worker, for how many more seconds; None: for good.
        unhealthy: by node that fails its check, how much of that is for this, None as there.
        resets: GPUs that are to be reset, or being reset: the node, they, the seconds that are left for it, None: any
            number.
        node_incidents: by node, failures with a culprit on it.
        budgets: by class of failure, what is left.
        recovery_s: by kind of remediation, how long the last ones took. placing_s, loading_s: of the last workers.
        paused: why the run is, empty if it is not; paused_s: for how much longer, None: until somebody resumes it.
        restarts: how often in a row state came from a tier, without a step past `furthest`, -1 if it has not.
        without_progress: incidents in a row with no stable step between them.
        disputed: what has made all that live workers hold worthless, empty: nothing has; disputed_at_most: the step
            up to which they must go back for that. disputed_from: see `RunState`.
    """

    quarantine: Mapping[str, float | None] = field(default_factory=dict)
    unhealthy: Mapping[str, float | None] = field(default_factory=dict)
    resets: tuple[tuple[str, tuple[str, ...], float | None], ...] = ()
    node_incidents: Mapping[str, int] = field(default_factory=dict)
    budgets: Mapping[str, float] = field(default_factory=dict)
    recovery_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    placing_s: tuple[float, ...] = ()
    loading_s: tuple[float, ...] = ()
    paused: str = ""
    paused_s: float | None = 0.0
    restarts: int = 0
    furthest: int = -1
    without_progress: int = 0
    disputed: str = ""
    disputed_at_most: int | None = None
    disputed_from: int = -1


def left_by(state: RunState) -> Bequest:
    """What a driver would leave if it died now. Who starts a run again that has ended begins its counts anew."""
    care, limits, now_s = state.care, state.settings.limits, state.seen_s or 0.0
    of_nodes = Bequest(
        quarantine={node: _left_s(until_s, now_s) for node, until_s in care.quarantine.items() if until_s > now_s},
        unhealthy={node: _left_s(until_s, now_s) for node, until_s in care.unhealthy.items() if until_s > now_s},
        resets=tuple((one.node, one.gpus, _left_s(one.until_s, now_s)) for one in care.resets if one.until_s > now_s),
        node_incidents=dict(care.node_incidents),
        recovery_s={kind.value: seconds for kind, seconds in care.recovery_s.items()},
        placing_s=care.placing_s,
        loading_s=care.loading_s,
    )
    if _is_over(state):
        return of_nodes
    size, refill_s = float(limits.budget_incidents), limits.budget_refill_s
    restore = state.restore if state.restore is not None and state.restore.needed_for else None
    levels = {kind.value: one.level(now_s, size, refill_s) for kind, one in care.budgets.items()}
    return replace(
        of_nodes,
        budgets={kind: level for kind, level in levels.items() if level < size},
        paused="" if care.hold is None else care.hold.reason,
        paused_s=0.0 if care.hold is None else _left_s(max(now_s, care.hold.until_s), now_s),
        restarts=state.restarts,
        furthest=state.furthest if state.restarts else -1,
        without_progress=state.without_progress,
        disputed="" if restore is None else restore.needed_for,
        disputed_at_most=None if restore is None else restore.at_most,
        disputed_from=state.disputed_from,
    )


def is_to_be_told(before: RunState, state: RunState) -> bool:
    """Whether what is left has changed between two turns, by more than that time has passed; or it is time to say."""
    if _lasting(before) != _lasting(state):
        return True
    is_due = (before.seen_s or 0.0) // EVERY_S != (state.seen_s or 0.0) // EVERY_S
    return is_due and left_by(before) != left_by(state)


def taken_on(state: RunState, left: Bequest, now_s: float) -> dict[str, Any]:
    """What it makes of the state of a new driver; what only another version knows is left out."""
    hold = Hold(reason=left.paused, until_s=_until_s(left.paused_s, now_s)) if left.paused else None
    whole_s = state.settings.limits.gpu_reset_timeout_s

    def since_s(left_s: float | None) -> float:
        return now_s if left_s is None else now_s + left_s - whole_s

    care = replace(
        state.care,
        quarantine={node: _until_s(for_s, now_s) for node, for_s in left.quarantine.items()},
        unhealthy={node: _until_s(for_s, now_s) for node, for_s in left.unhealthy.items()},
        resets=tuple(
            Reset(node=node, gpus=gpus, since_s=since_s(left_s), until_s=_until_s(left_s, now_s))
            for node, gpus, left_s in left.resets
        ),
        node_incidents=dict(left.node_incidents),
        budgets={
            _CLASSES[name]: Bucket(left=level, at_s=now_s) for name, level in left.budgets.items() if name in _CLASSES
        },
        recovery_s={_KINDS[name]: seconds for name, seconds in left.recovery_s.items() if name in _KINDS},
        placing_s=left.placing_s,
        loading_s=left.loading_s,
        hold=hold,
    )
    counts = {"restarts": left.restarts, "furthest": left.furthest, "without_progress": left.without_progress}
    return {"care": care, **counts, "disputed_from": left.disputed_from}


def _left_s(until_s: float, now_s: float) -> float | None:
    """What JSON has no word for, an end that never comes, is None."""
    return None if until_s == inf else until_s - now_s


def _until_s(left_s: float | None, now_s: float) -> float:
    return inf if left_s is None else now_s + left_s


def bequest_of(line: Mapping[str, Any]) -> Bequest:
    """Of a line of the journal, which maybe another version has written."""
    usual = Bequest()
    told = {name: line.get(name, getattr(usual, name)) for name in Bequest.__dataclass_fields__}
    told["recovery_s"] = {kind: tuple(seconds) for kind, seconds in told["recovery_s"].items()}
    told["resets"] = tuple((node, tuple(gpus), left_s) for node, gpus, left_s in told["resets"])
    return Bequest(**told | {name: tuple(told[name]) for name in ("placing_s", "loading_s")})


def _lasting(state: RunState) -> tuple[Any, ...]:
    """What does not change by itself; how long workers take is told along with it."""
    care: Care = state.care
    series = (state.restarts, state.without_progress, _is_over(state))
    doubt = (state.disputed_from, state.restore is not None and state.restore.needed_for)
    of_nodes = (care.quarantine, care.unhealthy, care.resets, care.node_incidents)
    return (*of_nodes, care.budgets, care.recovery_s, care.hold, *series, *doubt)


def _is_over(state: RunState) -> bool:
    """It has ended, and not for a while: a run that was told to exit goes on elsewhere."""
    return state.outcome is not None and state.outcome.ending is not Ending.EXITED
