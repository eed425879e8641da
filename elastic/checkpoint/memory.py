"""Effect. The node's memory tier as anybody on the node sees it: which slots are sealed, their bytes, their removal."""

import contextlib
import fcntl
import functools
import logging
import mmap
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import google_crc32c
import numpy as np

from elastic.checkpoint.arena import (
    HEADER_BYTES,
    PAGE_BYTES,
    Header,
    SlotState,
    arena_prefix,
    is_of_another_version,
    opened,
    try_lock,
)
from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.checkpoint.seal import OtherVersionError
from elastic.checkpoint.source import Tier
from elastic.checkpoint.store import MissingError
from elastic.errors import CorruptError

log = logging.getLogger("elastic")

KEPT = 2  # of the newest sealed steps of a shard that stay when their worker is gone


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed slot and what it holds."""

    path: Path
    manifest: Manifest


class Manifests:
    """Of slots, each decoded once for each seal: one of thousands of tensors takes tens of milliseconds."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[bytes, Manifest]] = {}

    def read(self, fd: int, path: Path, step: int | None = None) -> Manifest | None:
        """Of a locked slot; None if it is not sealed, torn, not to be understood, or of another step than asked for."""
        data = os.pread(fd, HEADER_BYTES, 0)
        header = Header.decode(data)
        if header is None or header.state is not SlotState.SEALED or step not in (None, header.step):
            return None
        line = os.pread(fd, header.manifest_bytes, PAGE_BYTES + header.capacity)  # what is known may be damaged since
        known = self._known.get(path)
        if known is not None and known[0] == data and google_crc32c.value(line) == header.manifest_crc:
            return known[1]
        manifest = _decoded(line, path, header)
        if manifest is not None:
            self._known[path] = (data, manifest)
        return manifest

    def forget_others(self, paths: Iterable[Path]) -> None:
        """Slots that are gone."""
        for path in set(self._known).difference(paths):
            self._known.pop(path, None)


def scan(directory: Path, run: str, manifests: Manifests | None = None, step: int | None = None) -> list[Sealed]:
    """The sealed slots of a run on this node, newest step first; what is being written is left out.

    Args:
        manifests: what was decoded before. step: leave out all others.
    """
    found, paths = [], _files(directory, run)
    manifests = manifests or Manifests()
    manifests.forget_others(paths)
    for path in paths:
        with opened(path) as fd:
            if fd is None or not try_lock(fd, fcntl.LOCK_SH):
                continue
            manifest = manifests.read(fd, path, step)
        if manifest is not None and manifest.run == run:
            found.append(Sealed(path, manifest))
    return sorted(found, key=lambda one: (-one.manifest.commit.step, one.manifest.shard, one.path.name))


def remove(directory: Path, run: str) -> None:
    """Take a run's slots away; who has mapped one keeps its bytes."""
    for path in _files(directory, run):
        _unlink(path)


def reclaim(directory: Path, run: str, kept: int = KEPT, *, is_dry: bool = False) -> list[Path]:
    """Take away what nobody needs of workers that are gone; returns the paths.

    That is: slots that were never sealed, or torn, and sealed ones of which this node holds `kept` newer steps of the
    same shard. What has an owner, or a reader, is left alone, and so is what another release has sealed: told once.

    Args:
        is_dry: only look.
    """
    manifests = Manifests()
    sealed, gone = scan(directory, run, manifests), []
    for path in _files(directory, run):
        with opened(path) as fd:
            if fd is None or not try_lock(fd, fcntl.LOCK_EX):
                continue
            manifest = manifests.read(fd, path)
            if manifest is None and _is_of_another_release(fd):
                _tell_of_another_release(path)
                continue
            if manifest is None or len(_newer(manifest, sealed)) >= kept:
                if not is_dry:
                    _unlink(path)
                gone.append(path)
    return gone


def _is_of_another_release(fd: int) -> bool:
    """Whether a slot is neither torn nor of ours: its header is of another format, or what was sealed with it is."""
    data = os.pread(fd, HEADER_BYTES, 0)
    header = Header.decode(data)
    if header is None or header.state is not SlotState.SEALED:
        return is_of_another_version(data)
    line = os.pread(fd, header.manifest_bytes, PAGE_BYTES + header.capacity)
    try:
        Manifest.decode(line)
    except OtherVersionError:
        return google_crc32c.value(line) == header.manifest_crc
    except CorruptError:
        pass
    return False


