"""Pure. Checkpoint and exit on notice: for runs that are started again elsewhere by somebody else."""

from dataclasses import dataclass, field

from elastic.control.remediation import ClusterView, Kind, Policy, Remediation
from elastic.control.values import Incident, IncidentClass
from elastic.policies.ladder import Ladder


@dataclass(frozen=True, slots=True)
class ExitOnNotice:
    """The first notice of a loss ends the run: all stop after a step, it is saved, and `fit` raises `ExitedError`.

    Attributes:
        otherwise: asked about everything else.
    """

    otherwise: Policy = field(default_factory=Ladder)

    def __call__(self, incident: Incident, view: ClusterView) -> Remediation:
        if incident.kind is not IncidentClass.DEPARTURE:
            return self.otherwise(incident, view)
        told = incident.evidence[-1] if incident.evidence else "a worker will be lost"
        return Remediation(kind=Kind.EXIT, reason=told)
