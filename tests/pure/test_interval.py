"""How often to write a checkpoint: costs against failures, and why."""

import math
from dataclasses import replace

import pytest

from elastic.policies.interval import PRIOR_HOST_S, Cadence, Measured, Schedule, cadence, optimal_interval_s
from elastic.settings import Interval

AUTO = Interval()
HOUR_S = 3600.0


def seconds(measured: Measured, overhead: float = 0.5) -> float:
    found = cadence(AUTO, measured, overhead).seconds
    assert found is not None
    return found


def share_lost(interval_s: float, cost_s: float, mean_s: float) -> float:
    """Daly's model of the wall time (2006, equation 20, no restart cost), as a share of the work: what is minimized."""
    return mean_s / interval_s * (math.exp((interval_s + cost_s) / mean_s) - 1) - 1


@pytest.mark.parametrize("cost_s", [0.06, 3.0, 60.0])
@pytest.mark.parametrize("mean_s", [HOUR_S, 24 * HOUR_S])
def test_no_other_interval_loses_less(cost_s, mean_s):
    best_s = optimal_interval_s(cost_s, mean_s)
    least = share_lost(best_s, cost_s, mean_s)
    assert all(share_lost(best_s * factor, cost_s, mean_s) > least for factor in (0.5, 0.8, 1.25, 2.0))


def test_where_a_checkpoint_costs_more_than_failures_leave_the_interval_is_the_time_between_them():
    assert optimal_interval_s(200.0, 100.0) == 100.0
    assert optimal_interval_s(0.0, 100.0) == 0.0


def test_the_first_order_is_youngs():
    assert optimal_interval_s(1.0, 1e6) == pytest.approx(math.sqrt(2e6), rel=1e-3)


def test_before_the_first_failure_the_prior_counts_and_later_what_was_seen():
    assert Measured(hosts=16).mean_time_between_failures_s == PRIOR_HOST_S / 16
    seen = Measured(hosts=16, failures=2000, watched_s=2000 * HOUR_S)
    assert seen.mean_time_between_failures_s == pytest.approx(HOUR_S, rel=0.25)


def test_more_failures_more_checkpoints_and_quiet_time_fewer():
    quiet = Measured(stall_s=1.0, hosts=64, watched_s=10 * HOUR_S)
    assert seconds(replace(quiet, failures=9)) < seconds(quiet) < seconds(replace(quiet, watched_s=9000 * HOUR_S))


def test_a_dearer_checkpoint_comes_less_often():
    assert seconds(Measured(stall_s=0.1)) < seconds(Measured(stall_s=10.0))


def test_the_stall_never_costs_more_than_its_share():
    often = Measured(stall_s=2.0, failures=10**6, watched_s=10**6)
    found = cadence(AUTO, often, overhead=0.01)
    assert found.seconds == 200.0
    assert "Checkpoint.overhead=0.01" in found.reason


@pytest.mark.parametrize(
    ("measured", "interval_s", "why"),
    [
        (Measured(stall_s=0.01), 10.0, "costs next to nothing"),
        (Measured(stall_s=0.0001), 2.0, "costs next to nothing"),  # the actors have work with it, too
        (Measured(stall_s=0.01, transfer_s=0.5), 50.0, "costs next to nothing"),
        (Measured(stall_s=0.01, failures=10**8, watched_s=10**6), 0.01 / 0.03, "Checkpoint.overhead"),
        (Measured(stall_s=60.0), optimal_interval_s(60.0, PRIOR_HOST_S), "cost least"),
    ],
)
def test_what_costs_next_to_nothing_is_done_however_rare_failures_may_be(measured, interval_s, why):
    found = cadence(AUTO, measured, 0.03, free_share=0.001)
    assert found.seconds == pytest.approx(interval_s) and why in found.reason


def test_what_the_first_ones_cost_does_not_put_off_the_next_ones():
    """They measure; but no more than its share of the time is spent on that, either."""
    cold = Measured(stall_s=0.015, is_cold=True)
    found = cadence(AUTO, cold, 0.03, free_share=0.001)
    assert found.seconds == 2.0 and "measures again" in found.reason
    assert cadence(AUTO, replace(cold, is_cold=False), 0.03, free_share=0.001).seconds == pytest.approx(15.0)
    assert cadence(AUTO, replace(cold, stall_s=3.0), 0.03, free_share=0.001).seconds == pytest.approx(100.0)
    assert cadence(AUTO, cold, 0.03) == cadence(AUTO, replace(cold, is_cold=False), 0.03), "an upload is not free"


def test_the_third_one_ends_the_start():
    schedule = Schedule(AUTO, 0.03, free_share=0.001)
    intervals_s = []
    for stall_s in (0.015, 0.02, 0.004):
        schedule.stalled(stall_s)
        intervals_s.append(schedule.cadence(0.0).seconds)
    assert intervals_s == [2.0, 2.0, pytest.approx(4.0)]


def test_the_next_upload_waits_for_the_last_one():
    found = cadence(AUTO, Measured(stall_s=0.0, transfer_s=90.0), overhead=0.03)
    assert found.seconds == 90.0
    assert "90 s to arrive" in found.reason


