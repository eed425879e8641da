"""Pure. What came of a simulated run."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic.sim.account import Account


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One incident.

    Attributes:
        kind: what happened. lost_s: wall seconds until all trained again, and what was done again.
        decision: what was done about it, and why.
        is_planned: nothing had failed: the group grew again.
    """

    at_s: float
    kind: str
    lost_s: float
    decision: str
    is_planned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One simulated run.

    Attributes:
        incidents: by time, planned changes of size among them. machines: that were paid for.
        decided: by what was to be done, how often that was decided. faults: of a policy that was to decide.
        events: that the controller took in. ending: empty if the run trained to the end.
    """

    account: Account
    incidents: tuple[Told, ...] = ()
    machines: int = 0
    decided: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    events: int = 0
    generations: int = 0
    ending: str = ""
    digest: int = field(default=0, compare=False)

    @property
    def failures(self) -> tuple[Told, ...]:
        """Incidents that a failure began."""
        return tuple(told for told in self.incidents if not told.is_planned)

    @property
    def goodput(self) -> float:
        return self.account.goodput
