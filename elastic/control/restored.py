"""Pure. What follows from the answers to a restore: of the tiers, and of workers at the door."""

from elastic.control import events as ev
from elastic.control.forming import start_if_ready, try_form
from elastic.control.growth import consider_growth
from elastic.control.restoring import come_late, consider_restore, take_answer
from elastic.control.state import IN_STEP, Phase, Standing, WorkerRecord
from elastic.control.taking_over import dismiss_surplus
from elastic.control.turn import Turn
from elastic.control.values import CommitId


def found(turn: Turn, event: ev.RestoreFound) -> None:
    if take_answer(turn, event):
        go_on(turn)


def restored(turn: Turn, event: ev.Restored) -> None:
    if not _is_expected(turn.worker(event.worker), event.commit):
        return
    is_back = turn.worker(event.worker).standing is Standing.SUSPECT  # and may have been replaced meanwhile
    turn.set_worker(event.worker, doubted=False)
    if _is_wanted(turn, event.commit):
        turn.set_worker(
            event.worker, standing=Standing.PARKED, answer=event.commit, prepared=None, healed=True, **IN_STEP
        )
    else:
        come_late(turn, event.worker)
    if is_back:
        dismiss_surplus(turn)
    go_on(turn)


def refused(turn: Turn, event: ev.RestoreRefused) -> None:
    if not _is_expected(turn.worker(event.worker), event.commit):
        return
    is_back = turn.worker(event.worker).standing is Standing.SUSPECT  # and may have been replaced meanwhile
    turn.set_worker(event.worker, doubted=False)
    if _is_wanted(turn, event.commit):  # what it was prepared for is dropped when it was asked
        turn.set_worker(event.worker, standing=Standing.PARKED, refused=True, kept=event.kept, prepared=None)
    else:
        come_late(turn, event.worker, event.kept)
    if is_back:
        dismiss_surplus(turn)
    go_on(turn)


def _is_expected(worker: WorkerRecord, commit: CommitId) -> bool:
    is_asked = worker.restoring is not None and worker.restoring.same_state(commit)
    is_back = worker.standing is Standing.SUSPECT and not worker.fenced  # contact was lost, and it tells of itself
    return is_asked and worker.is_restoring and (is_back or worker.standing in (Standing.PARKED, Standing.LOADING))


def _is_wanted(turn: Turn, commit: CommitId) -> bool:
    restore = turn.state.restore
    return restore is not None and restore.commit is not None and restore.commit.same_state(commit)


def go_on(turn: Turn) -> None:
    """Whoever was waited for at the door has said something."""
    if turn.state.phase is Phase.STARTING:
        start_if_ready(turn)
    elif turn.state.phase is Phase.WAITING:
        try_form(turn)
    elif turn.state.phase is Phase.RUNNING:
        consider_restore(turn)
        consider_growth(turn)
