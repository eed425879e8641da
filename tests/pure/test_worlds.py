"""Simulated worlds, one rare situation at a time: what their parts do in it, and that their laws can be broken."""

import heapq
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.outcome import Ending
from elastic.control.state import Phase
from elastic.control.values import CommitId, IncidentClass
from elastic.ledger.ledger import Ledger
from elastic.ledger.model import Category
from elastic.sim import campaign
from elastic.sim.campaign import unruly
from elastic.sim.clockwork import TICK_S, Clockwork
from elastic.sim.gangs import GangWorld
from elastic.sim.journalled import judge_account
from elastic.sim.laws import Violation
from elastic.sim.parts import Plan, SimWorker
from elastic.sim.succession import DriverDepotWorld, DriverGangWorld, DriverTierWorld, DriverWorld, Order
from elastic.sim.tiers import TierWorld
from elastic.sim.unrest import ACTS, Unrest
from elastic.sim.world import World

W = TypeVar("W", bound=Clockwork)
TIERS = {"before": 0, "save": 1.0, "bad": 0.0, "refuse": 0.0, "rewind": 0.0}


def begun(world: W) -> W:
    world.later(0.0, world.control, ev.RunStarted())
    world.later(TICK_S, world.tick)
    return world


def until(world: W, holds: Callable[[], bool]) -> W:
    """Play on until this holds."""
    while not holds():
        world.now_s, _, act, arguments = heapq.heappop(world.queue)
        assert world.now_s < world.plan.limit_s and world.ws.phase is not Phase.ENDED
        act(*arguments)
    return world


def trained(world: W, steps: int = 3) -> W:
    """So many steps are stable, and all train."""
    return until(begun(world), lambda: len(world.stable) >= steps and world.ws.phase is Phase.RUNNING)


def commit(step: int, lineage: str = "", **more: int) -> CommitId:
    place = {"incarnation": 1, "generation": 1, "attempt": 1, **more}
    return CommitId(step=step, lineage=lineage or f"l{step}", **place)


# --- workers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "world",
    [World(1, Plan(replicas=(1, 1), steps=500)), GangWorld(1, Plan(replicas=(1, 1), steps=500), 2)],
    ids=["one worker", "a gang"],
)
def test_who_was_not_reached_for_a_lease_applies_nothing(world):
    trained(world)
    for worker in world.workers.values():
        worker.muted_at_s, worker.muted_until_s = world.now_s - 2 * world.plan.lease_s, world.now_s + 5.0
        worker.cut_ways = ("in",)
    begin_s, held = world.now_s, {name: one.state.commit.step for name, one in world.workers.items()}
    until(world, lambda: world.now_s > begin_s + 4.0)
    assert all(one.state.commit.step <= held[name] + 1 for name, one in world.workers.items()), "one was under way"


def test_donors_that_differ_are_found_while_a_generation_forms():
    """Of three that hand their state on one is odd: it is named, and whoever joins gets what the other two hold."""
    world = trained(World(2, Plan(replicas=(1, 4), steps=500, corrupt=1e-9)))
    world.crash(world.workers["w3"])
    until(
        world, lambda: world.ws.phase is Phase.FORMING and len(world.ws.view.donors) == 3 < len(world.ws.view.members)
    )
    odd = world.ws.view.members[world.ws.view.donors[1]].worker
    world.workers[odd].bits = 99
    until(world, lambda: any(one.kind is IncidentClass.SILENT_CORRUPTION for one in world.ws.state.incidents))
    found = next(one for one in world.ws.state.incidents if one.kind is IncidentClass.SILENT_CORRUPTION)
    assert found.culprits == (odd,)


