"""Who hangs is fenced, who waits is not, and who is out of reach is left behind."""

from dataclasses import replace

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.awaiting import expire_answers
from elastic.control.completions import COMPLETIONS
from elastic.control.flight import STOPPED, Flying, Reading
from elastic.control.state import Phase, Standing
from elastic.control.suspicion import presses, stall_limit_s
from elastic.control.turn import Turn
from elastic.control.values import IncidentClass
from elastic.control.watching import stack_seen
from elastic.policies import Ladder
from elastic.settings import Limits
from tests.pure.bare_controller import BareController, trained

FLOOR_S, SILENT_S, EXILE_S = 0.5, 1.25, 0.3
ENDLESS_S = 1e6


def victims(ws: BareController, *workers: str, still_s: float) -> None:
    for worker in workers:
        ws.beat(worker, Flying.REDUCING, still_s)


def but_knocks(told: tuple[cmd.Command, ...]) -> list[cmd.Command]:
    """What else is wanted; a knock harms nobody."""
    return [command for command in told if not isinstance(command, cmd.Knock)]


# --- how long is too long ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps_s", "limit_s"),
    [
        ([0.05] * 8, 0.5),
        ([1.0] * 8, 2.0),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 13.0),
        ([1.0] * 20 + [60.0], 2.0),
        ([0.05] * 4, 600.0),
    ],
    ids=["the floor", "twice a usual step", "steps that scatter", "one outlier", "too few to learn from"],
)
def test_the_limit_is_learned_from_the_steps(steps_s, limit_s):
    assert stall_limit_s(steps_s, Limits()) == limit_s


def test_others_wait_in_a_reduction_for_as_long_as_one_may_take_outside_of_it():
    limits = Limits()
    assert limits.collective_timeout_s > max(limits.door_timeout_s, limits.first_steps_timeout_s)


def test_only_the_last_steps_count():
    ws = trained(step_s=0.05)
    assert len(ws.state.steps_s) == 8
    for number in range(8, 100):
        ws.stable(number, after_s=0.5)
    assert len(ws.state.steps_s) == 64
    assert stall_limit_s(ws.state.steps_s, ws.state.settings.limits) == 2.0  # a report of this kind says 1 s


# --- who hangs --------------------------------------------------------------------------------------------------------


def suspected() -> BareController:
    ws = trained()
    victims(ws, "w0", "w2", still_s=0.6)
    ws.beat("w1", Flying.COMPUTING, still_s=0.6, micro_batch=3)
    ws.tick(0.0)
    assert ws.addressees(cmd.Inspect) == {"w1"}
    return ws


def test_a_stack_that_does_not_come_is_told_of_at_its_deadline():
    ws = suspected()
    ws.tick(COMPLETIONS[cmd.Inspect].answer_s - 1.0)
    assert ws.state.workers["w1"].stack == "" and ws.state.care.awaited
    ws.tick(2.0)
    assert "no answer" in ws.state.workers["w1"].stack and ws.state.care.awaited == ()
    ws = suspected()
    ws.feed(ev.StackDumped(worker="w1", stack="main.py:1"))
    assert ws.state.care.awaited == ()
    ws.tick(COMPLETIONS[cmd.Inspect].answer_s + 1.0)
    assert ws.state.workers["w1"].stack == "main.py:1"


def test_a_stack_of_somebody_forgotten_is_not_waited_for():
    state = suspected().state
    since_s = (state.seen_s or 0.0) + COMPLETIONS[cmd.Inspect].answer_s + 1.0
    turn = Turn(replace(state, workers=state.workers.without(["w1"]), tally=None), since_s, Ladder())
    expire_answers(turn)
    assert turn.state.care.awaited == () and "w1" not in turn.state.workers


def test_a_process_that_is_stopped_presses():
    still = {"generation": 1, "step": 4, "phase": Flying.COMPUTING, "micro_batch": 0, "commits": 9, "still_s": 0.3}
    assert presses([Reading(worker="w1", state=STOPPED, **still)], 0.2)
    assert not presses([Reading(worker="w1", state=STOPPED, **still)], 0.5)
    assert not presses([Reading(worker="w1", state="R", **still)], 0.2)


