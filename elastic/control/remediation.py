"""Pure. What a policy sees and what it may answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from elastic.control.poison import Poison
from elastic.control.values import Incident, IncidentClass


class Kind(Enum):
    """What is done about an incident; `targets` of the remediation say to whom, else the incident's culprits."""

    CONTINUE = "continue in place"
    REDEAL = "deal by speed"
    RESTART = "restart the worker"
    RESET_GPU = "reset the GPU"
    SWAP = "swap in a spare"
    QUARANTINE = "quarantine"
    REPLACE_NODE = "replace the node"
    SHRINK = "shrink"
    GROW = "grow"
    LEAVE_OUT = "leave the step out"
    RESTART_FROM_TIER = "restart from a tier"
    WAIT = "wait for replacements"
    PAUSE = "pause"
    EXIT = "save and exit"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """What is left when an incident is decided; counts of replicas, times in seconds.

    Attributes:
        survivors: live members that hold healed state.
        spares: workers that could be swapped in now.
        minimum, maximum: bounds of the run.
        incidents_without_progress: incidents in a row, this one included, with no committed step between them.
        allowed_without_progress: the limit on that number.
        poison: the micro-batch with which as many workers have died, one after the other, as Limits.poison_deaths
            allows; None: there is none.
        slowness: by worker, how many times the group's median a micro-batch takes it; node_slowness: by node, that of
            the best worker on it.
        width: workers of a replica.
        nodes: by worker that is there or was lost in this incident, where it is or was.
        budget_left: by class, how many incidents, this one included, may be mended the usual way; it heals with time.
            Classes that are not named have all of theirs.
        node_incidents: by node, failures with a culprit on it.
        quarantined: by node that gets no worker, for how long yet; infinite: for good.
        recovery_s: by kind of remediation, the median time from the first signal to the first committed step after it.
        loading_s: from a worker's placement to its first step. node_return_s: from asking for a worker until a node had
            room for it. Medians of what this run has seen, None before.
        step_s: a usual step, None before it is known. step: the last stable one, -1 before the first.
        tier_steps: the newest step on each rung of the checkpoint ladder ("staged", "local", "replicated", "durable").
        nodes_missing: machines that were asked for and have not come in time, where somebody can tell (Kubernetes).
    """

    survivors: int
    spares: int
    minimum: int
    maximum: int
    incidents_without_progress: int
    allowed_without_progress: int
    poison: Poison | None = None
    slowness: Mapping[str, float] = field(default_factory=dict)
    node_slowness: Mapping[str, float] = field(default_factory=dict)
    width: int = 1
    nodes: Mapping[str, str] = field(default_factory=dict)
    budget_left: Mapping[IncidentClass, float] = field(default_factory=dict)
    node_incidents: Mapping[str, int] = field(default_factory=dict)
    quarantined: Mapping[str, float] = field(default_factory=dict)
    recovery_s: Mapping[Kind, float] = field(default_factory=dict)
    loading_s: float | None = None
    node_return_s: float | None = None
    step_s: float | None = None
    step: int = -1
    tier_steps: Mapping[str, int] = field(default_factory=dict)
    nodes_missing: int = 0

    def has_budget(self, kind: IncidentClass) -> bool:
        """Whether one more incident of this class may be mended the usual way."""
        return self.budget_left.get(kind, 1.0) >= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remediation:
    """A decision and its reason.

    Attributes:
        targets: workers, or nodes; a worker stands for its node where a node is meant, a node for all its workers where
            workers are meant. Empty: the incident's culprits, and its suspects where there are none.
        for_s: how long a quarantine or a pause lasts; None: as `Limits` says.
    """

    kind: Kind
    reason: str
    targets: tuple[str, ...] = ()
    for_s: float | None = None


Policy = Callable[[Incident, ClusterView], Remediation]
