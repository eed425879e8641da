"""Contact that comes back, contact that never ends, and reports that died with their leader."""

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.flight import STOPPED, Flying
from elastic.control.outcome import Ending
from elastic.control.remediation import Kind, Remediation
from elastic.control.state import Phase, Standing
from tests.pure.bare_controller import BareController, report


def test_a_suspect_that_answers_is_a_member_again():
    """Contact was lost, not the worker: it keeps its state, its slot and its place."""
    ws = BareController(2, freeze_timeout_s=10.0).run()
    ws.lose("w1")
    ws.answer("w0", 3)
    assert ws.phase is Phase.FREEZING
    ws.answer("w1", 3)
    assert ws.phase is Phase.FORMING
    assert set(ws.members) == {"w0", "w1"}
    assert ws.view.behind == ()


def test_who_is_out_of_contact_is_asked_again():
    """The first order to stop may have been lost with the contact."""
    ws = BareController(2, freeze_timeout_s=10.0).run()
    ws.lose("w1")
    ws.answer("w0", 3)
    assert not any(isinstance(one, cmd.Freeze) for one in ws.tick(after_s=0.9))
    ws.tick(after_s=0.2)
    assert ws.addressees(cmd.Freeze) == {"w1"}
    assert not any(isinstance(one, cmd.Freeze) for one in ws.tick(after_s=0.5)), "not with every tick"
    ws.answer("w1", 3)
    assert ws.phase is Phase.FORMING and set(ws.members) == {"w0", "w1"}
    assert ws.given(cmd.Fence) == []


def test_contact_that_is_lost_in_a_pause_costs_nobody_its_life():
    """It has stopped and answered before: its lease says nothing of whether it holds its state."""
    ws = BareController(2).run()
    ws.feed(ev.PauseAsked(for_s=3600.0))
    for worker in ("w0", "w1"):
        ws.answer(worker, 3)
    assert ws.phase is Phase.WAITING
    ws.lose("w1")
    ws.tick(after_s=1.1)
    assert ws.addressees(cmd.Freeze) == {"w1"}
    ws.answer("w1", 3)
    given = ws.tick(after_s=200.0)
    assert not any(isinstance(one, cmd.Fence) for one in given) and ws.standing("w1") is Standing.MEMBER
    ws.feed(ev.ResumeAsked())
    assert ws.phase is Phase.FORMING and set(ws.members) == {"w0", "w1"}


def test_nobody_is_asked_of_a_generation_that_the_same_tick_has_replaced():
    ws = BareController((1, 2)).run()
    ws.feed(ev.PauseAsked(for_s=1.0))
    for worker in ("w0", "w1"):
        ws.answer(worker, 3)
    ws.lose("w1")
    ws.tick(after_s=1.1)
    assert ws.phase is Phase.FORMING and ws.members == ["w0"] and ws.given(cmd.Freeze) == []


def test_contact_that_is_lost_after_the_last_step_is_no_death():
    ws = BareController(2).run()
    ws.end_loop("w0")
    ws.lose("w0")
    ws.lose("w1")
    assert ws.state.outcome is None
    ws.tick(after_s=1.1)
    assert ws.addressees(cmd.Finish) == {"w0", "w1"}
    ws.leave("w1")
    assert ws.state.outcome is not None and ws.state.outcome.ending is Ending.SUCCEEDED


@pytest.mark.parametrize("is_proven", [True, False], ids=["proven dead", "its lease runs out"])
def test_if_it_does_not_come_back_the_run_has_lost_its_value(is_proven):
    ws = BareController(2, lease_s=30.0).run()
    ws.end_loop("w0")
    ws.lose("w0")
    ws.lose("w1")
    ws.die("w0")
    assert ws.state.outcome is None
    ws.die("w1") if is_proven else ws.tick(after_s=31.0)
    assert ws.state.outcome is not None and ws.state.outcome.ending is Ending.REPLICAS_LOST


def test_a_fenced_suspect_that_answers_late_does_not_come_back():
    ws = BareController((1, 2), freeze_timeout_s=1.0).run()
    ws.break_("w0")
    ws.answer("w0", 3)
    ws.tick(after_s=2.0)
    assert ws.addressees(cmd.Fence) == {"w1"}
    ws.answer("w1", 3)
    assert ws.standing("w1") is Standing.SUSPECT


def test_a_member_that_never_returns_is_ended_at_the_finish_timeout():
    ws = BareController(2, finish_timeout_s=5.0).run()
    ws.end_loop("w0")
    ws.leave("w0")
    ws.tick(after_s=4.0)
    assert ws.phase is Phase.FINISHING
    ws.tick(after_s=2.0)
    assert ws.addressees(cmd.Fence) == {"w1"}
    assert ws.state.outcome is not None
    assert ws.state.outcome.ending is Ending.SUCCEEDED


def test_a_member_that_is_stopped_after_the_last_step_is_ended_at_once():
    ws = BareController(2).run()
    ws.end_loop("w0")
    ws.leave("w0")
    ws.beat("w1", Flying.OUTSIDE, still_s=1.0, state=STOPPED)
    ws.tick(after_s=0.1)
    assert ws.addressees(cmd.Fence) == {"w1"} and ws.state.outcome is None
    ws.die("w1")
    assert ws.state.outcome is not None and ws.state.outcome.ending is Ending.SUCCEEDED


def test_a_policy_may_wait_although_the_survivors_suffice():
    def wait(incident: object, view: object) -> Remediation:
        return Remediation(kind=Kind.WAIT, reason="a better node is coming")

    ws = BareController((1, 2), policy=wait).run()
    ws.die("w1")
    ws.answer("w0", 3)
    assert ws.phase is Phase.WAITING


def test_steps_are_published_without_gaps():
    ws = BareController(2).run()
    ws.feed(ev.StepStable(worker="w1", report=report(1)))
    assert (ws.state.published, ws.state.published_ahead) == (-1, {1})
    ws.feed(ev.StepStable(worker="w0", report=report(0)))
    assert (ws.state.published, ws.state.published_ahead) == (1, frozenset())


def test_a_report_that_died_with_all_who_could_tell_it_holds_nothing_up():
    """Each member tells what it knows before it says that it has formed; what is missing then stays missing."""
    ws = BareController((1, 2)).run()
    ws.feed(ev.StepStable(worker="w0", report=report(0)), ev.StepStable(worker="w0", report=report(3)))
    assert ws.state.published == 0
    ws.die("w1")
    ws.answer("w0", 4)
    ws.form()
    assert ws.state.published == 3
    assert ws.state.published_ahead == frozenset()


def test_a_member_busy_after_the_agreed_stop_is_frozen_and_not_killed():
    """It was not asked before: the clock of the freeze starts when it is."""
    ws = BareController((1, 3), freeze_timeout_s=10.0, pause_timeout_s=1.0).run()
    ws.answer("w1", 3)
    assert ws.phase is Phase.FREEZING
    ws.tick(after_s=2.0)
    assert ws.addressees(cmd.Freeze) == {"w0", "w2"}
    ws.tick(after_s=9.0)
    assert ws.given(cmd.Fence) == []
    ws.answer("w0", 3)
    ws.answer("w2", 3)
    assert set(ws.members) == {"w0", "w1", "w2"}
    assert ws.state.incidents == ()
