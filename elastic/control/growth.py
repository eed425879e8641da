"""Pure. Growth: when those who wait at the door are let in, and why some wait longer.

Each growth stops all for a moment. So joiners that come within a short time are let in together, and a node on which
one worker after another is lost does not get its next one in before it has shown some patience.
"""

from elastic.control.turn import Turn
from elastic.control.values import IncidentClass

_HARMLESS = frozenset({IncidentClass.STRAGGLER, IncidentClass.DEPARTURE, IncidentClass.COLLECTIVE_BROKEN})


def consider_growth(turn: Turn) -> None:
    """Ask the leader to have all stop at the end of a step, if a joiner is ready and there is room."""
    state, limits = turn.state, turn.settings.limits
    if state.view is None or state.pause_asked or state.replicas >= turn.settings.scaling.bounds[1]:
        return
    ready = [
        worker.name
        for gang in turn.joiners
        if all(turn.attended_s - worker.since_s >= limits.grow_after_s for worker in gang)
        and not any(is_flapping(turn, worker.node) for worker in gang)
        for worker in gang
    ]
    if ready:
        turn.pause(f"{', '.join(ready)} can join")


def is_flapping(turn: Turn, node: str) -> bool:
    """It has lost so many workers in so little time that the next one would probably follow."""
    limits = turn.settings.limits
    if len(turn.state.incidents) < limits.flap_losses:
        return False
    losses_s = [
        incident.opened_at_s
        for incident in turn.state.incidents
        if incident.kind not in _HARMLESS and any(turn.worker(name).node == node for name in incident.culprits)
    ]
    recent = losses_s[-limits.flap_losses :]
    is_dense = len(recent) == limits.flap_losses and recent[-1] - recent[0] <= limits.flap_window_s
    return is_dense and turn.now_s - recent[-1] < limits.flap_cooldown_s
