"""Effect. A full file system: a file without a name takes what is free, and gives it back with whoever holds it."""

import errno
import os
from pathlib import Path

from elastic.chaos.aftermath import Aftermath, CannotStrikeError

_SMALLEST = 4096
_MEMORY = ("tmpfs", "ramfs")


def fill(directory: Path, aftermath: Aftermath, lasts_s: float) -> str:
    """Take all free space below a directory for so long; returns the error that a write gets now."""
    if reason := _why_not(directory):
        raise CannotStrikeError(reason)
    try:
        ballast = os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        raise CannotStrikeError(f"no file can be made in {directory}: {error}") from error
    try:
        taken = _take(ballast)
        proof = _error_of_a_write(ballast, taken)
    except OSError as error:
        os.close(ballast)
        raise CannotStrikeError(f"{directory} can not be filled: {error}") from error
    aftermath.after(lasts_s, lambda: os.close(ballast))
    return f"{directory}: {taken} bytes are taken, and a write fails with {proof}"


def _take(ballast: int) -> int:
    """Grow a file until nothing is free; returns its size."""
    taken = 0
    status = os.fstatvfs(ballast)
    piece = max(_SMALLEST, status.f_frsize * (status.f_bfree if os.geteuid() == 0 else status.f_bavail))
    while piece >= _SMALLEST:
        try:
            os.posix_fallocate(ballast, taken, piece)
            taken += piece
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            piece //= 2
    return taken


def _error_of_a_write(ballast: int, at: int) -> str:
    try:
        os.pwrite(ballast, bytes(_SMALLEST), at)
    except OSError as error:
        return str(error)
    raise OSError(errno.EAGAIN, "somebody else frees space there meanwhile")


def _why_not(directory: Path) -> str:
    """A file system in memory is not filled where that could bring the machine down."""
    if not directory.is_dir():
        return f"{directory} is no directory on this node"
    status = os.statvfs(directory)
    free_bytes = status.f_bavail * status.f_frsize
    if _kind(directory) in _MEMORY and free_bytes > _available_bytes() // 2:
        return (
            f"{directory} lies in memory, and filling its {free_bytes >> 20} MiB could bring this machine down: mount "
            "a small tmpfs, and name it with Checkpoint.memory or with=PATH"
        )
    return ""


def _kind(directory: Path) -> str:
    """Type of the file system that it is on: of the mount whose path is the longest beginning of it."""
    found: tuple[int, str] = (-1, "")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        point = point.replace("\\040", " ")
        if directory.resolve().is_relative_to(point):
            found = max(found, (len(point), kind))
    return found[1]


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