def test_what_was_replaced_is_forgotten_unless_it_was_stable():
    world = trained(GangWorld(1, Plan(replicas=(2, 2), steps=500), 2))
    worker, newest = world.workers["w0"], len(world.stable) - 1
    worker.view = replace(world.ws.view, replaced=("w0",))
    worker.pending = commit(newest + 1, "other")
    world.forget_superseded(worker)
    assert worker.pending is None
    worker.pending = commit(newest, world.stable[newest])
    with pytest.raises(Violation, match="w0 is told that it was replaced"):
        world.forget_superseded(worker)


def test_what_the_next_generation_does_not_resume_from_is_forgotten():
    world = trained(GangWorld(1, Plan(replicas=(2, 2), steps=500), 2))
    worker, newest = world.workers["w0"], len(world.stable) - 1
    worker.view = replace(world.ws.view, resume=commit(newest, world.stable[newest]))
    worker.pending = commit(newest + 1, "other")
    world.forget_superseded(worker)
    assert worker.pending is None
    worker.view = replace(world.ws.view, resume=commit(newest + 2))
    worker.pending = commit(newest + 1, "other")
    with pytest.raises(Violation, match="was replaced, and w0 is not told"):
        world.forget_superseded(worker)


# --- the network ------------------------------------------------------------------------------------------------------


def test_where_a_node_is_out_of_reach_calls_may_fail_at_once():
    worlds = [World(seed, Plan(replicas=(1, 3), steps=10, mute=0.02, lose_call=1.0)).play() for seed in range(10)]
    for world in worlds:
        world.judge()
    assert sum({"mute", "lose_call"} <= world.faults for world in worlds) > 2


def test_two_replicas_that_differ_end_a_run_without_checkpoints():
    worlds = [World(seed, Plan(replicas=(2, 2), steps=12, corrupt=0.1)).play() for seed in range(10)]
    for world in worlds:
        world.judge()
    assert Ending.DIVERGED in {world.ws.state.outcome.ending for world in worlds}


def test_where_a_history_begins_anew_nobody_may_hold_what_it_throws_away():
    world = trained(World(1, Plan(replicas=(2, 2), steps=500)))
    with pytest.raises(Violation, match="the state was thrown away"):
        world.start_over()
    gone = replace(world.ws.state.workers["w0"], left_with=commit(0))
    world.ws.state = replace(world.ws.state, workers={**world.ws.state.workers, "w0": gone})
    world.workers["w1"].muted_until_s = world.now_s + 9.0
    world.start_over()
    assert world.workers["w0"].is_alive, "the run went on without it, and it is told so"
    assert not world.workers["w1"].is_alive and world.stable == []


@pytest.mark.parametrize(
    "world",
    [
        World(1, Plan(replicas=(4, 4), steps=500)),
        GangWorld(1, Plan(replicas=(2, 2), steps=500), 2),
        TierWorld(1, Plan(replicas=(4, 4), steps=500), **TIERS),
    ],
    ids=["live", "gangs", "tiers"],
)
def test_who_was_out_of_reach_for_a_moment_counts_again_a_little_later(world):
    trained(world)
    for worker in world.workers.values():
        worker.muted_at_s, worker.muted_until_s, worker.cut_ways = world.now_s, world.now_s + 0.01, ("in", "out")
    begin_s = world.now_s
    until(world, lambda: world.now_s > begin_s + 1.0)
    assert not any(map(world.could_give, world.workers.values())), "they may have been given up while they were away"
    until(world, lambda: world.now_s > begin_s + 4.0)
    assert all(map(world.could_give, world.workers.values()))
    judged = world.check_nobody_holds if isinstance(world, TierWorld) else None
    with pytest.raises(Violation, match="no stable step is lost"):
        judged() if judged else world.judge_failure(Ending.REPLICAS_LOST, "every replica died")
    with pytest.raises(Violation, match="the state was thrown away"):
        world.start_over()


def test_a_state_of_which_a_shard_is_gone_is_lost():
    world = trained(GangWorld(1, Plan(replicas=(2, 2), steps=500), 2))
    for worker in world.workers.values():
        worker.is_alive = world.shard(worker) == 1
    world.judge_failure(Ending.REPLICAS_LOST, "every replica died")


