"""Pure. Small questions that several policies ask."""

from elastic.control.remediation import ClusterView, Kind, Remediation
from elastic.control.values import Incident, IncidentClass
from elastic.control.xid import Severity, is_worse

_NODE_CLASSES = frozenset({IncidentClass.NODE_LOST, IncidentClass.HOST_SILENT, IncidentClass.SILENT_CORRUPTION})


def gpu_needs(incident: Incident) -> Severity | None:
    """What a GPU fault asks for; one of unknown class is taken for what a reset mends. None: it is no GPU fault."""
    if incident.kind is not IncidentClass.GPU_FAULT:
        return None
    return Severity.RESET_NEEDED if incident.severity is None else incident.severity


def gpu_is_broken(incident: Incident) -> bool:
    """The GPU can not be used as it is, by whomever; after a fault that ended only what ran on it, it can."""
    needs = gpu_needs(incident)
    return needs is not None and is_worse(needs, Severity.RESTARTABLE)


def node_is_to_blame(incident: Incident) -> bool:
    """Rather than what ran on it."""
    return incident.kind in _NODE_CLASSES or gpu_is_broken(incident)


def given_up(view: ClusterView) -> Remediation | None:
    """The end of a run that fails again and again without progress; None while it may go on."""
    if view.poison is not None:
        knobs = "have the step left out with Ladder(poison=Kind.LEAVE_OUT), or raise Limits.poison_deaths"
        return Remediation(kind=Kind.GIVE_UP, reason=f"{view.poison}: look at its samples, {knobs}")
    count, limit = view.incidents_without_progress, view.allowed_without_progress
    if count <= limit:
        return None
    knob = f"Limits.max_in_job_restarts={limit}"
    why = f"{count} incidents without a committed step between them, more than {knob}"
    return Remediation(kind=Kind.GIVE_UP, reason=why)


def can_spare(workers: tuple[str, ...], view: ClusterView) -> bool:
    """Whether spares elsewhere can take the place of all that is on the nodes of these workers.

    Who else is there may be a spare itself, so it counts twice; a worker counts as a replica.
    """
    nodes = {view.nodes[name] for name in workers if name in view.nodes}
    there = sum(node in nodes for node in view.nodes.values())
    bystanders = max(0, there - len(workers))
    return bool(nodes) and there + bystanders <= view.spares and there < view.survivors


def can_do_without(workers: tuple[str, ...], view: ClusterView) -> bool:
    """Whether enough is left when the nodes of these workers, which are lost, are kept out with all that is on them.

    A worker counts as a replica, and whoever else is there as a survivor.
    """
    nodes = {view.nodes[name] for name in workers if name in view.nodes}
    bystanders = sum(node in nodes for name, node in view.nodes.items() if name not in workers)
    return bool(nodes) and view.survivors - bystanders >= max(1, view.minimum)
