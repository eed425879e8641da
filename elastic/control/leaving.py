"""Pure. Leaving: a worker that was told to go, and does not, is killed, so that its slot comes free."""

from elastic.control import events as ev
from elastic.control.commands import Fence
from elastic.control.state import Phase, Standing
from elastic.control.turn import Turn

HAS_LEFT = (ev.TrainFnReturned, ev.TrainFnRaised, ev.WorkerDead, ev.WorkerDeparted)


def note_left(turn: Turn, worker: str) -> None:
    """Whatever it was told, nothing of it is left to wait for."""
    if turn.worker(worker).is_dismissed and turn.state.phase is not Phase.ENDED:
        turn.set_worker(worker, is_dismissed=False)


def expire_leaving(turn: Turn) -> None:
    """Who has been told to leave for so long has hung on the way out."""
    limit_s = turn.settings.limits.pod_termination_threshold_s
    for worker in turn.many(turn.tally.by_start(turn.tally.leaving)):
        if worker.standing is Standing.GONE and turn.attended_s - worker.since_s > limit_s:
            turn.set_worker(worker.name, is_dismissed=False)
            why = f"{worker.name} was told to leave, and has not within Limits.pod_termination_threshold_s={limit_s}"
            turn.do(Fence(worker=worker.name, reason=why))
