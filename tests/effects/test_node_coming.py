"""Effect. Shards that are on their way to a node: readers wait for them, and are told when they will not come."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import ray
from ray.exceptions import ObjectStoreFullError, RaySystemError

from elastic.actors import replica
from elastic.checkpoint.copied import ComingError
from elastic.checkpoint.manifest import ShardKey
from elastic.checkpoint.prefetching import Incoming, prefetch
from elastic.checkpoint.store import MissingError, StoreError
from elastic.errors import NoRoomError
from tests.effects.helpers import LONG_S
from tests.effects.shards import CHUNK_BYTES, key
from tests.effects.test_node import PART, PeerOf, flip, node

NBYTES = 10 * CHUNK_BYTES  # four parts


class Gated(PeerOf):
    """A peer that gives the next part each time it is let; `fail` makes it raise from then on."""

    def __init__(self, other: Any) -> None:
        super().__init__(other)
        self.news, self.let_parts, self.failure, self.begins = threading.Condition(), 0, "", list[int]()

    def fetch(self, of: ShardKey, begin: int, end: int, timeout_s: float) -> Any:
        with self.news:
            assert self.news.wait_for(lambda: begin < PART * self.let_parts or self.failure, LONG_S)
            if begin >= PART * self.let_parts:
                raise StoreError(self.failure)
            self.begins.append(begin)
        return super().fetch(of, begin, end, timeout_s)

    def let(self, parts: int) -> None:
        with self.news:
            self.let_parts += parts
            self.news.notify_all()

    def fail(self, why: str) -> None:
        with self.news:
            self.failure = why
            self.news.notify_all()


@contextmanager
def beside(act: Callable[[], Any]) -> Iterator[list[Any]]:
    """Runs `act` in a thread; the list gets its result, or its error."""
    told: list[Any] = []

    def work() -> None:
        try:
            told.append(act())
        except Exception as error:  # for the test to look at
            told.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield told
    finally:
        thread.join(LONG_S)
        assert not thread.is_alive()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LONG_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def arrived(of: Any) -> int:
    return sum(copied.arrived_bytes for copied in of._shelf.values())


def test_a_copy_is_seen_and_read_while_it_comes_and_counts_when_it_is_whole():
    (a, memory), (b, _) = node("a"), node("b")
    data, peer = memory.seal(key(1)), Gated(a)
    with beside(lambda: b.pull(key(1), [peer])):
        wait_until(lambda: bool(b._shelf))
        assert [one.key for one in b.manifests()] == [key(1)] and b.manifest(key(1)).nbytes == NBYTES
        assert b.holding().copies == set() and b.holding().nbytes == NBYTES
        with beside(lambda: b.read(key(1), PART - 5, PART + 5)) as told:
            peer.let(1)
            wait_until(lambda: arrived(b) == PART)
            assert np.array_equal(b.read(key(1), 5, PART), data[5:PART])
            with pytest.raises(ComingError, match="is on its way"):
                b.read(key(1), 0, PART + 1, timeout_s=0.01)
            assert told == []
            peer.let(1)
            wait_until(lambda: bool(told))
            assert np.array_equal(told[0], data[PART - 5 : PART + 5])
        peer.let(10)
    assert b.holding().copies == {key(1)}


def test_a_chain_of_nodes_takes_while_its_first_is_still_taking():
    (a, memory), *others = node("a"), node("b"), node("c")
    data, peer = memory.seal(key(1)), Gated(a)
    (b, _), (c, _) = others
    with beside(lambda: b.pull(key(1), [peer])):
        wait_until(lambda: bool(b._shelf))
        with beside(lambda: c.pull(key(1), [PeerOf(b)])) as told:
            peer.let(1)
            wait_until(lambda: arrived(c) == PART)
            assert arrived(b) == PART and told == []
            peer.let(10)
    assert told[0].where == "node b" and np.array_equal(c.read(key(1), 0, NBYTES), data)


def test_who_waits_for_a_copy_that_will_not_come_is_told_why():
    (a, memory), (b, _) = node("a"), node("b")
    memory.seal(key(1))
    peer = Gated(a)
    with beside(lambda: b.pull(key(1), [peer])) as told:
        wait_until(lambda: bool(b._shelf))
        with beside(lambda: b.read(key(1), NBYTES - 1, NBYTES)) as waited:
            peer.let(1)
            wait_until(lambda: arrived(b) == PART)
            peer.fail("its disk is gone")
    assert isinstance(waited[0], MissingError) and "did not come in full: node a: its disk is gone" in str(waited[0])
    assert isinstance(told[0], StoreError) and b.holding().nbytes == 0 and b.manifests() == []


def test_the_next_peer_goes_on_where_one_has_failed():
    (a, memory), (b, _), (c, other) = node("a"), node("b"), node("c")
    data = memory.seal(key(1))
    other.seal(key(1))
    second = Gated(c)
    second.let(10)
    assert b.pull(key(1), [PeerOf(a, flip), second]).where == "node c"
    assert sorted(second.begins) == [PART, 2 * PART, 3 * PART], "what had come and was right was asked for again"
    assert np.array_equal(b.read(key(1), 0, NBYTES), data)


def test_a_copy_that_is_dropped_while_it_comes_stops_coming():
    (a, memory), (b, _) = node("a"), node("b")
    memory.seal(key(1))
    peer, other = Gated(a), PeerOf(a)
    with beside(lambda: b.pull(key(1), [peer, other])) as told:
        wait_until(lambda: bool(b._shelf))
        b.drop(key(1))
        assert b.holding().nbytes == 0
        peer.let(10)
    assert isinstance(told[0], StoreError) and not b._shelf
    assert set(peer.begins) <= {0, PART, 2 * PART} and other.fetched == 0


# --- for a restore ---


def expected(step: int = 1, shards: int = 1, **more: Any) -> tuple[Any, Any, Any]:
    """(a node that has the shards, a node that expects them, the peer between them)."""
    (a, memory), (b, _) = node("a"), node("b", **more)
    for shard in range(shards):
        memory.seal(key(step, shard, shards))
    b.expect([a.manifest(key(step, shard, shards)) for shard in range(shards)])
    return a, b, PeerOf(a)


def test_what_is_expected_is_seen_at_once_and_never_counts_as_a_copy():
    a, b, peer = expected()
    assert [one.key for one in b.manifests(1)] == [key(1)]
    with beside(lambda: b.read(key(1), 0, NBYTES)) as told:
        assert b.fill(key(1), [peer]).nbytes == NBYTES
    assert np.array_equal(told[0], a.read(key(1), 0, NBYTES))
    assert b.holding().copies == set() and b.holding().nbytes == NBYTES
    fetched = peer.fetched
    assert b.fill(key(1), [peer]).nbytes == 0 and peer.fetched == fetched, "it was filled twice"


def test_parts_are_smaller_where_many_are_filled_at_once():
    _, b, peer = expected()
    b.fill(key(1), [peer], at_once=3)
    assert peer.fetched == 10


def test_what_another_restore_has_brought_goes_and_readers_are_told():
    a, b, peer = expected(1)
    b.fill(key(1), [peer])
    memory = a.memory
    memory.seal(key(2))
    b.expect([a.manifest(key(2))])
    with pytest.raises(MissingError):
        b.read(key(1), 0, 1)
    with beside(lambda: b.read(key(2), 0, 1)) as told:
        time.sleep(0.01)
        b.expect([])
    assert isinstance(told[0], MissingError) and b.holding().nbytes == 0
    assert b.fill(key(2), [peer]).nbytes == 0, "nobody expects it any more"


def test_what_is_here_or_does_not_fit_is_not_expected(caplog: pytest.LogCaptureFixture):
    (a, memory), (b, own) = node("a"), node("b", budget_bytes=2 * NBYTES)
    keys = [key(1, shard, 4) for shard in range(4)]
    for one in keys:
        memory.seal(one)
    own.seal(keys[0])
    b.pull(keys[1], [PeerOf(a)])
    b.expect([a.manifest(one) for one in keys])
    assert {one.shard for one in b.manifests()} == {0, 1, 2}
    assert "no room for another" in caplog.text and b.holding().nbytes == 2 * NBYTES


def test_a_copy_takes_the_room_of_what_is_here_for_a_restore_and_not_the_other_way_round():
    a, b, peer = expected(1, shards=2, budget_bytes=2 * NBYTES)
    for shard in range(2):
        b.fill(key(1, shard, 2), [peer])
    for step in (2, 3):
        a.memory.seal(key(step))
        b.pull(key(step), [peer])
    assert b.holding().copies == {key(2), key(3)} and b.holding().nbytes == 2 * NBYTES
    a.memory.seal(key(4))
    with pytest.raises(NoRoomError):
        b.pull(key(4), [peer])


def test_a_copy_that_is_asked_for_while_it_comes_for_a_restore_is_taken_once():
    a, b, _ = expected(1)
    peer = Gated(a)
    with beside(lambda: b.fill(key(1), [peer])), beside(lambda: b.pull(key(1), [peer])) as told:
        peer.let(1)
        wait_until(lambda: arrived(b) == PART)
        assert told == []
        peer.let(10)
    assert told[0].nbytes == 0 and sorted(peer.begins) == [0, PART, 2 * PART, 3 * PART]
    b.expect([])
    assert b.holding().copies == {key(1)}, "it counts as a copy from now on"


def test_what_is_expected_and_nobody_fills_holds_no_pull_up():
    a, b, peer = expected(1)
    assert b.pull(key(1), [peer]).nbytes == NBYTES
    assert b.holding().copies == {key(1)} and b.holding().nbytes == NBYTES
    assert np.array_equal(b.read(key(1), 0, NBYTES), a.read(key(1), 0, NBYTES))


def test_a_pull_that_has_waited_in_vain_can_be_asked_for_again(monkeypatch: pytest.MonkeyPatch):
    a, b, peer = expected(1)
    slow = Gated(a)
    with beside(lambda: b.fill(key(1), [slow])):
        wait_until(lambda: all(copied.is_begun for copied in b._shelf.values()))
        monkeypatch.setattr("elastic.checkpoint.node.patience_s", lambda end: 0.01)
        for _ in range(2):
            with pytest.raises(ComingError):
                b.pull(key(1), [peer])
            assert b.holding().copies == set()
        monkeypatch.undo()
        slow.let(10)
    b.pull(key(1), [peer])
    assert b.holding().copies == {key(1)}


@pytest.mark.parametrize("failure", [NoRoomError("full"), KeyError("whatever it is")])
def test_a_shard_that_cannot_be_put_costs_no_other_its_prefetch(monkeypatch: pytest.MonkeyPatch, failure: Exception):
    a, b, peer = expected(1, shards=3)
    put, closed = b._put, []

    class Durable(PeerOf):
        def close(self) -> None:
            closed.append(True)

    def fails_once(data: Any) -> Any:
        monkeypatch.setattr(b, "_put", put)
        raise failure

    monkeypatch.setattr(b, "_put", fails_once)
    coming = [Incoming(key=key(1, shard, 3), peers=[], is_durable=True) for shard in range(3)]
    prefetch(b, coming, lambda: Durable(a)).join(LONG_S)
    assert len(b.manifests()) == 2 and closed == [True]


def test_what_nobody_begins_to_prefetch_is_given_up(monkeypatch: pytest.MonkeyPatch):
    _, b, peer = expected(1, shards=2)
    monkeypatch.setattr("elastic.checkpoint.prefetching.AT_ONCE", 1)

    def no_thread(*args: Any) -> Any:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor.submit", no_thread)
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    coming = [Incoming(key=key(1, shard, 2), peers=[peer], is_durable=False) for shard in range(2)]
    prefetch(b, coming, lambda: None).join(LONG_S)  # type: ignore[arg-type, return-value]
    assert len(failed) == 1 and b.manifests() == [] and b.holding().nbytes == 0


def test_a_full_object_store_is_no_room(monkeypatch: pytest.MonkeyPatch):
    for error, kind in ((ObjectStoreFullError("full"), NoRoomError), (RaySystemError("gone"), StoreError)):

        def fails(array: Any, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(ray, "put", fails)
        with pytest.raises(kind):
            replica._put(np.zeros(8, dtype=np.uint8))


def test_an_answer_without_a_copy_is_no_success():
    a, b, peer = expected(1)
    answer = replica.PullAnswer(holding=b.holding())
    assert "holds no copy" in answer.why_no_copy(key(1))
    b.pull(key(1), [peer])
    assert replica.PullAnswer(holding=b.holding()).why_no_copy(key(1)) == ""
    assert replica.PullAnswer(holding=b.holding(), reason="busy").why_no_copy(key(1)) == "busy"
