"""Pure. Which injected faults an incident comes of: by their times, its class, and whom it names."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from math import inf

from elastic.ledger.book import RAISED, Book, Entry, Struck

_LINK_S, _EARLY_S = 120.0, 0.3  # an incident is a fault's if it opens so much later, or, as clocks go, earlier

# What these can become; the others, whatever names the same worker or node.
_ONLY = {
    "slow": ("straggler",),
    "stop": ("worker hung", "worker unresponsive", "collective broken", "host silent", "straggler"),
    "notice": ("planned departure", "worker lost", "node lost"),
    "raise": (RAISED,),
}
_DEPARTURE = "planned departure"
_DEPARTING = ("notice", "xid")  # after which a worker leaves of its own accord; the others are no notice
_SENSED_ONLY = ("xid",)  # a line of a log: it harms nobody but by who reads it


def linked(book: Book) -> dict[int, int]:
    """For injected faults that the controller has noticed, the incident that they became, or were a part of."""
    found = [one for one in book.entries if one.its_number is not None or one.kind == RAISED]
    felt = [one for one in book.struck if one.what.kind not in _SENSED_ONLY or one.is_sensed]
    latest_first = _LatestFirst(felt)
    longest_s = max((one.until_s - one.what.at_s for one in felt), default=0.0)
    links: dict[int, int] = {}
    for entry in found:  # of several that struck before it opened, the latest for each of its culprits
        unexplained = set(entry.culprits)
        for struck in latest_first.between(entry.opened_s - _LINK_S - longest_s, entry.opened_s + _EARLY_S):
            if not unexplained:
                break
            whom = _hit(book, struck, entry) & unexplained
            if whom and struck.entry not in links and _has_opened(struck, entry):
                links[struck.entry] = entry.number
                unexplained -= whom
    for entry in found:  # what struck while it was open, and is no incident of its own, is a part of it
        for struck in latest_first.between(entry.opened_s, inf if entry.resumed_s is None else entry.resumed_s):
            if struck.entry not in links and _has_joined(book, struck, entry):
                links[struck.entry] = entry.number
    return links


class _LatestFirst:
    """Faults by when they struck: a run of weeks has tens of thousands, and as many incidents."""

    def __init__(self, struck: Iterable[Struck]) -> None:
        self._all = sorted(struck, key=lambda one: one.what.at_s, reverse=True)
        self._ago_s = [-one.what.at_s for one in self._all]

    def between(self, begin_s: float, end_s: float) -> list[Struck]:
        """Those that struck then, both ends included."""
        return self._all[bisect_left(self._ago_s, -end_s) : bisect_right(self._ago_s, -begin_s)]


def _hit(book: Book, struck: Struck, entry: Entry) -> set[str]:
    """The culprits of an incident that a fault was aimed at, by their names or their node's."""
    target = struck.what.target
    return {name for name in entry.culprits if target and target in (name, book.nodes.get(name, ""))}


def _has_opened(struck: Struck, entry: Entry) -> bool:
    """Whether an incident may have been opened by this fault: by its time and its class."""
    is_then = struck.what.at_s - _EARLY_S <= entry.opened_s <= struck.until_s + _LINK_S
    kind = struck.what.kind
    is_of_its_class = entry.kind in _ONLY.get(kind, (entry.kind,))
    return is_then and is_of_its_class and (kind in _DEPARTING or entry.kind != _DEPARTURE)


def _has_joined(book: Book, struck: Struck, entry: Entry) -> bool:
    """Whether a fault has struck while an incident was open that names whom it hit."""
    at_s = struck.what.at_s
    if not entry.opened_s <= at_s <= (inf if entry.resumed_s is None else entry.resumed_s):
        return False
    life = book.life_at(at_s)
    return life is not None and life.incarnation == entry.incarnation and bool(_hit(book, struck, entry))
