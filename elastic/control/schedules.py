"""Pure. When faults strike: schedules, written as text and drawn from a seed.

    12.5 kill rank:1                     once, so many seconds after the first stable step
    30 slow rank:2 for=10 with=3
    every 60 kill,stop                   one of these, at a fixed beat
    poisson mtbf=2h kill,node_down       on each node by itself, at exponential intervals of this mean
    random,120                           NVRx's form: "random", "rank_killed" or "rank_hung", and after how long

One entry a line, or with ';' between; a leading '- ' (as in a YAML list) and what follows '#' do not count. Each draw
depends on the seed, the entry, the node and a count alone: the same seed gives the same faults however the time is cut
into windows, and nodes do not share their luck.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from elastic.control.draws import chance, draw, log
from elastic.control.faults import ANY, RANDOM_KINDS, Fault, FaultKind, kind_of, seconds
from elastic.errors import SettingError
from elastic.settings import Chaos

# NVRx, ptl_resiliency/_utils.py, SimulatedFaultParams: killed is SIGKILL, hung is SIGSTOP.
_NVRX = {"random": RANDOM_KINDS, "rank_killed": (FaultKind.KILL,), "rank_hung": (FaultKind.STOP,)}
_FORM = "write e.g. '30 kill rank:1', 'every 60 kill,stop', 'poisson mtbf=2h kill' or 'random,120'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a schedule: one of at_s, every_s and mtbf_s is set.

    Attributes:
        at_s: once, so many seconds after the first stable step. every_s: at its multiples.
        mtbf_s: mean time between two faults of a node.
        kinds: one of them is drawn for each fault. target, duration_s, argument: see `Fault`.
    """

    at_s: float | None = None
    every_s: float | None = None
    mtbf_s: float | None = None
    kinds: tuple[FaultKind, ...] = RANDOM_KINDS
    target: str = ANY
    duration_s: float = 0.0
    argument: str = ""

    def __post_init__(self) -> None:
        for kind in self.kinds:  # what cannot work is refused before anything is broken
            Fault(kind=kind, target=self.target, duration_s=self.duration_s, argument=self.argument)

    def fault(self, at_s: float, seed: int, *place: object) -> Fault:
        """What strikes then; `place` is what its draws are for."""
        target = f"node:{place[1]}" if self.mtbf_s is not None and self.target == ANY else self.target
        return Fault(
            kind=self.kinds[draw(seed, *place, "kind") % len(self.kinds)],
            target=target,
            at_s=at_s,
            duration_s=self.duration_s,
            argument=self.argument,
            draw=draw(seed, *place, "draw"),
            name="-".join(map(str, place)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Entries, all of which hold."""

    entries: tuple[Entry, ...] = ()

    @property
    def is_per_node(self) -> bool:
        """Whether its faults depend on which nodes there are."""
        return any(entry.mtbf_s is not None for entry in self.entries)

    @property
    def end_s(self) -> float:
        """When its last fault strikes; infinite if it goes on for ever."""
        return max((math.inf if entry.at_s is None else entry.at_s for entry in self.entries), default=0.0)

    def plan(self, seed: int, until_s: float, nodes: Iterable[str] = ()) -> tuple[Fault, ...]:
        """All faults up to a time; `nodes`: those that are there."""
        return Course(self, seed).due(until_s, nodes)


class Course:
    """A schedule as it is carried out: goes forward in time, and draws nothing twice.

    Whoever looks at it twenty times a second would else draw the past of a thousand nodes at each look.
    """

    def __init__(self, schedule: Schedule, seed: int) -> None:
        self._schedule, self._seed = schedule, seed
        self._since_s = -1.0
        self._ahead: dict[tuple[int, str], tuple[Fault | None, Iterator[Fault]]] = {}  # the next one, and the rest

    def due(self, until_s: float, nodes: Iterable[str]) -> tuple[Fault, ...]:
        """The faults since the last call, by time; `nodes`: those that are there now.

        A node that comes, or comes back, has missed what was due meanwhile.
        """
        before, self._ahead = self._ahead, {}  # what is ahead of those that left is forgotten
        found: list[Fault] = []
        there = sorted(nodes)
        for number, entry in enumerate(self._schedule.entries):
            for node in there if entry.mtbf_s is not None else ("",):
                fault, rest = before.get((number, node)) or _begun(_faults(entry, number, self._seed, node))
                while fault is not None and fault.at_s <= until_s:
                    if self._since_s < fault.at_s:
                        found.append(fault)
                    fault = next(rest, None)
                self._ahead[number, node] = fault, rest
        self._since_s = until_s
        return tuple(sorted(found, key=lambda fault: (fault.at_s, fault.name)))


def _begun(faults: Iterator[Fault]) -> tuple[Fault | None, Iterator[Fault]]:
    return next(faults, None), faults


def _faults(entry: Entry, number: int, seed: int, node: str) -> Iterator[Fault]:
    """All faults of an entry, by time, and of a node where each has its own: without end, unless there is one."""
    if entry.at_s is not None:
        yield entry.fault(entry.at_s, seed, number)
        return
    at_s, count = 0.0, 0
    while entry.every_s is not None:
        count += 1
        yield entry.fault(count * entry.every_s, seed, number, count)
    assert entry.mtbf_s is not None
    while True:  # exponential intervals by inversion, -mean * ln(u): a Poisson process
        at_s -= entry.mtbf_s * log(chance(seed, number, node, count, "interval"))
        yield entry.fault(at_s, seed, number, node, count)
        count += 1


def parse(text: str) -> Schedule:
    """
    Raises:
        SettingError: an entry cannot be understood; quotes it.
    """
    lines = (line.partition("#")[0].strip().removeprefix("- ").strip() for line in re.split(r"[;\n]", text))
    return Schedule(entries=tuple(_entry(line) for line in lines if line))


def parse_sim_fault(text: str) -> Entry:
    """NVRx's names, or those of `FaultKind`, and a delay: "random,120".

    Raises:
        SettingError: it is something else.
    """
    name, _, delay = (part.strip() for part in text.partition(","))
    kinds = _NVRX.get(name) or (kind_of(name),)
    return Entry(at_s=seconds(delay, f"{text!r}: the delay "), kinds=kinds)


def schedule_of(chaos: Chaos | None) -> Schedule:
    """What a run injects by itself.

    Raises:
        SettingError: an entry cannot be understood; names the field.
    """
    if chaos is None or not chaos.enable_fault_injection:
        return Schedule()
    entries: list[Entry] = []
    if chaos.fault_injection_period_s:
        entries.append(Entry(every_s=chaos.fault_injection_period_s))
    try:
        entries += [parse_sim_fault(chaos.sim_fault_desc)] if chaos.sim_fault_desc else []
    except SettingError as error:
        raise SettingError(f"Chaos.sim_fault_desc: {error}") from None
    try:
        entries += parse(chaos.schedule).entries
    except SettingError as error:
        raise SettingError(f"Chaos.schedule: {error}") from None
    return Schedule(entries=tuple(entries))


def _entry(line: str) -> Entry:
    words = line.split()
    if re.fullmatch(r"[\w-]+,\s*[\d.]+[smhdy]?", line):
        return parse_sim_fault(line)
    if words[0] == "every" and len(words) > 1:
        return _with_what(line, words[2:], every_s=seconds(words[1], f"{line!r}: the period "))
    if words[0] == "poisson" and len(words) > 1 and words[1].startswith("mtbf="):
        mtbf_s = seconds(words[1].removeprefix("mtbf="), f"{line!r}: the mean time between failures ")
        return _with_what(line, words[2:], mtbf_s=mtbf_s)
    try:
        at_s = float(words[0])
    except ValueError:
        raise SettingError(f"{line!r} is no entry of a schedule: {_FORM}") from None
    if len(words) == 1 or not 0 <= at_s < math.inf:
        raise SettingError(f"{line!r} is no entry of a schedule: {_FORM}")
    return _with_what(line, words[1:], at_s=at_s)


def _with_what(line: str, words: list[str], **when: float) -> Entry:
    """The part of an entry behind its time: [KINDS] [TARGET] [for=SECONDS] [with=ARGUMENT]."""
    what: dict[str, str] = {}
    for place, word in enumerate(words):
        name, is_named, value = word.partition("=")
        if is_named and name in ("for", "with") and name not in what:
            what[name] = value
        elif place == 0 and not is_named and ":" not in word:
            what["kinds"] = word
        elif not is_named and "target" not in what:
            what["target"] = word
        else:
            raise SettingError(f"{line!r}: {word!r} has no place in it: {_FORM}")
    names = what.get("kinds", "random")
    kinds = RANDOM_KINDS if names == "random" else tuple(kind_of(name) for name in names.split(","))
    return Entry(
        **when,
        kinds=kinds,
        target=what.get("target", ANY),
        duration_s=seconds(what["for"], f"{line!r}: for=") if "for" in what else 0.0,
        argument=what.get("with", ""),
    )
