"""A new driver goes on with live workers: who is a member, what is resumed, what follows of who was not found."""

from dataclasses import replace
from typing import Any

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.adoption import Adopted, last_generation, newest_view, who_goes_on
from elastic.control.outcome import Ending
from elastic.control.state import Phase, Standing
from elastic.control.tally import Tally
from elastic.control.tuning import Tuning
from elastic.control.values import NOTHING_COMMITTED, Fork, Member, View
from elastic.control.worker_protocol import Stage, WorkerState
from elastic.settings import Checkpoint
from tests.pure.bare_controller import BareController, commit, report


def view(*names: str, generation: int = 3, resume: int = 4, width: int = 1, **more: Any) -> View:
    members = tuple(Member(name, f"host-{name}", 1) for name in names)
    told = {"donors": tuple(range(len(names))), "behind": (), "width": width, "run": "r", "incarnation": 1}
    return View(generation=generation, members=members, resume=commit(resume), **{**told, **more})


def adopted(name: str, number: int, where: View | None, **more: Any) -> Adopted:
    """A member that has applied step `number` and was stepping, unless something else is said."""
    state = {"stage": Stage.FROZEN, "generation": where.generation if where else 0, "healed": number >= 0}
    state |= {key: more.pop(key) for key in list(more) if key in ("stage", "generation", "healed", "prepared")}
    place = {"gang": int(name[1:]), "shard": 0, "pid": 1, "node": f"node-{name}", "host": "h", "port": 1}
    held = WorkerState(commit=commit(number), incarnation=2, **state)
    return Adopted(worker=name, view=where, state=held, **{"was": Stage.STEPPING, **place, **more})


def parked(name: str, **more: Any) -> Adopted:
    return adopted(name, -1, None, was=Stage.PARKED, stage=Stage.PARKED, **more)


def taken(
    *found: Adopted, replicas: Any = (1, 2), spares: int = 0, told: Any = None, forks: Any = (), **options: Any
) -> BareController:
    ws = BareController(replicas, spares, **options)
    ws.state = replace(ws.state, settings=replace(ws.state.settings, incarnation=2), forks=forks)
    ws.feed(ev.RunTakenOver(found=found, **(told or {})))
    return ws


def test_all_members_go_on_from_what_the_first_of_them_holds():
    old = view("w0", "w1", published=4, tuning=Tuning(lr_factor=0.5))
    ws = taken(adopted("w0", 7, old), adopted("w1", 6, old), told={"published": 5})
    assert ws.phase is Phase.FORMING
    new = ws.view
    assert (new.incarnation, new.generation, new.resume) == (2, 4, commit(7))
    assert (new.members[0].worker, new.donors, new.behind) == ("w0", (0,), (1,))
    assert (new.published, new.tuning) == (5, Tuning(lr_factor=0.5))
    assert new.forks == (Fork(incarnation=2, generation=4, step=7),)
    assert not new.restored and not new.bootstrap
    (form,) = ws.given(cmd.Form)
    assert form.reason == "continue in place: a new driver goes on with live workers"
    assert ws.given(cmd.StartWorker) == [] and ws.state.incidents == ()


def test_a_node_that_will_be_taken_away_is_left_under_the_new_driver_too():
    """That is told as soon as there is a driver, and before it knows of any worker."""
    ws = BareController((1, 3))
    ws.state = replace(ws.state, settings=replace(ws.state.settings, incarnation=2))
    ws.feed(ev.NodeNotice(node="node-w1", reason="it is drained"))
    old = view("w0", "w1", "w2")
    ws.feed(ev.RunTakenOver(found=tuple(adopted(name, 7, old) for name in ("w0", "w1", "w2"))))
    assert ws.phase is Phase.FORMING and ws.members == ["w0", "w2"]
    assert [(one.workers, one.reason) for one in ws.given(cmd.Dismiss)] == [(("w1",), "it is drained")]


def test_what_is_left_out_since_it_ends_all_who_compute_it_stays_so():
    old = view("w0", "w1", left_out=(9,))
    ws = taken(adopted("w0", 7, old), adopted("w1", 7, old))
    assert ws.view.left_out == (9,)


