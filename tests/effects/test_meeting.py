"""Effect. The store where members meet: values come and go, waits end when they are told to, no resolver is asked."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from elastic.train.meeting import Store, StoreHost
from tests.effects.helpers import HOST, LONG_S, Running, eventually

NAMELESS = "127.0.0.7"  # no file of the system has a name for it
FORM = f"""
from tests.effects.helpers import view_of
from elastic.train.gloo import GlooGroup
from elastic.train.meeting import StoreHost
own = StoreHost({NAMELESS!r})
GlooGroup(view_of([(own.host, own.port)]), 0, 60.0).form(own, "same", lambda: False, 60.0)
print("formed")
"""
LOOK_UP = f"""
import contextlib, socket
with contextlib.suppress(OSError):
    socket.getnameinfo(({NAMELESS!r}, 1), 0)
"""


class EndedError(Exception):
    pass


def test_of_a_member_that_says_nothing_the_kernel_asks_whether_its_host_is_there():
    """One that vanished says nothing more, ever, and a thread would wait for it."""
    own = StoreHost(HOST)

    def is_probed() -> bool:
        """Whether the kernel's next timer of that connection, at this end of it, is one of SO_KEEPALIVE."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return any(row[1].endswith(f":{own.port:04X}") and row[3] == "01" and row[5].startswith("02:") for row in rows)

    with socket.create_connection((HOST, own.port)):
        eventually(is_probed, "the connection is probed")


def test_what_one_member_sets_another_gets():
    own = StoreHost(HOST)
    one, other = (Store(HOST, own.port, lambda waiting_for: None, "the store") for _ in range(2))
    every_byte = bytes(range(256))
    one.set("a", every_byte)
    one.set("b", "text")
    assert other.get("a") == every_byte
    assert other.look(["b", "c"]) == ["text", None]
    assert other.check(["a", "b"]) and not other.check(["a", "c"])
    waiting = Running(lambda: other.get("late"))
    assert not waiting.is_over
    one.set("late", b"1")
    assert waiting.result() == b"1"


def test_a_wait_ends_when_it_is_told_to_and_says_for_what_it_waited():
    own, is_over = StoreHost(HOST), threading.Event()

    def check(waiting_for: str) -> None:
        if is_over.is_set():
            raise EndedError(waiting_for)

    store = Store(HOST, own.port, check, "the store of w0")
    waiting = Running(lambda: store.wait(["never"]))
    assert not waiting.is_over
    is_over.set()
    assert "the store of w0" in str(waiting.error())


def test_a_connection_that_is_cut_is_an_error_that_names_the_store():
    own = StoreHost(HOST)
    store = Store(HOST, own.port, lambda waiting_for: None, "the store of w0")
    store._socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ConnectionError, match="the store of w0 broke"):
        store.look(["a"])


@pytest.mark.parametrize("noise", [b"", b"GET / HTTP/1.1\r\n", b"[]\n", b'{"set": 1}\n', b"\xff\n", b"{" * 4096])
def test_who_sends_something_else_harms_nobody(noise):
    own = StoreHost(HOST)
    store = Store(HOST, own.port, lambda waiting_for: None, "the store")
    with socket.create_connection((HOST, own.port)) as stranger:
        stranger.sendall(noise)
    store.set("a", "1")
    assert store.get("a") == b"1"


def under_a_mute_resolver(program: str, tmp_path: Path) -> int:
    """Runs a program, and returns how many questions reached its resolver, which never answers."""
    configuration = tmp_path / "resolv.conf"
    configuration.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
        try:
            resolver.bind(("127.0.0.1", 53))
        except OSError as error:
            pytest.skip(f"a resolver of our own cannot be set up: {error}")
        command = f'mount --bind {configuration} /etc/resolv.conf && exec "$0" -c "$1"'
        subprocess.run(["unshare", "--mount", "sh", "-c", command, sys.executable, program], timeout=LONG_S, check=True)
        resolver.setblocking(False)
        questions = 0
        with contextlib.suppress(BlockingIOError):
            while resolver.recv(4096):
                questions += 1
    return questions


@pytest.mark.skipif(os.geteuid() != 0, reason="a resolver of our own needs root")
def test_no_resolver_is_asked(tmp_path):
    """Names fail late, and often where something else has failed."""
    assert under_a_mute_resolver(LOOK_UP, tmp_path) > 0, "this test could not fail"
    assert under_a_mute_resolver(FORM, tmp_path) == 0


def test_a_store_may_be_at_an_address_of_ipv6():
    try:
        own = StoreHost("::1")
    except OSError as error:
        pytest.skip(f"there is no IPv6 on this machine: {error}")
    store = Store("::1", own.port, lambda waiting_for: None, "the store")
    store.set("key", b"value")
    assert store.get("key") == b"value"