def test_a_suspect_is_inspected_and_the_dead_is_fenced_with_its_stack():
    ws = trained()
    victims(ws, "w0", "w2", still_s=0.6)
    ws.beat("w1", Flying.COMPUTING, still_s=0.6, micro_batch=3)
    ws.tick(0.0)
    assert ws.addressees(cmd.Inspect) == {"w1"} and ws.phase is Phase.RUNNING
    ws.feed(ev.StackDumped(worker="w1", stack="forward (net.py:7)"))
    victims(ws, "w0", "w2", still_s=1.1)
    ws.beat("w1", Flying.COMPUTING, still_s=1.1, micro_batch=3)
    ws.tick(0.1)
    assert ws.addressees(cmd.Fence) == {"w1"} and ws.given(cmd.Inspect) == []
    assert ws.addressees(cmd.Freeze) == {"w0", "w1", "w2"}
    (incident,) = ws.state.incidents
    assert (incident.kind, incident.culprits) == (IncidentClass.WORKER_HUNG, ("w1",))
    assert "computing in step 5, micro-batch 3" in incident.evidence[0]
    assert incident.evidence[1] == "stack of w1:\nforward (net.py:7)"
    ws.answer("w0", 7)
    ws.answer("w2", 7)
    ws.die("w1")
    assert ws.members == ["w0", "w2"]


def test_a_stack_that_comes_late_is_evidence_too():
    ws = trained()
    victims(ws, "w0", still_s=1.1)
    ws.beat("w1", Flying.COMPUTING, still_s=1.1)
    ws.tick(0.0)
    assert ws.addressees(cmd.Inspect) == ws.addressees(cmd.Fence) == {"w1"}
    ws.feed(ev.StackDumped(worker="w1", stack="forward (net.py:7)"))
    assert ws.state.incidents[0].evidence[-1] == "stack of w1:\nforward (net.py:7)"


def test_a_stack_that_comes_once_others_train_is_evidence_of_what_they_left_behind():
    ws = trained()
    victims(ws, "w0", "w2", still_s=1.1)
    ws.beat("w1", Flying.COMPUTING, still_s=1.1)
    ws.tick(0.0)
    ws.answer("w0", 7)
    ws.answer("w2", 7)
    ws.die("w1")
    assert ws.members == ["w0", "w2"]
    assert ws.state.incidents[0].generation == ws.state.generation
    ws.feed(ev.StackDumped(worker="w1", stack="forward (net.py:7)"))
    assert ws.state.incidents[0].evidence[-1] == "stack of w1:\nforward (net.py:7)"


def test_the_stack_of_who_is_well_again_is_no_evidence_of_what_is_over():
    ws = trained()
    turn = Turn(ws.state, ws.state.seen_s or 0.0, Ladder())
    turn.signal(IncidentClass.STRAGGLER, "w0 is slow", culprit="w0")
    turn.note_new_generation(3)
    stack_seen(turn, ev.StackDumped(worker="w0", stack="forward (net.py:7)"))
    assert turn.state.incidents[0].evidence == ("w0 is slow",)


def test_a_stack_is_kept_however_much_was_said_before():
    ws = trained()
    victims(ws, "w0", still_s=1.1)
    ws.beat("w1", Flying.COMPUTING, still_s=1.1)
    ws.tick(0.0)
    turn = Turn(ws.state, ws.state.seen_s or 0.0, Ladder())
    for number in range(40):
        turn.signal(IncidentClass.WORKER_HUNG, f"signal {number}")
    assert len(turn.state.incidents[0].evidence) == 16
    stack_seen(turn, ev.StackDumped(worker="w1", stack="forward (net.py:7)"))
    assert turn.state.incidents[0].evidence[-1] == "stack of w1:\nforward (net.py:7)"


@pytest.mark.parametrize("phase", [phase for phase in Flying if phase is not Flying.LOADING])
def test_a_stopped_process_is_dead_at_the_floor_wherever_it_is(phase):
    ws = trained()
    victims(ws, "w0", still_s=FLOOR_S)
    ws.beat("w1", phase, still_s=FLOOR_S, state="T")
    ws.tick(0.0)
    assert ws.addressees(cmd.Fence) == {"w1"}


