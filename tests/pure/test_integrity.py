"""Who is odd: votes on state, and whose a loss is that is not finite."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.control.integrity import Account, LossVerdict, accounts, is_vote_due, judge_losses, outvoted, table


@given(
    st.lists(
        st.builds(
            Account,
            digest=st.integers(0, 2**64 - 1),
            odd=st.integers(0, 2**20),
            micro_batches=st.integers(0, 2**20),
            compute_s=st.floats(0, 1e6),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_the_sum_of_all_rows_is_the_table_of_all_accounts(told):
    rows = [table(account, rank, len(told)) for rank, account in enumerate(told)]
    summed = [sum(map(float, column)) for column in zip(*rows, strict=True)]
    assert accounts(summed) == tuple(told)


@pytest.mark.parametrize(
    ("digests", "odd"),
    [
        ([7], ()),
        ([7, 7], ()),
        ([7, 7, 7], ()),
        ([7, 8, 7], (1,)),
        ([8, 7, 7], (0,)),
        ([7, 7, 8, 9, 7], (2, 3)),
        ([7, 8], None),
        ([7, 8, 9], None),
        ([7, 7, 8, 8], None),
        ([7, 7, 8, 9], None),
        ([0, 0, 0], ()),
    ],
    ids=str,
)
def test_who_is_outvoted(digests, odd):
    assert outvoted(digests) == odd


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_only_more_than_half_may_name_others(digests):
    odd = outvoted(digests)
    if odd is not None:
        assert 2 * len(odd) < len(digests)
        assert len({digest for rank, digest in enumerate(digests) if rank not in odd}) == 1
    else:
        assert max(digests.count(digest) for digest in digests) * 2 <= len(digests)


@pytest.mark.parametrize(
    ("update", "since_s", "took_s", "is_due"),
    [
        (0, math.inf, 0.0, False),
        (99, math.inf, 0.0, False),
        (100, math.inf, 5.0, True),
        (150, math.inf, 0.0, False),
        (200, 1000.0, 5.0, True),
        (200, 999.0, 5.0, False),
    ],
)
def test_a_vote_takes_a_two_hundredth_of_the_time_at_most(update, since_s, took_s, is_due):
    assert is_vote_due(update, since_s, took_s) is is_due


def told(*odd: int, idle: tuple[int, ...] = ()) -> list[Account]:
    return [Account(odd=one, micro_batches=0 if rank in idle else 2) for rank, one in enumerate(odd)]


FINE, AGAIN, USER, REPLICA = LossVerdict


@pytest.mark.parametrize(
    ("first", "second", "verdict", "culprits"),
    [
        (told(0, 0, 0), (), FINE, ()),
        (told(0, 3, 0), (), AGAIN, ()),
        (told(1, 3, 0), (), AGAIN, ()),
        (told(1, 3, 5), (), USER, ()),
        (told(1), (), USER, ()),
        (told(1, 0, idle=(1,)), (), AGAIN, ()),
        (told(1, 2, 0, idle=(2,)), (), USER, ()),
        (told(0, 3, 0), told(0, 0, 0), REPLICA, (1,)),
        (told(0, 3, 0), told(0, 1, 0), REPLICA, (1,)),
        (told(0, 3, 0), told(0, 0, 3), USER, ()),
        (told(0, 3, 0), told(0, 1, 3), USER, ()),
        (told(0, 0, 5), told(5, 0, 0), USER, ()),
        (told(0, 0, 5), told(0, 0, 0), REPLICA, (2,)),
        (told(1, 3, 0), told(0, 1, 0), REPLICA, (1,)),
        (told(0, 2), told(0, 0), REPLICA, (1,)),
        (told(0, 2), told(2, 0), USER, ()),
    ],
    ids=[
        "all finite",
        "one odd",
        "two of three odd",
        "all odd",
        "alone",
        "the only one at work",
        "all at work are odd",
        "finite elsewhere",
        "odd again, on other data",
        "odd wherever it is computed",
        "odd everywhere it goes",
        "the last hands on to the first",
        "the last is odd",
        "one of two is confirmed",
        "finite at the other of two",
        "odd at the other of two",
    ],
)
def test_whose_a_loss_is(first, second, verdict, culprits):
    assert judge_losses(first, second) == (verdict, culprits)
