"""Pure. The default ladder: the cheapest thing that helps comes first.

continue in place, restart the worker, reset the GPU, swap in a spare, shrink, restart from a tier, wait, give up

Hardware that computes wrongly says nothing of it, so its node is kept out at once.
"""

from dataclasses import dataclass

from elastic.control.remediation import ClusterView, Kind, Remediation
from elastic.control.values import Incident, IncidentClass
from elastic.control.xid import Severity
from elastic.policies.judging import can_do_without, can_spare, given_up, gpu_needs


@dataclass(frozen=True, slots=True)
class Ladder:
    """Take the first rung that holds.

    Attributes:
        swap: use a parked spare at once; False shrinks first and lets it join at the end of a later step.
        straggler: what is done about a worker that is slow for long: CONTINUE tells of it, REDEAL deals micro-batches
            by speed, SWAP puts a parked spare in its place (CONTINUE while there is none).
        restart: where no spare is parked, start a lost worker anew on its own node, as long as its class has budget
            left; False leaves the place to the scheduler.
        over_evict: a hang whose culprit can not be told puts the nodes of all suspects in quarantine, if spares are
            enough to take the place of all of them.
        poison: what is done about a micro-batch that ends whoever computes it: GIVE_UP names it, LEAVE_OUT has all
            replicas drop its step, with a record, and go on.
    """

    swap: bool = True
    straggler: Kind = Kind.CONTINUE
    restart: bool = False
    over_evict: bool = True
    poison: Kind = Kind.GIVE_UP

    def __call__(self, incident: Incident, view: ClusterView) -> Remediation:
        if view.poison is not None and self.poison is Kind.LEAVE_OUT:
            return Remediation(kind=Kind.LEAVE_OUT, reason=str(view.poison))
        enough = given_up(view)
        if enough is not None:
            return enough
        if incident.kind is IncidentClass.STRAGGLER:
            return self._about_straggler(incident, view)
        if not incident.culprits:
            return self._about_nobody(incident, view)
        needs = gpu_needs(incident)
        if needs is not None:
            return self._about_gpu(needs, incident, view)
        return self._about_loss(incident, view)

    def _about_nobody(self, incident: Incident, view: ClusterView) -> Remediation:
        """Nobody was lost: all go on, unless that has failed often, or somebody unknown holds the others up."""
        if self.over_evict and incident.suspects and can_spare(incident.suspects, view):
            why = f"one of {', '.join(incident.suspects)} held the others up, and {view.spares} spares are ready"
            return Remediation(kind=Kind.QUARANTINE, reason=why, targets=incident.suspects)
        is_half_way = view.incidents_without_progress == view.allowed_without_progress // 2 + 1
        if is_half_way and view.allowed_without_progress > 1 and view.tier_steps:
            why = f"{view.incidents_without_progress} incidents without a committed step: the live state may be bad"
            return Remediation(kind=Kind.RESTART_FROM_TIER, reason=why)
        return Remediation(kind=Kind.CONTINUE, reason="nobody was lost")

    def _about_gpu(self, needs: Severity, incident: Incident, view: ClusterView) -> Remediation:
        """What the fault asks for: the worker is restarted, the GPU reset, the node replaced; with the budget of the
        class spent, whatever comes next.
        """
        who, has_budget = ", ".join(incident.culprits), view.has_budget(incident.kind)
        if needs is Severity.NODE_MUST_GO:
            return Remediation(kind=Kind.REPLACE_NODE, reason=f"the node of {who} must go")
        is_broken = needs is Severity.RESET_NEEDED
        if not is_broken and has_budget:
            return Remediation(kind=Kind.RESTART, reason=f"what ran on the GPU of {who} ended, and the GPU is fine")
        if not is_broken:
            return Remediation(kind=Kind.RESET_GPU, reason=f"the GPU of {who} failed once more than restarts may mend")
        if has_budget:
            return Remediation(kind=Kind.RESET_GPU, reason=f"the GPU of {who} failed")
        if view.survivors + view.spares >= view.minimum:
            return Remediation(kind=Kind.REPLACE_NODE, reason=f"the GPU of {who} failed once more than resets may mend")
        return self._about_loss(incident, view)

    def _about_loss(self, incident: Incident, view: ClusterView) -> Remediation:
        lost = len(incident.culprits)
        if incident.kind is IncidentClass.SILENT_CORRUPTION and can_do_without(incident.culprits, view):
            why = f"{', '.join(incident.culprits)} held other bits than most, and the others are enough"
            return Remediation(kind=Kind.QUARANTINE, reason=why)
        if view.spares and (self.swap or view.survivors < view.minimum):
            return Remediation(kind=Kind.SWAP, reason=f"{lost} lost, {view.spares} spare ready")
        if view.survivors < view.minimum:
            why = f"{view.survivors} survive, fewer than the minimum of {view.minimum}"
            return Remediation(kind=Kind.WAIT, reason=why)
        if self.restart and not view.spares and view.has_budget(incident.kind):
            return Remediation(kind=Kind.RESTART, reason=f"{lost} lost, no spare, {view.survivors} survive")
        return Remediation(kind=Kind.SHRINK, reason=f"{lost} lost, no spare, {view.survivors} survive")

    def _about_straggler(self, incident: Incident, view: ClusterView) -> Remediation:
        ratio = max((view.slowness.get(name, 1.0) for name in incident.culprits), default=1.0)
        slow = f"{', '.join(incident.culprits)} takes {ratio:.2f} times the group's median"
        if self.straggler is Kind.SWAP and not view.spares:
            return Remediation(kind=Kind.CONTINUE, reason=f"{slow}, and no spare is ready")
        return Remediation(kind=self.straggler, reason=slow)
