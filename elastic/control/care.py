"""Pure. What the controller remembers from one incident to the next: nodes to keep away from, budgets, measured times.

All of it follows from events. Times move on with the controller's own absences (`discount_absence`), so that a clock
that jumps ends no quarantine and refills no budget.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median

from elastic.control.commands import InjectFault, Inspect
from elastic.control.remediation import Kind
from elastic.control.values import Incident, IncidentClass, on_rungs
from elastic.control.xid import Severity

KEPT = 16
HARMLESS = frozenset({IncidentClass.STRAGGLER, IncidentClass.DEPARTURE, IncidentClass.COLLECTIVE_BROKEN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """What is left of a class's budget at one time; it fills up by one every `Limits.budget_refill_s`."""

    left: float
    at_s: float

    def level(self, now_s: float, size: float, refill_s: float) -> float:
        return min(size, self.left + max(0.0, now_s - self.at_s) / refill_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """A reset of GPUs that is wanted, or under way.

    Attributes:
        gpus: indices or UUIDs, as the workers on them saw them.
        since_s: when it was wanted; is_sent: the host monitor was told, since their workers are gone.
        until_s: the node gets no worker until then, unless the reset ends before.
    """

    node: str
    gpus: tuple[str, ...]
    since_s: float
    until_s: float
    is_sent: bool = False


@dataclass(frozen=True, slots=True)
class Awaited:
    """An order whose answer is waited for since then, not counting the time in which nobody looked."""

    command: Inspect | InjectFault
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The run is paused: nothing is formed until then, or until somebody resumes it."""

    reason: str
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """The run saves what it has and ends.

    Attributes:
        step: all have stopped after it, and it is being saved; None before.
    """

    reason: str
    until_s: float
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """See the module.

    Attributes:
        quarantine: by node that gets no worker, until when; infinite: for good.
        unhealthy: by node that fails its check, the end of the quarantine it got for that.
        budgets: by class; a class that is missing has all of its budget.
        node_incidents: by node, failures with a culprit on it.
        decided: what was decided last about the incident under treatment. once: what of it can be done only once, and
            was: (number of the incident, kind).
        mending: by number of an incident that is decided and not resolved, what was done about it.
        recovery_s: by kind, how long the last ones took. placing_s, loading_s: of the last workers.
        tier_steps: by rung of the checkpoint ladder, the newest step on it; -1: what was on it is lost.
        places: nodes on which the next workers are to be started.
        resets: of GPUs. hold: the run is paused. leaving: it is about to save and exit.
        grow_now: whoever is ready joins at once.
        noticed: workers that will be lost, about whom the policy was asked.
        nodes_missing: machines that were asked for and have not come in time.
        stopped_s: when all last stopped at the end of a step, which stages it.
        awaited: orders that are not answered yet, and that no phase waits for.
        excused: workers on their way on nodes where one has ended before its first step: more such ends are no news.
        had_enough: the minimum stood at its first step, or the run was paused, since the time of the start last began;
            starts_again: how often it began anew for that.
        starts_from_s: no worker is started before; no_starts: why, empty if any may be.
        start_trouble: how workers have ended before their first step since one stood there; empty: none has.
    """

    quarantine: Mapping[str, float] = field(default_factory=dict)
    unhealthy: Mapping[str, float] = field(default_factory=dict)
    budgets: Mapping[IncidentClass, Bucket] = field(default_factory=dict)
    node_incidents: Mapping[str, int] = field(default_factory=dict)
    decided: Kind | None = None
    once: frozenset[tuple[int, Kind]] = frozenset()
    mending: Mapping[int, Kind] = field(default_factory=dict)
    recovery_s: Mapping[Kind, tuple[float, ...]] = field(default_factory=dict)
    placing_s: tuple[float, ...] = ()
    loading_s: tuple[float, ...] = ()
    tier_steps: Mapping[str, int] = field(default_factory=dict)
    places: tuple[str, ...] = ()
    resets: tuple[Reset, ...] = ()
    hold: Hold | None = None
    leaving: Leaving | None = None
    grow_now: bool = False
    noticed: frozenset[str] = frozenset()
    nodes_missing: int = 0
    stopped_s: float = -inf
    awaited: tuple[Awaited, ...] = ()
    excused: frozenset[str] = frozenset()
    had_enough: bool = False
    starts_again: int = 0
    starts_from_s: float = -inf
    no_starts: str = ""
    start_trouble: str = ""

    def moved_by(self, absent_s: float) -> "Care":
        """All times later by so much."""
        return replace(
            self,
            quarantine={node: until_s + absent_s for node, until_s in self.quarantine.items()},
            unhealthy={node: until_s + absent_s for node, until_s in self.unhealthy.items()},
            budgets={kind: replace(one, at_s=one.at_s + absent_s) for kind, one in self.budgets.items()},
            resets=tuple(
                replace(one, since_s=one.since_s + absent_s, until_s=one.until_s + absent_s) for one in self.resets
            ),
            starts_from_s=self.starts_from_s + absent_s,
            hold=None if self.hold is None else replace(self.hold, until_s=self.hold.until_s + absent_s),
            leaving=None if self.leaving is None else replace(self.leaving, until_s=self.leaving.until_s + absent_s),
        )

    def quarantined(self, node: str, until_s: float) -> "Care":
        """The node gets no worker until then; a longer quarantine stays."""
        return replace(self, quarantine={**self.quarantine, node: max(until_s, self.quarantine.get(node, -inf))})

    def released(self, *nodes: str) -> "Care":
        return replace(self, quarantine=_without(self.quarantine, nodes), unhealthy=_without(self.unhealthy, nodes))

    def failed_check(self, node: str, until_s: float) -> "Care":
        """One that passes ends this quarantine, unless something else has put the node there, too."""
        is_for_that = self.quarantine.get(node) in (None, self.unhealthy.get(node))
        unhealthy = {**self.unhealthy, node: until_s} if is_for_that else self.unhealthy
        return replace(self.quarantined(node, until_s), unhealthy=unhealthy)

    def passed_check(self, node: str) -> "Care":
        """The node is free again, unless something else keeps it away."""
        passed = replace(self, unhealthy=_without(self.unhealthy, (node,)))
        is_for_that = node in self.unhealthy and self.quarantine.get(node) == self.unhealthy[node]
        return passed.released(node) if is_for_that else passed

    def settled(self, incident: Incident, nodes: set[str], now_s: float, size: float, refill_s: float) -> "Care":
        """An incident got its new generation: it has cost its class some budget, and its nodes some trust."""
        before = self.budgets.get(incident.kind, Bucket(left=size, at_s=now_s))
        bucket = Bucket(left=max(0.0, before.level(now_s, size, refill_s) - 1.0), at_s=now_s)
        is_harmless = incident.kind in HARMLESS or incident.severity is Severity.USER_ERROR
        blamed = set() if is_harmless else nodes - {""}
        counts = {node: self.node_incidents.get(node, 0) + 1 for node in sorted(blamed)}
        mending = self.mending if self.decided is None else {**self.mending, incident.number: self.decided}
        return replace(
            self,
            budgets={**self.budgets, incident.kind: bucket},
            node_incidents={**self.node_incidents, **counts},
            mending=mending,
            decided=None,
            once=frozenset(),
        )

    def recovered(self, incident: Incident, took_s: float) -> "Care":
        """The first stable step after an incident."""
        kind = self.mending.get(incident.number)
        if kind is None:
            return self
        took = (*self.recovery_s.get(kind, ()), took_s)[-KEPT:]
        mending = {number: one for number, one in self.mending.items() if number != incident.number}
        return replace(self, mending=mending, recovery_s={**self.recovery_s, kind: took})

    def reached(self, rung: str, step: int) -> "Care":
        """A step has come to a rung of the checkpoint ladder, or fell back to it; empty: nobody holds it any more."""
        return replace(self, tier_steps=on_rungs(self.tier_steps, step, rung))

    def without(self, workers: Iterable[str], nodes: Iterable[str]) -> "Care":
        """They are gone for good; a quarantine stays."""
        over = set(nodes)
        counts = {node: count for node, count in self.node_incidents.items() if node not in over}
        return replace(self, noticed=self.noticed.difference(workers), node_incidents=counts)

    def forked(self, step: int) -> "Care":
        """Later steps are void."""
        return replace(self, tier_steps={rung: min(newest, step) for rung, newest in self.tier_steps.items()})


def _without(ends_s: Mapping[str, float], nodes: Iterable[str]) -> dict[str, float]:
    return {node: until_s for node, until_s in ends_s.items() if node not in nodes}


def middle(seconds: tuple[float, ...]) -> float | None:
    """The median, None of nothing."""
    return median(seconds) if seconds else None
