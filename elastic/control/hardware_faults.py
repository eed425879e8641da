"""Pure. What follows from a finding on a host: nothing, evidence, a worker replaced, a node that leaves."""

from math import inf

from elastic.control import events as ev
from elastic.control.departing import UNHEALTHY, node_noticed
from elastic.control.forming import freeze, harden
from elastic.control.hardware import FindingKind
from elastic.control.state import OVER, Phase, Standing
from elastic.control.turn import Turn
from elastic.control.values import IncidentClass
from elastic.control.xid import Severity, worst

_HARMED = (Severity.RESTARTABLE, Severity.RESET_NEEDED, Severity.NODE_MUST_GO)


def hardware_found(turn: Turn, event: ev.HardwareFinding) -> None:
    """A worker on a GPU that failed is fenced at once: what it computes, or raises, is not the user's doing."""
    harmed = [name for name in event.workers if name in turn.state.workers]
    if event.severity is not Severity.INFORMATIONAL:
        for name in harmed:
            known = turn.worker(name).severity
            turn.set_worker(name, finding=event.detail, severity=worst(known, event.severity))
    if event.severity in _HARMED:
        _replace(turn, harmed, event.detail)
    _explain(turn, harmed, event)
    if event.severity is Severity.NODE_MUST_GO:
        is_check = event.kind is FindingKind.HEALTH
        if is_check:  # the next one may be passed
            until_s = turn.now_s + turn.settings.limits.quarantine_s
            turn.change(care=turn.state.care.failed_check(event.node, until_s))
        else:  # whoever is blamed, and if nobody is
            turn.change(care=turn.state.care.quarantined(event.node, inf))
            turn.set_workers(list(turn.tally.nodes.get(event.node, ())), severity=event.severity)
        node_noticed(turn, ev.NodeNotice(node=event.node, reason=f"{UNHEALTHY if is_check else ''}{event.detail}"))
    elif event.kind is FindingKind.HEALTH:
        _readmit(turn, event.node)


def _replace(turn: Turn, names: list[str], evidence: str) -> None:
    """Members are culprits of an incident; others are only not to be taken in."""
    alive = [name for name in names if turn.worker(name).standing not in OVER and not turn.worker(name).fenced]
    members = [name for name in alive if turn.is_member(name) and turn.worker(name).standing is not Standing.FINISHED]
    for name in members:
        turn.signal(IncidentClass.GPU_FAULT, evidence, culprit=name)
    for name in alive:
        turn.fence(name, evidence)
    if members and turn.state.phase in (Phase.RUNNING, Phase.FORMING):
        freeze(turn, evidence)
    elif members and turn.state.phase is Phase.FREEZING:
        harden(turn, evidence)


def _explain(turn: Turn, names: list[str], event: ev.HardwareFinding) -> None:
    """Evidence of the incident that they have caused: a process may end before the log says why."""
    for name in names:
        incident = turn.open_incident()
        if incident is None or name not in incident.culprits or event.severity is Severity.INFORMATIONAL:
            continue
        if worst(incident.severity, event.severity) is not incident.severity or event.detail not in incident.evidence:
            kind = IncidentClass.GPU_FAULT if event.severity in _HARMED else incident.kind
            turn.signal(kind, event.detail, culprit=name)


def _readmit(turn: Turn, node: str) -> None:
    """A node that failed its check passes it now; it may have to go for another reason."""
    if node in turn.state.care.unhealthy:
        turn.change(care=turn.state.care.passed_check(node))
    if turn.state.leaving.get(node, "").startswith(UNHEALTHY):
        turn.change(leaving={name: why for name, why in turn.state.leaving.items() if name != node})
        turn.replenish(f"node {node} passes its health check")
