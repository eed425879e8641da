"""How a run starts, waits for workers, and what becomes of it without any."""

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.outcome import Ending
from elastic.control.restoring import last_copy
from elastic.control.state import Phase, Standing
from elastic.control.values import NOTHING_COMMITTED
from elastic.settings import Checkpoint
from tests.pure.bare_controller import BareController, below_minimum, commit, grown_to_two, report

# --- the start --------------------------------------------------------------------------------------------------------


def test_the_start_asks_for_all_replicas_and_spares():
    ws = BareController((2, 3), spares=2)
    ws.start()
    assert ws.addressees(cmd.StartWorker) == {"w0", "w1", "w2", "w3", "w4"}


def test_the_first_generation_bootstraps_from_its_leader():
    ws = BareController(3)
    ws.start()
    assert ws.join("w0", "w1") == ()
    ws.join("w2")
    assert ws.given(cmd.Form)[0].view == ws.view
    assert ws.members == ["w0", "w1", "w2"]
    assert (ws.view.bootstrap, ws.view.resume, ws.view.generation) == (True, NOTHING_COMMITTED, 1)
    assert (ws.view.donors, ws.view.behind) == ((0,), (1, 2))
    assert ws.form("w0", "w1") == ()
    ws.form("w2")
    assert ws.addressees(cmd.Go) == {"w0", "w1", "w2"}
    assert (ws.phase, ws.state.world_sizes) == (Phase.RUNNING, (3,))


def test_the_start_takes_what_the_cluster_places():
    ws = BareController((1, 4))
    ws.start()
    ws.join("w2")
    ws.join("w1")
    assert ws.phase is Phase.FORMING
    assert ws.members == ["w2"], "w1 had no slot yet when w2 stood at the door"


def test_a_node_without_room_for_snapshots_ends_the_start_and_not_a_run():
    full = ev.WorkerParked(worker="w1", host="h", port=1, pid=1, layout="l", no_room="/dev/shm has 64 MiB free")
    ws = BareController((1, 2))
    ws.start()
    ws.place("w0", "w1")
    ws.feed(full)
    assert ws.state.outcome.ending is Ending.NO_ROOM
    assert "node-w1: /dev/shm has 64 MiB free" in ws.state.outcome.message
    ws = BareController((1, 2))
    ws.start()
    ws.join("w0")
    ws.form()
    ws.place("w1")
    ws.feed(full)
    assert ws.phase is Phase.RUNNING and ws.standing("w1") is Standing.PARKED


@pytest.mark.parametrize("free_mib", [7, 8])
def test_shards_of_a_node_are_counted_together_before_the_start(free_mib: int):
    """Each of the two workers of a replica sees room enough for its own slots of 4 MiB."""
    ws = BareController(1, width=2)
    ws.start()
    ws.feed(ev.WorkerPlaced(worker="w0", node="a"), ev.WorkerPlaced(worker="w1", node="a"))
    for worker in ("w0", "w1"):
        assert ws.state.outcome is None
        sizes = {"slot_bytes": 4 << 20, "free_bytes": free_mib << 20}
        ws.feed(ev.WorkerParked(worker=worker, host="h", port=1, pid=1, layout="l", **sizes))
    if free_mib == 8:
        assert ws.phase is Phase.FORMING
        return
    assert ws.state.outcome.ending is Ending.NO_ROOM
    said = "a: 7 MiB of its memory are free, and the slots of 2 shards take 8 MiB together"
    assert said in ws.state.outcome.message and "Checkpoint.memory" in ws.state.outcome.message


def test_of_workers_that_hold_the_same_only_one_needs_room():
    ws = BareController(2)
    ws.start()
    ws.feed(ev.WorkerPlaced(worker="w0", node="a"), ev.WorkerPlaced(worker="w1", node="a"))
    for worker in ("w0", "w1"):
        sizes = {"slot_bytes": 4 << 20, "free_bytes": 5 << 20}
        ws.feed(ev.WorkerParked(worker=worker, host="h", port=1, pid=1, layout="l", **sizes))
    assert ws.phase is Phase.FORMING


def test_the_last_copy_of_the_state_is_told_apart():
    ws = BareController((1, 3)).run()
    assert last_copy(ws.state) == ""
    ws.die("w1", "w2")
    ws.answer("w0", 4)
    ws.form()
    assert ws.members == ["w0"] and last_copy(ws.state) == "one replica is left"
    assert last_copy(below_minimum().state) == "fewer than 2 replicas are left"
    assert last_copy(BareController(1).run().state) == "", "it never had more"
    assert last_copy(BareController(1).state) == "", "nobody is there"


