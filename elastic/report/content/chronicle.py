"""Pure. What stories are told from: sentences of the journal, the newest; what is left out is said in its place.

In a group of a thousand each member tells that a reduction broke: of what many say at once, a few are kept, and how
many more there were.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from elastic.report.content.model import Told

MOST = 20_000  # that are kept
_ALIKE = 5  # of one kind, told one by one
_TOGETHER_S = 1.0
_FIRST, _LAST = 30, 10  # of a story that has more
_DIGITS = 3

_at = attrgetter("at_s")


@dataclass(slots=True)
class _Sentence:
    """more: of its kind, which came right after it and are not kept."""

    at_s: float
    text: str
    more: int = 0

    @property
    def whole(self) -> str:
        return f"{self.text} (and {self.more} more lines like it)" if self.more else self.text


@dataclass(slots=True)
class _Burst:
    """Sentences of one kind, soon after each other; the last one that is kept."""

    since_s: float
    last: _Sentence
    count: int = 1


class Chronicle:
    """Takes sentences in, in the order of the journal. most: of them that are kept."""

    def __init__(self, most: int = MOST) -> None:
        self._told: deque[_Sentence] = deque(maxlen=most)
        self._bursts: dict[str, _Burst] = {}
        self._forgotten_s = -inf  # the moment of the newest that is not kept any more

    def add(self, at_s: float, kind: str, text: str) -> None:
        """One more. kind: of the line that it is made of."""
        burst = self._bursts.get(kind)
        if burst is not None and not 0 <= at_s - burst.since_s <= _TOGETHER_S:
            burst = None
        if burst is not None and burst.count >= _ALIKE:
            burst.last.more += 1
            return
        sentence = _Sentence(at_s, text)
        if len(self._told) == self._told.maxlen:
            self._forgotten_s = max(self._forgotten_s, self._told[0].at_s)
        self._told.append(sentence)
        if burst is None:
            self._bursts[kind] = _Burst(at_s, sentence)
        else:
            burst.last, burst.count = sentence, burst.count + 1

    def excerpts(self, stretches: Iterable[tuple[float, float]], began_s: float) -> Iterator[tuple[Told, ...]]:
        """What was told from the one moment to the other, for each pair; with moments since `began_s`."""
        told = list(self._told)
        for begin_s, end_s in stretches:
            found = told[bisect_left(told, begin_s, key=_at) : bisect_right(told, end_s, key=_at)]
            lines = list(_shortened(found))
            if self._forgotten_s >= begin_s:
                lost = f"earlier lines of the journal are not kept: a report has its newest {self._told.maxlen}"
                lines.insert(0, (min(self._forgotten_s, end_s), lost))
            yield tuple(Told(at_s=round(at_s - began_s, _DIGITS), text=text) for at_s, text in lines)


def _shortened(found: list[_Sentence]) -> Iterator[tuple[float, str]]:
    """The beginning and the end, and how much is between them."""
    left_out = found[_FIRST:-_LAST] if len(found) > _FIRST + _LAST else []
    for one in found[: _FIRST if left_out else None]:
        yield one.at_s, one.whole
    if left_out:
        count = sum(1 + one.more for one in left_out)
        yield left_out[0].at_s, f"{count} lines of the journal are left out here"
        for one in found[-_LAST:]:
            yield one.at_s, one.whole
