"""Effect. The host monitor: one per node; knows its workers' processes without asking them.

It holds a pidfd of each worker, so a death is known at once and for certain (a pid can be reused, a pidfd cannot),
reads flight pages, and acts where nobody else can: it kills a worker that does not answer.
"""

import contextlib
import os
import select
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from elastic.control import events as ev
from elastic.train.flight import PAGES, Flight, read_page

_READ_S = 0.1
_FENCE_S = 5.0
_LEAVE_S = 2.0


class Process:
    """A process, held so that its pid cannot come to mean another one; released with the last reference."""

    def __init__(self, pid: int) -> None:
        self._pidfd = os.pidfd_open(pid)

    def __del__(self) -> None:
        if hasattr(self, "_pidfd"):
            os.close(self._pidfd)

    def fileno(self) -> int:
        """Readable once the process has ended."""
        return self._pidfd

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def has_ended(self, within_s: float) -> bool:
        return bool(select.select([self], [], [], within_s)[0])


@dataclass(slots=True)
class Watched:
    """A worker process on this node."""

    pid: int
    process: Process
    page: Path
    flight: Flight | None = None
    state: str = ""


class HostMonitor:
    """Watches the workers of one node; an actor in a cluster."""

    def __init__(self) -> None:
        self._watched: dict[str, Watched] = {}
        self._news: list[ev.Event] = []
        self._lock = threading.Condition()
        threading.Thread(target=self._watch, name="elastic-monitor", daemon=True).start()

    def watch(self, worker: str, pid: int, page: Path) -> bool:
        """Take a worker under watch; False if its process is gone already."""
        try:
            process = Process(pid)
        except ProcessLookupError:
            return False
        with self._lock:
            self._watched[worker] = Watched(pid, process, page)
        return True

    def events(self, timeout_s: float) -> list[ev.Event]:
        """News, as soon as there are any, else none after the timeout."""
        with self._lock:
            self._lock.wait_for(lambda: bool(self._news), timeout_s)
            news, self._news = self._news, []
            return news

    def fence(self, worker: str) -> str:
        """Kill a worker and wait for its end; returns the proof, empty if it could not be had."""
        with self._lock:
            watched = self._watched.get(worker)
        return _kill(watched) if watched is not None else ""

    def flights(self) -> dict[str, tuple[str, Flight | None]]:
        """For each worker its process state (R, S, T, Z, ...) and the last reading of its page."""
        with self._lock:
            return {name: (watched.state, watched.flight) for name, watched in self._watched.items()}

    def forget(self, worker: str) -> None:
        """Stop watching a worker that was told to leave, and take its page away."""
        with self._lock:
            watched = self._watched.pop(worker, None)
        if watched is not None:
            watched.page.unlink(missing_ok=True)

    def end_all(self, pages: str) -> list[int]:
        """Wait a moment for workers to end, kill those left, take all pages away; returns pids that would not die.

        Args:
            pages: pattern of the run's flight pages, since those of a lost monitor's workers may lie here too.
        """
        with self._lock:
            left, self._watched = list(self._watched.values()), {}
        deadline_s = time.monotonic() + _LEAVE_S
        for watched in left:
            watched.process.has_ended(max(0.0, deadline_s - time.monotonic()))
        alive = [watched.pid for watched in left if not _kill(watched)]
        for page in PAGES.glob(pages):
            page.unlink(missing_ok=True)
        return alive

    def _watch(self) -> None:
        while True:
            with self._lock:
                names = {watched.process: name for name, watched in self._watched.items()}
            dead, _, _ = select.select(list(names), [], [], _READ_S)
            for process in dead:
                self._report_death(names[process])
            if not dead:
                self._read()

    def _read(self) -> None:
        with self._lock:
            for watched in self._watched.values():
                watched.flight = read_page(watched.page)
                watched.state = _process_state(watched.pid)

    def _report_death(self, name: str) -> None:
        with self._lock:
            watched = self._watched.pop(name, None)
            if watched is None:
                return
            flight = read_page(watched.page) or watched.flight
            proof = f"pid {watched.pid} is gone; {_last_seen(flight)}"
            self._news.append(ev.WorkerDead(worker=name, proof=proof))
            self._lock.notify_all()
        watched.page.unlink(missing_ok=True)


def _kill(watched: Watched) -> str:
    """Kill a process; returns the proof of its end."""
    watched.process.kill()
    return f"pid {watched.pid} was killed by its host monitor" if watched.process.has_ended(_FENCE_S) else ""


def _process_state(pid: int) -> str:
    """One letter of /proc/<pid>/stat, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _last_seen(flight: Flight | None) -> str:
    if flight is None:
        return "it left no flight page"
    at = time.strftime("%H:%M:%S", time.localtime(flight.at_s))
    where = f"{flight.phase.name.lower()} in step {flight.step}, generation {flight.generation}"
    which = f", micro-batch {flight.micro_batch}" if flight.micro_batch >= 0 else ""
    return f"last seen {where}{which} at {at}"
