"""Notice is a planned departure: at the end of a step, together, replaced at once, and never with the last copy."""

from dataclasses import replace

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.restoring import last_copy, why_at_once
from elastic.control.state import Phase, Standing
from elastic.control.tending import REMIND_S
from elastic.control.values import IncidentClass
from elastic.settings import Checkpoint
from tests.pure.bare_controller import BareController, commit, trained

WINDOW_S = 0.2
NODES_WINDOW_S = 1.3  # the driver asks Ray, and monitors the cloud, every second or more often
KEPT = Checkpoint()


def tell(ws: BareController, *workers: str) -> None:
    """These workers are told that they will be ended."""
    ws.feed(*(ev.WorkerNotice(worker=worker, reason="SIGTERM") for worker in workers))


def stop_all(ws: BareController, number: int = 9) -> None:
    """All stop at the end of step `number`, as the leader was asked."""
    for worker in list(ws.members):
        ws.answer(worker, number)


def without_stand_ins(ws: BareController) -> BareController:
    """Every replacement is a process that must be started first."""
    scaling = replace(ws.state.settings.scaling, stand_ins=0)
    ws.state = replace(ws.state, settings=replace(ws.state.settings, scaling=scaling))
    return ws


def test_a_stand_in_takes_the_place_of_who_leaves_in_the_same_stop():
    ws = trained((1, 3))
    tell(ws, "w1")
    assert ws.addressees(cmd.StartWorker) == {"w3"}
    ws.place("w3")
    ws.tick(WINDOW_S)
    assert ws.given(cmd.Pause) == [], "it will be ready in a moment"
    ws.park("w3")
    ws.tick(0.1)
    assert ws.addressees(cmd.Pause) == {"w0"}
    stop_all(ws)
    assert (ws.members, ws.generation) == (["w0", "w2", "w3"], 2)


def test_who_replaces_a_leaving_worker_is_placed_elsewhere_if_a_stand_in_is_ready_there():
    ws = trained((1, 3))
    tell(ws, "w1")
    (start,) = ws.given(cmd.StartWorker)
    assert (start.doubted, start.avoid) == ({"node-w1"}, set()), "it may come there if there is no other place"


def test_nobody_waits_for_a_stand_in_on_a_node_that_all_members_leave():
    """It would join at a later stop anyway: all may be lost that is there."""
    ws = trained((1, 3))
    tell(ws, "w1")
    ws.place("w3", node="node-w1")
    ws.tick(WINDOW_S)
    assert ws.addressees(cmd.Pause) == {"w0"}
    ws.park("w3")
    stop_all(ws)
    assert ws.members == ["w0", "w2"], "it was not let in"


@pytest.mark.parametrize(("has_slot", "waits_s"), [(True, 1.0), (False, WINDOW_S)])
def test_who_leaves_waits_for_no_stand_in_that_is_late(has_slot: bool, waits_s: float):
    ws = trained((1, 3))
    tell(ws, "w1")
    if has_slot:
        ws.place("w3")
    ws.tick(waits_s - 0.01)
    assert ws.given(cmd.Pause) == []
    ws.tick(0.02)
    assert ws.addressees(cmd.Pause) == {"w0"}


def test_a_notice_is_a_departure_at_the_end_of_a_step():
    ws = without_stand_ins(trained((1, 3)))
    tell(ws, "w1")
    ws.stable(ws.state.published + 1, after_s=0.05)
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


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_notice_and_its_reminder_wait_for_no_clock_that_jumps(jump_s: float):
    ws = trained((1, 3))
    tell(ws, "w1")
    ws.sleep(jump_s)
    asked = [command for _ in range(4) for command in ws.tick(0.1)]
    assert [type(command) for command in asked if not isinstance(command, cmd.StartWorker)] == [cmd.Connect, cmd.Pause]
    ws.sleep(jump_s)
    again = [command for _ in range(int(REMIND_S) + 1) for command in (*ws.tick(0.5), *ws.tick(0.5))]
    reminders = [command.reason for command in again if isinstance(command, cmd.Pause)]
    assert reminders == ["the order to stop at the end of a step may have been lost"]


def test_the_replacement_is_asked_for_within_a_second_even_where_a_step_takes_longer():
    ws = without_stand_ins(trained((1, 3)))
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


def test_no_replacement_is_placed_on_a_node_that_will_be_lost():
    """Ray takes it for free; who was placed there would be sent away again, and so on."""
    ws = without_stand_ins(trained((1, 3)))
    node = ws.state.workers["w1"].node
    ws.feed(ev.NodeNotice(node=node, reason="preempted"))
    ws.tick(NODES_WINDOW_S)
    stop_all(ws)
    ws.form()
    ws.stable(10)
    assert [one.avoid for one in ws.given(cmd.StartWorker)] == [frozenset({node})]


