"""Pure. The lines of a run's journal: what happened, as plain data with its time; `journal.py` reads them.

Each has `t`, seconds of the driver's wall clock, and one of these names, which tells the kind of the line: `life`,
`event`, `moment`, `phase`, `command`, `checkpoint`. What is no finite number, such as the loss of a run that has gone
astray, is null.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from elastic.control import events as ev
from elastic.control.bequest import is_to_be_told, left_by
from elastic.control.commands import EndRun
from elastic.control.moments import incident_moments
from elastic.control.outcome import Ending, Outcome
from elastic.control.plain import plain
from elastic.control.state import Phase, RunState
from elastic.knobs import without_secrets

Line = dict[str, Any]

# Time, and that hosts live, is told many times a second; rungs by `checkpoint`, and logs have files of their own.
_LEFT_OUT = ev.Tick | ev.HostBeat | ev.HostsHeard | ev.RungReached | ev.Logged


def line_of(role: str, at_s: float, value: Any) -> Line:
    """What such a value tells, under this role."""
    return {"t": round(at_s, 6), role: type(value).__name__, **plain(value)}


def happened(before: RunState | None, state: RunState, events: Sequence[tuple[float, ev.Event]]) -> Iterator[Line]:
    """What a turn of the controller has taken in, and what became of it.

    Args:
        before: the state before the events; None: it is the first turn of this life.
        events: with their times, without those that are written already.
    """
    at_s = round(state.seen_s or 0.0, 6)
    if before is None:
        yield {"t": at_s, "life": "Begun", "settings": without_secrets(plain(state.settings))}
    for event_s, event in events:
        if not isinstance(event, _LEFT_OUT):
            yield line_of("event", event_s, event)
    if before is not None:
        for moment in incident_moments(before, state):
            yield line_of("moment", at_s, moment)
        if is_to_be_told(before, state):
            yield line_of("life", at_s, left_by(state))
    if before is None or _stand(before) != _stand(state):
        phase, waits_for, planned = _stand(state)
        what = {"generation": state.generation, "replicas": state.replicas, "planned": planned, "waits_for": waits_for}
        yield {"t": at_s, "phase": phase.value, **what}


def broken_off(state: RunState | None, at_s: float, error: BaseException) -> Iterator[Line]:
    """The end of a life whose driver was interrupted, or has failed: it leaves, and its workers with it.

    Args:
        state: the newest; a run that it says is over has its end in the journal.
    """
    if state is not None and state.outcome is not None:
        return
    why = f"{type(error).__name__}: {error}".rstrip(": ")
    ending = Ending.DRIVER_FAILED if isinstance(error, Exception) else Ending.STOPPED
    outcome = Outcome(ending=ending, message=why)
    if state is not None and ending is Ending.STOPPED:  # a pause, and counts, end with a run that somebody ends
        yield line_of("life", at_s, left_by(replace(state, outcome=outcome)))
    yield line_of("command", at_s, EndRun(outcome=outcome, reason=why))
    place = (0, 0) if state is None else (state.generation, state.replicas)
    stand = {"phase": Phase.ENDED.value, "generation": place[0], "replicas": place[1]}
    yield {"t": round(at_s, 6), **stand, "planned": False, "waits_for": ""}


def _stand(state: RunState) -> tuple[Phase, str, bool]:
    """The phase; where a run waits, what for: "restore", "hold" or "workers"; whether a stop was planned."""
    if state.phase is not Phase.WAITING:
        return state.phase, "", state.phase is Phase.FREEZING and state.planned
    if state.restore is not None:
        return state.phase, "restore", False
    return state.phase, "hold" if state.care.hold is not None else "workers", False
