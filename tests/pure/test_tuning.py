"""Settings that change while a run goes on: what is refused, and how all members come to use them at the same step."""

from dataclasses import replace

import pytest

from elastic.callbacks import LinearLR
from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.batch_size import ConstantBatch, FollowReplicas
from elastic.control.data import BatchPlan
from elastic.control.pace import Pace, next_pace, resize_of
from elastic.control.retuning import refusal
from elastic.control.state import Phase
from elastic.control.streams import StreamPlan
from elastic.control.tuning import NOT_TUNED, Tuning
from elastic.errors import DatasetTooSmallError, SettingError
from elastic.settings import Checkpoint
from tests.pure.bare_controller import BareController, commit, report

DATA = BatchPlan(samples=100, batch_size=ConstantBatch(size=24), micro_batch_size=8)
STREAMS = StreamPlan(places=(), streams=4, batch_size=ConstantBatch(size=8), micro_batch_size=2)
HALF = Tuning(lr_factor=0.5)


def training(replicas: int | tuple[int, int] = (1, 3), **limits: float) -> BareController:
    ws = BareController(replicas, **limits)
    ws.plan = DATA
    ws.run()
    ws.stable(0)
    return ws


def ask(ws: BareController, **settings: float) -> tuple[cmd.Command, ...]:
    return ws.feed(ev.TuneAsked(tuning=Tuning(**settings)))


def stop_all(ws: BareController, number: int) -> None:
    for worker in list(ws.members):
        ws.answer(worker, number)


# --- the values -------------------------------------------------------------------------------------------------------


