"""Effect. Batches that change between steps: samples, learning rates and on_resize, also where attempts fail.

One worker stands for all: its batch size is told what to be, and its last committed pace is told to be of another size.
"""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from elastic.callbacks import LinearLR, ScaledLR, WorkerCallback
from elastic.control import events as ev
from elastic.control.batch_size import ConstantBatch
from elastic.control.data import BatchPlan
from elastic.control.pace import Pace
from elastic.control.tuning import Tuning
from elastic.errors import StepMisuseError
from elastic.train import tree
from elastic.train.cursor import Cursor, rates, scaled_rates
from elastic.train.runner import with_callbacks
from tests.effects.idiom import Training, once, raised

SIZES = [2, 4, 4, 1, 3, 3, 5]  # batches of the steps, in samples; an epoch of 13 ends within the fifth
COUNTS = [2, 4, 4, 1, 2, 3, 5]
STEPS = len(SIZES)
PLACES = ["before", "start", "batch", "backward", "reduced"]


class Told:
    """A batch size that is what it was told last."""

    def __init__(self):
        self.now = 1

    def samples(self, replicas, micro_batch_size):
        return self.now

    def __repr__(self):
        return "Told()"


class Recording(torch.optim.SGD):
    """Remembers the rates it was stepped with."""

    def step(self, closure=None):
        self.used = [*getattr(self, "used", []), [group["lr"] for group in self.param_groups]]
        super().step(closure)


class Resizing(Training):
    """A training whose steps take the batches of SIZES; `loop` yields each step, and the retries of it."""

    def __init__(self, session, scheduler=None, sizes=SIZES, model=None):
        super().__init__(session, model)
        self.sizes, self.size, self.ids = sizes, Told(), {}
        self.optimizer = Recording(
            [{"params": [p], "lr": lr} for p, lr in zip(self.model.parameters(), (0.1, 0.02), strict=True)]
        )
        self.scheduler = scheduler(self.optimizer) if scheduler else []
        session.track(recording=self.optimizer)
        if scheduler:
            session.track(rates=self.scheduler)
        self.batches.plan = replace(self.batches.plan, batch_size=self.size, micro_batch_size=2)

    def loop(self, hook=lambda *args: None):
        self.size.now = self.sizes[0]
        for step in self.steps(len(self.sizes)):
            hook(step, self, "before")
            ids = []
            with step:
                hook(step, self, "start")
                for batch in step:
                    hook(step, self, "batch")
                    ids += batch[1].tolist()
                    step.backward(self.loss(batch))
                    hook(step, self, "backward")
                hook(step, self, "reduced")
                self.apply(step)
                self.ids[step.index] = ids
                hook(step, self, "applied")
                self.size.now = self.sizes[min(step.index + 1, len(self.sizes) - 1)]
        return self


def resizing(hook=lambda *args: None, **options):
    return lambda session: Resizing(session, **options).loop(hook)


def no_hook(step, training, place):
    """Goes wrong nowhere."""


# --- samples ---


def in_order(training):
    plan = training.batches.plan
    whole = replace(plan, micro_batch_size=plan.samples, batch_size=Told())
    whole.batch_size.now = plan.samples
    return [index for epoch in range(2) for index in whole.sample_indices(whole.cut(epoch * plan.samples, 1)[0])]


@pytest.mark.parametrize("smaller", [1, 2, 3])
@pytest.mark.parametrize("place", PLACES)
def test_a_retry_of_another_size_takes_up_where_the_committed_steps_ended(solo, place, smaller):
    """Nothing is skipped or repeated: the attempt that failed has consumed nothing."""

    def act(step, training):
        training.size.now = smaller
        solo.break_generation()

    hook = once(2, place, act)
    training = solo.run(resizing(hook)).value
    taken = [index for step in range(STEPS) for index in training.ids[step]]
    assert hook.calls
    assert [len(training.ids[step]) for step in range(2)] == COUNTS[:2]
    assert len(training.ids[2]) == smaller
    assert taken == in_order(training)[: len(taken)]
    assert training.session._replica.cursor.samples == len(taken)


def test_steps_of_changing_size_tell_their_samples_and_end_with_their_epoch(solo):
    told = []
    training = solo.run(resizing(lambda step, _, place: told.append(step) if place == "applied" else None)).value
    assert [step.samples for step in told] == COUNTS
    assert [step.epoch for step in told] == [0, 0, 0, 0, 0, 1, 1]
    assert [index for step in range(STEPS) for index in training.ids[step]] == in_order(training)[: sum(COUNTS)]


# --- learning rates ---

SCHEDULERS = {
    "none": None,
    "from the last rate": partial(lr_scheduler.ExponentialLR, gamma=0.5),
    "from the base rate": partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: 1 / (1 + step)),
    "both": partial(lr_scheduler.CosineAnnealingLR, T_max=STEPS),
}
RULE = LinearLR(reference_batch=4, warmup_steps=1)
FACTORS = [0.5, 0.5, 1, 0.25, 0.25, 0.75, 0.75]  # of SIZES: a rise waits for a step, a fall does not


