"""Drivers die at any moment, and new ones adopt the workers: hundreds of seeded worlds, with other faults beside."""

import functools
import random
from typing import Any

import pytest

from elastic.control import events as ev
from elastic.control.outcome import Ending
from elastic.sim.parts import Plan
from elastic.sim.succession import DriverGangWorld, DriverTierWorld, DriverWorld
from tests.pure import test_protocol_gangs, test_protocol_random
from tests.pure.batches import batches

SEEDS, BATCH = 300, 15


def deaths_of(rng: random.Random) -> tuple[float, ...]:
    """One to three; some come while the one before is being handled."""
    first_s = rng.uniform(0.3, 12.0)
    return (first_s, *(first_s + rng.uniform(0.0, 8.0) for _ in range(rng.choice((0, 0, 1, 2)))))


@functools.cache
def play(seed: int) -> DriverWorld:
    rng = random.Random(f"drivers {seed}")
    plan = test_protocol_random.plan_of(seed)
    world = DriverWorld(seed, plan, deaths_s=deaths_of(rng))
    try:
        world.play()
        world.judge()
    except Exception as error:
        error.add_note(f"seed {seed}: {plan}")
        raise
    return world


@batches(SEEDS, BATCH, quick=BATCH)
def test_whenever_drivers_die_no_stable_step_is_lost_and_the_run_ends(seeds):
    for seed in seeds:
        play(seed)


@pytest.mark.slow
def test_the_worlds_hold_what_they_are_meant_to():
    worlds = [play(seed) for seed in range(0, SEEDS, 2)]
    assert sum("driver" in world.faults for world in worlds) > len(worlds) * 0.6
    assert sum(world.stale > 0 for world in worlds) > 2, "orders of dead drivers arrive late"
    assert sum(len(world.faults) > 2 for world in worlds) > 40, "other faults come beside"
    assert max(world.life for world in worlds) >= 4
    endings = [world.ws.state.outcome.ending for world in worlds]
    assert endings.count(Ending.SUCCEEDED) > len(worlds) / 2
    assert 0 < sum(world.begun > 0 for world in worlds) < len(worlds) / 4


def test_where_nothing_but_the_driver_dies_nobody_is_started_anew():
    """Two replicas and a spare, all at their door or beyond: the same three to the end, each in one process."""
    for seed in range(15):
        world = DriverWorld(seed, Plan(replicas=(2, 2), spares=1, steps=8), deaths_s=(9.0,)).play()
        assert world.ws.state.outcome.ending is Ending.SUCCEEDED
        assert set(world.workers) == {"w0", "w1", "w2"} or "driver" not in world.faults
        assert len(world.stable) == 8
        assert world.ws.state.published == 7


class DiesAtTheDoor(DriverWorld):
    """Its second driver dies when it has found the workers, and before it has taken over."""

    def __init__(self, seed: int, plan: Plan, **options: Any) -> None:
        self.openings: list[ev.RunTakenOver] = []
        super().__init__(seed, plan, **options)

    def control(self, event: ev.Event) -> None:
        if isinstance(event, ev.RunTakenOver):
            self.openings.append(event)
        if isinstance(event, ev.RunTakenOver) and self.life == 2:
            self.die()
        else:
            super().control(event)


def test_a_driver_that_dies_before_it_has_taken_over_leaves_the_journal_it_has_found():
    world = DiesAtTheDoor(0, Plan(replicas=(2, 2), spares=1, steps=40, quick=True), deaths_s=(8.0,)).play()
    world.judge()
    second, third = world.openings
    assert second.published >= 0 and second.next_worker == 3
    assert (third.published, third.ahead) == (second.published, second.ahead)
    assert (third.next_worker, third.next_gang) == (second.next_worker, second.next_gang)


@batches(150, 10, quick=10)
def test_shards_never_part_when_drivers_die(seeds):
    for seed in seeds:
        rng = random.Random(f"gang drivers {seed}")
        plan, width = test_protocol_gangs.plan_of(seed)
        world = DriverGangWorld(seed, plan, width, deaths_s=deaths_of(rng))
        try:
            world.play()
            world.judge()
        except Exception as error:
            error.add_note(f"seed {seed}: width {width}, {plan}")
            raise


@pytest.mark.slow
def test_tiers_and_live_workers_agree_when_drivers_die():
    ended = []
    for seed in range(75):
        rng = random.Random(f"tier drivers {seed}")
        plan = Plan(
            replicas=(1, rng.randint(1, 3)),
            spares=rng.randint(0, 1),
            steps=rng.randint(4, 10),
            crash=rng.choice((0.0, 0.01)),
            break_=rng.choice((0.0, 0.03)),
            lose_order=rng.choice((0.0, 0.05)),
        )
        tiers = {"before": rng.choice((0, 2)), "save": 0.8, "bad": 0.0, "refuse": 0.0, "rewind": rng.choice((0.0, 0.3))}
        world = DriverTierWorld(seed, plan, deaths_s=deaths_of(rng), **tiers)
        try:
            world.play()
        except Exception as error:
            error.add_note(f"seed {seed}: {plan} {tiers}")
            raise
        ended.append(world.ws.state.outcome.ending)
        assert ended[-1] in (Ending.SUCCEEDED, Ending.REPLICAS_LOST), seed
    assert ended.count(Ending.SUCCEEDED) > 37
