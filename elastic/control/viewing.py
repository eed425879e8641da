"""Pure. What a policy is shown of the state: counts, times, budgets; nothing that it could change."""

from elastic.control.care import middle
from elastic.control.remediation import ClusterView
from elastic.control.speed import by_node
from elastic.control.state import OVER
from elastic.control.turn import Turn
from elastic.control.values import Incident


def cluster_view(turn: Turn, incident: Incident, survivors: int, spares: int) -> ClusterView:
    """What is left, as far as it is known now; counts of replicas."""
    state, limits, care = turn.state, turn.settings.limits, turn.state.care
    low, high = turn.settings.scaling.bounds
    members = state.members
    lost = {*incident.culprits, *incident.suspects}
    named = [worker for worker in state.workers.values() if worker.standing not in OVER or worker.name in lost]
    size, refill_s = limits.budget_incidents, limits.budget_refill_s
    return ClusterView(
        survivors=survivors,
        spares=spares,
        minimum=low,
        maximum=high,
        incidents_without_progress=state.without_progress,
        allowed_without_progress=limits.max_in_job_restarts,
        slowness={member.name: member.slowness for member in members},
        node_slowness=by_node((member.node, member.slowness) for member in members),
        width=state.width,
        nodes={worker.name: worker.node for worker in named if worker.node},
        budget_left={kind: one.level(turn.now_s, size, refill_s) for kind, one in care.budgets.items()},
        node_incidents=care.node_incidents,
        quarantined={node: until_s - turn.now_s for node, until_s in care.quarantine.items()},
        recovery_s={kind: took for kind, seconds in care.recovery_s.items() if (took := middle(seconds)) is not None},
        loading_s=middle(care.loading_s),
        node_return_s=middle(care.placing_s),
        step_s=middle(state.steps_s),
        step=max(state.published, *state.published_ahead, -1),
        tier_steps=care.tier_steps,
        nodes_missing=care.nodes_missing,
    )
