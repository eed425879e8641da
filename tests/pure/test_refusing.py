"""Messages that nobody may send are refused with a sentence, and change nothing."""

from copy import copy
from dataclasses import replace

import pytest

from elastic.control import events as ev
from elastic.control.adoption import Adopted
from elastic.control.faults import Fault, FaultKind
from elastic.control.flight import Flying
from elastic.control.hardware import FindingKind
from elastic.control.logs import LogLine
from elastic.control.refusing import admitted, misplaced, presumed
from elastic.control.state import Phase, RunState
from elastic.control.values import CommitId
from elastic.control.worker_protocol import Stage, WorkerState
from elastic.control.xid import Severity
from tests.pure.bare_controller import BareController, commit, report
from tests.pure.test_controller import EXAMPLES

LATER = CommitId(incarnation=2, generation=1, attempt=1, step=3, lineage="x")


@pytest.mark.parametrize(
    "kind", sorted(set(EXAMPLES) - {ev.RunStarted, ev.RunTakenOver}, key=str), ids=lambda kind: kind.__name__
)
def test_what_may_be_sent_is_believed(kind):
    state = BareController().run().state
    assert admitted(state, EXAMPLES[kind]) == (EXAMPLES[kind], "")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("freeze", "str is no event"),
        (None, "NoneType is no event"),
        (ev.Event(), "Event is no event"),
        (ev.RunStarted(), "RunStarted can not come in phase running"),
        (ev.WorkerDead(worker=7, proof="gone"), "WorkerDead: worker=7 is no str"),
        (ev.WorkerDead(worker="w0", proof=None), "WorkerDead: proof=None is no str"),
        (ev.Formed(worker="w0", generation="1"), "Formed: generation='1' is no int"),
        (ev.Formed(worker="w0", generation=True), "Formed: generation=True is no int"),
        (ev.Formed(worker="w0", generation=2), "Formed: generation 2 was never numbered, the last one is 1"),
        (ev.FreezeAnswered(worker="w0", generation=1, commit=None, healed=True), "commit=None is no CommitId"),
        (ev.FreezeAnswered(worker="w0", generation=1, commit=LATER, healed=True), "incarnation 2 has not begun"),
        (ev.FreezeAnswered(worker="w0", generation=1, commit=replace(LATER, step="3"), healed=True), "commit.step='3'"),
        (
            ev.StepStable(worker="w0", report=replace(report(1), committed_at_s=float("nan"))),
            "report.committed_at_s=nan",
        ),
        (ev.StepStable(worker="w0", report=replace(report(1), commit=LATER)), "incarnation 2 has not begun"),
        (ev.HostBeat(node="node-w0", readings=("x",)), "readings=('x',)"),
        (ev.GpuReset(node="node-w0", gpus="0"), "gpus='0'"),
        (ev.WorkerPlaced(worker="w0", node=None), "node=None is no str"),
    ],
    ids=str,
)
def test_what_nobody_can_send_is_refused(message, why):
    state = BareController().run().state
    believed, told = admitted(state, message)
    assert believed is None and why in told


