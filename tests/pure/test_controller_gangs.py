"""Replicas of two workers: who is started, who goes on, what they resume from, and how a broken one comes back."""

from dataclasses import replace

import pytest

from elastic.control import events as ev
from elastic.control.commands import Dismiss, Form, Freeze, Pause, StartWorker
from elastic.control.outcome import Ending
from elastic.control.state import Phase, Standing
from elastic.control.values import Member
from tests.pure.bare_controller import BareController


def gangs(spares: int = 0, replicas: tuple[int, int] = (1, 2), **limits: float) -> BareController:
    """Replicas (w0, w1) and (w2, w3) train; step 3 is stable."""
    ws = BareController(replicas, spares, width=2, **limits).run()
    ws.stable(3)
    return ws


def started(ws: BareController) -> list[tuple[str, int, int]]:
    return [(one.worker, one.gang, one.shard) for one in ws.given(StartWorker)]


def test_each_replica_is_started_shard_by_shard():
    ws = BareController((1, 2), spares=1, width=2)
    ws.start()
    assert started(ws) == [("w0", 0, 0), ("w1", 0, 1), ("w2", 1, 0), ("w3", 1, 1), ("w4", 2, 0), ("w5", 2, 1)]


def test_a_run_begins_with_whole_replicas():
    ws = BareController((1, 2), width=2)
    ws.start()
    ws.place("w0", "w1", "w2", "w3")
    ws.park("w0", "w3")
    ws.park("w2")
    assert ws.phase is Phase.STARTING  # w1 may come yet
    ws.die("w1")
    assert ws.members == ["w2", "w3"]
    assert (ws.view.donors, ws.view.behind, ws.view.replicas) == ((0, 1), (), 1)


def test_a_broken_replica_is_left_out_and_what_is_left_of_it_stays_warm():
    ws = gangs()
    ws.die("w1")
    assert ws.addressees(Freeze) == {"w0", "w2", "w3"}
    for worker in ("w0", "w2", "w3"):
        ws.answer(worker, 4)
    assert ws.members == ["w2", "w3"]
    assert (ws.standing("w0"), ws.given(Dismiss)) == (Standing.PARKED, [])
    ws.form()
    assert ws.state.world_sizes == (2, 1)


def test_it_is_made_whole_and_joins_with_the_worker_that_was_left():
    ws = gangs()
    ws.die("w1")
    for worker in ("w0", "w2", "w3"):
        ws.answer(worker, 4)
    ws.form()
    ws.stable(5)
    assert started(ws) == [("w4", 0, 1)]
    ws.join("w4")
    assert ws.addressees(Pause) == {"w2"}
    for worker in ("w2", "w3"):
        ws.answer(worker, 6)
    assert ws.members == ["w2", "w3", "w0", "w4"]
    assert (ws.names(ws.view.donors), ws.names(ws.view.behind)) == (["w2", "w3"], ["w0", "w4"])


def test_a_spare_replica_takes_the_place_of_a_broken_one():
    ws = gangs(spares=1)
    ws.die("w3")
    for worker in ("w0", "w1", "w2"):
        ws.answer(worker, 4)
    assert ws.members == ["w0", "w1", "w4", "w5"]
    assert ws.names(ws.view.behind) == ["w4", "w5"]


def test_who_is_prepared_for_what_another_has_applied_gives_it_too():
    ws = gangs()
    ws.die("w1")
    ws.answer("w0", 5)
    ws.answer("w2", 5)
    ws.answer("w3", 4, prepared=True)
    assert ws.members == ["w2", "w3"]
    assert (ws.view.resume.step, ws.view.donors, ws.view.behind) == (5, (0, 1), ())


def test_an_update_that_no_whole_replica_can_get_to_is_tried_again():
    """w0 has applied it; w1 was prepared, and is dead; the other replica has not come to it."""
    ws = gangs()
    ws.die("w1")
    ws.answer("w0", 5)
    ws.answer("w2", 4, prepared=True)
    ws.answer("w3", 4)
    assert (ws.members, ws.view.resume.step) == (["w2", "w3"], 4)


