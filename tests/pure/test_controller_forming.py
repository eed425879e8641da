"""The next generation: spares, shrinking, growth, and formings that fail."""

import pytest

from elastic.control import commands as cmd
from elastic.control.flight import Flying
from elastic.control.state import Phase, Standing
from tests.pure.bare_controller import BareController, commit, grown_to_two

GROW_S = 0.5
FORMING_S = 30.0

# --- replacing, shrinking, growing ------------------------------------------------------------------------------------


def test_a_spare_takes_the_place_of_a_lost_worker():
    ws = BareController(2, spares=1).run()
    ws.die("w0")
    ws.answer("w1", 4)
    assert (ws.members, ws.names(ws.view.behind)) == (["w1", "w2"], ["w2"])
    assert ws.state.incidents[0].decision == "swap in a spare: 1 lost, 1 spare ready"


def test_members_are_told_how_many_failures_there_were_and_for_how_long_they_were_counted():
    ws = BareController(2, spares=1).run()
    assert (ws.view.failures, ws.view.watched_s) == (0, 0.0)
    ws.tick(after_s=5.0)
    ws.die("w0")
    ws.answer("w1", 4)
    assert ws.view.failures == 1 and 5.0 <= ws.view.watched_s < 6.0


def test_without_a_spare_the_group_shrinks():
    ws = BareController((1, 2)).run()
    ws.die("w0")
    ws.answer("w1", 4)
    assert ws.members == ["w1"]
    assert ws.state.incidents[0].decision == "shrink: 1 lost, no spare, 1 survive"


def on_nodes(ws: BareController, nodes: dict[str, str]) -> BareController:
    """Start with these workers on these nodes."""
    ws.start()
    for worker, node in nodes.items():
        ws.place(worker, node=node)
    ws.park(*nodes)
    ws.form()
    return ws


def test_a_spare_on_the_culprits_node_is_not_trusted_yet():
    ws = on_nodes(BareController((2, 3), spares=1), {"w0": "a", "w1": "b", "w2": "c", "w3": "a"})
    ws.die("w0")
    ws.answer("w1", 1)
    ws.answer("w2", 1)
    assert ws.members == ["w1", "w2"]
    ws.form()
    assert ws.addressees(cmd.Pause) == {"w1"}, "it joins at the end of a later step"


def test_a_spare_on_the_culprits_node_is_taken_when_the_minimum_needs_it():
    ws = on_nodes(BareController(3, spares=1), {"w0": "a", "w1": "b", "w2": "c", "w3": "a"})
    ws.die("w0")
    ws.answer("w1", 1)
    ws.answer("w2", 1)
    assert ws.members == ["w1", "w2", "w3"]


def test_a_spare_on_the_culprits_node_is_taken_when_a_survivor_answers_from_there():
    ws = on_nodes(BareController((2, 3), spares=1), {"w0": "a", "w1": "a", "w2": "c", "w3": "a"})
    ws.die("w0")
    ws.answer("w1", 1)
    ws.answer("w2", 1)
    assert ws.members == ["w1", "w2", "w3"]


def test_a_joiner_is_taken_in_at_the_end_of_a_step():
    ws = grown_to_two()
    assert ws.given(cmd.Pause)[0].worker == "w0"
    assert ws.phase is Phase.RUNNING
    ws.answer("w1", 5)
    assert (ws.phase, ws.commands) == (Phase.FREEZING, ())
    ws.answer("w0", 5)
    assert (ws.members, ws.names(ws.view.behind)) == (["w0", "w1", "w2"], ["w2"])
    assert ws.state.incidents == ()
    ws.form()
    assert ws.state.world_sizes == (2, 3)


def test_a_pause_is_asked_for_once():
    ws = grown_to_two()
    assert ws.given(cmd.Pause) != []
    ws.park("w2")
    assert ws.given(cmd.Pause) == []
    assert ws.tick(after_s=1.0) == ()


def test_a_full_group_asks_for_no_pause():
    ws = BareController(2, spares=1).run()
    assert ws.given(cmd.Pause) == []


@pytest.mark.parametrize("failure", ["break", "lose"])
def test_a_failure_while_all_stop_at_the_end_of_a_step_stops_the_rest_at_once(failure):
    ws = grown_to_two()
    ws.answer("w0", 5)
    ws.break_("w1") if failure == "break" else ws.lose("w1")
    assert ws.addressees(cmd.Freeze) == ({"w1"} if failure == "break" else set())
    assert ws.addressees(cmd.ProveDead) == (set() if failure == "break" else {"w1"})
    assert len(ws.state.incidents) == 1
    ws.answer("w1", 4) if failure == "break" else ws.die("w1")
    assert ws.view.resume == commit(5)