@functools.cache
def _tell_of_another_release(path: Path) -> None:
    log.warning(
        "slot %s was written by another release, and stays: go on with the release that wrote it, or delete the file "
        "if nobody wants what is in it",
        path,
    )


def _unlink(path: Path) -> None:
    """What is not ours, or no file, stays."""
    with contextlib.suppress(OSError):
        path.unlink()


class MemorySource:
    """This node's slots as a `Source`; what it has handed out pins its slot until it is dropped.

    Args:
        directory: where the slots are. run: whose.
        where: for people; the host's name by default.
    """

    tier = Tier.MEMORY

    def __init__(self, directory: Path, run: str, where: str = "") -> None:
        self._directory, self._run = directory, run
        self.where = where or f"memory of {socket.gethostname()}"
        self._manifests = Manifests()
        self._mapped: WeakValueDictionary[ShardKey, mmap.mmap] = WeakValueDictionary()

    def manifests(self, step: int | None = None) -> Sequence[Manifest]:
        """See `Source.manifests`; one for each sealed shard and commit."""
        kept: list[Manifest] = []
        for one in scan(self._directory, self._run, self._manifests, step):
            if not any(one.manifest.key.is_same(other.key) for other in kept):
                kept.append(one.manifest)
        return kept

    def read(self, key: ShardKey, begin: int, end: int) -> Any:
        """See `Source.read`: (end - begin,) uint8, read-only, no copy; its slot is not reused while the array lives.

        Chunks that are in use at one time share a map: to look for the slot, and to map all of it, anew for each one
        is what threads would wait for.

        Raises:
            MissingError: no slot holds the shard any more.
        """
        memory = self._mapped.get(key)
        if memory is None:
            memory = self._mapped[key] = self._map(key)
        nbytes = len(memory) - PAGE_BYTES
        name = f"shard {key.shard} of {key.shards} of step {key.commit.step}"
        if not 0 <= begin <= end <= nbytes:
            raise MissingError(f"{name} has {nbytes} bytes, and not [{begin}, {end})")
        if memory.size() < len(memory):  # of the file; to touch what it has lost would end this process
            raise MissingError(f"{name} has been cut off in {self.where}")
        return np.frombuffer(memory, dtype=np.uint8)[PAGE_BYTES + begin : PAGE_BYTES + end]

    def _map(self, key: ShardKey) -> mmap.mmap:
        """The slot that holds the shard, header and payload; it is locked until the last array on it is gone."""
        for path in _files(self._directory, self._run):
            with opened(path) as fd:
                if fd is None or not try_lock(fd, fcntl.LOCK_SH):
                    continue
                manifest = self._manifests.read(fd, path, key.commit.step)
                if manifest is None or not manifest.key.is_same(key):
                    continue
                if os.fstat(fd).st_size < PAGE_BYTES + manifest.nbytes:
                    raise MissingError(f"{manifest.name} has been cut off in {path}")
                # It keeps a duplicate of the descriptor, and with it the lock.
                return mmap.mmap(fd, PAGE_BYTES + manifest.nbytes, prot=mmap.PROT_READ)
        raise MissingError(f"{self.where} holds no shard {key.shard} of {key.shards} of step {key.commit.step}")


def _files(directory: Path, run: str) -> list[Path]:
    prefix = arena_prefix(run)
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return [directory / name for name in sorted(names) if name.startswith(prefix) and name.endswith(".slot")]


def _decoded(data: bytes, path: Path, header: Header) -> Manifest | None:
    try:
        if google_crc32c.value(data) != header.manifest_crc:
            raise CorruptError("the manifest is not the one that was sealed")
        manifest = Manifest.decode(data)
        if manifest.nbytes > header.capacity:
            raise CorruptError("the payload is longer than its slot")
    except CorruptError as error:
        log.warning("slot %s is not used: %s", path, error)
        return None
    return manifest


def _newer(manifest: Manifest, sealed: list[Sealed]) -> set[tuple[int, int, int]]:
    """Commits of the same shard that are sealed here and were made later, be it after a restore to an earlier step."""
    place, made = (manifest.shard, manifest.shards), _made(manifest)
    same = [one.manifest for one in sealed if (one.manifest.shard, one.manifest.shards) == place]
    return {_made(other) for other in same if _made(other) > made}


def _made(manifest: Manifest) -> tuple[int, int, int]:
    commit = manifest.commit
    return commit.incarnation, commit.generation, commit.step
