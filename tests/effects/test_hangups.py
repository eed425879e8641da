"""Effect. Connections that another side closes while nobody waits in them: it is told once, and of nothing else."""

import contextlib
import os
import queue
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from elastic.train.hangups import Hangups
from tests.effects.helpers import LONG_S, MOMENT_S, eventually, formed, formed_with_children, in_threads


@contextmanager
def connections(count: int) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    pairs = [socket.socketpair() for _ in range(count)]
    try:
        yield pairs
    finally:
        for sock in (sock for pair in pairs for sock in pair):
            sock.close()


def watched(*mine: socket.socket) -> tuple[Hangups, "queue.Queue[str]"]:
    """A watch over these, called w0, w1, ..., and what it tells."""
    told: queue.Queue[str] = queue.Queue()
    names = {os.fstat(one.fileno()).st_ino: f"w{place}" for place, one in enumerate(mine)}
    return Hangups(lambda sock: names.get(os.fstat(sock.fileno()).st_ino), told.put), told


@pytest.fixture
def is_watched() -> Callable[[], bool]:
    """Whether something is that was not before."""
    before = set(threading.enumerate())
    return lambda: any(thread.name == "elastic-hangups" for thread in {*threading.enumerate()} - before)


def assert_silent(told: "queue.Queue[str]") -> None:
    threading.Event().wait(MOMENT_S)
    assert told.empty()


def test_who_closes_a_connection_is_told_once(is_watched):
    with connections(3) as pairs:
        _, told = watched(*(mine for mine, _ in pairs))
        pairs[0][1].send(b"data")  # that something comes is no end
        assert_silent(told)
        pairs[1][1].close()
        assert told.get(timeout=LONG_S) == "w1"
        pairs[2][1].close()
        assert_silent(told)
        eventually(lambda: not is_watched(), "the thread has ended")


def test_a_process_may_have_thousands_of_open_files():
    least = 1024 + 64  # more than select(2) can tell apart
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as many, connections(1) as ((mine, other),):
        many.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(2 * least, hard)), hard))
        for _ in range(least):
            many.enter_context(open(os.devnull))
        _, told = watched(mine)
        other.close()
        assert told.get(timeout=LONG_S) == "w0"


def test_one_that_was_closed_before_is_told_of_too():
    with connections(1) as ((mine, other),):
        other.close()
        assert watched(mine)[1].get(timeout=LONG_S) == "w0"


def test_nothing_is_told_of_strangers_nor_after_the_end(is_watched):
    with connections(2) as ((mine, other), (strangers, ends)):
        watch, told = watched(mine)
        ends.close()
        assert_silent(told)
        strangers.close()
        watch.close()
        eventually(lambda: not is_watched(), "the thread has ended")
        other.close()
        watch.close()
        assert_silent(told)


def test_what_is_closed_here_is_closed_for_the_other_side_once_the_watch_is_over(is_watched):
    with connections(1) as ((mine, other),):
        watch, told = watched(mine)
        other.settimeout(LONG_S)
        assert_silent(told)  # it has begun by then
        mine.close()
        watch.close()
        assert other.recv(1) == b""
        eventually(lambda: not is_watched(), "the thread has ended")


def test_a_member_that_is_killed_is_told_of_while_nobody_reduces():
    told: queue.Queue[str] = queue.Queue()
    with formed_with_children(2) as (group, processes, _):
        group.watch(told.put)
        assert_silent(told)
        processes[1].kill()
        assert told.get(timeout=LONG_S) in ("w2", "a member")


def test_a_group_that_is_cut_tells_its_neighbours_and_not_itself(is_watched):
    told = [queue.Queue[str](), queue.Queue[str]()]
    with formed(2) as groups:
        for group, one in zip(groups, told, strict=True):
            group.watch(one.put)
        assert_silent(told[0])
        groups[0].cut()
        assert told[1].get(timeout=LONG_S)
        assert_silent(told[0])
        in_threads(2, lambda rank: groups[rank].close())
        eventually(lambda: not is_watched(), "the threads have ended")
