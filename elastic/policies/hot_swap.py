"""Pure. Hot swap first: a spare takes the place of whatever failed, and a node that failed is kept out."""

from dataclasses import dataclass, field

from elastic.control.remediation import ClusterView, Kind, Policy, Remediation
from elastic.control.values import Incident, IncidentClass
from elastic.policies.judging import NODE_CLASSES, given_up
from elastic.policies.ladder import Ladder


@dataclass(frozen=True, slots=True)
class HotSwapFirst:
    """With a spare ready: swap; where the node is to blame, it goes to quarantine too, for good once that did not help.

    Attributes:
        otherwise: asked while no spare is ready, and about everything else.
    """

    otherwise: Policy = field(default_factory=Ladder)

    def __call__(self, incident: Incident, view: ClusterView) -> Remediation:
        enough = given_up(view)
        if enough is not None:
            return enough
        if not incident.culprits or not view.spares or incident.kind is IncidentClass.STRAGGLER:
            return self.otherwise(incident, view)
        who = f"{len(incident.culprits)} lost, {view.spares} spare ready"
        if incident.kind not in NODE_CLASSES:
            return Remediation(kind=Kind.SWAP, reason=who)
        if view.has_budget(incident.kind):
            return Remediation(kind=Kind.QUARANTINE, reason=f"{who}, and the node may be bad")
        return Remediation(kind=Kind.REPLACE_NODE, reason=f"{who}, and nodes fail too often: {incident.kind.value}")
