"""Pure. Cost-aware: of all that can be done about a loss, what loses the fewest seconds of the whole group's work.

    seconds lost = recovery + share * absence + join

`recovery` is the time without a committed step, as measured in this run for this kind. `share` is the part of the group
that is missing, `absence` how long it stays away: until a node has room and the worker has loaded. `join` is the stop
in which it is let in. Where too few are left to go on, the share is the whole group. A broken GPU is reset, or its node
replaced; a spare fills the gap meanwhile.
"""

from dataclasses import dataclass, field

from elastic.control.remediation import ClusterView, Kind, Policy, Remediation
from elastic.control.values import Incident, IncidentClass
from elastic.control.xid import Severity
from elastic.policies.judging import given_up, gpu_is_broken, gpu_needs, node_is_to_blame
from elastic.policies.ladder import Ladder


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """What is believed until this run has measured it.

    Attributes:
        recovery_s: from the first signal to the next committed step. join_s: the stop in which a joiner is let in.
        reset_s: of a GPU. node_return_s: until a node has room for a worker. loading_s: until the worker has loaded.
    """

    recovery_s: float = 1.0
    join_s: float = 0.5
    reset_s: float = 20.0
    node_return_s: float = 120.0
    loading_s: float = 30.0


@dataclass(frozen=True, slots=True)
class CostAware:
    """See the module.

    Attributes:
        guess: before anything is measured.
        otherwise: asked about stragglers, wrong bits, and a micro-batch that ends whoever computes it, and where nobody
            was lost.
    """

    guess: Guess = field(default_factory=Guess)
    otherwise: Policy = field(default_factory=Ladder)

    def __call__(self, incident: Incident, view: ClusterView) -> Remediation:
        if view.poison is not None:
            return self.otherwise(incident, view)
        enough = given_up(view)
        if enough is not None:
            return enough
        if not incident.culprits or incident.kind in (IncidentClass.STRAGGLER, IncidentClass.SILENT_CORRUPTION):
            return self.otherwise(incident, view)
        costs = self.costs(incident, view)
        kind = min(costs, key=lambda one: costs[one])
        told = ", ".join(f"{one.value} {seconds:.1f} s" for one, seconds in costs.items())
        return Remediation(kind=kind, reason=f"expected loss: {told}")

    def costs(self, incident: Incident, view: ClusterView) -> dict[Kind, float]:
        """Seconds of the whole group's work that each possible remediation loses; never empty."""
        lost = _lost(incident, view)
        whole = max(view.survivors + lost, view.minimum, 1)
        loading_s = self.guess.loading_s if view.loading_s is None else view.loading_s
        return_s = self.guess.node_return_s if view.node_return_s is None else view.node_return_s
        can_go_on = view.survivors >= view.minimum
        absent = lost / whole if can_go_on else 1.0
        is_filled = bool(view.spares) and view.survivors + view.spares >= view.minimum
        still_absent = max(0, lost - view.spares) / whole if is_filled else absent
        if gpu_is_broken(incident):
            reset_s = still_absent * (self.guess.reset_s + loading_s)
            return self._of_broken_gpu(incident, view, reset_s, absent * (return_s + loading_s))
        costs = {}
        if is_filled:
            costs[Kind.SWAP] = self._recovery_s(view, Kind.SWAP) + still_absent * (return_s + loading_s)
        anew_s = self._anew_s(incident, view)
        if can_go_on and anew_s is not None:
            restart_s = self._recovery_s(view, Kind.RESTART) + absent * loading_s
            costs[Kind.RESTART] = restart_s + anew_s + self.guess.join_s
        rest = Kind.SHRINK if can_go_on else Kind.WAIT
        if can_go_on or not is_filled:  # nobody waits for replacements that are there: no others may ever come
            costs[rest] = self._recovery_s(view, rest) + absent * (return_s + loading_s) + self.guess.join_s
        return costs

    def _of_broken_gpu(
        self, incident: Incident, view: ClusterView, reset_s: float, elsewhere_s: float
    ) -> dict[Kind, float]:
        """
        Args:
            reset_s, elsewhere_s: what is lost until all are there again: a spare fills the gap of a reset; a node that
                is replaced is missed until another one comes, if not by the group, then as its spare.
        """
        costs, join_s = {}, self.guess.join_s
        if gpu_needs(incident) is Severity.RESET_NEEDED and view.has_budget(incident.kind):
            costs[Kind.RESET_GPU] = self._recovery_s(view, Kind.RESET_GPU) + reset_s + join_s
        costs[Kind.REPLACE_NODE] = self._recovery_s(view, Kind.REPLACE_NODE) + elsewhere_s + join_s
        return costs

    def _anew_s(self, incident: Incident, view: ClusterView) -> float | None:
        """What starting anew on the same nodes risks, one more recovery for each failure there; None: it can not be."""
        nodes = {view.nodes.get(name, "") for name in incident.culprits}
        is_lost = node_is_to_blame(incident) or incident.kind is IncidentClass.DEPARTURE
        if is_lost or "" in nodes or nodes & set(view.quarantined):
            return None
        return sum(view.node_incidents.get(node, 0) for node in nodes) * self._recovery_s(view, Kind.RESTART)

    def _recovery_s(self, view: ClusterView, kind: Kind) -> float:
        """Measured for this kind, else for any kind, else guessed."""
        known = view.recovery_s
        return known.get(kind, min(known.values()) if known else self.guess.recovery_s)


def _lost(incident: Incident, view: ClusterView) -> int:
    """Replicas: so many workers may have been of one, or each of another one."""
    if not incident.replicas_before:
        return max(1, len(incident.culprits) // view.width)
    return max(1, incident.replicas_before - view.survivors)
