"""Checkpoints on their way through the tiers, in seeded worlds: staged, pulled, dropped, uploaded, collected, lost."""

import functools
from dataclasses import replace

import pytest

from elastic.checkpoint import rungs
from elastic.checkpoint.records import Committed
from elastic.checkpoint.rungs import copy_of
from elastic.control import commands as cmd
from elastic.control.values import CommitId, Fork
from elastic.sim.campaign import KINDS, case_of, world_of
from elastic.sim.depot import DepotWorld
from elastic.sim.laws import Violation
from elastic.sim.parts import Plan
from elastic.sim.storage import RUN, SLOTS, Host, Store, digest_of, keys_of
from elastic.sim.succession import DriverDepotWorld
from tests.pure.batches import batches

SEEDS, BATCH = 48, 4
TIERS = {"stage": 1.0, "peers": 1, "upload_s": 3.0, "link_bytes_per_s": 10 << 30, "rewind": 0.0}
HARM = {"outage": 0.0, "node_loss": 0.0}


@functools.cache
def play(number: int) -> DepotWorld:
    """The so manieth world of this kind."""
    case = case_of(len(KINDS) * number + KINDS.index("depot"), 60)
    world = world_of(case)
    try:
        world.play()
        world.judge()
    except Exception as error:
        error.add_note(f"seed {case.seed}: {case}")
        raise
    assert isinstance(world, DepotWorld)
    return world


@batches(SEEDS, BATCH, quick=BATCH)
def test_what_was_safe_stays_so(seeds):
    for number in seeds:
        play(number)


@pytest.mark.slow
def test_the_worlds_hold_what_they_are_meant_to():
    worlds = [play(number) for number in range(SEEDS)]
    for name in ("staged", "pulled", "dropped", "torn", "collected"):
        assert sum(bool(getattr(world, name)) for world in worlds) > 3, name
    assert sum(bool(world.restored) for world in worlds) > 5
    assert sum(len(world.store.committed) > 1 for world in worlds) > 5
    assert {"node_loss", "rack_loss", "outage", "driver"} <= set().union(*(world.faults for world in worlds))
    assert {world.width for world in worlds} == {1, 2}


def test_without_faults_a_step_goes_all_the_way_down():
    world = DepotWorld(3, Plan(replicas=(1, 1), spares=2, steps=40), **TIERS, **HARM).play()
    world.judge()
    assert world.staged and world.pulled and world.dropped and world.store.committed
    assert world.safe is not None and world.keepers(world.safe, list(world.hosts.values())) > 1


def test_who_dies_while_its_state_is_copied_leaves_nothing_behind():
    world = DepotWorld(3, Plan(replicas=(2, 2), steps=6), **TIERS, **HARM)
    world.come_up("w0")
    host, worker = world.hosts["node-w0"], world.workers["w0"]
    worker.is_alive = False
    world.seal(host, worker, commit(0))
    assert host.slots == {} and world.torn == 1
    worker.is_alive = True
    with pytest.raises(Violation, match="is not stable"):
        world.seal(host, worker, commit(0))


def test_slots_are_overwritten_the_oldest_first_unless_they_are_pinned():
    host = Host("n", "w")
    keys = [keys_of(commit(step), 1)[0] for step in range(SLOTS + 1)]
    for key in keys[:SLOTS]:
        assert host.claim_slot()
        host.slots[copy_of(key)] = key
    host.pin(keys[:1])
    assert host.claim_slot() and list(host.slots.values()) == [keys[0], *keys[2:SLOTS]]
    host.slots[copy_of(keys[-1])] = keys[-1]
    host.pin(keys)
    assert not host.claim_slot()


def test_an_outage_tears_what_is_just_being_written_and_the_next_try_mends_it():
    store, (key,) = Store(), keys_of(commit(0), 1)
    store.fail(10.0, 5.0)
    assert store.is_down(14.0) and not store.is_down(15.0)
    assert not store.write(copy_of(key), 9.0, 11.0) and not store.is_whole([key])
    assert not store.write(copy_of(key), 14.0, 16.0)
    assert store.write(copy_of(key), 15.0, 17.0) and store.is_whole([key])
    assert store.write(copy_of(key), 8.0, 9.5), "before it failed"


