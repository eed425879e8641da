"""Pure. What fails when, in a simulated fleet: drawn from a scenario and a seed, by time.

Each cause has draws of its own, so that two ways of living with failures are compared on the same ones.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from elastic.control.faults import Fault, FaultKind
from elastic.control.schedules import parse
from elastic.sim.chance import Chance
from elastic.sim.scenario import Failures, Scenario

DAY_S = 86400.0
# These take a machine away; the others leave it where it is.
OF_MACHINES = frozenset({FaultKind.NODE_DOWN, FaultKind.NOTICE})
# These end by themselves after a while; who waits for them loses nothing but the time.
PASSING = frozenset({FaultKind.STOP, FaultKind.PARTITION})
# What neither stops nor slows training at this level.
HARMLESS = frozenset(
    {
        FaultKind.PACKETS,
        FaultKind.DISK_FULL,
        FaultKind.STORAGE_ERRORS,
        FaultKind.KILL_MONITOR,
        FaultKind.KILL_SUPERVISOR,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failure.

    Attributes:
        nodes: machines that it strikes, by number; empty: one of those that train, `place` (in [0, 1)) says which.
        lasts_s: until it ends by itself, or the machine is back; 0: as the scenario says.
    """

    at_s: float
    kind: FaultKind
    nodes: tuple[int, ...] = ()
    place: float = 0.0
    lasts_s: float = 0.0


def failures_of(scenario: Scenario, seed: int) -> list[Failure]:
    """All failures up to the end of the scenario, by time."""
    found = [
        *_independent(scenario, seed),
        *_bad(scenario, seed),
        *_racks(scenario, seed),
        *_scheduled(scenario, seed),
        *_spot(scenario),
    ]
    return sorted(found, key=lambda one: (one.at_s, one.kind.value, one.nodes))


def _independent(scenario: Scenario, seed: int) -> Iterator[Failure]:
    """A Poisson process of the whole cluster: the sum of those of its machines."""
    wanted = scenario.failures
    if wanted.per_day <= 0:
        return
    rng, at_s = Chance("independent", seed), 0.0
    while (at_s := at_s + rng.exponential(DAY_S / wanted.per_day)) < scenario.end_s:
        yield Failure(at_s=at_s, kind=_drawn(wanted, rng), place=rng.random())


def _drawn(wanted: Failures, rng: Chance) -> FaultKind:
    ends = list(accumulate(wanted.kinds.values()))
    return list(wanted.kinds)[min(bisect_right(ends, rng.random() * ends[-1]), len(ends) - 1)]


def _bad(scenario: Scenario, seed: int) -> Iterator[Failure]:
    """Machines that fail more often than others, whenever they are there."""
    wanted, nodes = scenario.failures, scenario.cluster.nodes
    if not wanted.bad_share or not wanted.per_day or wanted.bad_times <= 1:
        return
    mean_s = DAY_S * nodes / (wanted.per_day * (wanted.bad_times - 1))
    for node in range(round(wanted.bad_share * nodes)):
        rng, at_s = Chance("bad", seed, node), 0.0
        while (at_s := at_s + rng.exponential(mean_s)) < scenario.end_s:
            yield Failure(at_s=at_s, kind=_drawn(wanted, rng), nodes=(node,))


def _racks(scenario: Scenario, seed: int) -> Iterator[Failure]:
    cluster, mtbf_s = scenario.cluster, scenario.failures.rack_mtbf_s
    if mtbf_s == float("inf"):
        return
    machines = cluster.nodes + cluster.spare_nodes
    for first in range(0, machines, cluster.nodes_per_rack):
        rng, at_s = Chance("rack", seed, first), 0.0
        nodes = tuple(range(first, min(first + cluster.nodes_per_rack, machines)))
        while (at_s := at_s + rng.exponential(mtbf_s)) < scenario.end_s:
            yield Failure(at_s=at_s, kind=FaultKind.NODE_DOWN, nodes=nodes)


def _scheduled(scenario: Scenario, seed: int) -> Iterator[Failure]:
    names = {f"n{number}": number for number in range(scenario.cluster.nodes)}
    for fault in parse(scenario.failures.schedule).plan(seed, scenario.end_s, names):
        yield _struck(fault, names)


def _struck(fault: Fault, names: dict[str, int]) -> Failure:
    kind_of_target, _, name = fault.target.partition(":")
    nodes = (names[name],) if kind_of_target == "node" and name in names else ()
    place = (fault.draw >> 12) / 2**52
    return Failure(at_s=fault.at_s, kind=fault.kind, nodes=nodes, place=place, lasts_s=fault.lasts_s)


def _spot(scenario: Scenario) -> Iterator[Failure]:
    """Machines that are beyond the capacity of a trace are away until it is large enough again."""
    rows, wanted = scenario.failures.spot, scenario.cluster.nodes + scenario.cluster.spare_nodes
    capacity = wanted
    gone_s: dict[int, float] = {}
    spans: dict[tuple[float, float], list[int]] = {}
    for at_s, machines in (*rows, (scenario.end_s, wanted)):
        there = min(machines, wanted)
        for node in range(there, capacity):
            gone_s[node] = at_s
        for node in range(capacity, there):
            spans.setdefault((gone_s.pop(node), at_s), []).append(node)
        capacity = there
    for (from_s, until_s), nodes in spans.items():
        notice_s = min(scenario.failures.notice_s, from_s)
        yield Failure(at_s=from_s - notice_s, kind=FaultKind.NOTICE, nodes=tuple(nodes), lasts_s=until_s - from_s)
