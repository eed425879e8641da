"""Sizes and learning-rate factors: the same on every worker, whatever failed in between; and what users see of them."""

import math
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.callbacks import Callback, LinearLR, ScaledLR, SquareRootLR, WorkerCallback, by_place
from elastic.control.pace import Pace, next_pace, resize_of
from elastic.errors import SettingError

few = settings(deadline=None, max_examples=60)
PER_REPLICA = 8


def history(sizes, rule, per_replica=PER_REPLICA):
    """The paces of committed steps of these sizes."""
    paces: list[Pace] = []
    for step, replicas in enumerate(sizes):
        paces.append(next_pace(paces[-1] if paces else None, step, replicas, replicas * per_replica, rule))
    return paces


def factors(sizes, rule):
    return [pace.factor(step) for step, pace in enumerate(history(sizes, rule))]


# --- rules ---


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (None, [1, 1, 1, 1]),
        (LinearLR(), [1, 2, 0.5, 1]),
        (SquareRootLR(), [1, math.sqrt(2), math.sqrt(0.5), 1]),
        (ScaledLR(rule=lambda batch, reference: 3.0), [3, 3, 3, 3]),
        (LinearLR(reference_batch=8), [2, 4, 1, 2]),
    ],
    ids=["none", "linear", "square root", "one's own", "against a reference that was set"],
)
def test_a_rule_says_the_factor(rule, wanted):
    """The batch of the first step is the reference unless one is set."""
    assert factors([2, 4, 1, 2], rule) == pytest.approx(wanted, rel=1e-15)


def test_a_constant_batch_needs_no_factor():
    """Whatever the number of replicas."""
    pace = None
    for step, replicas in enumerate([3, 2, 5]):
        pace = next_pace(pace, step, replicas, 24, LinearLR(warmup_steps=4))
        assert (pace.replicas, pace.factor(step)) == (replicas, 1.0)


@pytest.mark.parametrize("warmup_steps", [0, 100])
@pytest.mark.parametrize("replicas", [2, 4])
def test_a_run_that_begins_with_an_export_counts_its_steps_anew(warmup_steps, replicas):
    """The rate that it had reached is where it goes on from; a warm-up that lies ahead of it is over."""
    rule = LinearLR(warmup_steps=warmup_steps)
    left = next_pace(next_pace(None, 449, 1, 8, rule), 450, 2, 16, rule)
    paces = [next_pace(left, 1, replicas, 8 * replicas, rule)]
    for step in range(2, 200):
        paces.append(next_pace(paces[-1], step, replicas, 8 * replicas, rule))
    rates = [pace.factor(step) for step, pace in enumerate(paces, 1)]
    assert rates[-1] == replicas and rates == sorted(rates)
    assert rates[0] == (2.0 if warmup_steps else replicas)


def test_a_factor_rises_over_the_warm_up_and_falls_at_once():
    rule = LinearLR(warmup_steps=4)
    assert factors([1, 2, 2, 2, 2, 2, 2, 1, 1], rule) == [1, 1, 1.25, 1.5, 1.75, 2, 2, 1, 1]


def test_a_resize_in_the_middle_of_a_warm_up_goes_on_from_the_factor_in_use():
    rule = LinearLR(warmup_steps=4)
    assert factors([1, 2, 2, 3, 3, 3, 3, 3], rule) == [1, 1, 1.25, 1.5, 1.875, 2.25, 2.625, 3]


