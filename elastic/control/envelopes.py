"""Pure. What monitors, relays and workers send, as a whole: what can be taken out of it, and a sentence about the rest.

What is taken out is judged one by one (`refusing.py`). A part that is garbage costs no other part; what is garbage as a
whole was not said, so who sends it is as one that is silent.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elastic.control import events as ev
from elastic.control.flight import Reading
from elastic.control.refusing import is_reading

MESSAGE = "message"  # the part of which all others are part


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a host monitor has said.

    Attributes:
        is_heard: it was a beat, so the host lives. why_not: about what else there was; empty: nothing.
        news: of any kind. readings: of its workers.
        number: how many news there have ever been, as far as the asker has to know; 0 where nobody counts.
    """

    is_heard: bool = True
    why_not: str = ""
    news: tuple[Any, ...] = ()
    readings: tuple[Reading, ...] = ()
    number: int = 0


@dataclass(slots=True)
class Heard:
    """What a relay tells.

    Attributes:
        events: news, each with the node whose monitor tells it, in the order in which it came.
        beat: which hosts are heard.
        lost: nodes whose monitor does not answer any more, and is not asked again.
        numbers: for each node that tells news, how many its monitor has ever had, up to these.
        refused: by node, what was not taken out of its monitor's last odd answer.
    """

    events: list[tuple[str, ev.Event]] = field(default_factory=list)
    beat: ev.HostsHeard = field(default_factory=lambda: ev.HostsHeard(nodes=()))
    lost: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def beat_of(node: str, message: Any) -> Beat:
    """Of a pair: news, and readings."""
    if not (_is_pair(message) and all(isinstance(one, list | tuple) for one in message)):
        return Beat(is_heard=False, why_not=f"the monitor of {node} answers with {_shape(message)}, which is no beat")
    news, told = message
    readings = tuple(one for one in told if is_reading(one))
    garbage = len(told) - len(readings)
    why_not = f"{garbage} of {len(told)} readings of the monitor of {node} are none" if garbage else ""
    return Beat(news=tuple(news), readings=readings, why_not=why_not)


def numbered_beat_of(node: str, message: Any, had: int) -> Beat:
    """Of a triple: how many news there have ever been, those that the asker lacks, and readings.

    Args:
        had: how many the asker has; it asks from there once more if this was no beat.
    """
    is_triple = isinstance(message, tuple) and len(message) == 3
    beat = beat_of(node, message[1:] if is_triple else (message,))
    if not beat.is_heard:
        return replace(beat, number=had)
    number = message[0]
    if not _is_count(number, had + len(beat.news)):
        why_not = f"the monitor of {node} counts {number!r:.40} news, though {len(beat.news)} came after {had}"
        return Beat(is_heard=False, why_not=why_not, number=had)
    return replace(beat, number=number)


def news_of(worker: str, message: Any, had: int) -> tuple[int, list[Any], str]:
    """What a worker tells: how many messages of news there have been, with this one, and what is in it; and why not.

    Args:
        had: how many there had been.
    """
    if not (_is_pair(message) and _is_count(message[0], had) and isinstance(message[1], list)):
        return had, [], f"{worker} answers with {_shape(message)}, which is not what workers tell"
    return message[0], message[1], ""


def text_of(node: str, message: Any) -> tuple[str, str]:
    """What a host monitor answers in words, empty where these are none; and why not."""
    if isinstance(message, str):
        return message, ""
    return "", f"the monitor of {node} answers with {_shape(message)}, which is no text"


def findings_of(message: Any) -> list[str]:
    """What a host monitor has found amiss: sentences, none if all is well; garbage is something amiss."""
    if isinstance(message, list) and all(isinstance(one, str) for one in message):
        return message
    return [f"it could not be checked: its monitor answers with {_shape(message)}, which are no sentences"]


def relayed(told: Any, hosts: Collection[str], had: Mapping[str, int]) -> tuple[Heard | None, dict[str, str]]:
    """What a relay tells of hosts that it hears, None if it is no message; and by its parts, a sentence about the rest.

    Args:
        hosts: that the relay is to hear. had: of each, how many of the news have come before.
    """
    if not _is_whole(told):
        return None, {MESSAGE: f"a relay answers with {_shape(told)}, which is not what relays tell"}
    odd: dict[str, list[Any]] = {}
    events, odd["news"] = _parted(told.events, lambda one: _is_pair(one) and _is_of(one[0], hosts))
    nodes, odd["hosts"] = _parted(told.beat.nodes, lambda one: _is_of(one, hosts))
    readings, odd["readings"] = _parted(told.beat.readings, is_reading)
    lost, odd["losses"] = _parted(told.lost, lambda one: _is_of(one, hosts))
    refused, odd["refusals"] = _parted(told.refused.items(), lambda one: _is_of(one[0], hosts) and type(one[1]) is str)
    counts = Counter(node for node, _ in events)
    least = {node: had.get(node, 0) + counts[node] for node in hosts}
    numbers, odd["numbers"] = _parted(
        told.numbers.items(), lambda one: _is_of(one[0], hosts) and _is_count(one[1], least[one[0]])
    )
    why_not = {f"beat of {node}": why for node, why in refused}
    for part, rest in odd.items():
        if rest:
            what = f"{part} that are none, or of a host that it does not hear"
            why_not[part] = f"a relay tells {what}: {rest[0]!r:.80}"
    own = Heard(events=events, beat=ev.HostsHeard(nodes=tuple(nodes), readings=tuple(readings)), lost=lost)
    own.numbers = {node: least[node] for node in counts} | dict(numbers)
    return own, why_not


def _parted(every: Iterable[Any], is_right: Callable[[Any], bool]) -> tuple[list[Any], list[Any]]:
    """Those that are right, and the rest."""
    right, rest = list[Any](), list[Any]()
    for one in every:
        (right if is_right(one) else rest).append(one)
    return right, rest


def _is_whole(told: Any) -> bool:
    if type(told) is not Heard or type(told.beat) is not ev.HostsHeard:
        return False
    has_lists = isinstance(told.events, list) and isinstance(told.lost, list)
    has_tuples = isinstance(told.beat.nodes, tuple) and isinstance(told.beat.readings, tuple)
    return has_lists and has_tuples and isinstance(told.numbers, dict) and isinstance(told.refused, dict)


def _is_pair(one: Any) -> bool:
    return isinstance(one, tuple) and len(one) == 2


def _is_of(node: Any, hosts: Collection[str]) -> bool:
    return isinstance(node, str) and node in hosts


def _is_count(number: Any, least: int) -> bool:
    return type(number) is int and number >= least


def _shape(message: Any) -> str:
    """By kinds: what garbage holds is not for the log."""
    if isinstance(message, list | tuple) and len(message) <= 4:
        return f"{type(message).__name__}({', '.join(type(one).__name__ for one in message)})"
    return type(message).__name__
