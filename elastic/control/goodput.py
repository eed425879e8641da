"""Pure. Goodput so far: the share of the wall time that went into attempts that were committed."""

from dataclasses import dataclass, replace

from elastic.control.values import StepReport


@dataclass(frozen=True, slots=True)
class Goodput:
    """Accumulates stable steps.

    Attributes:
        productive_s: sum of the committed attempts' durations, from the door to the commit.
        since_s: start of the first step; None before it. until_s: commit of the last one.
        steps: how many.
    """

    productive_s: float = 0.0
    since_s: float | None = None
    until_s: float = 0.0
    steps: int = 0

    def after(self, report: StepReport) -> "Goodput":
        since_s = report.started_at_s if self.since_s is None else self.since_s
        # Steps of two replicas overlap a little, and a report may come from either: no second counts twice.
        duration_s = max(0.0, report.committed_at_s - max(report.started_at_s, self.until_s))
        return replace(
            self,
            productive_s=self.productive_s + duration_s,
            since_s=since_s,
            until_s=max(self.until_s, report.committed_at_s),
            steps=self.steps + 1,
        )

    @property
    def share(self) -> float:
        """Productive share of the time from the first step to the last commit; 0 before the first step."""
        if self.since_s is None or self.until_s <= self.since_s:
            return 0.0
        return self.productive_s / (self.until_s - self.since_s)
