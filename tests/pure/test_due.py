"""When a snapshot is due: by steps, by seconds, or so often that the measured stalls stay below their share."""

import math

import pytest

from elastic.policies.due import Due
from elastic.settings import Interval

OVERHEAD = 0.03


def due_steps(due: Due, steps: int, step_s: float = 1.0, stall_s: float = 0.0) -> list[int]:
    """After which steps it is done; each takes step_s, and doing it stall_s."""
    done, now_s = [], 0.0
    for step in range(steps):
        now_s += step_s
        due.took_step(step_s)
        if due.is_due(step, now_s):
            done.append(step)
            due.done(step, now_s)
            due.stalled(stall_s)
            now_s += stall_s
    return done


def test_by_steps_it_is_due_where_the_step_is_divisible():
    assert due_steps(Due(Interval(steps=4), OVERHEAD), 10) == [0, 4, 8]
    assert due_steps(Due(Interval(steps=1), OVERHEAD), 4) == [0, 1, 2, 3]


def test_by_seconds_it_is_due_at_the_first_step_and_when_they_have_passed():
    assert due_steps(Due(Interval(seconds=2.5), OVERHEAD), 9) == [0, 3, 6]


def test_of_both_whichever_comes_first_counts():
    assert due_steps(Due(Interval(steps=5, seconds=2.0), OVERHEAD), 9) == [0, 2, 4, 5, 7]


def test_a_measured_interval_is_every_step_where_that_is_cheap():
    assert due_steps(Due(Interval(), OVERHEAD), 5, step_s=1.0, stall_s=0.03) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("stall_s", "every"), [(0.031, 2), (0.06, 2), (0.3, 10), (3.0, 100)])
def test_else_it_is_the_shortest_that_keeps_within_its_share(stall_s, every):
    done = due_steps(Due(Interval(), OVERHEAD), 350, step_s=1.0, stall_s=stall_s)
    gaps = {after - before for before, after in zip(done, done[1:], strict=False)}
    assert gaps == {every}
    assert stall_s <= OVERHEAD * every * 1.0
    assert stall_s > OVERHEAD * (every - 1) * 1.0


def test_it_follows_what_is_measured():
    due = Due(Interval(), OVERHEAD)
    due.took_step(1.0)
    due.stalled(0.3)
    due.done(0, 0.0)
    assert due.every_steps == 10
    for _ in range(60):
        due.stalled(0.03)
    assert due.every_steps == pytest.approx(1, abs=1)
    for _ in range(60):
        due.took_step(0.01)
    assert due.every_steps == pytest.approx(100, abs=5)


def test_after_a_restore_to_an_earlier_step_it_is_due_again():
    due = Due(Interval(), OVERHEAD, last_step=50, last_s=0.0, step_s=1.0, stall_s=3.0)
    assert not due.is_due(149, 1.0)
    assert due.is_due(150, 1.0)
    assert due.is_due(20, 1.0)


def test_nothing_is_known_at_the_start():
    due = Due(Interval(), OVERHEAD)
    assert due.every_steps == 1
    assert due.is_due(0, 0.0)
    assert Due(Interval(seconds=100.0), OVERHEAD).is_due(7, -math.inf)
