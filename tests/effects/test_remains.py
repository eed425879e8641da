"""Effect. What a maker of hosts has left is removed piece by piece, and what stays holds up nothing else."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import hosts, remains
from benchmarks.remains import PREFIX, HostsError, clean

NAME = f"{PREFIX}{os.getpid()}"  # of a maker that lives: others who look for leftovers meanwhile leave it alone
FOLDER, PAGE = Path("/tmp") / NAME, Path("/dev/shm") / f"elastic-{NAME}-0"
THINGS = {f"{NAME}-1", f"{NAME}-2", f"{NAME}br"}


class Machine:
    """Instead of `ip`, and of processes: has these namespaces and links, some of which stay."""

    def __init__(self) -> None:
        self.things = set(THINGS)
        self.stays: set[str] = set()
        self.vanishes = ""  # just before it would be removed
        self.killed = 0

    def run(self, *command: str) -> str:
        links = {thing for thing in self.things if "-" not in thing}
        if command[:3] == ("ip", "netns", "list"):
            return "".join(f"{thing} (id: 0)\n" for thing in sorted(self.things - links))
        if command == ("ip", "-j", "link"):
            return json.dumps([{"ifname": link} for link in sorted(links)])
        assert command[2] == "del"
        thing = command[3]
        self.things -= {self.vanishes}
        if thing in self.stays or thing not in self.things:
            raise HostsError(f"{' '.join(command)}: Device or resource busy")
        self.things.remove(thing)
        return ""

    def kill_all(self, find: Callable[[], set[int]], whose: str) -> list[int]:
        self.killed += 1
        if "processes" in self.stays:
            raise HostsError(f"processes of {whose} would not die within 20 s: [7]")
        return []


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine()
    monkeypatch.setattr(remains, "run", machine.run)
    monkeypatch.setattr(remains, "kill_all", machine.kill_all)
    FOLDER.mkdir()
    PAGE.touch()
    yield machine
    machine.stays.clear()
    clean(NAME)


def test_nothing_is_left(machine: Machine) -> None:
    clean(NAME)
    assert machine.killed == 1 and not machine.things
    assert not FOLDER.exists() and not PAGE.exists()


@pytest.mark.parametrize(
    "stays",
    [{"processes"}, {f"{NAME}-1"}, {f"{NAME}br"}, {"processes", f"{NAME}-1", f"{NAME}br"}],
    ids=["processes", "a namespace", "the bridge", "all of these"],
)
def test_what_stays_is_named_and_holds_up_nothing_else(stays: set[str], machine: Machine) -> None:
    machine.stays |= stays
    with pytest.raises(HostsError) as caught:
        clean(NAME)
    assert machine.things == stays - {"processes"}
    assert not FOLDER.exists() and not PAGE.exists()
    said = str(caught.value)
    assert ("would not die" in said) == ("processes" in stays)
    assert {thing for thing in THINGS if f"del {thing}:" in said} == stays & THINGS


def test_a_list_that_cannot_be_had_holds_up_nothing_that_needs_it_not(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*command: str) -> str:
        if command[:3] == ("ip", "netns", "list"):
            raise HostsError("ip netns list: timed out")
        return machine.run(*command)

    with monkeypatch.context() as patched, pytest.raises(HostsError, match="timed out"):
        patched.setattr(remains, "run", fails)
        clean(NAME)
    assert f"{NAME}br" not in machine.things
    assert not FOLDER.exists() and not PAGE.exists()


def test_a_folder_that_stays_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, pytest.raises(HostsError, match=f"{FOLDER} cannot be removed"):
        patched.setattr("shutil.rmtree", lambda folder, ignore_errors: None)
        clean(NAME)
    assert not machine.things and not PAGE.exists()


def test_a_link_that_has_gone_meanwhile_is_removed(machine: Machine) -> None:
    machine.things.add(f"{NAME}v1")
    machine.vanishes = f"{NAME}v1"
    clean(NAME)
    assert not machine.things


def test_a_maker_that_has_left_what_stays_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cleaned(name: str) -> None:
        if name == "elh1":
            raise HostsError("it would not die")

    monkeypatch.setattr("sys.argv", ["hosts", "--clean"])
    monkeypatch.setattr(hosts, "why_not", lambda: "")
    monkeypatch.setattr(hosts, "leftovers", lambda: ["elh1", "elh2"])
    monkeypatch.setattr(hosts, "clean", cleaned)
    with pytest.raises(SystemExit, match="elh1 has left what stays: it would not die"):
        hosts.main()
    assert capsys.readouterr().out == "removed what elh2 had left\n"
