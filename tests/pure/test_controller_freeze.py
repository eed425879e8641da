"""A generation ends: who must answer or die, and what the next one resumes from."""

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.state import Phase, Standing, highest_commit
from elastic.control.values import NOTHING_COMMITTED, IncidentClass
from tests.pure.bare_controller import BareController, commit, two_on_each_of_two_nodes

FREEZE_S = 10.0
LEASE_S = 120.0

# --- a worker is lost -------------------------------------------------------------------------------------------------


def test_a_lost_worker_from_the_first_signal_to_the_next_generation():
    ws = BareController((1, 3)).run()
    ws.lose("w1")
    assert ws.addressees(cmd.ProveDead) == {"w1"}
    assert ws.addressees(cmd.Freeze) == {"w0", "w1", "w2"}  # it may be alive: its answer would count
    assert ws.phase is Phase.FREEZING
    assert ws.answer("w0", 4) == ()
    assert ws.answer("w2", 4) == (), "w1 may still be alive"
    ws.die("w1")
    assert ws.given(cmd.Form)[0].view.members == ws.view.members
    assert (ws.members, ws.view.resume, ws.generation) == (["w0", "w2"], commit(4), 2)
    assert (ws.view.donors, ws.view.behind, ws.view.bootstrap) == ((0, 1), (), False)
    ws.form()
    assert ws.addressees(cmd.Go) == {"w0", "w2"}
    assert ws.state.world_sizes == (3, 2)


@pytest.mark.parametrize("order", [("answer", "die"), ("die", "answer")], ids=" first, ".join)
def test_answer_and_proof_may_come_in_any_order(order):
    ws = BareController((1, 2)).run()
    ws.lose("w1")
    for kind in order:
        assert ws.phase is Phase.FREEZING
        ws.answer("w0", 0) if kind == "answer" else ws.die("w1")
    assert ws.members == ["w0"]


def test_a_broken_collective_without_a_loss_goes_on_with_everybody():
    ws = BareController(3).run()
    ws.break_("w1")
    assert ws.addressees(cmd.Freeze) == {"w0", "w1", "w2"}
    for worker in ("w0", "w1", "w2"):
        ws.answer(worker, 7)
    assert ws.members == ["w0", "w1", "w2"]
    assert ws.state.incidents[0].kind is IncidentClass.COLLECTIVE_BROKEN
    assert ws.state.incidents[0].decision.startswith("continue in place")


def test_a_departed_worker_needs_no_other_proof():
    ws = BareController((1, 2)).run()
    ws.feed(ev.WorkerDeparted(worker="w1", reason="SystemExit(0)"))
    assert ws.addressees(cmd.Dismiss) == {"w1"}
    ws.answer("w0", 2)
    assert ws.members == ["w0"]


def test_two_workers_lost_at_once_are_one_incident():
    ws = BareController((1, 4)).run()
    ws.break_("w0")
    ws.lose("w3")
    ws.die("w1", "w3")
    ws.answer("w0", 5)
    ws.answer("w2", 5)
    assert ws.members == ["w0", "w2"]
    (incident,) = ws.state.incidents
    assert (incident.kind, incident.culprits) == (IncidentClass.WORKER_LOST, ("w3", "w1"))
    assert (incident.replicas_before, incident.replicas_after, incident.generation) == (4, 2, 2)
    assert len(incident.evidence) == 3


def test_all_workers_but_one_are_lost():
    ws = BareController((1, 4)).run()
    ws.die("w0", "w1", "w3")
    ws.answer("w2", 5)
    assert (ws.members, ws.view.leader.worker) == (["w2"], "w2")


def test_an_incident_keeps_its_first_signals():
    ws = BareController((1, 40)).run()
    ws.die(*(f"w{number}" for number in range(1, 40)))
    ws.answer("w0", 5)
    (incident,) = ws.state.incidents
    assert len(incident.culprits) == 39
    assert len(incident.evidence) == 16


def test_what_many_feel_leaves_room_for_who_was_the_cause():
    ws = BareController((1, 40)).run()
    for number in range(1, 40):
        ws.break_(f"w{number}")
    ws.die("w0")
    (incident,) = ws.state.incidents
    assert len(incident.evidence) == 9 and incident.evidence[-1] == "pid 1 is gone"
    assert (incident.culprits, incident.kind) == (("w0",), IncidentClass.WORKER_LOST)


def test_a_node_is_lost_when_its_monitor_and_all_its_workers_are():
    ws = two_on_each_of_two_nodes()
    ws.feed(ev.MonitorLost(node="a"), ev.MonitorLost(node="b"))
    ws.die("w0", "w1")
    ws.answer("w2", 1)
    ws.answer("w3", 1)
    assert ws.state.incidents[0].kind is IncidentClass.NODE_LOST