def test_the_laws_of_collecting_can_be_broken():
    world = DepotWorld(3, Plan(replicas=(1, 1), spares=2, steps=20), **TIERS, **HARM).play()
    assert world.safe is not None
    world.safe = replace(world.safe, step=world.safe.step + 1000)
    with pytest.raises(Violation, match="is all there is"):
        world.check_restorable("a test")


def commit(step: int) -> CommitId:
    return CommitId(incarnation=1, generation=1, attempt=1, step=step, lineage=f"l{step}")


@pytest.mark.parametrize(
    ("kind", "plan", "more", "faults"),
    [
        (DepotWorld, {"replicas": (1, 1), "spares": 2}, {"node_loss": 0.2}, {"node_loss"}),
        (
            DepotWorld,
            {"replicas": (1, 1), "spares": 2, "mute": 0.01},
            {"node_loss": 0.2, "outage": 0.2, "rewind": 0.3, "upload_s": 1.0},
            {"node_loss", "outage", "mute"},
        ),
        (DriverDepotWorld, {"replicas": (1, 1), "spares": 2}, {"node_loss": 0.1, "deaths_s": (5.0, 9.0)}, {"driver"}),
        (DepotWorld, {"replicas": (2, 2), "crash": 0.01}, {}, {"crash"}),
        (DriverDepotWorld, {"replicas": (2, 2), "spares": 4}, {"racks": 2, "rack_loss": 0.2}, {"rack_loss"}),
    ],
    ids=["nodes are lost", "storage fails beside it", "drivers die", "too few are left", "racks are lost"],
)
def test_what_was_safe_stays_so_whatever_is_lost(kind, plan, more, faults):
    for seed in range(4):
        world = kind(seed, Plan(steps=40, **plan), **{**TIERS, **HARM, "link_bytes_per_s": 2 << 30, **more}).play()
        world.judge()
        faults = faults - world.faults
    assert not faults


class Pulling(DepotWorld):
    """Notes where a step is, and where it could be and is to be, when a node is told to take a copy."""

    def heed(self, ladder, event) -> None:
        self.known = {self.rack_of(name) for name in self.heard_s}
        super().heed(ladder, event)

    def call(self, host, act, *arguments) -> None:
        if act is DepotWorld.pull:
            there = {self.rack_of(name) for name in arguments[0].sources}
            self.noted.append((there, self.known, self.rack_of(host.name)))
        super().call(host, act, *arguments)


def test_copies_go_to_another_rack_where_there_is_one():
    spread = 0
    for seed in range(4):
        world = Pulling(seed, Plan(replicas=(1, 1), spares=3, steps=40), **{**TIERS, **HARM, "racks": 2})
        world.noted = []
        world.play().judge()
        for there, known, rack in world.noted:
            assert rack not in there or known <= there
            spread += rack not in there
    assert spread > 4
    assert DepotWorld(3, Plan(replicas=(1, 1)), **TIERS, **HARM).rack_of("node-w0") == ""


def test_a_rack_is_lost_only_where_another_has_what_was_promised():
    world = DepotWorld(3, Plan(replicas=(1, 2), steps=6), **{**TIERS, **HARM, "racks": 2, "rack_loss": 1.0})
    for name in (f"w{place}" for place in range(6)):
        world.come_up(name)
    racks = {name: world.rack_of(name) for name in world.hosts}
    (key,), one = keys_of(commit(3), 1), min(racks)
    far = next(name for name in racks if racks[name] != racks[one])
    world.suffer()
    assert len(world.hosts) == 6, "nothing was promised yet"
    world.safe = commit(3)
    world.hosts[one].copies[copy_of(key)] = key
    assert world.survives_without(racks[far]) and not world.survives_without(racks[one])
    world.hosts[far].copies[copy_of(key)] = key
    world.suffer()
    left = {racks[name] for name in world.hosts}
    assert len(left) == 1 and world.faults == {"rack_loss"}
    world.suffer()
    assert {racks[name] for name in world.hosts} == left, "nothing is left elsewhere"


