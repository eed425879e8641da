"""One repetition of the recovery benchmark: a run, the hosts under it, an observer, and how to break things."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.hosts import Hosts
from benchmarks.peers.launch import MARK, end_all
from benchmarks.remains import is_zombie, pids_on
from benchmarks.rows import Fault
from benchmarks.systems import System
from benchmarks.training import Job
from benchmarks.watch import Watch
from elastic.actors.journal import JOURNAL

_LOOK_S = 0.01
_CALM_STEPS = 20
_END_S = 30.0
_NOTICE_S = 1.0
QUIET_S = 5  # in which steps are as they are in most of a run
_PREPARED_S = 60.0  # after which nobody waits any more for what a system prepares
_SPARE_S = 5.0


class LateError(RuntimeError):
    """Something did not happen before the deadline of the repetition."""


class RunEndedError(RuntimeError):
    """The run ended by itself."""


class ScenarioError(RuntimeError):
    """What a scenario needs was not there."""


@dataclass(slots=True)
class Stage:
    """A run in its own process; a context manager that kills its driver if it has not ended by itself.

    Attributes:
        size: workers that train before anything is broken.
        deadline_s: of the repetition, on the monotonic clock.
        long_s: how long something lasts that takes its time.
        spoiled: hosts that the next repetition can not use.
        struck: what was noted last of all that was done; what a run has written is worth something from then on.
    """

    system: System
    hosts: Hosts
    job: Job
    size: int
    deadline_s: float
    chance: random.Random
    long_s: float = 600.0
    watch: Watch = field(init=False)
    spoiled: set[str] = field(default_factory=set)
    struck: Fault | None = field(default=None, init=False)
    _told: str = field(default="", init=False)
    _driver: subprocess.Popen[bytes] = field(init=False)

    def __enter__(self) -> Self:
        self.job.log_folder.mkdir(parents=True)
        self.watch = Watch(self.job.log_folder)
        self.tell_hosts()
        self._start_driver()
        return self

    def __exit__(self, *error: object) -> None:
        if self._driver.poll() is None:  # what it leaves on the hosts goes with them
            self._driver.kill()
            self._driver.wait(_END_S)
        end_all(f"{self.job.folder}/")
        self.watch.close()

    def _start_driver(self) -> None:
        command = [self.system.python, "-m", self.system.module, str(self.job.write())]
        environment = dict(self.hosts.environment) | {MARK: f"{self.job.folder}/"}
        with self.said.open("ab") as out:
            self._driver = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)

    def tell_hosts(self) -> None:
        """Say where something can be started, to drivers that have no cluster to ask."""
        usable = {
            name: {"address": host.address, "slots": self.hosts.slots[name]}
            for name, host in self.hosts.hosts.items()
            if name not in self.spoiled and name in self.hosts.slots
        }
        if (text := json.dumps(usable)) != self._told:
            self._told = text
            (partial := self.job.hosts_file.with_suffix(".partial")).write_text(text)
            partial.rename(self.job.hosts_file)

    @property
    def said(self) -> Path:
        """What the system's driver printed."""
        return Path(self.job.folder) / "driver.txt"

    @property
    def last_word(self) -> str:
        """The last line that the driver printed."""
        lines = self.said.read_text(errors="replace").split("\n") if self.said.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")

    @property
    def journal(self) -> list[dict[str, Any]]:
        """What the run itself has told of its phases so far; empty: it keeps no journal."""
        path = Path(self.job.folder) / "run" / JOURNAL
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    # --- waiting ---

    def allow_s(self, seconds: float) -> None:
        """Set the deadline anew, counted from now."""
        self.deadline_s = time.monotonic() + seconds

    def wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        """Watch until it is so.

        Raises:
            LateError: it was not before the deadline. RunEndedError: the run is over.
        """
        while True:
            self.watch.look()
            self.tell_hosts()
            if is_so():
                return
            if self._driver.poll() is not None:
                raise RunEndedError(f"the run ended with code {self._driver.returncode} before {what}")
            if time.monotonic() > self.deadline_s:
                raise LateError(f"not in time: {what}")
            time.sleep(_LOOK_S)

    def wait_s(self, seconds: float) -> None:
        """Watch for so long."""
        until_s = time.monotonic() + seconds
        self.wait_for(lambda: time.monotonic() >= until_s, f"{seconds:.0f} s had passed")

    def wait_until_calm(self, calm_s: float = 0.0, is_prepared: bool = False) -> None:
        """All members are there and training, all spares have built their model, for so long at least.

        Args:
            is_prepared: nor does any process prepare itself for somebody's loss, or has done so in the last `QUIET_S`,
                unless that takes a minute more.
        """

        def is_whole() -> bool:
            return len(self.watch.members) >= self.size and len(self.watch.living) >= self.size + self.job.spares

        self.wait_for(is_whole, "all workers were there")
        step, until_s = self.watch.step, time.monotonic() + calm_s
        self.wait_for(
            lambda: self.watch.step >= step + _CALM_STEPS and time.monotonic() >= until_s,
            f"{_CALM_STEPS} calm steps",
        )
        patience_s = _PREPARED_S if is_prepared else 0.0  # not so long that the run would be late for it
        given_up_s = min(time.monotonic() + patience_s, self.deadline_s - _SPARE_S)
        quiet_looks = 0
        while self.system.preparing and quiet_looks < QUIET_S and time.monotonic() < given_up_s:
            quiet_looks = 0 if self.titled(self.system.preparing) else quiet_looks + 1
            self.wait_s(1.0)

    def finish(self) -> int:
        """Have the run end in about a second, and wait until it has; returns its exit code."""
        self.job.stop_at(self.watch.step + max(5, round(_NOTICE_S / self.job.step_s)))
        return self.wait_for_end(_END_S)

    def wait_for_end(self, timeout_s: float) -> int:
        """Wait until the run has ended; returns its exit code.

        Raises:
            LateError: it has not.
        """
        try:
            code = self._driver.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise LateError("not in time: the end of the run") from None
        self.watch.look()
        return code

    # --- breaking ---

    def signal(self, pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def replace_driver(self, after_s: float) -> int:
        """SIGKILL to the driver; another one is started a while later, as whoever submits the run does.

        Returns:
            Exit code of the first one, which may have ended before.
        """
        self._driver.kill()
        code = self._driver.wait(_END_S)
        self._look_until(lambda: False, after_s)
        self._start_driver()
        return code

    def see_gone(self, *pids: int) -> bool:
        """Whether these have ended, or do so soon."""
        self._look_until(lambda: not self.is_running(*pids), _END_S)
        return not self.is_running(*pids)

    def _look_until(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        """Watch until it is so, for so long at most: not `wait_for`, which has no use for a run without a driver."""
        until_s = time.monotonic() + timeout_s
        while not is_so() and time.monotonic() < until_s:
            self.watch.look()
            time.sleep(_LOOK_S)

    @property
    def leader(self) -> int:
        """Pid of the lowest rank that trains: rank 0, but where ranks stay with those who are away.

        Raises:
            ScenarioError: nobody trains.
        """
        members = self.watch.members
        if not members:
            raise ScenarioError("nobody trains")
        return members[min(members)]

    def member(self) -> int:
        """Pid of some member, not the leader.

        Raises:
            ScenarioError: there is none.
        """
        leader = self.leader
        members = [pid for _, pid in sorted(self.watch.members.items()) if self.is_running(pid)]
        others = [pid for pid in members if pid != leader]
        if not others:
            raise ScenarioError("nobody trains but the leader")
        return self.chance.choice(others)

    def host_of_some(self) -> str:
        """A host with as many members as any has, so that all systems lose as many; not the leader's, if it can be."""
        held = self.members_by_host()
        leads = self.hosts.of(self.leader)
        most = max(map(len, held.values()))
        largest = {name for name, pids in held.items() if len(pids) == most}
        return self.chance.choice(sorted(largest - {leads}) or sorted(largest))

    def members_by_host(self) -> Mapping[str, set[int]]:
        members = set(self.watch.members.values())
        held = {name: pids_on(name) & members for name in self.hosts.hosts}
        return {name: pids for name, pids in held.items() if pids}

    def fault(self, kind: str, victims: set[int], *, full_size: int = 0, returns: bool = False) -> Fault:
        """A note of what is done right now."""
        self.tell_hosts()  # before anybody starts something where it is broken
        self.struck = Fault(
            kind=kind,
            at_s=time.time(),
            members=frozenset(self.watch.members.values()),
            victims=frozenset(victims),
            returns=returns,
            full_size=full_size or self.size,
        )
        return self.struck

    def is_running(self, *pids: int) -> bool:
        """Whether one of these is still there, and not only waiting for its parent."""
        return any(not is_zombie(pid) for pid in pids)

    def titled(self, title: str) -> list[int]:
        """Processes of this run that are called so."""
        return [pid for pid, line in self._command_lines() if title and is_called(line, title)]

    def _command_lines(self) -> Iterator[tuple[int, str]]:
        for pid in sorted(self.hosts.pids()):
            with contextlib.suppress(OSError):  # it has ended
                yield pid, Path(f"/proc/{pid}/cmdline").read_text(errors="replace")


def is_called(command_line: str, title: str) -> bool:
    """Whether a process gave itself this title, as Ray's actors do, or has it as a whole argument, or as its program.

    A title may name what an actor does now, too: `ray::Class.method`.

    Args:
        command_line: as in /proc, its arguments ended by NUL.
    """
    arguments = command_line.split("\0")
    named = arguments[0].split()[0] if arguments[0].startswith("ray::") else ""
    return title in (named, named.split(".")[0]) or any(
        argument == title or argument.endswith(f"/{title}") for argument in arguments
    )