@pytest.mark.parametrize(
    ("phase", "still_s"),
    [
        (Flying.COMPUTING, FLOOR_S - 0.01),
        (Flying.FETCHING, 59.0),
        (Flying.OUTSIDE, 599.0),
        (Flying.SLOW, 599.0),
        (Flying.AT_DOOR, 119.0),
        (Flying.REDUCING, ENDLESS_S),
        (Flying.TALKING, ENDLESS_S),
    ],
)
def test_phases_have_limits_of_their_own(phase, still_s):
    ws = trained()
    victims(ws, "w0", "w2", still_s=still_s)
    ws.beat("w1", phase, still_s=still_s, micro_batch=0)
    ws.beat("w2", Flying.COMPUTING)
    assert ws.tick(0.0) == ()


@pytest.mark.parametrize(
    ("phase", "still_s"),
    [(Flying.FETCHING, 61.0), (Flying.OUTSIDE, 601.0), (Flying.SLOW, 601.0), (Flying.AT_DOOR, 121.0)],
)
def test_those_limits_end_too(phase, still_s):
    ws = trained()
    victims(ws, "w0", still_s=still_s)
    ws.beat("w1", phase, still_s=still_s)
    ws.tick(0.0)
    assert ws.addressees(cmd.Fence) == {"w1"}


def test_first_steps_of_a_process_may_take_long():
    ws = trained()
    ws.beat("w1", Flying.COMPUTING, still_s=100.0, commits=2)
    victims(ws, "w0", "w2", still_s=100.0)
    assert ws.tick(0.0) == ()
    ws.beat("w1", Flying.COMPUTING, still_s=1201.0, commits=2)
    victims(ws, "w0", "w2", still_s=1200.0)
    ws.tick(0.0)
    assert ws.addressees(cmd.Fence) == {"w1"}


@pytest.mark.parametrize("state", ["R", "T"])
def test_where_nobody_waits_nobody_is_killed_in_a_hurry(state):
    """All load from the same slow disk, or all recompile: a kill would help nobody."""
    ws = trained()
    for still_s in (5.0, 599.0):
        for worker in ws.members:
            ws.beat(worker, Flying.COMPUTING, still_s, state=state)
        assert ws.tick(0.0) == ()
    ws.beat("w0", Flying.COMPUTING, 1201.0, state=state)
    ws.tick(0.0)
    assert ws.addressees(cmd.Fence) == {"w0"}


@pytest.mark.parametrize(
    ("phase", "still_s"), [(Flying.COMPUTING, 4.2), (Flying.EVALUATING, 601.0), (Flying.FETCHING, 61.0)]
)
def test_who_is_slow_like_all_others_is_late_from_when_the_first_one_waits(phase, still_s):
    """One micro-batch takes four times as long everywhere, and one worker is through a moment before the others."""
    ws = trained(step_s=1.0)
    late = [worker for worker in ws.members if worker != "w0"]
    for waited_s in (0.05, 1.9):
        for worker in late:
            ws.beat(worker, phase, still_s + waited_s)
        victims(ws, "w0", still_s=waited_s)
        assert ws.tick(0.0) == ()
    victims(ws, "w0", still_s=605.0)
    ws.beat(late[0], phase, still_s + 605.0)
    ws.beat(late[1], Flying.REDUCING, 0.1)
    ws.tick(0.0)
    assert ws.addressees(cmd.Fence) == {late[0]}


def test_steps_that_are_left_out_do_not_teach_how_long_a_step_takes():
    """A rewind that leaves out 200 batches would have the first one that is computed look like a hang."""
    ws = trained(step_s=10.0)
    limit_s = stall_limit_s(ws.state.steps_s, ws.state.settings.limits)
    for number in range(8, 72):
        ws.stable(number, after_s=0.01, skipped="left out")
    assert stall_limit_s(ws.state.steps_s, ws.state.settings.limits) == limit_s == 20.0


def test_the_only_replica_is_not_killed_in_a_hurry():
    ws = trained(1)
    ws.beat("w0", Flying.REDUCING, 5.0, state="T")
    assert ws.tick(0.0) == ()


@pytest.mark.parametrize(("phase", "still_s", "of"), [(Flying.FETCHING, 61.0, 1), (Flying.SLOW, 601.0, 5)])
def test_limits_of_phases_hold_before_steps_are_known_too(phase, still_s, of):
    """Others have waited as long, though not as long as the first steps of all may take."""
    ws = BareController((1, 3)).run()
    victims(ws, "w0", "w2", still_s=still_s)
    ws.beat("w1", phase, still_s=still_s, commits=of)
    ws.tick(0.0)
    assert ws.addressees(cmd.Fence) == {"w1"}