def test_what_is_counted_is_counted_of_those_who_were_found():
    """And it counts on from there: the laws, which each event is held to, compare it with a count anew."""
    old = view("w0", "w1", published=4)
    ws = taken(adopted("w0", 7, old), adopted("w1", 6, old), parked("w2"), replicas=(1, 3))
    tally = ws.state.tally
    assert tally is not None and tally.describes(ws.state) and tally.differs(Tally(ws.state)) == []
    assert list(tally.ranks) == ["w0", "w1", "w2"] and ws.state.failures == ws.state.trained == 0
    ws.form()
    assert tally is ws.state.tally and tally.describes(ws.state) and ws.state.trained == 1


def test_then_the_run_goes_on_as_any():
    old = view("w0", "w1")
    ws = taken(adopted("w0", 7, old), adopted("w1", 7, old), told={"published": 6})
    ws.form()
    assert ws.phase is Phase.RUNNING
    ws.feed(ev.StepStable(worker="w0", report=report(6)))
    assert ws.state.published == 6, "it was told before"
    ws.stable(7)
    assert ws.state.published == 7
    assert ws.state.view.forks == ws.state.forks


def test_who_was_not_found_is_proven_dead_first():
    old = view("w0", "w1")
    ws = taken(adopted("w0", 7, old))
    assert ws.phase is Phase.FREEZING
    assert ws.addressees(cmd.ProveDead) == {"w1"}
    ws.die("w1")
    assert ws.phase is Phase.FORMING and ws.members == ["w0"]


def test_or_is_left_behind_after_a_while():
    ws = taken(adopted("w0", 7, view("w0", "w1")), heartbeat_timeout_s=2.0, exile_after_s=0.5)
    ws.tick(1.0)
    assert ws.phase is Phase.FREEZING
    ws.tick(1.5)
    assert ws.standing("w1") is Standing.EXILED
    assert ws.phase is Phase.FORMING and ws.members == ["w0"]
    assert ws.addressees(cmd.Fence) == {"w1"}


def test_nobody_is_left_behind_while_nobody_holds_the_state():
    ws = taken(adopted("w0", -1, view("w0", "w1"), healed=False), heartbeat_timeout_s=2.0, exile_after_s=0.5)
    ws.tick(5.0)
    assert ws.standing("w1") is Standing.SUSPECT and ws.phase is Phase.FREEZING
    ws.die("w1")
    assert ws.state.outcome.ending is Ending.REPLICAS_LOST


def test_who_stood_at_the_door_stands_there():
    old = view("w0")
    ws = taken(adopted("w0", 7, old), parked("w1"), parked("w2"), spares=1)
    assert ws.phase is Phase.FORMING and len(ws.members) == 2
    assert {ws.standing(name) for name in ("w1", "w2")} == {Standing.MEMBER, Standing.PARKED}


def test_a_run_that_has_not_trained_yet_starts_with_them():
    ws = taken(parked("w0"), adopted("w1", -1, None, was=Stage.LOADING, stage=Stage.LOADING), replicas=(1, 3))
    assert ws.phase is Phase.STARTING
    assert ws.standing("w1") is Standing.LOADING
    assert ws.addressees(cmd.StartWorker) == {"w2"}
    ws.place("w2")
    ws.park("w1", "w2")
    assert ws.phase is Phase.FORMING and ws.view.bootstrap


def test_with_tiers_it_looks_for_state_first():
    ws = taken(parked("w0"), replicas=1, checkpoint=Checkpoint())
    assert ws.given(cmd.FindRestore)


def test_what_is_left_of_a_broken_replica_is_a_joiner_that_tells_nothing():
    old = view("w0", generation=5)
    left = adopted("w1", 6, view("w0", "w1", generation=3), was=Stage.FROZEN, generation=4)
    ws = taken(adopted("w0", 9, old), left)
    assert ws.phase is Phase.FORMING
    assert set(ws.members) == {"w0", "w1"}
    assert ws.view.replaced == ("w1",) and ws.view.resume == commit(9)


