"""Effect. What a node holds: pulls are verified, refused where there is no room, and given up where a peer is slow."""

import dataclasses
import threading
import time
from typing import Any

import numpy as np
import pytest

from elastic.checkpoint import pulling
from elastic.checkpoint.manifest import ShardKey
from elastic.checkpoint.node import Node
from elastic.checkpoint.store import MissingError, StoreError
from elastic.errors import NoRoomError
from tests.effects.shards import CHUNK_BYTES, FakeMemory, key

ROOM = 100 * CHUNK_BYTES
PART = 3 * CHUNK_BYTES


def put(array: Any) -> tuple[Any, Any]:
    own = np.array(array)
    return own, own


def node(name: str, budget_bytes: int = ROOM) -> tuple[Node, FakeMemory]:
    memory = FakeMemory()
    return Node(name, memory, budget_bytes, put, part_bytes=PART), memory


class PeerOf:
    """Another node, in this process; `spoil(data, begin)` may change what comes."""

    gives_stored = False

    def __init__(self, other: Node, spoil: Any = lambda data, begin: data) -> None:
        self.where, self._other, self._spoil = f"node {other.name}", other, spoil
        self._asked: list[int] = []

    @property
    def fetched(self) -> int:
        return len(self._asked)

    def manifest(self, of: ShardKey, timeout_s: float) -> Any:
        return self._other.manifest(of)

    def fetch(self, of: ShardKey, begin: int, end: int, timeout_s: float) -> Any:
        self._asked.append(begin)
        return self._spoil(self._other.read(of, begin, end), begin)


def test_a_pulled_copy_outlives_the_slot_it_came_from():
    (a, memory), (b, _) = node("a"), node("b")
    data = memory.seal(key(7))
    pulled = b.pull(key(7), [PeerOf(a)])
    assert (pulled.where, pulled.nbytes) == ("node a", len(data))
    del pulled
    assert memory.overwrite(key(7))
    assert b.holding().copies == {key(7)} and b.holding().nbytes == len(data)
    assert np.array_equal(b.read(key(7), 0, len(data)), data)
    for begin, end in ((0, 1), (PART - 1, PART + 1), (5, len(data) - 5), (len(data), len(data))):
        assert np.array_equal(b.read(key(7), begin, end), data[begin:end])
    assert [one.key for one in b.manifests()] == [key(7)]
    b.drop(key(7))
    assert b.holding().nbytes == 0
    with pytest.raises(MissingError, match="node b holds no shard 0 of 1 of step 7"):
        b.manifest(key(7))


def test_some_parts_are_on_their_way_at_once_and_no_more():
    """None comes until so many have been asked for; what is verified, and not kept yet, is one of them."""
    (a, memory), (b, _) = node("a"), node("b")
    data, peer = memory.seal(key(1), nbytes=40 * CHUNK_BYTES), PeerOf(a)
    fetch, news = peer.fetch, threading.Condition()
    begun, kept, most = 0, [], []

    def wait(of, begin, end, timeout_s):
        nonlocal begun
        with news:
            begun += 1
            most.append(begun - len(kept))
            news.notify_all()
            assert news.wait_for(lambda: begun >= pulling.AT_ONCE, 30)
        return fetch(of, begin, end, timeout_s)

    def put_one(array):
        with news:
            kept.append(len(array))
        return put(array)

    peer.fetch, b._put = wait, put_one  # type: ignore[method-assign]
    b.pull(key(1), [peer])
    assert max(most) == pulling.AT_ONCE and len(most) == 14
    assert np.array_equal(b.read(key(1), 0, len(data)), data)