def test_who_compiles_in_its_first_steps_has_as_long_as_those_may_take():
    ws = trained(first_steps_timeout_s=3600.0)
    victims(ws, "w0", "w2", still_s=700.0)
    ws.beat("w1", Flying.SLOW, still_s=700.0, commits=2)
    assert ws.tick(0.0) == ()
    ws.beat("w1", Flying.SLOW, still_s=700.0, commits=3)
    ws.tick(0.0)
    assert ws.addressees(cmd.Fence) == {"w1"}


def test_the_only_member_that_never_goes_is_killed_in_the_end():
    """It hangs between the group and its first step, where all who are several would wait for it."""
    ws = trained(replicas=1, first_steps_timeout_s=3.0)
    ws.break_("w0")
    ws.answer("w0", 7)
    ws.arrive("w0")
    ws.form("w0")
    assert ws.phase is Phase.RUNNING
    for _ in range(3):
        ws.beat("w0", Flying.FORMING, still_s=9.0)
        ws.tick(1.0)
        assert ws.given(cmd.Fence) == [], "it was told to go just now"
    ws.beat("w0", Flying.FORMING, still_s=9.0)
    ws.tick(1.0)
    assert ws.addressees(cmd.Fence) == {"w0"} and ws.state.incidents[-1].kind is IncidentClass.WORKER_HUNG


def test_nobody_is_suspected_before_steps_are_known():
    ws = BareController((1, 3)).run()
    ws.beat("w1", Flying.COMPUTING, still_s=100.0)
    assert ws.tick(0.0) == ()


def test_a_page_of_an_older_generation_says_nothing():
    ws = trained()
    ws.beat("w1", Flying.COMPUTING, still_s=100.0, generation=0)
    assert ws.tick(0.0) == ()


def test_a_reduction_in_which_all_wait_is_broken_and_nobody_is_killed():
    ws = trained()
    victims(ws, "w0", "w1", "w2", still_s=0.6)
    ws.tick(0.0)
    assert ws.phase is Phase.FREEZING and ws.given(cmd.Fence) == []
    assert ws.state.incidents[0].kind is IncidentClass.COLLECTIVE_BROKEN


def test_a_collective_that_only_some_call_is_broken_and_says_who_is_in_it():
    ws = trained()
    victims(ws, "w0", "w2", still_s=0.6)
    ws.beat("w1", Flying.TALKING, still_s=0.6)
    ws.tick(0.0)
    assert ws.given(cmd.Fence) == [] and ws.addressees(cmd.Freeze) == {"w0", "w1", "w2"}
    assert "but for w1, in a collective" in ws.state.incidents[0].evidence[0]


def test_a_collective_in_which_all_are_may_take_long():
    ws = trained()
    for worker in ("w0", "w1", "w2"):
        ws.beat(worker, Flying.TALKING, still_s=100.0)
    assert ws.tick(0.0) == ()


def test_who_waits_in_a_collective_for_a_silent_host_leaves_it_behind():
    ws = trained()
    victims(ws, "w0", "w1", "w2", still_s=0.0)
    for _ in range(6):
        ws.now_s += 0.25
        for worker in ("w0", "w2"):
            ws.beat(worker, Flying.TALKING, still_s=1.0)
        ws.tick(0.0)
    assert ws.phase is Phase.FREEZING and ws.standing("w1") is Standing.SUSPECT


def test_a_stopped_member_does_not_hold_up_a_freeze_or_a_forming():
    ws = trained()
    ws.break_("w0")
    ws.beat("w1", Flying.REDUCING, still_s=0.6, state="T")
    ws.tick(0.01)
    assert ws.addressees(cmd.Fence) == {"w1"}
    ws.answer("w0", 7)
    ws.answer("w2", 7)
    ws.die("w1")
    ws.arrive("w0", "w2")
    ws.beat("w2", Flying.FORMING, still_s=0.6, state="T")
    ws.tick(0.01)
    assert ws.addressees(cmd.Fence) == {"w2"} and ws.phase is Phase.FREEZING


