"""Effect. What a step and a session refuse, with a sentence that names the place; and what skipping a step does."""

import inspect
import math
import pickle
import time

import pytest
import torch
from torch import nn

from elastic.control import events as ev
from elastic.control.data import deal
from elastic.errors import DatasetTooSmallError, NotStatefulError, OutsideWorkerError, SettingError, StepMisuseError
from elastic.train import data as data_module
from elastic.train.data import make_batches
from elastic.train.session import get_session
from tests.effects.conftest import LATE_NEWS_S
from tests.effects.idiom import BATCH, STEPS, Numbers, Training, assert_like_a_plain_loop, once, raised, trained

# --- what is refused ---


def refused(solo, body, max_steps=STEPS):
    """The sentence with which a loop body is refused: body(step, training)."""

    def train_fn(session):
        training = Training(session)
        for step in training.steps(max_steps):
            body(step, training)

    return raised(solo.run(train_fn), "StepMisuseError")


def leave_by_continue(session):
    training = Training(session)
    for step in training.steps():
        with step:
            continue


def leave_by_break(session):
    training = Training(session)
    for step in training.steps():
        with step:
            training.compute(step)
            break


def leave_by_return(session):
    training = Training(session)
    for step in training.steps():
        with step:
            return


def leave_by_falling_out(session):
    training = Training(session)
    for step in training.steps():
        with step:
            training.compute(step)


@pytest.mark.parametrize("train_fn", [leave_by_continue, leave_by_break, leave_by_return, leave_by_falling_out])
def test_leaving_a_step_without_apply_is_refused_and_located(solo, train_fn):
    summary = raised(solo.run(train_fn), "StepMisuseError")
    lines, first = inspect.getsourcelines(train_fn)
    start = next(i for i, line in enumerate(lines) if "with step" in line)
    places = [f"{__file__}:{first + i}" for i in range(start, len(lines))]
    assert any(f"{place}: " in summary for place in places), summary
    assert "step.skip(reason)" in summary


def test_an_optimizer_of_what_was_not_prepared_is_refused_by_name(solo):
    """Its gradients would be summed by nobody: replicas drift apart."""

    def train_fn(session):
        training, criterion = Training(session), nn.Linear(1, 1).double()
        criterion.bias.requires_grad_(False)
        session.track(
            criterion=criterion, other=torch.optim.SGD([*training.model.parameters(), *criterion.parameters()])
        )
        next(iter(training.steps()))

    summary = raised(solo.run(train_fn), "StepMisuseError")
    assert "other (SGD) updates 1 parameters of 3 that are not of the prepared model" in summary


def test_a_micro_batch_without_backward_is_refused(solo):
    def body(step, training):
        with step:
            for batch in step:
                training.loss(batch)

    assert "micro-batch 0 had no step.backward(loss)" in refused(solo, body)


def test_a_second_backward_for_a_micro_batch_is_refused(solo):
    """At once, although the backwards would add up to the right number."""

    def body(step, training):
        with step:
            for number, batch in enumerate(step):
                for _ in range((2, 0, 1)[number]):
                    step.backward(training.loss(batch))
            training.apply(step)

    assert "twice for a micro-batch" in refused(solo, body, max_steps=1)


def test_a_second_backward_for_the_last_micro_batch_is_refused(solo):
    def body(step, training):
        with step:
            for number, batch in enumerate(step):
                for _ in range((1, 1, 2)[number]):
                    step.backward(training.loss(batch))
            training.apply(step)

    assert "twice for a micro-batch" in refused(solo, body, max_steps=1)


def test_a_backward_before_the_micro_batches_is_refused(solo):
    def body(step, training):
        with step:
            step.backward(training.model(torch.zeros(1, 3, dtype=torch.float64)).sum())

    assert "outside of `for batch in step`" in refused(solo, body)


def test_a_backward_after_the_micro_batches_is_refused(solo):
    def body(step, training):
        with step:
            training.compute(step)
            step.backward(training.model(torch.zeros(1, 3, dtype=torch.float64)).sum())

    assert "outside of `for batch in step`" in refused(solo, body)


def test_an_apply_before_the_micro_batches_are_exhausted_is_refused(solo):
    def body(step, training):
        with step:
            for batch in step:
                step.backward(training.loss(batch))
                break
            training.apply(step)

    assert "step.apply once, after `for batch in step` is exhausted" in refused(solo, body)


def test_a_second_apply_is_refused(solo):
    def body(step, training):
        with step:
            training.compute(step)
            training.apply(step)
            training.apply(step)

    assert "step.apply once" in refused(solo, body)


def test_a_step_that_is_not_entered_is_refused(solo):
    assert "step 0 was not entered" in refused(solo, lambda step, training: None)


def test_micro_batches_outside_of_the_with_are_refused(solo):
    assert "outside of its `with step:`" in refused(solo, lambda step, training: training.compute(step))


def test_a_step_that_is_entered_twice_is_refused(solo):
    def body(step, training):
        with step, step:
            pass

    assert "entered twice" in refused(solo, body)