def test_a_rewind_that_was_not_finished_has_not_been():
    """Some have loaded an older step at the door; what was told since is not given up."""
    old = view("w0", "w1", resume=2, published=2)
    rewound = adopted("w1", 3, old, was=Stage.FROZEN)
    ws = taken(adopted("w0", 7, old), rewound, told={"published": 6})
    assert ws.view.resume == commit(7) and ws.view.behind == (1,)


def test_a_rewind_in_vain_keeps_it_from_nothing():
    """Asked before the new driver's first generation, whose line of history begins with what live workers hold."""
    told, old = {"published": 6}, view("w0", "w1", resume=2, published=2)
    ws = taken(adopted("w0", 7, old), told=told, checkpoint=Checkpoint())
    ws.feed(ev.RewindAsked(to_step=3))
    ws.die("w1")
    assert ws.phase is Phase.WAITING
    ws.feed(ev.RestoreFound(commit=None, reason="no step is whole"))
    assert ws.phase is Phase.FORMING and (ws.view.resume, ws.view.restored) == (commit(7), False)
    assert (ws.state.forks, ws.state.published) == ((Fork(incarnation=2, generation=4, step=7),), 6)


def test_a_rewind_that_was_decided_holds_though_nobody_has_heard_of_its_generation():
    """Its order to form was lost with its driver: who has loaded what it goes back to holds the newest state."""
    old, told = view("w0", "w1", resume=6, published=8), {"published": 2}
    forks = (Fork(incarnation=1, generation=4, step=2),)
    ws = taken(adopted("w0", 2, old), adopted("w1", 9, old), told=told, forks=forks, checkpoint=Checkpoint())
    assert ws.given(cmd.FindRestore) == [] and ws.state.published == 2
    assert (ws.view.resume.step, ws.view.donors, ws.view.behind) == (2, (0,), (1,))
    assert ws.view.forks == (*forks, Fork(incarnation=2, generation=4, step=2))
    late = taken(adopted("w0", 2, old), told=told, forks=forks, checkpoint=Checkpoint())
    assert late.phase is Phase.FREEZING
    late.answer("w1", 9)
    assert late.view.resume.step == 2, "what the rewind has left behind is nothing to go on from"


def test_who_could_not_go_back_does_not_take_the_others_forward_again():
    """A member of the generation that a rewind began kept what it had, and the driver died before all had formed."""
    fork = Fork(incarnation=1, generation=3, step=2)
    old = view("w0", "w1", resume=2, published=2, forks=(fork,))
    ws = taken(adopted("w0", 2, old), adopted("w1", 9, old), told={"published": 2}, checkpoint=Checkpoint())
    assert (ws.view.resume.step, ws.view.donors, ws.view.behind) == (2, (0,), (1,))


def test_if_all_have_the_newest_step_comes_from_the_tiers():
    old = view("w0", resume=2, published=2)
    ws = taken(adopted("w0", 3, old), replicas=1, told={"published": 6}, checkpoint=Checkpoint())
    assert ws.phase is Phase.WAITING and ws.given(cmd.FindRestore)


def test_who_answers_late_is_judged_as_those_who_were_found():
    """All have loaded an older step for a rewind; one of them was out of reach when the new driver asked."""
    old = view("w0", "w1", resume=2, published=2)
    ws = taken(adopted("w0", 3, old), told={"published": 6}, checkpoint=Checkpoint())
    assert ws.phase is Phase.FREEZING
    ws.answer("w1", 3)
    assert ws.phase is Phase.WAITING and ws.given(cmd.FindRestore) and not ws.given(cmd.Form)


def test_who_answers_late_with_what_was_told_gives_it():
    old = view("w0", "w1", resume=2, published=2)
    ws = taken(adopted("w0", 3, old), told={"published": 6}, checkpoint=Checkpoint())
    ws.answer("w1", 6)
    assert ws.phase is Phase.FORMING and ws.view.resume == commit(6)
    assert [ws.members[rank] for rank in ws.view.donors] == ["w1"]


