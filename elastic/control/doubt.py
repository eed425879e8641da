"""Pure. Nodes of which nobody should join now: those that lose one worker after another, or may be gone themselves."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from elastic.control.care import HARMLESS
from elastic.control.state import OVER, RunState
from elastic.control.turn import Turn
from elastic.control.values import Incident


def is_doubtful(turn: Turn, node: str) -> bool:
    """A node of which nobody should join now."""
    return is_flapping(turn, node) or _may_be_lost(turn, node)


def deserted_by(turn: Turn, culprits: Iterable[str], staying: AbstractSet[str]) -> set[str]:
    """Nodes of culprits where none of those is who stay: they may be lost with all that is there."""
    nodes = {turn.worker(name).node for name in culprits}
    return {node for node in nodes if staying.isdisjoint(turn.tally.nodes.get(node, ()))}


def _may_be_lost(turn: Turn, node: str) -> bool:
    """Its last word is older than the incident in which it lost a member: the others on it may be gone as well."""
    heard_s = turn.state.heard_s.get(node)
    last = turn.state.incidents[-1] if turn.state.incidents else None
    if heard_s is None or last is None or heard_s > _opened_s(turn.state, last):
        return False
    return any(turn.worker(name).node == node for name in last.culprits)


def _opened_s(state: RunState, incident: Incident) -> float:
    """When it opened, by a clock that has stood still while nobody looked, and never jumped; as `heard_s` is told."""
    return incident.opened_at_s + state.absent_s - incident.absent_s


def is_flapping(turn: Turn, node: str) -> bool:
    """It has lost so many workers so soon after they had joined that the next one would not be worth its join."""
    until_s = flapping_until_s(turn.state, node)
    return until_s is not None and turn.now_s < until_s


def flapping_until_s(state: RunState, node: str) -> float | None:
    """When a node that lost worker after worker may get one again; None: it is none of those."""
    limits = state.settings.limits
    if len(state.incidents) < limits.flap_losses:
        return None
    losses_s = [
        _opened_s(state, incident)
        for incident in state.incidents
        if incident.kind not in HARMLESS
        and any(_was_lost_too_soon(state, incident, name, node) for name in incident.culprits)
    ]
    recent = losses_s[-limits.flap_losses :]
    is_dense = len(recent) == limits.flap_losses and recent[-1] - recent[0] <= limits.flap_window_s
    return recent[-1] + limits.flap_cooldown_s if is_dense else None


def _was_lost_too_soon(state: RunState, incident: Incident, name: str, node: str) -> bool:
    worker = state.workers[name]
    is_lost = worker.node == node and worker.standing in OVER
    return is_lost and worker.lived_s < state.settings.limits.flap_cost_s * incident.replicas_before