def test_the_reason_names_what_it_follows_from():
    found = cadence(AUTO, Measured(stall_s=0.06, failures=3, watched_s=7200.0), overhead=0.03)
    assert "a stall of 0.06 s" in found.reason and "3 failures in 7200 s" in found.reason


def test_without_a_measurement_the_first_step_is_taken():
    assert cadence(AUTO, Measured(), overhead=0.03).is_due(1, 0.0)


@pytest.mark.parametrize(
    ("interval", "reason"),
    [
        (Interval(steps=50), "set to every 50 steps"),
        (Interval(seconds=600.0), "set to every 600 s"),
        (Interval(steps=50, seconds=600.0), "set to every 50 steps or 600 s"),
    ],
)
def test_what_the_user_has_set_is_taken_as_it_is(interval, reason):
    found = cadence(interval, Measured(stall_s=99.0, transfer_s=9999.0), overhead=0.001)
    assert found == Cadence(steps=interval.steps, seconds=interval.seconds, reason=reason)


def test_due_is_whichever_comes_first_and_never_without_a_new_step():
    found = cadence(Interval(steps=50, seconds=600.0), Measured(), overhead=0.03)
    assert not found.is_due(49, 599.0)
    assert found.is_due(50, 1.0) and found.is_due(1, 600.0)
    assert not found.is_due(0, 10_000.0)


def done_steps(schedule: Schedule, steps: int, stall_s: float = 0.0, step_s: float = 1.0) -> list[int]:
    """After which steps it is done; each takes step_s, and doing it stall_s."""
    done, now_s = [], 0.0
    for step in range(steps):
        now_s += step_s
        if schedule.is_due(step, now_s):
            done.append(step)
            schedule.done(step, now_s)
            schedule.stalled(stall_s)
            now_s += stall_s
    return done


@pytest.mark.parametrize(
    ("interval", "steps"),
    [
        (Interval(steps=4), [0, 4, 8]),
        (Interval(steps=1), [*range(10)]),
        (Interval(seconds=2.5), [0, 3, 6, 9]),
        (Interval(steps=5, seconds=2.0), [0, 2, 4, 6, 8]),
    ],
)
def test_the_first_step_is_taken_and_then_as_the_user_says(interval, steps):
    assert done_steps(Schedule(interval, 0.03), 10) == steps


def test_a_measured_schedule_keeps_the_stalls_within_their_share():
    often = Schedule(AUTO, 0.03)
    often.watched(failures=10**6, hosts=1, watched_s=10.0, now_s=0.0)
    assert done_steps(often, 350, stall_s=0.3) == [*range(0, 350, 10)]


def test_a_measured_schedule_follows_the_failures_that_were_seen():
    schedule = Schedule(AUTO, 0.03)
    schedule.stalled(0.06)
    schedule.watched(failures=0, hosts=4, watched_s=0.0, now_s=100.0)
    assert schedule.cadence(100.0) == cadence(AUTO, Measured(stall_s=0.06, hosts=4), 0.03)
    schedule.watched(failures=3, hosts=4, watched_s=7200.0, now_s=9000.0)
    seen = Measured(stall_s=0.06, hosts=4, failures=3, watched_s=7300.0)
    assert schedule.cadence(9100.0) == cadence(AUTO, seen, 0.03)


def test_after_a_restore_to_an_earlier_step_it_is_due_at_once():
    schedule = Schedule(Interval(steps=100), 0.03)
    schedule.done(50, 0.0)
    assert not schedule.is_due(149, 1.0)
    assert schedule.is_due(150, 1.0)
    assert schedule.is_due(20, 1.0)


def test_a_change_of_the_interval_is_told_once_and_noise_is_not():
    schedule = Schedule(AUTO, 0.03)
    assert schedule.news(0.0) == Cadence(steps=1, seconds=None, reason=cadence(AUTO, Measured(), 0.03).reason)
    assert schedule.news(0.0) is None
    schedule.stalled(1.0)
    told = schedule.news(0.0)
    assert told is not None and "a stall of 1 s" in told.reason
    schedule.stalled(1.5)
    assert schedule.news(0.0) is None
    for _ in range(20):
        schedule.stalled(5.0)
    assert schedule.news(0.0) is not None


def test_a_slow_start_is_not_taken_for_what_one_costs():
    schedule = Schedule(AUTO, 0.03)
    for stall_s, counts_s in ((0.018, 0.018), (0.011, 0.011), (0.012, 0.011), (0.016, 0.012)):
        schedule.stalled(stall_s)
        assert schedule.cadence(0.0).seconds == pytest.approx(cadence(AUTO, Measured(stall_s=counts_s), 0.03).seconds)


def test_what_the_user_has_set_is_told_once():
    schedule = Schedule(Interval(steps=10), 0.03)
    told = schedule.news(0.0)
    assert told is not None and told.reason == "set to every 10 steps"
    schedule.stalled(99.0)
    assert schedule.news(1e6) is None


def test_a_schedule_knows_how_long_the_last_one_took_to_arrive():
    schedule = Schedule(AUTO, 0.5)
    schedule.stalled(0.01)
    before_s = schedule.cadence(0.0).seconds
    schedule.arrived(10 * before_s)
    assert schedule.cadence(0.0).seconds >= 10 * before_s
