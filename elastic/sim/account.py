"""Pure. Where a simulated run's seconds went: each has one name, and all of them add up to the wall time."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import fsum


class Cause(Enum):
    """What a second was spent on; names are those of the run's goodput ledger."""

    PRODUCTIVE = "productive"
    REDONE = "redone"
    DETECTING = "detecting"
    FORMING = "forming"
    HEALING = "healing"
    WORKER_START = "worker_start"
    INITIALIZATION = "initialization"
    CHECKPOINT_STALL = "checkpoint_stall"
    RESTORE = "restore"
    STRAGGLER_DRAG = "straggler_drag"
    REDUCED_CAPACITY = "reduced_capacity"
    PAUSED = "paused"


@dataclass(slots=True)
class Account:
    """Seconds of the whole group by cause; a second in which a part of it works is split."""

    seconds: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(Cause, 0.0))

    def add(self, cause: Cause, seconds: float) -> None:
        self.seconds[cause] += seconds

    def move(self, seconds: float, source: Cause, to: Cause) -> None:
        """What was booked under one cause belongs to another; not more than is there."""
        moved = min(seconds, self.seconds[source])
        self.seconds[source] -= moved
        self.seconds[to] += moved

    @property
    def total_s(self) -> float:
        return fsum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """Productive share of all seconds; 0 before there are any."""
        total_s = self.total_s
        return self.seconds[Cause.PRODUCTIVE] / total_s if total_s else 0.0

    def shares(self) -> dict[str, float]:
        """By name of the cause, its share of all seconds; causes without any are left out."""
        total_s = self.total_s or 1.0
        return {cause.value: seconds / total_s for cause, seconds in self.seconds.items() if seconds}


def mean_shares(accounts: Iterable[Account]) -> dict[str, float]:
    """Over several runs."""
    shares = [account.shares() for account in accounts]
    names = [cause.value for cause in Cause if any(cause.value in one for one in shares)]
    return {name: fsum(one.get(name, 0.0) for one in shares) / len(shares) for name in names}
