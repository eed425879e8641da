"""How a run ends: by its last step, by an exception, by its user."""

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.control.outcome import Ending
from elastic.control.state import Phase, Standing
from tests.pure.bare_controller import BareController, below_minimum, commit

# --- train_fn raises --------------------------------------------------------------------------------------------------


def test_an_exception_before_the_first_generation_ends_the_run():
    ws = BareController(2)
    ws.start()
    ws.place("w0")
    ws.raise_("w0")
    assert ws.state.outcome.ending is Ending.TRAIN_FN_RAISED
    assert ws.state.outcome.details == {"worker": "w0", "rank": None, "traceback": "line 1"}
    assert "w0, before its first step" in ws.state.outcome.message


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.FREEZING, Phase.FORMING, Phase.FINISHING])
def test_an_exception_of_a_member_ends_the_run_and_names_its_rank(phase):
    ws = BareController(2).run()
    if phase is Phase.FINISHING:
        ws.end_loop("w0")
    elif phase is not Phase.RUNNING:
        ws.break_("w0")
    if phase is Phase.FORMING:
        ws.answer("w0", 1)
        ws.answer("w1", 1)
    assert ws.phase is phase
    ws.raise_("w1")
    assert (ws.state.outcome.ending, ws.state.outcome.details["rank"]) == (Ending.TRAIN_FN_RAISED, 1)
    assert ws.state.outcome.message.startswith("train_fn raised ValueError: no on rank 1 (w1)")


def test_a_joiner_that_raises_does_not_end_the_run_and_is_replaced():
    ws = BareController((1, 2))
    ws.start()
    ws.join("w0")
    ws.form()
    ws.raise_("w1")
    assert ws.phase is Phase.RUNNING
    assert ws.addressees(cmd.Dismiss) == {"w1"}
    assert ws.addressees(cmd.StartWorker) == {"w2"}


def test_what_a_member_raises_that_was_to_die_is_not_of_the_user():
    """A GPU that has failed lets whatever runs on it raise, before the process has ended."""
    ws = BareController((1, 2), freeze_timeout_s=1.0).run()
    ws.break_("w0")
    ws.answer("w0", 3)
    ws.tick(after_s=2.0)
    assert ws.addressees(cmd.Fence) == {"w1"}
    ws.raise_("w1")
    assert ws.state.outcome is None and ws.standing("w1") is Standing.DEAD
    assert ws.phase is Phase.FORMING and ws.members == ["w0"]
    assert ws.raise_("w1") == () and ws.phase is Phase.FORMING


def test_a_dismissed_worker_that_raises_on_its_way_out_does_not_end_the_run():
    ws = BareController(1, spares=1)
    ws.start()
    ws.place("w0", "w1")
    ws.park("w0")
    ws.form()
    ws.end_loop("w0")
    assert ws.addressees(cmd.Dismiss) == {"w1"}
    assert ws.raise_("w1") == ()
    ws.leave("w0")
    assert ws.state.outcome.ending is Ending.SUCCEEDED


# --- the end ----------------------------------------------------------------------------------------------------------


def test_the_first_to_leave_the_loop_sends_the_others_home():
    ws = BareController((1, 3), spares=2)
    ws.start()
    ws.join("w0", "w1", "w2", "w3")
    ws.form()
    ws.end_loop("w1")
    assert ws.phase is Phase.FINISHING
    assert ws.addressees(cmd.Finish) == {"w0", "w2"}
    assert ws.addressees(cmd.Dismiss) == {"w3", "w4"}
    assert ws.end_loop("w0") == ()
    ws.leave("w3", dismissed=True)
    for worker in ("w0", "w1"):
        ws.leave(worker)
        assert ws.phase is Phase.FINISHING
    ws.leave("w2")
    assert (ws.state.outcome.ending, ws.state.outcome.details) == (Ending.SUCCEEDED, {"value_from": "w0"})


def test_a_leader_that_dies_at_the_end_leaves_the_value_to_another():
    ws = BareController(2).run()
    ws.end_loop("w0")
    ws.end_loop("w1")
    ws.die("w0")
    assert ws.phase is Phase.FINISHING
    ws.leave("w1")
    assert ws.state.outcome.details == {"value_from": "w1"}