def test_what_lies_where_copies_live_is_kept_as_it_came_and_verified_all_the_same():
    def fails(array):
        raise AssertionError("it was put once more")

    (a, memory), (b, _) = node("a"), node("b")
    data = memory.seal(key(1))
    b._put = fails
    stored, spoilt = PeerOf(a), PeerOf(a, flip)
    stored.gives_stored = spoilt.gives_stored = True
    with pytest.raises(StoreError, match="node a: .*chunk"):
        b.pull(key(1), [spoilt])
    assert b.pull(key(1), [stored]).nbytes == len(data)
    assert np.shares_memory(b.read(key(1), 0, PART), a.read(key(1), 0, PART))
    b.drop(key(1))
    assert memory.overwrite(key(1)), "somebody keeps what was dropped"


def test_a_copy_that_is_here_is_not_pulled_again():
    (a, memory), (b, _) = node("a"), node("b")
    memory.seal(key(1))
    peer = PeerOf(a)
    b.pull(key(1), [peer])
    fetched = peer.fetched
    assert b.pull(key(1), [peer]).nbytes == 0 and peer.fetched == fetched
    assert b.holding().nbytes == 10 * CHUNK_BYTES


def flip(data: Any, begin: int) -> Any:
    spoilt = np.array(data)
    if begin > 0:
        spoilt[-1] ^= 1
    return spoilt


def test_one_flipped_bit_and_the_next_peer_is_asked():
    (a, memory), (b, _), (c, other) = node("a"), node("b"), node("c")
    data = memory.seal(key(1))
    other.seal(key(1))
    pulled = b.pull(key(1), [PeerOf(a, flip), PeerOf(c)])
    assert (pulled.where, pulled.retries) == ("node c", 1)
    assert np.array_equal(b.read(key(1), 0, len(data)), data)
    assert b.holding().nbytes == len(data)


def test_a_peer_that_is_out_of_files_and_the_next_one_is_asked():
    (a, memory), (b, _), (c, other) = node("a"), node("b"), node("c")
    memory.seal(key(1))
    other.seal(key(1))

    def fails(data: object, begin: int) -> object:
        raise OSError(24, "Too many open files")

    assert b.pull(key(1), [PeerOf(a, fails), PeerOf(c)]).where == "node c"


@pytest.mark.parametrize("spoil", [flip, lambda data, begin: data[:-1]], ids=["flipped", "short"])
def test_nothing_stays_of_a_copy_that_is_not_whole(spoil):
    (a, memory), (b, _) = node("a"), node("b")
    memory.seal(key(1))
    with pytest.raises(StoreError, match=r"node b could not pull shard 0 of 1 of step 1: node a: "):
        b.pull(key(1), [PeerOf(a, spoil)])
    assert b.holding().copies == set() and b.holding().nbytes == 0


def test_a_peer_that_tells_of_another_shard_is_not_believed():
    (a, memory), (b, _) = node("a"), node("b")
    memory.seal(key(1))
    peer = PeerOf(a)
    peer.manifest = lambda of, timeout_s: dataclasses.replace(a.manifest(key(1)), commit=key(2).commit)  # type: ignore
    with pytest.raises(StoreError, match="told of"):
        b.pull(key(1), [peer])


def test_c18_what_does_not_fit_is_refused_before_a_byte_is_asked_for():
    (a, memory), (b, _) = node("a"), node("b", budget_bytes=15 * CHUNK_BYTES)
    memory.seal(key(1))
    memory.seal(key(2))
    b.pull(key(1), [PeerOf(a)])
    peer = PeerOf(a)
    with pytest.raises(NoRoomError, match=r"node b holds .*: raise Checkpoint\.peer_bytes"):
        b.pull(key(2), [peer])
    assert peer.fetched == 0 and b.holding().copies == {key(1)}
    b.drop(key(1))
    b.pull(key(2), [peer])
    assert b.holding().copies == {key(2)}