def rejoined(held: int, *, others: int) -> BareController:
    """w1 is dead, w0 holds one step, w2 and w3 another; later w0 comes back with a new worker in its replica."""
    ws = gangs()
    ws.die("w1")
    ws.answer("w0", held)
    ws.answer("w2", others)
    ws.answer("w3", others)
    assert ws.members == ["w2", "w3"]
    ws.form()
    for number in range(others, 8):
        ws.stable(number)
    ws.join("w4")
    ws.tick(0.5)
    ws.answer("w2", 8)
    ws.answer("w3", 8)
    assert ws.members == ["w2", "w3", "w0", "w4"]
    return ws


def test_who_has_applied_what_others_did_again_is_told_so_when_it_comes_back():
    """What it applied was never stable: what hangs on that update must not be run, though the step was done since."""
    ws = rejoined(5, others=4)
    assert ws.view.replaced == ("w0",)
    ws.form()
    assert ws.state.workers["w0"].replaced is False


def test_who_has_applied_what_the_others_went_on_from_is_told_nothing():
    assert rejoined(4, others=4).view.replaced == ()
    assert rejoined(4, others=5).view.replaced == ()


def test_each_shard_is_healed_by_whoever_holds_it():
    """Both replicas are whole: one is prepared, of the other only shard 0 is, which is healed with its neighbour."""
    ws = gangs()
    ws.break_("w0")
    for worker in ("w0", "w1", "w2"):
        ws.answer(worker, 4, prepared=True)
    ws.answer("w3", 4)
    assert ws.members == ["w0", "w1", "w2", "w3"]
    assert (ws.view.resume.step, ws.view.donors, ws.view.behind) == (5, (0, 1), (2, 3))


def test_who_is_prepared_beside_one_who_is_not_gives_what_nobody_else_holds():
    """Else it applies the update no sooner than its neighbour is healed: a donor may die before that."""
    ws = gangs()
    ws.break_("w0")
    ws.answer("w0", 5)
    ws.answer("w1", 4)
    ws.answer("w2", 4)
    ws.answer("w3", 4, prepared=True)
    assert ws.view.resume.step == 5
    assert (ws.names(ws.view.donors), ws.names(ws.view.behind)) == (["w0", "w3"], ["w1", "w2"])


def test_holders_in_broken_replicas_wait_until_these_are_whole():
    ws = gangs(replicas=(2, 2))
    ws.die("w0", "w3")
    ws.answer("w1", 4)
    ws.answer("w2", 4)
    assert ws.phase is Phase.WAITING
    assert started(ws) == [("w4", 0, 0), ("w5", 1, 1)]
    ws.join("w4")
    assert ws.phase is Phase.WAITING
    ws.join("w5")
    assert [command.view.resume.step for command in ws.given(Form)] == [4]
    assert (ws.members, ws.view.donors, ws.view.behind) == (["w4", "w1", "w2", "w5"], (1, 2), (0, 3))


def left_outs_return() -> BareController:
    """w0 and w5 were left of their replicas at step 4; (w2, w3) went on to 10, and now all three replicas form."""
    ws = gangs(replicas=(1, 3))
    ws.die("w1", "w4")
    for worker in ("w0", "w2", "w3", "w5"):
        ws.answer(worker, 4)
    assert ws.members == ["w2", "w3"]
    ws.form()
    for number in range(4, 11):
        ws.stable(number)
    ws.join("w6", "w7")
    ws.tick(0.5)
    ws.answer("w2", 11)
    ws.answer("w3", 11)
    assert sorted(ws.members) == ["w0", "w2", "w3", "w5", "w6", "w7"]
    return ws