def test_a_driver_that_dies_while_a_run_goes_back_leaves_that_to_the_next_one():
    world = trained(DriverTierWorld(1, Plan(replicas=(2, 2), steps=500), **TIERS))
    view = world.ws.view
    world.is_sent_back = True
    world.carry_out(cmd.Form(view=replace(view, resume=commit(1, world.stable[1])), reason="to see"))
    assert len(world.stable) == 2 and not world.is_sent_back


def test_a_vote_that_names_somebody_else_or_nobody_breaks_a_law():
    world = trained(World(1, Plan(replicas=(3, 3), steps=500)))
    voters = list(world.workers.values())
    voters[1].bits, voters[1].is_tainted = 7, True
    world.check_vote(voters, (1,))
    for wrong in ((), (0, 2), None):
        with pytest.raises(Violation, match="were outvoted"):
            world.check_vote(voters, wrong)
    world.check_vote(voters[:2], None)
    world.check_vote(voters[1:2], ())
    assert world.truth == 7 and not voters[1].is_tainted, "who is alone is believed"
    with pytest.raises(Violation, match="all hold 0, and the history is 7"):
        world.check_vote([voters[0], voters[2]], ())


def test_who_ends_with_other_bits_breaks_a_law_unless_they_flipped_after_the_last_vote():
    world = World(1, Plan(replicas=(2, 2), steps=6)).play()
    world.judge()
    odd = world.workers["w1"]
    odd.bits, odd.is_tainted = 7, True
    world.judge_bits()
    odd.is_tainted = False
    with pytest.raises(Violation, match="w1 ended with 7, not 0"):
        world.judge_bits()


def test_who_was_outvoted_is_told_to_die_before_the_next_generation():
    world = trained(World(1, Plan(replicas=(2, 2), steps=500)))
    world.named = {"w9"}
    world.carry_out(cmd.Form(view=world.ws.view, reason="who is not known any more is gone"))
    world.ws.state = replace(
        world.ws.state, workers={**world.ws.state.workers, "w9": replace(world.ws.state.workers["w0"], name="w9")}
    )
    with pytest.raises(Violation, match="w9 is corrupt, and nobody has told it to die"):
        world.carry_out(cmd.Form(view=world.ws.view, reason="to see"))


def test_a_world_in_which_time_stands_still_breaks_a_law():
    world = World(1, Plan(replicas=(2, 2)))

    def again() -> None:
        world.later(0.0, again)

    world.later(0.5, again)
    with pytest.raises(Violation, match="time stands still: again"):
        world.play()


def test_a_ledger_that_does_not_add_up_breaks_a_law():
    account = replace(Ledger().account(), begin_s=0.0, end_s=100.0, workers_s=200.0)
    told = {Category.PRODUCTIVE: 99.0, Category.UNKNOWN: 1.0}
    twice = {category: 2 * seconds for category, seconds in told.items()}
    judge_account(replace(account, wall_seconds=told, worker_seconds=twice))
    with pytest.raises(Violation, match="100.000 of 200.000 worker seconds have a name"):
        judge_account(replace(account, wall_seconds=told, worker_seconds=told))
    with pytest.raises(Violation, match="2.000 of 100.000 wall seconds are unknown"):
        unknown = {Category.PRODUCTIVE: 98.0, Category.UNKNOWN: 2.0}
        judge_account(replace(account, wall_seconds=unknown, worker_seconds=twice))


def test_lost_time_without_an_incident_breaks_a_law():
    seconds = {Category.PRODUCTIVE: 90.0, Category.FORMING: 10.0}
    lost = replace(Ledger().account(), begin_s=0.0, end_s=100.0, workers_s=100.0, wall_seconds=seconds)
    with pytest.raises(Violation, match="0.000 of 10.000 s of forming belong to an incident"):
        judge_account(replace(lost, worker_seconds=seconds))
    unknown = {Category.PRODUCTIVE: 9.6, Category.UNKNOWN: 0.4}
    back = replace(lost, end_s=10.0, workers_s=10.0, wall_seconds=unknown, worker_seconds=unknown)
    judge_account(back, 0.5)
    with pytest.raises(Violation, match="0.400 of 10.000 wall seconds are unknown"):
        judge_account(back)


