"""Effect. The step transaction as a user meets it: what is committed, what is tried again, and what is refused."""

import inspect
import pickle
import time

import pytest
import torch
from torch import nn

from elastic.control import events as ev
from elastic.errors import (
    DatasetTooSmallError,
    NotStatefulError,
    OutsideWorkerError,
    SettingError,
    StepMisuseError,
)
from elastic.train.data import Batches, make_batches
from elastic.train.session import get_session
from tests.effects.solo import Solo

STEPS = 4
SAMPLES, BATCH, MICRO = 13, 6, 2  # an epoch of 3 steps: 3, 3 and 1 micro-batches
BROKEN_BLAME_S = 20.0


class Numbers:
    """A dataset that remembers what was read."""

    def __init__(self, samples=SAMPLES):
        self.x = torch.randn(samples, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], index


class Training:
    """The pieces of a train_fn; `loop` is the idiom, with a hook at each place where something may go wrong."""

    def __init__(self, session, model=None):
        torch.manual_seed(3)
        self.session = session
        self.model = session.prepare(model or nn.Linear(3, 1).double())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.5)
        session.track(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler)
        self.batches = session.batches(Numbers(), batch_size=BATCH, micro_batch_size=MICRO)

    def steps(self, max_steps=STEPS):
        return self.session.steps(self.batches, max_steps=max_steps)

    def loss(self, batch):
        return self.model(batch[0]).square().mean()

    def compute(self, step):
        for batch in step:
            step.backward(self.loss(batch))

    def apply(self, step):
        step.apply(self.optimizer, scheduler=self.scheduler)

    @property
    def parameters(self):
        return [p.detach().clone() for p in self.model.parameters()]


@pytest.fixture
def solo(tmp_path):
    return Solo(tmp_path, blame_grace_s=0.05)


@pytest.fixture
def patient(tmp_path):
    """For exceptions that come before the news of the broken generation."""
    return Solo(tmp_path, blame_grace_s=BROKEN_BLAME_S)


def nothing(step, training, place):
    """Goes wrong nowhere."""


def trained(hook=nothing, max_steps=STEPS):
    """A train_fn with the whole idiom; calls hook(step, training, place) at each place of it."""

    def train_fn(session):
        training = Training(session)
        for step in training.steps(max_steps):
            hook(step, training, "before")
            with step:
                hook(step, training, "start")
                for batch in step:
                    hook(step, training, "batch")
                    step.backward(training.loss(batch))
                    hook(step, training, "backward")
                hook(step, training, "reduced")
                step.report(loss=step.loss, index=step.index)
                training.apply(step)
                hook(step, training, "applied")
            hook(step, training, "after")
        return training.parameters

    return train_fn


def reference(skipped=()):
    """The same training in a plain loop of one process: parameters, and the loss of each step."""
    torch.manual_seed(3)
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    data = Numbers()
    plan = make_batches(
        data, batch_size=BATCH, micro_batch_size=None, seed=11, shuffle=True, collate=None
    ).plan  # the order alone matters here
    losses = []
    for index in range(STEPS):
        (whole,) = plan.micro_batches(index)
        loss = model(data.x[plan.sample_indices(index, whole)]).square().mean()
        losses.append(float(loss.detach()))
        if index not in skipped:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    return [p.detach() for p in model.parameters()], losses


def assert_like_a_plain_loop(ended, skipped=()):
    """Same parameters, and every step reported once, in order."""
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    wanted, losses = reference(skipped)
    torch.testing.assert_close(ended.value, wanted, rtol=1e-12, atol=1e-12)
    assert ended.steps == list(range(STEPS))
    told = {report.commit.step: report.metrics for report in ended.reports if not report.skipped}
    assert {step: metrics["loss"] for step, metrics in told.items()} == pytest.approx(
        {step: loss for step, loss in enumerate(losses) if step not in skipped}, rel=1e-12
    )


def once(step_index, place, act):
    """A hook that acts at one place of one step, the first time only."""
    calls = []

    def hook(step, training, where):
        if (step.index, where) == (step_index, place) and not calls:
            calls.append(step)
            act(step, training)

    hook.calls = calls
    return hook


def raised(ended, name):
    """The sentence of the error that ended train_fn."""
    assert isinstance(ended.last, ev.TrainFnRaised), ended.last
    assert ended.last.summary.startswith(name), ended.last.traceback
    return ended.last.summary


# --- what is committed ---


def test_an_undisturbed_run_is_a_plain_loop(solo):
    """And it ends at exactly max_steps, with the last step stable."""
    ended = solo.run(trained())
    assert_like_a_plain_loop(ended)
    assert ended.has(ev.LoopEnded)


def test_no_step_beyond_the_last_is_yielded(solo):
    seen = []
    solo.run(trained(lambda step, training, place: seen.append(step.index) if place == "before" else None))
    assert seen == list(range(STEPS))


