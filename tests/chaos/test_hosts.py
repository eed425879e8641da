"""Effect. Hosts on one machine: packets pass, stop when a host is cut, pass again; nothing is left behind."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.hosts import HEAD, NEEDED_TO_IMPAIR, Network, why_not
from benchmarks.remains import HostsError, clean, leftovers, pids_on
from elastic.chaos.aftermath import Aftermath, CannotStrikeError
from elastic.chaos.network import cut, impair
from tests.chaos.netem import has_netem

pytestmark = pytest.mark.host
ECHO = """
import contextlib, socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 9))
print("up", flush=True)
while True:
    with contextlib.suppress(PermissionError):  # its own kernel says that the answer was not let out
        server.sendto(*server.recvfrom(64))
"""
ASK = """
import socket, sys
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(float(sys.argv[3]))
for _ in range(int(sys.argv[2])):
    try:
        client.sendto(b"?", (sys.argv[1], 9))
        client.recv(64)
        print("answer")
    except OSError:  # nothing came, or the packet was not let out
        print("silence")
"""
needs_root = pytest.mark.skipif(bool(why_not()), reason=why_not())


def python_on(host: str, code: str, *arguments: str) -> list[str]:
    return ["ip", "netns", "exec", host, sys.executable, "-c", code, *arguments]


def answers(asking: str, address: str, times: int = 1, within_s: float = 0.5) -> list[str]:
    """What became of each question; an answer may be late, and be taken for that to the next."""
    command = python_on(asking, ASK, address, str(times), str(within_s))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def is_heard(asking: str, address: str) -> bool:
    """Whether one of several questions is answered: the kernel looks for a neighbour only once a second."""
    return "answer" in answers(asking, address, times=20)


def impair_or_skip(act: Callable[[], None], host: str) -> None:
    """Skip where the means are lacking, and that is said; it fails where they are there."""
    if why_not(NEEDED_TO_IMPAIR):
        with pytest.raises(HostsError, match="iproute2"):
            act()
        pytest.skip(why_not(NEEDED_TO_IMPAIR))
    if not has_netem(host):
        with pytest.raises(HostsError, match="this kernel lacks sch_netem"):
            act()
        pytest.skip("this kernel lacks sch_netem")
    act()


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as network:
        yield network


@pytest.fixture
def pair(network: Network) -> Iterator[tuple[str, str, str]]:
    """Name of a host that asks, name and address of one that echoes."""
    asking, echoing = network.add_host(), network.add_host()
    with subprocess.Popen(python_on(echoing.name, ECHO, echoing.address), stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        yield asking.name, echoing.name, echoing.address
        server.kill()


@needs_root
def test_a_cut_host_is_silent_until_it_is_restored(network: Network, pair: tuple[str, str, str]) -> None:
    asking, echoing, address = pair
    assert is_heard(asking, address)
    assert is_heard(echoing, address)
    network.cut(echoing)
    assert answers(asking, address, times=2) == ["silence"] * 2
    assert is_heard(echoing, address), "a host that is cut off can still talk to itself"
    network.restore(echoing)
    assert is_heard(asking, address)


@needs_root
def test_a_share_of_the_packets_is_dropped(network: Network, pair: tuple[str, str, str]) -> None:
    asking, echoing, address = pair
    impair_or_skip(lambda: network.drop(echoing, 0.3), echoing)
    heard = answers(asking, address, times=20)  # a question and its answer pass with a chance of a half
    assert {"answer", "silence"} == set(heard)


@needs_root
def test_traffic_is_delayed_or_the_kernel_is_said_to_lack_the_means(
    network: Network, pair: tuple[str, str, str]
) -> None:
    asking, _, address = pair
    impair_or_skip(lambda: network.delay(asking, 0.2), asking)
    began_s = time.monotonic()
    assert answers(asking, address, within_s=10.0) == ["answer"]
    assert time.monotonic() - began_s >= 0.2
    network.restore(asking)


@needs_root
def test_a_way_is_silent_until_it_is_undone(network: Network, pair: tuple[str, str, str]) -> None:
    asking, echoing, address = pair
    bystander = network.add_host().name
    for senders, receivers in (([asking], [echoing]), ([echoing], [asking])):
        network.silence(senders, receivers)
        assert answers(asking, address) == ["silence"]
        assert is_heard(bystander, address), "others are heard"
        network.unite()
        assert is_heard(asking, address)


@needs_root
@pytest.mark.parametrize("is_head_heard", [True, False])
def test_a_host_that_does_not_hear_the_head_or_is_not_heard_by_it_does_not_answer_it(
    is_head_heard: bool, network: Network
) -> None:
    cut_off, other = network.add_host().name, network.add_host().name
    assert network.answering() == [cut_off, other]
    network.silence(*(([cut_off], [HEAD]) if is_head_heard else ([HEAD], [cut_off])))
    assert network.answering() == [other]
    network.unite()
    deadline_s = time.monotonic() + 10.0
    while network.answering() != [cut_off, other]:
        assert time.monotonic() < deadline_s


@needs_root
def test_nothing_is_left_of_hosts_even_after_an_error() -> None:
    with contextlib.suppress(KeyboardInterrupt), Network() as network:
        host = network.add_host()
        sleeper = subprocess.Popen(["ip", "netns", "exec", host.name, "sleep", "600"])
        while sleeper.pid not in pids_on(host.name):
            assert sleeper.poll() is None
        raise KeyboardInterrupt
    assert sleeper.wait(10) == -9
    assert things_of(network.name) == []


@needs_root
def test_a_lost_host_takes_its_processes_along(network: Network) -> None:
    lost, kept = network.add_host(), network.add_host()
    sleepers = [subprocess.Popen(["ip", "netns", "exec", host.name, "sleep", "600"]) for host in (lost, kept)]
    while not all(pids_on(host.name) for host in (lost, kept)):
        time.sleep(0.01)
    assert network.remove_host(lost.name) == [sleepers[0].pid]
    assert sleepers[0].wait(10) == -9
    assert sleepers[1].poll() is None
    assert network.crash(kept.name) == [sleepers[1].pid]
    assert sleepers[1].wait(10) == -9
    assert not any(line.startswith(lost.name) for line in things_of(network.name))
    assert any(line.startswith(kept.name) for line in things_of(network.name)), "a host that crashed keeps its address"


@needs_root
def test_leftovers_of_a_killed_maker_are_found_and_removed() -> None:
    code = "import os; from benchmarks.hosts import Network; n = Network().__enter__(); n.add_host(); os._exit(9)"
    root = Path(__file__).resolve().parents[2]
    maker = subprocess.Popen([sys.executable, "-c", code], cwd=root)
    assert maker.wait(30) == 9
    name = f"elh{maker.pid}"
    assert things_of(name) != []
    assert name in leftovers()
    clean(name)
    assert things_of(name) == []
    assert name not in leftovers()


@pytest.mark.skipif(os.geteuid() != 0, reason="as root the sentence would be about commands")
def test_a_missing_command_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda command: None if command == NEEDED_TO_IMPAIR else f"/sbin/{command}")
    assert why_not() == ""
    assert why_not(NEEDED_TO_IMPAIR) == "the command tc is missing: apt-get install -y iproute2"


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostsError, match="only root"):
        Network().__enter__()


def things_of(name: str) -> list[str]:
    """Namespaces and links with this name."""
    namespaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    return [line for line in (namespaces + links).splitlines() if line.startswith(name)]


# --- as elastic chaos does it, from inside ----------------------------------------------------------------------------


@needs_root
def test_an_interface_is_cut_and_mended_when_its_time_is_over(pair: tuple[str, str, str]) -> None:
    asking, echoing, address = pair
    aftermath, was_silent = Aftermath(), False
    for lasts_s in (3.0, 12.0, 48.0):  # on a busy machine a question may take longer than a cut
        began_s = time.monotonic()
        proof = cut(f"eth0,netns={echoing}", aftermath, lasts_s=lasts_s)
        assert "qdisc tbf" in proof
        was_silent = answers(asking, address) == ["silence"]
        assert was_silent or time.monotonic() - began_s >= lasts_s, "it was not cut"
        while answers(asking, address) == ["silence"]:
            assert time.monotonic() - began_s < lasts_s + 30.0, "it was not mended"
        if was_silent:
            break
    assert was_silent
    aftermath.close()


@needs_root
def test_an_interface_is_mended_when_its_monitor_ends(pair: tuple[str, str, str]) -> None:
    asking, echoing, address = pair
    aftermath = Aftermath()
    cut(f"eth0,netns={echoing}", aftermath, lasts_s=1000.0)
    assert answers(asking, address) == ["silence"]
    aftermath.close()
    assert is_heard(asking, address)


@needs_root
def test_an_interface_is_mended_even_where_its_injector_is_killed(pair: tuple[str, str, str]) -> None:
    asking, echoing, address = pair
    code = (
        "import sys, time\n"
        "from elastic.chaos import network, aftermath\n"
        "print(network.cut(sys.argv[1], aftermath.Aftermath(), 3.0), flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, f"eth0,netns={echoing}"]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root) as injector:
        assert injector.stdout is not None
        assert b"qdisc tbf" in injector.stdout.readline()
        began_s = time.monotonic()
        injector.kill()
    while answers(asking, address) == ["silence"]:
        assert time.monotonic() - began_s < 30.0, "it was not mended"


@needs_root
def test_what_the_kernel_lacks_is_said(pair: tuple[str, str, str]) -> None:
    asking, echoing, address = pair
    aftermath, argument = Aftermath(), f"eth0,netns={echoing},delay=0.2"
    if has_netem(echoing):
        proof = impair(argument, aftermath, lasts_s=1000.0)
        assert "netem" in proof and "delay 200" in proof
    else:
        with pytest.raises(CannotStrikeError, match="this kernel lacks sch_netem"):
            impair(argument, aftermath, lasts_s=1000.0)
    aftermath.close()
    assert is_heard(asking, address)


@needs_root
def test_what_is_asked_for_wrongly_is_not_laid_on_the_kernel(pair: tuple[str, str, str]) -> None:
    _, echoing, _ = pair
    with pytest.raises(CannotStrikeError, match="Illegal") as raised:
        impair(f"eth0,netns={echoing},loss=2", Aftermath(), lasts_s=1.0)
    assert "sch_netem" not in str(raised.value)


@needs_root
def test_an_interface_that_is_not_there_or_has_a_discipline_of_its_own_is_left_alone(
    pair: tuple[str, str, str],
) -> None:
    _, echoing, _ = pair
    with pytest.raises(CannotStrikeError, match="nowhere0"):
        cut(f"nowhere0,netns={echoing}", Aftermath(), lasts_s=1.0)
    discipline = ["tbf", "rate", "1gbit", "burst", "1mb", "latency", "1s"]
    subprocess.run(["tc", "-n", echoing, "qdisc", "add", "dev", "eth0", "root", *discipline], check=True)
    with pytest.raises(CannotStrikeError, match="eth0 has a queueing discipline of its own \\(tbf\\)"):
        cut(f"eth0,netns={echoing}", Aftermath(), lasts_s=1.0)