def test_misuse_is_told_without_waiting_for_news(patient):
    """It cannot be the fault of a broken generation that comes to be known later."""
    started_s = time.monotonic()
    refused(patient, lambda step, training: step.__enter__() and training.apply(step))
    with_step_s = time.monotonic() - started_s
    assert with_step_s < LATE_NEWS_S


def test_an_optimizer_that_raises_is_the_users(patient):
    """In the middle of an apply nothing can be tried again: the state is neither the old nor the new one."""

    class Bad(torch.optim.SGD):
        def step(self, closure=None):
            super().step()
            raise RuntimeError("optimizer bug")

    def train_fn(session):
        training = Training(session)
        bad = Bad(training.model.parameters(), lr=0.1)
        session.track(bad=bad)
        for step in training.steps():
            with step:
                training.compute(step)
                step.apply(bad)

    ended = patient.run(train_fn)
    assert raised(ended, "RuntimeError") == "RuntimeError: optimizer bug"


def test_a_reduction_that_lacks_a_micro_batch_is_refused_before_the_optimizer(solo, monkeypatch):
    """Replicas that agree on a wrong sum would pass every comparison among themselves."""
    seen = []

    def train_fn(session):
        training = Training(session)
        for step in training.steps():
            monkeypatch.setattr(data_module, "deal", lambda *hand: deal(*hand)[:-1])  # from the next step on
            with step:
                before = training.parameters, training.optimizer.state_dict()["state"]
                try:
                    training.compute(step)
                finally:
                    seen.append((step.index, before[0], training.parameters))
                training.apply(step)

    ended = solo.run(train_fn)
    assert "step 1" in raised(ended, "ConservationError")
    index, before, after = seen[-1]
    assert index == 1
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert ended.steps in ([], [0])


# --- skipping ---


@pytest.mark.parametrize("middle", [False, True], ids=["at once", "in the middle"])
@pytest.mark.parametrize("leaves_loop", [True, False], ids=["with break", "without break"])
def test_a_skipped_step_changes_nothing_and_is_recorded(solo, middle, leaves_loop):
    """Neither optimizer nor scheduler runs, the samples count as consumed, and the reason is told."""

    def train_fn(session):
        training = Training(session)
        for step in training.steps():
            with step:
                if step.index == 1 and not middle:
                    step.skip("loss is not finite")
                    continue
                for batch in step:
                    if step.index == 1:
                        step.skip("loss is not finite")
                        if leaves_loop:
                            break
                        continue
                    step.backward(training.loss(batch))
                if not step.skipped:
                    step.report(loss=step.loss)
                    training.apply(step)
        return training.parameters

    ended = solo.run(train_fn)
    assert_like_a_plain_loop(ended, skipped={1})
    assert [report.skipped for report in ended.reports] == ["", "loss is not finite", "", ""]
    assert [report.samples for report in ended.reports] == [6, 6, 1, 6]


def test_every_step_may_be_skipped(solo):
    """With the last one, the run still ends."""

    def train_fn(session):
        training = Training(session)
        before = training.parameters
        for step in training.steps():
            with step:
                step.skip("dry run")
        torch.testing.assert_close(training.parameters, before, rtol=0, atol=0)

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert [(report.commit.step, report.skipped) for report in ended.reports] == [(i, "dry run") for i in range(STEPS)]


def test_a_skipped_step_leaves_buffers_as_they_were(solo):
    """At the next door they may be given to a joiner, or become what a retry goes back to."""
    found = []

    def train_fn(session):
        torch.manual_seed(3)
        training = Training(session, nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double())
        norm = training.model[0]
        for step in training.steps(2):
            before = norm.running_mean.clone()
            with step:
                for batch in step:
                    training.loss(batch)
                    step.skip("after a forward")
                    break
            found.append(torch.equal(norm.running_mean, before))

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert found == [True, True]


@pytest.mark.parametrize("applies", [True, False])
def test_code_that_goes_on_after_a_skip_leaves_no_trace(solo, applies):
    """The other replicas run the same lines, and go back to the door with their apply; what follows it stays there."""
    found = []

    def train_fn(session):
        torch.manual_seed(3)
        training = Training(session, nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double())
        norm, (group,) = training.model[0], training.optimizer.param_groups
        for step in training.steps(2):
            before = norm.running_mean.clone(), group["lr"]
            with step:
                step.skip("a test")
                training.model(torch.ones(4, 3).double())
                group["lr"] = 9.0
                if applies:
                    training.apply(step)
                    group["momentum"] = 0.5
            found.append((torch.equal(norm.running_mean, before[0]), group["lr"] == before[1], group["momentum"]))

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert found == [(True, True, 0.5 if applies else 0.9)] * 2


