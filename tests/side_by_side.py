"""Effect. Tests side by side, by pytest-xdist: what a machine has but once, and what each worker has for itself.

One worker plays the tests that start a cluster, and those that need what a machine has but once (the kernel's log, its
network namespaces), one after the other; so does one with those that train in processes of their own; what else there
is comes in groups of a file. Each has shared memory of its own, in a mount namespace, or one would find the other's
files and take them for leaks. That needs root; elsewhere all tests come one after the other.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Collection

ALONE = ("cluster", "host")  # marks of tests that one worker plays, one after the other
WORKERS = 2
_CLONE_NEWNS = 0x20000  # linux/sched.h
_MOUNT_S = 20.0


def group_of(marks: Collection[str], file: str) -> str:
    """The tests that one worker plays, of which a test with these marks in this file is one."""
    return ALONE[0] if any(mark in marks for mark in ALONE) else "chaos" if "chaos" in marks else file


def workers() -> int:
    """How many there should be; 0: no other process, tests come in order."""
    parts = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    if sys.platform != "linux" or os.geteuid() != 0 or (os.cpu_count() or 1) < WORKERS:
        return 0
    try:
        return 0 if subprocess.run(parts, capture_output=True, timeout=_MOUNT_S).returncode else WORKERS
    except OSError:
        return 0


def part() -> None:
    """Give this thread, and what it starts from now on, shared memory of its own.

    Raises:
        OSError: the kernel does not let us.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNS)")
    for command in (["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]):
        subprocess.run(command, check=True, timeout=_MOUNT_S)
