"""What makers of hosts leave on this machine: processes, namespaces, files, found by a name that has their pid."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

MARK = "ELASTIC_HOSTS"
PREFIX = "elh"
_COMMAND_S = 20.0
_END_S = 20.0


class HostsError(RuntimeError):
    """Hosts cannot be made here, or a command on one failed."""


def clean(name: str) -> None:
    """Remove all that the maker of this name has made: processes, namespaces, bridge, files.

    What cannot be removed holds up nothing else.

    Raises:
        HostsError: something is left; it names all of that.
    """
    left: list[str] = []
    with _noting(left):
        kill_all(lambda: pids_of(name), name)
    with _noting(left):
        for namespace in _namespaces(name):
            with _noting(left):
                run("ip", "netns", "del", namespace)
    with _noting(left):
        for link in _links(name):
            with _noting(left):
                _remove_link(name, link)
    folder = Path("/tmp") / name
    shutil.rmtree(folder, ignore_errors=True)  # or the first file that stays would keep the others
    if folder.exists():
        left.append(f"{folder} cannot be removed")
    for page in Path("/dev/shm").glob(f"elastic-{name}-*"):
        with _noting(left):
            page.unlink(missing_ok=True)
    if left:
        raise HostsError("; ".join(left))


@contextlib.contextmanager
def _noting(left: list[str]) -> Iterator[None]:
    """What goes wrong within is noted, and ends nothing else."""
    try:
        yield
    except (HostsError, OSError) as error:
        left.append(str(error))


def _remove_link(name: str, link: str) -> None:
    """Remove a link, unless it has gone meanwhile: a cable goes with the namespace that its other end is in."""
    try:
        run("ip", "link", "del", link)
    except HostsError:
        if link in _links(name):
            raise


def leftovers() -> list[str]:
    """Names of makers that are gone and have left something."""
    names = {*_namespaces(PREFIX), *_links(PREFIX), *(path.name for path in Path("/tmp").glob(f"{PREFIX}*"))}
    found = {match[0]: match[1] for name in names if (match := re.match(rf"{PREFIX}(\d+)", name))}
    return sorted(name for name, pid in found.items() if not Path("/proc", pid).exists())


def swept(place: Path, kind: str) -> str:
    """Remove folders of this kind whose makers are gone; returns what the names of this process's own begin with."""
    for left in place.glob(f"{kind}-[0-9]*-*"):
        if not Path("/proc", left.name.removeprefix(f"{kind}-").split("-")[0]).exists():
            shutil.rmtree(left, ignore_errors=True)
    return f"{kind}-{os.getpid()}-"


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
        kill_now(pids)
        killed |= pids
        time.sleep(0.02)
    return sorted(killed)


def kill_now(pids: Collection[int]) -> None:
    """SIGKILL to these, one right after the other."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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
