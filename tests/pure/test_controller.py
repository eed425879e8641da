"""The controller's table, and messages that come twice, too late, or not at all."""

import pickle

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.controller import TABLE, IllegalEventError, step
from elastic.control.faults import Fault, FaultKind
from elastic.control.hardware import FindingKind
from elastic.control.state import Phase, RunState
from elastic.control.tuning import Tuning
from elastic.control.xid import Severity
from elastic.policies import Ladder
from tests.pure.bare_controller import BareController, below_minimum, commit, report

BASES = {ev.Event, ev.WorkerEvent}
EVENTS = {kind for kind in vars(ev).values() if isinstance(kind, type) and issubclass(kind, ev.Event)} - BASES
WORKER_EVENTS = {kind for kind in EVENTS if issubclass(kind, ev.WorkerEvent)}
# Events that cannot happen in a phase: whoever sends one is broken.
OPENINGS = {ev.RunStarted, ev.RunTakenOver}
ILLEGAL = {(phase, kind) for kind in OPENINGS for phase in Phase if phase is not Phase.STARTING}
EXAMPLES: dict[type[ev.Event], ev.Event] = {
    ev.RunStarted: ev.RunStarted(),
    ev.RunTakenOver: ev.RunTakenOver(found=()),
    ev.Tick: ev.Tick(),
    ev.StopAsked: ev.StopAsked(reason="ctrl-c"),
    ev.RewindAsked: ev.RewindAsked(to_step=3),
    ev.RestoreFound: ev.RestoreFound(commit=commit(3)),
    ev.Restored: ev.Restored(worker="w0", commit=commit(3)),
    ev.RestoreRefused: ev.RestoreRefused(worker="w0", commit=commit(3), reason="bad bytes"),
    ev.TuneAsked: ev.TuneAsked(tuning=Tuning(lr_factor=0.5)),
    ev.PauseAsked: ev.PauseAsked(),
    ev.ResumeAsked: ev.ResumeAsked(),
    ev.ExitAsked: ev.ExitAsked(reason="the job is stopped"),
    ev.RungReached: ev.RungReached(commit=commit(3), rung="local"),
    ev.Knocked: ev.Knocked(workers=("w0",), unreached=("w0",)),
    ev.GpuReset: ev.GpuReset(node="node-w0", gpus=("0",)),
    ev.NodesMissing: ev.NodesMissing(missing=1, reason="no capacity"),
    ev.FaultAsked: ev.FaultAsked(fault=Fault(kind=FaultKind.KILL)),
    ev.FaultInjected: ev.FaultInjected(fault=Fault(kind=FaultKind.KILL), target="w0", at_s=1.0, proof="gone"),
    ev.FaultRefused: ev.FaultRefused(fault=Fault(kind=FaultKind.XID, argument="79"), reason="no kernel log"),
    ev.MonitorLost: ev.MonitorLost(node="node-w0"),
    ev.NodeNotice: ev.NodeNotice(node="node-w0", reason="preempted"),
    ev.HostBeat: ev.HostBeat(node="node-w0"),
    ev.HardwareFinding: ev.HardwareFinding(
        node="node-w0",
        device="GPU-1",
        kind=FindingKind.XID,
        severity=Severity.RESTARTABLE,
        detail="XID 94",
        workers=("w0",),
    ),
    ev.HostsHeard: ev.HostsHeard(nodes=("node-w0", "node-w1")),
    ev.WorkerPlaced: ev.WorkerPlaced(worker="w0", node="node-w0"),
    ev.WorkerParked: ev.WorkerParked(worker="w0", host="h", port=1, pid=1, layout="l"),
    ev.WorkerLost: ev.WorkerLost(worker="w0", evidence="silence"),
    ev.WorkerDead: ev.WorkerDead(worker="w0", proof="gone"),
    ev.WorkerDeparted: ev.WorkerDeparted(worker="w0", reason="SystemExit"),
    ev.CollectiveBroken: ev.CollectiveBroken(worker="w0", generation=1, error="reset"),
    ev.WorkerNotice: ev.WorkerNotice(worker="w0", reason="SIGTERM"),
    ev.StackDumped: ev.StackDumped(worker="w0", stack="main.py:1"),
    ev.GpuSlow: ev.GpuSlow(worker="w0", share=0.5),
    ev.CorruptionFound: ev.CorruptionFound(worker="w0", generation=1, culprits=("w1",), evidence="outvoted"),
    ev.FreezeAnswered: ev.FreezeAnswered(worker="w0", generation=1, commit=commit(3), healed=True),
    ev.AtDoor: ev.AtDoor(worker="w0", generation=1),
    ev.Connected: ev.Connected(worker="w0", generation=1),
    ev.Formed: ev.Formed(worker="w0", generation=1),
    ev.FormingFailed: ev.FormingFailed(worker="w0", generation=1, error="refused"),
    ev.Overdue: ev.Overdue(worker="w0", generation=1),
    ev.StepStable: ev.StepStable(worker="w0", report=report(3)),
    ev.ShardStaged: ev.ShardStaged(worker="w0", commit=commit(3), shard=0, shards=1, nbytes=64),
    ev.TierDegraded: ev.TierDegraded(worker="w0", tier="memory", reason="full"),
    ev.IntervalChosen: ev.IntervalChosen(worker="w0", tier="memory", reason="set to every 10 steps"),
    ev.Logged: ev.Logged(worker="w0", lines=()),
    ev.Noted: ev.Noted(worker="w0", what="profile", step=3, seconds=0.2, detail="/traces/w0.json.gz"),
    ev.LoopEnded: ev.LoopEnded(worker="w0", generation=1, commit=commit(9)),
    ev.TrainFnReturned: ev.TrainFnReturned(worker="w0"),
    ev.TrainFnRaised: ev.TrainFnRaised(worker="w0", summary="ValueError", traceback="line 1"),
}


