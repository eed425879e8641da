"""A host that is not heard any more is knocked at; from which nothing comes back is out of reach."""

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.control.state import Phase, Standing
from elastic.control.values import IncidentClass
from tests.pure.bare_controller import BareController, trained, two_on_each_of_two_nodes

MISSED_S, TIMEOUT_S = 0.375, 1.25  # three tenths of Limits.heartbeat_timeout_s, and that


def wait(ws: BareController, *workers: str, still_s: float = 1.0) -> None:
    for worker in workers:
        ws.beat(worker, Flying.REDUCING, still_s)


def silent(*others: str, after_s: float = MISSED_S + 0.01, **limits: float) -> BareController:
    """All have been heard; then w1's host falls silent while these wait for it."""
    ws = trained(**limits)
    wait(ws, "w0", "w1", "w2", still_s=0.0)
    ws.now_s += after_s
    wait(ws, *others)
    ws.tick(0.0)
    return ws


def told(ws: BareController, *unreached: str) -> None:
    ws.feed(ev.Knocked(workers=("w1",), unreached=unreached, answered=() if unreached else ("w1",)))


def test_a_host_that_is_silent_is_knocked_at_once():
    ws = silent("w0", "w2")
    (knock,) = ws.given(cmd.Knock)
    assert (knock.workers, knock.others) == (("w1",), ("w2", "w0"))
    assert knock.reason == "nothing was heard of node-w1 for 0.375 s"
    wait(ws, "w0", "w2")
    assert ws.tick(0.1) == ()


def test_a_beat_may_come_late():
    assert silent("w0", "w2", after_s=MISSED_S).given(cmd.Knock) == []


def test_between_two_beats_every_host_is_silent():
    ws = silent("w0", "w2", heartbeat_polling_period_s=1.0)
    assert ws.given(cmd.Knock) == []
    for _ in range(2):
        wait(ws, "w0", "w2")
        ws.now_s += 0.6
    wait(ws, "w0", "w2")
    ws.tick(0.0)
    assert ws.addressees(cmd.Knock) == {"w1"}


def test_as_long_as_nobody_waits_silence_is_no_matter():
    ws = trained()
    for worker in ("w0", "w1", "w2"):
        ws.beat(worker, Flying.COMPUTING)
    ws.now_s += MISSED_S + 0.01
    for worker in ("w0", "w2"):
        ws.beat(worker, Flying.COMPUTING)
    assert ws.tick(0.0) == ()


def test_where_nobody_is_heard_the_driver_is_cut_off_itself():
    assert silent().commands == ()


def test_one_member_of_a_host_is_enough():
    ws = two_on_each_of_two_nodes()
    seen = {name: ws.reading(name, Flying.REDUCING, still_s=0.0) for name in ("w0", "w1", "w2", "w3")}
    ws.feed(ev.HostsHeard(nodes=("a", "b"), readings=tuple(seen.values())))
    ws.feed(ev.HostsHeard(nodes=("a",)), after_s=MISSED_S + 0.01)
    ws.tick(0.0)
    (knock,) = ws.given(cmd.Knock)
    assert (knock.workers, knock.others) == (("w2",), ("w0",))


def test_a_host_from_which_nothing_comes_back_is_left_behind_as_soon_as_somebody_has_answered():
    """Long before the silence has lasted for `heartbeat_timeout_s`, and without waiting for `exile_after_s`."""
    ws = silent("w0", "w2")
    told(ws, "w1")
    ws.tick(0.01)
    assert ws.phase is Phase.FREEZING and ws.standing("w1") is Standing.SUSPECT
    assert ws.state.incidents[0].kind is IncidentClass.HOST_SILENT
    assert "Limits.knock_timeout_s=0.3" in ws.state.incidents[0].evidence[0]
    ws.tick(0.01)
    assert ws.phase is Phase.FREEZING, "nobody has answered yet"
    ws.answer("w0", 7)
    ws.answer("w2", 7)
    ws.tick(0.01)
    assert ws.standing("w1") is Standing.EXILED and ws.members == ["w0", "w2"]


def test_it_gets_no_worker_until_it_is_heard_again():
    ws = silent("w0", "w2")
    told(ws, "w1")
    assert "node-w1" in ws.state.unreached
    ws.tick(0.01)
    ws.answer("w0", 7)
    ws.answer("w2", 7)
    ws.tick(0.01)
    ws.form()
    wait(ws, "w0", "w2", still_s=0.0)
    ws.stable(8)
    started = [command for command in ws.commands if isinstance(command, cmd.StartWorker)]
    assert started and all("node-w1" in start.avoid for start in started)
    wait(ws, "w1")
    assert not ws.state.unreached and not ws.state.knocked


def answers(ws: BareController, seconds: float) -> None:
    """The kernel of w1's host does, each time that it is knocked at, for so long; its monitor says nothing."""
    for _ in range(int(seconds / 0.25)):
        if ws.given(cmd.Knock):
            told(ws)
        wait(ws, "w0", "w2", still_s=2.0)
        ws.tick(0.25)