def plain_rates(scheduler):
    """What a scheduler makes of the rates without any rule."""
    params = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [p], "lr": lr} for p, lr in zip(params, (0.1, 0.02), strict=True)])
    schedule, rates = scheduler(optimizer) if scheduler else None, []
    for _ in range(STEPS):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        if schedule:
            schedule.step()
    return rates


@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS.keys())
@pytest.mark.parametrize("place", [None, *PLACES])
def test_a_rule_multiplies_what_the_scheduler_says_and_the_scheduler_never_sees_it(solo, scheduler, place):
    """Also where an attempt fails: the rule acts inside the optimizer's step alone."""
    hook = once(4, place, lambda step, training: solo.break_generation()) if place else no_hook
    factors = []

    def watch(step, training, where):
        if where == "applied":
            factors.append(step.rate_factor)
        hook(step, training, where)

    ended = solo.run(with_callbacks(resizing(watch, scheduler=scheduler), [RULE]))
    wanted, training = plain_rates(scheduler), ended.value
    assert factors == FACTORS
    assert training.optimizer.used == [
        [rate * factor for rate in rates] for rates, factor in zip(wanted, factors, strict=True)
    ]


def test_without_a_rule_rates_are_left_alone(solo):
    training = solo.run(resizing()).value
    assert training.optimizer.used == [[0.1, 0.02]] * STEPS


def test_rates_are_the_users_again_where_an_optimizer_raises():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=torch.tensor(0.5))
    rate = optimizer.param_groups[0]["lr"]
    with pytest.raises(ZeroDivisionError), scaled_rates([optimizer], 3.0):
        assert float(optimizer.param_groups[0]["lr"]) == 1.5
        1 / 0  # noqa: B018 - the point
    assert optimizer.param_groups[0]["lr"] is rate and float(rate) == 0.5


def test_an_optimizer_that_finds_its_rate_by_itself_is_left_alone_until_it_should_be_scaled():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    optimizer.param_groups[0]["lr"] = None
    assert math.isnan(*rates([optimizer]))
    with scaled_rates([optimizer], 1.0):
        assert optimizer.param_groups[0]["lr"] is None
    with pytest.raises(StepMisuseError, match="no learning rate"), scaled_rates([optimizer], 2.0):
        pass


def test_a_gradient_scaler_steps_at_the_scaled_rate(solo):
    """And a step that it drops for an infinity leaves the rates as they were."""
    used = []

    def train_fn(session):
        training = Resizing(session, sizes=[2, 4, 4])
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        session.track(scaler=scaler)
        training.size.now = 2
        for step in training.steps(3):
            with step:
                for batch in step:
                    step.backward(training.loss(batch) * (float("inf") if step.index == 1 else 1), scaler=scaler)
                step.apply(training.optimizer, scaler=scaler)
            training.size.now = 4
        used.extend(training.optimizer.used)
        return [group["lr"] for group in training.optimizer.param_groups]

    ended = solo.run(with_callbacks(train_fn, [LinearLR()]))
    assert used == [[0.1, 0.02], [0.2, 0.04]]
    assert ended.value == [0.1, 0.02]


def test_a_group_without_a_rate_is_refused_where_a_rule_must_scale_it(solo):
    def hook(step, training, place):
        if place == "reduced" and step.index == 1:
            del training.optimizer.param_groups[0]["lr"]

    sentence = raised(solo.run(with_callbacks(resizing(hook), [LinearLR()])), "StepMisuseError")
    assert "has no learning rate" in sentence and "fit(callbacks=...)" in sentence


def test_an_exception_in_a_rule_is_the_users(solo):
    ended = solo.run(with_callbacks(resizing(), [ScaledLR(rule=lambda batch, reference: 1 / 0)]))
    assert raised(ended, "ZeroDivisionError")
    assert "in <lambda>" in ended.last.traceback


# --- on_resize ---


class Watching(WorkerCallback):
    """Remembers its resizes, and the optimizer's steps before each."""

    def __init__(self):
        self.seen = []

    def on_resize(self, resize):
        self.seen.append(resize)


def grown(index, replicas=3):
    """A hook: the step before `index` was committed by another number of replicas."""

    def act(step, training):
        cursor = training.session._replica.cursor
        cursor.pace = replace(cursor.pace, replicas=replicas)

    return once(index - 1, "applied", act)


def test_on_resize_is_called_once_before_the_optimizers_of_the_first_step_of_another_size(solo):
    watching, order = Watching(), []

    def train_fn(session):
        def act(resize):
            order.append(("session", len(training.optimizer.used)))

        training = Resizing(session)
        session.on_resize(act)
        return training.loop(grown(3))

    training = solo.run(with_callbacks(train_fn, [watching, LinearLR(reference_batch=4)])).value
    (resize,) = watching.seen
    assert (resize.step, resize.replicas_before, resize.replicas) == (3, 3, 1)
    assert (resize.batch_before, resize.batch) == (4, 1)
    assert resize.rates_before == (0.1, 0.02)
    assert list(resize.rates) == training.optimizer.used[3]
    assert order == [("session", 3)]


