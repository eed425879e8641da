"""Effect. Processes of this machine: held, so that no pid comes to mean another one; and what /proc tells of them."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_FLAGS, _NUM_THREADS = 6, 17
_PF_EXITING = 0x4  # of a thread's flags (include/linux/sched.h): it is past all code of its own
_LOOK_S = 0.005


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

    def runs_no_more(self, within_s: float) -> bool:
        """Whether it has ended, or only has its memory taken away yet; waits for that, at most so long.

        Ask of one that SIGKILL was sent to: it begins no thread any more. Its end comes once the kernel has taken back
        all of its memory, which for one that has torch in it is some 50 ms later.
        """
        until_s = time.monotonic() + within_s
        while not self.has_ended(_LOOK_S):
            if all_exit(self.pid):
                return True
            if time.monotonic() >= until_s:
                return False
        return True


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


def all_exit(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether each thread of a process that was sent SIGKILL is being ended, and runs no code of its own again.

    False where not all can be seen: a list that is read while threads go may lack some, so it has to have as many as
    there were before.
    """
    process = proc / str(pid)
    try:
        threads = int(_fields(process)[_NUM_THREADS])
        names = os.listdir(process / "task")
        return len(names) == threads and all(_exits(process / "task" / name) for name in names)
    except (OSError, IndexError, ValueError):
        return False


def _exits(thread: Path) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # else it is gone
        return bool(int(_fields(thread)[_FLAGS]) & _PF_EXITING)
    return True


def _fields(folder: Path) -> list[bytes]:
    """Of its stat (proc(5)), from the state on."""
    return (folder / "stat").read_bytes().rpartition(b")")[2].split()


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