def test_the_start_waits_for_workers_that_load():
    ws = BareController((1, 3))
    ws.start()
    ws.place("w0", "w1")
    ws.park("w0")
    assert ws.phase is Phase.STARTING
    ws.park("w1")
    assert ws.members == ["w0", "w1"]


def test_a_loading_worker_that_dies_is_not_waited_for():
    ws = BareController((1, 3))
    ws.start()
    ws.place("w0", "w1")
    ws.park("w0")
    ws.die("w1")
    assert ws.members == ["w0"]


def test_the_start_timeout_begins_with_what_is_there():
    ws = BareController((1, 3), start_timeout_s=60.0)
    ws.start()
    ws.place("w0", "w1")
    ws.park("w0")
    ws.tick(after_s=60.0)
    assert ws.phase is Phase.STARTING
    ws.tick(after_s=0.1)
    assert ws.members == ["w0"]


def test_the_start_timeout_below_the_minimum_ends_the_run():
    ws = BareController((2, 3), start_timeout_s=60.0)
    ws.start()
    ws.join("w0")
    ws.tick(after_s=60.1)
    assert ws.state.outcome.ending is Ending.NOT_ENOUGH_SLOTS
    assert "Limits.start_timeout_s=60.0" in ws.state.outcome.message
    assert "could place 1: add nodes" in ws.state.outcome.message


def test_workers_that_were_placed_and_take_long_are_no_lack_of_slots():
    ws = BareController(2, start_timeout_s=60.0)
    ws.start()
    ws.place("w0", "w1")
    ws.park("w0")
    ws.tick(after_s=60.1)
    assert "1 of 2 came to their first step: raise it" in ws.state.outcome.message


def loading_a_checkpoint(replicas: int, **limits: float) -> BareController:
    """Step 4 is found, for whoever comes to the first step; the start has a minute."""
    ws = BareController(replicas, checkpoint=Checkpoint(), start_timeout_s=60.0, **limits)
    ws.start()
    ws.feed(ev.RestoreFound(commit=commit(4)))
    return ws


def test_one_that_is_lost_while_a_checkpoint_is_loaded_is_replaced_after_the_start_timeout_too():
    """All were there in time, and loading may take long."""
    ws = loading_a_checkpoint(2)
    ws.join("w0", "w1")
    ws.tick(after_s=61.0)
    ws.die("w1")
    assert ws.addressees(cmd.StartWorker) == {"w2"}
    ws.tick(after_s=5.0)
    assert ws.phase is Phase.STARTING
    ws.join("w2")
    ws.feed(*(ev.Restored(worker=name, commit=commit(4)) for name in ("w0", "w2")))
    assert ws.phase is Phase.FORMING and ws.members == ["w0", "w2"]


def test_the_last_that_loads_a_checkpoint_is_replaced_after_the_start_timeout_too_but_not_for_ever():
    """Its node may be lost; or the checkpoint ends whoever loads it."""
    ws = loading_a_checkpoint(1, start_tries=3)
    for worker in ("w0", "w1", "w2"):
        ws.join(worker)
        ws.tick(after_s=61.0)
        ws.die(worker)
        ws.tick(after_s=60.0)
        assert ws.phase is Phase.STARTING, "the time of the start has begun anew"
    ws.join("w3")
    ws.tick(after_s=0.1)
    ws.die("w3")
    ws.tick(after_s=2.0)
    assert ws.state.outcome.ending is Ending.NOT_ENOUGH_SLOTS
    assert "Limits.start_timeout_s=60.0" in ws.state.outcome.message
    assert "3 times before, enough had" in ws.state.outcome.message


def test_one_that_loads_a_checkpoint_for_too_long_is_replaced_after_the_start_timeout_too():
    ws = loading_a_checkpoint(1, restore_timeout_s=100.0)
    ws.join("w0")
    ws.tick(after_s=151.0)
    assert ws.addressees(cmd.Fence) == {"w0"}
    ws.die("w0")
    ws.tick(after_s=50.0)
    assert ws.phase is Phase.STARTING
    ws.join("w1")
    ws.feed(ev.Restored(worker="w1", commit=commit(4)))
    assert ws.members == ["w1"]


def test_losses_at_the_start_begin_its_time_anew_once_until_enough_are_there_again():
    ws = loading_a_checkpoint(2)
    ws.join("w0", "w1")
    ws.tick(after_s=61.0)
    ws.die("w1")
    ws.tick(after_s=30.0)
    ws.die("w0")
    ws.tick(after_s=31.0)
    assert ws.state.outcome.ending is Ending.NOT_ENOUGH_SLOTS


