"""Pure. A hold: all have stopped at the end of a step and keep their state, until somebody resumes them or time is up.

A policy may want one for an incident; anybody who has the run's token may want one at any time.
"""

from elastic.control import events as ev
from elastic.control.care import Hold
from elastic.control.forming import try_form
from elastic.control.state import Phase, RunState
from elastic.control.turn import Turn


def why_no_pause(state: RunState, wish: ev.PauseAsked) -> str:
    """Why this can not be done, empty if it can."""
    run = state.settings.run
    if wish.for_s is not None and wish.for_s <= 0:
        return f"for_s={wish.for_s:g} must be positive"
    if state.phase in (Phase.FINISHING, Phase.ENDED):
        return f"the run {run} has taken its last step"
    if state.care.leaving is not None:
        return f"the run {run} saves its state, and ends then"
    return f"the run {run} is paused already" if state.care.hold is not None else ""


def pause_asked(turn: Turn, event: ev.PauseAsked) -> None:
    if not why_no_pause(turn.state, event):
        for_s = turn.settings.limits.hold_timeout_s if event.for_s is None else event.for_s
        turn.tend(hold=Hold(reason="paused: somebody has asked for it", until_s=turn.now_s + for_s))
        consider_hold(turn)


def consider_hold(turn: Turn) -> None:
    """Have all stop at the end of a step; nothing is formed then."""
    hold = turn.state.care.hold
    if hold is not None and turn.state.phase is Phase.RUNNING:
        turn.pause(hold.reason)


def resume_asked(turn: Turn, event: ev.ResumeAsked) -> None:
    if turn.state.care.hold is not None:
        resume(turn)


def expire_hold(turn: Turn) -> None:
    hold = turn.state.care.hold
    if hold is not None and turn.now_s >= hold.until_s:
        resume(turn)


def resume(turn: Turn) -> None:
    """A pause is over; the time that survivors wait for replacements begins anew."""
    turn.tend(hold=None)
    if turn.state.phase is Phase.WAITING:
        turn.enter(Phase.WAITING)
        try_form(turn)
