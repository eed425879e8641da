"""Runs that pause, exit or restart from a tier, from the word to the end."""

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.holding import why_no_pause
from elastic.control.outcome import Ending
from elastic.control.remediation import Kind
from elastic.control.state import Phase
from elastic.policies import ExitOnNotice, Ladder
from elastic.settings import Checkpoint, Limits
from tests.pure.bare_controller import BareController, commit
from tests.pure.remedied import go_on, lose, running, stop


def test_a_pause_lasts_until_somebody_ends_it():
    ws = running(Kind.PAUSE)
    lose(ws)
    assert ws.phase is Phase.WAITING
    ws.tick(Limits().jobset_downtime_threshold_s + 1.0)
    assert ws.phase is Phase.WAITING
    ws.feed(ev.ResumeAsked())
    assert ws.phase is Phase.FORMING and ws.members == ["w0", "w2"], "once is enough, whatever the policy says then"
    assert ws.state.incidents[0].decision == "continue in place: pause is over"


def test_a_pause_ends_by_itself():
    ws = running(Kind.PAUSE, for_s=100.0)
    lose(ws)
    ws.tick(99.0)
    assert ws.phase is Phase.WAITING
    ws.tick(2.0)
    assert ws.phase is Phase.FORMING


def trains_on(replicas=2) -> BareController:
    """Two replicas train, and nobody wants anything."""
    ws = running(Kind.CONTINUE, replicas)
    ws.policy = Ladder()
    return ws


def test_a_pause_that_is_asked_for_comes_at_the_end_of_a_step():
    ws = trains_on()
    ws.feed(ev.PauseAsked())
    assert ws.addressees(cmd.Pause) == {"w0"} and ws.phase is Phase.RUNNING
    stop(ws)
    assert ws.phase is Phase.WAITING and ws.state.incidents == ()
    ws.tick(Limits().jobset_downtime_threshold_s + 1.0)
    assert ws.phase is Phase.WAITING
    ws.feed(ev.ResumeAsked())
    assert ws.members == ["w0", "w1"] and ws.given(cmd.Form)[0].reason == "continue in place: nobody was lost"
    assert go_on(ws) is not None and ws.phase is Phase.RUNNING


def test_a_pause_that_is_asked_for_ends_by_itself():
    for wish, lasts_s in ((ev.PauseAsked(), Limits().hold_timeout_s), (ev.PauseAsked(for_s=50.0), 50.0)):
        ws = trains_on()
        ws.feed(wish)
        stop(ws)
        ws.tick(lasts_s - 1.0)
        assert ws.phase is Phase.WAITING
        ws.tick(2.0)
        assert ws.phase is Phase.FORMING


def test_a_failure_on_the_way_to_a_pause_is_decided_when_it_is_over():
    ws = trains_on((1, 2))
    ws.feed(ev.PauseAsked())
    lose(ws)
    assert ws.phase is Phase.WAITING
    ws.feed(ev.ResumeAsked())
    assert ws.members == ["w0"] and ws.state.incidents[0].decision.startswith("shrink")


def test_who_forms_when_a_pause_is_asked_for_stops_after_the_next_step():
    ws = trains_on((1, 2))
    lose(ws)
    ws.feed(ev.PauseAsked())
    assert ws.phase is Phase.FORMING and ws.given(cmd.Pause) == []
    ws.form()
    ws.tick(0.1)
    assert ws.addressees(cmd.Pause) == {"w0"}


def test_a_run_that_is_resumed_before_it_has_stopped_goes_on():
    ws = trains_on()
    ws.feed(ev.PauseAsked(), ev.ResumeAsked())
    stop(ws)
    assert ws.phase is Phase.FORMING


def test_a_run_that_begins_waits_at_the_door():
    ws = BareController(1)
    ws.start()
    ws.feed(ev.PauseAsked())
    ws.join("w0")
    assert ws.phase is Phase.STARTING and ws.state.view is None
    ws.feed(ev.ResumeAsked())
    ws.tick(0.1)
    assert ws.phase is Phase.FORMING


def test_what_can_not_be_paused():
    assert why_no_pause(trains_on().state, ev.PauseAsked()) == ""
    assert why_no_pause(trains_on().state, ev.PauseAsked(for_s=0.0)) == "for_s=0 must be positive"
    ws = trains_on()
    ws.feed(ev.PauseAsked(for_s=50.0))
    assert why_no_pause(ws.state, ev.PauseAsked()) == "the run r is paused already"
    assert ws.is_unchanged_by(ev.PauseAsked(for_s=5000.0))
    ws = trains_on()
    ws.end_loop("w0")
    assert why_no_pause(ws.state, ev.PauseAsked()) == "the run r has taken its last step"


