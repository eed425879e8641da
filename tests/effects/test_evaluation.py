"""Effect. Evaluation at the door of a step: when, in which mode, tried again as a whole, told once."""

import pytest
import torch
from torch import nn

from elastic.control import events as ev
from elastic.train.evaluation import _agreed
from tests.effects.helpers import Circle, in_threads
from tests.effects.idiom import MICRO, STEPS, Numbers, Training, assert_like_a_plain_loop, raised
from tests.effects.test_world import Part


def evaluating(act, every=2, model=None, ends_at=STEPS):
    """A train_fn that evaluates; act(evaluation, training) -> numbers."""

    def train_fn(session):
        training = Training(session, model)
        session.evaluate_every(every, lambda evaluation: act(evaluation, training))
        for step in training.steps(ends_at):
            with step:
                training.compute(step)
                step.report(loss=step.loss)
                training.apply(step)
        return training.parameters

    return train_fn


def mean_loss(evaluation, training):
    total = count = 0.0
    for batch in evaluation.batches(Numbers(), batch_size=MICRO):
        total, count = total + float(training.loss(batch)) * len(batch[0]), count + len(batch[0])
    total, count = evaluation.sum(total, count)
    assert count == len(Numbers())
    return {"loss": total / count}


def test_it_comes_after_every_so_many_steps_and_after_the_last(solo):
    seen = []

    def act(evaluation, training):
        seen.append(evaluation.step)
        return mean_loss(evaluation, training)

    ended = solo.run(evaluating(act, every=3))
    told = {report.commit.step: report.metrics.get("evaluation/loss") for report in ended.reports}
    assert seen == [2, STEPS - 1]
    assert [step for step, loss in told.items() if loss is not None] == seen
    assert ended.steps == list(range(STEPS))


def test_it_leaves_no_trace_in_the_training(solo):
    def act(evaluation, training):
        for part in training.model.modules():
            part.train()  # it may not; and then statistics move, and dropout draws
        torch.rand(7)
        return mean_loss(evaluation, training)

    ended = solo.run(evaluating(act, every=1))
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    for report in ended.reports:
        report.metrics.pop("evaluation/loss")
    assert_like_a_plain_loop(ended)


def test_modes_gradients_and_buffers(solo):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    model[1].eval()
    kept = []

    def act(evaluation, training):
        assert not any(part.training for part in training.model.modules())
        assert not torch.is_grad_enabled()
        kept.append(model[1].running_mean.clone())
        model[1].running_mean.add_(1)
        return {}

    def train_fn(session):
        evaluating(act, model=model)(session)
        assert [part.training for part in model.modules()] == [True, True, False, True]

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert torch.equal(kept[-1], model[1].running_mean)


@pytest.mark.parametrize("place", ["first batch", "last batch", "before the sum", "at the end"])
def test_a_generation_that_breaks_in_it_has_all_of_it_tried_again(solo, place):
    tries, broken, went_on = [], [], []

    def act(evaluation, training):
        tries.append(evaluation.step)
        breaks = len(tries) == 1
        for number, _ in enumerate(evaluation.batches(Numbers(), batch_size=5)):
            if breaks and broken:
                went_on.append(number)
            if breaks and number == {"first batch": 0, "last batch": 2}.get(place):
                broken.append(number)
                solo.break_generation()
        if breaks and place == "before the sum":
            solo.break_generation()
        evaluation.sum(1.0)
        if breaks and place == "at the end":
            solo.break_generation()
        return {"one": 1.0}

    ended = solo.run(evaluating(act))
    assert tries[:2] == [1, 1]
    assert went_on == [], "batches were computed in a broken generation"
    told = [report.commit.step for report in ended.reports if "evaluation/one" in report.metrics]
    assert told == [1, 3]
    for report in ended.reports:
        report.metrics.pop("evaluation/one", None)
    assert_like_a_plain_loop(ended)


def test_the_step_that_follows_is_tried_again_with_the_same_results(solo):
    """The results are part of the state once that step is committed."""
    seen, kept, tries = [], [], []

    def act(evaluation, training):
        tries.append(evaluation.step)
        return {"step": float(evaluation.step)}

    def train_fn(session):
        training = Training(session)
        session.evaluate_every(2, lambda evaluation: act(evaluation, training))
        for step in training.steps():
            with step:
                training.compute(step)
                seen.append((step.index, session.evaluated.get("step")))
                kept.append(session._replica.evaluator.state_dict()["results"])
                if step.index == 2 and len(tries) == 1:
                    solo.break_generation()
                training.apply(step)
        return session.evaluated

    ended = solo.run(train_fn)
    assert seen == [(0, None), (1, None), (2, 1.0), (2, 1.0), (3, 1.0)]
    assert kept == [{}, {}, {}, {}, {"step": 1.0}]
    assert (tries, ended.value) == ([1, 1, 3], {"step": 3.0})


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda evaluation, training: 1.0, "StepMisuseError: an evaluation returned float"),
        (lambda evaluation, training: 1 / 0, "ZeroDivisionError"),
        (lambda evaluation, training: [evaluation.sum(1) for _ in evaluation.batches(Numbers(), batch_size=5)],
         "StepMisuseError: evaluation.sum: replicas have unequal numbers of batches"),
        (lambda evaluation, training: next(evaluation.batches(Numbers(), batch_size=0)),
         "SettingError: evaluation.batches: batch_size=0: at least 1"),
        (lambda evaluation, training: next(evaluation.batches(Numbers(0), batch_size=5)),
         "SettingError: evaluation.batches: the dataset is empty"),
    ],
)  # fmt: skip
def test_mistakes_in_it_are_the_users(solo, act, error):
    raised(solo.run(evaluating(act)), error)


def test_a_loop_over_the_first_batches_may_be_left(solo):
    def act(evaluation, training):
        for number, _ in enumerate(evaluation.batches(Numbers(), batch_size=MICRO)):
            if number == 1:
                break
        (seen,) = evaluation.sum(number + 1)
        return {"batches": seen}

    ended = solo.run(evaluating(act))
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert ended.reports[-1].metrics["evaluation/batches"] == 2.0


def test_it_must_be_known_before_the_loop(solo):
    def train_fn(session):
        training = Training(session)
        session.evaluate_every(2, mean_loss)
        session.evaluate_every(3, mean_loss)
        return training

    assert "call it once, before session.steps" in raised(solo.run(train_fn), "StepMisuseError")


def test_replicas_that_found_different_numbers_are_told(solo):
    circle = Circle(3)
    groups = circle.form()

    def act(rank):
        try:
            return _agreed(Part(groups[rank]), {"loss": 1.0 if rank != 1 else 1.0 + 1e-15})
        except Exception as error:
            return str(error)

    sentences = in_threads(3, act)
    assert all("on ranks [1] came to other results than on the first one" in one for one in sentences), sentences
    for group in groups:
        group.cut()
        group.close()


def test_shards_of_a_replica_that_found_different_numbers_are_told(solo):
    """Each would set its own rate, or stop at its own step."""
    circle = Circle(2)
    groups = circle.form()

    def act(shard):
        part = Part(groups[shard])
        part.group, part.inner = None, groups[shard]
        try:
            return _agreed(part, {"loss": float(shard)})
        except Exception as error:
            return str(error)

    sentences = in_threads(2, act)
    assert all("on shards of a replica [1] came to other" in sentence for sentence in sentences), sentences
    for group in groups:
        group.cut()
        group.close()