def test_who_has_trained_and_is_told_to_leave_for_nothing_breaks_a_law():
    world = World(1, Plan(replicas=(2, 2), spares=1, steps=6)).play()
    world.judge()
    assert world.replaced == []
    world = trained(World(1, Plan(replicas=(2, 2), steps=500)))
    world.struck.add("w0")  # or it would be told here
    world.carry_out(cmd.Dismiss(workers=("w0", "w9"), reason="to see"))
    assert world.replaced == ["w0"]
    world = World(1, Plan(replicas=(2, 2), steps=6)).play()
    world.replaced = ["w0"]
    with pytest.raises(Violation, match="who survives is not replaced"):
        world.judge()


def test_training_that_stands_still_while_only_the_control_plane_is_away_breaks_a_law():
    world = World(1, Plan(replicas=(2, 2), steps=6)).play()
    world.faults, world.pause_s = {"driver", "supervisor"}, world.plan.lease_s + 0.1
    with pytest.raises(Violation, match="training goes on without the control plane: no step became stable for 20.1 s"):
        world.judge()
    world.faults = {"driver", "crash"}
    world.judge()


# --- drivers ----------------------------------------------------------------------------------------------------------


def test_who_is_not_known_any_more_may_do_again_what_it_likes():
    world = trained(DriverWorld(1, Plan(replicas=(2, 2), steps=500)))
    with pytest.raises(Violation, match="w0 redid stable step 0"):
        world.check_not_redone(world.workers["w0"], commit(0))
    world.check_not_redone(SimWorker(name="x0"), commit(0))


@pytest.mark.parametrize("width", [1, 2])
def test_a_driver_that_finds_nobody_where_somebody_has_trained_breaks_a_law(width):
    plan = Plan(replicas=(2, 2), steps=500)
    world = trained(DriverWorld(1, plan) if width == 1 else DriverGangWorld(1, plan, width))
    world.die()
    with pytest.raises(Violation, match="w. was not found by a new driver"):
        world.begin(world.life, [])
    for worker in world.workers.values():
        worker.is_hung = True
    world.begin(world.life, [])
    assert world.begun == 1 and world.ws.phase is Phase.STARTING
    until(world, lambda: world.ws.phase is Phase.RUNNING and len(world.stable) > 3)
    assert world.ws.view.incarnation == 2 and world.ws.view.bootstrap
    assert not {"w0", "w1"} & set(world.ws.state.workers), "nobody of the old ones comes back"


def quiet(case: campaign.Case) -> campaign.Case:
    """Without what befalls machines, GPUs and users, and nobody tells of the door."""
    unrest: dict[str, Any] = {**dict.fromkeys(ACTS, 0.0), "policy": "Ladder", "linger": 0.0, "says_at_door": False}
    return replace(case, plan=replace(case.plan, **unrest))


def test_a_driver_that_finds_nobody_goes_on_from_the_newest_durable_step():
    world = campaign.world_of(quiet(campaign.case_of(867, 200))).play()
    world.judge()
    assert world.begun == 1 and world.restored == [6] and len(world.stable) == 200


def test_a_new_driver_that_leaves_a_step_out_breaks_a_law():
    world = campaign.world_of(quiet(campaign.case_of(867, 200)))
    world.found = lambda command: ev.RestoreFound(commit=None, reason="it did not look")
    with pytest.raises(Violation, match="no stable step is lost"):
        world.play()


