"""Effect. Reads what a plan needs, chunk by chunk, each checked against its sum before a byte of it is used.

A chunk that is bad, gone or out of reach is asked for at the next holder, nearest first; holders at one distance share
the chunks. What no holder gives is refused, with the shard and what each of them said: the caller takes an older step.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic.checkpoint import summing
from elastic.checkpoint.boxes import Piece, Plan, Want, byte_span, chunk_numbers, extent, is_one_run
from elastic.checkpoint.catalog import Candidate, Holder
from elastic.checkpoint.manifest import Entry, Manifest
from elastic.checkpoint.parallel import each
from elastic.checkpoint.source import Source, Tier
from elastic.checkpoint.store import MissingError, StoreError
from elastic.errors import CorruptError, RefusedError

Bytes = NDArray[np.uint8]

_FAILURES = (StoreError, CorruptError, OSError)  # of a source; what else it raises is a bug
_CONCLUSIVE = (CorruptError, MissingError)  # it will give nothing better later
_STRIKES = 3  # a source that could not be asked so often is asked last
_TOLD = 8
_PLACE_S = 60.0  # copying a chunk in memory takes milliseconds

# Whether the holders that were told of will do, though these sources have not answered yet.
Enough = Callable[[Sequence[Holder], Sequence[Source]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What sources hold.

    Attributes:
        silent: a sentence for each source that gave no answer, in time or at all. unheard: those sources.
    """

    holders: tuple[Holder, ...]
    silent: tuple[str, ...] = ()
    unheard: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How hard a read tries.

    Attributes:
        threads: chunks that are read at a time. rounds: how often all holders of a chunk are asked for it.
        timeout_s: for all of it; knob: the setting that it comes from, for messages.
        turn: whom to ask first among holders at one distance; differs by worker, so that not all ask the same one.
    """

    threads: int = 8
    rounds: int = 2
    timeout_s: float = 600.0
    turn: int = 0
    knob: str = "Limits.restore_timeout_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How much came from a source."""

    tier: str
    where: str
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """What was read of one shard.

    Attributes:
        places: the sources that gave it, most bytes first. nbytes: read and checked, whole chunks.
        seconds: from the first request to the last byte. retries: requests that gave nothing usable.
        failures: what the first of those said.
    """

    step: int
    shard: int
    places: tuple[Place, ...]
    nbytes: int
    seconds: float
    retries: int
    failures: tuple[str, ...] = ()


def take_inventory(
    sources: Sequence[Source], timeout_s: float = 60.0, step: int | None = None, enough: Enough | None = None
) -> Inventory:
    """Ask all sources at once; those that fail, or give no answer in time, are named and left out.

    Args:
        step: look at this one alone.
        enough: asked when nobody has answered for `parallel.QUIET_S`; if so, the others are not waited for.
    """
    found: dict[int, list[Holder]] = {}
    silent: dict[int, str] = {}

    def ask(number: int) -> None:
        source = sources[number]
        try:
            found[number] = [Holder(source=source, manifest=manifest) for manifest in source.manifests(step)]
        except _FAILURES as error:
            silent[number] = f"{source.where}: {error}"

    def is_enough() -> bool:
        there = [holder for number in sorted(list(found)) for holder in found[number]]
        waiting = [source for number, source in enumerate(sources) if number not in found and number not in silent]
        return enough is not None and enough(there, waiting)

    began_s = time.monotonic()
    late = each(range(len(sources)), ask, max(1, len(sources)), began_s + timeout_s, is_enough)
    waited_s = min(timeout_s, time.monotonic() - began_s)
    silent |= {number: f"{sources[number].where}: no answer within {waited_s:.3g} s" for number in late}
    answered = [number for number in sorted(found) if number not in silent]
    return Inventory(
        holders=tuple(holder for number in answered for holder in found[number]),
        silent=tuple(silent[number] for number in sorted(silent)),
        unheard=tuple(sources[number] for number in sorted(silent)),
    )


def read(candidate: Candidate, plan: Plan, into: Sequence[Bytes], effort: Effort | None = None) -> list[ShardReport]:
    """Fill all wants of a plan.

    Args:
        into: for each want (bytes,) uint8, contiguous; what it holds is undefined where this raises.

    Returns:
        One report for each shard that something was read of.

    Raises:
        RefusedError: a chunk cannot be had from any holder, or not in time; names its shard.
    """
    effort = effort or Effort()
    return _Reading(candidate, plan, into, effort).run()


