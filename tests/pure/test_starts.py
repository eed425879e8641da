"""Workers that end before their first step: what counts as one failure, and when others are started."""

from dataclasses import replace

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.outcome import Ending
from elastic.control.state import Phase
from tests.pure.bare_controller import BareController, below_minimum


def alone(**limits: float) -> BareController:
    """One of two replicas trains; the other, w1, is on its way."""
    ws = BareController((1, 2), **limits)
    ws.start()
    ws.join("w0")
    ws.form()
    ws.stable(0)
    return ws


def raise_thrice(ws: BareController) -> None:
    for number in (1, 2, 3):
        ws.place(f"w{number}")
        ws.raise_(f"w{number}")
    assert (ws.given(cmd.StartWorker), ws.state.start_failures) == ([], 3)


def started_after_s(ws: BareController, at_most_s: float = 700.0) -> float:
    """How long it takes until somebody is started."""
    since_s = ws.now_s
    while not ws.given(cmd.StartWorker):
        assert ws.now_s - since_s < at_most_s
        ws.tick(after_s=1.0)
    return ws.now_s - since_s


def test_workers_of_a_node_that_dies_while_they_load_are_lost_by_one_failure():
    ws = BareController((1, 4))
    ws.start()
    ws.place("w0", "w1", "w2", node="n")
    ws.place("w3")
    ws.die("w0", "w1", "w2")
    assert (ws.phase, ws.state.start_failures) == (Phase.STARTING, 1)
    ws.join("w3", "w4", "w5", "w6")
    assert ws.phase is Phase.FORMING


def test_those_that_are_started_anew_on_the_node_count_again():
    ws = BareController((1, 2))
    ws.start()
    for first in (0, 2, 4):
        assert ws.phase is Phase.STARTING
        ws.place(f"w{first}", f"w{first + 1}", node="n")
        ws.die(f"w{first}", f"w{first + 1}")
    assert ws.state.outcome.ending is Ending.NOT_ENOUGH_SLOTS
    assert "3 workers in a row" in ws.state.outcome.message


@pytest.mark.parametrize("why", ["monitor", "notice", "silence"])
def test_workers_lost_with_their_node_are_no_failed_starts(why: str):
    ws = alone(heartbeat_timeout_s=2.0)
    ws.place("w1", node="n")
    if why == "silence":
        ws.feed(ev.HostBeat(node="n", readings=()))
        ws.tick(after_s=3.0)
    elif why == "monitor":
        ws.feed(ev.MonitorLost(node="n"))
    else:
        ws.feed(ev.NodeNotice(node="n", reason="preempted"))
    ws.die("w1")
    assert ws.state.start_failures == 0
    assert ws.phase is Phase.RUNNING and "w2" in ws.state.workers


def test_a_run_that_trains_tries_again_after_a_wait_that_doubles_up_to_a_limit():
    ws = alone()
    raise_thrice(ws)
    assert ws.stable(1) == ()
    assert "3 workers in a row ended before their first step; the last: ValueError: no" in ws.state.care.no_starts
    waits_s = []
    for number in range(4, 11):
        waits_s.append(started_after_s(ws))
        assert ws.addressees(cmd.StartWorker) == {f"w{number}"}
        assert f"{number - 1} workers in a row" in ws.given(cmd.StartWorker)[0].reason
        ws.place(f"w{number}")
        ws.raise_(f"w{number}")
    assert waits_s == pytest.approx([29.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0])


def waiting() -> BareController:
    """One of three trains, w2 is on its way, and three others in a row have ended before their first step."""
    ws = BareController((1, 3))
    ws.start()
    ws.join("w0")
    ws.form()
    ws.stable(0)
    ws.place("w2")
    for worker in ("w1", "w3", "w4"):
        ws.place(worker)
        ws.raise_(worker)
    return ws


def test_a_worker_that_comes_up_ends_the_wait():
    ws = waiting()
    assert ws.state.care.no_starts and "w5" not in ws.state.workers
    ws.park("w2")
    assert (ws.state.start_failures, ws.state.care.no_starts) == (0, "")


def test_losses_during_the_wait_make_it_no_longer():
    ws = waiting()
    until_s = ws.state.care.starts_from_s
    ws.raise_("w2")
    assert (ws.state.start_failures, ws.state.care.starts_from_s) == (3, until_s)


def test_below_the_minimum_others_are_started_before_the_run_gives_up():
    ws = below_minimum()
    for number in (2, 3, 4):
        ws.place(f"w{number}")
        ws.die(f"w{number}")
    assert (ws.phase, ws.given(cmd.StartWorker)) == (Phase.WAITING, [])
    assert started_after_s(ws) == pytest.approx(30.0)
    ws.join("w5")
    assert ws.phase is Phase.FORMING and ws.state.care.start_trouble == ""


def test_a_run_that_gives_up_below_its_minimum_says_how_workers_have_ended():
    ws = below_minimum()
    ws.place("w2")
    ws.die("w2")
    ws.tick(after_s=ws.state.settings.limits.jobset_downtime_threshold_s + 1.0)
    assert ws.phase is Phase.ENDED and ws.state.outcome is not None
    assert "1 worker ended before its first step; the last: pid 1 is gone" in ws.state.outcome.message


def test_a_wait_that_is_over_while_a_generation_is_replaced_starts_nobody_then():
    ws = alone()
    raise_thrice(ws)
    ws.break_("w0")
    assert ws.phase is Phase.FREEZING
    ws.state = replace(ws.state, care=replace(ws.state.care, starts_from_s=ws.now_s))
    ws.feed(ev.Tick())
    assert (ws.given(cmd.StartWorker), ws.state.care.no_starts) == ([], "")
    ws.answer("w0", 0)
    ws.form()
    assert ws.given(cmd.StartWorker) == []
    ws.stable(1)
    assert ws.addressees(cmd.StartWorker) == {"w4"}
