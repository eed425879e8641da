"""Effect. Tests side by side, by pytest-xdist: what a machine has but once, and what each worker has for itself.

Tests that train need both cores and the kernel's log, so one worker has them all (`TOGETHER`); another plays the rest
beside it. Each has shared memory of its own, in a mount namespace, or one would find the other's files and take them
for leaks. That needs root; elsewhere all tests come one after the other.
"""

import ctypes
import os
import subprocess
import sys

TOGETHER = ("cluster", "chaos", "host")  # marks of tests that one worker plays
WORKERS = 2
_CLONE_NEWNS = 0x20000  # linux/sched.h
_MOUNT_S = 20.0


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
