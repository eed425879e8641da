"""What makers of hosts leave on this machine: processes, namespaces, files, found by a name that has their pid."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

MARK = "ELASTIC_HOSTS"
PREFIX = "elh"
_COMMAND_S = 20.0
_END_S = 20.0


class HostsError(RuntimeError):
    """Hosts cannot be made here, or a command on one failed."""


def clean(name: str) -> None:
    """Remove all that the maker of this name has made: processes, namespaces, bridge, files."""
    kill_all(lambda: pids_of(name), name)
    for namespace in _namespaces(name):
        run("ip", "netns", "del", namespace)
    for link in _links(name):
        with contextlib.suppress(HostsError):  # the other end of a cable that has gone with its namespace
            run("ip", "link", "del", link)
    shutil.rmtree(Path("/tmp") / name, ignore_errors=True)
    for page in Path("/dev/shm").glob(f"elastic-{name}-*"):
        page.unlink(missing_ok=True)


def leftovers() -> list[str]:
    """Names of makers that are gone and have left something."""
    names = {*_namespaces(PREFIX), *_links(PREFIX), *(path.name for path in Path("/tmp").glob(f"{PREFIX}*"))}
    found = {match[0]: match[1] for name in names if (match := re.match(rf"{PREFIX}(\d+)", name))}
    return sorted(name for name, pid in found.items() if not Path("/proc", pid).exists())


def pids_on(host: str) -> set[int]:
    """Processes in a namespace."""
    with contextlib.suppress(HostsError):  # it is gone
        return {int(pid) for pid in run("ip", "netns", "pids", host).split()}
    return set()


def kill_all(find: Callable[[], set[int]], whose: str) -> list[int]:
    """SIGKILL to all that `find` finds, until it finds none; returns all that were killed.

    Raises:
        HostsError: one would not die.
    """
    killed: set[int] = set()
    deadline_s = time.monotonic() + _END_S
    while pids := {pid for pid in find() if not is_zombie(pid)}:
        if time.monotonic() > deadline_s:
            raise HostsError(f"processes of {whose} would not die within {_END_S:.0f} s: {sorted(pids)}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= pids
        time.sleep(0.02)
    return sorted(killed)


def pids_of(name: str) -> set[int]:
    """Processes in the namespaces of a maker, those that carry its name as their mark, and all their children.

    Who gives itself a title, as Ray's agents do, may write it over its environment, and the mark with it.
    """
    found = {pid for host in _namespaces(name) for pid in pids_on(host)}
    mark = f"{MARK}={name}\0".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended
            if mark in path.read_bytes() + b"\0":
                found.add(int(path.parent.name))
    parents = _parents()
    while children := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= children
    return found


def _parents() -> dict[int, int]:
    """The parent of every process."""
    found: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found


def is_zombie(pid: int) -> bool:
    """Whether a process has ended, or is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _namespaces(name: str) -> list[str]:
    found = [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line]
    return [namespace for namespace in found if _belongs(namespace, name)]


def _links(name: str) -> list[str]:
    found = [link["ifname"] for link in json.loads(run("ip", "-j", "link") or "[]")]
    return [link for link in found if _belongs(link, name)]


def _belongs(thing: str, name: str) -> bool:
    """Whether a name is `name` or goes on from it, but not with another digit: elh12 is not elh123's."""
    return re.fullmatch(rf"{re.escape(name)}(\D.*)?" if name != PREFIX else rf"{PREFIX}\d.*", thing) is not None


def run(*command: str) -> str:
    """Output of a command.

    Raises:
        HostsError: it failed.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise HostsError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise HostsError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
