"""Effect. A store in a directory of any mount: a local disk, NFS, Lustre, a GCSFuse mount.

An object is written beside its place, made durable, and linked to its place: `link` fails if something is there, so
that is create-if-absent, atomic and whole. Where a mount knows no links (GCSFuse), the file is opened with O_EXCL and
written in place. There `is_atomic` is False: a reader may see the beginning of an object, what is the beginning of the
object to be written counts as left by a killed writer and is completed, and of two writers that race both may believe
they have created it if one of them stalls before its first byte.
"""

import contextlib
import errno
import functools
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from elastic.checkpoint.store import Item, MissingError, StoreError, TakenError, advance_by_looking, checked_key, is_key

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
_POLL_S = 0.05
_SILENT_S = 10.0
_TRIES = 10


class DirectoryStore:
    """See `elastic.checkpoint.store.Store`. Calls take as long as the mount does; `BoundedStore` ends them."""

    def __init__(self, root: Path, *, deadline_s: float = 120.0, silent_s: float = _SILENT_S) -> None:
        """
        Args:
            deadline_s: how long to wait for another writer of the same object, on a mount without links.
            silent_s: a writer that has not written for so long is taken for dead, on a mount without links.
        """
        self._root, self._deadline_s, self._silent_s = Path(root), deadline_s, silent_s
        self.url = str(root)

    @property
    def is_atomic(self) -> bool:
        try:
            return self._has_links
        except OSError:  # nothing can be written here
            return False

    @functools.cached_property
    def _has_links(self) -> bool:
        probe = self._root / f".probe-{uuid.uuid4().hex}.tmp"
        link = probe.with_suffix(".link.tmp")
        try:
            _make(self._root)
            probe.touch()
            os.link(probe, link)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return False
        finally:
            for path in (probe, link):
                with contextlib.suppress(OSError):
                    path.unlink()
        return True

    def create(self, key: str, data: bytes | memoryview) -> None:
        path = self._path(key)
        with self._told("write", key):
            self._retried(path, lambda: self._create(key, path, data))

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        with self._told("write", key):
            self._retried(path, lambda: self._put(path, data))

    def read(self, key: str, begin: int = 0, end: int | None = None) -> bytes:
        path = self._path(key)
        with self._told("read", key):
            try:
                with open(path, "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    file.seek(begin)
                    data = file.read(-1 if end is None else max(end - begin, 0))
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise MissingError(f"{self.url}: there is no {key}") from None
        if begin > size or (end is not None and len(data) < end - begin):
            raise MissingError(f"{self.url}: {key} has {size} bytes, and not those from {begin} to {end}")
        return data

    def advance(self, key: str, data: bytes, is_older: Callable[[bytes], bool]) -> None:
        advance_by_looking(self, key, data, is_older)

    def list(self, prefix: str) -> Iterator[Item]:
        folder = prefix.rpartition("/")[0]
        if folder:
            checked_key(folder)
        with self._told("list", prefix):
            found = [item for item in self._below(folder) if item.key.startswith(prefix)]
        return iter(sorted(found, key=lambda item: item.key))

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._told("delete", key):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                fsync(path.parent)  # what is deleted first must not come back alone
            for folder in path.parents:
                if folder == self._root or not _is_removed(folder):
                    break

    def sweep(self, prefix: str, before_s: float, *, is_dry: bool = False) -> int:
        swept = 0
        with self._told("list", prefix):
            for folder, _, names in os.walk(self._root / prefix):
                for name in names:
                    path = Path(folder) / name
                    with contextlib.suppress(FileNotFoundError):
                        if name.startswith(".") and name.endswith(".tmp") and path.stat().st_mtime < before_s:
                            if not is_dry:
                                path.unlink()
                            swept += 1
        return swept

    def close(self) -> None:
        return

    def _path(self, key: str) -> Path:
        return self._root / checked_key(key)

    def _put(self, path: Path, data: bytes) -> None:
        """Where a mount has no links, its renames are copies, and what is closed is there at once (GCSFuse)."""
        if self._has_links:
            with _temporary(path, data) as beside:
                os.replace(beside, path)
        else:
            _write(path, data, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        fsync(path.parent)

    def _create(self, key: str, path: Path, data: bytes | memoryview) -> None:
        if not self._has_links:
            self._create_in_place(key, path, data)
        else:
            try:
                with _temporary(path, data) as beside:
                    os.link(beside, path)
            except FileExistsError:
                if path.read_bytes() != data:
                    raise TakenError(f"{self.url}: {key} is there, with other bytes") from None
        fsync(path.parent)

    def _create_in_place(self, key: str, path: Path, data: bytes | memoryview) -> None:
        deadline_s = time.monotonic() + self._deadline_s
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        while True:
            try:
                _write(path, data, flags)
                return
            except FileExistsError:
                found = path.read_bytes()
            if found == data:
                return
            if not bytes(data).startswith(found):
                raise TakenError(f"{self.url}: {key} is there, with other bytes") from None
            if time.time() - path.stat().st_mtime > self._silent_s:
                flags = os.O_WRONLY  # its writer died: the beginning is ours too, so completing it changes nothing
            elif time.monotonic() > deadline_s:
                raise StoreError(f"{self.url}: another writer of {key} does not finish; try again later")
            else:
                time.sleep(_POLL_S)

    def _retried(self, path: Path, write) -> None:
        """`delete` removes folders that are empty, even while somebody is about to write into them."""
        for tries in range(_TRIES):
            try:
                _make(path.parent)
                write()
                return
            except FileNotFoundError:
                if tries == _TRIES - 1:
                    raise

    def _below(self, folder: str) -> Iterator[Item]:
        try:
            entries = list(os.scandir(self._root / folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            if not is_key(entry.name):
                continue
            key = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from self._below(key)
                continue
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                yield Item(key, status.st_size, status.st_mtime)

    @contextlib.contextmanager
    def _told(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"{self.url}: cannot {verb} {key}: {error.strerror or type(error).__name__}; look at the mount's "
                "space, quota and permissions"
            ) from error


@contextlib.contextmanager
def _temporary(path: Path, data: bytes | memoryview) -> Iterator[Path]:
    """A durable file beside a path; whatever happens, it is gone afterwards."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        _write(beside, data, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        yield beside
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def _write(path: Path, data: bytes | memoryview, flags: int) -> None:
    descriptor = os.open(path, flags, 0o644)
    try:
        left = memoryview(data).cast("B") if data else memoryview(b"")
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make(folder: Path) -> None:
    """Make a folder whose name is durable, and its parents'."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for parent in reversed(missing):
        try:
            parent.mkdir()
        except FileExistsError:
            if not stat.S_ISDIR(parent.stat().st_mode):  # what is gone again raises FileNotFoundError: see `_retried`
                raise
        fsync(parent.parent)


def _is_removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


def fsync(path: Path) -> None:
    """Have a file's bytes, or a folder's names, outlast a power cut. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # mounts whose folders cannot be synced
            raise
    finally:
        os.close(descriptor)