def test_replicas_of_several_workers_keep_their_places():
    old = view("w0", "w1", "w2", "w3", width=2)
    places = {"w0": (0, 0), "w1": (0, 1), "w2": (1, 0), "w3": (1, 1)}
    found = [adopted(name, 7, old, gang=gang, shard=shard) for name, (gang, shard) in places.items()]
    ws = taken(*found[:3], width=2)
    assert ws.state.workers["w3"].gang == 1
    ws.die("w3")
    assert ws.phase is Phase.FORMING and ws.members == ["w0", "w1"]
    assert ws.standing("w2") is Standing.PARKED


def test_what_one_shard_is_prepared_for_counts():
    old = view("w0", "w1", width=2, resume=4)
    ahead = adopted("w0", 8, old, gang=0, shard=0)
    behind = adopted("w1", 7, old, gang=0, shard=1, prepared=commit(8))
    ws = taken(ahead, behind, width=2, replicas=1, told={"published": 8})
    assert ws.view.resume == commit(8) and ws.view.behind == ()


def test_there_may_be_more_of_them_than_are_wanted():
    """Who was to be ended, and was replaced, is there with those who replace it."""
    ws = taken(adopted("w0", 7, view("w0")), parked("w1"), parked("w2"), parked("w3"), replicas=(1, 2), spares=1)
    assert ws.addressees(cmd.Dismiss) == {"w3"}


PLACES = {"w0": (0, 0), "w1": (0, 1), "w2": (1, 0), "w3": (1, 1)}


def two_replicas_of_two(*names: str) -> list[Adopted]:
    old = view("w0", "w1", "w2", "w3", width=2)
    return [adopted(name, 7, old, gang=PLACES[name][0], shard=PLACES[name][1]) for name in names]


def test_of_two_in_one_place_the_member_stays():
    found = two_replicas_of_two("w0", "w1", "w2", "w3")
    ws = taken(*found, parked("w5", gang=1, shard=1), parked("w6", gang=2, shard=0), replicas=(1, 3), width=2)
    assert ws.addressees(cmd.Dismiss) == {"w5"}
    assert set(ws.members) == set(PLACES)


def test_of_two_at_the_door_one_stays_and_gets_the_mates_it_needs():
    found = two_replicas_of_two("w0", "w1")
    rivals = (parked("w5", gang=4, shard=0), parked("w6", gang=4, shard=0), parked("w7", gang=5, shard=1))
    ws = taken(*found, *rivals, replicas=(1, 3), width=2, told={"next_worker": 8})
    assert len(ws.addressees(cmd.Dismiss) & {"w5", "w6"}) == 1
    ws.die("w2", "w3")
    ws.form()
    assert {(start.gang, start.shard) for start in ws.given(cmd.StartWorker)} == {(4, 1), (5, 0)}


def test_who_replaces_a_missing_member_goes_only_if_that_comes_back():
    found, rival = two_replicas_of_two("w0", "w1", "w2"), parked("w5", gang=1, shard=1)
    ws = taken(*found, rival, width=2)
    assert ws.phase is Phase.FREEZING and ws.given(cmd.Dismiss) == []
    ws.answer("w3", 7)
    assert ws.addressees(cmd.Dismiss) == {"w5"}
    assert ws.phase is Phase.FORMING and set(ws.members) == set(PLACES)
    ws = taken(*found, rival, width=2)
    ws.die("w3")
    assert ws.given(cmd.Dismiss) == [] and set(ws.members) == {"w0", "w1", "w2", "w5"}


def test_so_does_a_whole_replica_unless_it_is_lost_anyway():
    doomed = parked("w3", notice="SIGTERM")
    ws = taken(adopted("w0", 7, view("w0", "w1")), parked("w2"), doomed)
    assert ws.given(cmd.Dismiss) == []
    ws.answer("w1", 7)
    assert ws.addressees(cmd.Dismiss) == {"w2"}
    assert set(ws.members) == {"w0", "w1"}


def test_who_was_dismissed_counts_as_gone():
    old = view("w0", "w1")
    ws = taken(adopted("w0", 7, old), adopted("w1", 7, old, was=Stage.GONE, stage=Stage.GONE))
    assert ws.phase is Phase.FREEZING
    ws.leave("w1", dismissed=True)
    assert ws.phase is Phase.FORMING and ws.members == ["w0"]


