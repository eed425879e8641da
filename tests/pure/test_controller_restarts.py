"""Restarts from checkpoints that lead nowhere end the run, as `max_workload_restarts` says."""

import pytest

from elastic.control import events as ev
from elastic.control.commands import Dismiss, EndRun, Fence, FindRestore, Restore, StartWorker
from elastic.control.outcome import Ending
from elastic.control.restoring import why_no_rewind
from elastic.control.state import Phase, Standing
from elastic.control.values import NONE_LEFT_OUT
from elastic.settings import Checkpoint, Limits
from tests.pure.bare_controller import BareController, commit


def training(**limits: float) -> BareController:
    """Two train with checkpoints, from nothing."""
    ws = BareController(2, checkpoint=Checkpoint(), **limits)
    ws.start()
    ws.feed(ev.RestoreFound(commit=None, reason="no step is whole"))
    ws.join("w0", "w1")
    ws.form()
    assert ws.phase is Phase.RUNNING
    return ws


def all_die(ws: BareController) -> None:
    ws.die(*ws.members)


def restart(ws: BareController, number: int) -> None:
    """All have died, a step is found, two new workers load it and train."""
    assert ws.phase is Phase.WAITING
    found = commit(number, generation=ws.generation)
    ws.feed(ev.RestoreFound(commit=found))
    names = [name for name, worker in ws.state.workers.items() if worker.standing.value == "requested"]
    ws.join(*names)
    ws.feed(*(ev.Restored(worker=name, commit=found) for name in names))
    ws.form()
    assert ws.phase is Phase.RUNNING


def test_restarts_that_lead_nowhere_end_the_run():
    ws = training(max_workload_restarts=2)
    for number in range(6):
        ws.stable(number)
    for _ in range(2):
        all_die(ws)
        restart(ws, 3)
        ws.stable(4)  # done again, and no further than before
        ws.stable(5)
    all_die(ws)
    assert ws.phase is Phase.ENDED and ws.given(EndRun)
    assert ws.state.outcome is not None and ws.state.outcome.ending is Ending.NO_PROGRESS
    message = ws.state.outcome.message
    assert "started again from its checkpoints 2 times without getting past step 5" in message
    assert "Limits.max_workload_restarts=2" in message


def test_a_step_past_the_furthest_makes_good_for_all_restarts():
    ws = training(max_workload_restarts=1)
    furthest = 5
    for number in range(furthest + 1):
        ws.stable(number)
    for _ in range(4):
        all_die(ws)
        restart(ws, furthest - 1)
        ws.stable(furthest)
        furthest += 1
        ws.stable(furthest)
    assert ws.phase is Phase.RUNNING and ws.state.restarts == 0


def test_none_at_all_may_be_allowed():
    ws = training(max_workload_restarts=0)
    ws.stable(0)
    all_die(ws)
    assert ws.phase is Phase.ENDED and ws.state.outcome.ending is Ending.NO_PROGRESS
    assert not ws.given(FindRestore)


def test_an_older_step_is_tried_however_long_the_newest_could_not_be_read():
    """Storage that hangs takes as long as a group may stay below its minimum."""
    ws = training()
    for number in range(4):
        ws.stable(number)
    all_die(ws)
    newest, older = (commit(number, generation=ws.generation) for number in (3, 2))
    ws.feed(ev.RestoreFound(commit=newest))
    names = [name for name, worker in ws.state.workers.items() if worker.standing.value == "requested"]
    ws.join(*names)
    ws.tick(Limits().jobset_downtime_threshold_s + 50.0)
    ws.feed(*(ev.RestoreRefused(worker=name, commit=newest, reason="no answer", is_bad=True) for name in names))
    assert ws.given(FindRestore)
    ws.tick(0.5)
    assert ws.phase is Phase.WAITING
    ws.feed(ev.RestoreFound(commit=older))
    ws.tick(0.5)
    ws.feed(*(ev.Restored(worker=name, commit=older) for name in names))
    assert ws.phase is Phase.FORMING