def test_a_start_that_has_its_minimum_waits_for_others_no_longer_when_one_is_lost():
    ws = BareController((1, 3), start_timeout_s=60.0)
    ws.start()
    ws.place("w2")
    ws.join("w0", "w1")
    ws.tick(after_s=59.0)
    ws.die("w1")
    ws.tick(after_s=1.5)
    assert ws.members == ["w0"]


def test_a_start_that_is_held_for_long_has_its_time_afterwards():
    ws = BareController(2, start_timeout_s=60.0)
    ws.start()
    ws.join("w0")
    ws.feed(ev.PauseAsked(for_s=100.0))
    ws.tick(after_s=101.0)
    assert ws.state.care.hold is None
    ws.tick(after_s=59.0)
    assert ws.phase is Phase.STARTING
    ws.join("w1")
    assert ws.phase is Phase.FORMING


def test_a_worker_lost_before_the_start_is_replaced():
    ws = BareController(2)
    ws.start()
    ws.place("w0", "w1")
    ws.lose("w1")
    assert ws.addressees(cmd.StartWorker) == {"w2"}
    assert ws.die("w1") == ()
    ws.join("w0", "w2")
    assert ws.members == ["w0", "w2"]


def test_workers_that_keep_ending_before_their_first_step_end_the_run():
    ws = BareController(1, start_tries=3)
    ws.start()
    for worker in ("w0", "w1", "w2"):
        assert ws.phase is Phase.STARTING
        ws.place(worker)
        ws.die(worker)
    assert ws.state.outcome.ending is Ending.NOT_ENOUGH_SLOTS
    assert "3 workers in a row" in ws.state.outcome.message


def test_a_worker_that_parks_ends_the_row_of_failures():
    ws = BareController((2, 2), start_tries=2)
    ws.start()
    ws.die("w0")
    ws.join("w1")
    ws.die("w2")
    assert ws.phase is Phase.STARTING
    assert ws.addressees(cmd.StartWorker) == {"w3"}


def test_a_worker_that_loads_too_long_is_fenced_and_replaced():
    ws = BareController((1, 2), load_timeout_s=50.0)
    ws.start()
    ws.join("w0")
    ws.form()
    ws.place("w1")
    assert ws.tick(after_s=50.0) == ()
    ws.tick(after_s=0.1)
    assert ws.addressees(cmd.Fence) == {"w1"}
    assert "Limits.load_timeout_s=50.0" in ws.commands[0].reason
    ws.die("w1")
    assert ws.addressees(cmd.StartWorker) == {"w2"}


# --- below the minimum ------------------------------------------------------------------------------------------------


def test_below_the_minimum_the_survivors_wait_for_a_replacement():
    ws = below_minimum()
    assert ws.addressees(cmd.StartWorker) == {"w2"}
    assert ws.tick(after_s=1.0) == ()
    ws.join("w2")
    assert (ws.members, ws.view.resume, ws.phase) == (["w0", "w2"], commit(4), Phase.FORMING)
    ws.form()
    assert ws.state.world_sizes == (2, 2)


def test_the_wait_below_the_minimum_has_a_deadline():
    ws = below_minimum(jobset_downtime_threshold_s=100.0)
    ws.place("w2")
    ws.tick(after_s=60.0)
    ws.die("w2")
    assert ws.phase is Phase.WAITING
    ws.tick(after_s=40.1)
    assert ws.state.outcome.ending is Ending.NOT_ENOUGH_SLOTS
    assert "Limits.jobset_downtime_threshold_s=100.0" in ws.state.outcome.message


def test_a_replacement_that_does_not_come_up_is_replaced():
    ws = below_minimum()
    ws.place("w2")
    ws.raise_("w2")
    assert ws.addressees(cmd.StartWorker) == {"w3"}
    ws.lose("w3")
    assert ws.addressees(cmd.StartWorker) == {"w4"}


def test_the_last_survivor_lost_while_waiting_is_asked_once_more():
    """Contact is lost, not the state: only a proof of death, or the end of its lease, ends the run."""
    ws = below_minimum()
    ws.lose("w0")
    assert ws.addressees(cmd.Freeze) == {"w0"}
    assert ws.state.outcome is None
    ws.die("w0")
    assert ws.state.outcome.ending is Ending.REPLICAS_LOST


def test_the_last_survivor_that_answers_again_goes_on_waiting():
    ws = below_minimum()
    ws.lose("w0")
    ws.answer("w0", 4)
    assert (ws.phase, ws.standing("w0")) == (Phase.WAITING, Standing.MEMBER)


