"""Simulated workers at the door: what they say there, whom they miss, and who goes on without whom."""

import math
from dataclasses import replace

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.control.state import Phase
from elastic.sim.campaign import unruly
from elastic.sim.laws import Violation
from elastic.sim.parts import Plan, reading_of
from elastic.sim.succession import DriverGangWorld, DriverWorld
from tests.pure.test_worlds import trained, until


def world_of(*, width: int = 1, replicas: tuple[int, int] = (1, 4), **plan):
    made = Plan(replicas=replicas, steps=5000, says_at_door=True, quick=True, **plan)
    return unruly(DriverWorld)(3, made) if width == 1 else unruly(DriverGangWorld)(3, made, width)


def full(world):
    """All replicas that may train do."""
    trained(world)
    return until(world, lambda: world.ws.phase is Phase.RUNNING and world.ws.view.replicas == world.plan.replicas[1])


def split(world, *names: str, lasts_s: float = 60.0) -> None:
    """These workers and the others do not reach each other, as `Unrest.split` has it."""
    world.struck |= world.workers.keys()
    world.sides = [(world.now_s + lasts_s, frozenset(world.node_of(name) for name in names))]


def test_who_comes_to_the_door_says_so():
    world = full(world_of())
    members = [world.workers[member.worker] for member in world.ws.view.members]
    assert ev.AtDoor in world.ws.kinds and {one.at_door for one in members} == {world.ws.generation}
    silent = trained(unruly(DriverWorld)(3, Plan(replicas=(1, 4), steps=500)))
    assert ev.AtDoor not in silent.ws.kinds


def test_members_apart_miss_each_other_and_the_larger_side_goes_on():
    """Three do not reach the leader: it misses them, each of them misses it, and it is told to leave."""
    world = full(world_of())
    leader, *others = (member.worker for member in world.ws.view.members)
    split(world, leader)
    until(world, lambda: set(others) == set(world.workers[leader].missing))
    until(world, lambda: {world.workers[name].missing for name in others} == {(leader,)})
    until(world, lambda: world.ws.phase is Phase.RUNNING and world.ws.state.formed_in_vain == world.ws.generation - 1)
    assert {member.worker for member in world.ws.view.members} == set(others)
    assert {world.workers[name].missing for name in others} == {()}


def test_workers_of_a_gang_meet_after_those_who_hold_the_same_shard():
    world = full(world_of(width=2, replicas=(2, 2)))
    members = [member.worker for member in world.ws.view.members]  # two replicas: 0 and 1, 2 and 3
    split(world, members[1], members[3])
    until(world, lambda: world.workers[members[1]].missing == (members[0],))
    until(world, lambda: world.workers[members[2]].missing == (members[3],))


def test_who_does_not_reach_the_leader_alone_leaves():
    """Both ends of a broken link reach the others, who stay with the leader."""
    world = full(world_of())
    world.control(ev.CollectiveBroken(worker="w0", generation=world.ws.generation, error="reset"))
    until(world, lambda: world.ws.phase is Phase.FORMING)
    leader, *others, last = (member.worker for member in world.ws.view.members)
    link = world.node_of(last), world.node_of(leader)
    world.struck |= {*link}
    world.links = {link: world.now_s + 60.0}
    until(world, lambda: world.workers[leader].missing == (last,) and world.workers[last].missing == (leader,))
    until(world, lambda: world.ws.phase is Phase.RUNNING and world.ws.state.formed_in_vain == world.ws.generation - 1)
    assert {member.worker for member in world.ws.view.members} == {leader, *others}


