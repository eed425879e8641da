"""Both halves of the protocol under policies that want anything, in hundreds of seeded worlds with faults."""

import functools
import random
from collections import Counter

import pytest

from elastic.control.outcome import Ending
from elastic.control.refusing import admitted
from elastic.control.remediation import Kind
from elastic.control.state import Phase, RunState
from elastic.sim.parts import Plan
from tests.pure.bare_controller import BareController
from tests.pure.batches import batches
from tests.pure.policy_world import AnyPolicy, Policies, PolicyGangWorld, PolicyTierWorld, PolicyWorld

SEEDS, BATCH = 300, 15


def plan_of(rng: random.Random, is_shared: bool, largest: int) -> Plan:
    """Where nodes are shared, nobody falls silent alone."""
    low = rng.randint(1, largest - 1)
    return Plan(
        replicas=(low, rng.randint(low, largest)),
        spares=rng.randint(0, 2),
        steps=rng.randint(3, 10),
        in_order=rng.random() < 0.5,
        crash=rng.choice((0.0, 0.005, 0.02)),
        hang=rng.choice((0.0, 0.0, 0.005)),
        mute=0.0 if is_shared else rng.choice((0.0, 0.005)),
        break_=rng.choice((0.0, 0.02, 0.05)),
        lose_order=rng.choice((0.0, 0.02, 0.1)),
        notice=rng.choice((0.0, 0.0, 0.01)),
        stall=rng.choice((0.0, 0.0, 0.05)),
    )


@functools.cache
def play(seed: int) -> Policies:
    """One world: without tiers, with tiers, or with replicas of two workers."""
    rng = random.Random(f"policies {seed}")
    is_shared = rng.random() < 0.7
    kind = seed % 3
    plan = plan_of(rng, is_shared, 2 if kind == 2 else 4)
    tiers = {"before": rng.choice((0, 2)), "save": 0.8, "bad": rng.choice((0.0, 0.2)), "refuse": 0.05, "rewind": 0.0}
    world: Policies
    if kind == 0:
        world = PolicyWorld(seed, plan)
    elif kind == 1:
        world = PolicyTierWorld(seed, plan, **tiers)
    else:
        world = PolicyGangWorld(seed, plan, 2)
    world.is_shared = is_shared
    chances = {"ends": rng.choice((0.0, 0.0, 0.1)), "twice": rng.choice((0.0, 0.1)), "jump": rng.choice((0.0, 0.01))}
    world.obstruct(random.Random(f"odd {seed}"), nonsense=0.02, **chances)
    try:
        world.play()
        judge_the_end(world)
    except Exception as error:
        error.add_note(f"seed {seed}: {type(world).__name__}, shared nodes: {is_shared}, {plan} {chances}")
        raise
    return world


def judge_the_end(world: Policies) -> None:
    """A run that did not succeed had a reason."""
    outcome = world.ws.state.outcome
    assert outcome is not None
    wanted = set(world.policy.wanted)
    if outcome.ending is Ending.SUCCEEDED:
        assert len(world.stable) == world.plan.steps
    elif outcome.ending is Ending.EXITED:
        assert Kind.EXIT in wanted
    elif outcome.ending is Ending.NO_PROGRESS:
        assert Kind.GIVE_UP in wanted
    elif outcome.ending is Ending.NOT_ENOUGH_SLOTS:
        assert {Kind.REPLACE_NODE, Kind.QUARANTINE, Kind.WAIT} & wanted
    else:
        assert outcome.ending is Ending.REPLICAS_LOST, outcome


@batches(SEEDS, BATCH, quick=BATCH)
def test_whatever_a_policy_wants_the_laws_hold_and_the_run_ends(seeds):
    for seed in seeds:
        play(seed)


@pytest.mark.slow
def test_the_worlds_hold_what_they_are_meant_to():
    """Every kind is wanted, and every effect of a kind takes place."""
    worlds = [play(seed) for seed in range(SEEDS)]
    wanted = Counter(kind for world in worlds for kind in world.policy.wanted)
    assert set(wanted) == set(Kind) and min(wanted.values()) > 5, wanted
    endings = Counter(world.ws.state.outcome.ending for world in worlds)
    assert endings[Ending.SUCCEEDED] > len(worlds) / 2, endings
    assert endings[Ending.EXITED] > 2 and endings[Ending.NO_PROGRESS] > 2, endings
    assert sum(world.resets for world in worlds) > 5
    assert sum(world.disbelieved for world in worlds) > 100
    assert sum(world.repeated for world in worlds) > 100
    assert sum(world.jumps for world in worlds) > 20
    asked = [command for world in worlds for command in world.asked.values()]
    assert sum(bool(command.avoid) for command in asked) > 20
    assert sum(bool(command.node) for command in asked) > 5
    done = Counter(kind for world in worlds for kind in world.ws.state.care.recovery_s)
    assert {Kind.RESTART, Kind.RESET_GPU, Kind.QUARANTINE, Kind.PAUSE, Kind.RESTART_FROM_TIER} <= set(done), done


@pytest.mark.parametrize("seed", range(0, 60, 2))
def test_events_that_are_lost_repeated_and_shuffled_break_no_law(seed):
    """What a controller was told is told to another one, worse: all laws are checked after each event."""
    world = play(seed)
    rng = random.Random(f"shuffled {seed}")
    heard = [event for event in world.heard for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 1, 1, 1, 2)))]
    order = sorted(range(1, len(heard)), key=lambda place: place + rng.uniform(0.0, 6.0))
    ws = BareController(policy=AnyPolicy(rng, ends=0.0))
    ws.state = RunState(settings=world.ws.state.settings)
    for event in (world.heard[0], *(heard[place] for place in order)):
        believed, _ = admitted(ws.state, event)
        if believed is not None and ws.phase is not Phase.ENDED:
            ws.feed(believed, after_s=0.1)
