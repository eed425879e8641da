"""Pure. The default ladder: continue in place, swap in a spare, shrink, wait, give up."""

from dataclasses import dataclass

from elastic.control.remediation import ClusterView, Kind, Remediation
from elastic.control.values import Incident, IncidentClass


@dataclass(frozen=True, slots=True)
class Ladder:
    """Take the first rung that holds.

    Attributes:
        straggler: what is done about a worker that is slow for long: CONTINUE tells of it, REDEAL deals micro-batches
            by speed, SWAP puts a parked spare in its place (CONTINUE while there is none).
        swap: use a parked spare at once; False shrinks first and lets it join at the end of a later step.
    """

    swap: bool = True
    straggler: Kind = Kind.CONTINUE

    def __call__(self, incident: Incident, view: ClusterView) -> Remediation:
        if view.incidents_without_progress > view.allowed_without_progress:
            return Remediation(
                kind=Kind.GIVE_UP,
                reason=f"{view.incidents_without_progress} incidents without a committed step between them, more than "
                f"Limits.max_in_job_restarts={view.allowed_without_progress}",
            )
        if incident.kind is IncidentClass.STRAGGLER:
            return self._about_straggler(incident, view)
        lost = len(incident.culprits)
        if not lost:
            return Remediation(kind=Kind.CONTINUE, reason="nobody was lost")
        if view.spares and (self.swap or view.survivors < view.minimum):
            return Remediation(kind=Kind.SWAP, reason=f"{lost} lost, {view.spares} spare ready")
        if view.survivors >= view.minimum:
            return Remediation(kind=Kind.SHRINK, reason=f"{lost} lost, no spare, {view.survivors} survive")
        return Remediation(kind=Kind.WAIT, reason=f"{view.survivors} survive, fewer than the minimum of {view.minimum}")

    def _about_straggler(self, incident: Incident, view: ClusterView) -> Remediation:
        ratio = max((view.slowness.get(name, 1.0) for name in incident.culprits), default=1.0)
        slow = f"{', '.join(incident.culprits)} takes {ratio:.2f} times the group's median"
        if self.straggler is Kind.SWAP and not view.spares:
            return Remediation(kind=Kind.CONTINUE, reason=f"{slow}, and no spare is ready")
        return Remediation(kind=self.straggler, reason=slow)
