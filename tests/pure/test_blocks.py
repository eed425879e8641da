"""Datasets that are stored in blocks: an epoch goes block by block, and has each sample once all the same."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.control.batch_size import ConstantBatch, FollowReplicas
from elastic.control.data import BatchPlan, BlockPermutation, MicroBatch, Row, row_of
from elastic.errors import SettingError

few = settings(deadline=None, max_examples=80)
some_blocks = st.lists(st.integers(1, 12), min_size=1, max_size=9).map(tuple)


def blocks_of(sizes, indices):
    """The block of each sample."""
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    return [row_of(ends, index).block for index in indices]


@few
@given(sizes=some_blocks, key=st.integers(0, 2**63))
def test_each_sample_comes_once_and_each_block_in_one_go(sizes, key):
    order = BlockPermutation(sizes, key)
    indices = [order[position] for position in range(sum(sizes))]
    assert sorted(indices) == list(range(sum(sizes)))
    blocks = blocks_of(sizes, indices)
    changes = sum(one != other for one, other in zip(blocks, blocks[1:], strict=False))
    assert changes == len(sizes) - 1


@few
@given(sizes=some_blocks, key=st.integers(0, 2**63), data=st.data())
def test_the_order_does_not_depend_on_what_was_asked_before(sizes, key, data):
    order = BlockPermutation(sizes, key)
    for position in data.draw(st.lists(st.integers(0, sum(sizes) - 1), max_size=20)):
        assert order[position] == BlockPermutation(sizes, key)[position]


def test_blocks_and_rows_are_both_shuffled_and_anew_each_epoch():
    plan = BatchPlan(samples=60, batch_size=ConstantBatch(size=6), micro_batch_size=3, blocks=(20, 20, 20))
    orders = [plan.sample_indices(MicroBatch(0, 60 * epoch, 60)) for epoch in range(20)]
    assert len({tuple(order) for order in orders}) == 20
    assert len({tuple(dict.fromkeys(blocks_of(plan.blocks, order))) for order in orders}) > 3
    assert all(len(set(blocks_of(plan.blocks, order[at : at + 20]))) == 1 for order in orders for at in (0, 20, 40))
    assert all(order[:20] != sorted(order[:20]) for order in orders)
    assert replace(plan, shuffle=False).sample_indices(MicroBatch(0, 60, 60)) == list(range(60))


@few
@given(sizes=some_blocks, replicas=st.lists(st.integers(1, 5), min_size=1, max_size=40))
def test_whatever_the_resizes_an_epoch_over_blocks_is_exact(sizes, replicas):
    plan = BatchPlan(samples=sum(sizes), batch_size=FollowReplicas(per_replica=1), micro_batch_size=2, blocks=sizes)
    taken, consumed = [], 0
    for number in replicas:
        step = plan.cut(consumed, number)
        taken += [index for one in step for index in plan.sample_indices(one)]
        consumed += sum(one.count for one in step)
    for epoch in range(consumed // plan.samples):
        assert sorted(taken[epoch * plan.samples : (epoch + 1) * plan.samples]) == list(range(plan.samples))


def test_rows_by_hand():
    assert [row_of([2, 3, 6], index) for index in range(6)] == [
        Row(0, 0),
        Row(0, 1),
        Row(1, 0),
        Row(2, 0),
        Row(2, 1),
        Row(2, 2),
    ]
    for index in (-1, 6):
        with pytest.raises(IndexError):
            row_of([2, 3, 6], index)
    with pytest.raises(IndexError):
        row_of([], 0)


@pytest.mark.parametrize("blocks", [(3, 4), (5, 0, 3), (9, -1)])
def test_blocks_that_are_not_the_dataset_are_refused(blocks):
    with pytest.raises(SettingError, match="block_sizes of a dataset of 8 samples"):
        BatchPlan(samples=8, batch_size=ConstantBatch(size=2), micro_batch_size=2, blocks=blocks)
