"""Faults that were injected into a real run against what its ledger makes of them: class, time, cost; nothing twice.

What a fault has cost is measured apart from the journal, on what the workers wrote down: the time between the commits
around it, beyond what is usual.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from elastic.control.faults import FaultKind
from elastic.ledger.model import Account, Incident

Line = Mapping[str, Any]
PROCESSES, RAY, NAMESPACES = "process fleet", "Ray cluster", "hosts in namespaces"
OWN = frozenset({"injected fault"})  # nothing that the controller would call an incident comes of it
LOST = frozenset({"worker lost", "collective broken"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One kind of fault.

    Attributes:
        where: class, time and cost are compared there.
        classes: of the incident that it becomes.
        but: what is not compared, and why.
    """

    where: frozenset[str]
    classes: frozenset[str] = OWN
    but: str = ""


_BOTH = frozenset({PROCESSES, RAY})
COMPARED: Mapping[FaultKind, Compared] = {
    FaultKind.KILL: Compared(where=_BOTH, classes=LOST),
    FaultKind.STOP: Compared(where=_BOTH, classes=OWN | {"worker hung"}),
    FaultKind.SLOW: Compared(where=_BOTH, classes=OWN | {"straggler"}),
    FaultKind.RAISE: Compared(
        where=_BOTH, classes=frozenset({"train_fn raised"}), but="what follows the exception, since that is finishing"
    ),
    FaultKind.NOTICE: Compared(
        where=_BOTH,
        classes=frozenset({"planned departure"}),
        but="a notice to a whole node, since Ray drains it, and hands the same notice to each of its workers",
    ),
    FaultKind.NODE_DOWN: Compared(where=_BOTH, classes=LOST | {"node lost"}),
    FaultKind.PARTITION: Compared(
        where=frozenset({NAMESPACES}),
        classes=OWN | {"host silent", "node lost", "collective broken", "worker unresponsive", "worker hung"},
        but="without root and `tc`: there is no interface of its own to cut",
    ),
    FaultKind.PACKETS: Compared(
        where=frozenset({NAMESPACES}), but="without `sch_netem` in the kernel; it makes steps slow, and no incident"
    ),
    FaultKind.DISK_FULL: Compared(where=_BOTH, but="without root, since a small file system must be mounted"),
    FaultKind.BIT_FLIP: Compared(where=_BOTH, but="what finds it later: the copy is passed over, which costs no step"),
    FaultKind.STORAGE_ERRORS: Compared(
        where=frozenset({RAY}), but="in a process fleet, which has no replica actors that upload"
    ),
    FaultKind.XID: Compared(
        where=_BOTH,
        classes=OWN | {"GPU fault"},
        but="on Ray, one that a sensor reads: the stand-in for NVML is of one process",
    ),
    FaultKind.KILL_MONITOR: Compared(where=frozenset({RAY}), but="in a process fleet, where it is no actor"),
    FaultKind.KILL_SUPERVISOR: Compared(where=frozenset({RAY}), but="in a process fleet, where it is no actor"),
}
LASTING = ("slow", "stop", "partition", "packets", "disk_full", "storage_errors")
LATE_S, APART_S, APART = 0.3, 0.2, 0.1
FELT_S = 1.0  # for so long after its end, what is slow is a fault's
_SLOW, _SLOW_S, _DRAG, _IN_A_ROW = 1.5, 0.05, 1.1, 16  # of docs/goodput.md
_FEW = 3  # steps of one size of which one that has an outage in it is not the median


@dataclass(frozen=True, slots=True)
class _Gap:
    """From one commit to the next. size: of the group that made it, as far as it wrote it down."""

    begin_s: float
    end_s: float
    size: int

    @property
    def took_s(self) -> float:
        return self.end_s - self.begin_s


def _gaps(committed: Iterable[Line]) -> list[_Gap]:
    first, sizes = dict[int, float](), Counter[int]()
    for line in committed:
        first[line["step"]] = min(line["t"], first.get(line["step"], line["t"]))
        sizes[line["step"]] += 1
    return [_Gap(first[a], first[b], sizes[b]) for a, b in pairwise(sorted(first)) if first[b] > first[a]]


def usual_s(times_s: Sequence[float]) -> float:
    """As the ledger has it: the smallest median of 16 steps in a row."""
    rows = [times_s[at : at + _IN_A_ROW] for at in range(max(1, len(times_s) - _IN_A_ROW + 1))]
    return min(median(row) for row in rows)


