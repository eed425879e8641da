"""Effect. What one node holds: its workers' slots, some of them pinned, and a shelf of copies from other nodes.

A copy is taken in parts of a few chunks (`pulling.py`). Others read a copy while it comes, and so pass it on. Room for
all of it is set aside before the first byte is asked for: what does not fit is refused, never spilled.

What is here for a restore alone (`expect`, `fill`) does not count as a copy, and goes where a copy needs its room.
"""

import contextlib
import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from elastic.checkpoint.copied import ComingError, Copied, Part, Pulled, cuts, patience_s
from elastic.checkpoint.disk import Disk
from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.checkpoint.pulling import PART_BYTES, Peer, manifest_of, shard_name, verified
from elastic.checkpoint.rungs import Copy, Holding, copy_of, step_id
from elastic.checkpoint.source import Source, Together
from elastic.checkpoint.store import MissingError, StoreError
from elastic.errors import CorruptError, NoRoomError

log = logging.getLogger("elastic")


class Node:
    """See the module. Methods may be called from any thread.

    Attributes:
        memory: its slots. disks: of this node, that which is written to first; asked for what they know, so that a slow
            one holds up nobody but who reads from it.

    Args:
        name: of the node, for errors.
        memory: see there; an array that it hands out keeps its slot from being overwritten.
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
        self.memory, self._put, self._part_bytes = memory, put, part_bytes
        self.disks: tuple[Disk, ...] = ()
        self._budget_bytes, self._used_bytes = budget_bytes, 0
        self._pins: dict[Copy, Any] = {}
        self._shelf: dict[Copy, Copied] = {}
        self._pulling: set[Copy] = set()
        self._number = 0
        self._lock = threading.RLock()

    # --- what is here ---

    def holding(self) -> Holding:
        """What it holds now; copies: those that are whole, and not here for a restore alone."""
        with self._lock:  # so that a later number is never an earlier look
            slots = {copy_of(manifest.key): manifest.key for manifest in self.memory.manifests()}
            self._number += 1
            return Holding(
                life=self.life,
                number=self._number,
                slots=frozenset(slots.values()),
                pinned=frozenset(key for copy, key in slots.items() if copy in self._pins),
                copies=frozenset(
                    one.manifest.key for one in self._shelf.values() if one.is_whole and not one.is_passing
                ),
                disk=frozenset(one.key for one in self._on_disk()),
                nbytes=self._used_bytes,
                budget_bytes=self._budget_bytes,
            )

    def manifests(self, step: int | None = None, with_disk: bool = True) -> list[Manifest]:
        """Of all shards here, those on their way too, or of those of one step, newest step first; each once."""
        with self._lock:
            copied = [one.manifest for one in self._shelf.values() if step in (None, one.manifest.commit.step)]
        on_disk = self._on_disk(step) if with_disk else []
        found = {copy_of(one.key): one for one in (*on_disk, *copied, *self.memory.manifests(step))}
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

    def read(self, key: ShardKey, begin: int, end: int, timeout_s: float | None = None) -> Any:
        """Bytes [begin, end) of a shard's payload, (end - begin,) uint8.

        Args:
            timeout_s: how long to wait for parts of a copy that is on its way; None: `patience_s`.

        Raises:
            MissingError: the shard is not here (any more), or will not come. ComingError: not in time.
        """
        with self._lock:
            copied, pinned = self._shelf.get(copy_of(key)), self._pins.get(copy_of(key))
        if copied is not None:
            return copied.read(begin, end, timeout_s)
        if pinned is not None:
            return pinned[begin:end]
        try:
            return self.memory.read(key, begin, end)
        except MissingError:
            if not self.disks:
                raise
        return np.frombuffer(Together(self.disks).read(key, begin, end), dtype=np.uint8)

    # --- what is to be here ---

    def pin(self, keys: Collection[ShardKey]) -> None:
        """Keep these slots, as far as they are here, from being overwritten; let all others go."""
        wanted = {copy_of(key): key for key in keys}
        with self._lock:
            self._pins = {copy: array for copy, array in self._pins.items() if copy in wanted}
            new = [key for copy, key in wanted.items() if copy not in self._pins]
        lengths = {copy_of(one.key): one.nbytes for one in self.memory.manifests()} if new else {}
        for key in new:
            with contextlib.suppress(MissingError, KeyError):
                array = self.memory.read(key, 0, lengths[copy_of(key)])
                with self._lock:
                    self._pins[copy_of(key)] = array

    def drop(self, key: ShardKey) -> None:
        """Give a copy up; readers keep what they have in hand."""
        with self._lock:
            copied = self._shelf.get(copy_of(key))
        if copied is not None:
            self._let_go(copied, "it was dropped")

    def pull(self, key: ShardKey, peers: Sequence[Peer]) -> Pulled:
        """Take a copy of a shard from a peer, and where that one fails, the rest of it from the next.

        Raises:
            NoRoomError: the budget does not allow it; nothing was transferred.
            StoreError: no peer gave it; names each with its reason.
        """
        if not self._stays(key):
            with self._alone(key) as is_needed:
                if is_needed:
                    return self._pull(key, peers, None, self._part_bytes)
        return Pulled(where=self.name, nbytes=0, seconds=0.0, retries=0)

    def expect(self, manifests: Sequence[Manifest]) -> None:
        """Shards of one commit that a restore needs here; others can ask for them from now on, and wait for `fill`.

        What an earlier restore, of another commit, has brought goes; with no manifests all of it. Shards that are here
        already, and those for which there is no room, are left out.
        """
        steps = {step_id(one.key) for one in manifests}
        here = {copy_of(one.key) for of in steps for one in self.memory.manifests(of[0])}
        with self._lock:
            for copied in self._passing():
                if step_id(copied.manifest.key) not in steps:
                    self._let_go(copied, "another step is restored, or none any more")
            for manifest in manifests:
                copy = copy_of(manifest.key)
                if copy in here or copy in self._shelf or copy in self._pulling:
                    continue
                try:
                    self._take_room(manifest)
                except NoRoomError as error:
                    log.warning("not prefetched: %s", error)
                    continue
                self._shelf[copy] = Copied(manifest, is_passing=True)

    def fill(self, key: ShardKey, peers: Iterable[Peer], at_once: int = 1) -> Pulled:
        """Take what is expected, as `pull` does; what is here, or on its way, or not expected is left as it is.

        Args:
            at_once: so many are filled at a time: parts are smaller then, but whole chunks.

        Raises:
            StoreError: see `pull`.
        """
        with self._lock:
            copied = self._shelf.get(copy_of(key))
            if copied is None or copied.is_begun:
                return Pulled(where=self.name, nbytes=0, seconds=0.0, retries=0)
            copied.is_begun = True
        return self._pull(key, peers, copied, self._part_bytes // max(1, at_once))

    def give_up(self, keys: Iterable[ShardKey]) -> None:
        """Of these, nobody will fill what is not begun by now."""
        with self._lock:
            for key in keys:
                copied = self._shelf.get(copy_of(key))
                if copied is not None and not copied.is_begun:
                    self._let_go(copied, "nobody brings it")

    @contextlib.contextmanager
    def held(self, key: ShardKey) -> Iterator[None]:
        """A shard that stays while it waits to be lent: its slot is not overwritten, and no budget is taken.

        Raises:
            MissingError: it is not here (any more).
        """
        manifest = self.manifest(key)
        with self._lock:
            is_copied = copy_of(key) in self._shelf
        kept = None if is_copied else self.memory.read(key, 0, manifest.nbytes)
        try:
            yield
        finally:
            del kept

    @contextlib.contextmanager
    def lent(self, key: ShardKey) -> Iterator[tuple[Manifest, Callable[[int, int], Any]]]:
        """A shard that stays as long as the context, however slow its reader is: (manifest, read(begin, end)).

        A slot is copied first, where there is room for it, so that a slow reader takes none from the trainer.

        Raises:
            MissingError: it is not here (any more).
        """
        manifest = self.manifest(key)
        with self._lock:
            copied = self._shelf.get(copy_of(key))
        if copied is not None:
            yield manifest, copied.read
            return
        slot = self.memory.read(key, 0, manifest.nbytes)
        with contextlib.ExitStack() as room:
            try:
                self._take_room(manifest)
                room.callback(self._give_room, manifest)
                own = self._copy_of(manifest, slot)
            except (NoRoomError, StoreError) as error:
                log.debug("a slot stays pinned while it is read: %s", error)
                room.close()
                yield manifest, functools.partial(_slice, slot)
                return
            del slot
            yield manifest, own.read

    # --- how a copy is taken ---

    def _pull(self, key: ShardKey, peers: Iterable[Peer], copied: Copied | None, part_bytes: int) -> Pulled:
        """Fill a copy, or a new one; what is not whole in the end goes."""
        began_s, reasons = time.monotonic(), list[str]()
        try:
            for peer in peers:
                try:
                    copied = copied or self._begun(manifest_of(peer, key))
                    for begin, data in verified(peer, copied.manifest, copied.arrived_bytes, part_bytes):
                        copied.add(_part(begin, data, data) if peer.gives_stored else self._keep(begin, data))
                    seconds, nbytes = time.monotonic() - began_s, copied.manifest.nbytes
                    return Pulled(where=peer.where, nbytes=nbytes, seconds=seconds, retries=len(reasons))
                except (StoreError, CorruptError, OSError) as error:  # its machine may be out of files, or of memory
                    reasons.append(f"{peer.where}: {error}")
                    if copied is not None and copied.is_over:
                        break
                    # If nobody gives it, who asked is told, and says so.
                    log.info("node %s could not pull from %s: %s", self.name, peer.where, error)
        finally:
            if copied is not None and not copied.is_whole:
                self._let_go(copied, "; ".join(reasons) or "nobody gave it")
        raise StoreError(f"node {self.name} could not pull {shard_name(key)}: {'; '.join(reasons) or 'from nobody'}")

    def _begun(self, manifest: Manifest) -> Copied:
        """A new copy, on its way. What is here for a restore makes room for it.

        Raises:
            NoRoomError: see `pull`.
        """
        with self._lock:
            for copied in self._passing():
                if self._used_bytes + manifest.nbytes > self._budget_bytes:
                    self._let_go(copied, f"its room is needed for {manifest.name}")
            self._take_room(manifest)
            begun = self._shelf[copy_of(manifest.key)] = Copied(manifest)
            return begun

    def _keep(self, begin: int, data: Any) -> Part:
        return _part(begin, *self._put(data))

    def _copy_of(self, manifest: Manifest, slot: Any) -> Copied:
        """A slot's bytes where copies live.

        Raises:
            NoRoomError, StoreError: there is no room there, whatever the budget says: others put things there, too.
        """
        own = Copied(manifest)
        for begin, end in cuts(manifest, 0, self._part_bytes):
            own.add(self._keep(begin, slot[begin:end]))
        return own

    def _passing(self) -> list[Copied]:
        """What is here for a restore alone."""
        return [copied for copied in self._shelf.values() if copied.is_passing]

    def _stays(self, key: ShardKey) -> bool:
        """Whether it was brought for a restore, whole by now: from here on it counts as a copy.

        What is expected, and nobody fills, is not waited for: it goes.

        Raises:
            ComingError: it has been on its way for longer than it should take.
        """
        with self._lock:
            copied = self._shelf.get(copy_of(key))
            if copied is None or not copied.is_passing:
                return False
            if not copied.is_begun:
                self._let_go(copied, "it is taken as a copy instead")
                return False
            copied.is_passing = False
        try:
            return copied.wait(patience_s(copied.manifest.nbytes))
        except ComingError:
            copied.is_passing = True  # no copy yet: whoever asks again waits again
            raise

    def _let_go(self, copied: Copied, reason: str) -> None:
        with self._lock:
            copy = copy_of(copied.manifest.key)
            if self._shelf.get(copy) is copied:
                del self._shelf[copy]
                self._used_bytes -= copied.manifest.nbytes
        copied.end(reason)

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

    def _on_disk(self, step: int | None = None) -> list[Manifest]:
        return [one for disk in self.disks for one in disk.known(step)]

    def _missing(self, key: ShardKey) -> MissingError:
        return MissingError(f"node {self.name} holds no {shard_name(key)}")


def _part(begin: int, keeper: Any, array: Any) -> Part:
    return Part(begin, begin + len(array), keeper, array)


def _slice(array: Any, begin: int, end: int) -> Any:
    return array[begin:end]