def test_a_joiner_that_dies_before_the_stop_costs_nothing_but_a_new_number():
    ws = grown_to_two()
    ws.die("w2")
    ws.answer("w0", 5)
    ws.answer("w1", 5)
    assert (ws.members, ws.generation) == (["w0", "w1"], 2)


def test_a_joiner_that_comes_while_a_generation_forms_joins_the_next_one():
    ws = BareController((1, 2)).run()
    ws.die("w1")
    ws.answer("w0", 5)
    ws.form()
    ws.stable(6)
    ws.break_("w0")
    ws.place("w2")
    assert ws.park("w2") == ()
    ws.answer("w0", 6)
    assert ws.members == ["w0", "w2"]


# --- forming fails ----------------------------------------------------------------------------------------------------


def test_after_a_failed_forming_the_survivors_go_on_alone():
    ws = BareController((1, 2), spares=1).run()
    ws.die("w1")
    ws.answer("w0", 4)
    assert ws.members == ["w0", "w2"]
    ws.fail_forming("w0")
    assert ws.addressees(cmd.Freeze) == {"w0", "w2"}
    ws.answer("w0", 4)
    ws.answer("w2", -1, healed=False)
    assert (ws.members, ws.generation) == (["w0"], 3)
    ws.form()
    ws.tick(GROW_S)
    assert ws.addressees(cmd.Pause) == {"w0"}, "the joiner gets another chance at the end of a step"


def test_a_generation_that_does_not_form_in_time_is_given_up():
    ws = BareController((1, 2), forming_timeout_s=FORMING_S).run()
    ws.break_("w0")
    ws.answer("w0", 4)
    ws.answer("w1", 4)
    ws.arrive("w1")
    ws.form("w0")
    assert ws.tick(after_s=FORMING_S) == ()
    ws.tick(after_s=0.1)
    assert ws.addressees(cmd.Freeze) == {"w0", "w1"}
    assert "w1 did not form generation 2 within Limits.forming_timeout_s=30.0" in ws.given(cmd.Freeze)[0].reason


def test_a_generation_that_gets_on_may_take_longer_to_form_but_not_for_ever():
    """A joiner takes as long as its state needs to arrive."""
    limits = {"forming_timeout_s": FORMING_S, "heal_timeout_s": 5 * FORMING_S, "heartbeat_timeout_s": 1e6}
    ws = BareController((1, 2), **limits).run()
    ws.break_("w0")
    ws.answer("w0", 4)
    ws.answer("w1", 4)
    ws.arrive("w1")
    ws.form("w0")
    for _ in range(5):
        assert ws.tick(after_s=FORMING_S - 1) == ()
        assert ws.beat("w1", Flying.FORMING, 0.5) == ()
    ws.tick(after_s=5.1)
    assert "w1 did not form generation 2 within Limits.heal_timeout_s=150.0" in ws.given(cmd.Freeze)[0].reason


@pytest.mark.parametrize(
    ("phase", "seen"),
    [
        (Flying.FORMING, {"still_s": FORMING_S + 1}),
        (Flying.FORMING, {"generation": 1}),
        (Flying.AT_DOOR, {}),
    ],
    ids=["stands still", "in the last generation", "elsewhere"],
)
def test_who_was_not_seen_to_get_on_lately_holds_nobody_up(phase, seen):
    ws = BareController((1, 2), forming_timeout_s=FORMING_S, heartbeat_timeout_s=1e6).run()
    ws.break_("w0")
    ws.answer("w0", 4)
    ws.answer("w1", 4)
    ws.arrive("w1")
    ws.form("w0")
    assert ws.tick(after_s=FORMING_S - 1) == ()
    ws.beat("w1", phase, **seen)
    ws.tick(after_s=1.1)
    assert ws.addressees(cmd.Freeze) == {"w0", "w1"}


def test_the_time_to_form_counts_from_when_all_are_at_the_door():
    """User code between two steps may take long, and is no fault of anybody."""
    ws = BareController((1, 2), forming_timeout_s=FORMING_S, door_timeout_s=500.0).run()
    ws.break_("w0")
    ws.answer("w0", 4)
    ws.answer("w1", 4)
    ws.arrive("w0")
    assert ws.tick(after_s=400.0) == ()
    ws.arrive("w1")
    assert ws.tick(after_s=FORMING_S - 1) == ()
    ws.form()
    assert ws.addressees(cmd.Go) == {"w0", "w1"}