class Clocks:
    """When the steps of a run were committed, by the clocks of those who computed them."""

    def __init__(self, committed: Iterable[Line]) -> None:
        self._gaps = gaps = _gaps(committed)
        sizes = Counter(gap.size for gap in gaps)
        known = [size for size, number in sizes.items() if number >= _FEW] or [sizes.most_common(1)[0][0]]
        self._usual_s = {size: usual_s([gap.took_s for gap in gaps if gap.size == size]) for size in known}
        self._any_s = self._usual_s[max(known, key=lambda size: sizes[size])]

    def expected_s(self, gap: _Gap) -> float:
        """How long a step usually takes that is made by so many."""
        return self._usual_s.get(gap.size, self._any_s)

    def around(self, begin_s: float, end_s: float) -> list[_Gap]:
        """Steps of which a part lies between the two moments."""
        return [gap for gap in self._gaps if gap.begin_s <= end_s and gap.end_s >= begin_s]

    def lost_s(self, begin_s: float, end_s: float) -> float:
        """What the steps of a time took beyond the usual."""
        return sum(gap.took_s - self.expected_s(gap) for gap in self.around(begin_s, end_s) if self._is_slow(gap))

    def _is_slow(self, gap: _Gap) -> bool:
        """By much; or by a little, as the steps around it are, too."""
        usual, place = self.expected_s(gap), self._gaps.index(gap)
        near = self._gaps[max(0, place - _IN_A_ROW // 2) : place + _IN_A_ROW // 2]
        together_s = median(one.took_s for one in near if one.size == gap.size)
        alone_s = max(_SLOW * usual, usual + _SLOW_S)
        return gap.took_s > (min(_DRAG * usual, alone_s) if together_s > _DRAG * usual else alone_s)

    def ceased_s(self, at_s: float) -> float:
        """Since when a step was overdue at this moment, as those take who were at it; the moment itself if none was."""
        before = [gap for gap in self._gaps if gap.end_s <= at_s]
        return min([at_s, *(gap.end_s + self.expected_s(gap) for gap in before[-1:])])


def assert_close(ours_s: float, theirs_s: float, what: str, apart_s: float = APART_S) -> None:
    assert abs(ours_s - theirs_s) <= max(apart_s, APART * theirs_s), (
        f"{what}: {ours_s:.3f} s, measured {theirs_s:.3f} s"
    )


def told(journal: Iterable[Line], account: Account) -> list[tuple[Line, Incident]]:
    """Each fault that struck, with the one incident that stands for it."""
    injected = {line["at_s"]: line for line in journal if line.get("event") == "FaultInjected"}
    found = [(cause.at_s, one) for one in account.incidents for cause in one.injected]
    assert sorted(at_s for at_s, _ in found) == sorted(injected)
    return [(injected[at_s], one) for at_s, one in found]


def ends_s(line: Line, incident: Incident) -> float:
    """Until when what is slow is its cost."""
    fault, at_s = line["fault"], float(line["at_s"])
    lasts_s = float(fault["duration_s"]) if fault["kind"] in LASTING else 0.0
    return max(incident.resumed_s or at_s, at_s + lasts_s + FELT_S)


def compare(
    committed: Iterable[Line],
    found: Iterable[tuple[Line, Incident]],
    joins: Iterable[Incident] = (),
    apart_s: float = APART_S,
) -> None:
    """Faults and their incidents: class, time and cost.

    Where one struck before the step ended in which the one before was felt last, no clock tells what each of them cost:
    both are compared together. A schedule leaves them room; a machine that is busy may not. So it is with a joiner
    that is let in at once (`joins`).
    """
    clocks, together = Clocks(committed), list[tuple[float, float, dict[int, tuple[str, Incident]]]]()
    for line, incident in sorted(found, key=lambda one: float(one[0]["at_s"])):
        assert_class_and_time(clocks, line, incident)
        at_s, end_s, this = line["at_s"], ends_s(line, incident), {incident.number: (line["fault"]["kind"], incident)}
        if together and any(gap.end_s >= at_s for gap in clocks.around(at_s, together[-1][1])):
            begin_s, last_s, others = together.pop()
            at_s, end_s, this = begin_s, max(last_s, end_s), others | this
        together.append((at_s, end_s, this))
    for begin_s, end_s, these in together:
        for join in joins:
            if begin_s <= join.began_s <= end_s and join.resumed_s:
                end_s, these[join.number] = max(end_s, join.resumed_s), ("a joiner", join)
        kinds, cost_s = " and ".join(kind for kind, _ in these.values()), sum(one.cost_s for _, one in these.values())
        assert_close(cost_s, clocks.lost_s(begin_s, end_s), kinds, apart_s)


def assert_class_and_time(clocks: Clocks, line: Line, incident: Incident) -> None:
    """It began when the fault struck; where the step was overdue by then, when that shows."""
    fault, at_s = line["fault"], line["at_s"]
    kind, (first_s, *_) = str(fault["kind"]), sorted(cause.at_s for cause in incident.injected)
    classes = COMPARED[FaultKind(kind)].classes
    if kind == "stop":  # one that ends by itself before anybody is suspected is none
        classes = OWN if fault["duration_s"] else classes - OWN
    assert incident.kind in classes, (kind, incident.kind)
    late_s = incident.began_s - first_s
    assert clocks.ceased_s(first_s) - first_s - LATE_S <= late_s <= LATE_S, f"{kind}: began {late_s:+.3f} s after it"
    assert first_s <= at_s
