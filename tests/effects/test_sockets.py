"""Effect. Who can be reached, and who can not."""

import contextlib
import select
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from elastic.train import gloo, sockets
from elastic.train.gloo import FormingCancelledError, GlooGroup
from elastic.train.meeting import Store, StoreHost
from elastic.train.sockets import Address, knocked_at, unreached
from tests.effects.helpers import ENDLESS_S, HOST, LONG_S, Running, eventually, view_of


def never() -> bool:
    return False


def test_who_listens_is_reached_though_nobody_accepts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("::1", 0), family=socket.AF_INET6) as two:
        places = {"w1": one.getsockname()[:2], "w2": two.getsockname()[:2]}
        assert unreached(places, LONG_S, never) == ()


def test_who_refuses_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = server.getsockname()
        with socket.create_server(("127.0.0.1", 0)) as gone:
            refusing = gone.getsockname()
        assert unreached({"w1": refusing, "w2": here}, LONG_S, never) == ("w1",)


@contextlib.contextmanager
def full() -> Iterator[Address]:
    """A place where the kernel answers nobody any more: it keeps no more of them waiting."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as stack:
        for _ in range(3):
            guest = stack.enter_context(socket.socket())
            guest.setblocking(False)
            guest.connect_ex(server.getsockname())
        yield server.getsockname()


def test_it_is_not_known_who_is_reached_where_it_is_over_before_the_end() -> None:
    asked = iter([False, True])
    with full() as place:
        assert unreached({"w1": place}, 0.1, never) == ("w1",)
        assert unreached({"w1": place}, LONG_S, lambda: next(asked)) is None


def test_where_there_is_no_way_to_nobody_is_reached() -> None:
    """The kernel says so at once, of its own accord."""
    nowhere = ("255.255.255.255", 9)
    with socket.create_server(("127.0.0.1", 0)) as server:
        places = {"w1": nowhere, "w2": server.getsockname()}
        assert unreached(places, LONG_S, never) == ("w1",)
        began_s = time.monotonic()
        assert knocked_at(places, ["w1"], 0.3, never) == ((), ("w1",))
        assert time.monotonic() - began_s >= 0.2, "a way that is missing for a moment is no loss"


def test_from_whose_host_nothing_comes_back_is_named_and_who_refuses_has_answered() -> None:
    with full() as mute, socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            refusing = gone.getsockname()
        places = {"w1": mute, "w2": refusing, "w3": server.getsockname()}
        assert knocked_at(places, ["w1", "w2"], 0.3, never) == (("w2",), ("w1",))
        del places["w3"]
        assert knocked_at(places, ["w1"], 0.3, never) == ((), ("w1",)), "a refusal shows that packets pass"


@pytest.mark.parametrize(("answers_at_s", "named"), [(0.15, ()), (0.35, ("w1",))], ids=["in time", "too late"])
def test_an_answer_to_the_first_knock_counts_though_others_have_followed(
    monkeypatch: pytest.MonkeyPatch, answers_at_s: float, named: tuple[str, ...]
) -> None:
    """A far host's, or one whose link is full; what was heard of it later has no answer at all."""
    now_s, opened = [0.0], list[tuple[Address, socket.socket]]()
    socket_for = sockets._socket_for

    def noted(place: Address) -> socket.socket:
        opened.append((place, socket_for(place)))
        return opened[-1][1]

    class Poll:
        """Others answer at once, and who is in doubt its first knock alone, where that is still listened to."""

        def __init__(self) -> None:
            self.waiting: list[socket.socket] = []

        def register(self, sock: socket.socket, events: int) -> None:
            self.waiting.append(sock)

        def unregister(self, descriptor: int) -> None:
            self.waiting = [one for one in self.waiting if one.fileno() != descriptor]

        def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
            now_s[0] += timeout_ms / 1000
            first = next(sock for place, sock in opened if place == places["w1"])
            heard = [sock for place, sock in opened if place == places["w2"]]
            heard += [first] if now_s[0] >= answers_at_s else []
            return [(one.fileno(), select.POLLOUT) for one in self.waiting if one in heard]

    monkeypatch.setattr(sockets, "_socket_for", noted)
    monkeypatch.setattr(sockets, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(sockets, "select", SimpleNamespace(poll=Poll, POLLOUT=select.POLLOUT))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        places = {"w1": server.getsockname(), "w2": other.getsockname()}
        assert knocked_at(places, ["w1"], 0.3, never) == (() if named else ("w1",), named)
    assert len([place for place, _ in opened if place == places["w1"]]) > 1, "others have followed"


def test_nobody_is_named_where_it_is_over_before_the_end() -> None:
    asked = iter([False, True])
    with full() as mute, socket.create_server(("127.0.0.1", 0)) as server:
        places = {"w1": mute, "w2": server.getsockname()}
        assert knocked_at(places, ["w1"], LONG_S, lambda: next(asked)) == ((), ())


def test_where_nobody_answers_that_says_nothing_of_those_in_doubt() -> None:
    with full() as mute, full() as other:
        assert knocked_at({"w1": mute, "w2": other}, ["w1"], 0.3, never) == ((), ())


def test_who_has_met_and_is_out_of_reach_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two who have appeared at the leader's store and do not connect, one has a store that does not answer."""
    monkeypatch.setattr(gloo, "_KNOCK_AFTER_S", 0.1)
    own, late = StoreHost(HOST), StoreHost(HOST)
    with socket.create_server((HOST, 0)) as gone:
        refusing = gone.getsockname()[1]
    view = view_of([(HOST, own.port), (HOST, late.port), (HOST, refusing)], 1)
    group = GlooGroup(view, 0, ENDLESS_S)
    store = Store(HOST, own.port, lambda waiting_for: None, "the store")
    for rank in (1, 2):
        store.set(group._key(f"rank{rank}"), f"{HOST} 1 same")
    forming = Running(lambda: group.form(own, "same", lambda: False, ENDLESS_S))
    eventually(lambda: group.missing == ("w2",), "who does not answer is named")
    group.cut()
    assert isinstance(forming.error(), FormingCancelledError | RuntimeError)
