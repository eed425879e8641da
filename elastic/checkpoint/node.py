"""Effect. What one node holds: its workers' slots, some of them pinned, and a shelf of copies from other nodes.

A copy is taken in parts of a few chunks. Each chunk is verified as it comes, and the next part is on its way meanwhile.
Room for all of it is set aside before the first byte is asked for: what does not fit is refused, never spilled.
"""

import contextlib
import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.checkpoint.rungs import Copy, Holding, copy_of
from elastic.checkpoint.source import Source
from elastic.checkpoint.store import MissingError, StoreError
from elastic.errors import CorruptError, NoRoomError

log = logging.getLogger("elastic")

PART_BYTES = 64 << 20
MIN_BYTES_PER_S = 10e6  # a peer that is slower than this is given up
FIRST_BYTE_S = 10.0


class Peer(Protocol):
    """Another node, asked for what it holds. Attribute `where`: for people."""

    where: str

    def manifest(self, key: ShardKey, timeout_s: float) -> Manifest:
        """Of one shard. Raises: MissingError, StoreError, CorruptError."""

    def fetch(self, key: ShardKey, begin: int, end: int, timeout_s: float) -> Any:
        """Bytes [begin, end) of its payload, (end - begin,) uint8, unverified. Raises: MissingError, StoreError."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some chunks of a copy: the bytes, and what keeps them alive."""

    begin: int
    end: int
    keeper: Any
    array: Any


@dataclass(frozen=True, slots=True)
class Copied:
    """A shard that was pulled, whole and verified."""

    manifest: Manifest
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """How a pull went."""

    where: str
    nbytes: int
    seconds: float
    retries: int


