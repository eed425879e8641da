"""Pure. What ml-goodput-measurement 0.2.3 says of a run, by its published formulae, from when its steps started.

It knows when steps and jobs start, and what is recorded by name. What lies between the starts of two steps whose
numbers follow each other is a step; a run is disrupted only where the number of a step comes again.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from elastic.ledger.book import Book
from elastic.ledger.model import Category, Definition, Seconds
from elastic.ledger.stretch import Stretch

C = Category
ASYNC = "DATA_LOADING_ASYNC"  # is shown, and counts nowhere


@dataclass(slots=True)
class _Block:
    """Steps of a stretch, from the `low`th up to the `high`th. end_s: when the one after them started."""

    stretch: Stretch
    low: int
    high: int
    end_s: float

    @property
    def first(self) -> int:
        return self.stretch.first + self.low

    @property
    def last(self) -> int:
        return self.stretch.first + self.high - 1

    @property
    def begin_s(self) -> float:
        return self.start_s(self.first)

    def start_s(self, number: int) -> float:
        place = number - self.stretch.first
        return self.stretch.ends_s[place - 1] if place else self.stretch.begin_s


@dataclass(slots=True)
class _Segment:
    """Steps up to where one comes again. again_s: when that one had started here; infinite: none comes."""

    blocks: list[_Block] = field(default_factory=list)
    again_s: float = inf

    @property
    def wasted_s(self) -> float:
        """Steps at or after the one that came again."""
        return sum(max(0.0, one.end_s - max(one.begin_s, self.again_s)) for one in self.blocks)

    @property
    def startup_s(self) -> float:
        """What the first step took beyond the mean of the others."""
        first, others = self.blocks[0], sum(one.high - one.low for one in self.blocks) - 1
        first_s = (first.start_s(first.first + 1) if first.last > first.first else first.end_s) - first.begin_s
        return max(0.0, first_s - (self._whole_s - first_s) / others) if others else 0.0

    @property
    def productive_s(self) -> float:
        return max(0.0, self._whole_s - self.wasted_s - self.startup_s)

    @property
    def _whole_s(self) -> float:
        return sum(one.end_s - one.begin_s for one in self.blocks)


def ml_goodput(book: Book, wall: Seconds, begin_s: float, end_s: float) -> Definition:
    """Of the time between two moments. wall: seconds in it, by category."""
    segments = _segments(book, begin_s, end_s)
    custom_s, saves_s, loading_s = _inside(book.stretches, begin_s, end_s)
    steps_s, total_s = sum(one.productive_s for one in segments), end_s - begin_s
    productive_s = max(0.0, steps_s - custom_s - saves_s)
    parts = {
        "TPU_INITIALIZATION": wall.get(C.WORKER_START, 0.0),
        "TRAINING_PREP": wall.get(C.INITIALIZATION, 0.0),
        "PROGRAM_STARTUP": sum(one.startup_s for one in segments),
        "DATA_LOADING_SYNC": max(0.0, wall.get(C.DATA_WAIT, 0.0) - loading_s),
        ASYNC: loading_s,
        "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME": wall.get(C.CHECKPOINT_STALL, 0.0),
        "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": wall.get(C.RESTORE, 0.0),
        "WASTED_PROGRESS_FROM_DISRUPTION": sum(one.wasted_s for one in segments),
        "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": sum(_recoveries(book, segments)),
        "CUSTOM_BADPUT_EVENTS": wall.get(C.EVALUATION, 0.0) + wall.get(C.CALLBACKS, 0.0),
    }
    counted_s = sum(seconds for name, seconds in parts.items() if name != ASYNC)
    parts["OTHER"] = max(0.0, total_s - productive_s - counted_s)
    return Definition(
        name="ml-goodput-measurement goodput",
        value=productive_s / total_s if total_s > 0 else None,
        formula="(from each step's start to the next one's, without steps that came again and what a first step took "
        f"beyond the mean - custom events - saves) / total = ({steps_s:.1f} - {custom_s:.1f} - {saves_s:.1f}) / "
        f"{total_s:.1f}, {max(0, len(segments) - 1)} disruptions",
        source="AI-Hypercomputer/ml-goodput-measurement 0.2.3, goodput.py",
        parts=parts,
    )


def _segments(book: Book, begin_s: float, end_s: float) -> list[_Segment]:
    """Of the steps between two moments. As one ends, the next one starts, or the job ends."""
    found: list[_Segment] = []
    for stretch in book.stretches:
        low = 1 + bisect_left(stretch.ends_s, begin_s) if stretch.begin_s < begin_s else 0
        high = bisect_right(stretch.ends_s, end_s)
        if low >= high:
            continue
        block = _Block(stretch, low, high, stretch.ends_s[high - 1])
        before = found[-1].blocks[-1] if found else None
        if before is not None and block.first <= before.last:
            found[-1].again_s = _start_s(found[-1].blocks, block.first)
        elif before is not None and block.first == before.last + 1:
            before.end_s = block.begin_s
        if before is None or block.first <= before.last:
            found.append(_Segment())
        found[-1].blocks.append(block)
    return found


def _start_s(blocks: Iterable[_Block], number: int) -> float:
    """When this step, or the first after it, had started."""
    block = next(one for one in blocks if one.last >= number)
    return block.start_s(max(number, block.first))


def _recoveries(book: Book, segments: list[_Segment]) -> Iterator[float]:
    """From the last start of a step before each disruption to the start of the job that came of it, if one did."""
    for before, after in zip(segments, segments[1:], strict=False):
        began_s = max((one.begin_s for one in book.lives if one.begin_s <= after.blocks[0].begin_s), default=0.0)
        yield max(0.0, began_s - before.blocks[-1].end_s)


def _inside(stretches: Iterable[Stretch], begin_s: float, end_s: float) -> tuple[float, float, float]:
    """What steps that count have spent on custom events, on saves, and on loading data."""
    custom_s, saves_s, loading_s = 0.0, 0.0, 0.0
    for one in stretches:
        inside_s, took_s = min(end_s, one.end_s) - max(begin_s, one.begin_s), one.end_s - one.begin_s
        if inside_s > 0 and not one.is_void:
            share = inside_s / took_s
            custom_s += share * (one.evaluation_s + one.callback_s)
            saves_s += share * one.stall_s
            loading_s += share * one.data_s
    return custom_s, saves_s, loading_s