def test_what_is_asked_comes_over_what_holds_and_the_rest_stays():
    assert Tuning(batch_size=8).over(Tuning(lr_factor=0.5, batch_size=4)) == Tuning(lr_factor=0.5, batch_size=8)
    assert HALF.over(NOT_TUNED) == NOT_TUNED.over(HALF) == HALF
    assert HALF.is_part_of(Tuning(lr_factor=0.5, batch_size=8)) and not HALF.is_part_of(Tuning(lr_factor=1.0))
    assert str(Tuning(lr_factor=0.5, batch_size=8)) == "lr_factor=0.5, batch_size=8"


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr_factor": 0.0},
        {"lr_factor": -1.0},
        {"lr_factor": float("nan")},
        {"lr_factor": float("inf")},
        {"batch_size": 0},
        {"micro_batch_size": 2.5},
    ],
    ids=str,
)
def test_a_number_out_of_range_is_refused_by_name(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        Tuning(**wrong)


def test_a_plan_is_cut_anew_from_where_the_committed_steps_have_ended():
    tuned = DATA.tuned(Tuning(batch_size=30, micro_batch_size=20))
    assert [(one.first, one.count) for one in tuned.cut(24, 2)] == [(24, 20), (44, 10)]
    assert DATA.tuned(HALF) == DATA


@pytest.mark.parametrize(
    ("plan", "asked", "why"),
    [
        (DATA, {"batch_size": 7}, "a batch of 7 samples is smaller than one micro-batch of 8"),
        (DATA, {"micro_batch_size": 25}, "a batch of 24 samples is smaller than one micro-batch of 25"),
        (replace(DATA, batch_size=FollowReplicas(per_replica=8)), {"batch_size": 32}, "follows the number of replicas"),
        (STREAMS, {"batch_size": 9}, "no multiple of micro_batch_size=2"),
        (STREAMS, {"batch_size": 10}, "there are 4"),
        (STREAMS, {"micro_batch_size": 4}, "can not be tuned where data comes from session.streams"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(plan, asked, why):
    with pytest.raises(SettingError, match=why):
        plan.tuned(Tuning(**asked))


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(DatasetTooSmallError, match="100 samples, fewer than one global batch of 101"):
        DATA.tuned(Tuning(batch_size=101))


def test_streams_take_another_batch():
    assert STREAMS.tuned(Tuning(batch_size=4)).global_batch(1) == 4


def test_a_batch_that_train_fn_has_made_smaller_than_a_micro_batch_bears_another_rate():
    odd = replace(DATA, batch_size=ConstantBatch(size=4))
    assert odd.tuned(HALF) == odd


# --- the pace ---------------------------------------------------------------------------------------------------------


def test_the_factor_comes_on_top_of_what_follows_the_batch():
    """A tuned batch moves the rates as a resize does; a ramp goes on from where it was, whatever the tuned factor."""
    rule = LinearLR(warmup_steps=2)
    one = next_pace(None, 0, 2, 16, rule)
    two = next_pace(one, 1, 2, 32, rule, Tuning(lr_factor=0.5, batch_size=32))
    assert [two.factor(step) for step in (1, 2, 3)] == [0.5, 0.75, 1.0]
    three = next_pace(two, 2, 2, 64, rule, Tuning(lr_factor=4.0, batch_size=64))
    assert (three.ramp_from, three.factor(2), three.factor(4)) == (1.5, 6.0, 16.0)


def test_without_a_rule_only_the_tuned_factor_counts_and_can_be_taken_back():
    one = next_pace(None, 0, 2, 16, None)
    half = next_pace(one, 1, 2, 32, None, HALF)
    back = next_pace(half, 2, 2, 32, None, Tuning(lr_factor=1.0))
    assert [pace.factor(5) for pace in (one, half, back)] == [1.0, 0.5, 1.0]


def test_a_resize_tells_the_rates_before_and_after():
    before = Pace(replicas=2, batch=16, reference_batch=16)
    told = resize_of(before, next_pace(before, 3, 2, 16, None, HALF), 3, (0.2,))
    assert (told.rates_before, told.rates, told.replicas_before, told.replicas) == ((0.2,), (0.1,), 2, 2)


# --- the controller ---------------------------------------------------------------------------------------------------


def test_all_stop_at_the_end_of_a_step_and_go_on_tuned_without_an_incident():
    ws = training()
    ask(ws, lr_factor=0.5)
    assert [pause.reason for pause in ws.given(cmd.Pause)] == ["tuned: lr_factor=0.5"]
    assert ask(ws, batch_size=32) == (), "they stop already, and will go on with both"
    stop_all(ws, 4)
    assert ws.view.tuning == Tuning(lr_factor=0.5, batch_size=32)
    assert ws.given(cmd.Form)[0].reason == "continue in place: tuned: lr_factor=0.5, batch_size=32"
    assert (ws.view.donors, ws.view.behind, ws.view.resume.step) == ((0, 1, 2), (), 4)
    ws.form()
    assert (ws.phase, ws.state.incidents, ws.given(cmd.Pause)) == (Phase.RUNNING, (), [])
    assert ws.state.world_sizes == (3, 3)


def test_a_wish_while_a_generation_forms_is_for_the_next_one():
    ws = training()
    ws.die("w2")
    ws.answer("w0", 1)
    ws.answer("w1", 1)
    assert ws.phase is Phase.FORMING
    assert ask(ws, lr_factor=0.5) == ()
    assert ws.view.tuning == NOT_TUNED
    ws.form()
    assert [pause.reason for pause in ws.given(cmd.Pause)] == ["tuned: lr_factor=0.5"]


def test_a_wish_while_members_stop_needs_no_stop_of_its_own():
    ws = training()
    ws.die("w2")
    ask(ws, lr_factor=0.5)
    ws.answer("w0", 1)
    ws.answer("w1", 1)
    assert ws.view.tuning == HALF
    ws.form()
    assert ws.given(cmd.Pause) == []


def test_a_death_in_the_window_of_a_stop_takes_the_wish_along():
    ws = training()
    ask(ws, lr_factor=0.5)
    ws.die(ws.members[0])  # the leader, who was told to have all stop
    for worker in ws.members[1:]:
        ws.answer(worker, 4)
    assert ws.view.tuning == HALF


def test_joiners_that_come_later_find_it_in_their_view():
    ws = training((1, 3))
    ask(ws, lr_factor=0.5)
    stop_all(ws, 4)
    ws.form()
    ws.die("w2")
    ws.answer("w0", 5)
    ws.answer("w1", 5)
    ws.form()
    ws.stable(6)
    ws.join("w3")
    ws.tick(1.0)
    stop_all(ws, 7)
    assert "w3" in ws.members and ws.view.tuning == HALF


def test_it_is_told_from_which_step_on_and_late_reports_change_nothing():
    ws = training()
    ask(ws, lr_factor=0.5)
    stop_all(ws, 4)
    ws.form()
    told = [replace(report(number, 2), tuning=tuning) for number, tuning in ((5, HALF), (4, NOT_TUNED), (6, HALF))]
    for one in told:
        ws.feed(ev.StepStable(worker="w0", report=one))
    assert (ws.state.tuned, ws.state.tuned_from) == (HALF, 5)


def test_how_long_a_step_takes_is_learned_anew():
    """A batch that is ten times as large is no hang."""
    ws = training()
    for number in range(1, 9):
        ws.stable(number)
    assert len(ws.state.steps_s) == 9
    ask(ws, batch_size=96)
    stop_all(ws, 9)
    assert ws.state.steps_s == ()


def test_a_generation_that_is_not_tuned_keeps_what_was_learned():
    ws = training()
    ws.break_("w0")
    stop_all(ws, 1)
    assert len(ws.state.steps_s) == 1


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (NOT_TUNED, "name what to change"),
        (Tuning(batch_size=7), "batch_size=7 does not fit the run r: a batch of 7 samples is smaller than one micro"),
        (Tuning(batch_size=101), "fewer than one global batch of 101"),
    ],
)
def test_what_is_refused_has_a_sentence_and_stops_nobody(asked, why):
    ws = training()
    assert why in refusal(ws.state, asked)
    assert ws.is_unchanged_by(ev.TuneAsked(tuning=asked))


def test_what_was_asked_before_counts():
    ws = training()
    ask(ws, batch_size=32)
    assert "smaller than one micro-batch of 33" in refusal(ws.state, Tuning(micro_batch_size=33))
    assert refusal(ws.state, Tuning(micro_batch_size=32)) == ""


def test_what_stable_steps_were_computed_at_counts_too():
    """A run that was taken up again may have been tuned before."""
    ws = training()
    ws.feed(ev.StepStable(worker="w0", report=replace(report(1), tuning=Tuning(batch_size=12))))
    assert "a batch of 12 samples" in refusal(ws.state, Tuning(micro_batch_size=16))


def test_after_a_restore_nobody_knows_what_steps_are_computed_at_until_one_is_stable():
    """The step that was gone back to is of before the batch was tuned."""
    ws = BareController(1, checkpoint=Checkpoint())
    ws.plan = DATA
    ws.start()
    ws.feed(ev.RestoreFound(commit=None, reason="no step is whole"))
    ws.join("w0")
    ws.form()
    ws.stable(0)
    ws.feed(ev.StepStable(worker="w0", report=replace(report(1), tuning=Tuning(batch_size=12))))
    ws.feed(ev.RewindAsked(to_step=0), ev.RestoreFound(commit=commit(0)))
    ws.answer("w0", 1)
    ws.feed(ev.Restored(worker="w0", commit=commit(0)))
    ws.form()
    assert "no step of the run r is stable yet since its state was restored" in refusal(ws.state, HALF)
    assert ws.is_unchanged_by(ev.TuneAsked(tuning=HALF))
    ws.stable(1)
    assert (ws.state.tuned, ws.state.tuned_from) == (NOT_TUNED, 1)
    assert refusal(ws.state, Tuning(micro_batch_size=16)) == ""


def test_before_the_first_step_and_after_the_last_one_nothing_can_be_tuned():
    ws = BareController(2)
    ws.start()
    assert "tune it when it trains" in refusal(ws.state, HALF)
    ws = training(2)
    ws.end_loop("w0")
    assert ws.phase is Phase.FINISHING
    assert "nothing left to tune" in refusal(ws.state, HALF)
    assert ws.is_unchanged_by(ev.TuneAsked(tuning=HALF))
