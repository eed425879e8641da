"""Pure. What a policy sees and what it may answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from elastic.control.values import Incident


class Kind(Enum):
    """What is done about an incident."""

    CONTINUE = "continue in place"
    REDEAL = "deal by speed"
    SWAP = "swap in a spare"
    SHRINK = "shrink"
    WAIT = "wait for replacements"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """What is left when an incident is decided; counts of replicas.

    Attributes:
        survivors: live members that hold healed state.
        spares: workers that could be swapped in now.
        minimum, maximum: bounds of the run.
        incidents_without_progress: incidents in a row, this one included, with no committed step between them.
        allowed_without_progress: the limit on that number.
        slowness: by worker, how many times the group's median a micro-batch takes it; node_slowness: by node, that of
            the best worker on it.
    """

    survivors: int
    spares: int
    minimum: int
    maximum: int
    incidents_without_progress: int
    allowed_without_progress: int
    slowness: Mapping[str, float] = field(default_factory=dict)
    node_slowness: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remediation:
    """A decision and its reason."""

    kind: Kind
    reason: str


Policy = Callable[[Incident, ClusterView], Remediation]