def test_a_slow_peer_is_given_up_by_name(monkeypatch):
    """C16: the deadline of a part follows from its size."""
    monkeypatch.setattr(pulling, "FIRST_BYTE_S", 0.05)
    (a, memory), (b, _) = node("a"), node("b")
    memory.seal(key(1))
    peer, asked = PeerOf(a), []

    def hang(of, begin, end, timeout_s):
        asked.append(timeout_s)
        time.sleep(timeout_s)
        raise StoreError(f"node a did not answer within {timeout_s:.2f} s")

    peer.fetch = hang  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="node a did not answer within 0.05 s"):
        b.pull(key(1), [peer])
    assert asked == pulling.AT_ONCE * [pytest.approx(0.05, abs=0.01)]
    assert b.holding().nbytes == 0


def test_a_pinned_slot_is_not_overwritten_until_it_is_let_go():
    a, memory = node("a")
    memory.seal(key(1))
    memory.seal(key(2))
    a.pin({key(1), key(9)})
    assert a.holding().pinned == {key(1)} and a.holding().slots == {key(1), key(2)}
    assert not memory.overwrite(key(1)) and memory.overwrite(key(2))
    a.pin(set())
    assert memory.overwrite(key(1)) and a.holding().pinned == set()


def test_what_is_lent_stays_whole_and_pins_no_slot_where_it_fits():
    a, memory = node("a")
    data = memory.seal(key(1))
    with a.lent(key(1)) as (manifest, read):
        assert memory.overwrite(key(1))
        assert np.array_equal(read(0, manifest.nbytes), data)
        assert a.holding().nbytes == len(data)
    assert a.holding().nbytes == 0


def test_what_is_lent_pins_its_slot_where_it_does_not_fit():
    a, memory = node("a", budget_bytes=1)
    data = memory.seal(key(1))
    with a.lent(key(1)) as (manifest, read):
        assert not memory.overwrite(key(1))
        assert np.array_equal(read(5, manifest.nbytes), data[5:])
    del read
    assert memory.overwrite(key(1))


@pytest.mark.parametrize("kind", [NoRoomError, StoreError])
def test_c18_what_is_lent_pins_its_slot_where_the_store_takes_no_copy(kind: type[Exception]):
    """The budget has room, and Ray's object store is full of what others have put there: the second part fails."""
    a, memory = node("a")
    data, puts = memory.seal(key(1)), list[int]()

    def full(array: Any) -> tuple[Any, Any]:
        puts.append(len(array))
        if len(puts) > 1:
            raise kind("others have filled it")
        return put(array)

    a._put = full
    with a.lent(key(1)) as (manifest, read):
        assert len(puts) == 2 and not memory.overwrite(key(1))
        assert np.array_equal(read(0, manifest.nbytes), data) and a.holding().nbytes == 0
    del read
    assert memory.overwrite(key(1))


def test_a_copy_that_is_lent_may_be_dropped_meanwhile():
    (a, memory), (b, _) = node("a"), node("b")
    data = memory.seal(key(1))
    b.pull(key(1), [PeerOf(a)])
    with b.lent(key(1)) as (manifest, read):
        b.drop(key(1))
        assert np.array_equal(read(0, manifest.nbytes), data)


def test_numbers_grow_and_lives_differ():
    a, _ = node("a")
    first, second = a.holding(), a.holding()
    assert first.life == second.life and first.number < second.number
    assert node("a")[0].life != a.life


def test_two_pulls_of_one_shard_take_room_once():
    (a, memory), (b, _) = node("a"), node("b")
    memory.seal(key(1))
    gate, peer = threading.Event(), PeerOf(a)
    fetch = peer.fetch

    def wait(*args):
        assert gate.wait(30)
        return fetch(*args)

    peer.fetch = wait  # type: ignore[method-assign]
    first = threading.Thread(target=b.pull, args=(key(1), [peer]))
    first.start()
    while not b._pulling:
        time.sleep(0.001)
    assert b.pull(key(1), [peer]).nbytes == 0
    gate.set()
    first.join(30)
    assert b.holding().nbytes == 10 * CHUNK_BYTES
