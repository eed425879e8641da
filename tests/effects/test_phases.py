"""Effect. Several updates in a step: each is a transaction of its own, on the same samples."""

from types import SimpleNamespace

import pytest

from elastic.control import events as ev
from elastic.control.values import NONE_LEFT_OUT, Fork
from elastic.train.replica import Replica
from tests.effects.idiom import Training, raised


def in_turns(hook, phases=2, max_steps=3):
    """A train_fn; returns what it saw: (step, phase, number, samples)."""

    def train_fn(session):
        training, seen = Training(session), []
        for step in session.steps(training.batches, max_steps=max_steps, phases=phases):
            with step:
                ids = []
                for batch in step:
                    ids += batch[1].tolist()
                    step.backward(training.loss(batch))
                hook(step)
                training.apply(step)
                seen.append((step.index, step.phase, step.number, ids))
        return seen

    return train_fn


@pytest.mark.parametrize(("phases", "left_out"), [(1, [4, 5]), (2, [2])])
def test_what_a_rewind_leaves_out_is_counted_as_reports_count(phases, left_out):
    fork = Fork(incarnation=2, generation=1, step=3, skip=(4, 6))
    replica = SimpleNamespace(view=SimpleNamespace(left_out=(), forks=(fork,)), phases=phases)
    assert [index for index in range(8) if Replica.why_left_out(replica, index)] == left_out


def left_out_of(*forks, phases=1):
    replica = SimpleNamespace(view=SimpleNamespace(left_out=(), forks=forks), phases=phases)
    return [index for index in range(12) if Replica.why_left_out(replica, index)]


def test_what_was_left_out_stays_so_until_a_rewind_says_otherwise():
    first = Fork(incarnation=1, generation=2, step=3, skip=(4, 8))
    crashed = Fork(incarnation=2, generation=1, step=3)
    assert left_out_of(first, crashed) == [4, 5, 6, 7]
    assert left_out_of(first, Fork(incarnation=2, generation=1, step=5, skip=NONE_LEFT_OUT)) == [4, 5]
    assert left_out_of(first, crashed, Fork(incarnation=3, generation=1, step=3, skip=(6, 10))) == [6, 7, 8, 9]
    taken_back = Fork(incarnation=3, generation=1, step=3, skip=NONE_LEFT_OUT)
    assert left_out_of(first, taken_back, Fork(incarnation=4, generation=1, step=2)) == []


def test_phases_of_a_step_have_its_samples(solo):
    ended = solo.run(in_turns(lambda step: None))
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert [row[:3] for row in ended.value] == [(n // 2, n % 2, n) for n in range(6)]
    assert all(ended.value[n][3] == ended.value[n + 1][3] for n in (0, 2, 4))
    assert ended.steps == list(range(6))
    assert [report.samples for report in ended.reports] == [0, 6, 0, 6, 0, 1]  # an epoch of 13, each counted once


def test_a_break_between_two_updates_repeats_neither(solo):
    broken = []

    def hook(step):
        if step.number == 3 and not broken:
            broken.append(step.number)
            solo.break_generation()

    ended = solo.run(in_turns(hook))
    assert broken == [3]
    assert [row[2] for row in ended.value] == list(range(6))


def test_an_evaluation_comes_between_steps_not_between_updates(solo):
    seen = []

    def train_fn(session):
        session.evaluate_every(1, lambda evaluation: seen.append(evaluation.step) or {})
        return in_turns(lambda step: None)(session)

    assert isinstance(solo.run(train_fn).last, ev.TrainFnReturned)
    assert seen == [0, 1, 2]


def test_at_least_one(solo):
    assert "phases=0" in raised(solo.run(in_turns(lambda step: None, phases=0)), "SettingError")
