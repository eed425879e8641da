"""Pure. A wish to tune: refused with a sentence, or taken in by all members at the end of the same step."""

from elastic.control import events as ev
from elastic.control.ahead import pause_connected
from elastic.control.state import Phase, RunState
from elastic.control.tuning import NOT_TUNED, Tuning
from elastic.control.turn import Turn
from elastic.control.values import StepReport
from elastic.errors import ElasticError


def refusal(state: RunState, asked: Tuning) -> str:
    """Why this can not be done, empty if it can."""
    run = state.settings.run
    if state.phase in (Phase.FINISHING, Phase.ENDED):
        return f"the run {run} has taken its last step: there is nothing left to tune"
    if asked == NOT_TUNED:
        return "name what to change: lr_factor, batch_size, micro_batch_size or bucket_bytes"
    if state.plan is None:
        return f"no worker of the run {run} has come to its first step yet: tune it when it trains"
    if state.tuned is None:
        return f"no step of the run {run} is stable yet since its state was restored: tune it when one is"
    try:
        state.plan.tuned(asked.over(state.tuning.over(state.tuned)))
    except ElasticError as error:
        return f"{asked} does not fit the run {run}: {error}"
    return ""


def tune_asked(turn: Turn, event: ev.TuneAsked) -> None:
    """Kept for every generation to come; the one that trains stops for it, one that is replaced anyway need not."""
    if not refusal(turn.state, event.tuning):
        turn.change(tuning=event.tuning.over(turn.state.tuning))
        consider_tuning(turn)


def consider_tuning(turn: Turn) -> None:
    """Have all stop at the end of a step if they train at other settings than are asked for."""
    state = turn.state
    if state.phase is Phase.RUNNING and state.view is not None and state.view.tuning != state.tuning:
        pause_connected(turn, f"tuned: {state.tuning}")


def note_tuning(turn: Turn, report: StepReport) -> None:
    """What stable steps were computed at; a report that comes late tells nothing new."""
    if report.tuning != turn.state.tuned and report.commit.step >= turn.state.tuned_from:
        turn.change(tuned=report.tuning, tuned_from=report.commit.step)