def test_who_goes_back_on_purpose_need_not_get_past_where_the_run_was():
    ws = training(max_workload_restarts=1)
    for number in range(10):
        ws.stable(number)
    all_die(ws)
    restart(ws, 8)
    assert ws.state.restarts == 1
    ws.stable(9)
    ws.feed(ev.RewindAsked(to_step=2))
    ws.feed(ev.RestoreFound(commit=commit(2)))
    for name in list(ws.members):
        ws.answer(name, 9)
    ws.feed(*(ev.Restored(worker=name, commit=commit(2)) for name in list(ws.state.workers)))
    ws.form()
    assert (ws.state.furthest, ws.state.restarts) == (2, 0)
    ws.stable(3)
    all_die(ws)
    restart(ws, 3)
    assert ws.phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("to_step", "skip", "why"),
    [
        (2, (2, 1), "steps 2 to 1 cannot be left out"),
        (2, (2, 4), "steps 2 to 4 cannot be left out"),
        (9, (0, 0), "step 9 is none that the run r has made"),
        (2, (3, 5), ""),
        (2, NONE_LEFT_OUT, ""),
    ],
)
def test_where_a_run_cannot_go_back_to_it_says_why(to_step, skip, why):
    ws = training()
    for number in range(4):
        ws.stable(number)
    wish = ev.RewindAsked(to_step=to_step, skip=skip)
    assert why_no_rewind(ws.state, wish).startswith(why) and bool(why_no_rewind(ws.state, wish)) is bool(why)
    ws.end_loop("w0", 4)
    assert why_no_rewind(ws.state, wish) == f"the run {ws.state.settings.run} has taken its last step"


def test_where_no_saved_step_can_be_read_a_run_does_not_begin_anew_by_itself():
    ws = BareController(1, checkpoint=Checkpoint())
    ws.start()
    ws.feed(ev.RestoreFound(commit=commit(4)))
    ws.join("w0")
    ws.feed(ev.RestoreRefused(worker="w0", commit=commit(4), reason="bad bytes"))
    assert [one.without for one in ws.given(FindRestore)] == [(commit(4),)]
    ws.feed(ev.RestoreFound(commit=None, reason="no step is whole"))
    assert ws.phase is Phase.ENDED and ws.state.outcome is not None
    assert "no saved step can be restored (bad: 4)" in ws.state.outcome.message


def test_where_a_step_to_go_back_to_cannot_be_read_all_go_on_with_what_they_held():
    ws = training()
    for number in range(4):
        ws.stable(number)
    ws.feed(ev.RewindAsked(to_step=2))
    ws.feed(ev.RestoreFound(commit=commit(2)))
    names = list(ws.members)
    for name in names:
        ws.answer(name, 4)
    for name in names:
        ws.feed(ev.RestoreRefused(worker=name, commit=commit(2), reason="bad bytes", kept=commit(4)))
    ws.feed(ev.RestoreFound(commit=None, reason="no step is whole"))
    assert ws.phase is Phase.FORMING and ws.members == names and ws.view.resume == commit(4)


def going_back_to_2(replicas: int = 1, **options: int) -> BareController:
    """One replica has told steps 0 to 3; w0 has stopped after step 4 for a step back, and w1 is there."""
    ws = BareController(replicas, checkpoint=Checkpoint(), **options)
    ws.start()
    ws.feed(ev.RestoreFound(commit=None, reason="no step is whole"))
    ws.join("w0", "w1")
    ws.form()
    for number in range(4):
        ws.stable(number)
    ws.feed(ev.RewindAsked(to_step=2), ev.RestoreFound(commit=commit(2)))
    ws.answer("w0", 4)
    return ws