def test_a_member_stopped_before_it_is_heard_at_the_door_is_fenced_once():
    ws = trained()
    ws.break_("w0")
    for worker in ("w0", "w1", "w2"):
        ws.answer(worker, 7)
    ws.arrive("w0", "w2")
    ws.beat("w1", Flying.FORMING, still_s=FLOOR_S, state="T")
    ws.tick(0.0)
    assert [fence.worker for fence in ws.given(cmd.Fence)] == ["w1"]


def test_a_member_of_which_no_thread_runs_does_not_hold_up_a_freeze_for_longer_than_a_hang():
    """Its training thread hangs and keeps the interpreter to itself, so that its control thread cannot answer."""
    ws = trained()
    ws.beat("w1", Flying.COMPUTING, still_s=9.0)
    ws.break_("w0")
    ws.answer("w0", 7)
    ws.tick(0.9)
    assert ws.phase is Phase.FREEZING and ws.addressees(cmd.Fence) == set()
    ws.beat("w1", Flying.COMPUTING, still_s=10.0)
    ws.beat("w2", Flying.REDUCING, still_s=10.0)
    ws.tick(0.2)
    assert ws.addressees(cmd.Fence) == {"w1"}, "w2 waits, and is pressed when its own limit is over"
    assert "has stood still for 10.0 s" in ws.given(cmd.Fence)[0].reason


def test_while_nobody_else_holds_the_state_who_hangs_and_does_not_answer_is_given_its_time():
    """It may be the last one that holds the state."""
    ws = trained()
    ws.beat("w1", Flying.COMPUTING, still_s=9.0)
    ws.break_("w0")
    ws.tick(1.5)
    assert ws.addressees(cmd.Fence) == set()
    ws.answer("w0", 7)
    ws.die("w0")
    ws.tick(1.5)
    assert ws.addressees(cmd.Fence) == set(), "what w0 has held died with it"


def test_a_member_that_answers_the_freeze_and_hangs_on_its_way_to_the_door_is_fenced():
    """Its control thread lives, its training thread does not. Others wait for it from when they begin to form."""
    ws = trained()
    ws.break_("w0")
    for worker in ("w0", "w1", "w2"):
        ws.answer(worker, 7)
    ws.arrive("w0", "w2")
    ws.beat("w1", Flying.COMPUTING, still_s=9.0, generation=1)
    ws.tick(0.9)
    assert ws.phase is Phase.FORMING and ws.addressees(cmd.Fence) == set()
    ws.beat("w1", Flying.COMPUTING, still_s=9.2, generation=1)
    ws.tick(0.2)
    assert ws.addressees(cmd.Fence) == {"w1"} and ws.phase is Phase.FREEZING


# --- who is out of reach ----------------------------------------------------------------------------------------------


def cut_off() -> BareController:
    """All have been heard; then w1's host falls silent while the others wait for it."""
    ws = trained()
    victims(ws, "w0", "w1", "w2", still_s=0.0)
    for _ in range(6):
        ws.now_s += 0.25
        victims(ws, "w0", "w2", still_s=1.0)
        ws.tick(0.0)
    return ws


def test_a_host_that_is_silent_while_all_wait_is_left_behind():
    ws = cut_off()
    assert ws.phase is Phase.FREEZING
    assert ws.standing("w1") is Standing.SUSPECT
    ws.answer("w0", 7)
    ws.answer("w2", 7)
    assert ws.phase is Phase.FREEZING, "it may still answer"
    ws.tick(EXILE_S + 0.01)
    assert ws.standing("w1") is Standing.EXILED and ws.addressees(cmd.Fence) == {"w1"}
    assert ws.members == ["w0", "w2"]
    assert ws.state.incidents[0].kind is IncidentClass.HOST_SILENT
    assert "Limits.heartbeat_timeout_s=1.25" in ws.state.incidents[0].evidence[0]


def test_a_host_is_left_behind_also_where_who_waits_for_it_has_just_joined():
    """Who waits in a reduction does not compile."""
    ws = trained()
    victims(ws, "w0", "w1", "w2", still_s=0.0)
    for _ in range(6):
        ws.now_s += 0.25
        victims(ws, "w0", still_s=1.0)
        ws.beat("w2", Flying.REDUCING, still_s=1.0, commits=1)
        ws.tick(0.0)
    assert ws.phase is Phase.FREEZING and ws.standing("w1") is Standing.SUSPECT