def test_nothing_is_resumed_that_is_not_paused():
    assert running(Kind.PAUSE).is_unchanged_by(ev.ResumeAsked())


def test_growth_by_choice_waits_for_nothing():
    ws = running(Kind.GROW)
    lose(ws)
    go_on(ws)
    ws.join("w3", node="node-w2")
    lose(ws, "w2", number=6)
    assert ws.members == ["w0", "w3"], "although somebody has just been lost on its node"
    assert not ws.state.care.grow_now


def test_a_run_restarts_from_a_tier():
    ws = running(Kind.RESTART_FROM_TIER, checkpoint=Checkpoint())
    lose(ws)
    (find,) = ws.given(cmd.FindRestore)
    assert find.at_most == 3 and ws.phase is Phase.WAITING
    ws.feed(ev.RestoreFound(commit=commit(2)))
    assert {"w0", "w2"} <= ws.addressees(cmd.Restore)
    ws.feed(*(ev.Restored(worker=name, commit=commit(2)) for name in ("w0", "w2")))
    ws.tick(5.0)
    assert ws.phase is Phase.FORMING and ws.view.restored and ws.view.resume.step == 2


def test_a_restart_from_a_tier_that_leads_no_further_is_not_tried_again():
    """The steps that are made again are no progress, and would have it done for ever."""
    ws = running(Kind.RESTART_FROM_TIER, checkpoint=Checkpoint())
    lose(ws)
    ws.feed(ev.RestoreFound(commit=commit(2)))
    ws.feed(*(ev.Restored(worker=name, commit=commit(2)) for name in ("w0", "w2")))
    ws.tick(5.0)
    go_on(ws, 3)
    ws.join("w3")
    lose_in(ws, "w2", stays="w0", number=3)
    assert ws.given(cmd.FindRestore) == [] and ws.phase is Phase.FORMING
    assert "got no further than step 3" in ws.state.incidents[-1].decision
    ws.form()
    ws.stable(4)
    lose_in(ws, "w0", stays="w3", number=4)
    assert ws.given(cmd.FindRestore), "it has got further"


def lose_in(ws: BareController, worker: str, stays: str, number: int) -> None:
    """It dies; the other answers with what this generation has made."""
    ws.die(worker)
    held = commit(number, generation=ws.generation)
    ws.feed(ev.FreezeAnswered(worker=stays, generation=ws.generation, commit=held, healed=True))


def test_where_no_tier_holds_anything_live_state_goes_on():
    ws = running(Kind.RESTART_FROM_TIER, checkpoint=Checkpoint())
    lose(ws)
    ws.feed(ev.RestoreFound(commit=None, reason="nothing is there"))
    assert ws.phase is Phase.FORMING and ws.view.resume.step == 4


def test_without_tiers_there_is_nothing_to_restart_from():
    ws = running(Kind.RESTART_FROM_TIER)
    lose(ws)
    assert ws.phase is Phase.FORMING
    assert "keeps no checkpoints" in ws.state.incidents[0].decision


def exiting(checkpoint: Checkpoint | None) -> BareController:
    """Both workers of two are told that they will be ended, and all have stopped."""
    ws = BareController(2, policy=ExitOnNotice(), checkpoint=checkpoint)
    ws.start()
    if checkpoint is not None:
        ws.feed(ev.RestoreFound(commit=None))
    ws.join("w0", "w1")
    ws.form()
    ws.stable(3)
    ws.feed(*(ev.WorkerNotice(worker=name, reason="SIGTERM") for name in ("w0", "w1")))
    ws.tick(0.5)
    assert ws.addressees(cmd.Pause) == {"w0"}
    stop(ws)
    return ws


def test_on_notice_all_stop_and_the_run_ends_once_the_step_is_saved():
    ws = exiting(Checkpoint())
    assert ws.members == ["w0", "w1"]
    ws.form()
    ws.feed(ev.RungReached(commit=commit(3), rung="local"))
    assert ws.phase is Phase.RUNNING
    ws.feed(ev.RungReached(commit=commit(4), rung="staged"))
    assert ws.phase is Phase.RUNNING, "a part of it is not saved yet"
    ws.feed(ev.RungReached(commit=commit(4), rung="local"))
    assert ws.state.outcome.ending is Ending.EXITED
    assert "step 4 is saved" in ws.state.outcome.message
    assert ws.state.outcome.details == {"step": 4}


def test_an_exit_does_not_count_on_a_step_that_was_lost():
    ws = exiting(Checkpoint())
    ws.form()
    ws.feed(ev.RungReached(commit=commit(2), rung="durable"), ev.RungReached(commit=commit(3), rung="local"))
    ws.feed(ev.RungReached(commit=commit(3), rung="staged"))
    ws.tick(Limits().exit_timeout_s + 1.0)
    assert "step 2 is the newest one saved" in ws.state.outcome.message
    assert ws.state.outcome.details == {"step": 2}