@pytest.mark.parametrize("first", ["broke", "died"])
def test_beside_a_dead_member_all_who_have_not_answered_are_looked_for_at_once(first):
    """Their host may be lost with all that is there."""
    ws = two_on_each_of_two_nodes()
    if first == "broke":
        ws.break_("w2")
        assert ws.answer("w2", 1) == ()
    ws.die("w0")
    assert ws.addressees(cmd.ProveDead) == {"w1"}, "not those on the other node"
    assert "w0 beside it is gone" in ws.given(cmd.ProveDead)[0].reason
    ws.answer("w3", 1)
    ws.answer("w2", 1)
    assert ws.answer("w1", 1) and ws.members == ["w1", "w2", "w3"], "who answers is alive"


def test_beside_a_dead_member_who_has_answered_is_not_looked_for():
    ws = two_on_each_of_two_nodes()
    ws.break_("w2")
    ws.answer("w1", 1)
    ws.die("w0")
    assert not ws.given(cmd.ProveDead)


def test_a_lost_monitor_alone_is_not_a_lost_node():
    ws = BareController((1, 3))
    ws.start()
    ws.join("w0", "w1", "w2", node="a")
    ws.form()
    ws.feed(ev.MonitorLost(node="a"))
    assert ws.phase is Phase.RUNNING
    ws.die("w0")
    ws.answer("w1", 1)
    ws.answer("w2", 1)
    assert ws.state.incidents[0].kind is IncidentClass.WORKER_LOST


def test_a_worker_placed_on_a_node_shows_that_the_node_is_there():
    ws = BareController((1, 2)).run()
    ws.feed(ev.MonitorLost(node="node-w9"))
    ws.die("w1")
    ws.answer("w0", 1)
    ws.form()
    ws.stable(2)
    ws.place("w2", node="node-w9")
    assert ws.state.monitors_lost == frozenset()


# --- no generation before the last one has ended ----------------------------------------------------------------------


@pytest.mark.parametrize("released_by", ["answer", "proof", "departure", "end of the lease"])
def test_the_next_generation_waits_for_every_member(released_by):
    ws = BareController((1, 3), freeze_timeout_s=FREEZE_S, lease_s=LEASE_S).run()
    ws.break_("w0")
    ws.answer("w0", 3)
    ws.answer("w1", 3)
    ws.tick(after_s=1.0)
    assert (ws.phase, ws.generation) == (Phase.FREEZING, 1)
    if released_by == "answer":
        ws.answer("w2", 3)
    elif released_by == "proof":
        ws.die("w2")
    elif released_by == "departure":
        ws.feed(ev.WorkerDeparted(worker="w2", reason="SIGTERM"))
    else:
        ws.tick(after_s=FREEZE_S)
        ws.tick(after_s=LEASE_S - 2.0)
        assert (ws.phase, ws.generation) == (Phase.FREEZING, 1)
        ws.tick(after_s=2.0)
    assert (ws.phase, ws.generation) == (Phase.FORMING, 2)


def test_a_member_that_does_not_answer_is_doubted_then_fenced_then_outlived():
    ws = BareController((1, 2), doubt_after_s=0.5, freeze_timeout_s=FREEZE_S, lease_s=LEASE_S).run()
    ws.break_("w0")
    ws.answer("w0", 3)
    assert ws.tick(after_s=0.4) == ()
    ws.tick(after_s=0.2)
    assert ws.addressees(cmd.ProveDead) == {"w1"}
    assert ws.tick(after_s=1.0) == (), "it is doubted once"
    ws.tick(after_s=FREEZE_S)
    assert ws.addressees(cmd.Fence) == {"w1"}
    assert "Limits.freeze_timeout_s=10.0" in ws.given(cmd.Fence)[0].reason
    assert ws.state.incidents[0].kind is IncidentClass.WORKER_UNRESPONSIVE
    assert ws.tick(after_s=LEASE_S - 3.0) == ()
    ws.tick(after_s=3.0)
    assert (ws.standing("w1"), ws.members) == (Standing.DEAD, ["w0"])
    assert ws.state.incidents[0].kind is IncidentClass.WORKER_LOST


def test_who_is_ended_sooner_than_doubted_is_not_looked_for():
    ws = BareController((1, 2), doubt_after_s=5.0, freeze_timeout_s=2.0, lease_s=LEASE_S).run()
    ws.break_("w0")
    ws.answer("w0", 3)
    ws.tick(after_s=2.5)
    assert ws.addressees(cmd.Fence) == {"w1"} and not ws.given(cmd.ProveDead)


@pytest.mark.parametrize("absent_s", [60.0, -3600.0], ids=["stood still", "its clock was set back"])
def test_nobody_is_late_because_the_controller_was(absent_s):
    ws = BareController((1, 3), doubt_after_s=5.0, freeze_timeout_s=FREEZE_S).run()
    ws.break_("w0")
    ws.sleep(absent_s)
    assert ws.tick(after_s=0.5) == (), "it has hardly looked"
    ws.answer("w0", 4)
    ws.answer("w1", 4)
    ws.tick(after_s=FREEZE_S + 1.0)
    assert ws.addressees(cmd.Fence) == {"w2"}


