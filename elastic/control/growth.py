"""Pure. Growth: when those who wait at the door are let in, and why some wait longer.

Each growth stops all for a moment. So joiners that come within a short time are let in together, and a node on which
one worker after another is lost does not get its next one in before it has shown some patience.
"""

from elastic.control.ahead import pause_connected
from elastic.control.doubt import is_doubtful
from elastic.control.state import Gang, Standing
from elastic.control.turn import Turn


def consider_growth(turn: Turn) -> None:
    """Ask the leader to have all stop at the end of a step, if a joiner is ready and there is room."""
    state = turn.state
    if state.view is None or state.pause_asked or state.replicas >= turn.settings.scaling.bounds[1]:
        return
    ready = [
        worker.name for gang in turn.joiners if state.care.grow_now or not _is_patient(turn, gang) for worker in gang
    ]
    if ready:
        pause_connected(turn, f"{', '.join(ready)} can join")


def _is_patient(turn: Turn, gang: Gang) -> bool:
    """Others are on their way, or it failed to join a moment ago, or its node may lose it soon."""
    others_load = bool(turn.tally.standings[Standing.LOADING])
    new = [worker for worker in gang if turn.attended_s - worker.since_s < turn.settings.limits.grow_after_s]
    return any(others_load or worker.tries for worker in new) or any(is_doubtful(turn, worker.node) for worker in gang)
