"""Effect. The arena: a worker's slots in shared memory, which outlive it. How one is written; `memory.py` reads them.

    slot file = header (one page) | payload | manifest

A slot is valid when its header says so, and that is stamped last; its sum tells a header that was torn. Locks are
flocks, which vanish with their process: the owner holds each of its slots shared for life, and exclusively from `begin`
to `seal`; readers hold it shared. So a writer cannot touch what somebody reads, a reader never sees what is being
written, and a slot that can be locked exclusively has neither owner nor reader.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import re
import stat
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from elastic.checkpoint.manifest import Manifest, checked_name
from elastic.errors import NoRoomError
from elastic.policies.sizing import SLOTS

PAGE_BYTES = 4096
_MANIFEST_BYTES = 1 << 20  # about; the file grows where one is longer
_MAGIC = b"elastic2"
_ANY_MAGIC = re.compile(rb"elastic[0-9]")
_FIELDS = struct.Struct("<8sIQQIq")
_SUM = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _SUM.size
FEWEST = 2  # slots that an arena can do with: one to write, while the one that was sealed last stays
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG)


class SlotState(IntEnum):
    """What a header says of its slot."""

    RESERVED = 0
    STAGING = 1
    SEALED = 2


@dataclass(frozen=True, slots=True)
class Header:
    """The first bytes of a slot.

    Attributes:
        capacity: bytes for the payload; the manifest follows after them.
        manifest_bytes, manifest_crc: of the manifest, which is a line of JSON.
        step: of the commit, so that nobody decodes the manifest of a step that he does not want.
    """

    state: SlotState
    capacity: int
    manifest_bytes: int = 0
    manifest_crc: int = 0
    step: int = -1

    def encode(self) -> bytes:
        fields = _FIELDS.pack(_MAGIC, self.state, self.capacity, self.manifest_bytes, self.manifest_crc, self.step)
        return fields + _SUM.pack(google_crc32c.value(fields))

    @staticmethod
    def decode(data: bytes) -> "Header | None":
        """None where it is torn, or no header of ours."""
        if len(data) < HEADER_BYTES:
            return None
        fields = data[: _FIELDS.size]
        magic, state, *rest = _FIELDS.unpack(fields)
        (crc,) = _SUM.unpack_from(data, _FIELDS.size)
        if magic != _MAGIC or crc != google_crc32c.value(fields) or state not in set(SlotState):
            return None
        return Header(SlotState(state), *rest)


def is_of_another_version(data: bytes) -> bool:
    """Whether the first bytes of a slot are those of a release whose header is another."""
    return not data.startswith(_MAGIC) and _ANY_MAGIC.match(data) is not None


def arena_prefix(run: str) -> str:
    """What the names of a run's slots begin with; no name of another run does ('@' is in no name)."""
    return f"elastic-{checked_name(run, 'the name of a run')}@"


def needed_bytes(payload_bytes: int, slots: int) -> int:
    """What an arena of so many slots for payloads of this size takes of its directory."""
    return slots * (PAGE_BYTES + _padded(payload_bytes) + _MANIFEST_BYTES)


def free_bytes(directory: Path) -> int:
    """Free space there."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the slots of a worker will take, and what there is.

    Attributes:
        slot_bytes: of all its slots; 0: it takes no snapshots. free_bytes: in the directory.
        lack: what is wrong, whoever else is on the host; empty if nothing is.
    """

    slot_bytes: int = 0
    free_bytes: int = 0
    lack: str = ""