def test_a_skipped_step_has_no_loss(solo):
    """A part of a sum, taken for a loss, may be the best there ever was."""
    found = []

    def train_fn(session):
        training = Training(session)
        for step in training.steps(2):
            with step:
                for batch in step:
                    step.backward(training.loss(batch))
                    if not step.index:
                        step.skip("in the middle")
                        break
                training.apply(step)
                found.append(step.loss)

    assert isinstance(solo.run(train_fn).last, ev.TrainFnReturned)
    assert math.isnan(found[0]) and found[1] > 0


@pytest.mark.parametrize(("reason", "told"), [("", "no reason was given"), (ValueError("no"), "no")])
def test_a_skip_without_a_reason_is_one(solo, reason, told):
    def train_fn(session):
        for step in Training(session).steps(1):
            with step:
                step.skip(reason)

    assert [one.skipped for one in solo.run(train_fn).reports] == [told]


def test_a_skip_after_the_reductions_is_refused(solo):
    """The other replicas have decided by then."""

    def body(step, training):
        with step:
            training.compute(step)
            step.skip("too late")

    assert "step.skip after its reductions" in refused(solo, body)


def test_a_skip_outside_of_the_with_is_refused(solo):
    assert "step.skip of step 0 outside of its `with step:`" in refused(solo, lambda step, t: step.skip("no"))


# --- the session ---


def test_a_session_is_found_inside_its_train_fn_alone(solo):
    def train_fn(session):
        assert get_session() is session
        return trained()(session)

    assert_like_a_plain_loop(solo.run(train_fn))
    with pytest.raises(OutsideWorkerError, match="only inside a train_fn"):
        get_session()


def test_a_session_does_not_travel(solo):
    """Neither alone nor in a closure or an object that holds it."""

    def train_fn(session):
        with pytest.raises(OutsideWorkerError, match="cannot leave its worker"):
            pickle.dumps({"mine": [session]})
        return trained()(session)

    assert_like_a_plain_loop(solo.run(train_fn))


def test_a_train_fn_without_steps_is_refused(solo):
    assert "without iterating over session.steps" in raised(solo.run(lambda session: None), "StepMisuseError")


def test_steps_without_a_model_are_refused(solo):
    def train_fn(session):
        for _ in session.steps(session.batches(Numbers(), batch_size=BATCH), max_steps=1):
            pass

    assert "call session.prepare(model)" in raised(solo.run(train_fn), "StepMisuseError")


def test_a_second_model_is_refused(solo):
    def train_fn(session):
        session.prepare(nn.Linear(1, 1))
        session.prepare(nn.Linear(1, 1))

    assert "prepare was called twice" in raised(solo.run(train_fn), "StepMisuseError")


def test_a_second_loop_over_other_batches_is_refused_since_joiners_would_train_on_the_first(solo):
    def train_fn(session):
        training = Training(session)
        for step in training.steps():
            with step:
                training.compute(step)
                training.apply(step)
            break
        next(session.steps(session.batches(Numbers(), batch_size=BATCH), max_steps=STEPS))

    assert "called again with other batches" in raised(solo.run(train_fn), "StepMisuseError")


def test_a_loop_that_was_left_may_be_taken_up_again(solo):
    def train_fn(session):
        training = Training(session)
        for _ in range(2):
            for step in training.steps():
                with step:
                    training.compute(step)
                    step.report(loss=step.loss)
                    training.apply(step)
                if step.index == 1:
                    break
        return training.parameters

    assert_like_a_plain_loop(solo.run(train_fn))


def test_parameter_groups_that_grow_in_the_loop_are_refused_since_joiners_could_not_load_them(solo):
    def grow(step, training):
        training.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})

    told = raised(solo.run(trained(once(0, "reduced", grow))), "StepMisuseError")
    assert "the parameter groups of a SGD changed after the loop began" in told and "with lr=0" in told


def test_an_object_without_state_is_not_tracked(solo):
    def train_fn(session):
        with pytest.raises(NotStatefulError, match=r"session.track\(counter=int\(...\)\)"):
            session.track(counter=3)
        return trained()(session)

    assert_like_a_plain_loop(solo.run(train_fn))


def test_what_is_tracked_in_mid_loop_is_refused_since_joiners_would_not_match(solo):
    def train_fn(session):
        training = Training(session)
        for _ in training.steps():
            session.track(average=nn.Linear(1, 1))

    told = raised(solo.run(train_fn), "StepMisuseError")
    assert "session.track(average) after the loop began: call it before session.steps" in told


def test_a_dataset_smaller_than_a_batch_is_refused():
    with pytest.raises(DatasetTooSmallError, match="holds 5 samples, fewer than one global batch of 6"):
        make_batches(Numbers(5), batch_size=6, micro_batch_size=2, seed=0, shuffle=True, collate=None)


def test_a_dataset_that_is_an_iterator_is_refused():
    with pytest.raises(SettingError, match="map-style dataset"):
        make_batches(iter([1, 2]), batch_size=1, micro_batch_size=1, seed=0, shuffle=True, collate=None)


def test_step_misuse_is_an_ordinary_error():
    """It ends the run like any error of train_fn; only the library's signals are not to be caught."""
    assert issubclass(StepMisuseError, RuntimeError)