def test_what_was_left_of_a_replica_holds_nothing_that_counts_until_it_is_healed():
    """w0 and w5 have a copy of each shard between them, of a step long ago: nobody goes back to it."""
    ws = left_outs_return()
    ws.die("w2", "w3")
    for worker in ("w0", "w5"):
        ws.answer(worker, 4)
    for worker in ("w6", "w7"):
        ws.answer(worker, -1, healed=False)
    assert ws.state.outcome is not None and ws.state.outcome.ending is Ending.REPLICAS_LOST


def test_who_was_healed_and_could_not_tell_any_more_holds_what_the_others_do():
    """The news that it has formed comes after the freeze; its answer names what was resumed from."""
    ws = left_outs_return()
    ws.die("w2", "w3")
    for worker in ("w0", "w5", "w6", "w7"):
        ws.answer(worker, 11)
    assert ws.phase is Phase.FORMING and ws.view.resume.step == 11


def test_what_is_left_of_replicas_still_counts_while_nobody_has_trained_since():
    """The generation that goes on without w0 and w5 dies before it trains: between them, they have all of step 4."""
    ws = gangs(replicas=(1, 3))
    ws.die("w1", "w4")
    for worker in ("w0", "w2", "w3", "w5"):
        ws.answer(worker, 4)
    assert ws.members == ["w2", "w3"]
    assert not ws.state.workers["w0"].outdated
    ws.form()
    assert ws.state.workers["w0"].outdated and not ws.state.workers["w0"].replaced


def test_nobody_is_left_behind_for_the_sake_of_a_state_of_long_ago():
    """The hosts of those who hold step 11 fall silent, and only those answer who hold step 4."""
    ws = left_outs_return()
    for worker in ws.members:
        ws.feed(ev.HostBeat(node=f"node-{worker}"))
    ws.fail_forming("w6")
    for _ in range(6):
        for worker in ("w0", "w5", "w6", "w7"):
            ws.feed(ev.HostBeat(node=f"node-{worker}"), after_s=0.2)
        ws.tick(0.2)
    for worker in ("w0", "w5"):
        ws.answer(worker, 4)
    for worker in ("w6", "w7"):
        ws.answer(worker, -1, healed=False)
    ws.tick(0.5)
    assert ws.phase is Phase.FREEZING
    assert {ws.standing("w2"), ws.standing("w3")} & {Standing.EXILED} == set()


def test_once_it_is_healed_it_holds_what_the_others_do():
    ws = left_outs_return()
    ws.form()
    ws.stable(11)
    ws.die("w2", "w3")
    for worker in ("w0", "w5", "w6", "w7"):
        ws.answer(worker, 12)
    assert ws.phase is Phase.FORMING and ws.view.resume.step == 12


def test_a_shard_that_nobody_holds_ends_the_run():
    ws = gangs()
    ws.die("w0", "w2")
    ws.answer("w1", 4)
    ws.answer("w3", 4)
    assert ws.state.outcome is not None and ws.state.outcome.ending is Ending.REPLICAS_LOST


def test_notice_to_a_worker_is_notice_to_its_replica():
    ws = gangs(notice_window_s=0.1)
    ws.feed(ev.WorkerNotice(worker="w3", reason="SIGTERM"))
    assert started(ws) == [("w4", 2, 0), ("w5", 2, 1)]
    ws.tick(after_s=0.2)
    assert ws.addressees(Pause) == {"w0"}
    for worker in ("w0", "w1", "w2", "w3"):
        ws.answer(worker, 4)
    assert ws.members == ["w0", "w1"]
    assert {ws.standing("w2"), ws.standing("w3")} == {Standing.GONE}


def test_the_groups_of_a_generation_are_views_of_their_own():
    ws = gangs(replicas=(2, 2))
    ws.die("w0", "w3")
    ws.answer("w1", 4)
    ws.answer("w2", 4)
    ws.join("w4")
    ws.join("w5")  # (w4, w1) and (w2, w5): each shard has another donor
    shards = [ws.view.across(shard) for shard in (0, 1)]
    assert [[member.worker for member in one.members] for one in shards] == [["w4", "w2"], ["w1", "w5"]]
    assert [(one.donors, one.behind) for one in shards] == [((1,), (0,)), ((0,), (1,))]
    inside = ws.view.inside(1)
    assert ([member.worker for member in inside.members], inside.leader.worker) == (["w2", "w5"], "w2")
    assert len({one.part for one in (*shards, inside, ws.view)}) == 4  # one store may serve several of them


