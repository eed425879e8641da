"""Notice is a planned departure: at the end of a step, together, replaced at once, and never with the last copy."""

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.state import Phase, Standing
from elastic.control.values import IncidentClass
from tests.pure.bare_controller import BareController, trained

WINDOW_S = 0.2


def tell(ws: BareController, *workers: str) -> None:
    """These workers are told that they will be ended."""
    ws.feed(*(ev.WorkerNotice(worker=worker, reason="SIGTERM") for worker in workers))


def stop_all(ws: BareController, number: int = 9) -> None:
    """All stop at the end of step `number`, as the leader was asked."""
    for worker in list(ws.members):
        ws.answer(worker, number)


def test_a_notice_is_a_departure_at_the_end_of_a_step():
    ws = trained((1, 3))
    tell(ws, "w1")
    assert ws.given(cmd.StartWorker) == [], "its start would compete with the others while they form"
    assert ws.given(cmd.Pause) == []
    ws.tick(WINDOW_S)
    (pause,) = ws.given(cmd.Pause)
    assert (pause.worker, pause.reason) == ("w0", "w1 will be lost: SIGTERM")
    assert ws.phase is Phase.RUNNING
    stop_all(ws)
    assert ws.members == ["w0", "w2"] and ws.view.resume.step == 9
    assert ws.standing("w1") is Standing.GONE
    (incident,) = ws.state.incidents
    assert (incident.kind, incident.culprits) == (IncidentClass.DEPARTURE, ("w1",))
    ws.form()
    ws.stable(10)
    assert ws.addressees(cmd.StartWorker) == {"w3"}, "the replacement is asked for"


def test_the_replacement_is_asked_for_within_a_second_even_where_a_step_takes_longer():
    ws = trained((1, 3))
    tell(ws, "w1")
    ws.tick(WINDOW_S)
    assert ws.given(cmd.Pause) and not ws.given(cmd.StartWorker)
    ws.tick(1.0)
    assert ws.addressees(cmd.StartWorker) == {"w3"}


def test_a_spare_that_leaves_is_replaced_at_once():
    ws = BareController(2, spares=1).run()
    tell(ws, "w2")
    assert ws.standing("w2") is Standing.GONE
    assert ws.addressees(cmd.StartWorker) == {"w3"}


def test_a_spare_takes_over_in_the_same_generation():
    ws = trained(3)
    ws.tick(0.1)
    tell(ws, "w1")
    ws.tick(WINDOW_S)
    assert ws.given(cmd.Pause) == [], "too few would stay"
    ws.join("w3")
    ws.tick(0.1)
    assert ws.addressees(cmd.Pause) == {"w0"}
    stop_all(ws)
    assert ws.members == ["w0", "w2", "w3"] and ws.standing("w1") is Standing.GONE


def test_several_notices_in_one_window_are_one_generation():
    ws = trained((1, 3))
    tell(ws, "w1")
    ws.now_s += WINDOW_S / 2
    tell(ws, "w2")
    ws.tick(WINDOW_S / 2)
    assert len(ws.given(cmd.Pause)) == 1
    stop_all(ws)
    assert (ws.members, ws.generation) == (["w0"], 2)


def test_a_node_takes_all_its_workers_along_and_gets_no_new_ones():
    ws = BareController((1, 3), spares=1)
    ws.start()
    ws.join("w0", node="a")
    ws.join("w1", "w2", node="b")
    ws.form()
    ws.place("w3", node="b")
    ws.feed(ev.NodeNotice(node="b", reason="preempted"))
    assert ws.standing("w3") is Standing.GONE, "it has not begun"
    assert ws.addressees(cmd.StartWorker) == {"w4", "w5", "w6"}, "no step waits for them"
    ws.place("w4", node="b")
    assert ws.standing("w4") is Standing.GONE and ws.addressees(cmd.Dismiss) == {"w4"}
    ws.tick(WINDOW_S)
    stop_all(ws)
    assert ws.members == ["w0"]


def test_the_last_copy_does_not_leave():
    ws = trained(1)
    tell(ws, "w0")
    ws.join("w1")
    ws.tick(1.0)
    assert ws.given(cmd.Pause) == []


@pytest.mark.parametrize("newest", ["w0", "w1"])
def test_who_alone_holds_the_newest_step_gives_it_first(newest):
    """A failure comes in between: the leaving one has applied a step that the staying one has not."""
    ws = trained((1, 3))
    tell(ws, "w1")
    ws.die("w2")
    ws.answer("w0", 8 + (newest == "w0"))
    ws.answer("w1", 8 + (newest == "w1"))
    assert ws.members == (["w0"] if newest == "w0" else ["w1", "w0"])
    assert ws.view.resume.step == 9


def test_one_that_dies_before_its_departure_is_a_loss():
    ws = trained((1, 3))
    tell(ws, "w1")
    ws.tick(WINDOW_S)
    ws.die("w1")
    ws.answer("w0", 8)
    ws.answer("w2", 8)
    assert ws.members == ["w0", "w2"]
    assert ws.state.incidents[0].kind is IncidentClass.WORKER_LOST


def test_a_second_notice_changes_nothing():
    ws = trained((1, 3))
    tell(ws, "w1")
    assert ws.is_unchanged_by(ev.WorkerNotice(worker="w1", reason="again"))


def test_a_notice_before_the_first_step_is_no_member():
    ws = BareController((1, 2))
    ws.start()
    ws.place("w0", "w1")
    ws.park("w0")
    tell(ws, "w0")
    assert ws.standing("w0") is Standing.GONE
    ws.park("w1")
    ws.tick(1.0)
    assert ws.members == ["w1"]
