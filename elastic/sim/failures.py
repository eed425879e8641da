"""Pure. What fails when, in a simulated fleet: drawn from a scenario and a seed, by time.

Each cause has draws of its own, so that two ways of living with failures are compared on the same ones.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeVar

from elastic.control.faults import Fault, FaultKind, options
from elastic.control.xid import Severity, classify
from elastic.sim.chance import Chance
from elastic.sim.scenario import INFINITE, Failures, Scenario
from elastic.sim.vocabulary import scheduled

T = TypeVar("T")
DAY_S = 86400.0
# These end by themselves after a while; who waits for them loses nothing but the time.
PASSING = frozenset({FaultKind.STOP, FaultKind.PARTITION})
# These keep nobody from training.
ASIDE = frozenset({FaultKind.SLOW, FaultKind.STORAGE_ERRORS, FaultKind.BIT_FLIP})
_PERSISTENT = "persistent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failure.

    Attributes:
        nodes: machines that it strikes, by number; empty: one of those that train, `place` (in [0, 1)) says which.
        lasts_s: until it ends by itself, or the machine is back; of a notice, until the machine is gone; 0: as the
            scenario says. away_s: how long a machine that was announced to go is away; 0: as the scenario says.
        factor: of "slow"; 0: as the scenario says. xid: its number. is_durable: of "bit_flip", where the shard lies.
    """

    at_s: float
    kind: FaultKind
    nodes: tuple[int, ...] = ()
    place: float = 0.0
    lasts_s: float = 0.0
    away_s: float = 0.0
    factor: float = 0.0
    xid: int = 0
    is_durable: bool = False

    @property
    def said_s(self) -> float:
        """How long its machines are away, where that is not up to how long a repair takes; else 0."""
        return self.away_s if self.kind is FaultKind.NOTICE else self.lasts_s

    @property
    def severity(self) -> Severity:
        """What an XID asks for."""
        return classify(self.xid)[0]


def failures_of(scenario: Scenario, seed: int) -> list[Failure]:
    """All failures up to the end of the scenario, by time."""
    found = [
        *_independent(scenario, seed),
        *_bad(scenario, seed),
        *_racks(scenario, seed),
        *_switches(scenario, seed),
        *_storage(scenario, seed),
        *_flapping(scenario, seed),
        *_scheduled(scenario, seed),
        *_spot(scenario, seed),
    ]
    return sorted(found, key=lambda one: (one.at_s, one.kind.value, one.nodes))


def _independent(scenario: Scenario, seed: int) -> Iterator[Failure]:
    """A Poisson process of the whole cluster: the sum of those of its machines."""
    wanted = scenario.failures
    if wanted.per_day <= 0:
        return
    rng, at_s = Chance("independent", seed), 0.0
    while (at_s := at_s + rng.exponential(DAY_S / wanted.per_day)) < scenario.end_s:
        kind = _drawn(wanted.kinds, rng)
        yield _numbered(Failure(at_s=at_s, kind=kind, place=rng.random()), wanted, rng)


def _drawn(weights: Mapping[T, float], rng: Chance) -> T:
    ends = list(accumulate(weights.values()))
    return list(weights)[min(bisect_right(ends, rng.random() * ends[-1]), len(ends) - 1)]


def _numbered(failure: Failure, wanted: Failures, rng: Chance) -> Failure:
    return replace(failure, xid=_drawn(wanted.xids, rng)) if failure.kind is FaultKind.XID else failure


def _bad(scenario: Scenario, seed: int) -> Iterator[Failure]:
    """Machines that fail more often than others, whenever they are there."""
    wanted, nodes = scenario.failures, scenario.cluster.nodes
    if not wanted.bad_share or not wanted.per_day or wanted.bad_times <= 1:
        return
    mean_s = DAY_S * nodes / (wanted.per_day * (wanted.bad_times - 1))
    for node in range(round(wanted.bad_share * nodes)):
        rng, at_s = Chance("bad", seed, node), 0.0
        while (at_s := at_s + rng.exponential(mean_s)) < scenario.end_s:
            yield _numbered(Failure(at_s=at_s, kind=_drawn(wanted.kinds, rng), nodes=(node,)), wanted, rng)


def _racks(scenario: Scenario, seed: int) -> Iterator[Failure]:
    size, mtbf_s = scenario.cluster.nodes_per_rack, scenario.failures.rack_mtbf_s
    for at_s, nodes in _together("rack", scenario, seed, size, mtbf_s):
        yield Failure(at_s=at_s, kind=FaultKind.NODE_DOWN, nodes=nodes)


