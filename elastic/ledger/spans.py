"""Pure. From what is written down to spans of time: each second gets a category, and whom it is to be blamed on.

Between two steps, what the control plane was doing counts. While steps were to be computed and none was, the time goes
to what followed: before a failure, the attempt in flight is redone, and what is beyond its usual time is detecting.
Within steps, what they took beyond the usual is drag, of one that took much longer, or of several that took a little
longer; from ten times the usual on, and a second, nothing went on at all, and nobody noticed.
"""

from bisect import bisect_right
from collections.abc import Iterator
from math import inf
from operator import attrgetter
from typing import NamedTuple

from elastic.ledger.book import REPEATED_STEPS, SLOW_STEPS, STALLED_STEP, Book, Entry, Mark
from elastic.ledger.causes import linked
from elastic.ledger.model import Category, Span
from elastic.ledger.stretch import Shape, Stretch
from elastic.ledger.waits import by_name, take, waits

_SLOW, _SLOW_S = 1.5, 0.05  # times the usual, and by how much: less is how a step may be
_DRAG = 1.1  # times the usual, if those around it take as long: from here on a straggler has a score
_STALLED, _STALLED_S = 10.0, 1.0
_STRAGGLER = "straggler"
_FELT_S = 1.0  # how long after its end an injected fault may still be felt
_IN_FLIGHT_S = 1.0  # steps are told a few at a time
_at = attrgetter("at_s")


class Piece(NamedTuple):
    """Seconds that went into one thing. incident: to blame; of what is productive, for who is missing."""

    begin_s: float
    end_s: float
    category: Category
    incident: int | None = None
    replicas: int = 0  # that computed; 0: nobody did
    rung: str = ""


class Judged(NamedTuple):
    """What the steps of a stretch took. drag, stalled: by incident. noted: waited for what others noted, by name."""

    useful_s: float
    compilation_s: float
    drag_s: dict[int, float]
    stalled_s: dict[int, float]
    noted_s: dict[str, float]


