"""Effect. Faults of processes: killed, stopped, slowed down, told of their end; and of a node, which is all of its."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn, Protocol

from elastic.chaos.aftermath import Aftermath, CannotStrikeError

_SEEN_S = 5.0
_POLL_S = 0.002
_CYCLE_S = 0.05  # well below the shortest hang that is looked for, and well above what a signal takes


class Held(Protocol):
    """A process that is held, so that its pid cannot come to mean another one."""

    pid: int

    def send(self, number: signal.Signals) -> None: ...

    def has_ended(self, within_s: float) -> bool: ...

    @property
    def state(self) -> str:
        """One letter of /proc/<pid>/stat, empty if it is gone."""
        ...


def kill(process: Held) -> str:
    """SIGKILL; returns the proof of its end."""
    process.send(signal.SIGKILL)
    if not process.has_ended(_SEEN_S):
        raise CannotStrikeError(f"pid {process.pid} has not ended {_SEEN_S:.0f} s after SIGKILL: is it in the kernel?")
    return f"pid {process.pid} has ended after SIGKILL"


def stop(process: Held, aftermath: Aftermath, lasts_s: float) -> str:
    """SIGSTOP; SIGCONT after `lasts_s`, unless that is 0."""
    _halt(process)
    if lasts_s:
        aftermath.after(lasts_s, lambda: process.send(signal.SIGCONT))
    return f"pid {process.pid} was seen stopped"


def slow(process: Held, aftermath: Aftermath, factor: float, lasts_s: float) -> str:
    """Stop and continue it in turns, so that it runs for 1/factor of the time."""
    stopped_s = _CYCLE_S * (1 - 1 / factor)
    _halt(process)

    def take_turns() -> None:
        ends_s, is_over = time.monotonic() + lasts_s, False
        while not is_over:
            process.send(signal.SIGSTOP)
            is_over = aftermath.is_closed(stopped_s) or time.monotonic() > ends_s
            process.send(signal.SIGCONT)
            is_over = is_over or process.has_ended(_CYCLE_S - stopped_s)

    aftermath.beside(take_turns)
    return f"pid {process.pid} was seen stopped, as it now is for {1 - 1 / factor:.0%} of {lasts_s:g} s"


def notice(process: Held, aftermath: Aftermath, lasts_s: float) -> str:
    """SIGTERM, as before a preemption; SIGKILL after `lasts_s`, if it is still there."""
    process.send(signal.SIGTERM)
    aftermath.after(lasts_s, lambda: process.send(signal.SIGKILL))
    return f"pid {process.pid} was sent SIGTERM, and has {lasts_s:g} s"


def end_node() -> NoReturn:
    """Every process of this node of Ray at once: its raylet, all that it has started, and this one.

    Raises:
        CannotStrikeError: this process was not started by a raylet.
    """
    raylet = os.getppid()
    if _program(raylet) != "raylet":
        raise CannotStrikeError(f"pid {raylet}, which started this process, is no raylet: there is no node to end")
    kill_all([raylet, *(pid for pid in descendants(raylet) if pid != os.getpid())])
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL came back")


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL to each that is there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Children, and theirs, of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def _halt(process: Held) -> None:
    process.send(signal.SIGSTOP)
    if not seen_within(_SEEN_S, lambda: process.state == "T"):
        process.send(signal.SIGCONT)  # else it stops once it is out of the kernel, and for good
        raise CannotStrikeError(f"pid {process.pid} does not stop: its state is {process.state or 'gone'}")


def seen_within(limit_s: float, is_so: Callable[[], bool]) -> bool:
    """Whether it came to be so in time."""
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def _program(pid: int) -> str:
    """Name of the program that a process runs, as it was started; empty if it is gone."""
    try:
        return os.path.basename(Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]).decode()
    except OSError:
        return ""