def test_a_fenced_worker_whose_answer_comes_late_does_not_hold_up_and_does_not_return():
    ws = BareController((1, 2), freeze_timeout_s=FREEZE_S).run()
    ws.break_("w0")
    ws.answer("w0", 3)
    ws.tick(after_s=FREEZE_S + 1.0)
    ws.answer("w1", 3)
    assert ws.members == ["w0"]
    assert ws.die("w1") == ()
    assert ws.phase is Phase.FORMING


def test_a_member_that_answered_and_dies_during_the_freeze_is_left_out():
    ws = BareController((1, 3)).run()
    ws.break_("w0")
    ws.answer("w1", 9)
    ws.die("w1")
    ws.answer("w0", 8)
    ws.answer("w2", 8)
    assert (ws.members, ws.view.resume) == (["w0", "w2"], commit(8))


# --- what the next generation resumes from ----------------------------------------------------------------------------


def test_all_resume_at_the_highest_commit_and_those_behind_are_healed():
    ws = BareController((1, 4), spares=1).run()
    ws.break_("w0")
    ws.answer("w0", 6)
    ws.answer("w1", 7)
    ws.answer("w2", 7)
    ws.die("w3")
    assert ws.view.resume == commit(7)
    assert ws.names(ws.view.donors) == ["w1", "w2"]
    assert ws.names(ws.view.behind) == ["w0", "w4"]


def test_a_member_that_is_not_healed_never_gives():
    ws = BareController((1, 2), spares=1).run()
    ws.die("w1")
    ws.answer("w0", 6)
    assert ws.members == ["w0", "w2"]
    ws.fail_forming("w2")
    ws.answer("w2", 99, healed=False)
    ws.answer("w0", 6)
    assert (ws.members, ws.view.resume) == (["w0"], commit(6))
    assert ws.standing("w2") is Standing.PARKED


@pytest.mark.parametrize(
    ("lineages", "wins"),
    [
        ([(5, "a"), (5, "a")], (5, "a")),
        ([(5, "a"), (6, "z")], (6, "z")),
        ([(5, "a"), (5, "a"), (5, "b"), (4, "b"), (4, "b")], (5, "a")),
        ([(5, "b"), (5, "a"), (5, "b")], (5, "b")),
        ([(5, "b"), (5, "a")], (5, "a")),
        ([(5, "a"), (5, "b")], (5, "a")),
    ],
    ids=["all alike", "the highest step", "the majority at the top", "the majority", "a tie", "a tie, other order"],
)
def test_the_commit_to_resume_from(lineages, wins):
    answers = tuple(commit(number, lineage=lineage) for number, lineage in lineages)
    chosen = highest_commit(answers)
    assert (chosen.step, chosen.lineage) == wins


def test_without_answers_nothing_is_committed():
    assert highest_commit(()) == NOTHING_COMMITTED


def test_a_member_of_another_lineage_is_healed_like_one_behind():
    ws = BareController(3).run()
    ws.break_("w0")
    ws.answer("w0", 5, lineage="odd")
    ws.answer("w1", 5)
    ws.answer("w2", 5)
    assert ws.names(ws.view.donors) == ["w1", "w2"]
    assert ws.names(ws.view.behind) == ["w0"]


def test_while_answers_come_in_nobody_is_late():
    """Of thousands that are asked, the last to be heard are no more dead than the first."""
    ws = BareController(4, doubt_after_s=1.0, freeze_timeout_s=3.0).run()
    ws.break_("w0")
    for worker in ("w0", "w1", "w2"):
        ws.tick(after_s=0.9)
        assert ws.given(cmd.ProveDead) == []
        ws.answer(worker, 4)
        ws.answer(worker, 4)
    ws.tick(after_s=1.1)
    assert ws.addressees(cmd.ProveDead) == {"w3"}
    ws.answer("w2", 4)
    ws.tick(after_s=2.0)
    assert ws.addressees(cmd.Fence) == {"w3"}, "who repeats itself buys it no time"


@pytest.mark.parametrize("lost", [False, True], ids=["died", "lost contact, and died"])
def test_who_dies_while_the_others_wait_is_named_too(lost):
    ws = BareController(3).run()
    ws.die("w1")
    ws.answer("w0", 4)
    ws.answer("w2", 4)
    assert ws.phase is Phase.WAITING, "two of three"
    if lost:
        ws.lose("w2")
    ws.die("w2")
    (incident,) = ws.state.incidents
    assert incident.culprits == ("w1", "w2") and incident.kind is IncidentClass.WORKER_LOST
