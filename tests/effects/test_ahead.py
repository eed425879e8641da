"""Effect. Connections that are made ahead: taken where all count on them, and taken down in every other case."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from elastic.control import events as ev
from elastic.settings import Limits
from elastic.train.ahead import Ahead
from elastic.train.gloo import FormingCancelledError, groups_of
from elastic.train.link import Link
from elastic.train.session import Session
from tests.effects.helpers import LONG_S, Circle, eventually, in_threads

MOMENT_S = 0.05


class Ring:
    """Members of one process, each with what it connects ahead."""

    def __init__(self, size: int, width: int = 1, **limits: float) -> None:
        self.circle, self.width = Circle(size), width
        self.links = [Link(f"w{rank}", LONG_S) for rank in range(size)]
        given = Limits(**{"connect_ahead_s": LONG_S, **limits})
        self.layouts = [("a", "b")] * size
        self.aheads = [
            Ahead(
                link,
                store,
                lambda rank=rank: self.layouts[rank],
                lambda view, prefix, link=link: groups_of(view, link.worker, given.collective_timeout_s, prefix),
                given,
            )
            for rank, (link, store) in enumerate(zip(self.links, self.circle.stores, strict=True))
        ]
        self.view = replace(self.circle.next_view(), width=width)

    def connect(self, *ranks: int) -> None:
        for rank in ranks or range(len(self.links)):
            self.aheads[rank].connect(self.view)

    def told(self, rank: int) -> list[ev.Event]:
        return self.links[rank].take_events(MOMENT_S)

    def connected(self) -> None:
        for link in self.links:
            assert link.take_events(LONG_S) == [ev.Connected(worker=link.worker, generation=self.view.generation - 1)]

    def taken(self, **changes: object) -> list:
        view = replace(self.view, **{"is_connected": True, **changes})
        return [ahead.take(view) for ahead in self.aheads]

    def guesses(self) -> list:
        return [ahead._guess for ahead in self.aheads]

    def close(self) -> None:
        for ahead in self.aheads:
            ahead.drop()


@pytest.fixture
def ring():
    made: list[Ring] = []

    def make(*arguments, **options) -> Ring:
        made.append(Ring(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def take_down(taken: list) -> None:
    for groups in taken:
        for group in groups or ():
            group.cut()
            group.close()


@pytest.mark.parametrize(("size", "width", "sums"), [(3, 1, [3.0] * 3), (4, 2, [2.0] * 4)])
def test_the_next_generation_sums_over_connections_that_were_made_before_it(ring, size, width, sums):
    members = ring(size, width)
    members.connect()
    members.connected()
    taken = members.taken(published=7)
    try:
        assert [len(groups) for groups in taken] == [min(2, width)] * size
        assert all(group.view.published == 7 for groups in taken for group in groups)
        for place in range(min(2, width)):

            def act(rank, place=place):
                mine = torch.ones(1)
                group = taken[rank][place]
                group.wait(group.allreduce(mine))
                return float(mine)

            assert in_threads(size, act) == sums
    finally:
        take_down(taken)


@pytest.mark.parametrize("changes", [{"is_connected": False}, {"generation": 2}, {"members": ()}], ids=str)
def test_connections_that_nobody_counts_on_are_taken_down(ring, changes):
    members = ring(2)
    members.connect()
    members.connected()
    guesses = members.guesses()
    assert members.taken(**changes) == [None, None]
    for guess in guesses:
        assert guess.is_dropped.is_set() and not guess.has_connected
        assert not any(group._pg for group in guess.groups)


def test_who_is_alone_with_it_tells_nothing_and_gives_up_in_time(ring):
    members = ring(2, connect_ahead_s=0.2)
    members.connect(0)
    (guess, _) = members.guesses()
    eventually(guess.is_dropped.is_set, "it has given up")
    assert members.told(0) == []
    assert members.taken(is_connected=False) == [None, None]


def test_an_order_to_form_ends_the_wait_for_others(ring):
    members = ring(2)
    members.connect(0)
    (guess, _) = members.guesses()
    began_s = time.monotonic()
    assert members.aheads[0].take(replace(members.view, is_connected=False)) is None
    eventually(lambda: not any(group._pg for group in guess.groups), "its thread has taken it down")
    assert time.monotonic() - began_s < LONG_S / 2
    assert members.told(0) == []


def test_those_who_train_something_else_do_not_connect(ring):
    members = ring(2)
    members.layouts[1] = ("other", "b")
    members.connect()
    for guess in members.guesses():
        eventually(guess.is_dropped.is_set, "it has given up")
    assert members.told(0) == members.told(1) == []


def test_a_second_guess_takes_the_place_of_the_first(ring):
    members = ring(2)
    members.connect(0)
    (first, _) = members.guesses()
    members.view = replace(members.circle.next_view())
    members.connect()
    members.connected()
    assert first.is_dropped.is_set()
    taken = members.taken()
    assert all(taken)
    take_down(taken)


@pytest.mark.parametrize("changes", [{"generation": 0}, {"incarnation": -1}], ids=str)
def test_an_order_that_comes_late_or_from_a_driver_that_is_gone_is_not_obeyed(ring, changes):
    members = ring(2)
    members.aheads[0].connect(replace(members.view, **changes))
    assert members.guesses() == [None, None]


def test_a_stop_waits_until_the_driver_asks_again_but_not_for_ever():
    link = Link("w0", LONG_S)
    link._state = replace(link.state, generation=3)
    link.pause(3, patience_s=LONG_S)
    assert not link.wants_pause()
    link.pause(2)
    assert not link.wants_pause()
    link.pause(3)
    assert link.wants_pause()
    link.pause(3, patience_s=LONG_S)
    assert link.wants_pause(), "an order that comes late makes nobody wait again"
    hasty = Link("w0", LONG_S)
    hasty._state = link.state
    hasty.pause(3, patience_s=MOMENT_S)
    assert not hasty.wants_pause()
    eventually(hasty.wants_pause, "its patience has ended")


def test_what_others_count_on_and_is_not_there_ends_the_forming():
    session = SimpleNamespace(worker="w0", _link=SimpleNamespace(lacks=lambda view: ""))
    view = SimpleNamespace(is_connected=True)
    with pytest.raises(RuntimeError, match="w0 has lost the connections"):
        Session._connect(session, view, [], False, lambda: False)


def test_nothing_is_given_over_connections_made_ahead_once_all_were_frozen_or_by_who_does_not_hold_it():
    """A freeze that came before these groups were the current ones has cut others."""
    session = SimpleNamespace(worker="w0", _link=SimpleNamespace(lacks=lambda view: ""))
    view = SimpleNamespace(is_connected=True)
    Session._connect(session, view, [], True, lambda: False)
    with pytest.raises(FormingCancelledError):
        Session._connect(session, view, [], True, lambda: True)
    session._link.lacks = lambda view: "update 7"
    with pytest.raises(RuntimeError, match="w0 does not hold update 7"):
        Session._connect(session, view, [], True, lambda: False)
