"""Effect. A loss that is not finite, where nobody else can compute it: the user's, before anything is applied."""

import math
import time
from types import SimpleNamespace

import pytest
import torch

from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.control.integrity import Account, table
from elastic.errors import AttemptBroken
from elastic.train import tree
from elastic.train.cursor import Cursor
from elastic.train.flight import FlightPage, read_page
from elastic.train.watch import Watch
from tests.effects.idiom import STEPS, Training, raised

NAP_S, BUSY_S = 0.02, 600.0


@pytest.fixture
def page(tmp_path):
    return FlightPage(tmp_path / "page")


def trains(loss_of, **track):
    """A train_fn whose loss is what loss_of(step, loss) says; returns the parameters after each step."""

    def train_fn(session):
        training = Training(session)
        session.track(**track)
        seen.clear()
        for step in training.steps():
            with step:
                for batch in step:
                    step.backward(loss_of(step, training.loss(batch)))
                training.apply(step)
            seen.append(training.parameters)
        return seen

    seen: list[list[torch.Tensor]] = []
    train_fn.seen = seen
    return train_fn


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_it_ends_the_run_before_it_is_applied(solo, value):
    train_fn = trains(lambda step, loss: loss + value if step.index == 2 else loss)
    sentence = raised(solo.run(train_fn), "NonFiniteLossError")
    assert "step 2" in sentence and "'w0': 0" in sentence and "the model's or the data's" in sentence
    assert len(train_fn.seen) == 2
    assert all(torch.isfinite(p).all() for p in train_fn.seen[-1])


def test_a_gradient_scaler_is_left_to_drop_it(solo):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    losses = []

    def train_fn(session):
        training = Training(session)
        session.track(scaler=scaler)
        for step in training.steps():
            with step:
                for batch in step:
                    loss = training.loss(batch)
                    step.backward(loss * math.inf if step.index == 1 else loss, scaler=scaler)
                step.apply(training.optimizer, scaler=scaler)
            losses.append(step.loss)
        return training.parameters

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert [math.isfinite(loss) for loss in losses] == [True, False, True, True]
    assert all(torch.isfinite(p).all() for p in ended.value)


def test_a_gradient_scaler_that_is_disabled_drops_nothing(solo):
    """`enabled=use_amp` is how most code is written."""
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    train_fn = trains(lambda step, loss: loss + math.nan if step.index == 2 else loss, scaler=scaler)
    assert "step 2" in raised(solo.run(train_fn), "NonFiniteLossError")
    assert len(train_fn.seen) == 2


def test_a_step_that_is_skipped_is_not_judged(solo):
    def train_fn(session):
        training = Training(session)
        for step in training.steps():
            with step:
                for number, batch in enumerate(step):
                    if step.index == 1 and number == 1:
                        step.skip("nan")
                        break
                    step.backward(training.loss(batch) * (math.nan if step.index == 1 else 1.0))
                if not step.skipped:
                    training.apply(step)

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert ended.steps == list(range(STEPS))


def test_a_worker_that_computes_a_digest_is_not_taken_for_hung(tmp_path):
    """It reads all of the state, which takes many times as long as a step where the state is large."""
    page, seen = FlightPage(tmp_path / "page"), []
    page.note(Flying.IN_BODY)

    class Tracked:
        def flatten(self):
            seen.append(read_page(page.path))
            return tree.flatten({})

    Watch(SimpleNamespace(replicas=2, tracked=Tracked(), page=page), digest_steps=1).digest_before(1)
    (inside,) = seen
    assert (inside.phase, inside.remark) == (Flying.SLOW, "reading all state for a vote")
    after = read_page(page.path)
    assert (after.phase, after.remark) == (Flying.IN_BODY, "")


def leader(page, digest_steps=None, rank=0, shard=0):
    """The watch of one of two replicas, with a state that takes a while to be read."""

    class Tracked:
        def flatten(self):
            time.sleep(NAP_S)
            return tree.flatten({})

    replica = SimpleNamespace(
        replicas=2,
        rank=rank,
        shard=shard,
        tracked=Tracked(),
        page=page,
        cursor=Cursor(),
        link=SimpleNamespace(corrupt=lambda *_: None),
        group=SimpleNamespace(view=SimpleNamespace(members=[SimpleNamespace(worker=name) for name in ("w0", "w1")])),
    )
    return Watch(replica, digest_steps)


def test_the_leader_has_votes_keep_a_distance_to_each_other_by_what_they_cost(page):
    watch = leader(page)
    assert [step for step in range(301) if watch.vote(step, time.monotonic())] == [99, 199, 299]
    watch.digest()
    assert not watch.vote(199, time.monotonic() + 100 * NAP_S)
    assert watch.vote(199, time.monotonic() + BUSY_S + 201 * NAP_S)


def test_nobody_else_calls_for_a_vote_and_nobody_does_where_the_user_has_said_when(page):
    assert not leader(page, rank=1).vote(99, time.monotonic())
    assert not leader(page, shard=1).vote(99, time.monotonic()), "one clock, or shards would vote at different steps"
    assert not leader(page, digest_steps=100).vote(99, time.monotonic())
    assert leader(page, digest_steps=100).digest_before(100)


def test_it_takes_place_where_the_step_before_it_has_said_so(page):
    watch = leader(page)
    assert not watch.digest_before(100)
    watch._replica.cursor.is_compared = True
    assert watch.digest_before(100)


def test_a_vote_that_has_ended_in_a_tie_is_taken_again_whatever_it_costs(page):
    watch = leader(page, rank=1)
    with pytest.raises(AttemptBroken):
        watch.check(200, 1, torch.tensor(table(Account(digest=3), 0, 2)), is_skipped=False)
    assert [step for step in range(301) if watch.vote(step, 0.0)] == [199]


@pytest.mark.parametrize("digest_steps", [-1, -100])
def test_a_negative_number_of_steps_between_votes_is_refused(solo, digest_steps):
    def train_fn(session):
        session.prepare(torch.nn.Linear(3, 1), digest_steps=digest_steps)

    assert f"digest_steps={digest_steps}" in raised(solo.run(train_fn), "SettingError")