def test_what_is_done_on_commit_is_done_once_and_in_order(solo):
    """Only for the attempt that was committed, and only once its step is stable."""
    done, attempts = [], []

    def hook(step, training, place):
        if place == "start":
            attempts.append(step.index)
            step.on_commit(lambda: done.append((step.index, step.generation)))
        if place == "applied":
            assert (step.index, step.generation) not in done
        if place == "reduced" and len(attempts) == 2:
            solo.break_generation()

    assert_like_a_plain_loop(solo.run(trained(hook)))
    assert attempts == [0, 1, 1, 2, 3]
    assert done == [(0, 1), (1, 2), (2, 2), (3, 2)]


def test_a_loop_left_early_ends_cleanly(solo):
    """`break` outside of the `with`: what was committed until then is stable."""

    def train_fn(session):
        training = Training(session)
        for step in training.steps():
            with step:
                training.compute(step)
                training.apply(step)
            if step.index == 1:
                break
        return "left"

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned) and ended.value == "left"
    assert ended.steps == [0, 1] and ended.has(ev.LoopEnded)


def test_break_and_continue_after_the_apply_are_fine(solo):
    """The step is committed by then."""

    def train_fn(session):
        training = Training(session)
        for step in training.steps():
            with step:
                training.compute(step)
                training.apply(step)
                if step.index == 2:
                    break
                continue

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert ended.steps == [0, 1, 2]


def test_a_pause_stops_at_the_end_of_a_step_and_nothing_is_done_twice(solo):
    """For a joiner: all members agree on the step after which they stop."""
    attempts = []

    def hook(step, training, place):
        if place == "start":
            attempts.append((step.index, step.generation))
        if place == "batch" and step.index == 1:
            solo.link.pause(1)

    ended = solo.run(trained(hook))
    assert_like_a_plain_loop(ended)
    assert attempts == [(0, 1), (1, 1), (2, 2), (3, 2)]
    assert ended.has(ev.FreezeAnswered)


def test_a_new_generation_is_announced_before_its_first_step(solo):
    told = []

    def train_fn(session):
        session.on_generation(lambda s: told.append((s.generation, s.replicas, s.rank, s.is_leader)))
        hook = once(1, "batch", lambda step, training: solo.break_generation())
        return trained(hook)(session)

    solo.run(train_fn)
    assert told == [(1, 1, 0, True), (2, 1, 0, True)]


# --- what is tried again ---