def try_lock(fd: int, operation: int) -> bool:
    """Lock a slot's file without waiting; whether it was got."""
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int | None]:
    """A slot to read; None where it was removed meanwhile, or is not ours: others that write there are not believed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe would let us wait for a writer
    except OSError:
        yield None
        return
    try:
        found = os.fstat(fd)
        yield fd if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() else None
    finally:
        os.close(fd)


class Slot:
    """One slot of this process's arena.

    Attributes:
        payload: (capacity,) uint8, the shared memory itself.
        order: counts this worker's seals, 0 while it is not sealed; steps may go back, after a restore.
        is_busy: it is being written. is_pinned: its memory is page-locked, for copies from a GPU.
        layout: what its user last laid out in it.
    """

    def __init__(self, path: Path, payload_bytes: int) -> None:
        self.path, self.capacity, self.order = path, _padded(payload_bytes), 0
        self.layout: Any = None
        self.is_pinned = self.is_busy = False
        size = PAGE_BYTES + self.capacity
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            try_lock(self._fd, fcntl.LOCK_SH)
            os.posix_fallocate(self._fd, 0, size)
            self._memory = mmap.mmap(self._fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except OSError:
            self.remove()
            raise
        self.payload: Any = np.frombuffer(self._memory, dtype=np.uint8)[PAGE_BYTES:]
        self.stamp(Header(SlotState.RESERVED, self.capacity))

    def begin(self) -> bool:
        """Take it for writing: what it held is void. False while it is written or read, or if its file was removed."""
        if self.is_busy:
            return False
        if not try_lock(self._fd, fcntl.LOCK_EX):
            try_lock(self._fd, fcntl.LOCK_SH)  # a failed change of a lock loses it (flock(2))
            return False
        if os.fstat(self._fd).st_nlink == 0:
            return False
        self.order, self.is_busy = 0, True
        self.stamp(Header(SlotState.STAGING, self.capacity))
        return True

    def seal(self, manifest: Manifest, order: int) -> None:
        """Its payload is whole and committed: from now on it can be read.

        Raises:
            OSError: no room for the manifest.
        """
        data = manifest.encode()
        self.write_manifest(data)
        crc, step = google_crc32c.value(data), manifest.commit.step
        self.stamp(Header(SlotState.SEALED, self.capacity, len(data), crc, step))
        self.order, self.is_busy = order, False
        try_lock(self._fd, fcntl.LOCK_SH)

    def abandon(self) -> None:
        """What was staged in it will never be committed."""
        self.stamp(Header(SlotState.RESERVED, self.capacity))
        self.is_busy = False
        try_lock(self._fd, fcntl.LOCK_SH)

    def write_manifest(self, data: bytes) -> None:
        if os.pwrite(self._fd, data, PAGE_BYTES + self.capacity) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def stamp(self, header: Header) -> None:
        self._memory[:HEADER_BYTES] = header.encode()

    @property
    def is_there(self) -> bool:
        """Whether it still has a name that others can find."""
        return os.fstat(self._fd).st_nlink > 0

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let go of it; the file stays, and the memory as long as somebody holds the payload."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Arena:
    """The slots of one worker.

    Args:
        directory: a ramdisk. run, incarnation, worker: whose it is.
        slots: at least three, so that the newest sealed one and one that is read leave one to write.
    """

    def __init__(self, directory: Path, run: str, incarnation: int, worker: str, slots: int = SLOTS) -> None:
        self._directory, self._run, self._count = directory, arena_prefix(run), slots
        self._life = f"{self._run}{incarnation}-"
        self._stem = f"{self._life}{checked_name(worker, 'the name of a worker')}"
        self._slots: list[Slot] = []
        self._made = self._seals = 0
        self._lock, self._growing = threading.Lock(), threading.Lock()

    def room(self, payload_bytes: int) -> Room:
        """Whether the slots fit into the directory, before anything is written.

        An earlier life's slots count as free, and those of workers that are gone: they make room for those of this one.
        """
        needed = needed_bytes(payload_bytes, self._count)
        try:
            old = [self._gives_way_bytes(path) for path in self._directory.glob(f"{self._run}*.slot")]
            free = free_bytes(self._directory) + sum(old)
        except OSError as error:
            return Room(slot_bytes=needed, lack=self._unusable(error))
        lack = "" if needed <= free else str(self._no_room(payload_bytes))
        return Room(slot_bytes=needed, free_bytes=free, lack=lack)

    def reserve(self, payload_bytes: int, fewest: int = FEWEST) -> None:
        """Have enough slots of this size, their pages touched, or as many as there is room for.

        The newest sealed slot stays until it is replaced.

        Args:
            fewest: slots that must be there then.

        Raises:
            NoRoomError: the directory is full, or cannot be used; the newest sealed slot is there still.
        """
        with self._growing:
            with self._lock:
                self._remove_below(payload_bytes, keep=self._newest())
                there = len(self._fitting(payload_bytes))
            made: list[Slot] = []
            try:
                for number in range(there, self._count):
                    if number >= fewest and not self._has_room_beside(payload_bytes, number):
                        break
                    made.append(self._new_slot(payload_bytes))
            except OSError as error:
                if there + len(made) < fewest:
                    with contextlib.suppress(OSError):
                        while made:
                            made.pop().remove()  # its memory goes with the last reference to it
                    is_full = error.errno in _FULL
                    raise self._no_room(payload_bytes) if is_full else NoRoomError(self._unusable(error)) from error
            with self._lock:
                self._slots += made

    def is_short(self, payload_bytes: int) -> bool:
        """Whether it has fewer slots of this size than it is to have."""
        with self._lock:
            return len(self._fitting(payload_bytes)) < self._count

    def holds(self, path: Path) -> bool:
        """Whether this slot is one of its own."""
        with self._lock:
            return any(slot.path == path for slot in self._slots)

    def begin(self, payload_bytes: int) -> Slot | None:
        """A slot to write, never the one that was sealed last; None if all others are being written or read.

        Raises:
            NoRoomError: the payload has grown, and there is no room for larger slots.
        """
        with self._lock:
            is_outgrown = not self._fitting(payload_bytes)
        if is_outgrown:
            self.reserve(payload_bytes)
        with self._lock:
            newest = self._newest()
            free = [slot for slot in self._fitting(payload_bytes) if slot is not newest]
            return next((slot for slot in sorted(free, key=lambda slot: slot.order) if slot.begin()), None)

    def seal(self, slot: Slot, manifest: Manifest) -> None:
        """See `Slot.seal`; slots that the state has outgrown go.

        Raises:
            NoRoomError: no room for the manifest; the slot is abandoned.
        """
        self._seals += 1
        try:
            slot.seal(manifest, self._seals)
        except OSError as error:
            slot.abandon()
            raise self._no_room(slot.capacity) from error
        with self._lock:
            self._remove_below(slot.capacity)

    def close(self) -> None:
        """Let go of all slots; what is sealed stays for others to read."""
        with self._lock:
            for slot in self._slots:
                slot.close()
            self._slots = []

    def _newest(self) -> Slot | None:
        sealed = [slot for slot in self._slots if slot.order and slot.is_there]
        return max(sealed, key=lambda slot: slot.order, default=None)

    def _fitting(self, payload_bytes: int) -> list[Slot]:
        return [slot for slot in self._slots if slot.capacity >= payload_bytes and slot.is_there]

    def _remove_below(self, payload_bytes: int, keep: Slot | None = None) -> None:
        """Remove slots that are too small, or have no name any more, unless they are being written.

        What somebody reads stays, like what an earlier worker has left, until there is something newer.
        """
        fitting = self._fitting(payload_bytes)
        kept = [slot for slot in self._slots if slot in fitting or slot is keep or slot.is_busy]
        for slot in self._slots:
            if slot not in kept:
                slot.remove() if slot.begin() else slot.close()
        self._slots = kept

    def _has_room_beside(self, payload_bytes: int, slots: int) -> bool:
        """Whether one more leaves these the room for their manifests."""
        return free_bytes(self._directory) >= needed_bytes(payload_bytes, 1) + slots * _MANIFEST_BYTES

    def _gives_way_bytes(self, path: Path) -> int:
        """What is free again when this slot's time has come; 0: somebody of this life has it."""
        with opened(path) as fd:
            if fd is None or (path.name.startswith(self._life) and not try_lock(fd, fcntl.LOCK_EX)):
                return 0
            return 0 if is_of_another_version(os.pread(fd, HEADER_BYTES, 0)) else os.fstat(fd).st_size + _MANIFEST_BYTES

    def _new_slot(self, payload_bytes: int) -> Slot:
        self._made += 1
        return Slot(self._directory / f"{self._stem}-{self._made - 1}.slot", payload_bytes)

    def _unusable(self, error: OSError) -> str:
        return f"Checkpoint.memory={self._directory} cannot be used: {error}"

    def _no_room(self, payload_bytes: int) -> NoRoomError:
        try:
            free = f"has {free_bytes(self._directory) >> 20} MiB free"
        except OSError:
            free = "cannot be asked for its free space"
        needed = needed_bytes(payload_bytes, self._count) >> 20
        return NoRoomError(
            f"{self._directory} {free}, and the slots of a worker take {needed} MiB: enlarge it (docker --shm-size, an "
            "emptyDir of medium Memory), or set Checkpoint.memory to a larger one"
        )


def _padded(payload_bytes: int) -> int:
    return max(1, -(-payload_bytes // PAGE_BYTES)) * PAGE_BYTES
