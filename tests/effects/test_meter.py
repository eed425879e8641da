"""Effect. What the time between two commits went into, as the report of a step tells it."""

import time

import pytest

from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.train.flight import FlightPage
from elastic.train.meter import Meter
from tests.effects.test_evaluation import evaluating

NAP_S, BUSY_S = 0.02, 30.0  # a nap takes no longer, on a busy machine, too
APART_S = NAP_S / 2  # a machine's two clocks may be so far from each other in a step; less than anything counted twice


@pytest.fixture
def page(tmp_path):
    page = FlightPage(tmp_path / "page")
    yield page
    page.remove()


def during(page: FlightPage, phase: Flying) -> None:
    page.note(phase)
    time.sleep(NAP_S)
    page.note(Flying.OUTSIDE)


def test_each_wait_is_told_by_its_name(page):
    meter = Meter(page)
    during(page, Flying.FETCHING)
    during(page, Flying.COMPUTING)
    during(page, Flying.REDUCING)
    with meter.stalling():
        time.sleep(NAP_S)
    with meter.evaluating():
        time.sleep(NAP_S)
    times = meter.lap(time.time())
    told = (times.data_s, times.wait_s, times.stall_s, times.evaluation_s)
    assert all(NAP_S <= seconds < BUSY_S for seconds in told), times
    assert page.computing_s >= 2 * NAP_S, "loading counts as computing where replicas are compared"


def test_a_lap_begins_where_the_last_one_ended(page):
    meter = Meter(page)
    during(page, Flying.FETCHING)
    first = meter.lap(1000.0)
    second = meter.lap(1001.5)
    assert first.data_s > 0 and second.since_s == 1000.0
    assert (second.data_s, second.wait_s, second.stall_s, second.evaluation_s) == (0.0, 0.0, 0.0, 0.0)


def test_what_was_before_a_generation_has_no_part_in_its_first_step(page):
    meter = Meter(page)
    during(page, Flying.FETCHING)
    with meter.stalling():
        time.sleep(NAP_S)
    meter.restart(2000.0)
    times = meter.lap(2001.0)
    assert times.since_s == 2000.0 and times.data_s == times.stall_s == 0.0


def test_a_wait_that_breaks_off_counts(page):
    meter = Meter(page)
    with pytest.raises(ValueError), meter.evaluating():
        time.sleep(NAP_S)
        raise ValueError
    assert meter.lap(1.0).evaluation_s >= NAP_S


def test_the_reports_of_a_run_leave_no_gap_and_tell_what_they_waited_for(solo):
    """Each step begins where the one before it was committed; an evaluation belongs to the step behind it."""
    began_s = time.time()

    def act(evaluation, training):
        time.sleep(NAP_S)
        return {"nothing": 0.0}

    ended = solo.run(evaluating(act, every=2))
    (parked,) = [event for event in ended.events if isinstance(event, ev.WorkerParked)]
    (formed,) = [event for event in ended.events if isinstance(event, ev.Formed)]
    (left,) = [event for event in ended.events if isinstance(event, ev.LoopEnded)]
    assert began_s <= parked.entered_s <= ended.reports[0].times.since_s <= ended.reports[0].started_at_s
    assert formed.healing_s == 0.0, "nobody was behind"
    since_s = [report.times.since_s for report in ended.reports[1:]] + [left.times.since_s]
    assert since_s == [report.committed_at_s for report in ended.reports]
    for report in ended.reports:
        times, took_s = report.times, report.committed_at_s - report.times.since_s
        assert times.data_s + times.wait_s + times.stall_s + times.evaluation_s <= took_s + APART_S
        is_behind_one = report.commit.step > 0 and report.commit.step % 2 == 0
        assert (times.evaluation_s >= NAP_S) == is_behind_one
    assert left.times.evaluation_s >= NAP_S, "after the last step"