def test_between_two_drivers_nobody_hears_and_orders_of_the_first_come_too_late():
    world = trained(DriverWorld(1, Plan(replicas=(2, 2), steps=500)))
    world.die()
    before = world.ws.state
    world.control(ev.StopAsked(reason="enough"))
    assert world.ws.state is before
    until(world, lambda: not world.is_headless and world.ws.phase is Phase.RUNNING)
    worker = world.workers["w0"]
    assert worker.state.incarnation == 2
    pause = cmd.Pause(worker="w0", generation=world.ws.generation, reason="to see")
    world.obey(worker, Order(1, pause))
    assert worker.pause_generation != pause.generation
    world.obey(worker, Order(2, pause))
    assert worker.pause_generation == pause.generation


DEPOT = {
    "stage": 1.0,
    "peers": 1,
    "upload_s": 0.0,
    "link_bytes_per_s": 10 << 30,
    "outage": 0.0,
    "node_loss": 0.0,
    "rewind": 0.0,
}


# --- machines, GPUs and users -----------------------------------------------------------------------------------------


def test_where_nobody_is_in_reach_nothing_befalls_anybody():
    world = unruly(DriverWorld)(1, Plan(replicas=(2, 2), steps=500))
    for act in (Unrest.announce, Unrest.err, Unrest.drag, Unrest.raise_, Unrest.depart):
        act(world)
    assert world.queue[1:] == [] and not world.faults


def test_a_machine_that_is_taken_away_is_replaced_by_another():
    world = trained(unruly(DriverWorld)(1, Plan(replicas=(1, 3), steps=500, per_node=2)))
    world.placed["w0"] = node = "node-1"
    world.take_away(node)
    assert not world.workers["w0"].is_alive and node not in map(world.name_of, range(3))
    until(world, lambda: "w3" in world.placed)
    assert world.placed["w3"] != node


def test_who_computes_slowly_says_so_and_the_deal_follows():
    world = unruly(DriverGangWorld)(1, Plan(replicas=(3, 3), steps=500, slow=1e-9, policy="Redealing"), 2)
    trained(world)
    world.slow_until_s["w0"] = world.now_s + 60.0
    assert sorted(world.report_of(commit(1)).seconds) == [1.0, 1.0, 1.0, 1.0, 1.0, 3.0]
    until(world, lambda: world.ws.view.balanced)


def test_hosts_that_do_not_reach_each_other_form_no_group_until_they_do():
    world = trained(unruly(DriverWorld)(1, Plan(replicas=(2, 2), steps=500)))
    workers = [world.workers["w0"], world.workers["w1"]]
    begun, made, until_s = world.ws.generation, len(world.stable), world.now_s + 30.0
    world.sides = [(until_s, frozenset({world.node_of("w0")}))]
    assert world.are_in_touch(workers[0], workers[0]) and not world.are_in_touch(*workers)
    until(world, lambda: world.now_s > until_s)
    assert len(world.stable) <= made + 1 and world.ws.generation > begun + 1, "one breaks after the other"
    until(world, lambda: len(world.stable) > made + 5)
    assert world.are_in_touch(*workers) and not world.sides


def test_a_broken_link_parts_two_hosts_and_nobody_else():
    """Nothing that two do together comes about, although each does well with the third."""
    world = trained(unruly(DriverWorld)(1, Plan(replicas=(3, 3), steps=500)))
    one, other, third = (world.workers[name] for name in ("w0", "w1", "w2"))
    until_s = world.now_s + 30.0
    world.links = {(world.node_of("w0"), world.node_of("w1")): until_s}
    assert not world.are_in_touch(one, other) and not world.are_in_touch(other, one)
    assert world.are_in_touch(one, third) and world.are_in_touch(third, other)
    members = world.ws.view.members
    assert [world.has_heard(worker, members) for worker in (one, other, third)] == [True, False, True]
    begun, made = world.ws.generation, len(world.stable)
    until(world, lambda: world.now_s > until_s)
    assert len(world.stable) <= made + 1 and world.ws.generation > begun + 1
    until(world, lambda: len(world.stable) > made + 5)
    assert world.are_in_touch(one, other)