def test_of_two_who_have_both_met_at_the_leader_and_do_not_connect_one_leaves():
    """The others have each other, and do not wait until the link is whole."""
    world = full(world_of())
    leader, *others = (member.worker for member in world.ws.view.members)
    link = world.node_of(others[0]), world.node_of(others[1])
    world.struck |= {*link}
    world.links = {link: world.now_s + 60.0}
    until(world, lambda: world.workers[others[0]].missing == (others[1],))
    until(world, lambda: world.ws.phase is Phase.RUNNING and world.ws.state.formed_in_vain == world.ws.generation - 1)
    assert len({member.worker for member in world.ws.view.members} & {*others[:2]}) == 1
    assert {member.worker for member in world.ws.view.members} >= {leader, *others[2:]}


def test_nobody_is_parted_where_too_few_would_be_left():
    world = full(world_of(replicas=(4, 4)))
    split(world, "w0", lasts_s=40.0)
    until(world, lambda: world.ws.state.formed_in_vain > 0 and world.ws.phase is Phase.RUNNING)
    assert len(world.ws.view.members) == 4 and not world.sides


def test_user_code_keeps_a_worker_from_the_door_and_the_time_to_form_counts_from_then():
    world = full(world_of(linger=1e-9))
    world.rates["linger"] = 1.0
    world.control(ev.CollectiveBroken(worker="w0", generation=world.ws.generation, error="reset"))
    until(world, lambda: any(one.busy_until_s > world.now_s for one in world.workers.values()))
    world.rates["linger"] = 0.0
    busy = next(one for one in world.workers.values() if one.busy_until_s > world.now_s)
    seen = reading_of(busy, world.now_s)
    assert seen.phase is Flying.OUTSIDE and seen.generation == busy.at_door < busy.state.generation
    assert busy.name in world.struck
    until(world, lambda: world.ws.phase is Phase.RUNNING)


def test_a_group_whose_leader_has_died_waits_for_it():
    world = full(world_of())
    view = world.ws.view
    leader, other = (world.workers[member.worker] for member in view.members[:2])
    leader.is_alive = False
    world.met.clear()
    world.look_around(other, view)
    assert other.missing == (leader.name,)
    world.met[view.generation, False, leader.name].add(other.name)
    other.missing = ("w9",)
    world.look_around(other, view)
    assert other.missing == ("w9",), "what the store has said last counts"


def test_who_missed_each_other_and_is_put_together_again_breaks_a_law():
    world = full(world_of())
    view = replace(world.ws.view, generation=world.ws.generation + 1, donors=(0, 1, 2, 3))
    world.ws.state = replace(world.ws.state, formed_in_vain=world.ws.generation)
    world.check_parted(view)
    for name, missing in ("w0", ("w1", "w2", "w3")), ("w1", ("w0",)), ("w2", ("w0",)), ("w3", ("w0",)):
        world.workers[name].missing = missing
    world.check_parted(replace(view, restored=True))
    with pytest.raises(Violation, match="could go on alone"):
        world.check_parted(view)
    for name in "w1", "w2", "w3":
        world.workers[name].missing = ("w0",) if name == "w3" else ()
    world.workers["w0"].missing = ("w3",)
    with pytest.raises(Violation, match="could go on alone"):  # one link: no side is cut off from the other
        world.check_parted(view)


def test_whoever_has_met_with_nothing_and_is_given_up_breaks_a_law():
    """In a world in which somebody else has crashed."""
    world = full(world_of(crash=1e-9))
    world.faults.add("crash")
    worker = world.workers["w1"]
    for order in cmd.Fence(worker="w1", reason="a guess"), cmd.Dismiss(workers=("w1",), reason="a guess"):
        with pytest.raises(Violation, match="who survives is not replaced: nothing struck w1: a guess"):
            world.carry_out(order)
    world.struck.add(world.node_of("w1"))
    world.check_survives(worker, "its node is bad")
    world.struck.clear()
    worker.is_tainted = True
    world.check_survives(worker, "its bits differ")
    worker.is_tainted, worker.muted_until_s = False, -math.inf
    world.struck.add("w1")
    world.carry_out(cmd.Fence(worker="w1", reason="it hangs"))
    assert not worker.is_alive