def _switches(scenario: Scenario, seed: int) -> Iterator[Failure]:
    cluster, wanted = scenario.cluster, scenario.failures
    size = cluster.nodes_per_rack * cluster.racks_per_switch
    for at_s, nodes in _together("switch", scenario, seed, size, wanted.switch_mtbf_s):
        yield Failure(at_s=at_s, kind=FaultKind.PARTITION, nodes=nodes, lasts_s=wanted.switch_lasts_s)


def _together(
    what: str, scenario: Scenario, seed: int, size: int, mtbf_s: float
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """When something fails on which so many machines depend, and which ones."""
    machines = scenario.machine_count if mtbf_s < float("inf") else 0
    for first in range(0, machines, size):
        rng, at_s = Chance(what, seed, first), 0.0
        nodes = tuple(range(first, min(first + size, machines)))
        while (at_s := at_s + rng.exponential(mtbf_s)) < scenario.end_s:
            yield at_s, nodes


def _storage(scenario: Scenario, seed: int) -> Iterator[Failure]:
    wanted, rng, at_s = scenario.failures, Chance("storage", seed), 0.0
    while (at_s := at_s + rng.exponential(wanted.storage_mtbf_s)) < scenario.end_s:
        yield Failure(at_s=at_s, kind=FaultKind.STORAGE_ERRORS, lasts_s=wanted.storage_lasts_s)


def _flapping(scenario: Scenario, seed: int) -> Iterator[Failure]:
    """Machines that come and go, the last ones of the job, so that they are not those that fail more often."""
    wanted, nodes = scenario.failures, scenario.cluster.nodes
    for node in range(nodes - round(wanted.flapping_share * nodes), nodes):
        rng, at_s = Chance("flapping", seed, node), 0.0
        while (at_s := at_s + rng.exponential(wanted.flapping_up_s)) < scenario.end_s:
            yield Failure(at_s=at_s, kind=FaultKind.NODE_DOWN, nodes=(node,), lasts_s=wanted.flapping_down_s)
            at_s += wanted.flapping_down_s


def _scheduled(scenario: Scenario, seed: int) -> Iterator[Failure]:
    names = {name: number for number, name in enumerate(scenario.machines)}
    for fault in scheduled(scenario.failures.schedule, scenario.machines).plan(seed, scenario.end_s, names):
        yield _struck(fault, names)


def _struck(fault: Fault, names: dict[str, int]) -> Failure:
    how, _, name = fault.target.partition(":")
    head, _ = options(fault.argument)
    for_good_s = INFINITE if fault.kind is FaultKind.STOP else 0.0  # who is stopped for no said time stays so
    return Failure(
        at_s=fault.at_s,
        kind=fault.kind,
        nodes=(names[name],) if how == "node" else (),
        place=(fault.draw >> 12) / 2**52,
        lasts_s=fault.duration_s or for_good_s,
        factor=float(head) if head and fault.kind is FaultKind.SLOW else 0.0,
        xid=int(head) if fault.kind is FaultKind.XID else 0,
        is_durable=head == _PERSISTENT,
    )


def _spot(scenario: Scenario, seed: int) -> Iterator[Failure]:
    """Machines that are beyond the capacity of a trace are away until it is large enough again.

    Whom a lender takes is not up to the job: they are drawn among all that the trace has left, idle spares and those
    that are being repaired included. Who went first is back first.
    """
    wanted, rng = scenario.machine_count, Chance("spot", seed)
    there, gone_s = list(range(wanted)), dict[int, float]()
    spans: dict[tuple[float, float], list[int]] = {}
    for at_s, machines in (*scenario.failures.spot, (scenario.end_s, wanted)):
        capacity = min(machines, wanted)
        while len(there) > capacity:
            gone_s[there.pop(rng.randint(0, len(there) - 1))] = at_s
        while len(there) < capacity:
            node = next(iter(gone_s))
            if (from_s := gone_s.pop(node)) != at_s:  # of two rows of one time the last one counts
                spans.setdefault((from_s, at_s), []).append(node)
            there.append(node)
    for (from_s, until_s), nodes in spans.items():
        notice_s = min(scenario.failures.notice_s, from_s)
        gone = Failure(at_s=from_s, kind=FaultKind.NODE_DOWN, nodes=tuple(sorted(nodes)), lasts_s=until_s - from_s)
        told = replace(gone, at_s=from_s - notice_s, kind=FaultKind.NOTICE, lasts_s=notice_s, away_s=gone.lasts_s)
        yield told if notice_s else gone
