"""Messages that nobody may send are refused with a sentence, and change nothing."""

from dataclasses import replace

import pytest

from elastic.control import events as ev
from elastic.control.adoption import Adopted
from elastic.control.flight import Flying
from elastic.control.refusing import admitted, misplaced
from elastic.control.state import Phase, RunState
from elastic.control.values import CommitId
from elastic.control.worker_protocol import Stage, WorkerState
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


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (ev.NodeNotice(node="b", reason="preempted"), "the monitor of a speaks for b"),
        (ev.WorkerDead(worker="w1", proof="gone"), "the monitor of a speaks of w1, which is on b"),
        (ev.NodeNotice(node="a", reason="preempted"), ""),
        (ev.WorkerDead(worker="w0", proof="gone"), ""),
        (ev.WorkerDead(worker="w9", proof="gone"), ""),
        (ev.HostBeat(node="a"), ""),
    ],
    ids=str,
)
def test_a_monitor_speaks_for_its_node(event, why):
    assert misplaced("a", event, {"w0": "a", "w1": "b"}) == why


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
        assert admitted(ws.state, zombie) == (zombie, "")
        assert ws.is_unchanged_by(zombie)


def test_a_driver_that_takes_a_run_over_is_believed():
    """It speaks of generations that the new state has not heard of."""
    held = WorkerState(stage=Stage.FROZEN, generation=7, commit=commit(9, generation=7), healed=True, incarnation=1)
    found = (Adopted(worker="w0", gang=0, shard=0, pid=1, was=Stage.STEPPING, state=held),)
    event = ev.RunTakenOver(found=found, published=8)
    assert event.generation == 7
    assert admitted(BareController().state, event) == (event, "")
