"""Both halves of the protocol against each other, in hundreds of seeded worlds with faults.

A failure names its seed; `play(seed)` repeats it exactly.
"""

import functools
import random
from dataclasses import replace

import pytest

from elastic.control.outcome import Ending
from elastic.sim.parts import Plan
from elastic.sim.world import World
from tests.pure.batches import batches

SEEDS = 200
BATCH = 10


def plan_of(seed: int) -> Plan:
    """A group of 1 to 4 with some faults of some kinds."""
    rng = random.Random(f"plan {seed}")
    low = rng.randint(1, 3)
    return Plan(
        replicas=(low, rng.randint(low, 4)),
        spares=rng.randint(0, 2),
        steps=rng.randint(1, 8),
        in_order=rng.random() < 0.5,
        crash=rng.choice((0.0, 0.003, 0.02)),
        hang=rng.choice((0.0, 0.0, 0.005)),
        mute=rng.choice((0.0, 0.0, 0.005)),
        break_=rng.choice((0.0, 0.01, 0.05)),
        lose_order=rng.choice((0.0, 0.02, 0.1)),
        notice=rng.choice((0.0, 0.0, 0.005)),
        stall=rng.choice((0.0, 0.0, 0.1)),
    )


@functools.cache
def play(seed: int) -> World:
    """One world; the assertions are in the world, and on its end."""
    world = World(seed, plan_of(seed))
    try:
        world.play()
        world.judge()
    except Exception as error:
        error.add_note(f"seed {seed}: {plan_of(seed)}")
        raise
    return world


@batches(SEEDS, BATCH, quick=BATCH)
def test_whatever_happens_no_stable_step_is_lost_and_the_run_ends(seeds):
    for seed in seeds:
        play(seed)


def test_without_faults_every_run_succeeds_in_one_generation_per_size():
    for seed in range(10):
        world = World(seed, Plan(replicas=(2, 3), spares=1, in_order=seed % 2 == 0)).play()
        world.judge()
        assert world.ws.state.outcome.ending is Ending.SUCCEEDED
        assert world.ws.state.incidents == ()


@pytest.mark.slow
def test_the_worlds_hold_what_they_are_meant_to():
    """The seeds above bring about every fault, many generations, and both ends."""
    worlds = [play(seed) for seed in range(0, SEEDS, 4)]
    seen = set().union(*(world.faults for world in worlds))
    assert seen == {"crash", "hang", "mute", "break_", "lose_order", "stall", "notice"}
    assert max(world.ws.generation for world in worlds) >= 5
    endings = [world.ws.state.outcome.ending for world in worlds]
    assert endings.count(Ending.SUCCEEDED) > len(worlds) / 2
    assert Ending.REPLICAS_LOST in endings


@batches(150, 15, quick=15)
def test_who_is_outvoted_belongs_to_no_generation_again(seeds):
    """Bits flip; the run goes on without whoever holds others, or ends where nobody can say whose are right."""
    endings, named = [], 0
    for seed in seeds:
        plan = replace(plan_of(seed), corrupt=0.05)
        world = World(seed, plan).play()
        endings.append(world.ws.state.outcome.ending)
        named += len(world.named)
        if endings[-1] is Ending.SUCCEEDED:
            members = [world.workers[member.name] for member in world.ws.state.members]
            holders = [member for member in members if member.name not in world.named and member.state.healed]
            assert len({member.bits for member in holders if member.state.commit.step == plan.steps - 1}) <= 1, seed
    assert Ending.SUCCEEDED in endings and set(endings) <= {Ending.SUCCEEDED, Ending.REPLICAS_LOST, Ending.DIVERGED}
    assert named > 0 or seeds.start > 0


def test_a_seed_repeats_itself():
    one, two = (World(5, plan_of(5)).play() for _ in range(2))
    assert one.ws.state == two.ws.state
