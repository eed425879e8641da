"""One order of summation, whoever holds which terms."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.control.data import deal
from elastic.control.ordered import Block, blocks, fold, push

few = settings(deadline=None, max_examples=80)


def formula(left: str, right: str) -> str:
    return f"({left}+{right})"


def summed(terms: int, shares: list[int]) -> str:
    """The formula by which a group adds: each adds up its own hand, then the blocks of all are added."""
    everybodys: list[Block[str]] = []
    for rank in range(len(shares)):
        own: list[Block[str]] = []
        for number in deal(terms, shares, rank):
            push(own, Block(number, 1, str(number)), formula)
        assert [(block.first, block.count) for block in own] == blocks(deal(terms, shares, rank))
        everybodys += own
    stack: list[Block[str]] = []
    for block in everybodys:
        push(stack, block, formula)
    return fold(stack, formula)


@pytest.mark.parametrize(
    ("terms", "wanted"),
    [(1, "0"), (2, "(0+1)"), (3, "((0+1)+2)"), (4, "((0+1)+(2+3))"), (6, "(((0+1)+(2+3))+(4+5))")]
    + [(7, "(((0+1)+(2+3))+((4+5)+6))")],
)
def test_the_tree(terms, wanted):
    assert summed(terms, [1]) == wanted


@few
@given(terms=st.integers(1, 40), shares=st.lists(st.integers(0, 9), min_size=1, max_size=9).filter(any))
def test_the_formula_is_the_same_for_any_deal(terms, shares):
    assert summed(terms, shares) == summed(terms, [1])


@few
@given(first=st.integers(0, 1000), count=st.integers(0, 500))
def test_a_hand_is_made_of_few_blocks(first, count):
    cut = blocks(range(first, first + count))
    covered = [number for start, size in cut for number in range(start, start + size)]
    assert covered == list(range(first, first + count))
    assert len(cut) <= max(1, 2 * math.ceil(math.log2(count + 1)))
    assert all(size & (size - 1) == 0 and start % size == 0 for start, size in cut)


def test_nothing_has_no_sum():
    with pytest.raises(IndexError):
        fold([], formula)