def test_an_exit_does_not_wait_for_ever():
    ws = exiting(Checkpoint())
    ws.form()
    ws.tick(Limits().exit_timeout_s + 1.0)
    assert ws.state.outcome.ending is Ending.EXITED
    assert "Limits.exit_timeout_s=25.0: no step is saved" in ws.state.outcome.message


def test_an_exit_waits_for_no_door():
    ws = exiting(Checkpoint())
    assert ws.phase is Phase.FORMING
    ws.tick(Limits().exit_timeout_s + 1.0)
    assert ws.state.outcome.ending is Ending.EXITED
    assert "Limits.exit_timeout_s=25.0: no step is saved" in ws.state.outcome.message


def test_an_exit_that_a_failure_crosses_stops_once_more():
    ws = exiting(Checkpoint())
    ws.form()
    ws.break_("w0")
    stop(ws)
    ws.form()
    ws.tick(0.5)
    assert ws.addressees(cmd.Pause) == {"w0"}


def test_who_started_the_run_may_have_it_save_and_exit():
    ws = running(Kind.SHRINK, checkpoint=Checkpoint())
    ws.feed(ev.ExitAsked(reason="SIGTERM"))
    assert ws.addressees(cmd.Pause) == {"w0"}, "at once"
    stop(ws)
    ws.form()
    ws.feed(ev.RungReached(commit=commit(4), rung="local"))
    assert ws.state.outcome.ending is Ending.EXITED
    assert ws.state.outcome.message == "the run exited before its last step (SIGTERM); step 4 is saved"


def test_a_run_that_has_not_begun_exits_at_once():
    ws = BareController(2)
    ws.start()
    ws.feed(ev.ExitAsked(reason="SIGTERM"))
    assert ws.state.outcome.ending is Ending.EXITED and "it had not begun" in ws.state.outcome.message


def waits(held_by: Kind) -> BareController:
    """It is paused, or below its minimum, after step 4; its tiers have step 3."""
    ws = running(Kind.SHRINK, 3, checkpoint=Checkpoint())
    ws.feed(ev.RungReached(commit=commit(3), rung="local"))
    if held_by is Kind.PAUSE:
        ws.feed(ev.PauseAsked())
        stop(ws)
    else:
        ws.die("w1", "w2")
        ws.answer("w0", 4)
    assert ws.phase is Phase.WAITING
    return ws


@pytest.mark.parametrize("held_by", [Kind.PAUSE, Kind.CONTINUE], ids=["paused", "below the minimum"])
def test_a_run_that_waits_exits_when_what_it_holds_is_saved(held_by):
    """It does not wait for a generation that is not formed any more."""
    ws = waits(held_by)
    ws.feed(ev.ExitAsked(reason="SIGTERM"))
    ws.tick(0.5)
    assert ws.state.outcome is None
    ws.feed(ev.RungReached(commit=commit(4), rung="local"))
    ws.tick(0.5)
    assert ws.state.outcome.message == "the run exited before its last step (SIGTERM); step 4 is saved"


def test_a_run_that_waits_with_nothing_to_save_exits_at_once():
    ws = running(Kind.SHRINK)
    ws.feed(ev.PauseAsked())
    stop(ws)
    ws.feed(ev.ExitAsked(reason="SIGTERM"))
    assert "nothing of it is kept" in ws.state.outcome.message


def test_an_exit_with_nothing_to_save_ends_at_once():
    ws = exiting(None)
    assert ws.state.outcome.ending is Ending.EXITED
    assert "nothing of it is kept" in ws.state.outcome.message
    assert ws.state.outcome.details == {"step": -1}


def test_micro_batches_are_dealt_by_speed_whatever_the_incident():
    ws = running(Kind.REDEAL)
    ws.break_("w0")
    stop(ws)
    assert ws.view.balanced


def test_who_dies_while_the_run_is_paused_is_an_incident():
    ws = trains_on((1, 3))
    ws.feed(ev.PauseAsked())
    stop(ws)
    ws.die("w1")
    (incident,) = ws.state.incidents
    assert ws.phase is Phase.WAITING and incident.culprits == ("w1",)
    ws.tick(1000.0)
    ws.feed(ev.ResumeAsked())
    assert ws.members == ["w0", "w2"] and ws.state.incidents[0].decision.startswith("shrink")
    ws.form()
    ws.stable(9)
    assert ws.state.incidents[0].resumed_at_s is not None
    assert ws.state.care.recovery_s.keys() == {Kind.PAUSE}, "it is no measure of how long shrinking takes"