def test_a_rule_that_is_another_one_in_the_next_life_of_a_run_counts_from_then_on():
    last = history([2], None)[0]
    doubled = next_pace(last, 1, 2, last.batch, LinearLR(reference_batch=last.batch // 2))
    assert doubled.factor(1) == 2.0
    assert next_pace(doubled, 2, 2, last.batch, None).factor(2) == 1.0
    rule = LinearLR(reference_batch=last.batch // 2, warmup_steps=4)
    slowly = next_pace(last, 1, 2, last.batch, rule)
    assert [next_pace(slowly, step, 2, last.batch, rule).factor(step) for step in (1, 3, 9)] == [1.0, 1.5, 2.0]


def test_a_warm_up_ends_with_its_rule():
    last = history([2, 1, 2], LinearLR(warmup_steps=4))[-1]
    assert last.factor(3) < 1.0
    assert next_pace(last, 3, 2, last.batch, None).factor(3) == 1.0


def test_replicas_that_do_not_change_the_batch_do_not_start_a_warm_up_again():
    last = history([1, 2, 2], LinearLR(warmup_steps=4))[-1]
    again = next_pace(last, 3, 5, last.batch, LinearLR(warmup_steps=4))
    assert again == replace(last, replicas=5)


@few
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    warmup_steps=st.integers(0, 5),
    failed=st.lists(st.integers(1, 9), max_size=40),
)
def test_failed_attempts_leave_nothing_behind(sizes, warmup_steps, failed):
    """The pace follows from committed steps alone: attempts of other sizes in between change no factor."""
    rule = SquareRootLR(warmup_steps=warmup_steps)
    last, seen = None, []
    for step, replicas in enumerate(sizes):
        for attempt in failed[step : step + 1]:
            next_pace(last, step, attempt, attempt * PER_REPLICA, rule)
        last = next_pace(last, step, replicas, replicas * PER_REPLICA, rule)
        seen.append(last.factor(step))
    assert seen == factors(sizes, rule)


@few
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=40), warmup_steps=st.integers(0, 5))
def test_a_factor_is_between_the_rules_values_and_reaches_them(sizes, warmup_steps):
    rule = LinearLR(warmup_steps=warmup_steps)
    steps = [*sizes, *[sizes[-1]] * (warmup_steps + 1)]
    seen = factors(steps, rule)
    targets = [size / steps[0] for size in steps]
    assert min(targets) <= min(seen) and max(seen) <= max(targets)
    assert all(factor <= target for factor, target in zip(seen, targets, strict=True)), "a small batch, a large rate"
    assert seen[-1] == targets[-1]


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_rule_that_gives_no_positive_number_is_refused(value):
    with pytest.raises(SettingError, match="for a batch of 16 and a reference of 16: it must give a positive number"):
        next_pace(None, 0, 2, 16, ScaledLR(rule=lambda batch, reference: value))


# --- the event ---


def test_a_resize_tells_sizes_batches_and_rates_before_and_after():
    paces = history([2, 3], LinearLR())
    resize = resize_of(paces[0], paces[1], 1, (0.5, 2.0))
    assert (resize.step, resize.replicas_before, resize.replicas) == (1, 2, 3)
    assert (resize.batch_before, resize.batch) == (16, 24)
    assert (resize.rates_before, resize.rates) == ((0.5, 2.0), (0.75, 3.0))


def test_the_rates_of_a_resize_are_those_of_its_step():
    """In the first step of a warm-up they are still what they were."""
    paces = history([2, 3], LinearLR(warmup_steps=4))
    resize = resize_of(paces[0], paces[1], 1, (1.0,))
    assert resize.rates_before == resize.rates == (1.0,)


# --- callbacks ---


@pytest.mark.parametrize("kind", [LinearLR, SquareRootLR])
def test_rules_travel_to_workers_and_stay_as_they_are(kind):
    rule = kind(warmup_steps=5, reference_batch=64)
    copy = pickle.loads(pickle.dumps(rule))
    assert copy == rule and copy.rule(128, 64) == rule.rule(128, 64)
    with pytest.raises(FrozenInstanceError):
        rule.warmup_steps = 6


@pytest.mark.parametrize(
    ("numbers", "named"),
    [({"warmup_steps": -1}, "LinearLR.warmup_steps=-1"), ({"reference_batch": 0}, "LinearLR.reference_batch=0")],
)
def test_numbers_that_cannot_work(numbers, named):
    with pytest.raises(SettingError, match=named):
        LinearLR(**numbers)


def test_callbacks_are_told_apart_by_where_they_run():
    here, rule, there = Callback(), LinearLR(), WorkerCallback()
    assert by_place([here, rule, there]) == ((here,), (rule, there))
    assert by_place([]) == ((), ())


def test_two_rules_are_refused():
    with pytest.raises(SettingError, match="LinearLR and SquareRootLR: only one"):
        by_place([LinearLR(), SquareRootLR()])


def test_what_is_no_callback_is_refused():
    with pytest.raises(SettingError, match="WorkerCallback, which runs on every worker"):
        by_place([print])