def test_a_first_reduction_may_take_long_where_nobody_is_out_of_sight():
    ws = trained()
    victims(ws, "w0", "w1", still_s=9.0)
    ws.beat("w2", Flying.REDUCING, still_s=9.0, commits=1)
    assert ws.tick(0.0) == ()


def test_lost_contact_with_another_decides_nothing_about_the_silent():
    """Only time does: it may be the very moment at which the last one is heard again."""
    ws = cut_off()
    ws.answer("w0", 7)
    ws.answer("w2", 7)
    ws.now_s += EXILE_S + 0.01
    ws.lose("w2")
    assert ws.phase is Phase.FREEZING and ws.standing("w1") is Standing.SUSPECT
    ws.tick(0.0)
    assert ws.standing("w1") is Standing.EXILED and ws.members == ["w0"]


def test_a_host_that_comes_back_in_time_loses_nothing():
    ws = cut_off()
    for worker in ("w0", "w1", "w2"):
        ws.answer(worker, 7)
    assert sorted(ws.members) == ["w0", "w1", "w2"] and ws.given(cmd.Fence) == []


def grown_without_the_silent() -> BareController:
    """The others have gone on, and w3 was asked for in the place of w1."""
    ws = cut_off()
    ws.answer("w0", 7)
    ws.answer("w2", 7)
    ws.tick(EXILE_S + 0.01)
    ws.form()
    victims(ws, "w0", "w2", still_s=0.0)
    ws.stable(8, after_s=0.1)
    assert [(one.worker, one.avoid) for one in ws.given(cmd.StartWorker)] == [("w3", frozenset({"node-w1"}))]
    return ws


def test_a_worker_that_waits_for_a_slot_may_have_one_on_a_host_that_is_heard_again():
    ws = grown_without_the_silent()
    ws.tick(0.5)
    assert ws.given(cmd.Dismiss) == []
    ws.feed(ev.HostBeat(node="node-w1"))
    ws.tick(0.0)
    assert ws.addressees(cmd.Dismiss) == {"w3"}
    assert [(one.worker, one.avoid) for one in ws.given(cmd.StartWorker)] == [("w4", frozenset())]


def test_who_waits_for_a_slot_avoids_hosts_that_fall_silent_once_it_is_known_which():
    ws = grown_without_the_silent()
    ws.feed(ev.HostBeat(node="node-w2"), *(ev.Tick() for _ in range(2)))
    for _ in range(6):
        ws.feed(ev.HostBeat(node="node-w0"), after_s=0.3)
        assert ws.given(cmd.StartWorker) == [], "the next one may fall silent in a moment"
    for _ in range(3):
        ws.feed(ev.HostBeat(node="node-w0"), ev.Tick(), after_s=0.3)
        if asked := ws.given(cmd.StartWorker):
            break
    assert [one.avoid for one in asked] == [frozenset({"node-w1", "node-w2"})]


def test_a_host_that_is_silent_for_long_is_for_ray_to_avoid():
    ws = grown_without_the_silent()
    for _ in range(130):
        ws.now_s += 1.0
        victims(ws, "w0", "w2", still_s=0.0)
    ws.tick(0.0)
    assert [(one.worker, one.avoid) for one in ws.given(cmd.StartWorker)] == [("w4", frozenset())]


def test_the_exiled_never_returns_as_a_member():
    ws = cut_off()
    ws.answer("w0", 7)
    ws.answer("w2", 7)
    ws.tick(EXILE_S + 0.01)
    ws.answer("w1", 8, generation=1)
    ws.form()
    ws.beat("w1", Flying.REDUCING, still_s=100.0, generation=1)
    ws.tick(0.0)
    assert ws.standing("w1") is Standing.EXILED and ws.phase is Phase.RUNNING
    ws.die("w1")
    assert ws.standing("w1") is Standing.EXILED


def test_nobody_is_left_behind_unless_a_healed_member_holds_the_state():
    """Else the one out of reach may be the last who has it: its lease decides."""
    ws = cut_off()
    ws.answer("w0", 7, healed=False)
    ws.answer("w2", 7, healed=False)
    ws.tick(5.0)
    assert ws.phase is Phase.FREEZING and ws.standing("w1") is Standing.SUSPECT