class Judge:
    """Turns a book into spans.

    Args:
        now_s: the end; None: the last moment that the book knows of.
    """

    def __init__(self, book: Book, now_s: float | None = None) -> None:
        self._book = book
        self._now_s = book.seen_s if now_s is None else max(now_s, book.seen_s)
        self.owners = linked(book)

    def spans(self) -> Iterator[Span]:
        """All of the run, in order, without gaps."""
        book, at_s = self._book, self._book.begin_s
        if at_s is None:
            return
        stretches = book.stretches
        if stretches:
            at_s = min(at_s, stretches[0].begin_s)
        before: Stretch | None = None
        for place in range(len(stretches) + 1):
            after = stretches[place] if place < len(stretches) else None
            end_s = after.begin_s if after is not None else self._now_s
            for piece in self._gap(at_s, end_s, before, after):
                yield self._span_of(piece)
            if after is not None:
                yield self._span_of_steps(after)
                at_s, before = max(at_s, after.end_s), after

    # --- between steps ---

    def _gap(self, begin_s: float, end_s: float, before: Stretch | None, after: Stretch | None) -> Iterator[Piece]:
        marks = self._book.marks
        place = bisect_right(marks, begin_s, key=_at) - 1
        at_s = begin_s
        while at_s < end_s:
            mark = marks[place] if place >= 0 else None
            following = marks[place + 1] if place + 1 < len(marks) else None
            until_s = end_s if following is None else min(end_s, following.at_s)
            if until_s > at_s:
                if mark is None:
                    yield Piece(at_s, until_s, Category.UNKNOWN)
                elif mark.category is not None:
                    yield Piece(at_s, until_s, mark.category, mark.incident, rung=mark.rung)
                else:
                    had_steps = before is not None and before.end_s > mark.at_s
                    sides = (before if had_steps else None, after if until_s == end_s else None)
                    yield from self._idle(at_s, until_s, mark, following, *sides)
            at_s, place = max(at_s, until_s), place + 1

    def _idle(
        self,
        begin_s: float,
        end_s: float,
        mark: Mark,
        following: Mark | None,
        before: Stretch | None,
        after: Stretch | None,
    ) -> Iterator[Piece]:
        """Steps were to be computed, and none is told of.

        Args:
            before, after: steps of the same time of training on this side, if there are any.
        """
        if after is not None and before is not None:
            yield from self._between(begin_s, end_s, before, after)
        elif after is not None:
            yield Piece(begin_s, end_s, Category.FORMING, mark.incident)
        elif following is None:
            yield from self._in_flight(begin_s, end_s, mark, before)
        elif following.incident is None:
            yield Piece(begin_s, end_s, Category.FINISHING)
        elif self._is_planned(following):
            yield Piece(begin_s, end_s, Category.DECIDING, following.incident)
        else:
            yield from self._broken(begin_s, end_s, following, before)

    def _between(self, begin_s: float, end_s: float, before: Stretch, after: Stretch) -> Iterator[Piece]:
        """Steps that nobody could tell of any more, as long as they take; behind them, and a pause, somebody hung."""
        usual_s, untold = self._book.usual_update_s(before.shape), max(0, after.first - before.last - 1)
        until_s = min(end_s, begin_s + (untold + 1) * _SLOW * usual_s) if usual_s else end_s
        yield Piece(begin_s, until_s, Category.PRODUCTIVE, before.short_by, before.replicas)
        if until_s < end_s:
            took = f"{end_s - begin_s:.1f} s from step {before.last} to step {after.first}"
            why = f"{took}; a step usually takes {usual_s:.2f} s"
            entry = self._infer(STALLED_STEP, before, end_s, until_s, why)
            entry.step, entry.resumed_s = after.first, end_s
            yield Piece(until_s, end_s, Category.DETECTING, entry.number)

    def _broken(self, begin_s: float, end_s: float, following: Mark, before: Stretch | None) -> Iterator[Piece]:
        """A failure ended it: first what was committed and never told, then the attempt in flight, then silence."""
        usual_s = self._book.usual_update_s(before.shape if before is not None else None) or inf
        at_s = begin_s
        if before is not None and (untold := self._untold(before)) and usual_s < inf:
            at_s = min(end_s, begin_s + untold * usual_s)
            yield Piece(begin_s, at_s, Category.PRODUCTIVE, before.short_by, before.replicas)
        overdue_s = min(end_s, at_s + usual_s)
        yield Piece(at_s, overdue_s, Category.REDONE, following.incident)
        yield Piece(overdue_s, end_s, Category.DETECTING, following.incident)

    def _untold(self, before: Stretch) -> int:
        """Steps that were committed after these, and were told by nobody."""
        if before.is_void:
            return 0
        stretches = self._book.stretches
        place = bisect_right(stretches, before.begin_s, key=attrgetter("begin_s"))
        following = next((one for one in stretches[place:] if not one.is_void), None)
        return max(0, following.first - before.last - 1) if following is not None else 0

    def _in_flight(self, begin_s: float, end_s: float, mark: Mark, before: Stretch | None) -> Iterator[Piece]:
        """The last that is known: the news of a step comes a little later than the step."""
        if before is None:
            yield Piece(begin_s, end_s, Category.COMPILATION if mark.is_new else Category.FORMING, mark.incident)
            return
        until_s = min(end_s, begin_s + 2 * self._book.usual_update_s(before.shape) + _IN_FLIGHT_S)
        yield Piece(begin_s, until_s, Category.PRODUCTIVE, before.short_by, before.replicas)
        yield Piece(until_s, end_s, Category.DETECTING)

    def _is_planned(self, mark: Mark) -> bool:
        return mark.incident is not None and self._book.entries[mark.incident].is_planned

    # --- within steps ---

    def _span_of_steps(self, stretch: Stretch) -> Span:
        took_s = stretch.end_s - stretch.begin_s
        asked, members = self._workers(stretch.begin_s, stretch.replicas)
        booked = _Booked(asked, members)
        callbacks: dict[str, float] = {}
        if stretch.is_void:
            booked.add(Category.REDONE, took_s, self._owner(stretch.voided_by))
            booked.lack(took_s, self._owner(stretch.short_by))
        else:
            judged, cause = self._judged(stretch), self._owner(stretch.cause)
            booked.add(Category.COMPILATION, judged.compilation_s, cause)
            booked.add(Category.REDONE, stretch.repeated_s, self._repeated(stretch) if stretch.repeated_s else None)
            for what, seconds in stretch.others_by_category().items():
                booked.add(what, seconds, cause)
            booked.add(Category.DATA_WAIT, stretch.data_s, None)
            booked.add(Category.CHECKPOINT_STALL, stretch.stall_s, None)
            booked.add(Category.EVALUATION, stretch.evaluation_s, None)
            booked.add(Category.CALLBACKS, stretch.callback_s + sum(judged.noted_s.values()), None)
            callbacks = by_name(stretch, judged.noted_s)
            for incident, seconds in judged.drag_s.items():
                booked.add(Category.STRAGGLER_DRAG, seconds, self._owner(incident))
            for incident, seconds in judged.stalled_s.items():
                booked.add(Category.DETECTING, seconds, self._owner(incident))
            booked.add_useful(judged.useful_s, self._owner(stretch.short_by))
            booked.lack(took_s, self._owner(stretch.short_by))
        return Span(
            begin_s=stretch.begin_s,
            end_s=stretch.end_s,
            wall_seconds=booked.wall,
            worker_seconds=booked.workers,
            workers=asked,
            stall_seconds={"staged": stretch.stall_s} if stretch.stall_s and not stretch.is_void else {},
            callback_seconds=callbacks,
            incidents=booked.incidents,
            incarnation=stretch.incarnation,
            generation=stretch.generation,
            replicas=stretch.replicas,
            first_step=stretch.first,
            ends_s=stretch.ends_s,
            is_void=stretch.is_void,
        )

    def _judged(self, stretch: Stretch) -> Judged:
        """Kept as long as nothing that it follows from has changed."""
        book = self._book
        usual_s = {shape: book.usual_s(shape) for shape in stretch.shapes()}
        usual, last = book.usual.get(stretch.shape_of(-1)), stretch.places[-1]
        known = usual.known(last) if usual is not None and last >= 0 else 0
        basis = (stretch.steps, usual_s, known, len(book.struck), book.notes, len(book.entries))
        if stretch.judged is None or stretch.judged[0] != basis:
            judged = self._judge(stretch, usual_s)
            stretch.judged = ((*basis[:-1], len(book.entries)), judged)
        found: Judged = stretch.judged[1]
        return found

    def _judge(self, stretch: Stretch, usual_by_shape_s: dict[Shape, float]) -> Judged:
        compilation_s, useful_s = 0.0, 0.0
        drag_s: dict[int, float] = {}
        stalled_s: dict[int, float] = {}
        noted, noted_s = waits(self._book.noted, stretch), dict[str, float]()
        for place, core_s in enumerate(stretch.cores_s):
            over_s, usual_s = 0.0, usual_by_shape_s[stretch.shape_of(place)]
            slow_s, least_s = (max(_SLOW * usual_s, usual_s + _SLOW_S), _DRAG * usual_s) if usual_s else (inf, inf)
            if not place and stretch.has_newcomers:
                over_s = max(0.0, core_s - usual_s) if usual_s else 0.0
                compilation_s += over_s
            elif core_s > least_s and core_s > (from_s := self._least_s(stretch, place, least_s, slow_s)):
                over_s = take(noted, stretch.first + place, core_s - usual_s, noted_s)
                if (left_s := core_s - over_s) > from_s:
                    is_stalled = left_s > _STALLED * usual_s and left_s - usual_s > _STALLED_S
                    whose, kind = (stalled_s, STALLED_STEP) if is_stalled else (drag_s, SLOW_STEPS)
                    incident = self._blamed(stretch, place, kind, core_s)
                    whose[incident] = whose.get(incident, 0.0) + left_s - usual_s
                    over_s = core_s - usual_s
            useful_s += core_s - over_s
        return Judged(useful_s, compilation_s, drag_s, stalled_s, noted_s)

    def _least_s(self, stretch: Stretch, place: int, together_s: float, alone_s: float) -> float:
        """From where on a step is slow: among others that are, or alone."""
        return together_s if self._book.pace_s(stretch, place) > together_s else alone_s

    def _blamed(self, stretch: Stretch, place: int, kind: str, core_s: float) -> int:
        """The incident that made a step slow: an injected fault, a straggler, or one that only shows in the step."""
        book, end_s = self._book, stretch.ends_s[place]
        begin_s = end_s - core_s
        felt = [one for one in book.struck if one.what.at_s <= end_s and begin_s <= one.hurts_until_s + _FELT_S]
        if felt:  # of several, the one that struck in this step, or before it as late as can be
            return max(felt, key=lambda one: (one.what.at_s >= begin_s, one.what.at_s)).entry
        if kind == SLOW_STEPS:
            group = (stretch.incarnation, stretch.generation)
            if stretch.cause is not None and book.openers[group] == stretch.first + place:
                return stretch.cause  # until that step is committed, all is its cost
            for entry in book.entries:
                if entry.kind == _STRAGGLER and self._is_of(stretch, entry.opened_s):
                    return entry.number
        step, usual_s = stretch.first + place, book.usual_s(stretch.shape_of(place))
        why = f"step {step} took {core_s:.3g} s, where {usual_s:.3g} s is usual"
        if kind == SLOW_STEPS:
            return self._infer(kind, stretch, float(stretch.generation), begin_s + usual_s, why).number
        entry = self._infer(kind, stretch, end_s, begin_s + usual_s, why)
        entry.step, entry.resumed_s = step, end_s
        return entry.number

    def _repeated(self, stretch: Stretch) -> int:
        """The incident of attempts that were made again in their generation: a loss was looked at twice."""
        why = "a loss was not finite, and was computed again elsewhere before anybody was blamed"
        return self._infer(REPEATED_STEPS, stretch, float(stretch.generation), stretch.begin_s, why).number

    def _infer(self, kind: str, stretch: Stretch, which: float, at_s: float, why: str) -> Entry:
        """An incident that only shows in the steps; the same one, whenever it is asked for."""
        book, key = self._book, (kind, float(stretch.incarnation), which)
        if key not in book.inferred:
            done, life = "none: it shows in the steps alone", stretch.incarnation
            book.inferred[key] = book.open(kind, at_s, evidence=(why,), decision=done, incarnation=life).number
        return book.entries[book.inferred[key]]

    def _is_of(self, stretch: Stretch, opened_s: float) -> bool:
        """Whether a straggler that was found then was in the group that computed these steps."""
        marks = self._book.marks
        begin = bisect_right(marks, stretch.begin_s, key=_at) - 1
        end = bisect_right(marks, opened_s, key=_at) - 1
        return begin == end

    # --- who is to blame ---

    def _owner(self, incident: int | None) -> int | None:
        return self.owners.get(incident, incident) if incident is not None else None

    # --- spans ---

    def _workers(self, at_s: float, replicas: int) -> tuple[int, int]:
        """How many were asked for, and how many computed."""
        life = self._book.life_at(at_s)
        width = life.width if life is not None else 1
        members = replicas * width
        return max(life.workers if life is not None else 0, members, 1), members

    def _span_of(self, piece: Piece) -> Span:
        asked, members = self._workers(piece.begin_s, piece.replicas)
        took_s = piece.end_s - piece.begin_s
        booked = _Booked(asked, members or asked)
        incident = self._owner(piece.incident)
        if piece.category is Category.PRODUCTIVE:
            booked.add_useful(took_s, incident)
            booked.lack(took_s, incident)
        else:
            booked.add(piece.category, took_s, incident)
        life = self._book.life_at(piece.begin_s)
        return Span(
            begin_s=piece.begin_s,
            end_s=piece.end_s,
            wall_seconds=booked.wall,
            worker_seconds=booked.workers,
            workers=asked,
            stall_seconds={piece.rung: took_s} if piece.rung else {},
            incidents=booked.incidents,
            incarnation=life.incarnation if life is not None else 0,
            replicas=piece.replicas,
        )