def test_a_host_that_answers_has_more_time():
    """Its monitor is slow, or gone, and another one is started: that is no reason to leave anybody behind."""
    ws = silent("w0", "w2")
    answers(ws, 7.0 * TIMEOUT_S)
    assert ws.phase is Phase.RUNNING and ws.state.incidents == ()
    answers(ws, 2.0 * TIMEOUT_S)
    assert ws.phase is Phase.FREEZING
    assert "whose host answers, for 8 times Limits.heartbeat_timeout_s" in ws.state.incidents[0].evidence[0]


def test_a_host_that_has_answered_and_does_not_any_more_is_out_of_reach():
    """So it is knocked at again, as long as it is silent."""
    ws = silent("w0", "w2")
    answers(ws, 2.0 * TIMEOUT_S)
    told(ws, "w1")
    ws.tick(0.01)
    assert ws.phase is Phase.FREEZING and ws.standing("w1") is Standing.SUSPECT


def test_a_clock_that_is_set_back_keeps_nobody_from_knocking_again():
    ws = silent("w0", "w2")
    told(ws)
    ws.now_s -= 3600.0
    wait(ws, "w0", "w2")
    ws.tick(0.0)
    given = []
    for _ in range(4):
        given += ws.tick(MISSED_S / 3)
        wait(ws, "w0", "w2")
    assert [one.workers for one in given if isinstance(one, cmd.Knock)] == [("w1",)]


def test_an_answer_that_says_nothing_gives_no_time():
    """The driver was cut off itself, or it was over before anything was known."""
    ws = silent("w0", "w2")
    ws.feed(ev.Knocked(workers=("w1",)))
    assert not ws.state.answered


def test_a_host_that_was_not_asked_has_its_whole_time():
    ws = silent("w0", "w2")
    ws.now_s += TIMEOUT_S - MISSED_S
    wait(ws, "w0", "w2", still_s=2.0)
    ws.tick(0.0)
    assert ws.phase is Phase.FREEZING and "heartbeat_timeout_s" in ws.state.incidents[0].evidence[0]


def test_a_host_that_answers_holds_its_place_in_a_forming():
    """One of its workers is still on its way to the door; the driver cannot see that."""
    ws = trained()
    wait(ws, "w0", "w1", "w2", still_s=0.0)
    ws.break_("w0")
    for worker in ("w0", "w1", "w2"):
        ws.answer(worker, 7)
    ws.arrive("w0", "w2")
    answers(ws, 4.0 * TIMEOUT_S)
    assert ws.phase is Phase.FORMING and len(ws.state.incidents) == 1


def test_what_is_heard_before_the_answer_counts_more():
    ws = silent("w0", "w2")
    ws.beat("w1", Flying.COMPUTING)
    told(ws, "w1")
    assert ws.tick(0.01) == () and ws.phase is Phase.RUNNING


@pytest.mark.parametrize("heard", ["a beat", "an answer"])
def test_a_host_that_is_heard_again_is_within_reach(heard):
    ws = silent("w0", "w2")
    told(ws, "w1")
    ws.tick(0.01)
    assert ws.phase is Phase.FREEZING
    if heard == "a beat":
        wait(ws, "w1")
    else:
        ws.answer("w1", 7)
    ws.answer("w0", 7)
    ws.answer("w2", 7)
    ws.tick(0.01)
    assert ws.standing("w1") is not Standing.EXILED and not ws.state.unreached


def test_a_host_may_be_knocked_at_again_in_its_next_silence():
    ws = silent("w0", "w2")
    told(ws)
    wait(ws, "w0", "w1", "w2", still_s=0.0)
    ws.now_s += MISSED_S + 0.01
    wait(ws, "w0", "w2")
    ws.tick(0.0)
    assert ws.addressees(cmd.Knock) == {"w1"}


@pytest.mark.parametrize("phase", [Phase.FREEZING, Phase.FORMING])
def test_who_is_out_of_reach_holds_up_no_change_either(phase):
    ws = trained()
    wait(ws, "w0", "w1", "w2", still_s=0.0)
    ws.break_("w0")
    if phase is Phase.FORMING:
        for worker in ("w0", "w1", "w2"):
            ws.answer(worker, 7)
        ws.arrive("w0", "w1", "w2")
    ws.now_s += MISSED_S + 0.01
    wait(ws, "w0", "w2")
    ws.tick(0.0)
    assert ws.phase is phase and ws.addressees(cmd.Knock) == {"w1"}
    told(ws, "w1")
    ws.tick(0.01)
    ws.answer("w0", 7)
    ws.answer("w2", 7)
    ws.tick(0.01)
    assert ws.members == ["w0", "w2"]


def test_an_answer_of_one_that_is_forgotten_changes_nothing():
    ws = silent("w0", "w2")
    ws.feed(ev.Knocked(workers=("w99",), unreached=("w99",)))
    assert not ws.state.unreached