# --- the table --------------------------------------------------------------------------------------------------------


def test_every_phase_and_event_is_decided():
    assert set(TABLE) | ILLEGAL == {(phase, event) for phase in Phase for event in EVENTS}
    assert set(TABLE) & ILLEGAL == set()


@pytest.mark.parametrize(("phase", "event"), sorted(ILLEGAL, key=str), ids=lambda value: getattr(value, "name", None))
def test_an_illegal_event_is_refused_with_its_story(phase, event):
    state = RunState(settings=BareController().state.settings, phase=phase)
    with pytest.raises(IllegalEventError, match=f"{event.__name__} in phase {phase.value}"):
        step(state, EXAMPLES[event], 0.0, Ladder())


def test_there_is_an_example_of_every_event():
    assert set(EXAMPLES) == EVENTS
    assert all(type(example) is kind for kind, example in EXAMPLES.items())


@pytest.mark.parametrize("kind", sorted(EVENTS - OPENINGS, key=str), ids=lambda kind: kind.__name__)
def test_nothing_follows_after_the_end(kind):
    ws = BareController().run()
    ws.feed(ev.StopAsked(reason="ctrl-c"))
    assert ws.phase is Phase.ENDED
    assert ws.is_unchanged_by(EXAMPLES[kind])


@pytest.mark.parametrize("kind", sorted(WORKER_EVENTS, key=str), ids=lambda kind: kind.__name__)
def test_a_worker_of_an_earlier_incarnation_is_nobody(kind):
    ws = BareController()
    ws.tick(0.0)
    assert ws.is_unchanged_by(EXAMPLES[kind])


# --- duplicates, stale and lost messages ------------------------------------------------------------------------------


def third_generation() -> BareController:
    """w0 and w2 train in generation 3; w1 is dead; everybody has said everything at least once."""
    ws = BareController((1, 3)).run()
    ws.break_("w0")
    for worker in ("w0", "w1", "w2"):
        ws.answer(worker, 2)
    ws.form()
    for number in range(4):
        ws.stable(number)
    ws.die("w1")
    ws.answer("w0", 4)
    ws.answer("w2", 4)
    ws.form()
    ws.stable(4)
    ws.stable(5)
    return ws