def one_host() -> tuple[DepotWorld, Host]:
    """A world in which one worker has come up, and its host is heard of."""
    world = DepotWorld(3, Plan(replicas=(1, 1), steps=6), **TIERS, **HARM)
    world.come_up("w0")
    world.heard_s["node-w0"] = 0.0
    return world, world.hosts["node-w0"]


def test_what_is_kept_goes_only_for_something_newer_or_when_nobody_wants_it():
    world, host = one_host()
    (key,) = keys_of(commit(3), 1)
    order = rungs.Drop(key=key, node=host.name, reason="a test")
    with pytest.raises(Violation, match="nothing newer is kept by 1 nodes"):
        world.dropped_from(host, order)
    world.ws.state = replace(world.ws.state, forks=(Fork(incarnation=1, generation=2, step=-1),))
    world.dropped_from(host, order)


def test_what_was_being_dropped_before_is_not_found_and_what_was_found_is_not_dropped():
    world, host = one_host()
    (key,) = keys_of(commit(3), 1)
    host.copies[copy_of(key)] = key
    world.ladder.heed(rungs.NodeUp(node=host.name))
    world.ladder.heed(rungs.Held(node=host.name, holding=host.holding()))
    look = cmd.FindRestore(reason="a test", at_most=3)
    assert world.find(look).commit == key.commit
    order = rungs.Drop(key=key, node=host.name, reason="a test")
    with pytest.raises(Violation, match="about to be restored"):
        world.dropped_from(host, order)
    world.ladder.going = lambda commit, shards: frozenset({(host.name, 0)})
    assert world.find(look).commit is None and world.whole()
    world.store.committed["there"] = Committed(run=RUN, commit=key.commit, manifests=("",), nbytes=0)
    assert world.find(look).commit == key.commit, "the store has it, too"
    world.dropped_from(host, order)


def test_what_the_history_has_left_behind_is_not_staged():
    world, host = one_host()
    queued = len(world.queue)
    world.ws.state = replace(world.ws.state, forks=(Fork(incarnation=1, generation=2, step=-1),))
    world.stage(world.workers["w0"], commit(3))
    assert len(world.queue) == queued
    world.ws.state = replace(world.ws.state, forks=())
    world.stage(world.workers["w0"], commit(3))
    assert len(world.queue) == queued + 1


def test_who_holds_something_else_saves_nothing():
    world, host = one_host()
    queued = len(world.queue)
    world.carry_out(cmd.Save(workers=("w0",), commit=commit(3), reason="the run waits"))
    assert len(world.queue) == queued and host.slots == {}


def test_a_step_that_is_not_there_in_full_is_not_committed():
    world, host = one_host()
    digests = tuple(digest_of(key) for key in keys_of(commit(3), 1))
    world.commit(host, rungs.Commit(commit=commit(3), digests=digests, node=host.name), world.ladder)
    assert world.store.committed == {}


def test_who_is_cut_off_meanwhile_neither_hears_nor_tells():
    world, host = one_host()
    heard, queued = [], len(world.queue)
    world.arrive_at(host, lambda *told: heard.append(told), ("here",))
    worker = world.workers["w0"]
    worker.muted_until_s, worker.cut_ways = 9.0, ("in", "out")
    world.arrive_at(host, lambda *told: heard.append(told), ("there",))
    world.tell_holding(host, world.ladder)
    assert [told[-1] for told in heard] == ["here"] and len(world.queue) == queued


def test_what_was_pulled_to_a_node_that_is_gone_is_nowhere():
    world, host = one_host()
    (key,) = keys_of(commit(3), 1)
    host.slots[copy_of(key)] = key
    order = rungs.Pull(key=key, node=host.name, sources=(host.name,), reason="a test")
    del world.hosts[host.name]
    queued = len(world.queue)
    world.end_pull(host, host, order, world.ladder)
    assert world.pulled == 0 and host.copies == {} and len(world.queue) == queued