class _Booked:
    """Seconds of a span, by category, in both views, and by incident."""

    def __init__(self, asked: int, members: int) -> None:
        self._asked, self._members = asked, members
        self.wall: dict[Category, float] = {}
        self.workers: dict[Category, float] = {}
        self.incidents: dict[int, tuple[dict[Category, float], dict[Category, float]]] = {}

    def add(self, category: Category, wall_s: float, incident: int | None) -> None:
        """All who computed, or should have, spent so long on this."""
        self._book(category, wall_s, wall_s * self._members, incident)

    def add_useful(self, wall_s: float, short_by: int | None) -> None:
        """A step of n replicas, where N were asked for, is n/N of one; the rest is lost by those who lack."""
        share = self._members / self._asked
        self._book(Category.PRODUCTIVE, wall_s * share, wall_s * self._members, None)
        if share < 1:
            self._book(Category.REDUCED_CAPACITY, wall_s * (1 - share), 0.0, short_by)

    def lack(self, wall_s: float, short_by: int | None) -> None:
        """Those who lack did nothing all the time."""
        if self._asked > self._members:
            self._book(Category.REDUCED_CAPACITY, 0.0, wall_s * (self._asked - self._members), short_by)

    def _book(self, category: Category, wall_s: float, worker_s: float, incident: int | None) -> None:
        if wall_s <= 0 and worker_s <= 0:
            return
        views = [self.wall, self.workers]
        if incident is not None:
            views += self.incidents.setdefault(incident, ({}, {}))
        for view, seconds in zip(views, (wall_s, worker_s, wall_s, worker_s), strict=False):
            if seconds > 0:
                view[category] = view.get(category, 0.0) + seconds