def test_a_run_that_was_over_is_finished():
    old = view("w0", "w1")
    done = {"was": Stage.FINISHED, "stage": Stage.FINISHED}
    ws = taken(adopted("w0", 9, old, **done), adopted("w1", 9, old), told={"published": 9})
    ws.feed(ev.LoopEnded(worker="w0", generation=3, commit=commit(9)))
    assert ws.phase is Phase.FINISHING and ws.addressees(cmd.Finish) == {"w1"}
    ws.leave("w0")
    ws.leave("w1")
    assert ws.state.outcome.ending is Ending.SUCCEEDED


def test_numbers_go_on_above_all_that_was_heard_of():
    old = view("w0", "w1", generation=3)
    found = (adopted("w0", 7, old), adopted("w1", 7, old, generation=5, was=Stage.FROZEN))
    assert last_generation(found) == 5
    ws = taken(*found, told={"next_worker": 9, "next_gang": 4})
    assert ws.generation == 6
    assert (ws.state.next_worker, ws.state.next_gang) == (9, 4)


def test_gaps_of_the_journal_are_filled_by_what_it_has_beyond():
    old = view("w0", published=4)
    ws = taken(adopted("w0", 9, old), replicas=1, told={"published": 3, "ahead": (5, 6, 8)})
    assert (ws.state.published, ws.state.published_ahead) == (6, frozenset({8}))


def test_what_a_journal_has_beyond_a_gap_is_not_searched_for_each_step():
    """After a gap that was given up it is all that the run has done since."""

    class Steps(tuple):
        __slots__ = ()

        def __contains__(self, step):
            raise AssertionError("all of them were searched")

    told = {"published": 3, "ahead": Steps((5, 6, 8))}
    assert taken(adopted("w0", 9, view("w0", published=4)), replicas=1, told=told).state.published == 6


def test_it_knows_their_gpus():
    old = view("w0", "w1")
    ws = taken(adopted("w0", 7, old, gpus=("0", "1")), adopted("w1", 7, old), parked("w2", gpus=("3",)), spares=1)
    assert [ws.state.workers[name].gpus for name in ("w0", "w1", "w2")] == [("0", "1"), (), ("3",)]


def test_it_knows_after_which_step_all_had_held_the_same_bits():
    """Else a dispute before the next vote would end the run, though there is a step to go back to."""
    old = view("w0", "w1", published=6)
    ws = taken(adopted("w0", 7, old), adopted("w1", 7, old), told={"published": 6, "verified": 4})
    ws.form()
    assert ws.state.verified == 4


def test_the_newest_view_is_of_the_newest_life():
    old, new = view("w0", generation=9), view("w0", generation=4, incarnation=2)
    assert newest_view((adopted("w0", 1, old), adopted("w1", 1, new))) == new
    assert newest_view((parked("w0"),)) is None


def test_who_was_left_behind_or_outvoted_does_not_come_back():
    old = view("w0")
    exiled = adopted("w1", 6, view("w0", "w1", generation=2))
    outvoted = replace(adopted("w2", 6, old), state=WorkerState(stage=Stage.FROZEN, outvoted=True))
    going, ended = who_goes_on((adopted("w0", 7, old), exiled, outvoted, parked("w3")))
    assert [one.worker for one in going] == ["w0", "w3"]
    assert [one.worker for one in ended] == ["w1", "w2"]


def test_nobody_is_compared_with_all_others_to_know_who_goes_on(monkeypatch):
    """Thousands stand frozen meanwhile."""

    def compare(self, other):
        raise AssertionError("workers were compared")

    monkeypatch.setattr(Adopted, "__eq__", compare)
    going, ended = who_goes_on((adopted("w0", 7, view("w0")), adopted("w1", 6, view("w0", "w1", generation=2))))
    assert ([one.worker for one in going], [one.worker for one in ended]) == (["w0"], ["w1"])


def test_before_the_first_step_it_begins_as_it_was_to():
    old = view("w0", "w1", resume=-1, bootstrap=True)
    ws = taken(adopted("w0", -1, old, healed=True), adopted("w1", -1, old, healed=True))
    assert ws.phase is Phase.FORMING
    assert ws.view.resume == NOTHING_COMMITTED
