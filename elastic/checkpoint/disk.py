"""Effect. A disk of the node as a tier: its replica actor writes shards there from slots, and they survive a reboot.

The bytes lie as in the persistent tier (`records.Keys`), with nothing but chunks and manifests: each object is written
beside its place, synced, and linked to it, and the folder is synced; the manifest comes last. So a shard whose manifest
is there is whole. There is one writer, the node's actor.
"""

import contextlib
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from elastic.checkpoint import summing
from elastic.checkpoint.manifest import Manifest, ShardKey, checked_name
from elastic.checkpoint.parallel import in_parallel
from elastic.checkpoint.records import Keys, digest_of, name_of, parse_name
from elastic.checkpoint.source import Tier
from elastic.checkpoint.store import Item, MissingError, StoreError, TakenError
from elastic.checkpoint.stores import open_store
from elastic.errors import CorruptError, NoRoomError

log = logging.getLogger("elastic")

THREADS = 4
STALL_S = 600.0
_TAKE_BACK_S = 10.0  # a disk that hangs is told of, not waited for once more
LEFT_S = 960.0  # what was written so long ago, and has no manifest, nobody goes on with
_SPARE_BYTES = 1 << 20  # for the manifest and the file system
_SHARD = re.compile(r"shard-(\d{5})-of-(\d{5})")