def test_nobody_is_left_behind_on_the_word_of_the_dead():
    ws = cut_off()
    ws.answer("w0", 7)
    ws.answer("w2", 7)
    ws.die("w0", "w2")
    ws.tick(EXILE_S + 0.01)
    assert ws.phase is Phase.FREEZING and ws.standing("w1") is Standing.SUSPECT, "the last copy is out of reach"
    ws.answer("w1", 7)
    assert ws.members == ["w1"]


def test_silence_alone_is_no_fault_while_steps_go_on():
    ws = trained()
    victims(ws, "w0", "w1", "w2", still_s=0.0)
    for _ in range(20):
        ws.now_s += 0.25
        victims(ws, "w0", "w2", still_s=0.1)
        assert but_knocks(ws.tick(0.0)) == []


def test_a_driver_cut_off_from_everybody_breaks_nothing():
    ws = trained()
    victims(ws, "w0", "w1", "w2", still_s=0.4)
    assert ws.tick(60.0) == ()


def test_a_monitor_that_dies_with_its_host_leaves_a_silent_host():
    """Ray may tell of the monitor's death before anybody else does."""
    ws = trained()
    victims(ws, "w0", "w1", "w2", still_s=0.0)
    ws.feed(ev.MonitorLost(node="node-w1"))
    for _ in range(6):
        ws.now_s += 0.25
        victims(ws, "w0", "w2", still_s=1.0)
        ws.tick(0.0)
    ws.answer("w0", 7)
    ws.answer("w2", 7)
    ws.tick(EXILE_S + 0.01)
    assert ws.members == ["w0", "w2"]


def test_a_monitor_that_dies_alone_costs_nothing_while_steps_go_on():
    ws = trained()
    victims(ws, "w0", "w1", "w2", still_s=0.0)
    ws.feed(ev.MonitorLost(node="node-w1"))
    for _ in range(20):
        ws.now_s += 0.25
        victims(ws, "w0", "w2", still_s=0.1)
        assert but_knocks(ws.tick(0.0)) == []


def test_a_monitor_that_died_alone_does_not_hold_up_a_forming():
    """Its workers answer: they are within reach, whatever their monitor says."""
    ws = trained((1, 4))
    victims(ws, "w0", "w1", "w2", "w3", still_s=0.0)
    ws.feed(ev.MonitorLost(node="node-w1"))
    ws.tick(SILENT_S + 0.1)
    ws.die("w3")
    for worker in ("w0", "w1", "w2"):
        ws.answer(worker, 7)
    victims(ws, "w0", "w2", still_s=0.0)
    ws.tick(0.02)
    ws.arrive("w0", "w1", "w2")
    ws.tick(0.02)
    assert (ws.phase, ws.generation) == (Phase.FORMING, 2)


def test_a_silent_member_does_not_hold_up_a_forming():
    ws = trained()
    victims(ws, "w0", "w1", "w2", still_s=0.0)
    ws.break_("w0")
    for worker in ("w0", "w1", "w2"):
        ws.answer(worker, 7)
    ws.arrive("w0", "w1", "w2")
    ws.form("w0", "w2")
    for _ in range(6):
        ws.now_s += 0.25
        victims(ws, "w0", "w2", still_s=0.0)
        ws.tick(0.0)
    assert ws.phase is Phase.FREEZING and "w1" in ws.state.incidents[-1].culprits


def test_a_controller_that_stood_still_takes_nobody_for_silent_whom_it_had_heard_a_moment_before():
    """What hosts have said meanwhile is taken in after the first tick."""
    ws = trained()
    ws.die("w2")
    ws.answer("w0", 7)
    ws.answer("w1", 7)
    assert ws.phase is Phase.FORMING
    ws.feed(ev.HostBeat(node="node-w0"), ev.HostBeat(node="node-w1"))
    ws.tick(0.3)
    ws.sleep(2.0)
    assert but_knocks(ws.tick(0.0)) == [] and ws.phase is Phase.FORMING


def test_a_controller_that_stood_still_takes_nobody_for_silent():
    ws = trained()
    victims(ws, "w0", "w1", "w2", still_s=0.0)
    ws.sleep(60.0)
    victims(ws, "w0", "w2", still_s=1.0)
    assert but_knocks(ws.tick(0.1)) == []
