"""Pure. Segments of a journal in the persistent tier: what a reader has yet to read, what is merged, what may go.

A day of a run has up to 17,000 segments, and each costs a reader a call. So some hundreds in a row become one object,
which holds each of them apart. It is there before they go, for longer than any listing takes: at no moment does one
lack a line, and for a while some are there twice. Readers go by the numbers of segments, and take each once.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

MOST, MOST_BYTES = 256, 8 << 20  # of segments in a merged one
KEPT_S = 600.0  # for so long they stay beside it
_WHOLE_S = 60.0  # after so long an object is whole, even where a store shows one while it is written
_KEY = re.compile(r"(\d{10})-(\d{10})(?:-(\d{10}))?")

Number = tuple[int, int]  # of a segment: of the life of the driver that wrote it, and within that


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """What one object holds: segments `first` to `last` of a life; of one that is not merged they are the same."""

    incarnation: int
    first: int
    last: int

    @property
    def is_merged(self) -> bool:
        return self.last > self.first

    @property
    def numbers(self) -> Iterator[Number]:
        return ((self.incarnation, number) for number in range(self.first, self.last + 1))


def span_of(key: str) -> Span | None:
    """What the object of a key holds, as `Keys.journal` names it; None for what is none of them."""
    match = _KEY.fullmatch(key.rpartition("/")[2])
    if match is None:
        return None
    incarnation, first, last = (int(part or match[2]) for part in match.groups())
    return Span(incarnation, first, last) if first <= last else None


def unread(there: Mapping[Span, float], known: Container[Number]) -> dict[Span, list[Number]]:
    """Which objects are to be read, and which segments are taken from each: those that are not known, each once.

    Args:
        there: when each was written, by one clock.
    """
    newest_s = max(there.values(), default=0.0)

    def rank(span: Span) -> tuple[int, Span]:
        """Merged ones first, whose segments may go at any time; but not those that may not be whole yet."""
        return (1 if not span.is_merged else 0 if there[span] + _WHOLE_S <= newest_s else 2), span

    taken: set[Number] = set()
    found: dict[Span, list[Number]] = {}
    for span in sorted(there, key=rank):
        wanted = [number for number in span.numbers if number not in known and number not in taken]
        if wanted:
            found[span] = wanted
            taken.update(wanted)
    return found


def last_of(there: Iterable[Span]) -> Span | None:
    """The object that holds the newest segment; the smaller one of two."""
    return max(there, key=lambda one: (one.incarnation, one.last, one.first), default=None)


def batches(there: Mapping[Span, int], incarnation: int) -> list[list[Span]]:
    """Segments that are to be merged, each list into one object: in a row, and in no merged one yet.

    The last one of a life is never among them: its driver may not have heard that it is there, and write it again with
    more lines.

    Args:
        there: the size of each object, bytes.
        incarnation: of the driver that writes now: its last segments wait until there are enough of them.
    """
    last = {span.incarnation: span for span in sorted(there, key=lambda one: one.last)}
    found: list[list[Span]] = []
    size_bytes = 0
    for span, holder in _held(there):
        if holder is not None or span.last == last[span.incarnation].last:
            continue
        if found and _is_next(span, found[-1]) and size_bytes + there[span] <= MOST_BYTES:
            found[-1].append(span)
            size_bytes += there[span]
        else:
            found.append([span])
            size_bytes = there[span]
    if found and found[-1][-1].incarnation >= incarnation and len(found[-1]) < MOST:
        found.pop()
    return [batch for batch in found if len(batch) > 1]


def due(there: Mapping[Span, float]) -> dict[Span, list[Span]]:
    """By merged object: the segments that it has taken the place of for long enough.

    Args:
        there: when each was written, by one clock.
    """
    newest_s = max(there.values(), default=0.0)
    found: dict[Span, list[Span]] = {}
    for span, holder in _held(there):
        if holder is not None and there[holder] + KEPT_S <= newest_s:
            found.setdefault(holder, []).append(span)
    return found


def _is_next(span: Span, batch: Sequence[Span]) -> bool:
    """Whether it comes after these, and there is room."""
    end = batch[-1]
    return len(batch) < MOST and (span.incarnation, span.first) == (end.incarnation, end.last + 1)


def _held(there: Iterable[Span]) -> Iterator[tuple[Span, Span | None]]:
    """Segments that are there by themselves, in order, and the merged object that holds each, if one does."""
    holder: Span | None = None
    for span in sorted(there, key=lambda one: (one.incarnation, one.first, -one.last)):
        if holder is not None and holder.incarnation != span.incarnation:
            holder = None
        if not span.is_merged:
            yield span, holder if holder is not None and span.first <= holder.last else None
        elif holder is None or span.last > holder.last:
            holder = span
