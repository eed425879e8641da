"""How fast each replica is, and how many micro-batches that makes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.control.integrity import Account
from elastic.control.speed import balance, by_node, by_replica, scores, smooth


def told(*work: tuple[int, float]) -> list[Account]:
    return [Account(micro_batches=count, compute_s=seconds) for count, seconds in work]


def test_the_first_step_is_taken_as_it_is_and_later_ones_a_fifth():
    first = smooth((), told((2, 1.0), (4, 1.0)))
    assert first == (0.5, 0.25)
    assert smooth(first, told((2, 2.0), (4, 1.0))) == pytest.approx((0.6, 0.25))


def test_who_computes_nothing_keeps_its_figure():
    assert smooth((0.5, 0.25), told((0, 0.0), (1, 0.25))) == (0.5, 0.25)
    assert smooth((), told((0, 0.0), (1, 0.25))) == (0.0, 0.25)


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        ((1.0, 1.0, 3.0), (1.0, 1.0, 3.0)),
        ((0.0, 2.0, 4.0, 2.0), (1.0, 1.0, 2.0, 1.0)),
        ((0.0, 0.0), (1.0, 1.0)),
        ((1.0, 2.0), (1.0, 2.0)),
    ],
    ids=["one is slow", "one is not known", "nothing is known", "one of two is slow"],
)
def test_scores_are_relative_to_the_median(seconds, wanted):
    assert scores(seconds) == wanted


def test_workers_are_compared_with_those_who_hold_the_same_shard():
    """The second stage of a pipeline takes three times as long as the first one, and that of replica 1 longer yet."""
    assert scores((1.0, 3.0, 1.0, 6.0, 1.0, 3.0), width=2) == (1.0, 1.0, 1.0, 2.0, 1.0, 1.0)


def test_a_replica_is_as_slow_as_its_slowest_worker():
    assert by_replica([(1.0, 1.0, 2.0), (3.0, 0.0, 1.0)]) == (3.0, 0.0, 2.0)


def test_a_node_is_as_slow_as_the_best_of_its_workers():
    assert by_node([("a", 1.0), ("b", 3.0), ("b", 2.0)]) == {"a": 1.0, "b": 2.0}


@pytest.mark.parametrize(
    ("micro_batches", "seconds", "counts"),
    [
        (8, (1.0, 1.0, 1.0, 1.0), (2, 2, 2, 2)),
        (8, (1.0, 1.0, 1.0, 2.0), (3, 2, 2, 1)),
        (12, (1.0, 1.0, 4.0), (6, 5, 1)),
        (9, (1.0, 2.0), (6, 3)),
        (4, (1.0, 1.0, 100.0), (2, 1, 1)),
        (2, (1.0, 2.0, 3.0), (2, 0, 0)),
        (8, (1.0, 0.0), (1, 1)),
    ],
    ids=str,
)
def test_how_many_each_is_dealt(micro_batches, seconds, counts):
    assert balance(micro_batches, seconds) == counts


@given(micro_batches=st.integers(1, 60), seconds=st.lists(st.floats(0.001, 10.0), min_size=1, max_size=8))
def test_a_balanced_deal_is_never_later_than_an_even_one_and_forgets_nobody(micro_batches, seconds):
    counts = balance(micro_batches, seconds)
    assert sum(counts) == micro_batches
    if micro_batches >= len(seconds):
        assert min(counts) >= 1
        size, rest = divmod(micro_batches, len(seconds))
        even = [size + (rank < rest) for rank in range(len(seconds))]
        best = sorted(seconds)
        fair = max(count * one for count, one in zip(sorted(even, reverse=True), best, strict=True))
        assert max(count * one for count, one in zip(counts, seconds, strict=True)) <= fair * (1 + 1e-9)
