"""Samples, steps, micro-batches: each sample once an epoch, each micro-batch once a step, and the proof of it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.control.batch_size import ConstantBatch, FixedMicroBatches, FollowReplicas, batch_sizes
from elastic.control.data import (
    BatchPlan,
    Conservation,
    MicroBatch,
    Permutation,
    all_hands,
    contribution,
    deal,
    even,
    expected,
    hash32,
    mix64,
    seed_of,
)
from elastic.errors import DatasetTooSmallError, SettingError

few = settings(deadline=None, max_examples=60)


KINDS = {
    "constant": lambda n: ConstantBatch(size=n),
    "follow": lambda n: FollowReplicas(per_replica=n),
    "fixed micro-batches": lambda n: FixedMicroBatches(per_replica=n),
}


@st.composite
def plans(draw: st.DrawFn) -> BatchPlan:
    """Any sizes, among them a last step that is short and a last micro-batch that is short."""
    batch_size = KINDS[draw(st.sampled_from(sorted(KINDS)))](draw(st.integers(1, 24)))
    micro_batch_size = draw(st.integers(1, 30 if not isinstance(batch_size, FixedMicroBatches) else 4))
    return BatchPlan(
        samples=draw(st.integers(batch_size.samples(1, micro_batch_size), 120)),
        batch_size=batch_size,
        micro_batch_size=micro_batch_size,
        seed=draw(st.integers(0, 2**63)),
        shuffle=draw(st.booleans()),
    )


PLAN = BatchPlan(samples=50, batch_size=ConstantBatch(size=16), micro_batch_size=3, seed=7)
FOLLOW = replace(PLAN, batch_size=FollowReplicas(per_replica=8))
FIXED = replace(PLAN, batch_size=FixedMicroBatches(per_replica=2))


def samples_in(step: Sequence[MicroBatch]) -> int:
    return sum(one.count for one in step)


def history(plan: BatchPlan, sizes: Iterable[int]) -> list[tuple[MicroBatch, ...]]:
    """Committed steps of these sizes, one after the other."""
    steps, consumed = [], 0
    for replicas in sizes:
        steps.append(plan.cut(consumed, replicas))
        consumed += samples_in(steps[-1])
    return steps


def indices(plan: BatchPlan, steps: Iterable[Sequence[MicroBatch]]) -> list[int]:
    return [index for step in steps for one in step for index in plan.sample_indices(one)]


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


sizes_of_steps = st.lists(st.integers(1, 9), min_size=1, max_size=60)


@few
@given(plan=plans(), sizes=sizes_of_steps)
def test_whatever_the_resizes_an_epoch_consumes_each_sample_exactly_once(plan, sizes):
    """In the order of the epoch, all of it before the next one begins; the last epoch as far as it came."""
    steps = history(plan, sizes)
    consumed = sum(map(samples_in, steps))
    taken = indices(plan, steps)
    whole = MicroBatch(0, 0, plan.samples)
    wanted = [
        index
        for epoch in range(plan.epoch_of(consumed) + 1)
        for index in plan.sample_indices(replace(whole, first=epoch * plan.samples))
    ]
    assert taken == wanted[:consumed]
    for epoch in range(plan.epoch_of(consumed)):
        assert sorted(taken[epoch * plan.samples : (epoch + 1) * plan.samples]) == list(range(plan.samples))


@few
@given(plan=plans(), sizes=sizes_of_steps)
def test_no_step_crosses_the_end_of_an_epoch_and_none_is_empty(plan, sizes):
    for step in history(plan, sizes):
        last = step[-1]
        assert plan.epoch_of(step[0].first) == plan.epoch_of(last.first + last.count - 1)
        assert all(one.count >= 1 for one in step)


@few
@given(plan=plans(), sizes=sizes_of_steps, more=st.integers(1, 9), fewer=st.integers(1, 9))
def test_a_retry_by_fewer_replicas_takes_a_prefix_of_what_failed(plan, sizes, more, fewer):
    """And by more, the other way round: nothing is skipped, nothing repeated."""
    steps = history(plan, sizes)
    consumed = sum(map(samples_in, steps))
    failed, retried = indices(plan, [plan.cut(consumed, more)]), indices(plan, [plan.cut(consumed, fewer)])
    shorter, longer = sorted((failed, retried), key=len)
    assert longer[: len(shorter)] == shorter
    if fewer <= more:
        assert len(retried) <= len(failed)


@pytest.mark.parametrize(
    ("plan", "sizes", "counts"),
    [
        (PLAN, [3, 2, 1, 4, 2], [16, 16, 16, 2, 16]),
        (FOLLOW, [3, 2, 1, 4, 2], [24, 16, 8, 2, 16]),
        (FOLLOW, [9, 1], [50, 8]),
        (FIXED, [3, 2, 1, 4, 2], [18, 12, 6, 14, 12]),
    ],
    ids=["constant", "follow", "more replicas than an epoch feeds", "fixed micro-batches"],
)
def test_how_many_samples_steps_of_changing_size_take(plan, sizes, counts):
    assert [samples_in(step) for step in history(plan, sizes)] == counts


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_with_fixed_micro_batches_each_replica_computes_that_many(replicas):
    micro_batches = FIXED.cut(0, replicas)
    hands = [deal(len(micro_batches), even(replicas), rank) for rank in range(replicas)]
    assert [len(hand) for hand in hands] == [2] * replicas
    assert [one.count for one in micro_batches] == [3] * 2 * replicas


def test_at_the_end_of_an_epoch_a_replica_may_be_dealt_nothing():
    micro_batches = FIXED.cut(48, 3)
    assert micro_batches == (MicroBatch(0, 48, 2),)
    assert [len(deal(1, even(3), rank)) for rank in range(3)] == [0, 0, 1]


def test_the_order_changes_from_epoch_to_epoch_and_with_the_seed():
    def order(plan: BatchPlan, consumed: int) -> list[int]:
        return plan.sample_indices(plan.cut(consumed, 1)[0])

    assert order(PLAN, 0) == order(PLAN, 0)
    assert order(PLAN, 0) != order(PLAN, PLAN.samples)
    assert order(PLAN, 0) != order(replace(PLAN, seed=8), 0)


def test_without_shuffling_the_dataset_keeps_its_order():
    plan = replace(PLAN, shuffle=False)
    assert indices(plan, [plan.cut(16, 1)]) == list(range(16, 32))
    assert indices(plan, [plan.cut(PLAN.samples + 16, 1)]) == list(range(16, 32))


# --- steps and micro-batches ------------------------------------------------------------------------------------------


@few
@given(plan=plans(), consumed=st.integers(0, 500), replicas=st.integers(1, 9))
def test_micro_batches_cover_a_step_without_gap_or_overlap(plan, consumed, replicas):
    cut = plan.cut(consumed, replicas)
    count = min(plan.global_batch(replicas), plan.samples - consumed % plan.samples)
    assert [one.number for one in cut] == list(range(len(cut)))
    assert [place for one in cut for place in range(one.first, one.first + one.count)] == list(
        range(consumed, consumed + count)
    )
    assert all(1 <= one.count <= plan.micro_batch_size for one in cut)
    assert all(one.count == plan.micro_batch_size for one in cut[:-1])


def test_the_last_step_of_an_epoch_is_as_short_as_what_is_left():
    steps = history(PLAN, [2] * 8)
    assert [samples_in(step) for step in steps] == [16, 16, 16, 2, 16, 16, 16, 2]
    assert [one.count for one in steps[2]] == [3, 3, 3, 3, 3, 1]
    assert [one.count for one in steps[3]] == [2]
    assert [PLAN.epoch_of(step[0].first) for step in steps] == [0, 0, 0, 0, 1, 1, 1, 1]


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
    dealt = [deal(micro_batches, shares, rank) for rank in range(len(shares))]
    assert dealt == all_hands(micro_batches, shares)
    assert [number for hand in dealt for number in hand] == list(range(micro_batches))
    for hand, share in zip(dealt, shares, strict=True):
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
@given(plan=plans(), consumed=st.integers(0, 500), replicas=st.integers(1, 9), identity=st.integers(0, 2**32 - 1))
def test_the_contributions_of_any_deal_add_up_to_what_is_expected(plan, consumed, replicas, identity):
    cut = plan.cut(consumed, replicas)
    hands = [deal(len(cut), even(replicas), rank) for rank in range(replicas)]
    records = [contribution(plan, [cut[number] for number in hand], identity) for hand in hands]
    assert summed(records) == expected(plan, consumed, replicas, identity)


CONSUMED, IDENTITY = 16, hash32(1, 4, 1, 1, "layout")
WHOLE = [[0, 1, 2], [3, 4, 5]]


def parts(hands: list[list[int]], consumed: int = CONSUMED, identity: int = IDENTITY, plan: BatchPlan = PLAN):
    cut = plan.cut(consumed, 2)
    return [contribution(plan, [cut[number] for number in hand], identity) for hand in hands]


def test_the_whole_step_is_conserved():
    assert summed(parts(WHOLE)) == expected(PLAN, CONSUMED, 2, IDENTITY)


@pytest.mark.parametrize(
    "records",
    [
        parts([[0, 1, 2], [3, 4]]),
        parts([[0, 1, 2], [3, 4, 5, 5]]),
        parts([[0, 1, 2], [2, 4, 5]]),
        parts([[0, 1, 2], [3, 3, 5]]),
        parts([[0, 1, 2]]) + parts([[3, 4, 5]], consumed=32),
        parts([[0, 1, 2]]) + parts([[3, 4, 5]], consumed=CONSUMED + PLAN.samples),
        parts([[0, 1, 2]]) + parts([[3, 4, 5]], identity=hash32(1, 5, 1, 1, "layout")),
        parts([[0, 1, 2]]) + parts([[3, 4, 5]], identity=hash32(1, 4, 2, 1, "layout")),
        parts([[0, 1, 2]]) + parts([[3, 4, 5]], plan=replace(PLAN, seed=8)),
        parts([[0, 1, 2]]) + parts([[0, 1]], consumed=CONSUMED + 9, plan=replace(PLAN, micro_batch_size=4)),
        parts([[0, 1, 2, 3, 4, 5]]),
        [*parts(WHOLE), *parts([[]])],
    ],
    ids=[
        "a micro-batch is missing",
        "one is doubled",
        "one takes the place of another",
        "one was computed twice instead of another",
        "one replica is at another step",
        "one replica is in another epoch",
        "one replica is in another generation",
        "one replica is at another attempt",
        "one replica has another seed",
        "one replica cuts the same samples otherwise",
        "one replica too few",
        "one replica too many",
    ],
)
def test_a_reduction_of_anything_else_is_noticed(records):
    assert summed(records) != expected(PLAN, CONSUMED, 2, IDENTITY)


@few
@given(st.lists(st.integers(0, 5), max_size=8))
def test_only_the_exact_multiset_of_micro_batches_passes(done):
    is_whole = sorted(done) == list(range(6))
    assert (summed(parts([done])) == expected(PLAN, CONSUMED, 1, IDENTITY)) == is_whole


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
    ("batch_size", "micro_batch_size", "named"),
    [
        (0, 2, "batch_size=0"),
        (-4, 2, "batch_size=-4"),
        (2.5, 2, "batch_size=2.5 must be an integer, elastic.FollowReplicas"),
        (8, 0, "micro_batch_size=0"),
        (FixedMicroBatches(per_replica=2), None, "counts micro-batches: give micro_batch_size"),
    ],
    ids=["no batch", "negative batch", "neither kind", "no micro-batch", "micro-batches of no size"],
)
def test_sizes_that_cannot_work(batch_size, micro_batch_size, named):
    with pytest.raises(SettingError, match=named):
        plan_of(8, batch_size, micro_batch_size)


@pytest.mark.parametrize("kind", [FollowReplicas, FixedMicroBatches])
@pytest.mark.parametrize("per_replica", [0, -1, 1.5, True])
def test_a_share_that_cannot_work(kind, per_replica):
    with pytest.raises(SettingError, match=f"{kind.__name__}.per_replica={per_replica}"):
        kind(per_replica=per_replica)


@pytest.mark.parametrize(
    ("samples", "batch_size", "named"),
    [
        (7, 8, "fewer than one global batch of 8: lower batch_size"),
        (0, 1, "holds 0 samples"),
        (7, FollowReplicas(per_replica=8), "fewer than one global batch of 8"),
        (7, FixedMicroBatches(per_replica=4), "fewer than one global batch of 8"),
    ],
)
def test_a_dataset_that_is_too_small(samples, batch_size, named):
    with pytest.raises(DatasetTooSmallError, match=named):
        plan_of(samples, batch_size, 2)


def plan_of(samples: int, batch_size: object, micro_batch_size: int | None) -> BatchPlan:
    batch, micro_batch = batch_sizes(batch_size, micro_batch_size)
    return BatchPlan(samples=samples, batch_size=batch, micro_batch_size=micro_batch)


def test_the_micro_batch_is_the_batch_or_a_replicas_share_unless_said():
    assert batch_sizes(8, None) == (ConstantBatch(size=8), 8)
    assert batch_sizes(FollowReplicas(per_replica=6), None) == (FollowReplicas(per_replica=6), 6)
    assert batch_sizes(FollowReplicas(per_replica=6), 2) == (FollowReplicas(per_replica=6), 2)
