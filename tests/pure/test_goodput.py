"""Goodput: committed seconds over the seconds since the first step."""

import pytest

from elastic.control.goodput import Goodput
from elastic.control.values import StepReport
from tests.pure.bare_controller import commit


def report(number: int, started_at_s: float, committed_at_s: float) -> StepReport:
    return StepReport(
        commit=commit(number),
        metrics={},
        replicas=2,
        samples=8,
        started_at_s=started_at_s,
        committed_at_s=committed_at_s,
    )


def after(*spans: tuple[float, float]) -> Goodput:
    """Goodput after committed attempts, each from its start to its commit."""
    goodput = Goodput()
    for number, (started_at_s, committed_at_s) in enumerate(spans):
        goodput = goodput.after(report(number, started_at_s, committed_at_s))
    return goodput


@pytest.mark.parametrize(
    ("spans", "share"),
    [
        ([], 0.0),
        ([(100.0, 101.0)], 1.0),
        ([(100.0, 101.0), (101.0, 103.0)], 1.0),
        ([(100.0, 101.0), (102.0, 103.0)], 2 / 3),
        ([(100.0, 101.0), (109.0, 110.0)], 0.2),
        ([(100.0, 100.0)], 0.0),
        ([(100.0, 101.0), (100.8, 102.0)], 1.0),
        ([(100.0, 102.0), (100.5, 101.5)], 1.0),
    ],
    ids=[
        "before the first step",
        "one step",
        "no pause",
        "a pause",
        "a long failure",
        "no time at all",
        "told by two replicas",
        "told late",
    ],
)
def test_the_share_of_productive_time(spans, share):
    assert after(*spans).share == pytest.approx(share)


def test_what_is_counted():
    goodput = after((100.0, 101.0), (104.0, 106.0))
    assert (goodput.steps, goodput.productive_s) == (2, 3.0)
    assert (goodput.since_s, goodput.until_s) == (100.0, 106.0)


def test_the_time_before_the_first_step_does_not_count():
    assert after((1e9, 1e9 + 1.0)).share == pytest.approx(1.0)


def test_a_value_is_not_changed_by_what_follows():
    first = after((0.0, 1.0))
    assert first.after(report(1, 5.0, 6.0)) != first
    assert first == after((0.0, 1.0))
