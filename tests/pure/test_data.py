"""Samples, steps, micro-batches: each sample once an epoch, each micro-batch once a step, and the proof of it."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.control.data import (
    BatchPlan,
    Conservation,
    Permutation,
    contribution,
    deal,
    even,
    expected,
    hash32,
    mix64,
    seed_of,
)
from elastic.errors import DatasetTooSmallError, ElasticError, SettingError

few = settings(deadline=None, max_examples=60)


@st.composite
def plans(draw: st.DrawFn) -> BatchPlan:
    """Any sizes, among them a last step that is short and a last micro-batch that is short."""
    batch_size = draw(st.integers(1, 24))
    return BatchPlan(
        samples=draw(st.integers(batch_size, 90)),
        batch_size=batch_size,
        micro_batch_size=draw(st.integers(1, 30)),
        seed=draw(st.integers(0, 2**63)),
        shuffle=draw(st.booleans()),
    )


PLAN = BatchPlan(samples=50, batch_size=16, micro_batch_size=3, seed=7)


# --- the order of an epoch --------------------------------------------------------------------------------------------


@few
@given(size=st.integers(1, 300), key=st.integers(0, 2**63))
def test_a_permutation_is_a_bijection(size, key):
    order = Permutation(size, key)
    assert sorted(order[position] for position in range(size)) == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 1023, 1024, 1025])
def test_a_permutation_is_a_bijection_around_powers_of_two(size):
    order = Permutation(size, 1)
    assert {order[position] for position in range(size)} == set(range(size))


def test_a_permutation_of_a_huge_dataset_costs_no_memory():
    order = Permutation(10**15, 3)
    drawn = [order[position] for position in range(0, 10**15, 10**13)]
    assert len(set(drawn)) == len(drawn)
    assert all(0 <= index < 10**15 for index in drawn)


def test_keys_give_different_orders_and_no_order_is_the_trivial_one():
    orders = {tuple(Permutation(50, key)[position] for position in range(50)) for key in range(100)}
    assert len(orders) == 100
    assert tuple(range(50)) not in orders


def test_a_permutation_spreads_every_position_over_the_whole_range():
    """Over many keys the first sample is as good as drawn: each of 8 places comes up about 250 times in 2000."""
    counts = Counter(Permutation(8, key)[0] for key in range(2000))
    assert set(counts) == set(range(8))
    assert max(counts.values()) < 2 * min(counts.values())


@pytest.mark.parametrize("position", [-1, 5, 6])
def test_a_position_outside_of_the_permutation_is_refused(position):
    with pytest.raises(IndexError):
        Permutation(5, 0)[position]


@few
@given(plan=plans(), epoch=st.integers(0, 3))
def test_an_epoch_consumes_each_sample_exactly_once(plan, epoch):
    steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
    consumed = [index for step in steps for one in plan.micro_batches(step) for index in plan.sample_indices(step, one)]
    assert sorted(consumed) == list(range(plan.samples))
    assert {plan.epoch_of(step) for step in steps} == {epoch}


def test_the_order_changes_from_epoch_to_epoch_and_with_the_seed():
    def order(plan: BatchPlan, step: int) -> list[int]:
        return plan.sample_indices(step, plan.micro_batches(step)[0])

    per_epoch = PLAN.steps_per_epoch
    assert order(PLAN, 0) == order(PLAN, 0)
    assert order(PLAN, 0) != order(PLAN, per_epoch)
    assert order(PLAN, 0) != order(replace(PLAN, seed=8), 0)


def test_without_shuffling_the_dataset_keeps_its_order():
    plan = replace(PLAN, shuffle=False)
    assert [index for one in plan.micro_batches(1) for index in plan.sample_indices(1, one)] == list(range(16, 32))


# --- steps and micro-batches ------------------------------------------------------------------------------------------


@few
@given(plan=plans(), step=st.integers(0, 200))
def test_micro_batches_cover_a_step_without_gap_or_overlap(plan, step):
    cut = plan.micro_batches(step)
    first = (step % plan.steps_per_epoch) * plan.batch_size
    assert [one.number for one in cut] == list(range(len(cut)))
    assert [position for one in cut for position in range(one.first, one.first + one.count)] == list(
        range(first, first + plan.samples_of(step))
    )
    assert all(1 <= one.count <= plan.micro_batch_size for one in cut)
    assert all(one.count == plan.micro_batch_size for one in cut[:-1])


def test_the_last_step_of_an_epoch_is_as_short_as_what_is_left():
    assert [PLAN.samples_of(step) for step in range(8)] == [16, 16, 16, 2, 16, 16, 16, 2]
    assert [one.count for one in PLAN.micro_batches(2)] == [3, 3, 3, 3, 3, 1]
    assert [one.count for one in PLAN.micro_batches(3)] == [2]


@few
@given(micro_batches=st.integers(0, 60), replicas=st.integers(1, 80))
def test_a_deal_hands_out_each_micro_batch_once_and_evenly(micro_batches, replicas):
    hands = [deal(micro_batches, even(replicas), rank) for rank in range(replicas)]
    assert [number for hand in hands for number in hand] == list(range(micro_batches))
    sizes = [len(hand) for hand in hands]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("micro_batches", "replicas", "sizes"),
    [(6, 1, [6]), (6, 2, [3, 3]), (6, 4, [1, 2, 1, 2]), (2, 5, [0, 0, 1, 0, 1]), (0, 2, [0, 0])],
    ids=["one replica", "even", "uneven", "more replicas than micro-batches", "nothing"],
)
def test_how_much_each_replica_is_dealt(micro_batches, replicas, sizes):
    assert [len(deal(micro_batches, even(replicas), rank)) for rank in range(replicas)] == sizes


@few
@given(micro_batches=st.integers(0, 60), shares=st.lists(st.integers(0, 20), min_size=1, max_size=12).filter(any))
def test_an_uneven_deal_hands_out_each_micro_batch_once_in_proportion(micro_batches, shares):
    hands = [deal(micro_batches, shares, rank) for rank in range(len(shares))]
    assert [number for hand in hands for number in hand] == list(range(micro_batches))
    for hand, share in zip(hands, shares, strict=True):
        assert abs(len(hand) - share * micro_batches / sum(shares)) < 1
        assert share or not hand


def test_shares_that_add_up_are_the_sizes():
    assert [len(deal(8, (3, 3, 2), rank)) for rank in range(3)] == [3, 3, 2]


# --- the conservation record ------------------------------------------------------------------------------------------


def summed(records: list[Conservation]) -> Conservation:
    """As a reduction does it: in float64, word by word."""
    columns = zip(*(record.words() for record in records), strict=True)
    return Conservation.from_words([sum(map(float, column)) for column in columns])


@few
@given(plan=plans(), step=st.integers(0, 50), replicas=st.integers(1, 9), identity=st.integers(0, 2**32 - 1))
def test_the_contributions_of_any_deal_add_up_to_what_is_expected(plan, step, replicas, identity):
    size = len(plan.micro_batches(step))
    hands = [deal(size, even(replicas), rank) for rank in range(replicas)]
    assert summed([contribution(plan, step, hand, identity) for hand in hands]) == expected(
        plan, step, replicas, identity
    )


STEP, IDENTITY = 1, hash32(1, 4, 1, 1, "layout")
WHOLE = [[0, 1, 2], [3, 4, 5]]


def parts(hands: list[list[int]], step: int = STEP, identity: int = IDENTITY, plan: BatchPlan = PLAN):
    return [contribution(plan, step, hand, identity) for hand in hands]


def test_the_whole_step_is_conserved():
    assert summed(parts(WHOLE)) == expected(PLAN, STEP, 2, IDENTITY)


@pytest.mark.parametrize(
    "records",
    [
        parts([[0, 1, 2], [3, 4]]),
        parts([[0, 1, 2], [3, 4, 5, 5]]),
        parts([[0, 1, 2], [2, 4, 5]]),
        parts([[0, 1, 2], [3, 3, 5]]),
        parts([[0, 1, 2]]) + parts([[3, 4, 5]], step=2),
        parts([[0, 1, 2]]) + parts([[3, 4, 5]], identity=hash32(1, 5, 1, 1, "layout")),
        parts([[0, 1, 2]]) + parts([[3, 4, 5]], identity=hash32(1, 4, 2, 1, "layout")),
        parts([[0, 1, 2]]) + parts([[3, 4, 5]], plan=replace(PLAN, seed=8)),
        parts([[0, 1, 2, 3, 4, 5]]),
        [*parts(WHOLE), *parts([[]])],
    ],
    ids=[
        "a micro-batch is missing",
        "one is doubled",
        "one takes the place of another",
        "one was computed twice instead of another",
        "one replica is at another step",
        "one replica is in another generation",
        "one replica is at another attempt",
        "one replica has another seed",
        "one replica too few",
        "one replica too many",
    ],
)
def test_a_reduction_of_anything_else_is_noticed(records):
    assert summed(records) != expected(PLAN, STEP, 2, IDENTITY)


@few
@given(st.lists(st.integers(0, 5), max_size=8))
def test_only_the_exact_multiset_of_micro_batches_passes(done):
    is_whole = sorted(done) == list(range(6))
    assert (summed(parts([done])) == expected(PLAN, STEP, 1, IDENTITY)) == is_whole


def test_a_record_survives_its_way_through_floats():
    record = Conservation(samples=3, micro_batches=2**40 + 1, replicas_identity=2**32 - 1, replicas=2)
    assert Conservation.from_words([float(word) for word in record.words()]) == record


# --- seeds and hashes -------------------------------------------------------------------------------------------------


def test_seeds_are_distinct_and_fit_into_63_bits():
    seeds = [seed_of(seed, step, number) for seed in range(5) for step in range(40) for number in range(10)]
    seeds += [seed_of(seed) for seed in range(5)] + [seed_of(0, 0), seed_of(0, 0, 0, 0)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_seed_depends_on_the_order_of_its_parts():
    assert seed_of(1, 2) != seed_of(2, 1)


def test_seeds_are_the_same_everywhere_and_for_ever():
    """They fix the order of a dataset: a run that is resumed by a later version needs the same ones."""
    assert mix64(0) == 0xE220A8397B1DCDAF  # the first number that splitmix64 gives from state 0
    assert seed_of(0) == 0xE220A8397B1DCDAF >> 1


def test_hash32_tells_parts_apart():
    texts = [("a", "b"), ("ab",), ("a", "b", ""), ("b", "a"), (1, 2), (12,)]
    values = [hash32(*parts) for parts in texts]
    assert len(set(values)) == len(values)
    assert all(0 <= value < 2**32 for value in values)


# --- settings that cannot work ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "error", "named"),
    [
        ({"samples": 7, "batch_size": 8, "micro_batch_size": 2}, DatasetTooSmallError, "lower batch_size"),
        ({"samples": 0, "batch_size": 1, "micro_batch_size": 1}, DatasetTooSmallError, "holds 0 samples"),
        ({"samples": 8, "batch_size": 0, "micro_batch_size": 2}, SettingError, "batch_size=0"),
        ({"samples": 8, "batch_size": -4, "micro_batch_size": 2}, SettingError, "batch_size=-4"),
        ({"samples": 8, "batch_size": 8, "micro_batch_size": 0}, SettingError, "micro_batch_size=0"),
    ],
    ids=["too few samples", "no samples", "no batch", "negative batch", "no micro-batch"],
)
def test_sizes_that_cannot_work(sizes, error, named):
    with pytest.raises(error, match=named) as caught:
        BatchPlan(**sizes)
    assert isinstance(caught.value, ElasticError | ValueError)