@pytest.mark.parametrize("is_loaded", [True, False])
def test_contact_that_is_lost_while_a_state_is_loaded_costs_nobody_its_life(is_loaded: bool):
    """What it has said of that may have been lost with the contact: it is asked again, and says it again."""
    ws = going_back_to_2(replicas=2)
    ws.answer("w1", 4)
    ws.lose("w0")
    ws.tick(after_s=1.1)
    assert [(one.workers, one.commit) for one in ws.given(Restore)] == [(("w0",), commit(2))]
    if is_loaded:
        ws.feed(ev.Restored(worker="w0", commit=commit(2)))
    else:
        ws.feed(ev.RestoreRefused(worker="w0", commit=commit(2), reason="bad bytes"))
    assert ws.standing("w0") is Standing.PARKED and not ws.state.workers["w0"].doubted
    ws.feed(ev.Restored(worker="w1", commit=commit(2)))
    ws.tick(after_s=2.0)
    assert ws.phase is Phase.FORMING and "w1" in ws.members and ws.view.resume == commit(2)
    ws.form()
    given = ws.tick(after_s=200.0)
    assert not any(isinstance(one, Fence) for one in given)


def test_who_is_back_after_another_step_was_chosen_is_asked_for_that_one():
    """An order is known by its number: one that was answered with an older step is answered with that again."""
    ws = going_back_to_2(replicas=2)
    ws.answer("w1", 4)
    ws.lose("w0")
    ws.feed(ev.RestoreRefused(worker="w1", commit=commit(2), reason="bad bytes", kept=commit(4)))
    ws.feed(ev.RestoreFound(commit=commit(1)))
    ws.tick(after_s=1.1)
    asked = [(one.commit, one.number) for one in ws.given(Restore) if "w0" in one.workers]
    assert asked == [(commit(1), ws.state.restores)]


def test_who_answers_after_it_was_replaced_is_not_one_too_many():
    ws = two_of_three_have_loaded()
    ws.lose("w2")
    assert ws.addressees(StartWorker) == {"w3"}
    ws.feed(ev.Restored(worker="w2", commit=commit(4)))
    assert ws.standing("w2") is Standing.PARKED and ws.addressees(Dismiss) == {"w3"}


def test_who_did_not_train_holds_nothing_to_go_on_with_where_a_step_back_comes_to_nothing():
    """What it has loaded once is behind what was told since; the only member may still be alive."""
    ws = going_back_to_2(spares=1)
    ws.lose("w0")
    ws.feed(ev.RestoreRefused(worker="w1", commit=commit(2), reason="bad bytes", kept=commit(0)))
    ws.feed(ev.RestoreFound(commit=None, reason="no node answers", error="no node answers"))
    assert ws.phase is not Phase.FORMING, "steps 1 to 3 would be done again, though they were told"
    assert not ws.state.workers["w1"].healed


def test_what_was_kept_is_given_up_where_it_makes_up_no_replica():
    """One shard could not load an older step, and the other had: the state is restored anew, and both answers count."""
    ws = going_back_to_2(width=2)
    ws.answer("w1", 4)
    ws.feed(ev.RestoreRefused(worker="w0", commit=commit(2), reason="bad bytes", kept=commit(4)))
    ws.feed(ev.Restored(worker="w1", commit=commit(2)))
    ws.feed(ev.RestoreFound(commit=None, reason="no step is whole"))
    assert ws.phase is Phase.WAITING and ws.given(FindRestore)
    ws.feed(ev.RestoreFound(commit=commit(3)))
    ws.feed(ev.Restored(worker="w0", commit=commit(3)), ev.Restored(worker="w1", commit=commit(3)))
    assert ws.phase is Phase.FORMING and ws.view.restored and ws.view.resume == commit(3)


