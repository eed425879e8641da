"""Joiners that come together are let in together, and flapping nodes cost nothing."""

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.doubt import is_flapping
from elastic.control.state import Phase
from elastic.control.turn import Turn
from elastic.policies import Ladder
from tests.pure.bare_controller import BareController

GROW_S, COOLDOWN_S = 0.5, 120.0


def one_of_three() -> BareController:
    """One replica trains; two more are on their way."""
    ws = BareController((1, 3))
    ws.start()
    ws.place("w0")
    ws.park("w0")
    ws.form()
    return ws


def lose_on(ws: BareController, node: str, times: int, every_s: float) -> None:
    """A replacement comes to this node, joins, and dies there, again and again."""
    for number in range(times):
        name = next(one.name for one in ws.state.workers.values() if one.standing.value == "requested")
        ws.join(name, node=node)
        if ws.given(cmd.Pause):
            ws.answer("w0", 2 * number)
            ws.form()
        ws.tick(every_s)
        ws.stable(2 * number, after_s=0.0)
        ws.die(name)
        if ws.phase is Phase.FREEZING:
            ws.answer("w0", 2 * number + 1)
            ws.form()
        ws.stable(2 * number + 1, after_s=0.1)


def with_a_bad_node(times: int, every_s: float) -> BareController:
    """One replica trains on a good node; a second one has been lost on the bad one so many times."""
    ws = BareController((1, 2))
    ws.start()
    ws.join("w0", node="good")
    ws.tick(121.0)
    ws.form()
    lose_on(ws, "bad", times, every_s)
    return ws


def flaps(ws: BareController, node: str) -> bool:
    return is_flapping(Turn(ws.state, ws.now_s, Ladder()), node)


def test_joiners_that_come_together_are_let_in_together():
    ws = one_of_three()
    ws.place("w2")
    ws.join("w1")
    assert ws.given(cmd.Pause) == []
    ws.now_s += GROW_S / 2
    ws.park("w2")
    assert ws.given(cmd.Pause)[0].reason == "w1, w2 can join"


def test_a_joiner_waits_for_others_that_load_only_so_long():
    ws = one_of_three()
    ws.place("w2")
    ws.join("w1")
    ws.tick(GROW_S)
    assert ws.given(cmd.Pause)[0].reason == "w1 can join"
    ws.park("w2")
    ws.answer("w0", 4)
    assert ws.members == ["w0", "w1", "w2"], "both were there when all had stopped"


def test_where_nobody_else_is_on_the_way_a_joiner_waits_for_nobody():
    ws = one_of_three()
    ws.join("w1")
    assert ws.given(cmd.Pause)[0].reason == "w1 can join"


def test_time_in_which_nobody_looked_makes_no_joiner_wait_less():
    ws = one_of_three()
    ws.sleep(100.0)
    ws.place("w2")
    ws.join("w1")
    ws.tick(GROW_S / 2)
    assert ws.given(cmd.Pause) == []
    ws.tick(GROW_S / 2)
    assert ws.given(cmd.Pause)


@pytest.mark.parametrize(
    ("times", "every_s", "is_so"), [(2, 1.0, False), (3, 1.0, True), (3, 4.0, False), (3, 40.0, False)]
)
def test_a_node_flaps_when_it_loses_many_within_a_short_time(times, every_s, is_so):
    ws = with_a_bad_node(times, every_s)
    assert flaps(ws, "bad") == is_so
    assert not flaps(ws, "good")


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_node_flaps_as_long_whatever_the_clock_does(jump_s):
    ws = with_a_bad_node(3, 1.0)
    ws.sleep(jump_s)
    ws.tick(0.1)
    assert flaps(ws, "bad")
    for _ in range(int(COOLDOWN_S)):
        ws.tick(1.0)
    assert not flaps(ws, "bad")


def test_workers_of_a_flapping_node_wait_and_cost_nothing():
    ws = with_a_bad_node(3, 1.0)
    generation = ws.generation
    ws.join("w4", node="bad")
    ws.tick(COOLDOWN_S / 2)
    assert (ws.given(cmd.Pause), ws.generation) == ([], generation)
    ws.die("w4")
    assert ws.phase is Phase.RUNNING, "its death stops nobody"
    ws.join("w5", node="bad")
    ws.tick(COOLDOWN_S)
    assert ws.addressees(cmd.Pause) == {"w0"}


def test_below_the_minimum_a_flapping_node_is_better_than_none():
    ws = BareController(2)
    ws.start()
    ws.join("w0", node="good")
    ws.join("w1", node="bad")
    ws.form()
    for number in range(4):
        ws.stable(2 * number)
        ws.die(ws.members[1])
        ws.answer("w0", 2 * number + 1)
        assert ws.phase is Phase.WAITING
        ws.join(f"w{number + 2}", node="bad")
        assert ws.phase is Phase.FORMING
        ws.form()


def test_planned_departures_are_no_losses():
    ws = BareController((1, 2))
    ws.start()
    ws.join("w0", node="good")
    ws.tick(121.0)
    ws.form()
    for number in range(4):
        name = next(one.name for one in ws.state.workers.values() if one.standing.value == "requested")
        ws.join(name, node="spot")
        ws.tick(GROW_S)
        ws.answer("w0", number)
        ws.form()
        ws.feed(ev.WorkerNotice(worker=name, reason="SIGTERM"))
        ws.tick(GROW_S)
        ws.answer("w0", number)
        ws.answer(name, number)
        ws.form()
        ws.stable(number, after_s=0.1)
    assert not flaps(ws, "spot")


def lost_from_the_node_of_a_spare() -> BareController:
    """w0 and w1 train; w2 waits at the door on the node of w1, which dies."""
    ws = BareController((1, 2), spares=1)
    ws.start()
    ws.place("w0", node="good")
    ws.place("w1", "w2", node="bad")
    ws.park("w0", "w1", "w2")
    ws.form()
    ws.feed(ev.HostBeat(node="good"), ev.HostBeat(node="bad"))
    ws.stable(0, after_s=0.1)
    ws.die("w1")
    ws.answer("w0", 1)
    ws.form()
    return ws


@pytest.mark.parametrize("jump_s", [0.0, -3600.0, 3600.0])
def test_a_spare_is_let_in_once_its_node_was_heard_since_it_lost_a_member(jump_s):
    """The clock may be set meanwhile."""
    ws = lost_from_the_node_of_a_spare()
    ws.sleep(jump_s)
    ws.feed(ev.HostBeat(node="good"), after_s=GROW_S)
    ws.tick(0.05)
    assert ws.given(cmd.Pause) == [], "the node may be lost altogether"
    ws.feed(ev.HostBeat(node="bad"), after_s=0.05)
    ws.tick(0.05)
    assert ws.given(cmd.Pause)[0].reason == "w2 can join"


def test_who_joins_on_another_node_brings_no_spare_of_an_unheard_one_along():
    ws = lost_from_the_node_of_a_spare()
    ws.stable(1, after_s=0.1)
    ws.join("w3", node="good")
    assert ws.given(cmd.Pause)[0].reason == "w3 can join"
    ws.answer("w0", 2)
    assert ws.members == ["w0", "w3"]
