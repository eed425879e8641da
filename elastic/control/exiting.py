"""Pure. Save and exit: all stop at the end of a step, its state goes down to the memory of the nodes, the run ends.

A step is staged where all stop for it, and sealed once the generation that resumes from it trains. So one more
generation is formed, and the run ends when the step is said to be whole in memory, or when the time is over.
"""

from dataclasses import replace

from elastic.control.care import Leaving
from elastic.control.events import ExitAsked
from elastic.control.outcome import Ending
from elastic.control.state import Phase, Standing
from elastic.control.turn import Turn
from elastic.control.values import CommitId

SAVED = ("local", "replicated", "durable")


def begin_exit(turn: Turn, reason: str) -> None:
    if turn.state.care.leaving is None:
        until_s = turn.now_s + turn.settings.limits.exit_timeout_s
        turn.tend(leaving=Leaving(reason=reason, until_s=until_s))


def exit_asked(turn: Turn, event: ExitAsked) -> None:
    """At once, not with the next tick: whoever asks may have seconds."""
    begin_exit(turn, event.reason)
    if turn.state.phase is Phase.STARTING:
        _end(turn, "it had not begun")
    else:
        see_off(turn)


def exit_resumes(turn: Turn, resume: CommitId) -> None:
    """A generation is formed: what it resumes from was staged if all had stopped for it."""
    leaving = turn.state.care.leaving
    if leaving is not None:
        turn.tend(leaving=replace(leaving, step=resume.step if turn.state.planned else None))


def exits_at_once(turn: Turn) -> bool:
    """All have stopped, and there is nothing that could be saved: ends the run."""
    leaving = turn.state.care.leaving
    if leaving is None or turn.settings.checkpoint is not None:
        return False
    _end(turn, "nothing of it is kept, since fit was given no checkpoint=...")
    return True


def see_off(turn: Turn) -> None:
    """Have all stop, and end the run when the step at which they did is saved."""
    leaving = turn.state.care.leaving
    if leaving is None or turn.state.phase not in (Phase.RUNNING, Phase.WAITING):
        return
    saved = _saved(turn)
    if _is_at_rest(turn) and turn.settings.checkpoint is None:
        exits_at_once(turn)
    elif (leaving.step is not None and saved >= leaving.step) or (_is_at_rest(turn) and saved >= _held(turn)):
        nothing = "there was nothing to save yet" if turn.state.restore is None else "its checkpoints are as they were"
        _end(turn, f"step {saved} is saved" if saved >= 0 else nothing)
    elif leaving.step is None and turn.state.phase is Phase.RUNNING:
        turn.pause(leaving.reason)


def expire_exit(turn: Turn) -> None:
    """Whoever had the run exit waits for no door and no lease: in whatever phase, its time is over then."""
    leaving = turn.state.care.leaving
    if leaving is None or turn.state.phase is Phase.ENDED or turn.now_s <= leaving.until_s:
        return
    saved = _saved(turn)
    within = f"Limits.exit_timeout_s={turn.settings.limits.exit_timeout_s}"
    kept = f"step {saved} is the newest one saved" if saved >= 0 else "no step is saved"
    _end(turn, f"not all of it could be saved within {within}: {kept}")


def _is_at_rest(turn: Turn) -> bool:
    """The run waits, and saves what it holds: no generation is formed any more for which all would stop.

    Not while contact with somebody who holds the state is lost, who may be heard again.
    """
    leaving, suspects = turn.state.care.leaving, turn.tally.standings[Standing.SUSPECT]
    is_waiting = turn.state.phase is Phase.WAITING and leaving is not None and leaving.step is None
    return is_waiting and not any(turn.is_member(name) for name in suspects)


def _held(turn: Turn) -> int:
    """The newest step that live workers hold, -1 if they hold none."""
    state = turn.tally.holders.resumable()
    return -1 if state is None else state[0]


def _end(turn: Turn, how: str) -> None:
    reason = turn.state.care.leaving.reason if turn.state.care.leaving is not None else ""
    told = f"the run exited before its last step ({reason}); {how}"
    turn.fail(Ending.EXITED, told, step=_saved(turn))


def _saved(turn: Turn) -> int:
    """The newest step that is whole in some tier, -1 if none is."""
    return max(turn.state.care.tier_steps.get(rung, -1) for rung in SAVED)
