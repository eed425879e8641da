"""Pure. The ledger: fed with lines, one by one; asked at any time where the time went."""

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from elastic.ledger.book import INFERRED, Book, Entry
from elastic.ledger.definitions import definitions
from elastic.ledger.journal import JournalReader
from elastic.ledger.ml_goodput import ml_goodput
from elastic.ledger.model import Account, Category, Incident, Injected, Seconds, Span, Steps
from elastic.ledger.spans import Judge
from elastic.ledger.trainer import TrainerReader

_FRESH_S, _FRESH_SHARE = 1.0, 0.005  # how old a goodput may be, in seconds, and as a share of the run so far

Booked = dict[Category, float]


class Ledger:
    """Of one run, over all its lives. Feeding costs the same however long the run; asking, a little more each day.

    Attributes:
        is_of_trainer: another trainer has told of it, whose clock may be any.
    """

    def __init__(self) -> None:
        self._book, self.is_of_trainer = Book(), False
        self._readers = (JournalReader(self._book), TrainerReader(self._book))
        self._goodput, self._asked_s = 0.0, 0.0

    def feed(self, line: Mapping[str, Any]) -> bool:
        """Take a line in, as JSON has it; False if it is none that a ledger knows, or one of another version."""
        is_of_trainer = "trainer" in line
        try:
            is_known = isfinite(line["t"]) and self._readers[is_of_trainer].read(line)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            return False
        self.is_of_trainer |= is_of_trainer and is_known
        return is_known

    def feed_text(self, text: str) -> bool:
        """The same for a line of text; False too if it was cut in the middle."""
        try:
            line = json.loads(text)
        except (RecursionError, ValueError):
            return False
        return isinstance(line, dict) and self.feed(line)

    @property
    def is_empty(self) -> bool:
        """No line has told anything."""
        return self._book.begin_s is None

    @property
    def goodput(self) -> float:
        """Productive share of the worker-seconds so far; up to a second old, or half a percent of the run."""
        book = self._book
        age_s, so_far_s = book.seen_s - self._asked_s, book.seen_s - (book.begin_s or 0.0)
        if age_s > max(_FRESH_S, _FRESH_SHARE * so_far_s) or not self._goodput:
            self._goodput, self._asked_s = self.account().goodput, book.seen_s
        return self._goodput

    def account(self, now_s: float | None = None, between: tuple[float, float] | None = None) -> Account:
        """Where the time went.

        Args:
            now_s: the end, for a run that goes on; None: the last moment that a line tells of.
            between: only from the one to the other moment, as far as the run lies there; where one falls into a stretch
                of steps (some seconds), what they went into is shared out evenly.
        """
        book, judge = self._book, Judge(self._book, now_s)
        spans = list(judge.spans())
        whole = (spans[0].begin_s, spans[-1].end_s) if spans else 2 * (book.begin_s or 0.0,)
        begin_s, end_s = (min(max(at_s, whole[0]), whole[1]) for at_s in between or whole)
        end_s = max(begin_s, end_s)
        sums = _Sums()
        for span in spans:
            sums.add(span, begin_s, end_s)
        saved, loaded = (_then(told, begin_s, end_s) for told in (book.saved, book.loaded))
        steps = sums.steps(book.usual_update_s(), max(saved, default=None), loaded)
        return Account(
            run=book.run,
            run_begin_s=whole[0],
            run_end_s=whole[1],
            begin_s=begin_s,
            end_s=end_s,
            workers_s=sums.workers_s,
            wall_seconds=sums.wall,
            worker_seconds=sums.workers,
            stall_seconds=sums.stalls,
            callback_seconds=sums.callbacks,
            incidents=self._incidents(judge, sums, begin_s, end_s),
            steps=steps,
            incarnations=sum(one.begin_s <= end_s and begin_s <= one.end_s for one in book.lives),
            is_live=bool(book.lives) and not book.lives[-1].is_over,
            definitions=(
                *definitions(sums.wall, sums.workers, steps),
                ml_goodput(book, sums.wall, begin_s, end_s),
            ),
        )

    def _incidents(self, judge: Judge, sums: "_Sums", begin_s: float, end_s: float) -> tuple[Incident, ...]:
        """Those that cost something, or began; a fault that was injected is told with the incident that it became."""
        caused: dict[int, list[Injected]] = {}
        for struck in sorted(self._book.struck, key=lambda one: one.what.at_s):
            caused.setdefault(judge.owners.get(struck.entry, struck.entry), []).append(struck.what)
        found = []
        for entry in self._book.entries:
            costs = sums.incidents.get(entry.number)
            if entry.number in judge.owners or (costs is None and not begin_s <= round(entry.opened_s, 6) <= end_s):
                continue
            if costs is None and (entry.is_planned or entry.kind in INFERRED):
                continue
            began_s = min(sums.overdue_s.get(entry.number, entry.opened_s), entry.opened_s)
            found.append(_incident(entry, began_s, caused.get(entry.number, []), costs or ({}, {})))
        return tuple(sorted(found, key=lambda one: one.opened_s))


