"""Pure. Hot swap first: a spare takes the place of whatever failed, and a node that failed is kept out."""

from dataclasses import dataclass, field

from elastic.control.remediation import ClusterView, Kind, Policy, Remediation
from elastic.control.values import Incident, IncidentClass
from elastic.policies.judging import given_up, gpu_is_broken, node_is_to_blame
from elastic.policies.ladder import Ladder


@dataclass(frozen=True, slots=True)
class HotSwapFirst:
    """With a spare ready: swap; where the node is to blame, it goes to quarantine too, for good once that did not help.

    Attributes:
        otherwise: asked while no spare is ready, about GPUs that can not be used as they are (spares come in while they
            are reset, too), about a micro-batch that ends whoever computes it, and about everything else.
    """

    otherwise: Policy = field(default_factory=Ladder)

    def __call__(self, incident: Incident, view: ClusterView) -> Remediation:
        if view.poison is not None:
            return self.otherwise(incident, view)
        enough = given_up(view)
        if enough is not None:
            return enough
        is_loss = bool(incident.culprits) and incident.kind is not IncidentClass.STRAGGLER
        if not is_loss or not view.spares or gpu_is_broken(incident):
            return self.otherwise(incident, view)
        who = f"{len(incident.culprits)} lost, {view.spares} spare ready"
        if not node_is_to_blame(incident):
            return Remediation(kind=Kind.SWAP, reason=who)
        if view.has_budget(incident.kind):
            return Remediation(kind=Kind.QUARANTINE, reason=f"{who}, and the node may be bad")
        return Remediation(kind=Kind.REPLACE_NODE, reason=f"{who}, and nodes fail too often: {incident.kind.value}")