def check(holder: Holder, is_deep: bool, effort: Effort | None = None) -> list[str]:
    """Look at every chunk of one holder's copy.

    Args:
        is_deep: read all bytes and compare their sums; else see that each chunk is there, to its last byte.

    Returns:
        A sentence for each chunk that is bad; one that the copy could not be looked at in time.
    """
    effort = effort or Effort()
    manifest, bad = holder.manifest, dict[int, str]()

    def look(chunk: int) -> None:
        try:
            if is_deep:
                _checked(holder, chunk)
            elif len(holder.source.read(manifest.key, manifest.chunk(chunk)[1] - 1, manifest.chunk(chunk)[1])) != 1:
                bad[chunk] = f"{manifest.name}: chunk {chunk} is cut off"
        except _FAILURES as error:
            bad[chunk] = str(error)

    deadline_s = time.monotonic() + effort.timeout_s
    late = each(range(len(manifest.chunks)), look, effort.threads, deadline_s)
    told = [bad[chunk] for chunk in sorted(bad)]
    return told + ([f"{manifest.name}: {len(late)} chunks not looked at in {effort.timeout_s:g} s"] if late else [])


@dataclass
class _Tally:
    """What became of one shard's requests."""

    given: Counter[tuple[str, str]] = field(default_factory=Counter)
    begun_s: float = math.inf
    ended_s: float = 0.0
    retries: int = 0
    failures: list[str] = field(default_factory=list)


class _Reading:
    """One call of `read`."""

    def __init__(self, candidate: Candidate, plan: Plan, into: Sequence[Bytes], effort: Effort) -> None:
        self._candidate, self._effort = candidate, effort
        self._deadline_s = time.monotonic() + effort.timeout_s
        self._lock = threading.Condition()
        self._placing, self._is_over = 0, False
        self._strikes: Counter[str] = Counter()
        self._tallies: dict[int, _Tally] = {}
        self._asked: dict[tuple[int, int], str] = {}
        manifests = candidate.manifests
        self._jobs = [(shard, chunk) for shard, chunks in plan.chunks(manifests).items() for chunk in chunks]
        self._landings: dict[tuple[int, int], list[_Landing]] = {}  # by job
        for piece in plan.pieces:
            landing = _Landing(piece, manifests[piece.shard], plan.wants[piece.want], into[piece.want])
            for chunk in landing.chunks:
                self._landings.setdefault((piece.shard, chunk), []).append(landing)

    def run(self) -> list[ShardReport]:
        try:
            late = each(self._jobs, self._fetch, self._effort.threads, self._deadline_s)
        finally:
            self._end()
        if late:
            job = next((one for one in late if one in self._asked), late[0])
            raise self._refused(*job, f"no answer from {self._asked.get(job, 'anybody')} {self._in_time}")
        return [self._report(shard) for shard in sorted(self._tallies)]

    @property
    def _in_time(self) -> str:
        return f"within {self._effort.timeout_s:g} s ({self._effort.knob})"

    def _end(self) -> None:
        """From here on nobody writes to the targets: what comes late is dropped."""
        with self._lock:
            self._is_over = True
            self._lock.wait_for(lambda: not self._placing, _PLACE_S)

    def _place(self, job: tuple[int, int], begin: int, data: Bytes) -> None:
        with self._lock:
            if self._is_over:
                return
            self._placing += 1
        try:
            for landing in self._landings[job]:
                landing.take(begin, data)
        finally:
            with self._lock:
                self._placing -= 1
                self._lock.notify_all()

    def _fetch(self, job: tuple[int, int]) -> None:
        shard, chunk = job
        with self._lock:
            tally = self._tallies.setdefault(shard, _Tally())
            tally.begun_s = min(tally.begun_s, time.monotonic())
        said, is_bad = [], any(holder.source.tier is Tier.PERSISTENT for holder in self._candidate.shards[shard])
        for holder in self._holders(shard, chunk):
            if time.monotonic() > self._deadline_s:
                said.append(f"nobody else was asked {self._in_time}")
                is_bad = False
                break
            self._asked[job] = holder.source.where
            try:
                data = _checked(holder, chunk)
            except _FAILURES as error:
                said.append(f"{holder.source.tier.name.lower()} {holder.source.where}: {error}")
                self._failed(tally, holder, error, said[-1])
                is_bad = is_bad and isinstance(error, _CONCLUSIVE)
                continue
            self._place(job, holder.manifest.chunk(chunk)[0], data)
            with self._lock:
                tally.given[holder.source.tier.name.lower(), holder.source.where] += len(data)
                tally.ended_s = time.monotonic()
            return
        raise self._refused(shard, chunk, "; ".join(said), is_bad=is_bad)

    def _holders(self, shard: int, chunk: int) -> Iterator[Holder]:
        """Whom to ask for a chunk, one after the other."""
        turn = chunk + self._effort.turn
        held = self._candidate.shards[shard]
        for _ in range(self._effort.rounds):
            tiers = sorted({holder.source.tier for holder in held})
            rows = [[holder for holder in held if holder.source.tier == tier] for tier in tiers]
            ordered = [holder for row in rows for holder in row[turn % len(row) :] + row[: turn % len(row)]]
            with self._lock:
                struck = {where for where, count in self._strikes.items() if count >= _STRIKES}
            yield from sorted(ordered, key=lambda holder: holder.source.where in struck)

    def _failed(self, tally: _Tally, holder: Holder, error: Exception, told: str) -> None:
        with self._lock:
            tally.retries += 1
            if len(tally.failures) < _TOLD:
                tally.failures.append(told)
            if not isinstance(error, CorruptError):
                self._strikes[holder.source.where] += 1

    def _refused(self, shard: int, chunk: int, why: str, *, is_bad: bool = False) -> RefusedError:
        name = self._candidate.shards[shard][0].manifest.name
        return RefusedError(f"{name}: chunk {chunk} cannot be had: {why}", shard=shard, chunk=chunk, is_bad=is_bad)

    def _report(self, shard: int) -> ShardReport:
        tally = self._tallies[shard]
        places = tuple(
            Place(tier=tier, where=where, nbytes=nbytes) for (tier, where), nbytes in tally.given.most_common()
        )
        return ShardReport(
            step=self._candidate.commit.step,
            shard=shard,
            places=places,
            nbytes=sum(place.nbytes for place in places),
            seconds=tally.ended_s - tally.begun_s,
            retries=tally.retries,
            failures=tuple(tally.failures),
        )