def test_a_member_that_never_comes_to_the_door_is_fenced():
    ws = BareController((1, 2), door_timeout_s=500.0).run()
    ws.break_("w0")
    ws.answer("w0", 4)
    ws.answer("w1", 4)
    ws.arrive("w0")
    ws.tick(after_s=501.0)
    assert ws.addressees(cmd.Fence) == {"w1"}
    assert "w1 did not come to the door within Limits.door_timeout_s=500.0" in ws.given(cmd.Freeze)[0].reason


def test_who_waits_for_a_joiner_at_the_door_has_it_probed():
    """Nobody has asked it whether it lives; a member has just answered a freeze, and may be busy between two steps."""
    ws = grown_to_two()
    ws.answer("w0", 4)
    ws.answer("w1", 4)
    ws.arrive("w0")
    assert (ws.members, ws.tick(after_s=0.02)) == (["w0", "w1", "w2"], ())
    ws.tick(after_s=0.02)
    assert ws.addressees(cmd.ProveDead) == {"w2"}
    assert ws.tick(after_s=0.1) == (), "once is enough"
    ws.die("w2")
    assert ws.addressees(cmd.Freeze) == {"w0", "w1"}


def test_a_probed_joiner_that_comes_to_the_door_takes_part():
    ws = grown_to_two()
    ws.answer("w0", 4)
    ws.answer("w1", 4)
    ws.tick(after_s=0.1)
    ws.arrive("w0", "w1", "w2")
    assert not ws.state.workers["w2"].doubted
    ws.form()
    assert ws.addressees(cmd.Go) == {"w0", "w1", "w2"}


def test_a_member_lost_while_forming_is_no_fault_of_the_survivors():
    ws = BareController((1, 3)).run()
    ws.break_("w0")
    for worker in ("w0", "w1", "w2"):
        ws.answer(worker, 4)
    ws.form("w0", "w1")
    ws.die("w2")
    assert ws.addressees(cmd.Freeze) == {"w0", "w1"}
    ws.answer("w0", 4)
    ws.answer("w1", 4)
    assert (ws.members, ws.generation) == (["w0", "w1"], 3)
    assert len(ws.state.incidents) == 2


def test_what_was_answered_before_a_forming_that_failed_does_not_count():
    """Whoever does not answer again may have gone on: nothing is decided by what it held then."""
    ws = BareController((1, 3)).run()
    ws.break_("w0")
    for worker in ("w0", "w1", "w2"):
        ws.answer(worker, 4)
    ws.form("w0")
    ws.fail_forming("w2")
    assert ws.phase is Phase.FREEZING and not ws.state.tally.holders.names
    ws.answer("w0", 4)
    ws.answer("w2", 4)
    assert (ws.phase, ws.generation) == (Phase.FREEZING, 2)
    ws.die("w1")
    assert (ws.phase, ws.generation, ws.members) == (Phase.FORMING, 3, ["w0", "w2"])


def test_a_joiner_that_fails_too_often_is_dismissed():
    ws = BareController((1, 2), spares=1, joiner_tries=2).run()
    ws.die("w1")
    ws.answer("w0", 4)
    for last in (False, True):
        assert ws.members == ["w0", "w2"]
        ws.fail_forming("w2")
        ws.answer("w2", -1, healed=False)
        ws.answer("w0", 4)
        assert ws.members == ["w0"]
        assert ("w2" in ws.addressees(cmd.Dismiss)) == last
        ws.form()
        ws.tick(GROW_S)
        if not last:
            assert ws.addressees(cmd.Pause) == {"w0"}
            ws.answer("w0", 4)
    assert ws.standing("w2") is Standing.GONE
    assert ws.given(cmd.Pause) == []


def test_a_joiner_that_has_formed_has_all_its_tries_again():
    ws = BareController((1, 2), spares=1, joiner_tries=2).run()
    ws.die("w1")
    ws.answer("w0", 4)
    ws.fail_forming("w2")
    assert ws.state.workers["w2"].tries == 1
    ws.answer("w2", -1, healed=False)
    ws.answer("w0", 4)
    ws.form()
    ws.answer("w0", 5)
    ws.form()
    assert (ws.members, ws.state.workers["w2"].tries) == (["w0", "w2"], 0)


def test_below_the_minimum_survivors_alone_do_not_suffice_after_a_failed_forming():
    ws = BareController(2, spares=1, joiner_tries=2).run()
    ws.die("w1")
    ws.answer("w0", 4)
    for _ in range(2):
        assert ws.members == ["w0", "w2"]
        ws.fail_forming("w2")
        ws.answer("w2", -1, healed=False)
        ws.answer("w0", 4)
    assert ws.phase is Phase.WAITING
    assert ws.addressees(cmd.StartWorker) == {"w3", "w4"}
    ws.join("w3")
    assert (ws.phase, ws.members, ws.view.resume) == (Phase.FORMING, ["w0", "w3"], commit(4))
