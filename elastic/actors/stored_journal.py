"""Effect. What the persistent tier has of a run's journal: segments of whole lines, each by itself or merged."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.checkpoint.merging import Number, Span, last_of, span_of, unread
from elastic.checkpoint.parallel import in_parallel
from elastic.checkpoint.records import Keys, opened, sealed
from elastic.checkpoint.seal import OtherVersionError
from elastic.checkpoint.store import Item, MissingError, Store
from elastic.errors import CorruptError

_KIND = "journal"
_READERS = 8  # a bucket takes tens of milliseconds for each object
_STALL_S = 300.0
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Segment:
    """Lines of a journal. begin: of their first byte in the file."""

    begin: int
    text: str

    @property
    def end(self) -> int:
        return self.begin + len(self.text.encode())


def encoded(segments: Sequence[Segment]) -> bytes:
    """One object: of one segment, or of those that are merged, in order."""
    body: dict[str, Any] = {"begin": segments[0].begin, "text": "".join(one.text for one in segments)}
    if len(segments) > 1:
        body["segments"] = [[one.begin, len(one.text)] for one in segments]
    return sealed(_KIND, body)


def decoded(data: bytes, span: Span) -> dict[Number, Segment]:
    """Read `encoded`'s object, whose key says which segments it holds.

    Raises:
        CorruptError: it is not what was written.
    """
    body = opened(_KIND, data)
    found: dict[Number, Segment] = {}
    at = 0
    try:
        text = str(body["text"])
        told = body["segments"] if span.is_merged else [(body["begin"], len(text))]
        for number, (begin, length) in zip(span.numbers, told, strict=True):
            found[number] = Segment(int(begin), text[at : at + length])
            at += length
        if at != len(text):
            raise CorruptError("it holds more than its segments")
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"it contradicts its key: {type(error).__name__}: {error}") from error
    return found


def objects(store: Store, run: str) -> dict[Span, Item]:
    """What is there of a run. Raises: StoreError: it cannot be listed."""
    items = store.list(Keys(run).folder("journal"))
    return {span: item for item in items if (span := span_of(item.key)) is not None}


def key_of(run: str, span: Span) -> str:
    return Keys(run).journal(span.incarnation, span.first, span.last if span.is_merged else None)


def read(store: Store, run: str, spans: Iterable[Span]) -> dict[Number, Segment]:
    """All segments of these objects, several at a time.

    Raises:
        StoreError: one cannot be read. CorruptError: one is not what was written.
    """
    found = in_parallel(
        lambda span: _read(store, run, span),
        list(spans),
        threads=_READERS,
        stall_s=_STALL_S,
        what=f"{store.url}: the journal of {run}",
    )
    return {number: segment for segments in found for number, segment in segments.items()}


def _read(store: Store, run: str, span: Span) -> dict[Number, Segment]:
    key = key_of(run, span)
    try:
        return decoded(store.read(key), span)
    except OtherVersionError:
        raise  # nothing is wrong with it
    except CorruptError as error:
        told = f"{store.url}: {key} is damaged ({error}): once it is deleted, the rest can be read"
        raise CorruptError(told) from error


class StoredJournal:
    """What the persistent tier has of a run's journal: first all, then what has come since."""

    def __init__(self, store: Store, run: str) -> None:
        self._store, self._run = store, run
        self._told, self._seen = set[Number](), set[Span]()

    def parts(self) -> Iterator[str]:
        """Whole lines that were not told before, a part at a time: a journal of weeks has gigabytes.

        Raises:
            StoreError: it cannot be read. CorruptError: a segment is not what was written.
        """
        for _ in range(_TRIES - 1):
            try:
                yield from self._parts()
            except MissingError:  # it was merged after it was listed
                continue
            return
        yield from self._parts()

    def _parts(self) -> Iterator[str]:
        there = objects(self._store, self._run)
        wanted = unread({one: item.modified_at_s for one, item in there.items() if one not in self._seen}, self._told)
        spans = sorted(wanted, key=lambda span: wanted[span][0])
        held: dict[Number, str] = {}
        for at in range(0, len(spans), _READERS):
            now, later = spans[at : at + _READERS], spans[at + _READERS : at + _READERS + 1]
            read_now = read(self._store, self._run, now)
            held |= {number: read_now[number].text for span in now for number in wanted[span]}
            ready = sorted(number for number in held if not later or number < wanted[later[0]][0])
            text = "".join(held.pop(number) for number in ready)
            self._told.update(ready)
            if text:
                yield text
        self._seen = set(there)


def knobs_of(store: Store, run: str) -> dict[str, Any]:
    """What the newest life of a run was told, by the knobs' paths (`Knob.path`); nothing where no line tells of it.

    Errors are those of `StoredJournal`.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            return _knobs_of(store, run)
        except MissingError:  # it was merged after it was listed
            if not tries_left:
                raise
    raise AssertionError("the last try returns, or raises")


def _knobs_of(store: Store, run: str) -> dict[str, Any]:
    there = objects(store, run)
    for life in sorted({span.incarnation for span in there}, reverse=True):
        newest: dict[str, Any] | None = None
        for span in sorted(one for one in there if one.incarnation == life):
            text = "".join(one.text for _, one in sorted(read(store, run, [span]).items()))
            for told in _settings_in(text):  # first of an earlier life, whose last lines this one has copied
                newest = told
            if newest is not None and newest["incarnation"] == life:
                break
        if newest is not None:
            return {path: one["value"] for path, one in newest["knobs"].items()}
    return {}


def _settings_in(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if '"Settings"' in line:
            with contextlib.suppress(ValueError):  # who was killed on the way has left a part of it
                told: dict[str, Any] = json.loads(line)
                if told.get("life") == "Settings":
                    yield told


def end_of(store: Store, run: str, incarnation: int | None = None) -> int:
    """How many bytes of the journal are there, by all lives or by one. Errors are those of `StoredJournal`."""
    last = last_of(span for span in objects(store, run) if incarnation in (None, span.incarnation))
    return 0 if last is None else read(store, run, [last])[last.incarnation, last.last].end
