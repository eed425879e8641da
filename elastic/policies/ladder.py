"""Pure. The default ladder: continue in place, swap in a spare, shrink, wait, give up."""

from dataclasses import dataclass

from elastic.control.remediation import ClusterView, Kind, Remediation
from elastic.control.values import Incident


@dataclass(frozen=True, slots=True)
class Ladder:
    """Take the first rung that holds.

    Attributes:
        swap: use a parked spare at once; False shrinks first and lets it join at the end of a later step.
    """

    swap: bool = True

    def __call__(self, incident: Incident, view: ClusterView) -> Remediation:
        if view.incidents_without_progress > view.allowed_without_progress:
            return Remediation(
                kind=Kind.GIVE_UP,
                reason=f"{view.incidents_without_progress} incidents without a committed step between them, more than "
                f"Limits.incidents_without_progress={view.allowed_without_progress}",
            )
        lost = len(incident.culprits)
        if not lost:
            return Remediation(kind=Kind.CONTINUE, reason="nobody was lost")
        if view.spares and (self.swap or view.survivors < view.minimum):
            return Remediation(kind=Kind.SWAP, reason=f"{lost} lost, {view.spares} spare ready")
        if view.survivors >= view.minimum:
            return Remediation(kind=Kind.SHRINK, reason=f"{lost} lost, no spare, {view.survivors} survive")
        return Remediation(kind=Kind.WAIT, reason=f"{view.survivors} survive, fewer than the minimum of {view.minimum}")