@pytest.mark.parametrize(
    "wrong",
    [
        {"worker": None}, {"generation": "1"}, {"step": None}, {"phase": "COMPUTING"}, {"phase": 3}, {"phase": []},
        {"micro_batch": ""}, {"commits": None}, {"still_s": float("inf")}, {"still_s": "0"}, {"state": 7},
        {"remark": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_reading_of_garbage_is_refused_and_never_judged(wrong):
    ws = BareController().run()
    told = replace(ws.reading("w0", Flying.COMPUTING, 100.0, commits=100), **wrong)
    for event in (ev.HostBeat(node="node-w0", readings=(told,)), ev.HostsHeard(nodes=("node-w0",), readings=(told,))):
        believed, why = admitted(ws.state, event)
        assert believed is None and "readings=" in why
    right = replace(told, **{name: getattr(ws.reading("w0", Flying.COMPUTING), name) for name in wrong})
    assert admitted(ws.state, ev.HostBeat(node="node-w0", readings=(right,)))[1] == ""


def test_everything_may_come_after_the_end_but_what_never_may():
    state = RunState(settings=BareController().state.settings, phase=Phase.ENDED)
    assert all(
        admitted(state, one)[0] is None
        for one in (ev.RunStarted(), *(ev.Formed(worker="w0", generation=one) for one in (7, 10**400)))
    )


def test_a_monitor_that_tells_of_workers_elsewhere_is_believed_about_its_own_alone():
    ws = BareController((1, 3)).run()
    own, stranger = (ws.reading(name, Flying.COMPUTING) for name in ("w0", "w1"))
    believed, why = admitted(ws.state, ev.HostBeat(node="node-w0", readings=(own, stranger)))
    assert believed == ev.HostBeat(node="node-w0", readings=(own,))
    assert why == "the monitor of node-w0 speaks of w1, not on it"


def test_a_relay_is_believed_about_workers_on_its_hosts_alone():
    ws = BareController((1, 3)).run()
    first, second, stranger = (ws.reading(name, Flying.COMPUTING) for name in ("w0", "w1", "w2"))
    told = ev.HostsHeard(nodes=("node-w0", "node-w1"), readings=(first, second))
    assert admitted(ws.state, told) == (told, "")
    more = ev.HostsHeard(nodes=told.nodes, readings=(first, stranger, second))
    assert admitted(ws.state, more) == (told, "a relay speaks of w2, not on its hosts")
    assert admitted(ws.state, ev.HostsHeard(nodes=(7,)))[0] is None


def finding(node: str, *workers: str) -> ev.HardwareFinding:
    what = {"device": "GPU-1", "kind": FindingKind.GPU_LOST, "severity": Severity.NODE_MUST_GO, "detail": "is lost"}
    return ev.HardwareFinding(node=node, workers=workers, **what)


def unchecked(value, **changes):
    """As it comes over the wire: nothing is checked there."""
    other = copy(value)
    for name, one in changes.items():
        object.__setattr__(other, name, one)
    return other


def struck(kind: FaultKind, target: str) -> ev.FaultInjected:
    return ev.FaultInjected(fault=Fault(kind=kind), target=target, at_s=1.0, proof="seen")


FOR_B, OF_W1 = "the monitor of a speaks for b", "the monitor of a speaks of w1, which is on b"
FAULT = Fault(kind=FaultKind.KILL)
ODD_FAULT = ev.FaultInjected(fault=unchecked(FAULT, kind=[]), target="a", at_s=1.0, proof="seen")
LINE = LogLine(at_s=1.0, level="info", logger="elastic", generation=1, step=5, rank=0, text="told", kind="told")
ODD_LINE = replace(LINE, level="fatal")


class Notice(ev.NodeNotice):
    """Of somebody else's make."""


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (ev.NodeNotice(node="b", reason="preempted"), FOR_B),
        (ev.WorkerDead(worker="w1", proof="gone"), OF_W1),
        (finding("b"), FOR_B),
        (finding("b", "w1"), FOR_B),
        (finding("a", "w0", "w1"), OF_W1),
        (ev.HostBeat(node="b"), FOR_B),
        (ev.Logged(worker="monitor-b", lines=(), role="monitor", node="b"), FOR_B),
        (ev.Logged(worker="w1", lines=()), OF_W1),
        (struck(FaultKind.KILL, "w1"), OF_W1),
        (struck(FaultKind.DISK_FULL, "b"), FOR_B),
        (ev.HostsHeard(nodes=("b",)), "the monitor of a tells of HostsHeard, which is not its to tell"),
        (ev.GpuReset(node="b", gpus=("0",)), "the monitor of a tells of GpuReset, which is not its to tell"),
        (ev.StopAsked(reason="."), "the monitor of a tells of StopAsked, which is not its to tell"),
        ("beat", "the monitor of a tells of str, which is not its to tell"),
        (finding("a", 7), "HardwareFinding of the monitor of a: workers=(7,) is no tuple"),
        (ev.HostBeat(node="a", readings=None), "HostBeat of the monitor of a: readings=None is no tuple"),
        (ODD_FAULT, "FaultInjected of the monitor of a: fault.kind=[] is no FaultKind"),
        (ev.Logged(worker="w0", lines=(ODD_LINE,)), "Logged of the monitor of a: lines=(LogLine("),
        (ev.Logged(worker="w0", lines=(replace(LINE, text=None),)), "Logged of the monitor of a: lines=(LogLine("),
        (Notice(node="a", reason="preempted"), "the monitor of a tells of Notice, which is not its to tell"),
        (ev.NodeNotice(node="a", reason="preempted"), ""),
        (ev.WorkerDead(worker="w0", proof="gone"), ""),
        (ev.WorkerDead(worker="w9", proof="gone"), ""),
        (finding("a", "w0", "w9"), ""),
        (struck(FaultKind.KILL, "w0"), ""),
        (struck(FaultKind.DISK_FULL, "a"), ""),
        (ev.FaultRefused(fault=Fault(kind=FaultKind.KILL), reason="."), ""),
        (ev.HostBeat(node="a"), ""),
        (ev.Logged(worker="monitor-a", lines=(LINE,), role="monitor", node="a"), ""),
    ],
    ids=str,
)
def test_a_monitor_speaks_for_its_node(event, why):
    told = misplaced("a", event, {"w0": "a", "w1": "b"})
    assert told.startswith(why) and bool(told) == bool(why)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ("beat", "w0 tells of str, which is not its to tell"),
        (ev.WorkerDead(worker="w0", proof="gone"), "w0 tells of WorkerDead, which is not its to tell"),
        (ev.StopAsked(reason="."), "w0 tells of StopAsked, which is not its to tell"),
        (ev.Formed(worker="w1", generation=1), "w0 speaks for w1"),
        (ev.Formed(worker="w0", generation="1"), "Formed of w0: generation='1' is no int"),
        (ev.Logged(worker="w1", lines=(LINE,)), "w0 speaks for w1"),
        (struck(FaultKind.RAISE, "w1"), "w0 speaks for w1"),
        (struck(FaultKind.RAISE, "w0"), ""),
        (ev.Logged(worker="w0", lines=(LINE,)), ""),
        (ev.StepStable(worker="w0", report=report(3)), ""),
    ],
    ids=str,
)
def test_a_worker_speaks_for_itself(event, why):
    assert presumed("w0", event) == why


