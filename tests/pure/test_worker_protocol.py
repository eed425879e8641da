"""The worker's half of the protocol: its table, and what no sequence of signals can bring about."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from elastic.control.worker_protocol import DEFERRED, TRANSITIONS, Signal, Stage, Verdict, WorkerState, react
from tests.pure.bare_controller import commit

NUMBERED = (Signal.FREEZE, Signal.FORM, Signal.GO)
D, L, R = Verdict.DONE, Verdict.LATER, Verdict.REFUSED
SIGNALS = (
    Signal.ARRIVE,
    Signal.FORMED,
    Signal.PREPARE,
    Signal.ENTER_APPLY,
    Signal.LEAVE_APPLY,
    Signal.ROLL_FORWARD,
    Signal.FORGO,
    Signal.BREAK,
    Signal.TEAR,
    Signal.RESTORED,
    Signal.OUTVOTED,
    Signal.STOP_AT_DOOR,
    Signal.END_LOOP,
    Signal.LEAVE,
    Signal.FREEZE,
    Signal.FORM,
    Signal.GO,
    Signal.FINISH,
    Signal.DISMISS,
    Signal.ADOPT,
)
# What becomes of each signal, in the order above, when the driver's number is right.
VERDICTS: dict[Stage, tuple[Verdict, ...]] = {
    # arrive formed prepare enter leave fwd forgo break tear rest outv stop end leave | freeze form go fin dism adpt
    Stage.LOADING: (D, R, R, R, R, R, R, R, R, R, R, R, R, D, R, R, R, R, D, D),
    Stage.PARKED: (R, R, R, R, R, R, R, R, D, D, R, R, R, D, D, D, R, R, D, D),
    Stage.FORMING: (R, D, R, R, R, R, R, D, D, R, D, R, R, D, D, R, R, R, D, D),
    Stage.READY: (R, R, R, R, R, R, R, R, R, R, R, R, R, D, D, R, D, R, D, D),
    Stage.STEPPING: (R, R, D, D, R, R, R, D, R, R, D, D, D, D, D, R, R, D, D, D),
    Stage.APPLYING: (R, R, R, R, D, R, R, R, R, R, R, R, R, D, L, R, R, L, L, L),
    Stage.BROKEN: (R, R, R, R, R, R, R, R, R, R, R, R, R, D, D, R, R, D, D, D),
    Stage.FROZEN: (R, R, R, R, R, R, D, R, D, D, R, R, R, D, D, D, R, D, D, D),
    Stage.FINISHED: (R, R, R, R, R, R, R, R, R, R, R, R, R, D, R, R, R, D, D, D),
    Stage.GONE: (R, R, R, R, R, R, R, R, R, R, R, R, R, D, R, R, R, R, D, D),
}
CASES = [
    (stage, signal, verdict) for stage, row in VERDICTS.items() for signal, verdict in zip(SIGNALS, row, strict=True)
]


def at(stage: Stage, generation: int = 4, **fields: object) -> WorkerState:
    return WorkerState(stage=stage, generation=generation, commit=commit(7), healed=True, **fields)


def right_number(signal: Signal, state: WorkerState) -> int:
    """The number of a message that is not stale."""
    return {Signal.FORM: state.generation + 1, Signal.FREEZE: state.generation, Signal.GO: state.generation}.get(
        signal, 0
    )


def test_a_worker_whose_received_state_is_torn_holds_nothing_of_worth():
    torn = react(at(Stage.FORMING), Signal.TEAR).state
    assert (torn.stage, torn.healed) == (Stage.BROKEN, False)
    assert not react(torn, Signal.FREEZE, generation=4).state.healed


def test_an_outvoted_worker_holds_nothing_of_worth():
    outvoted = react(at(Stage.STEPPING), Signal.OUTVOTED).state
    assert (outvoted.stage, outvoted.healed) == (Stage.BROKEN, False)
    assert not react(outvoted, Signal.FREEZE, generation=4).state.healed


def test_every_stage_and_signal_is_in_the_table():
    assert [(stage, signal) for stage, signal, _ in CASES] == list(itertools.product(VERDICTS, SIGNALS))
    assert set(VERDICTS) == set(Stage)
    assert set(SIGNALS) == set(Signal)


@pytest.mark.parametrize(("stage", "signal", "verdict"), CASES, ids=lambda value: value.name)
def test_what_becomes_of_a_signal(stage, signal, verdict):
    state = at(stage)
    reaction = react(state, signal, generation=right_number(signal, state))
    assert reaction.verdict is verdict
    if verdict is Verdict.DONE:
        assert reaction.state.stage is TRANSITIONS[stage, signal]
    else:
        assert reaction.state == state


@pytest.mark.parametrize(
    ("resume", "applies"), [(commit(8), True), (commit(8, lineage="another"), False), (commit(7), False)], ids=str
)
def test_who_is_prepared_applies_yet_if_all_resume_from_that(resume, applies):
    prepared = react(at(Stage.STEPPING), Signal.PREPARE, commit=commit(8)).state
    frozen = react(prepared, Signal.FREEZE, generation=4).state
    assert (frozen.commit, frozen.prepared) == (commit(7), commit(8))
    forming = react(frozen, Signal.FORM, generation=5, commit=resume).state
    again = react(forming, Signal.ROLL_FORWARD)
    assert again.verdict is (Verdict.DONE if applies else Verdict.REFUSED)
    assert (again.state.commit, again.state.prepared) == (commit(8) if applies else commit(7), None)


def test_who_drops_what_it_was_prepared_for_is_found_with_what_it_holds():
    prepared = react(at(Stage.STEPPING), Signal.PREPARE, commit=commit(8)).state
    dropped = react(react(prepared, Signal.FREEZE, generation=4).state, Signal.FORGO).state
    assert (dropped.commit, dropped.prepared, dropped.generation, dropped.frozen_at) == (commit(7), None, 4, 4)
    forming = react(dropped, Signal.FORM, generation=5, commit=commit(8)).state
    assert react(forming, Signal.ROLL_FORWARD).verdict is Verdict.REFUSED


def test_a_freeze_before_it_has_rolled_forward_finds_it_prepared_yet():
    prepared = react(at(Stage.STEPPING), Signal.PREPARE, commit=commit(8)).state
    frozen = react(prepared, Signal.FREEZE, generation=4).state
    forming = react(frozen, Signal.FORM, generation=5, commit=commit(8)).state
    assert react(forming, Signal.FREEZE, generation=5).state.prepared == commit(8)


def test_a_deferred_signal_is_no_transition():
    assert set(TRANSITIONS) & DEFERRED == set()


@pytest.mark.parametrize(
    ("stage", "signal", "generation"),
    [
        (Stage.FROZEN, Signal.FORM, 4),
        (Stage.FROZEN, Signal.FORM, 3),
        (Stage.FROZEN, Signal.FREEZE, 3),
        (Stage.READY, Signal.GO, 3),
        (Stage.READY, Signal.GO, 5),
        (Stage.READY, Signal.FREEZE, 3),
        (Stage.READY, Signal.FREEZE, 5),
        (Stage.STEPPING, Signal.FREEZE, 3),
        (Stage.STEPPING, Signal.FREEZE, 5),
        (Stage.APPLYING, Signal.FREEZE, 3),
        (Stage.FORMING, Signal.FREEZE, 3),
        (Stage.BROKEN, Signal.FREEZE, 3),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_message_of_another_generation_is_refused(stage, signal, generation):
    state = at(stage)
    reaction = react(state, signal, generation=generation)
    assert (reaction.verdict, reaction.state) == (Verdict.REFUSED, state)


@pytest.mark.parametrize("stage", [Stage.PARKED, Stage.FROZEN], ids=lambda stage: stage.name)
def test_a_freeze_that_overtakes_its_forming_stops_that_generation_too(stage):
    frozen = react(at(stage), Signal.FREEZE, generation=5)
    assert (frozen.verdict, frozen.state.stage) == (Verdict.DONE, Stage.FROZEN)
    assert (frozen.state.generation, frozen.state.frozen_at) == (5, 5)
    assert react(frozen.state, Signal.FORM, generation=5).verdict is Verdict.REFUSED
    assert react(frozen.state, Signal.FORM, generation=6).verdict is Verdict.DONE


def test_a_worker_from_its_first_door_to_its_second_generation():
    state = WorkerState()
    for signal, generation, held, stage in [
        (Signal.ARRIVE, 0, None, Stage.PARKED),
        (Signal.FORM, 3, None, Stage.FORMING),
        (Signal.FORMED, 0, commit(7), Stage.READY),
        (Signal.GO, 3, None, Stage.STEPPING),
        (Signal.ENTER_APPLY, 0, None, Stage.APPLYING),
        (Signal.LEAVE_APPLY, 0, commit(8), Stage.STEPPING),
        (Signal.BREAK, 0, None, Stage.BROKEN),
        (Signal.FREEZE, 3, None, Stage.FROZEN),
        (Signal.FORM, 4, None, Stage.FORMING),
    ]:
        reaction = react(state, signal, generation=generation, commit=held)
        assert (reaction.verdict, reaction.state.stage) == (Verdict.DONE, stage)
        state = reaction.state
    assert (state.generation, state.commit, state.healed, state.frozen_at) == (4, commit(8), True, 3)


def test_a_joiner_is_healed_by_forming_and_not_before():
    forming = react(WorkerState(stage=Stage.PARKED), Signal.FORM, generation=3).state
    assert not forming.healed
    frozen = react(forming, Signal.FREEZE, generation=3).state
    assert not frozen.healed
    formed = react(forming, Signal.FORMED, commit=commit(7)).state
    assert (formed.healed, formed.commit) == (True, commit(7))


def test_a_survivor_that_is_frozen_while_it_is_healed_keeps_what_it_had():
    forming = react(at(Stage.FROZEN), Signal.FORM, generation=5).state
    frozen = react(forming, Signal.FREEZE, generation=5).state
    assert (frozen.commit, frozen.healed) == (commit(7), True)


HIGHEST = 4


def steps_from(state: WorkerState) -> Iterator[tuple[Signal, WorkerState]]:
    """What each signal, with each number up to HIGHEST, makes of a state."""
    for signal in Signal:
        for generation in range(HIGHEST + 1) if signal in NUMBERED else (0,):
            reaction = react(state, signal, generation=generation, commit=commit(7))
            if reaction.verdict is Verdict.DONE:
                yield signal, reaction.state


def reachable() -> list[tuple[WorkerState, Signal, WorkerState]]:
    """Every step that any sequence of signals can bring about, from the start on."""
    found, todo, steps = {WorkerState()}, [WorkerState()], []
    while todo:
        state = todo.pop()
        for signal, after in steps_from(state):
            steps.append((state, signal, after))
            if after not in found:
                found.add(after)
                todo.append(after)
    return steps


STEPS = reachable()


def test_the_walk_reaches_every_stage_and_every_transition():
    assert {state.stage for state, _, _ in STEPS} == set(Stage)
    assert {(state.stage, signal) for state, signal, _ in STEPS} == set(TRANSITIONS)


def test_who_is_frozen_never_applies_again_in_that_generation():
    """Wherever a worker can move towards apply, it is in a later generation than any it has stopped in."""
    active = {Stage.FORMING, Stage.READY, Stage.STEPPING, Stage.APPLYING, Stage.BROKEN}
    assert [after for _, _, after in STEPS if after.stage in active and after.generation <= after.frozen_at] == []


def test_only_a_forming_leads_from_frozen_back_to_work():
    ways_out = {signal for state, signal, after in STEPS if state.stage is Stage.FROZEN is not after.stage}
    assert ways_out == {Signal.FORM, Signal.FINISH, Signal.DISMISS, Signal.LEAVE}


def test_apply_is_entered_only_after_a_forming_and_its_go():
    into = {signal for state, signal, after in STEPS if state.stage is not Stage.STEPPING is after.stage}
    assert into == {Signal.GO, Signal.LEAVE_APPLY}
    assert {state.stage for state, signal, _ in STEPS if signal is Signal.GO} == {Stage.READY}
    assert {state.stage for state, signal, _ in STEPS if signal is Signal.FORMED} == {Stage.FORMING}


def test_generations_and_freezes_only_rise():
    for before, _, after in STEPS:
        assert after.generation >= before.generation
        assert after.frozen_at >= before.frozen_at


def test_nothing_but_a_forming_or_a_checkpoint_heals():
    ways = {signal for before, signal, after in STEPS if after.healed and not before.healed}
    assert ways == {Signal.FORMED, Signal.RESTORED}


@pytest.mark.parametrize("stage", [Stage.PARKED, Stage.FROZEN])
def test_a_checkpoint_replaces_what_a_worker_at_the_door_holds(stage):
    before = at(stage, prepared=commit(8), frozen_at=3)
    after = react(before, Signal.RESTORED, commit=commit(5)).state
    assert after == replace(before, commit=commit(5), prepared=None)
    torn = react(after, Signal.TEAR).state
    assert torn == replace(after, healed=False)


def test_who_is_gone_stays_gone():
    assert {after.stage for before, _, after in STEPS if before.stage is Stage.GONE} == {Stage.GONE}


COMMANDS = (Signal.FREEZE, Signal.FORM, Signal.GO, Signal.FINISH, Signal.DISMISS, Signal.ADOPT)


@pytest.mark.parametrize("stage", Stage, ids=lambda stage: stage.name)
@pytest.mark.parametrize("signal", COMMANDS, ids=lambda signal: signal.name)
def test_an_older_driver_than_the_one_that_is_heeded_is_refused(stage, signal):
    state = at(stage, incarnation=3)
    reaction = react(state, signal, generation=right_number(signal, state), incarnation=2)
    assert (reaction.verdict, reaction.state) == (Verdict.REFUSED, state)


@pytest.mark.parametrize("stage", Stage, ids=lambda stage: stage.name)
def test_who_is_adopted_has_stopped_for_good_and_heeds_the_newest(stage):
    state = at(stage, incarnation=2)
    if stage is Stage.APPLYING:
        state = react(state, Signal.LEAVE_APPLY, commit=commit(8)).state
    adopted = react(state, Signal.ADOPT, incarnation=3)
    assert (adopted.verdict, adopted.state.incarnation) == (Verdict.DONE, 3)
    assert (adopted.state.commit, adopted.state.healed) == (state.commit, state.healed)
    assert react(adopted.state, Signal.ENTER_APPLY).verdict is Verdict.REFUSED
    assert react(adopted.state, Signal.ADOPT, incarnation=3).verdict is Verdict.REFUSED, "once"
    if adopted.state.stage is Stage.FROZEN:
        assert react(adopted.state, Signal.FORM, generation=5, incarnation=3).verdict is Verdict.DONE