def two_of_three_have_loaded(most: int = 3, **limits: float) -> BareController:
    """The run goes on with them from step 4, while the third loads it."""
    ws = BareController((2, most), checkpoint=Checkpoint(), **limits)
    ws.start()
    ws.feed(ev.RestoreFound(commit=commit(4)))
    ws.join("w0", "w1", "w2")
    ws.feed(ev.Restored(worker="w0", commit=commit(4)), ev.Restored(worker="w1", commit=commit(4)), after_s=0.5)
    ws.tick(after_s=0.5)
    assert ws.phase is Phase.STARTING  # as long as they took again, and a second, it is waited for
    ws.tick(after_s=1.0)
    assert ws.phase is Phase.FORMING and ws.members == ["w0", "w1"] and ws.view.resume == commit(4)
    ws.form()
    for number in (5, 6):
        ws.stable(number)
    return ws


def nobody_waits_for(ws: BareController, worker: str) -> bool:
    return ws.phase is Phase.RUNNING and not ws.state.pause_asked and worker not in ws.members


@pytest.mark.parametrize(
    "answer",
    [
        ev.Restored(worker="w2", commit=commit(4)),
        ev.RestoreRefused(worker="w2", commit=commit(4), reason="bad bytes", kept=commit(3)),
        ev.Overdue(worker="w2", generation=0),
    ],
    ids=["loaded", "refused", "lost"],
)
@pytest.mark.parametrize("most", [3, 4], ids=["all have slots", "another one has none"])
def test_who_loads_for_long_joins_once_it_has_answered(answer: ev.Event, most: int):
    ws = two_of_three_have_loaded(most)
    ws.tick(after_s=5.0)
    assert nobody_waits_for(ws, "w2")
    ws.feed(answer)
    ws.tick(after_s=1.0)
    assert ws.state.pause_asked
    ws.answer("w0", 6)
    ws.answer("w1", 6)
    assert ws.phase is Phase.FORMING and ws.members == ["w0", "w1", "w2"]
    assert ws.view.resume == commit(6) and ws.view.behind == (2,)


@pytest.mark.parametrize("answer", [ev.Restored(worker="w2", commit=commit(4)), ev.Overdue(worker="w2", generation=0)])
def test_what_it_loaded_is_nothing_to_go_on_from_once_others_have_gone_on(answer: ev.Event):
    """It is taken in, nobody has healed it yet, and all others are lost."""
    ws = two_of_three_have_loaded()
    ws.feed(answer)
    ws.tick(after_s=1.0)
    ws.answer("w0", 6)
    ws.answer("w1", 6)
    assert "w2" in ws.members
    ws.die("w0", "w1")
    ws.answer("w2", 4)
    assert ws.phase is Phase.WAITING and ws.given(FindRestore)


def test_who_loads_for_long_is_enough_when_another_one_is_lost():
    ws = two_of_three_have_loaded()
    ws.die("w1")
    ws.answer("w0", 6)
    assert ws.phase is Phase.WAITING
    ws.feed(ev.Overdue(worker="w2", generation=0))
    assert ws.phase is Phase.FORMING and ws.members == ["w0", "w2"] and ws.view.behind == (1,)


def test_who_never_answers_what_it_loads_is_ended():
    ws = two_of_three_have_loaded(load_timeout_s=30.0)
    ws.tick(after_s=26.0)
    assert nobody_waits_for(ws, "w2") and not ws.given(Fence)
    ws.tick(after_s=4.0)
    assert [(one.worker, one.reason) for one in ws.given(Fence)] == [
        ("w2", "has not loaded step 4 after Limits.load_timeout_s=30.0")
    ]


def test_who_still_loads_another_step_when_all_die_loads_the_one_that_counts():
    ws = two_of_three_have_loaded()
    all_die(ws)
    ws.feed(ev.RestoreFound(commit=commit(6, generation=2)))
    ws.feed(ev.Restored(worker="w2", commit=commit(4)))
    assert ("w2",) in [one.workers for one in ws.given(Restore)]
    assert [one.commit for one in ws.given(Restore)] == [commit(6, generation=2)]