class Disk:
    """See the module, and `elastic.checkpoint.source.Source`. Any thread may call.

    Attributes:
        directory: where it is. troubles: what the last look found and could not read, a sentence each.

    Args:
        directory: an absolute path on a disk of this node. run: whose shards.
        where: for people; the host's name by default.

    Raises:
        SettingError: the directory cannot be used, or `run` cannot be part of a key. StoreError: its mount hangs, or
            cannot be looked at.
    """

    tier = Tier.DISK

    def __init__(self, directory: Path, run: str, where: str = "") -> None:
        self.directory, self._run, self._keys = directory, checked_name(run, "the run"), Keys(run)
        self._store = open_store(str(directory), knob="Checkpoint.disk")
        self.where = where or f"disk of {socket.gethostname()}"
        self._known: dict[str, Manifest] = {}  # by the key of the manifest
        self.troubles: tuple[str, ...] = ()
        self._lock = threading.Lock()

    # --- as a source ---

    def manifests(self, step: int | None = None) -> Sequence[Manifest]:
        """See `Source.manifests`; looks at the disk."""
        self.look(step)
        return self.known(step)

    def known(self, step: int | None = None) -> list[Manifest]:
        """The same, as of the last look, write or removal."""
        with self._lock:
            found = [one for one in self._known.values() if step in (None, one.commit.step)]
        return sorted(found, key=lambda one: (-one.commit.step, one.shard))

    def look(self, step: int | None = None) -> None:
        """See what is whole here.

        Raises:
            StoreError: the disk cannot be listed.
        """
        prefix = self._keys.folder("steps") + ("" if step is None else f"{step:010d}-")
        there = {item.key: item for item in self._store.list(prefix)}
        with self._lock:
            known = dict(self._known)
        found, troubles = dict[str, Manifest](), list[str]()
        for key in there:
            try:
                manifest = known.get(key) or self._read_manifest(key)
            except StoreError as error:  # one bad sector does not hide the rest of the disk
                log.warning("%s: a shard is left out: %s", self.where, error)
                troubles.append(f"{self.where}: {error}")
                continue
            if manifest is not None and self._is_whole(manifest, there):
                found[key] = manifest
        with self._lock:
            self.troubles = tuple(troubles)
            others = {key: one for key, one in self._known.items() if step is not None and one.commit.step != step}
            self._known = others | found

    def read(self, key: ShardKey, begin: int, end: int) -> bytes:
        """See `Source.read`.

        Raises:
            MissingError: the shard is not here (any more). StoreError.
        """
        manifest = next((one for one in self.known(key.commit.step) if one.key.is_same(key)), None)
        if manifest is None:
            raise MissingError(f"{self.where} holds no shard {key.shard} of {key.shards} of step {key.commit.step}")
        if not 0 <= begin <= end <= manifest.nbytes:
            raise MissingError(f"{manifest.name} has {manifest.nbytes} bytes, and not [{begin}, {end})")
        parts, at = [], begin
        while at < end:
            number = at // manifest.chunk_bytes
            first, last = manifest.chunk(number)
            parts.append(self._store.read(self._keys.chunk(manifest, number), at - first, min(end, last) - first))
            at = min(end, last)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # --- for the node's actor ---

    def write(self, manifest: Manifest, read: Callable[[int, int], Any]) -> None:
        """Write a shard; what is there of it already stays, and what is damaged gives way.

        Args:
            read: gives bytes [begin, end) of the payload. Called by several threads.

        Raises:
            NoRoomError: the disk has no room for it; nothing was written.
            CorruptError: what `read` gave does not match the manifest. StoreError, and what `read` raises.
        """
        name, data = name_of(manifest.commit), manifest.encode()
        there = {item.key: item.nbytes for item in self._store.list(self._folder(manifest.key))}
        sizes = [end - begin for begin, end in map(manifest.chunk, range(len(manifest.chunks)))]
        keys = [self._keys.chunk(manifest, number) for number in range(len(sizes))]
        missing = [number for number, key in enumerate(keys) if there.get(key) != sizes[number]]
        self._check_room(sum(sizes[number] for number in missing) + len(data))

        def send(number: int) -> None:
            begin, end = manifest.chunk(number)
            payload = read(begin, end)
            manifest.verify(number, payload, summing.value)
            self._replace(keys[number], payload if isinstance(payload, bytes) else memoryview(payload))

        try:
            in_parallel(send, missing, threads=THREADS, stall_s=STALL_S, what=f"{self.where}: {manifest.name}")
        except BaseException:
            self._take_back([keys[number] for number in missing])
            raise
        key = self._keys.manifest(name, manifest.shard, manifest.shards, digest_of(data))
        self._replace(key, data)
        with self._lock:
            self._known[key] = manifest

    def erase(self, key: ShardKey) -> None:
        """Remove a shard, its manifest first, so that half of one never counts. Raises StoreError."""
        folder = self._folder(key)
        with self._lock:
            self._known = {at: one for at, one in self._known.items() if not at.startswith(folder)}
        for item in sorted(self._store.list(folder), key=lambda item: "/manifest-" not in item.key):
            self._store.delete(item.key)

    def sweep(self, before_s: float | None = None, *, is_dry: bool = False) -> int:
        """Remove what a killed writer left, last written before that time; how many files. Raises StoreError.

        Args:
            is_dry: only count them.
        """
        before_s = time.time() - LEFT_S if before_s is None else before_s
        by_shard: dict[str, list[Item]] = {}
        for item in self._store.list(self._keys.folder("steps")):
            by_shard.setdefault(item.key.rpartition("/")[0], []).append(item)
        count = self._store.sweep(f"{self._run}/", before_s, is_dry=is_dry)
        for items in by_shard.values():
            if any("/manifest-" in item.key for item in items) or max(one.modified_at_s for one in items) >= before_s:
                continue
            for item in () if is_dry else items:
                self._store.delete(item.key)
            count += len(items)
        return count

    # --- inside ---

    def _replace(self, key: str, data: bytes | memoryview) -> None:
        """A key names its bytes by their sum, and has one writer: others in its place are damage."""
        try:
            self._store.create(key, data)
        except TakenError:
            self._store.delete(key)
            self._store.create(key, data)

    def _take_back(self, keys: Sequence[str]) -> None:
        """Half a shard takes room, and nobody asks for it again; on a disk that fails or hangs some may stay."""

        def delete(key: str) -> None:
            with contextlib.suppress(StoreError):
                self._store.delete(key)

        with contextlib.suppress(StoreError):  # why it was not written is what is told
            in_parallel(delete, keys, threads=THREADS, stall_s=_TAKE_BACK_S, what=f"{self.where}: half a shard")

    def _folder(self, key: ShardKey) -> str:
        return self._keys.shard(name_of(key.commit), key.shard, key.shards)

    def _read_manifest(self, key: str) -> Manifest | None:
        """What lies there, if that is a manifest and the right one."""
        *_, name, place, last = key.split("/")
        kind, _, digest = last.partition("-")
        if kind != "manifest" or parse_name(name) is None or _SHARD.fullmatch(place) is None:
            return None
        try:
            data = self._store.read(key)
            manifest = Manifest.decode(data)
        except (MissingError, CorruptError):
            return None
        is_right = digest_of(data) == digest and manifest.run == self._run
        return manifest if is_right and key.startswith(self._folder(manifest.key)) else None

    def _is_whole(self, manifest: Manifest, there: dict[str, Item]) -> bool:
        for number in range(len(manifest.chunks)):
            begin, end = manifest.chunk(number)
            item = there.get(self._keys.chunk(manifest, number))
            if item is None or item.nbytes != end - begin:
                return False
        return True

    def _check_room(self, nbytes: int) -> None:
        place = self.directory
        try:
            while not place.exists():
                place = place.parent
            status = os.statvfs(place)
        except OSError as error:
            raise StoreError(f"{self.where}: {place} cannot be asked for its free space: {error}") from error
        free_bytes = status.f_bavail * status.f_frsize
        if nbytes + _SPARE_BYTES > free_bytes:
            raise NoRoomError(
                f"{self.where}: {self.directory} has {free_bytes >> 20} MiB free, and a shard takes {nbytes >> 20} "
                "MiB: enlarge it, or set Checkpoint.disk to a larger one"
            )