def test_machines_that_are_taken_away_together_leave_together_though_each_is_asked_at_its_own_second():
    ws = without_stand_ins(trained((1, 3)))
    nodes = [ws.state.workers[name].node for name in ("w1", "w2")]
    ws.feed(ev.NodeNotice(node=nodes[0], reason="preempted"))
    ws.tick(0.9)
    ws.feed(ev.NodeNotice(node=nodes[1], reason="preempted"))
    assert ws.given(cmd.Pause) == [], "the first one waits for others"
    ws.tick(NODES_WINDOW_S)
    stop_all(ws)
    assert ws.members == ["w0"]


def test_who_waits_for_a_slot_is_not_placed_on_a_node_that_was_noticed_since():
    ws = without_stand_ins(trained((1, 3)))
    nodes = [ws.state.workers[name].node for name in ("w1", "w2")]
    ws.feed(ev.NodeNotice(node=nodes[0], reason="preempted"))
    ws.tick(NODES_WINDOW_S)
    stop_all(ws)
    ws.form()
    ws.stable(10)
    assert ws.addressees(cmd.StartWorker) == {"w3"}
    ws.tick(1.0)
    assert ws.given(cmd.Dismiss) == []
    ws.feed(ev.NodeNotice(node=nodes[1], reason="preempted"))
    ws.tick(0.1)
    assert ws.addressees(cmd.Dismiss) == {"w3"}
    asked = {one.worker: one.avoid for one in ws.given(cmd.StartWorker)}
    assert asked == {"w4": frozenset(nodes), "w5": frozenset(nodes)}


def test_a_node_that_went_into_quarantine_while_a_slot_was_waited_for_is_no_failed_start():
    ws = without_stand_ins(trained((1, 3)))
    tell(ws, "w1")
    ws.tick(WINDOW_S)
    stop_all(ws)
    ws.form()
    ws.stable(10)
    ws.state = replace(ws.state, care=ws.state.care.quarantined("bad", 1e9))
    ws.feed(ev.WorkerPlaced(worker="w3", node="bad"))
    assert ws.state.workers["w3"].notice == "bad is in quarantine" and ws.state.start_failures == 0


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


def about_to_lose_all(replicas: int = 1, checkpoint: Checkpoint | None = KEPT) -> BareController:
    """All replicas train, and all are told that they will be ended."""
    ws = BareController(replicas, checkpoint=checkpoint)
    ws.start()
    if checkpoint is not None:
        ws.feed(ev.RestoreFound(commit=None))
    ws.join(*ws.state.workers)
    ws.form()
    ws.stable(8)
    tell(ws, *ws.members)
    return ws


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_last_holders_stop_once_so_that_their_state_is_saved(replicas):
    ws = about_to_lose_all(replicas)
    assert last_copy(ws.state) == "all who hold it will be lost: SIGTERM", "what is staged already goes down at once"
    ws.tick(1.0)
    (pause,) = ws.given(cmd.Pause)
    assert pause.reason == "all who hold the state will be lost, and it is saved before: SIGTERM"
    stop_all(ws)
    assert len(ws.members) == replicas and ws.view.resume.step == 9 and ws.state.incidents == ()
    ws.form()
    assert why_at_once(ws.state, commit(9)) == last_copy(ws.state) != ""
    assert why_at_once(ws.state, commit(12)) == "", "steps of the interval wait for their turn"
    ws.stable(10)
    ws.tick(60.0)
    assert ws.given(cmd.Pause) == [], "they have stopped"


def test_a_stop_that_a_failure_has_spoiled_is_made_up_for():
    ws = about_to_lose_all(2)
    ws.tick(1.0)
    ws.break_("w1")
    stop_all(ws)
    ws.form()
    ws.tick(0.1)
    assert ws.addressees(cmd.Pause) == {"w0"}


def test_who_keeps_nothing_or_leaves_others_behind_stops_for_nothing():
    ws = about_to_lose_all(checkpoint=None)
    ws.tick(1.0)
    assert ws.given(cmd.Pause) == []
    ws = BareController(2, checkpoint=KEPT)
    ws.start()
    ws.feed(ev.RestoreFound(commit=None))
    ws.join("w0", "w1")
    ws.form()
    tell(ws, "w1")
    assert last_copy(ws.state) == ""
    ws.tick(1.0)
    assert ws.given(cmd.Pause) == [], "w0 stays, and holds the same"


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
