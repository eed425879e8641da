"""Keeps a peer's processes running on the benchmark's hosts: what a cluster manager does for those who have none.

No torch: what starts processes should start at once.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "ELASTIC_BENCH_JOB"  # in the environment of every process of a run
GLOO = "GLOO_SOCKET_IFNAME"
CABLE = "eth0"  # of every host; gloo would take what its name leads to
_LOOK_S = 0.05
_END_S = 5.0  # for what was killed to be gone
_LAST_S = 2.0  # for the others that train to end, once the run's result is there
_ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where something can be started."""

    name: str
    address: str
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A process that is kept running.

    Attributes:
        command: by the host that it is started on.
        slots: that it takes up there; 0: it runs beside the hosts, where nothing is ever broken on purpose but itself.
        returns: it is started again when it ends with an error.
    """

    name: str
    command: Callable[[Host], Sequence[str]]
    slots: int = 1
    returns: bool = True


def place(slots: int, hosts: Sequence[Host], used: Mapping[str, int]) -> Host | None:
    """The first host with so many slots left; None if there is none.

    Args:
        used: slots by name of the host.
    """
    return next((host for host in hosts if host.slots - used.get(host.name, 0) >= slots), None)


def job_facts(path: str) -> dict[str, Any]:
    """A job's fields, for those who do not want to wait for torch."""
    facts: dict[str, Any] = json.loads(Path(path).read_text())
    return facts


def read_hosts(path: Path) -> list[Host]:
    """What the observer has written: hosts that are there, and are not broken."""
    return [Host(name=name, **facts) for name, facts in json.loads(path.read_text()).items()]


class Launcher:
    """Starts all parts, in their order, and starts those again that return, until the run's result is there.

    A host without a name is this machine itself.

    Args:
        folder: of the job. parts: with different names.
        environment: set for all of them.
    """

    def __init__(self, folder: Path, parts: Sequence[Part], environment: Mapping[str, str] | None = None) -> None:
        self._folder, self._parts, self._environment = folder, parts, dict(environment or {})
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._places: dict[str, Host] = {}
        self._codes: dict[str, int] = {}  # of those who ended for good

    def run(self) -> int:
        """Returns an exit code: 0 if the run came to its end."""
        while not (self._folder / "final.pt").exists():
            self._look()
            if len(self._codes) == len(self._parts):
                return 1
            time.sleep(_LOOK_S)
        until_s = time.monotonic() + _LAST_S
        training = [self._running[part.name] for part in self._parts if part.slots and part.name in self._running]
        while any(process.poll() is None for process in training) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        return 0

    def _look(self) -> None:
        hosts = read_hosts(self._folder / "hosts.json")
        for part in self._parts:
            self._note_end(part)
            if part.name not in self._running and part.name not in self._codes:
                self._start(part, hosts)

    def _note_end(self, part: Part) -> None:
        process = self._running.get(part.name)
        if process is None or process.poll() is None:
            return
        del self._running[part.name]
        self._places.pop(part.name, None)
        if process.returncode == 0 or not part.returns:
            self._codes[part.name] = process.returncode
        else:
            end_all(self._mark(part))  # as a container ends with its first process

    def _start(self, part: Part, hosts: Sequence[Host]) -> None:
        used: dict[str, int] = {}
        for name, host in self._places.items():
            used[host.name] = used.get(host.name, 0) + next(p.slots for p in self._parts if p.name == name)
        here = Host(name="", address="", slots=0)
        host = place(part.slots, hosts, used) if part.slots else here
        if host is None:
            return
        inside = _on(host) if host.name else []
        with (self._folder / f"{part.name}.txt").open("ab") as out:
            self._running[part.name] = subprocess.Popen(
                [*inside, *part.command(host)],
                env=os.environ | self._environment | {MARK: self._mark(part), GLOO: CABLE if host.name else "lo"},
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=_ROOT,
                start_new_session=True,
            )
        if part.slots:
            self._places[part.name] = host

    def _mark(self, part: Part) -> str:
        return f"{self._folder}/{part.name}/"


def module(name: str, *arguments: str) -> list[str]:
    """Command that runs a module with this interpreter."""
    return [sys.executable, "-m", name, *arguments]


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def end_all(mark: str) -> None:
    """SIGKILL to every process whose mark begins so, but not to this one; returns when they are gone, or soon after."""
    until_s = time.monotonic() + _END_S
    while (pids := marked(mark) - {os.getpid()}) and time.monotonic() < until_s:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_S)


def marked(mark: str) -> set[int]:
    """Processes whose mark begins so."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended
            if any(entry.startswith(wanted) for entry in path.read_bytes().split(b"\0")):
                found.add(int(path.parent.name))
    return found


def _on(host: Host) -> list[str]:
    """What begins a command on a host; the host is called by its address, so that the name leads there."""
    named = ["sh", "-c", 'hostname "$0" && exec "$@"', host.address]
    return ["ip", "netns", "exec", host.name, "unshare", "--uts", *named]
