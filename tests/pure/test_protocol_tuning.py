"""Runs that are tuned while workers die, hang and fall silent: all members cut alike, each sample comes once."""

import functools
import random
from dataclasses import replace

import pytest

from elastic.control.outcome import Ending
from elastic.sim.parts import Plan
from tests.pure.batches import batches
from tests.pure.test_protocol_random import plan_of
from tests.pure.tune_world import TuneWorld

SEEDS, BATCH = 100, 10


@functools.cache
def play(seed: int) -> TuneWorld:
    wishes = random.Random(f"wishes {seed}").choice((0.05, 0.3))
    world = TuneWorld(seed, replace(plan_of(seed), steps=12), wishes)
    try:
        world.play()
        world.judge()
        assert_each_sample_once(world)
    except Exception as error:
        error.add_note(f"seed {seed}: {world.plan}, wishes {wishes}")
        raise
    return world


def assert_each_sample_once(world: TuneWorld) -> None:
    """The stable steps, one after the other, take the samples in their order, without a gap."""
    position = 0
    for lineage in world.stable[: world.plan.steps]:
        for micro_batch in world.cuts[lineage]:
            assert micro_batch.first == position, f"{lineage} takes {micro_batch} after {position} samples"
            position += micro_batch.count


@batches(SEEDS, BATCH, quick=BATCH)
def test_whatever_happens_all_members_cut_alike_and_each_sample_comes_once(seeds):
    for seed in seeds:
        play(seed)


def test_what_was_told_last_is_what_the_controller_says_of_the_run():
    for seed in range(BATCH):
        world = play(seed)
        state = world.ws.state
        if state.outcome.ending is Ending.SUCCEEDED and state.published == world.plan.steps - 1:
            assert state.tuned == world.tuned[world.stable[state.published]]


@pytest.mark.slow
def test_without_faults_a_wish_is_fulfilled_within_a_few_steps_and_is_no_incident():
    fulfilled = 0
    for seed in range(40):
        world = TuneWorld(seed, Plan(replicas=(2, 3), steps=30, in_order=seed % 2 == 0), 0.02).play()
        world.judge()
        assert_each_sample_once(world)
        assert world.ws.state.incidents == ()
        if world.asked and world.asked[-1][0] < world.now_s / 2:
            fulfilled += 1
            last = world.tuned[world.stable[world.plan.steps - 1]]
            assert world.ws.state.tuning.is_part_of(last) and world.asked[-1][1].is_part_of(last)
    assert fulfilled > 5


@pytest.mark.slow
def test_the_worlds_hold_what_they_are_meant_to():
    """Runs of many tunings, tunings in the window of a fault, and refused ones."""
    worlds = [play(seed) for seed in range(SEEDS)]
    tunings = [len(set(world.tuned[lineage] for lineage in world.stable)) for world in worlds]
    assert max(tunings) >= 4
    assert sum(bool(world.asked and world.ws.state.incidents) for world in worlds) > 50
    assert sum(world.ws.state.outcome.ending is Ending.SUCCEEDED for world in worlds) > SEEDS / 2