def test_the_last_holder_of_a_shard_is_taken_along_even_if_it_was_about_to_leave():
    """Its node is doubted, and whole replicas that hold nothing of its shard are no substitute for it."""
    ws = gangs()
    ws.feed(ev.WorkerNotice(worker="w0", reason="SIGTERM"))
    ws.tick(0.3)
    assert "w0" in ws.state.incidents[-1].culprits
    ws.die("w1", "w2")
    ws.answer("w0", 4)
    ws.answer("w3", 4)
    for _ in range(8):  # the replica that lacks the shard is whole first
        missing = [one for one in ws.state.workers.values() if one.standing is Standing.REQUESTED]
        if ws.phase is Phase.WAITING and missing:
            ws.join(min(missing, key=lambda worker: worker.gang != 1).name)
    assert ws.phase is Phase.FORMING
    assert "w0" in ws.names(ws.view.donors) and "w3" in ws.names(ws.view.donors)


def test_a_run_that_begins_anew_begins_with_nobody_who_has_trained():
    """w0 has applied step 0, which was lost with its replica; the others, who had not, are lost before their first."""
    ws = BareController((1, 2), width=2).run()
    ws.die("w1")
    ws.answer("w0", 0)
    ws.answer("w2", -1)
    ws.answer("w3", -1)
    assert (ws.members, ws.view.resume.step) == (["w2", "w3"], -1)
    ws.form()
    ws.die("w2", "w3")
    assert ws.addressees(Dismiss) == {"w0"}
    for _ in range(4):
        missing = [one.name for one in ws.state.workers.values() if one.standing is Standing.REQUESTED]
        if ws.phase is Phase.WAITING and missing:
            ws.join(missing[0])
    assert ws.phase is Phase.FORMING and ws.view.bootstrap and "w0" not in ws.members


def test_a_whole_replica_that_lacks_a_shard_of_the_newest_commit_takes_in_the_one_that_has_it():
    """A forming died half way: w2 was healed to step 5, w3 beside it was not, and w5 is what is left of a replica."""
    ws = gangs(replicas=(1, 3))
    ws.break_("w0")
    ws.answer("w0", 5)
    ws.answer("w1", 4, prepared=True)
    for worker in ("w2", "w3", "w4", "w5"):
        ws.answer(worker, 4)
    assert ws.view.resume.step == 5
    ws.form("w2", "w5")
    ws.die("w0", "w1", "w4")
    ws.answer("w2", 5)
    ws.answer("w3", 4)
    ws.answer("w5", 5)
    assert ws.phase is Phase.WAITING
    ws.join(next(one.name for one in ws.state.workers.values() if (one.gang, one.shard) == (2, 0) and one.name != "w4"))
    assert ws.phase is Phase.FORMING and ws.view.resume.step == 5
    assert ws.names(ws.view.donors) == ["w2", "w5"] and "w3" in ws.names(ws.view.behind)


def test_one_worker_of_a_host_is_the_first_of_its_shard():
    hosts = ["a", "a", "a", "a", "b", "b", "a", "c"]  # four replicas of two workers
    members = tuple(Member(f"w{number}", host, 1) for number, host in enumerate(hosts))
    view = replace(gangs().view, members=members)
    assert [one.worker for one in members if view.is_first_of_its_shard(one.worker)] == ["w0", "w1", "w4", "w5", "w7"]
    with pytest.raises(KeyError, match="w9 is not a member of generation 1"):
        view.rank_of("w9")


def test_where_replicas_have_one_worker_all_hold_the_same_shard():
    view = BareController(2).run().view
    assert view.across(0) == view
