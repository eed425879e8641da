"""Streams: each sample of each stream once and in order, whatever the resizes; epochs end exactly."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.control.batch_size import ConstantBatch, FixedMicroBatches, FollowReplicas
from elastic.control.data import contribution, expected
from elastic.control.streams import Place, StreamPlan, advanced
from elastic.errors import ConservationError, SettingError

few = settings(deadline=None, max_examples=80)


def plan_of(lengths, micro_batch_size=2, batch_size=None):
    places = tuple(Place(0, 0, min(micro_batch_size, length)) for length in lengths)
    size = batch_size or ConstantBatch(size=micro_batch_size * min(3, len(lengths)))
    return StreamPlan(places=places, streams=len(lengths), batch_size=size, micro_batch_size=micro_batch_size, seed=5)


def after(plan, lengths, one):
    """Where a stream of that length stands once the micro-batch is consumed."""
    left = lengths[one.stream] - (one.first + 1) * plan.micro_batch_size
    if left > 0:
        return Place(one.epoch, one.first + 1, min(plan.micro_batch_size, left))
    return Place(one.epoch + 1, 0, min(plan.micro_batch_size, lengths[one.stream]))


def history(plan, lengths, sizes):
    """The steps of these sizes, and the plan after them."""
    steps = []
    for replicas in sizes:
        step = plan.cut(0, replicas)
        steps.append(step)
        moved = advanced(step, [(one.stream, after(plan, lengths, one)) for one in step])
        plan = replace(plan, places=tuple(moved.get(k, place) for k, place in enumerate(plan.places)))
    return steps, plan


def samples(plan, one):
    """(stream, position) of each."""
    start = one.first * plan.micro_batch_size
    return [(one.stream, position) for position in range(start, start + one.count)]


lengths_of_streams = st.lists(st.integers(1, 20), min_size=3, max_size=7)
sizes_of_steps = st.lists(st.integers(1, 3), min_size=1, max_size=60)
KINDS = st.sampled_from(
    [ConstantBatch(size=6), ConstantBatch(size=2), FollowReplicas(per_replica=2), FixedMicroBatches(per_replica=1)]
)


@few
@given(lengths=lengths_of_streams, sizes=sizes_of_steps, kind=KINDS)
def test_whatever_the_resizes_each_sample_of_a_stream_comes_once_an_epoch_and_in_order(lengths, sizes, kind):
    plan = plan_of(lengths, batch_size=kind)
    steps, _ = history(plan, lengths, sizes)
    for stream, length in enumerate(lengths):
        for epoch in range(max(one.epoch for step in steps for one in step) + 1):
            taken = [
                position
                for step in steps
                for one in step
                if (one.stream, one.epoch) == (stream, epoch)
                for _, position in samples(plan, one)
            ]
            assert taken == list(range(len(taken)))
            if any(one.epoch > epoch for one in steps[-1]):
                assert len(taken) == length


@few
@given(lengths=lengths_of_streams, sizes=sizes_of_steps, kind=KINDS)
def test_no_step_crosses_an_epoch_is_empty_or_takes_twice_from_a_stream(lengths, sizes, kind):
    for step in history(plan_of(lengths, batch_size=kind), lengths, sizes)[0]:
        assert step and len({one.epoch for one in step}) == 1
        assert max(Counter(one.stream for one in step).values()) == 1
        assert [one.number for one in step] == list(range(len(step)))


@few
@given(lengths=lengths_of_streams, sizes=sizes_of_steps)
def test_a_retry_by_fewer_replicas_takes_a_prefix(lengths, sizes):
    _, plan = history(plan_of(lengths, batch_size=FollowReplicas(per_replica=2)), lengths, sizes)
    whole = plan.cut(0, 3)
    assert whole[: len(plan.cut(0, 1))] == plan.cut(0, 1)


def test_an_epoch_by_hand():
    """Streams of 5, 2 and 3 samples, micro-batches of 2, steps of two of these."""
    lengths = [5, 2, 3]
    plan = plan_of(lengths, batch_size=ConstantBatch(size=4))
    steps, plan = history(plan, lengths, [1] * 4)
    assert [[(one.stream, one.count) for one in step] for step in steps] == [
        [(0, 2), (1, 2)],
        [(2, 2), (0, 2)],
        [(2, 1), (0, 1)],
        [(0, 2), (1, 2)],
    ]
    assert [step[0].epoch for step in steps] == [0, 0, 0, 1]


def test_streams_that_are_a_multiple_of_a_steps_micro_batches_stay_with_their_replica():
    lengths = [40] * 6
    steps, _ = history(plan_of(lengths), lengths, [1] * 12)
    number_of = {(one.stream, one.number) for step in steps for one in step}
    assert len(number_of) == 6


def test_the_record_tells_streams_places_and_sizes_apart():
    plan = plan_of([9, 9, 9])
    one = plan.cut(0, 1)[0]
    others = [replace(one, stream=1), replace(one, epoch=1), replace(one, first=1), replace(one, count=1)]
    assert len({plan.micro_batch_hash(other) for other in [one, *others]}) == 5
    step = plan.cut(0, 2)
    parts = [contribution(plan, step[:1], 7), contribution(plan, step[1:], 7)]
    words = [sum(pair) for pair in zip(*(part.words() for part in parts), strict=True)]
    assert tuple(words) == expected(plan, 0, 2, 7).words()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda told: told[1:],
        lambda told: [*told, told[0]],
        lambda told: [*told[1:], (2, Place(0, 1, 2))],
        lambda told: [(told[0][0], Place(0, 2, 2)), *told[1:]],
        lambda told: [(told[0][0], Place(0, 0, 2)), *told[1:]],
        lambda told: [(told[0][0], Place(2, 0, 2)), *told[1:]],
    ],
    ids=["one is missing", "one came twice", "another's", "went too far", "did not move", "jumped an epoch"],
)
def test_streams_that_were_not_read_as_planned_are_found_out(spoil):
    lengths = [9, 9, 9]
    plan = plan_of(lengths, batch_size=ConstantBatch(size=4))
    step = plan.cut(0, 1)
    told = [(one.stream, after(plan, lengths, one)) for one in step]
    assert set(advanced(step, told)) == {0, 1}
    with pytest.raises(ConservationError, match="no optimizer was run"):
        advanced(step, spoil(told))


@pytest.mark.parametrize(
    ("streams", "batch_size", "micro_batch_size", "named"),
    [
        (2, ConstantBatch(size=6), 2, "a step of 3 micro-batches .* there are 2: raise session.streams"),
        (2, ConstantBatch(size=3), 2, "a batch of 3 is no multiple of micro_batch_size=2"),
        (0, ConstantBatch(size=2), 2, "streams=0"),
        (2, ConstantBatch(size=2), 0, "micro_batch_size=0"),
    ],
)
def test_sizes_that_can_not_work(streams, batch_size, micro_batch_size, named):
    with pytest.raises(SettingError, match=named):
        StreamPlan(places=(), streams=streams, batch_size=batch_size, micro_batch_size=micro_batch_size)


def test_what_would_not_do_after_growth_is_refused_before_the_first_step():
    plan = plan_of([9] * 8, batch_size=FixedMicroBatches(per_replica=2))
    plan.require(4)
    with pytest.raises(SettingError, match=r"with 5 replicas, which Scaling.num_dp_replicas allows, .* there are 8"):
        plan.require(5)


def test_growth_beyond_the_streams_is_refused_with_the_knob():
    with pytest.raises(SettingError, match="raise session.streams"):
        plan_of([9, 9], batch_size=FollowReplicas(per_replica=2)).cut(0, 3)