def test_a_zombie_of_a_replaced_generation_changes_nothing():
    """It stood still while the others went on, and says now what was true then."""
    ws = BareController((1, 2)).run()
    ws.stable(3)
    ws.die("w1")
    ws.answer("w0", 4)
    ws.form()
    ws.stable(5)
    for zombie in (
        ev.FreezeAnswered(worker="w1", generation=1, commit=commit(9), healed=True),
        ev.Formed(worker="w1", generation=1),
        ev.LoopEnded(worker="w1", generation=1, commit=commit(9)),
        ev.CollectiveBroken(worker="w1", generation=1, error="reset"),
        ev.Formed(worker="w7", generation=1),
    ):
        believed, why = admitted(ws.state, zombie)
        assert believed == zombie and ws.is_unchanged_by(zombie)
        who = "is no worker of this run" if zombie.worker == "w7" else "has been given up for dead"
        assert who in why or (why == "" and isinstance(zombie, ev.CollectiveBroken))
    assert admitted(ws.state, ev.Formed(worker="w0", generation=1)) == (ev.Formed(worker="w0", generation=1), "")


def test_a_driver_that_takes_a_run_over_is_believed():
    """It speaks of generations that the new state has not heard of."""
    held = WorkerState(stage=Stage.FROZEN, generation=7, commit=commit(9, generation=7), healed=True, incarnation=1)
    found = (Adopted(worker="w0", gang=0, shard=0, pid=1, was=Stage.STEPPING, state=held),)
    event = ev.RunTakenOver(found=found, published=8)
    assert event.generation == 7
    assert admitted(BareController().state, event) == (event, "")
