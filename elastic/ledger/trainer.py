"""Pure. Reads the events of other trainers, in the form that docs/goodput.md defines, into a book.

One JSON line an event: `t`, seconds of any clock, and `trainer`, its name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elastic.ledger.book import Book
from elastic.ledger.model import Category, Injected
from elastic.ledger.stretch import Step

Line = Mapping[str, Any]

# What a trainer may say that it does, between `begin` and `end`.
DOES = {
    one.value: one
    for one in (
        Category.WORKER_START,
        Category.INITIALIZATION,
        Category.COMPILATION,
        Category.DATA_WAIT,
        Category.CHECKPOINT_STALL,
        Category.RESTORE,
        Category.EVALUATION,
        Category.PAUSED,
        Category.FINISHING,
    )
}
_TIMED = (Category.DATA_WAIT, Category.CHECKPOINT_STALL, Category.EVALUATION)  # that steps have fields for


@dataclass(frozen=True, slots=True)
class _Cut:
    """A step that its job has died in, perhaps at its end. launch: of that job; next_life_s: when the next one came."""

    number: int
    began_s: float
    launch: int
    next_life_s: float


class TrainerReader:
    """Steps last from their start to the start of the next one, unless their end is told."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._launches = 0
        self._open: tuple[int, float] | None = None  # the step under way, and since when
        self._ended_s = 0.0
        self._workers, self._samples = 1, 0
        self._is_first = False
        self._does: tuple[Category, float] | None = None
        self._spent: dict[Category, float] = {}
        self._cut: _Cut | None = None  # the step that the last job to come so far has ended in
        self._last = -1
        self._acts: dict[str, Callable[[Line, float], None]] = {
            "job_started": self._started,
            "job_ended": self._ended,
            "step_started": self._step_started,
            "step_ended": self._step_ended,
            "begin": self._begin,
            "end": self._end,
            "checkpoint_saved": self._saved,
            "checkpoint_loaded": self._loaded,
            "fault": self._fault,
        }

    def read(self, line: Line) -> bool:
        """Take a line in; False if it is none of a trainer."""
        act, at_s = self._acts.get(str(line.get("trainer"))), float(line["t"])
        if act is None:
            return False
        act(line, at_s)
        self._book.see(at_s)
        return True

    def _started(self, line: Line, at_s: float) -> None:
        book = self._book
        self._launches += 1
        self._workers = int(line.get("workers", 1))
        if self._open is not None:  # the job has died in the middle of this step, or at its end: the next one will tell
            number, began_s = self._open
            book.see(began_s)
            self._cut = _Cut(number, began_s, self._launches - 1, at_s)
        self._open, self._does, self._spent, self._is_first = None, None, {}, True
        book.begin_life(at_s, self._launches, int(line.get("workers_asked", self._workers)))
        book.run = str(line.get("run", book.run))
        book.mark(at_s, Category.INITIALIZATION, book.cause)

    def _ended(self, line: Line, at_s: float) -> None:
        self._close(at_s)
        self._book.mark(at_s, Category.FINISHING)
        if self._book.lives:
            self._book.lives[-1].is_over = True

    # --- steps ---

    def _step_started(self, line: Line, at_s: float) -> None:
        number, book = int(line["step"]), self._book
        self._close(at_s)
        if self._cut is not None:
            self._settle_cut(number)
        if number <= self._last:
            book.go_back(number - 1, book.cause)
        workers = int(line.get("workers", self._workers))
        if self._is_first or self._does is not None:
            book.mark(at_s, None, book.cause, is_new=self._is_first)
        if workers != self._workers or self._is_first:
            self._resize(workers)
        self._samples = int(line.get("samples", self._samples))
        self._open, self._spent, self._ended_s = (number, at_s), {}, 0.0
        if self._does is not None:  # what was before it is told by its mark
            self._does = self._does[0], at_s

    def _resize(self, workers: int) -> None:
        book, self._workers = self._book, workers
        book.size(workers)
        is_short = bool(book.lives) and workers < book.lives[-1].workers
        book.short_by = (book.short_by if book.short_by is not None else book.cause) if is_short else None

    def _settle_cut(self, number: int) -> None:
        """The last step before a crash was committed if the job goes on behind it; nobody knows when it ended."""
        cut, self._cut = self._cut, None
        if cut is None or number <= cut.number:
            return
        usual_s = self._book.usual_s((self._workers, self._samples))
        until_s = min(cut.began_s + usual_s, cut.next_life_s)
        self._add(cut.number, cut.began_s, until_s, cut.launch, {}, is_first=False)
        for mark in self._book.marks:
            if mark.category is Category.BETWEEN_INCARNATIONS and cut.began_s <= mark.at_s < until_s:
                mark.at_s = until_s

    def _step_ended(self, line: Line, at_s: float) -> None:
        self._close(at_s)

    def _close(self, at_s: float) -> None:
        """The step under way is over."""
        if self._open is None:
            return
        number, since_s = self._open
        if self._does is not None:  # it goes on behind the step
            self._spend(self._does, at_s)
            self._does = self._does[0], at_s
            self._book.mark(at_s, self._does[0], self._book.cause)
        self._open = None
        self._add(number, since_s, at_s, self._launches, self._spent, self._is_first)
        self._is_first = False

    def _add(
        self, number: int, since_s: float, until_s: float, launch: int, spent: Mapping[Category, float], is_first: bool
    ) -> None:
        self._last = number
        self._book.step(
            Step(
                number=number,
                incarnation=launch,
                generation=launch,
                replicas=self._workers,
                samples=self._samples,
                since_s=since_s,
                started_s=since_s,
                committed_s=until_s,
                data_s=spent.get(Category.DATA_WAIT, 0.0),
                stall_s=spent.get(Category.CHECKPOINT_STALL, 0.0),
                evaluation_s=spent.get(Category.EVALUATION, 0.0),
                others={what: seconds for what, seconds in spent.items() if what not in _TIMED},
                is_first=is_first,
            )
        )

    # --- what else is done ---

    def _begin(self, line: Line, at_s: float) -> None:
        category = DOES.get(str(line.get("what")), Category.UNKNOWN)
        self._does = category, at_s
        if self._open is None:
            self._book.mark(at_s, category, self._book.cause)

    def _end(self, line: Line, at_s: float) -> None:
        if self._does is None:
            return
        if self._open is None:
            self._book.mark(at_s, Category.INITIALIZATION if self._is_first else None, self._book.cause)
        else:
            self._spend(self._does, at_s)
        self._does = None

    def _spend(self, does: tuple[Category, float], at_s: float) -> None:
        """What is done within a step has taken up to now."""
        category, since_s = does
        self._spent[category] = self._spent.get(category, 0.0) + at_s - since_s

    def _saved(self, line: Line, at_s: float) -> None:
        self._book.save(at_s, int(line["step"]))

    def _loaded(self, line: Line, at_s: float) -> None:
        self._book.loaded.append((at_s, int(line["step"])))

    def _fault(self, line: Line, at_s: float) -> None:
        """Somebody has broken it on purpose."""
        kind, target = str(line.get("kind", "fault")), str(line.get("target", ""))
        what = Injected(fault=f"{kind} {target}", kind=kind, target=target, at_s=at_s, proof=str(line.get("proof", "")))
        self._book.strike(what, float(line.get("duration_s", 0.0)))
