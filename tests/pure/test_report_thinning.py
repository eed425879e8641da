"""Long series in few points: what matters of them stays."""

import math

from hypothesis import given
from hypothesis import strategies as st

from elastic.report.content.thinning import Curve, Rate

VALUES = st.lists(st.tuples(st.floats(0, 100), st.floats(-1e3, 1e3)), min_size=30, max_size=120)


def grown(curve, gaps):
    at_s, points = 1000.0, []
    for gap_s, value in gaps:
        at_s += gap_s
        curve.put(at_s, value)
        points.append((at_s, value))
    return points


@given(VALUES)
def test_a_thinned_curve_keeps_its_extremes_and_its_end_in_few_points(gaps):
    curve = Curve("x", limit=10)
    points = grown(curve, gaps)
    series = curve.series(0.0)
    assert len(series.values) <= 30
    values = [value if value.is_integer() else float(f"{value:.6g}") for _, value in points]
    assert max(series.values) == max(values) and min(series.values) == min(values)
    last_s = round(points[-1][0], 3)
    assert values[-1] in [value for at_s, value in zip(series.at_s, series.values, strict=True) if at_s == last_s]
    assert list(series.at_s) == sorted(series.at_s)


def test_a_step_keeps_all_its_digits_and_a_measure_six():
    curve = Curve("x")
    curve.put(1.0, 1234567)
    curve.put(2.0, 1234567.8)
    assert curve.series(0.0).values == (1234567, 1.23457e6)


def test_a_short_curve_is_not_touched():
    curve = Curve("x", limit=10)
    for number in range(10):
        curve.put(100.0 + number, number * number)
    assert curve.series(100.0).values == tuple(float(n * n) for n in range(10))
    assert curve.series(100.0).at_s == tuple(map(float, range(10)))


def test_a_dip_of_one_value_in_a_million_is_seen():
    curve = Curve("x", limit=100)
    for number in range(20_000):
        curve.put(float(number), 0.5 if number == 7777 else 1.0)
    series = curve.series(0.0)
    assert len(series.values) <= 300
    assert series.at_s[series.values.index(0.5)] == 7777.0


def test_a_clock_that_goes_back_bends_nothing():
    curve = Curve("x")
    for at_s in (5.0, 4.0, 6.0):
        curve.put(at_s, at_s)
    assert curve.series(0.0).at_s == (5.0, 5.0, 6.0)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.001, 50), st.floats(0, 1e3)), min_size=1, max_size=100))
def test_no_amount_is_lost_or_counted_twice(steps):
    rate = Rate("x", limit=8, bin_s=1.0)
    at_s = total = 0.0
    for gap_s, took_s, amount in steps:
        at_s += gap_s
        rate.add(at_s, at_s + took_s, amount)
        at_s += took_s
        total += amount
    assert math.isclose(sum(rate._sums.values()), total, rel_tol=1e-6, abs_tol=1e-6)
    assert len(rate.series(0.0).values) <= 9


def test_a_gap_is_a_gap():
    rate = Rate("x")
    rate.add(0.0, 2.0, 20)
    rate.add(5.0, 6.0, 10)
    assert rate.series(0.0).values == (10.0, 10.0, 0.0, 0.0, 0.0, 10.0)
    assert rate.series(0.0).at_s == (0.5, 1.5, 2.5, 3.5, 4.5, 5.5)


def test_lately_is_of_the_last_seconds():
    rate = Rate("x")
    assert rate.lately == 0.0
    for second in range(100):
        rate.add(float(second), second + 1.0, 10 if second < 90 else 40)
    assert rate.lately == 40.0
    for week in range(7 * 24):
        rate.add(100.0 + 3600.0 * week, 3700.0 + 3600.0 * week, 3600 * 40)
    assert rate.lately == 40.0, "of an amount that takes longer"
    for second in range(10):
        rate.add(604_900.0 + second, 604_901.0 + second, 10)
    assert rate.lately == 10.0, "however long the bins have become"