class _Landing:
    """Where a piece's bytes go; beside the target first where they do not lie side by side on both ends."""

    def __init__(self, piece: Piece, manifest: Manifest, want: Want, target: Bytes) -> None:
        self.begin, self.end = byte_span(piece, manifest)
        self._piece, self._want, self._target = piece, want, target
        self._entry: Entry = manifest.entries[piece.entry]
        self._item_bytes = self._entry.nbytes // math.prod(self._entry.shape)
        self.chunks = chunk_numbers(piece, manifest)
        ends = (manifest.chunk(chunk) for chunk in self.chunks)
        self._missing_bytes = sum(min(self.end, end) - max(self.begin, begin) for begin, end in ends)
        self._buffer: Bytes | None = None
        self._lock = threading.Lock()
        if is_one_run(piece.box, self._entry.box) and is_one_run(piece.box, want.box):
            first = self._destination().ctypes.data - target.ctypes.data
            self._buffer = target[first : first + self.end - self.begin]
        self._is_direct = self._buffer is not None

    def take(self, chunk_begin: int, data: Bytes) -> None:
        """Keep what belongs here of the chunk that begins there; the last one completes the piece."""
        begin, end = max(self.begin, chunk_begin), min(self.end, chunk_begin + len(data))
        with self._lock:
            if self._buffer is None:
                self._buffer = np.empty(self.end - self.begin, dtype=np.uint8)
        self._buffer[begin - self.begin : end - self.begin] = data[begin - chunk_begin : end - chunk_begin]
        with self._lock:
            self._missing_bytes -= end - begin
            is_complete = not self._missing_bytes
        if is_complete and not self._is_direct:
            self._destination()[...] = self._strided(self._buffer)
            self._buffer = None

    def _destination(self) -> NDArray[Any]:
        """The piece's place in the target, an array of its shape."""
        whole = self._target.view(f"V{self._item_bytes}").reshape(extent(self._want.box))
        corner = self._want.box[0]
        cut: list[Any] = [slice(low - at, high - at) for low, high, at in zip(*self._piece.box, corner, strict=True)]
        part: NDArray[Any] = whole[(*cut, Ellipsis)]  # a view, of a scalar too
        return part

    def _strided(self, buffer: Bytes) -> NDArray[Any]:
        """The piece in a run of the entry's bytes, an array of its shape."""
        strides, step = [], self._item_bytes
        for size in reversed(self._entry.shape):
            strides.append(step)
            step *= size
        items = buffer.view(f"V{self._item_bytes}")
        return np.lib.stride_tricks.as_strided(
            items, shape=extent(self._piece.box), strides=tuple(reversed(strides)), writeable=False
        )


def is_bad(holder: Holder, chunk: int) -> bool:
    """Whether a copy gives wrong bytes of a chunk, or none.

    Raises:
        StoreError, OSError: it cannot be said now.
    """
    try:
        _checked(holder, chunk)
    except _CONCLUSIVE:
        return True
    return False


def _checked(holder: Holder, chunk: int) -> Bytes:
    """A chunk's bytes.

    Raises:
        CorruptError: they are not those that were summed. StoreError, OSError: the source does not give them.
    """
    begin, end = holder.manifest.chunk(chunk)
    given = holder.source.read(holder.manifest.key, begin, end)
    data: Bytes = np.frombuffer(given, dtype=np.uint8)
    holder.manifest.verify(chunk, data, summing.value)
    return data