def test_all_dead_after_the_last_step_ends_the_run_without_a_value():
    ws = BareController(2).run()
    ws.end_loop("w0")
    ws.die("w1", "w0")
    assert ws.state.outcome.ending is Ending.REPLICAS_LOST


def test_a_lost_member_is_not_waited_for_at_the_end():
    ws = BareController(2).run()
    ws.end_loop("w0")
    ws.lose("w1")
    ws.leave("w0")
    assert ws.state.outcome.ending is Ending.SUCCEEDED


def exporting(**limits: float) -> BareController:
    """Contact with w0 is lost after the last step, and its host is heard; w1 has returned."""
    ws = BareController(2, **limits).run()
    ws.beat("w0", Flying.OUTSIDE)
    ws.end_loop("w0")
    ws.end_loop("w1")
    ws.lose("w0")
    ws.leave("w1")
    assert ws.phase is Phase.FINISHING
    return ws


def test_one_whose_host_is_heard_may_be_exporting_and_is_waited_for():
    ws = exporting()
    ws.leave("w0")
    assert ws.state.outcome.details == {"value_from": "w0"}


def test_its_host_tells_of_its_death():
    ws = exporting()
    ws.die("w0")
    assert ws.state.outcome.details == {"value_from": "w1"}


def test_it_is_waited_for_no_longer_than_anybody_else():
    ws = exporting(finish_timeout_s=60.0)
    for _ in range(59):
        ws.beat("w0", Flying.OUTSIDE)
        ws.tick(1.0)
    assert ws.phase is Phase.FINISHING
    ws.beat("w0", Flying.OUTSIDE)
    ws.tick(2.0)
    assert ws.addressees(cmd.Fence) == {"w0"} and ws.state.outcome.details == {"value_from": "w1"}


def test_a_host_that_falls_silent_has_no_exporter():
    ws = exporting()
    ws.tick(60.0)
    assert ws.state.outcome.details == {"value_from": "w1"}


def test_the_loop_may_end_while_the_others_are_being_frozen():
    ws = BareController(2).run()
    ws.break_("w1")
    ws.answer("w1", 9)
    ws.end_loop("w0")
    assert ws.phase is Phase.FINISHING
    assert ws.addressees(cmd.Finish) == {"w1"}


def test_a_member_that_died_after_the_loop_does_not_come_back_by_its_last_words():
    ws = BareController(3).run()
    ws.die("w0")
    ws.end_loop("w0")
    assert (ws.phase, ws.standing("w0")) == (Phase.FINISHING, Standing.DEAD)
    assert ws.addressees(cmd.Finish) == {"w1", "w2"}
    ws.leave("w1")
    ws.leave("w2")
    assert ws.state.outcome.ending is Ending.SUCCEEDED


def test_the_last_words_of_an_older_generation_end_nothing():
    ws = BareController((1, 2)).run()
    ws.die("w0")
    ws.answer("w1", 9)
    assert ws.is_unchanged_by(ev.LoopEnded(worker="w0", generation=1, commit=commit(9)))
    assert ws.phase is Phase.FORMING


def test_a_worker_that_parks_too_late_is_dismissed():
    ws = BareController((1, 2))
    ws.start()
    ws.place("w0")
    ws.park("w0")
    ws.form()
    ws.end_loop("w0")
    assert ws.addressees(cmd.Dismiss) == {"w1"}
    assert ws.park("w1")[0].workers == ("w1",)


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING, Phase.FREEZING, Phase.WAITING, Phase.FINISHING])
def test_a_stop_ends_the_run_at_any_time(phase):
    ws = BareController(2)
    if phase is Phase.WAITING:
        ws = below_minimum()
    elif phase is not Phase.STARTING:
        ws.run()
        {Phase.FREEZING: ws.break_, Phase.FINISHING: ws.end_loop}.get(phase, lambda worker: None)("w0")
    assert ws.phase is phase
    ws.feed(ev.StopAsked(reason="ctrl-c"))
    assert (ws.state.outcome.ending, ws.state.outcome.message) == (Ending.STOPPED, "ctrl-c")
    assert ws.given(cmd.EndRun)[0].outcome == ws.state.outcome