class Node:
    """See the module. Methods may be called from any thread.

    Args:
        name: of the node, for errors.
        memory: its slots; an array that it hands out keeps its slot from being overwritten.
        budget_bytes: what copies may take.
        put: puts a (n,) uint8 array where copies live; returns (what keeps it alive, its bytes there).
        part_bytes: of what is asked for at once; rounded to whole chunks.
    """

    def __init__(
        self,
        name: str,
        memory: Source,
        budget_bytes: int,
        put: Callable[[Any], tuple[Any, Any]],
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.name, self.life = name, uuid.uuid4().hex
        self._memory, self._put, self._part_bytes = memory, put, part_bytes
        self._budget_bytes, self._used_bytes = budget_bytes, 0
        self._pins: dict[Copy, Any] = {}
        self._shelf: dict[Copy, Copied] = {}
        self._pulling: set[Copy] = set()
        self._number = 0
        self._lock = threading.Lock()

    # --- what is here ---

    def holding(self) -> Holding:
        """What it holds now."""
        with self._lock:  # so that a later number is never an earlier look
            slots = {copy_of(manifest.key): manifest.key for manifest in self._memory.manifests()}
            self._number += 1
            return Holding(
                life=self.life,
                number=self._number,
                slots=frozenset(slots.values()),
                pinned=frozenset(key for copy, key in slots.items() if copy in self._pins),
                copies=frozenset(copied.manifest.key for copied in self._shelf.values()),
                nbytes=self._used_bytes,
                budget_bytes=self._budget_bytes,
            )

    def manifests(self, step: int | None = None) -> list[Manifest]:
        """Of all whole shards here, or those of one step, newest step first; each once."""
        with self._lock:
            copied = [one.manifest for one in self._shelf.values() if step in (None, one.manifest.commit.step)]
        found = {copy_of(one.key): one for one in (*copied, *self._memory.manifests(step))}
        return sorted(found.values(), key=lambda one: (-one.commit.step, one.shard))

    def manifest(self, key: ShardKey) -> Manifest:
        """Of one shard.

        Raises:
            MissingError: it is not here (any more).
        """
        found = next((one for one in self.manifests(key.commit.step) if one.key.is_same(key)), None)
        if found is None:
            raise self._missing(key)
        return found

    def read(self, key: ShardKey, begin: int, end: int) -> Any:
        """Bytes [begin, end) of a shard's payload, (end - begin,) uint8.

        Raises:
            MissingError: the shard is not here (any more).
        """
        with self._lock:
            copied, pinned = self._shelf.get(copy_of(key)), self._pins.get(copy_of(key))
        if copied is not None:
            return _between(copied, begin, end)
        return pinned[begin:end] if pinned is not None else self._memory.read(key, begin, end)

    # --- what is to be here ---

    def pin(self, keys: Collection[ShardKey]) -> None:
        """Keep these slots, as far as they are here, from being overwritten; let all others go."""
        wanted = {copy_of(key): key for key in keys}
        with self._lock:
            self._pins = {copy: array for copy, array in self._pins.items() if copy in wanted}
            new = [key for copy, key in wanted.items() if copy not in self._pins]
        lengths = {copy_of(one.key): one.nbytes for one in self._memory.manifests()} if new else {}
        for key in new:
            with contextlib.suppress(MissingError, KeyError):
                array = self._memory.read(key, 0, lengths[copy_of(key)])
                with self._lock:
                    self._pins[copy_of(key)] = array

    def drop(self, key: ShardKey) -> None:
        """Give a copy up; readers keep what they have in hand."""
        with self._lock:
            copied = self._shelf.pop(copy_of(key), None)
            if copied is not None:
                self._used_bytes -= copied.manifest.nbytes

    def pull(self, key: ShardKey, peers: Sequence[Peer]) -> Pulled:
        """Take a copy of a shard from the first peer that gives it whole.

        Raises:
            NoRoomError: the budget does not allow it; nothing was transferred.
            StoreError: no peer gave it; names each with its reason.
        """
        reasons: list[str] = []
        with self._alone(key) as is_needed:
            for peer in peers if is_needed else ():
                try:
                    return self._pull_from(peer, key, len(reasons))
                except (StoreError, CorruptError) as error:
                    log.warning("node %s could not pull from %s: %s", self.name, peer.where, error)
                    reasons.append(f"{peer.where}: {error}")
        if is_needed:
            raise StoreError(f"node {self.name} could not pull {_name(key)}: {'; '.join(reasons) or 'from nobody'}")
        return Pulled(where=self.name, nbytes=0, seconds=0.0, retries=0)

    @contextlib.contextmanager
    def lent(self, key: ShardKey) -> Iterator[tuple[Manifest, Callable[[int, int], Any]]]:
        """A shard that stays as long as the context, however slow its reader is: (manifest, read(begin, end)).

        A slot is copied first, where the budget allows it, so that a slow reader takes none from the trainer.

        Raises:
            MissingError: it is not here (any more).
        """
        manifest = self.manifest(key)
        with self._lock:
            copied = self._shelf.get(copy_of(key))
        if copied is not None:
            yield manifest, functools.partial(_between, copied)
            return
        slot = self._memory.read(key, 0, manifest.nbytes)
        try:
            self._take_room(manifest)
        except NoRoomError as error:
            log.debug("a slot stays pinned while it is read: %s", error)
            yield manifest, functools.partial(_slice, slot)
            return
        try:
            own = Copied(manifest, tuple(self._keep(begin, slot[begin:end]) for begin, end in self._cuts(manifest)))
            del slot
            yield manifest, functools.partial(_between, own)
        finally:
            self._give_room(manifest)

    # --- how a copy is taken ---

    def _pull_from(self, peer: Peer, key: ShardKey, retries: int) -> Pulled:
        began_s = time.monotonic()
        manifest = peer.manifest(key, FIRST_BYTE_S)
        if not manifest.key.is_same(key):
            raise CorruptError(f"{peer.where} was asked for {_name(key)} and told of {_name(manifest.key)}")
        self._take_room(manifest)
        try:
            copied = Copied(manifest, tuple(self._parts(peer, manifest)))
        except BaseException:
            self._give_room(manifest)
            raise
        with self._lock:
            self._shelf[copy_of(key)] = copied
        seconds = time.monotonic() - began_s
        return Pulled(where=peer.where, nbytes=manifest.nbytes, seconds=seconds, retries=retries)

    def _parts(self, peer: Peer, manifest: Manifest) -> Iterator[Part]:
        """The parts, verified and kept; the next one is fetched meanwhile."""

        def fetch(cut: tuple[int, int]) -> Any:
            begin, end = cut
            return peer.fetch(manifest.key, begin, end, FIRST_BYTE_S + (end - begin) / MIN_BYTES_PER_S)

        cuts = self._cuts(manifest)
        with ThreadPoolExecutor(1, thread_name_prefix="elastic-pull") as ahead:
            coming = [ahead.submit(fetch, cut) for cut in cuts[:1]]
            for number, (begin, end) in enumerate(cuts):
                data = coming.pop().result()
                coming = [ahead.submit(fetch, cut) for cut in cuts[number + 1 : number + 2]]
                self._verify(manifest, begin, end, data)
                yield self._keep(begin, data)

    def _verify(self, manifest: Manifest, begin: int, end: int, data: Any) -> None:
        if len(data) != end - begin:
            raise CorruptError(f"{manifest.name}: {len(data)} bytes came for [{begin}, {end})")
        for number in range(begin // manifest.chunk_bytes, -(-end // manifest.chunk_bytes)):
            at, to = manifest.chunk(number)
            manifest.verify(number, data[at - begin : to - begin])

    def _keep(self, begin: int, data: Any) -> Part:
        keeper, array = self._put(data)
        return Part(begin, begin + len(data), keeper, array)

    def _cuts(self, manifest: Manifest) -> list[tuple[int, int]]:
        """(begin, end) of the parts: whole chunks each."""
        step = max(1, self._part_bytes // manifest.chunk_bytes) * manifest.chunk_bytes
        return [(begin, min(begin + step, manifest.nbytes)) for begin in range(0, manifest.nbytes, step)]

    def _take_room(self, manifest: Manifest) -> None:
        with self._lock:
            if self._used_bytes + manifest.nbytes > self._budget_bytes:
                raise NoRoomError(
                    f"node {self.name} holds {self._used_bytes >> 20} MiB of copies and has no room for another "
                    f"{manifest.nbytes >> 20} MiB in its {self._budget_bytes >> 20} MiB: raise Checkpoint.peer_bytes, "
                    "or give Ray's object store more memory"
                )
            self._used_bytes += manifest.nbytes

    def _give_room(self, manifest: Manifest) -> None:
        with self._lock:
            self._used_bytes -= manifest.nbytes

    @contextlib.contextmanager
    def _alone(self, key: ShardKey) -> Iterator[bool]:
        """Whether a pull is needed: neither is a copy here, nor is somebody at it."""
        copy = copy_of(key)
        with self._lock:
            is_needed = copy not in self._shelf and copy not in self._pulling
            self._pulling |= {copy} if is_needed else set()
        try:
            yield is_needed
        finally:
            if is_needed:
                with self._lock:
                    self._pulling.discard(copy)

    def _missing(self, key: ShardKey) -> MissingError:
        return MissingError(f"node {self.name} holds no {_name(key)}")


def _slice(array: Any, begin: int, end: int) -> Any:
    return array[begin:end]


def _between(copied: Copied, begin: int, end: int) -> Any:
    found = [
        part.array[max(begin, part.begin) - part.begin : end - part.begin] for part in _overlapping(copied, begin, end)
    ]
    if len(found) == 1:
        return found[0]
    return np.concatenate(found) if found else np.empty(0, dtype=np.uint8)


def _overlapping(copied: Copied, begin: int, end: int) -> list[Part]:
    return [part for part in copied.parts if part.begin < end and begin < part.end]


def _name(key: ShardKey) -> str:
    return f"shard {key.shard} of {key.shards} of step {key.commit.step}"
