"""Effect. Processes of this machine: held, so that no pid comes to mean another one; and what /proc tells of them."""

import contextlib
import os
import select
import signal
from collections.abc import Iterable
from pathlib import Path


class Process:
    """A process, held so that its pid cannot come to mean another one; released with the last reference."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def __del__(self) -> None:
        if hasattr(self, "_pidfd"):
            os.close(self._pidfd)

    def fileno(self) -> int:
        """Readable once the process has ended."""
        return self._pidfd

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    @property
    def state(self) -> str:
        """One letter of /proc/<pid>/stat, empty if it is gone."""
        return process_state(self.pid)

    def has_ended(self, within_s: float) -> bool:
        return bool(ended_among([self], within_s))


def ended_among(processes: Iterable[Process], within_s: float) -> list[Process]:
    """Those that have ended; waits until one has, at most so long. Not select(), which knows 1024 descriptors only."""
    by_descriptor, poll = {process.fileno(): process for process in processes}, select.poll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(within_s * 1000)]


def process_state(pid: int | str) -> str:
    """One letter of /proc/<pid>/stat, empty if it is gone; of a thread: pid/task/tid."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:  # of each worker, ten times a second
            return stat.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def waits_for_disk(pid: int) -> bool:
    """Whether some thread of it waits so that no signal ends it (state D of proc(5)), as for a disk that is slow."""
    with contextlib.suppress(OSError):
        return any(process_state(f"{pid}/task/{thread}") == "D" for thread in os.listdir(f"/proc/{pid}/task"))
    return False


def ran_on_cpu_ns(pid: int) -> int:
    """How long its main thread has run (proc(5): /proc/pid/schedstat); 0 where nothing tells."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except (OSError, IndexError, ValueError):
        return 0


def waited_for_cpu_ns(pid: int) -> dict[int, int]:
    """For each thread, how long it has been runnable without running (proc(5): /proc/pid/task/tid/schedstat).

    Threads, and the process, may end meanwhile; then there is nothing to tell of them.
    """
    waited: dict[int, int] = {}
    tasks = Path(f"/proc/{pid}/task")
    with contextlib.suppress(OSError):
        for name in os.listdir(tasks):
            with contextlib.suppress(OSError, IndexError, ValueError):
                waited[int(name)] = int((tasks / name / "schedstat").read_text().split()[1])
    return waited
