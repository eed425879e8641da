"""Pure. Steps that followed each other, kept together: what they took, and how long a step usually takes."""

from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from elastic.ledger.model import Category

_WINDOW_STEPS = 16
_EVERY = 4  # a window is looked at after so many steps
_SUMS = ("data_s", "stall_s", "evaluation_s", "callback_s", "others_s", "repeated_s")  # of a stretch

# Replicas, and samples: steps of one shape take equally long, if nothing is in their way. Of an update that is only
# a part of its step, as an optimizer's of several: minus its place among them, from 1.
Shape = tuple[int, int]
ANY_PART = 16  # of which it is not known, or one of as many: it is compared with none


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step as it was told.

    Attributes:
        since_s: when it could begin: the commit of the one before, or the go. started_s: of the attempt that was kept.
        data_s, stall_s, evaluation_s, callback_s: of the time since then, waited for data, for snapshots, and spent on
            evaluation, and in callbacks. callbacks: seconds by callback. others: on whatever else was done in it.
        part: of an update that is followed by another of the same step, its place among them, from 1.
        worker: that told of it.
        is_first: somebody in the group had never computed a step before. is_skipped: nobody applied it.
    """

    number: int
    incarnation: int = 0
    generation: int = 0
    attempt: int = 1
    replicas: int = 1
    samples: int = 0
    part: int = 0
    since_s: float
    started_s: float
    committed_s: float
    data_s: float = 0.0
    stall_s: float = 0.0
    evaluation_s: float = 0.0
    callback_s: float = 0.0
    callbacks: Mapping[str, float] = field(default_factory=dict)
    others: Mapping[Category, float] = field(default_factory=dict)
    worker: str = ""
    is_first: bool = False
    is_skipped: bool = False

    @property
    def shape(self) -> Shape:
        return self.replicas, -self.part or self.samples


class Usual:
    """How long a step of one shape takes at its best for a while: the smallest median of 16 in a row, so far.

    With fewer steps it is the median of those there are. Neither a slow half of a run nor a lucky step moves it.
    """

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_WINDOW_STEPS)
        self._paces_s = array("d")  # by step, the median of the 16 up to it
        self.seconds = 0.0

    @property
    def steps(self) -> int:
        return len(self._paces_s)

    def add(self, took_s: float) -> int:
        """One more step; returns its place among those of its shape."""
        self._last.append(took_s)
        place = len(self._paces_s)
        is_due = place < _WINDOW_STEPS or (place + 1) % _EVERY == 0
        self._paces_s.append(median(self._last) if is_due else self._paces_s[-1])
        self.seconds = self._paces_s[-1] if place < _WINDOW_STEPS else min(self.seconds, self._paces_s[-1])
        return place

    def pace_s(self, place: int) -> float:
        """The median of the 16 steps around one."""
        return self._paces_s[self.known(place)]

    def known(self, place: int) -> int:
        """Up to which step those around one are known."""
        return min(place + _WINDOW_STEPS // 2, len(self._paces_s) - 1)


@dataclass(slots=True, kw_only=True)
class Stretch:
    """Steps of one generation, one after the other without a gap.

    Attributes:
        samples: of a step; 0 until one with samples is told of. first: number of the first of them.
        ends_s: commit of each. cores_s: what each took, less what is in the sums. parts: which of its step each is.
        places: of each among those of its shape; -1: it is the first of somebody.
        data_s, stall_s, evaluation_s, callback_s, others_s, repeated_s: sums; the last is of attempts within a
            generation that were not kept. callbacks, others: seconds as told, by callback, and by what else was done.
            worker: that told of the first step.
        has_newcomers: the first of them was the first for somebody.
        cause: number of the incident that its generation followed. short_by: of the one since which it is short.
        voided_by: number of the incident for which the run went back behind them.
    """

    begin_s: float
    incarnation: int
    generation: int
    replicas: int
    samples: int
    first: int
    ends_s: "array[float]" = field(default_factory=lambda: array("d"))
    cores_s: "array[float]" = field(default_factory=lambda: array("d"))
    parts: "array[int]" = field(default_factory=lambda: array("i"))
    places: "array[int]" = field(default_factory=lambda: array("l"))
    data_s: float = 0.0
    stall_s: float = 0.0
    evaluation_s: float = 0.0
    callback_s: float = 0.0
    callbacks: dict[str, float] = field(default_factory=dict)
    others_s: float = 0.0
    others: dict[Category, float] = field(default_factory=dict)
    worker: str = ""
    repeated_s: float = 0.0
    has_newcomers: bool = False
    cause: int | None = None
    short_by: int | None = None
    voided_by: int | None = None
    is_void: bool = False
    most_parts: int = 0  # that a step has beside its last
    judged: Any = None  # what `spans.py` made of it, and what of

    @property
    def end_s(self) -> float:
        return self.ends_s[-1] if self.ends_s else self.begin_s

    @property
    def shape(self) -> Shape:
        """Of a whole step."""
        return self.replicas, self.samples

    def shape_of(self, place: int) -> Shape:
        """Of one of them."""
        return self.replicas, -self.parts[place] or self.samples

    def shapes(self) -> frozenset[Shape]:
        """Of all of them."""
        return frozenset((self.replicas, -part or self.samples) for part in range(self.most_parts + 1))

    @property
    def last(self) -> int:
        return self.first + len(self.ends_s) - 1

    @property
    def steps(self) -> int:
        return len(self.ends_s)

    def takes(self, step: Step, longest_s: float) -> bool:
        """Whether a step belongs to these."""
        is_next = step.number == self.last + 1 and not step.is_first and not self.is_void
        group, own = (step.incarnation, step.generation), (self.incarnation, self.generation)
        is_same = (group, step.replicas) == (own, self.replicas) and (step.part or self.samples in (0, step.samples))
        return is_next and bool(is_same) and self.end_s - self.begin_s < longest_s

    def add(self, step: Step, begin_s: float, end_s: float) -> float:
        """Take a step in that went from `begin_s` to `end_s`; returns what it took, less what is known of it."""
        left_s = end_s - begin_s
        repeated_s = 0.0
        if step.attempt > 1:
            repeated_s = max(0.0, step.started_s - begin_s - step.stall_s - step.evaluation_s - step.callback_s)
        taken = []
        others_s = sum(step.others.values())
        for told_s in (step.evaluation_s, step.stall_s, step.callback_s, repeated_s, step.data_s, others_s):
            taken.append(min(left_s, max(0.0, told_s)))
            left_s -= taken[-1]
        self.evaluation_s += taken[0]
        self.stall_s += taken[1]
        self.callback_s += taken[2]
        self.repeated_s += taken[3]
        self.data_s += taken[4]
        self.others_s += taken[5]
        for what, seconds in step.others.items():
            self.others[what] = self.others.get(what, 0.0) + seconds
        for name, seconds in step.callbacks.items():
            self.callbacks[name] = self.callbacks.get(name, 0.0) + seconds
        self.ends_s.append(end_s)
        self.cores_s.append(left_s)
        self.parts.append(step.part)
        self.most_parts = max(self.most_parts, step.part)
        self.samples = self.samples or step.samples
        return left_s

    def others_by_category(self) -> dict[Category, float]:
        """Seconds of `others_s`, as they were told in proportion."""
        told_s = sum(self.others.values())
        return {what: self.others_s * seconds / told_s for what, seconds in self.others.items()} if told_s > 0 else {}

    def split(self, keep: int) -> "Stretch":
        """Keep the first so many steps; returns the others. What only the sum of all is known of is shared evenly."""
        share = (self.steps - keep) / self.steps
        rest = Stretch(
            begin_s=self.ends_s[keep - 1],
            incarnation=self.incarnation,
            generation=self.generation,
            replicas=self.replicas,
            samples=self.samples,
            most_parts=self.most_parts,
            first=self.first + keep,
            ends_s=self.ends_s[keep:],
            cause=self.cause,
            short_by=self.short_by,
            callbacks=dict(self.callbacks),
            others=dict(self.others),
            worker=self.worker,
        )
        for name in _SUMS:
            whole_s = getattr(self, name)
            setattr(rest, name, whole_s * share)
            setattr(self, name, whole_s * (1 - share))
        rest.cores_s, self.cores_s = self.cores_s[keep:], self.cores_s[:keep]
        rest.places, self.places = self.places[keep:], self.places[:keep]
        rest.parts, self.parts = self.parts[keep:], self.parts[:keep]
        del self.ends_s[keep:]
        rest.level()
        self.level()
        return rest

    def level(self) -> None:
        """After a split the sums are estimates: let the whole be right."""
        known_s = sum(getattr(self, name) for name in _SUMS)
        whole_s, cores_s = self.end_s - self.begin_s, sum(self.cores_s)
        if known_s > 0:
            factor = max(0.0, whole_s - cores_s) / known_s
            for name in _SUMS:
                setattr(self, name, getattr(self, name) * factor)