def ledger_of(lines: Iterable[str]) -> tuple[Ledger, tuple[int, ...]]:
    """From the lines of a file; with the numbers of those that tell it nothing, from 1, which count for nothing.

    Empty ones are none of these, nor is the beginning of one that is being written.
    """
    ledger, passed_over = Ledger(), list[int]()
    for number, text in enumerate(lines, start=1):
        if not ledger.feed_text(text) and text.strip() and text.endswith("\n"):
            passed_over.append(number)
    return ledger, tuple(passed_over)


def _incident(entry: Entry, began_s: float, injected: Iterable[Injected], costs: tuple[Seconds, Seconds]) -> Incident:
    return Incident(
        number=entry.number,
        incarnation=entry.incarnation,
        its_number=entry.its_number,
        kind=entry.kind,
        is_planned=entry.is_planned,
        began_s=began_s,
        opened_s=entry.opened_s,
        decided_s=entry.decided_s,
        resumed_s=entry.resumed_s,
        culprits=entry.culprits,
        evidence=entry.evidence,
        decision=entry.decision,
        replicas_before=entry.replicas_before,
        replicas_after=entry.replicas_after,
        step=entry.step,
        injected=tuple(injected),
        wall_seconds=costs[0],
        worker_seconds=costs[1],
    )


class _Sums:
    """Adds spans up.

    Attributes:
        overdue_s: by incident, the first moment at which nothing went on and nobody had noticed.
    """

    def __init__(self) -> None:
        self.wall: Booked = {}
        self.workers: Booked = {}
        self.workers_s = 0.0
        self.stalls: dict[str, float] = {}
        self.callbacks: dict[str, float] = {}
        self.incidents: dict[int, tuple[Booked, Booked]] = {}
        self.overdue_s: dict[int, float] = {}
        self._kept = self._redone = self._broken = 0
        self._last = -1

    def add(self, span: Span, begin_s: float, end_s: float) -> None:
        """What of a span lies between the two moments."""
        took_s, inside_s = span.end_s - span.begin_s, min(end_s, span.end_s) - max(begin_s, span.begin_s)
        if inside_s < 0 or (took_s > 0 and inside_s == 0):
            return
        share = inside_s / took_s if took_s > 0 else 1.0
        self.workers_s += span.workers * inside_s
        _add(self.wall, span.wall_seconds, share)
        _add(self.workers, span.worker_seconds, share)
        for rung, seconds in span.stall_seconds.items():
            self.stalls[rung] = self.stalls.get(rung, 0.0) + seconds * share
        for name, seconds in span.callback_seconds.items():
            self.callbacks[name] = self.callbacks.get(name, 0.0) + seconds * share
        for number, (wall, workers) in span.incidents.items():
            costs = self.incidents.setdefault(number, ({}, {}))
            _add(costs[0], wall, share)
            _add(costs[1], workers, share)
            if Category.DETECTING in wall and span.first_step is None:
                self.overdue_s.setdefault(number, span.begin_s)
        self._count(span, begin_s, end_s)

    def _count(self, span: Span, begin_s: float, end_s: float) -> None:
        """What was committed, or broke off, between the two moments."""
        if span.first_step is None:
            self._broken += Category.REDONE in span.wall_seconds and span.end_s <= end_s
            return
        before = bisect_right(span.ends_s, begin_s) if begin_s > span.begin_s else 0
        until = bisect_right(span.ends_s, end_s)
        if span.is_void:
            self._redone += until - before
        else:
            self._kept += until - before
            self._last = max(self._last, span.first_step + until - 1) if until > before else self._last

    def steps(self, usual_s: float, saved: int | None, loaded: tuple[int, ...]) -> Steps:
        """What was counted, with what the book knows."""
        return Steps(
            kept=self._kept,
            redone=self._redone,
            broken=self._broken,
            last=self._last,
            usual_s=usual_s,
            saved=saved,
            loaded=loaded,
        )


def _then(told: Iterable[tuple[float, int]], begin_s: float, end_s: float) -> tuple[int, ...]:
    """The steps of which something was told between two moments."""
    return tuple(step for at_s, step in told if begin_s <= at_s <= end_s)


def _add(into: Booked, seconds: Seconds, share: float) -> None:
    for category, one in seconds.items():
        into[category] = into.get(category, 0.0) + one * share