PLACES = ["before", "start", "batch", "backward", "reduced"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("index", [0, 1, STEPS - 1])
def test_a_generation_that_breaks_anywhere_before_the_apply_costs_no_answer(solo, place, index):
    """The step is tried again in the next generation, and the run ends as if nothing had happened."""
    hook = once(index, place, lambda step, training: solo.break_generation())
    ended = solo.run(trained(hook))
    assert hook.calls
    assert_like_a_plain_loop(ended)
    assert ended.reports[index].commit.generation == 2


@pytest.mark.parametrize("place", ["applied", "after"])
@pytest.mark.parametrize("index", [0, 1, STEPS - 1])
def test_a_generation_that_breaks_after_the_apply_does_not_repeat_the_step(solo, place, index):
    """It was committed; its report is told once it is stable, in the next generation."""
    hook = once(index, place, lambda step, training: solo.break_generation())
    ended = solo.run(trained(hook))
    assert hook.calls
    assert_like_a_plain_loop(ended)
    assert ended.reports[index].commit.generation == 1


@pytest.mark.parametrize("error", [RuntimeError, ValueError, KeyError])
@pytest.mark.parametrize("place", ["start", "batch", "reduced"])
def test_an_exception_while_the_generation_is_broken_is_a_retry(solo, error, place):
    """Judged by state, not by type: whatever the failure made user code raise belongs to the failure."""

    def act(step, training):
        solo.break_generation()
        raise error("connection closed")

    hook = once(1, place, act)
    assert_like_a_plain_loop(solo.run(trained(hook)))
    assert hook.calls


def test_an_exception_shortly_before_the_news_of_the_break_is_a_retry(patient):
    """The failure reaches user code first, and the freeze a moment later."""

    def act(step, training):
        patient.break_soon(0.1)
        raise RuntimeError("connection closed by peer")

    hook = once(1, "batch", act)
    assert_like_a_plain_loop(patient.run(trained(hook)))
    assert hook.calls


@pytest.mark.parametrize("place", ["start", "batch", "backward", "reduced", "applied"])
def test_an_exception_in_a_live_generation_is_the_users(solo, place):
    def act(step, training):
        raise ValueError("of my own making")

    assert raised(solo.run(trained(once(1, place, act))), "ValueError") == "ValueError: of my own making"


@pytest.mark.parametrize("is_broken", [False, True], ids=["live", "broken"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_a_departure_and_never_swallowed(solo, error, is_broken):
    def act(step, training):
        if is_broken:
            solo.break_generation()
        raise error("enough")

    ended = solo.run(trained(once(1, "batch", act)))
    assert isinstance(ended.last, ev.WorkerDeparted), ended.last
    assert error.__name__ in ended.last.reason


def test_the_signal_of_a_broken_attempt_passes_through_except_exception(solo):
    """A user's catch-all in the body does not keep a broken attempt alive."""
    caught, hits = [], []

    def train_fn(session):
        training = Training(session)
        for step in training.steps():
            with step:
                try:
                    if step.index == 1 and not hits:
                        hits.append(1)
                        solo.break_generation()
                    training.compute(step)
                except Exception as error:
                    caught.append(error)
                step.report(loss=step.loss)
                training.apply(step)
        return training.parameters

    assert_like_a_plain_loop(solo.run(train_fn))
    assert hits and not caught


def test_an_error_in_backward_that_the_user_catches_is_still_a_retry(solo):
    """`except RuntimeError` around a backward is common: the attempt is lost all the same."""
    hits = []

    def train_fn(session):
        training = Training(session)
        for step in training.steps():
            with step:
                for batch in step:
                    loss = training.loss(batch)
                    if step.index == 1 and not hits:
                        hits.append(1)
                        solo.break_generation()
                    try:
                        step.backward(loss)
                    except RuntimeError:
                        hits.append(2)
                step.report(loss=step.loss)
                training.apply(step)
        return training.parameters

    assert_like_a_plain_loop(solo.run(train_fn))
    assert hits == [1, 2]


def test_reports_of_a_failed_attempt_are_dropped(solo):
    def hook(step, training, place):
        if place == "start" and step.generation == 1 and step.index == 1:
            step.report(only_in_the_first_attempt=1)
        if place == "reduced" and step.generation == 1 and step.index == 1:
            solo.break_generation()

    ended = solo.run(trained(hook))
    assert_like_a_plain_loop(ended)
    assert [set(report.metrics) for report in ended.reports] == [{"loss", "index"}] * STEPS


def test_a_collective_that_fails_by_itself_breaks_the_generation(solo):
    """The worker tells of it, and the step is tried again."""
    hook = once(1, "batch", lambda step, training: solo.link.cut())
    real, fails = solo.link.is_stepping, []

    def act(step, training):
        group = training.session._replica.group
        allreduce = group.allreduce

        def broken(tensor):
            group.allreduce = allreduce
            fails.append(tensor)
            raise RuntimeError("connection reset by peer")

        group.allreduce = broken

    hook = once(1, "start", act)
    ended = solo.run(trained(hook))
    assert fails and real() is False
    assert_like_a_plain_loop(ended)
    (event,) = [event for event in ended.events if isinstance(event, ev.CollectiveBroken)]
    assert event.generation == 1 and "connection reset by peer" in event.error


def test_draws_of_a_retry_are_those_of_the_first_attempt(solo):
    """A micro-batch's dropout does not depend on how often it was tried."""
    draws = {}

    def hook(step, training, place):
        if place == "batch":
            draws.setdefault((step.index, step.generation), []).append(float(torch.rand(())))
        if place == "reduced" and (step.index, step.generation) == (1, 1):
            solo.break_generation()

    solo.run(trained(hook))
    assert draws[1, 1] == draws[1, 2]
    assert len({draw for values in draws.values() for draw in values}) == 10


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
    assert with_step_s < BROKEN_BLAME_S


def test_an_optimizer_that_raises_is_the_users(patient):
    """In the middle of an apply nothing can be tried again: the state is neither the old nor the new one."""

    class Bad(torch.optim.SGD):
        def step(self, closure=None):
            super().step()
            raise RuntimeError("optimizer bug")

    def train_fn(session):
        training = Training(session)
        bad = Bad(training.model.parameters(), lr=0.1)
        for step in training.steps():
            with step:
                training.compute(step)
                step.apply(bad)

    ended = patient.run(train_fn)
    assert raised(ended, "RuntimeError") == "RuntimeError: optimizer bug"


def test_a_reduction_that_lacks_a_micro_batch_is_refused_before_the_optimizer(solo, monkeypatch):
    """Replicas that agree on a wrong sum would pass every comparison among themselves."""
    deal = Batches.dealt
    lost = lambda self, step, replicas, rank: deal(self, step, replicas, rank)[: -1 if step == 1 else None]  # noqa: E731
    seen = []

    def train_fn(session):
        monkeypatch.setattr(Batches, "dealt", lost)
        training = Training(session)
        for step in training.steps():
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


def test_an_object_without_state_is_not_tracked(solo):
    def train_fn(session):
        with pytest.raises(NotStatefulError, match=r"session.track\(counter=int\(...\)\)"):
            session.track(counter=3)
        return trained()(session)

    assert_like_a_plain_loop(solo.run(train_fn))


def test_a_dataset_smaller_than_a_batch_is_refused():
    with pytest.raises(DatasetTooSmallError, match="holds 5 samples, fewer than one global batch of 6"):
        make_batches(Numbers(5), batch_size=6, micro_batch_size=2, seed=0, shuffle=True, collate=None)


def test_a_dataset_that_is_an_iterator_is_refused():
    with pytest.raises(SettingError, match="map-style dataset"):
        make_batches(iter([1, 2]), batch_size=1, micro_batch_size=1, seed=0, shuffle=True, collate=None)


def test_step_misuse_is_an_ordinary_error():
    """It ends the run like any error of train_fn; only the library's signals are not to be caught."""
    assert issubclass(StepMisuseError, RuntimeError)
