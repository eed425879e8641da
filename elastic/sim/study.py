"""Pure. Many simulated runs of one scenario: goodput with its interval, where the time went, what it cost."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import fsum
from typing import Any

from elastic.control.remediation import Policy
from elastic.sim.account import mean_shares
from elastic.sim.fleet import Fleet
from elastic.sim.ran import Ran
from elastic.sim.restarting import Restarting
from elastic.sim.scenario import Scenario

# Two-sided 95 % quantiles of Student's t, by degrees of freedom; the next smaller entry is used, which is the wider.
_T95 = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    7: 2.365,
    9: 2.262,
    14: 2.145,
    19: 2.093,
    29: 2.045,
    59: 2.001,
    119: 1.981,
    999: 1.963,
}
Interval = tuple[float, float]  # from, to


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of a scenario.

    Attributes:
        goodput: mean over the seeds; interval: of the mean, 95 %; None of one seed, which says nothing about others.
        shares: of the wall time, by cause. incidents: that failures began, in a run, on average.
        lost_s: median of those. resizes: planned ones, in a run, on average.
        gpu_hours: that are paid for, in a run; cost: of them. useful_cost: of an hour of the full group's work.
        kinds: by what had failed, the incidents of a run, on average. decided: by what was to be done, how often that
            was decided, in a run, on average. faults: of the policy; where it failed the ladder has decided instead.
        endings: why runs ended before their time.
        goodputs: by seed; not part of what is printed.
    """

    name: str
    goodput: float
    interval: Interval | None
    shares: dict[str, float]
    incidents: float
    resizes: float
    lost_s: float
    gpu_hours: float
    cost: float
    useful_cost: float
    seeds: int
    kinds: dict[str, float] = field(default_factory=dict)
    decided: dict[str, float] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    goodputs: tuple[float, ...] = ()

    @property
    def told(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {name: value for name, value in asdict(self).items() if name != "goodputs"}


def simulate(scenario: Scenario, seed: int, policy: Policy | None = None) -> Ran:
    """One run. `policy` decides where the way is "live"."""
    return Fleet(scenario, seed, policy).run() if scenario.way == "live" else Restarting(scenario, seed).run()


def row_of(name: str, scenario: Scenario, runs: Sequence[Ran]) -> Row:
    """What these runs of one scenario, at least one, say together."""
    goodputs = [run.goodput for run in runs]
    machines = max(run.machines for run in runs)
    gpu_hours = machine_hours(scenario, machines) * scenario.cluster.gpus_per_node
    mean, cost = fsum(goodputs) / len(goodputs), gpu_hours * scenario.cluster.price_per_gpu_hour
    useful_h = mean * scenario.job.hours
    return Row(
        name=name,
        goodput=mean,
        interval=_clipped(interval_of(goodputs)),
        goodputs=tuple(goodputs),
        shares=mean_shares(run.account for run in runs),
        incidents=sum(len(run.failures) for run in runs) / len(runs),
        resizes=sum(len(run.incidents) - len(run.failures) for run in runs) / len(runs),
        lost_s=median(told.lost_s for run in runs for told in run.failures),
        gpu_hours=gpu_hours,
        cost=cost,
        useful_cost=cost / useful_h if useful_h else 0.0,
        seeds=len(runs),
        kinds=_means(Counter(told.kind for told in run.failures) for run in runs),
        decided=_means(run.decided for run in runs),
        faults=tuple(sorted({fault for run in runs for fault in run.faults})),
        endings=tuple(sorted({run.ending for run in runs if run.ending})),
    )


def difference_of(row: Row, other: Row) -> tuple[float, Interval | None]:
    """By how much `row` does more work than `other` on the same failures: the mean over the seeds, and its interval.

    It is far narrower than those of both, since what the failures cost either way cancels out.
    """
    pairs = [one - two for one, two in zip(row.goodputs, other.goodputs, strict=True)]
    return fsum(pairs) / len(pairs), interval_of(pairs)


def _clipped(interval: Interval | None) -> Interval | None:
    """A share is from 0 to 1, whatever a few seeds make of it."""
    return (max(0.0, interval[0]), min(1.0, interval[1])) if interval is not None else None


def machine_hours(scenario: Scenario, machines: int) -> float:
    """That are paid for, of so many: those that a capacity trace has taken away are not, until they are back."""
    end_s = scenario.end_s
    rows = [(0.0, machines), *((min(at_s, end_s), there) for at_s, there in scenario.failures.spot), (end_s, 0)]
    return fsum((until_s - at_s) * min(there, machines) for (at_s, there), (until_s, _) in pairwise(rows)) / 3600.0


def _means(counts: Iterable[Mapping[str, int]]) -> dict[str, float]:
    """By name, how many there are in a run, on average; the most frequent first."""
    runs = list(counts)
    total = sum(map(Counter, runs), Counter[str]())
    return {name: count / len(runs) for name, count in sorted(total.items(), key=lambda one: (-one[1], one[0]))}


def interval_of(values: Sequence[float]) -> Interval | None:
    """95 % confidence interval of the mean (Student's t); one value has none."""
    count, mean = len(values), fsum(values) / len(values)
    if count < 2:
        return None
    deviation = math.sqrt(fsum((value - mean) ** 2 for value in values) / (count - 1))
    freedom = count - 1
    quantile = _T95[max(known for known in _T95 if known <= freedom)]
    half = quantile * deviation / math.sqrt(count)
    return mean - half, mean + half


def median(values: Iterable[float]) -> float:
    """0 of none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
