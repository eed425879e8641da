"""Sizes of gradient buckets that are tried while a run trains: which comes next, which stays, what disturbs it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from elastic.control.overlap import Search, Trials, best_size, next_size
from elastic.control.tuning import NOT_TUNED, Tuning
from elastic.control.values import CommitId, StepReport, StepTimes
from elastic.errors import SettingError

TRIALS = Trials(start_bytes=64, least_bytes=4, most_bytes=1024, steps=4, settle_steps=2)
TRIAL = TRIALS.steps + TRIALS.settle_steps


@pytest.mark.parametrize(
    ("tried", "following", "best"),
    [
        ({64: 1.0}, 256, 64),
        ({64: 1.0, 256: 0.9}, 1024, 256),
        ({64: 1.0, 256: 0.9, 1024: 0.8}, None, 1024),
        ({64: 1.0, 256: 0.9, 1024: 0.95}, None, 256),
        ({64: 1.0, 256: 0.98}, 16, 64),
        ({64: 1.0, 256: 1.2}, 16, 64),
        ({64: 1.0, 256: 1.2, 16: 0.8}, 4, 16),
        ({64: 1.0, 256: 1.2, 16: 0.8, 4: 0.7}, None, 4),
        ({64: 1.0, 256: 1.2, 16: 0.99}, None, 64),
    ],
)
def test_larger_ones_come_first_as_long_as_they_are_better_by_enough(tried, following, best):
    assert next_size(tried, TRIALS) == following
    assert best_size(tried, TRIALS) == best


@pytest.mark.parametrize(
    "wrong",
    [
        {"least_bytes": 0},
        {"least_bytes": 65},
        {"most_bytes": 63},
        {"factor": 1},
        {"gain": 1.0},
        {"gain": -0.1},
        {"steps": 0},
        {"settle_steps": -1},
    ],
)
def test_numbers_that_can_not_work_are_refused(wrong):
    with pytest.raises(SettingError):
        replace(TRIALS, **wrong)


class Run:
    """A run that does what is asked of it; its steps take what `took_s` says for a size."""

    def __init__(self, took_s: Callable[[int], float], search: Search | None = None) -> None:
        self.search, self.took_s = search or Search(TRIALS), took_s
        self.tuning, self.replicas, self.generation, self.number, self.at_s = NOT_TUNED, 4, 1, 0, 100.0
        self.asked: list[int | None] = []
        self.is_deaf = False

    def step(self, samples: int = 8, **told: Any) -> Tuning | None:
        """One stable step."""
        since_s, times = self.at_s, told.pop("times", {})
        self.at_s += self.took_s(self.tuning.bucket_bytes or TRIALS.start_bytes) + sum(times.values())
        report = StepReport(
            commit=CommitId(1, self.generation, 1, self.number, "l"),
            metrics={},
            replicas=self.replicas,
            samples=samples,
            started_at_s=since_s,
            committed_at_s=self.at_s,
            tuning=self.tuning,
            times=StepTimes(since_s=since_s, **times),
            **told,
        )
        self.number += 1
        wish = self.search.heed(report)
        if wish is not None:
            self.asked.append(wish.bucket_bytes)
        return wish

    def steps(self, count: int, **told: Any) -> "Run":
        for _ in range(count):
            wish = self.step(**told)
            if wish is not None and not self.is_deaf:
                self.tune(wish)
        return self

    def tune(self, wish: Tuning) -> None:
        self.tuning, self.generation = wish.over(self.tuning), self.generation + 1


def valley(best: int, depth: float = 0.5) -> Callable[[int], float]:
    """Steps are shortest with buckets of this size."""
    return lambda size: 1.0 - depth + depth * abs(size.bit_length() - best.bit_length()) / 10


@pytest.mark.parametrize("best", [4, 16, 64, 256, 1024])
def test_the_best_size_is_found_wherever_it_is(best):
    run = Run(valley(best)).steps(10 * TRIAL)
    assert (run.search.chosen, run.search.is_over) == (best, True)
    assert (run.tuning.bucket_bytes or 64) == best
    asked = len(run.asked)
    assert len(run.steps(10 * TRIAL).asked) == asked <= 5, "then things are left alone"


def test_without_a_gain_all_stays_as_it_was():
    run = Run(lambda size: 1.0 - size / 1e6).steps(10 * TRIAL)
    assert run.asked == [256, 16, 64] and run.search.chosen == 64
    assert run.search.is_over


def test_the_first_steps_at_a_size_and_single_slow_ones_do_not_count():
    times = iter([9.0, 9.0, 1.0, 1.0, 5.0, 1.0])
    run = Run(lambda size: next(times)).steps(TRIAL)
    assert run.search.tried == {64: 1.0} and run.asked == [256]


def test_what_has_nothing_to_do_with_buckets_does_not_count():
    beside = {"data_s": 0.5, "stall_s": 0.25, "evaluation_s": 1.0, "callback_s": 2.0}
    run = Run(lambda size: 1.0).steps(TRIAL, times=beside)
    assert run.search.tried == {64: pytest.approx(1.0)}


def test_the_updates_of_a_step_count_together():
    run = Run(lambda size: 1.0)
    for _ in range(TRIAL):
        run.steps(2, samples=0).steps(1)
    assert run.search.tried[64] == pytest.approx(3.0)


def test_steps_that_were_skipped_and_the_rest_of_an_epoch_do_not_count():
    took_s: Iterator[float] = iter([1.0] * 3 + [0.1, 0.2] + [1.0] * 3)
    run = Run(lambda size: next(took_s)).steps(3).steps(1, skipped="no").steps(1, samples=3)
    assert run.search.tried == {}
    assert run.steps(3).search.tried == {64: 1.0}
    single = Search(replace(TRIALS, steps=1, settle_steps=0))
    assert Run(lambda size: 1.0, single).steps(1, skipped="no").steps(1).search.tried == {64: 1.0}


def test_a_failure_in_the_middle_of_a_trial_begins_the_trial_anew():
    run = Run(valley(256)).steps(TRIAL - 1)
    run.generation += 1
    assert run.steps(TRIAL - 1).search.tried == {}
    assert list(run.steps(1).search.tried) == [64]


def test_another_size_of_the_group_begins_all_anew_from_the_size_there_is():
    run = Run(valley(1024)).steps(TRIAL + 3)
    assert (list(run.search.tried), run.tuning.bucket_bytes) == ([64], 256)
    run.replicas, run.generation = 3, run.generation + 1
    assert run.steps(2).search.tried == {}
    assert run.steps(10 * TRIAL).search.chosen == 1024
    assert list(run.search.tried) == [256, 1024]


def test_so_does_another_batch_and_a_size_that_somebody_else_has_asked_for():
    run = Run(valley(64)).steps(TRIAL - 1)
    run.tune(Tuning(batch_size=4))
    run.steps(2)
    run.tune(Tuning(bucket_bytes=16))
    assert run.steps(TRIAL + 1).asked == [64]
    assert list(run.search.tried) == [16]
    assert run.steps(10 * TRIAL).search.chosen == 64


def test_a_wish_that_was_lost_is_asked_again():
    run = Run(valley(256))
    run.is_deaf = True
    run.steps(TRIAL).steps(8 * TRIALS.steps)
    assert run.asked == [256] * 3
    run.is_deaf = False
    assert run.steps(20 * TRIAL).search.chosen == 256


def test_it_ends_however_often_it_must_begin_anew():
    run = Run(valley(4))
    for _ in range(100):
        run.steps(TRIAL)
        run.replicas = 7 - run.replicas
    assert len(run.asked) <= 13 and run.steps(TRIAL).search.is_over


def test_a_run_that_is_taken_up_again_begins_with_the_size_it_has():
    run = Run(valley(256))
    run.tuning = Tuning(bucket_bytes=256)
    assert list(run.steps(TRIAL).search.tried) == [256]
    assert run.steps(10 * TRIAL).search.chosen == 256
