"""Both halves of the protocol with checkpoint tiers below them, in hundreds of seeded worlds with faults."""

import functools
import random

import pytest

from elastic.control.outcome import Ending
from elastic.sim.parts import Plan
from elastic.sim.tiers import TierWorld
from tests.pure.batches import batches

SEEDS = 100
BATCH = 10


@functools.cache
def play(seed: int) -> TierWorld:
    """One world with some faults of some kinds, harder on the workers than where live replicas are all there is."""
    rng = random.Random(f"tiers {seed}")
    low = rng.randint(1, 2)
    plan = Plan(
        replicas=(low, rng.randint(low, 3)),
        spares=rng.randint(0, 1),
        steps=rng.randint(4, 10),
        in_order=rng.random() < 0.5,
        crash=rng.choice((0.0, 0.01, 0.03)),
        hang=rng.choice((0.0, 0.0, 0.005)),
        mute=rng.choice((0.0, 0.0, 0.005)),
        break_=rng.choice((0.0, 0.01, 0.05)),
        lose_order=rng.choice((0.0, 0.02, 0.1)),
        notice=rng.choice((0.0, 0.0, 0.005)),
        stall=rng.choice((0.0, 0.0, 0.1)),
        corrupt=rng.choice((0.0, 0.0, 0.02)),
    )
    tiers = {
        "before": rng.choice((0, 0, 1, 3)),
        "save": rng.choice((0.3, 0.8)),
        "bad": rng.choice((0.0, 0.3)),
        "refuse": rng.choice((0.0, 0.1)),
        "rewind": rng.choice((0.0, 0.3)),
    }
    world = TierWorld(seed, plan, **tiers)
    try:
        world.play()
        world.judge()
    except Exception as error:
        error.add_note(f"seed {seed}: {plan} {tiers}")
        raise
    return world


@batches(SEEDS, BATCH, quick=BATCH)
def test_a_run_goes_on_from_what_was_saved(seeds):
    for seed in seeds:
        play(seed)


@pytest.mark.slow
def test_the_worlds_hold_what_they_are_meant_to():
    worlds = [play(seed) for seed in range(SEEDS)]
    endings = [world.ws.state.outcome.ending for world in worlds]
    assert endings.count(Ending.SUCCEEDED) > len(worlds) / 2
    assert Ending.REPLICAS_LOST in endings
    assert sum(bool(world.restored) for world in worlds) > 25
    assert sum(len(world.restored) > 1 for world in worlds) > 4
    assert sum(bool(world.refused) for world in worlds) > 8
    assert sum(bool(world.rewound and world.restored) for world in worlds) > 4


def test_two_replicas_that_differ_go_back_to_what_they_had_agreed_on():
    plan = Plan(replicas=(2, 2), steps=12, corrupt=0.05)
    tiers = {"before": 0, "save": 0.8, "bad": 0.0, "refuse": 0.0, "rewind": 0.0}
    worlds = [TierWorld(seed, plan, **tiers).play() for seed in range(20)]
    for world in worlds:
        world.judge()
    ties = [world for world in worlds if world.ws.state.disputed_from >= 0]
    assert sum(world.ws.state.outcome.ending is Ending.SUCCEEDED for world in ties) > 2
    assert all(world.restored for world in ties if world.ws.state.outcome.ending is Ending.SUCCEEDED)


def test_a_run_without_faults_begins_where_the_last_one_ended():
    world = TierWorld(1, Plan(replicas=(2, 2), steps=6), before=3, save=1.0, bad=0.0, refuse=0.0, rewind=0.0).play()
    assert world.restored == [2]
    assert world.ws.state.outcome.ending is Ending.SUCCEEDED
    assert [fork.step for fork in world.ws.state.forks] == [2]
    assert world.stable[:3] == ["b0", "b1", "b2"] and len(world.stable) == 6