def test_links_break_one_way_or_both_between_hosts_that_are_there():
    world = trained(unruly(DriverWorld)(1, Plan(replicas=(3, 3), steps=500)))
    hosts, ways = {world.node_of(name) for name in world.workers}, set()
    for _ in range(40):
        world.links.clear()
        world.break_links()
        assert {host for link in world.links for host in link} <= hosts & world.struck
        ways |= {(other, one) in world.links for one, other in world.links}
    assert ways == {True, False}
    bare = unruly(DriverWorld)(1, Plan(replicas=(3, 3)))
    bare.break_links()
    assert not bare.links, "nobody is there yet"


def test_nodes_that_do_not_reach_each_other_copy_nothing():
    world = trained(unruly(DriverDepotWorld)(1, Plan(replicas=(3, 3), steps=500), **DEPOT))
    until(world, lambda: world.pulled > 0)
    until_s = world.now_s + 20.0
    world.sides = [(until_s, frozenset({node})) for node in map(world.node_of, world.workers)]
    until(world, lambda: world.now_s > until_s - 19.0)  # what was under way is over
    pulled = world.pulled
    until(world, lambda: world.now_s > until_s - 1.0)
    assert world.pulled == pulled
    until(world, lambda: world.pulled > pulled)


def test_a_mistake_of_the_user_is_no_fault_of_the_run():
    world = trained(unruly(DriverWorld)(1, Plan(replicas=(2, 2), steps=500)))
    world.raise_()
    until(world, lambda: world.queue[0][0] > world.now_s + 1.0 or world.ws.state.outcome is not None)
    with pytest.raises(Violation, match="the run ended with"):
        world.judge_failure(Ending.TRAIN_FN_RAISED, "oh")
    world.faults.add("raise_")
    world.judge_failure(Ending.TRAIN_FN_RAISED, "oh")


# --- tiers ------------------------------------------------------------------------------------------------------------


def gone_back() -> TierWorld:
    """A run that went on from step 2 of an earlier life."""
    return TierWorld(1, Plan(replicas=(2, 2), steps=6), **{**TIERS, "before": 3}).play()


def test_tiers_are_not_asked_while_members_hold_the_state():
    world = trained(TierWorld(1, Plan(replicas=(2, 2), steps=500), **TIERS))
    with pytest.raises(Violation, match="members hold"):
        world.check_nobody_holds()
    for worker in world.workers.values():
        worker.is_hung = True
    world.check_nobody_holds()


def test_what_an_earlier_line_of_history_made_is_no_step_of_the_run():
    world = gone_back()
    assert len(world.stable) == 6
    world.note_stable(commit(6, "old", incarnation=0))
    assert len(world.stable) == 6
    world.samples.made_of["new"] = (0,)
    world.samples.follow = lambda history: None  # this step was not played
    world.note_stable(commit(6, "new"))
    assert world.stable[6] == "new"
    worker = world.workers["w0"]
    worker.pending, worker.unpublished = commit(6, "old", incarnation=0), [commit(5, "old", incarnation=0)]
    world.form(worker)
    assert worker.pending is None and worker.unpublished == []


def test_an_order_to_load_is_heard_when_contact_is_back_and_an_older_one_not_at_all():
    world = gone_back()
    worker, order = world.workers["w0"], cmd.Restore(workers=("w0",), commit=commit(2), number=9, reason="to see")
    worker.muted_until_s, worker.cut_ways = world.now_s + 5.0, ("in",)
    queued = len(world.queue)
    world.obey(worker, order)
    assert len(world.queue) == queued + 1 and world.answers.get("w0", (0, None))[0] < 9
    world.answers["w0"] = (10, None)
    world.restore(worker, order)
    assert world.answers["w0"] == (10, None) and len(world.queue) == queued + 1
