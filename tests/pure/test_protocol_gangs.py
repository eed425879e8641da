"""Replicas of several workers in hundreds of seeded worlds: shards never part, and no stable step is lost."""

import functools
import random

import pytest

from elastic.control.outcome import Ending
from elastic.sim.gangs import GangWorld
from elastic.sim.parts import Plan
from tests.pure.batches import batches

SEEDS, BATCH = 250, 10


def plan_of(seed: int) -> tuple[Plan, int]:
    """One to three replicas of two or three workers."""
    rng = random.Random(f"gangs {seed}")
    low = rng.randint(1, 2)
    plan = Plan(
        replicas=(low, rng.randint(low, 3)),
        spares=rng.randint(0, 1),
        steps=rng.randint(1, 8),
        in_order=rng.random() < 0.5,
        crash=rng.choice((0.0, 0.003, 0.01)),
        hang=rng.choice((0.0, 0.0, 0.003)),
        mute=rng.choice((0.0, 0.0, 0.003)),
        break_=rng.choice((0.0, 0.01, 0.05)),
        lose_order=rng.choice((0.0, 0.02, 0.1)),
        notice=rng.choice((0.0, 0.0, 0.003)),
        stall=rng.choice((0.0, 0.0, 0.1)),
    )
    return plan, rng.choice((2, 2, 3))


@functools.cache
def play(seed: int) -> GangWorld:
    plan, width = plan_of(seed)
    world = GangWorld(seed, plan, width)
    try:
        world.play()
        world.judge()
    except Exception as error:
        error.add_note(f"seed {seed}: width {width}, {plan}")
        raise
    return world


@batches(SEEDS, BATCH, quick=10)
def test_whatever_happens_shards_never_part_and_the_run_ends(seeds):
    for seed in seeds:
        play(seed)


def test_without_faults_every_run_succeeds():
    for seed in range(10):
        world = GangWorld(seed, Plan(replicas=(2, 3), spares=1, in_order=seed % 2 == 0), 2).play()
        world.judge()
        assert world.ws.state.outcome.ending is Ending.SUCCEEDED
        assert world.ws.state.incidents == ()


@pytest.mark.slow
def test_the_worlds_hold_what_they_are_meant_to():
    """Replicas whose workers parted over an apply, and went on from there; and both ends."""
    worlds = [play(seed) for seed in range(0, SEEDS, 3)]
    endings = [world.ws.state.outcome.ending for world in worlds]
    assert endings.count(Ending.SUCCEEDED) > len(worlds) / 2
    assert Ending.REPLICAS_LOST in endings
    assert sum(world.split for world in worlds) >= 2
    assert sum(world.rolled_forward for world in worlds) >= 4