def test_the_last_survivor_that_stays_silent_for_a_lease_ends_the_run():
    ws = below_minimum(lease_s=20.0)
    ws.lose("w0")
    ws.tick(after_s=21.0)
    assert ws.state.outcome.ending is Ending.REPLICAS_LOST


def test_a_survivor_that_stays_silent_for_a_lease_gives_up_its_slot():
    ws = BareController(3, lease_s=20.0).run()
    ws.stable(0)
    ws.die("w2")
    ws.answer("w0", 1)
    ws.answer("w1", 1)
    assert ws.phase is Phase.WAITING
    ws.lose("w0")
    ws.tick(after_s=21.0)
    assert ws.standing("w0") is Standing.DEAD and ws.addressees(cmd.Fence) == {"w0"}


# --- everybody is lost ------------------------------------------------------------------------------------------------


def test_all_dead_after_something_was_committed_ends_the_run():
    ws = BareController((1, 2), spares=1).run()
    ws.stable(0)
    ws.die("w0", "w1")
    assert ws.state.outcome.ending is Ending.REPLICAS_LOST
    assert "more replicas" in ws.state.outcome.message


def test_all_dead_before_anything_was_committed_starts_forming_again():
    ws = BareController((1, 2), spares=1).run()
    ws.die("w0", "w1")
    assert (ws.members, ws.view.bootstrap, ws.generation) == (["w2"], True, 2)


def test_all_dead_without_a_published_step_but_after_a_resumption_ends_the_run():
    ws = BareController(2).run()
    ws.break_("w0")
    ws.answer("w0", 4)
    ws.answer("w1", 4)
    ws.form()
    ws.die("w0", "w1")
    assert ws.state.outcome.ending is Ending.REPLICAS_LOST


def test_a_first_forming_that_fails_is_tried_again_from_the_start():
    ws = BareController(2)
    ws.start()
    ws.join("w0", "w1")
    for generation in range(2, 6):  # nobody is to blame, and who has come up in minutes is not sent away
        ws.fail_forming("w1")
        ws.answer("w0", -1, healed=False)
        ws.answer("w1", -1, healed=False)
        assert (ws.members, ws.view.bootstrap, ws.generation) == (["w0", "w1"], True, generation)
        assert ws.given(cmd.Dismiss) == []


def test_a_member_that_holds_the_state_before_the_first_step_can_give_it():
    ws = BareController(2).run()
    ws.break_("w0")
    ws.answer("w0", -1)
    ws.answer("w1", -1, healed=False)
    assert (ws.view.bootstrap, ws.names(ws.view.donors), ws.names(ws.view.behind)) == (False, ["w0"], ["w1"])


# --- new workers are asked for at the right moment --------------------------------------------------------------------


def test_a_lost_spare_is_replaced_at_once():
    """And its slot is freed, whether it is dead or cannot be reached: nobody waits for a proof."""
    ws = BareController(2, spares=1).run()
    ws.lose("w2")
    assert ws.addressees(cmd.StartWorker) == {"w3"} and ws.addressees(cmd.Fence) == {"w2"}
    ws.tick(after_s=ws.state.settings.limits.lease_s)
    assert ws.standing("w2") is Standing.SUSPECT, "until then it may live"
    ws.tick(after_s=ws.state.settings.limits.freeze_timeout_s + 1.0)
    assert ws.standing("w2") is Standing.DEAD and ws.phase is Phase.RUNNING


def test_a_lost_member_is_replaced_after_the_first_step_that_follows():
    ws = BareController((1, 2)).run()
    ws.stable(0)
    ws.die("w1")
    assert ws.given(cmd.StartWorker) == []
    ws.answer("w0", 1)
    assert ws.given(cmd.StartWorker) == []
    ws.form()
    assert ws.given(cmd.StartWorker) == [], "a worker that starts would compete with the first step"
    told = ev.StepStable(worker="w0", report=report(1, generation=1))
    assert ws.feed(told) == (), "the new leader tells of a step from before the incident"
    ws.stable(2)
    assert ws.addressees(cmd.StartWorker) == {"w2"}


def test_after_a_planned_change_missing_workers_are_asked_for_at_once():
    ws = grown_to_two()
    ws.die("w2")
    assert ws.addressees(cmd.StartWorker) == {"w3"}
    ws.answer("w0", 1)
    ws.die("w3")
    ws.answer("w1", 1)
    assert ws.given(cmd.StartWorker) == []
    ws.form()
    assert ws.addressees(cmd.StartWorker) == {"w4"}