@pytest.mark.parametrize("place", PLACES)
def test_a_failed_attempt_calls_no_on_resize(solo, place):
    """The retry does, with the same event."""
    watching, hook = Watching(), grown(3)
    breaks = once(3, place, lambda step, training: solo.break_generation())

    def both(*where):
        breaks(*where)
        if where[2] == "applied":
            assert len(watching.seen) == (where[0].index >= 3)
        hook(*where)

    solo.run(with_callbacks(resizing(both), [watching]))
    assert breaks.calls and [resize.step for resize in watching.seen] == [3]


def test_a_skipped_step_tells_of_its_size_without_rates(solo):
    watching = Watching()

    def train_fn(session):
        training = Resizing(session)
        hook = grown(3)
        for step in training.steps(5):
            with step:
                if step.index == 3:
                    step.skip("bad")
                else:
                    training.compute(step)
                    training.apply(step)
                    hook(step, training, "applied")

    solo.run(with_callbacks(train_fn, [watching]))
    (resize,) = watching.seen
    assert (resize.step, resize.replicas_before, resize.rates) == (3, 3, ())


@pytest.mark.parametrize("is_skipped", [False, True], ids=["updated", "skipped"])
def test_what_on_resize_changes_is_part_of_the_state_also_where_the_step_is_skipped(solo, is_skipped):
    """Settings of an optimizer, a buffer, a gradient scaler; it is not called again for this resize."""

    def train_fn(session):
        model = nn.Linear(3, 1).double()
        model.register_buffer("seen", torch.zeros(1))
        training, scaler, hook = Resizing(session, model=model), torch.amp.GradScaler("cpu", init_scale=4.0), grown(3)
        session.track(scaler=scaler)

        def act(resize):
            training.optimizer.param_groups[1]["weight_decay"] = 0.25
            model.seen.fill_(8.0)
            scaler.update(16.0)

        session.on_resize(act)
        for step in training.steps(5):
            with step:
                if step.index == 3 and is_skipped:
                    step.skip("bad")
                else:
                    training.compute(step)
                    training.apply(step)
                    hook(step, training, "applied")
        assert hook.calls
        return training.optimizer.param_groups[1]["weight_decay"], float(model.seen), scaler.get_scale()

    assert solo.run(train_fn).value == (0.25, 8.0, 16.0)


def test_an_exception_in_on_resize_ends_the_run_with_its_story(solo):
    def act(resize):
        raise ValueError(f"no model for {resize.replicas} replicas")

    def train_fn(session):
        session.on_resize(act)
        return Resizing(session).loop(grown(3))

    ended = solo.run(train_fn)
    assert raised(ended, "ValueError") == "ValueError: no model for 1 replicas"
    assert "in act" in ended.last.traceback and "Traceback" in ended.last.traceback
    assert len([event for event in ended.events if isinstance(event, ev.TrainFnRaised)]) == 1


# --- the cursor travels ---

PACE = Pace(replicas=3, batch=24, reference_batch=8, ramp_from=1.0, ramp_to=3.0, ramp_step=7, ramp_steps=5)


TUNED = replace(PACE, tuning=Tuning(lr_factor=0.5, batch_size=24))


@pytest.mark.parametrize("pace", [None, PACE, TUNED], ids=["before the first step", "in a warm-up", "tuned"])
@pytest.mark.parametrize("is_compared", [True, False])
def test_a_cursor_travels_as_tracked_state(pace, is_compared):
    giver, taker = Cursor(), Cursor()
    giver.samples, giver.pace, giver.is_compared = 1234, pace, is_compared
    taker.move(5, replace(PACE, batch=1), is_compared=not is_compared)
    flat = tree.flatten(giver.state_dict())
    taker.load_state_dict(tree.unflatten(flat.skeleton, flat.tensors))
    assert (taker.samples, taker.pace, taker.is_compared) == (1234, pace, is_compared)


def test_data_that_is_not_what_a_state_was_trained_on_is_told_and_trained_on(caplog):
    data = BatchPlan(samples=100, batch_size=ConstantBatch(size=10), micro_batch_size=5)
    giver, alike, taker = Cursor(), Cursor(), Cursor()
    giver.read_in(data.order)
    giver.move(10, PACE)
    state = giver.state_dict()
    alike.read_in(replace(data, micro_batch_size=2).order)
    alike.load_state_dict(state)
    assert not caplog.records, "how steps are cut is not the order of samples"
    taker.read_in(replace(data, samples=90, seed=7).order)
    taker.load_state_dict(state)
    assert taker.state_dict() == state, "else it would not be what was restored"
    assert "(samples 100, now 90; seed 0, now 7): after its 10 samples" in caplog.text
    taker.move(10, PACE)
    assert taker.state_dict()["order"] == replace(data, samples=90, seed=7).order
    caplog.clear()
    older = {"samples": 10, "pace": None}  # of a release that did not keep it
    taker.load_state_dict(older)
    assert not caplog.records and taker.state_dict() == older
