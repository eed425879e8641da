"""Pure. Shrink first: go on with those who are left, and take others in between two steps."""

from dataclasses import dataclass, field

from elastic.control.remediation import ClusterView, Kind, Policy, Remediation
from elastic.control.values import Incident, IncidentClass
from elastic.policies.judging import given_up, gpu_is_broken
from elastic.policies.ladder import Ladder


@dataclass(frozen=True, slots=True)
class ShrinkFirst:
    """Who failed, or is slow for long, is done without as long as the minimum is there; nobody is waited for.

    Attributes:
        otherwise: asked below the minimum, where nobody was lost, and about GPUs that can not be used as they are,
            wrong bits, and a micro-batch that ends whoever computes it.
    """

    otherwise: Policy = field(default_factory=lambda: Ladder(swap=False))

    def __call__(self, incident: Incident, view: ClusterView) -> Remediation:
        if view.poison is not None:
            return self.otherwise(incident, view)
        enough = given_up(view)
        if enough is not None:
            return enough
        is_straggler = incident.kind is IncidentClass.STRAGGLER
        left = view.survivors - (len(incident.culprits) if is_straggler else 0)  # a straggler is still among them
        is_hardware = gpu_is_broken(incident) or incident.kind is IncidentClass.SILENT_CORRUPTION
        if not incident.culprits or left < view.minimum or is_hardware:
            return self.otherwise(incident, view)
        return Remediation(kind=Kind.SHRINK, reason=f"{left} are enough, the minimum is {view.minimum}")