@pytest.mark.parametrize(
    "event",
    [
        ev.FreezeAnswered(worker="w0", generation=2, commit=commit(2), healed=True),
        ev.FreezeAnswered(worker="w1", generation=3, commit=commit(9), healed=True),
        ev.Formed(worker="w0", generation=2),
        ev.FormingFailed(worker="w0", generation=2, error="timed out"),
        ev.CollectiveBroken(worker="w2", generation=2, error="reset"),
        ev.LoopEnded(worker="w1", generation=2, commit=commit(9)),
        ev.StepStable(worker="w0", report=report(5)),
        ev.StepStable(worker="w0", report=report(1)),
        ev.WorkerPlaced(worker="w0", node="node-w0"),
        ev.WorkerParked(worker="w0", host="h", port=2, pid=2, layout="l"),
        ev.WorkerLost(worker="w1", evidence="again"),
        ev.WorkerDead(worker="w1", proof="again"),
        ev.WorkerDeparted(worker="w1", reason="late"),
        ev.TrainFnReturned(worker="w1", dismissed=True),
        ev.TrainFnRaised(worker="w1", summary="late", traceback=""),
        ev.Overdue(worker="w1", generation=3),
        ev.Overdue(worker="w0", generation=4),
    ],
    ids=lambda event: f"{type(event).__name__} of {event.worker}",
)
def test_stale_and_repeated_events_change_nothing(event):
    assert third_generation().is_unchanged_by(event)


def test_an_answer_that_is_repeated_changes_nothing():
    ws = BareController(3).run()
    ws.break_("w0")
    ws.answer("w0", 2)
    assert ws.is_unchanged_by(ev.FreezeAnswered(worker="w0", generation=1, commit=commit(2), healed=True))


def test_a_formed_that_is_repeated_changes_nothing():
    ws = BareController(2)
    ws.start()
    ws.join("w0", "w1")
    ws.form("w0")
    assert ws.is_unchanged_by(ev.Formed(worker="w0", generation=1))


def overdue(ws: BareController, worker: str, generation: int) -> tuple[cmd.Command, ...]:
    return ws.feed(ev.Overdue(worker=worker, generation=generation))


def test_a_lost_go_is_said_again():
    ws = BareController(2).run()
    overdue(ws, "w1", 1)
    assert ws.addressees(cmd.Go) == {"w1"}


def test_a_lost_freeze_is_said_again_until_it_is_answered():
    ws = BareController(2).run()
    ws.break_("w0")
    overdue(ws, "w0", 1)
    assert ws.addressees(cmd.Freeze) == {"w0"}
    ws.answer("w0", 3)
    assert overdue(ws, "w0", 1) == ()


@pytest.mark.parametrize("known", [0, 1, 2], ids=["to a joiner", "to a frozen member", "to one that forms"])
def test_a_lost_forming_is_said_again(known):
    ws = BareController((1, 2), spares=1).run()
    ws.die("w1")
    ws.answer("w0", 3)
    worker = "w2" if known == 0 else "w0"
    overdue(ws, worker, known)
    assert [(form.view, form.addressees) for form in ws.given(cmd.Form)] == [(ws.view, (worker,))]
    ws.form(worker)
    assert overdue(ws, worker, known) == ()


def test_a_freeze_is_said_again_to_one_that_missed_the_forming_too():
    ws = BareController(2).run()
    ws.break_("w0")
    ws.answer("w0", 3)
    ws.answer("w1", 3)
    ws.fail_forming("w0")
    overdue(ws, "w1", 1)
    assert ws.given(cmd.Freeze)[0].generation == 2


def test_a_lost_finish_is_said_again():
    ws = BareController(2).run()
    ws.end_loop("w0")
    overdue(ws, "w1", 1)
    assert ws.addressees(cmd.Finish) == {"w1"}
    ws.leave("w1")
    assert overdue(ws, "w1", 1) == ()


def test_spares_and_waiting_members_are_told_nothing():
    ws = BareController(1, spares=1).run()
    assert overdue(ws, "w1", 0) == ()
    assert overdue(below_minimum(), "w0", 1) == ()


@pytest.mark.parametrize("kind", sorted(EVENTS, key=str), ids=lambda kind: kind.__name__)
def test_an_event_arrives_as_it_was_sent(kind):
    assert pickle.loads(pickle.dumps(EXAMPLES[kind])) == EXAMPLES[kind]
