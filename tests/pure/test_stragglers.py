"""Stragglers: from a slow member to what the policy wants, without a lost attempt."""

from dataclasses import replace

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.remediation import ClusterView, Kind, Remediation
from elastic.control.state import Phase, Standing
from elastic.control.values import Incident, IncidentClass
from elastic.policies import Ladder
from tests.pure.bare_controller import BareController, report

SLOW_STEPS = 3


def running(straggler: Kind = Kind.CONTINUE, replicas=(1, 3), spares: int = 0) -> BareController:
    return BareController(replicas, spares, policy=Ladder(straggler=straggler), slow_steps=SLOW_STEPS).run()


def train(ws: BareController, first: int, steps: int, *seconds: float) -> None:
    """Stable steps of this pace, by rank."""
    for number in range(first, first + steps):
        ws.now_s += 1.0
        told = replace(report(number, ws.generation, ws.now_s), seconds=seconds)
        ws.feed(ev.StepStable(worker=ws.members[0], report=told))


def test_an_even_group_has_no_straggler():
    ws = running()
    train(ws, 0, 30, 1.0, 1.2, 0.9)
    assert ws.state.incidents == ()
    assert [member.slowness for member in ws.state.members] == pytest.approx([1.0, 1.2, 0.9])


def test_a_slow_member_is_told_of_once_a_generation_and_goes_on():
    ws = running()
    train(ws, 0, 30, 1.0, 3.0, 1.0)
    (incident,) = ws.state.incidents
    assert (incident.kind, incident.culprits) == (IncidentClass.STRAGGLER, ("w1",))
    assert "w1 on node-w1 took 3.00 times the group's median for 3 steps" in incident.evidence[0]
    assert incident.decision.startswith("continue in place")
    assert incident.step == SLOW_STEPS and incident.resumed_at_s is not None
    assert (ws.phase, ws.generation, ws.given(cmd.Pause)) == (Phase.RUNNING, 1, [])


def test_two_that_become_late_in_one_step_are_both_told_of():
    """As on a slow node with two workers."""
    ws = running(replicas=(1, 5))
    train(ws, 0, 30, 1.0, 3.0, 1.0, 4.0, 1.0)
    assert [incident.culprits for incident in ws.state.incidents] == [("w3",), ("w1",)]


def test_a_slow_moment_is_no_straggler():
    ws = running()
    for first in range(0, 30, SLOW_STEPS):
        train(ws, first, SLOW_STEPS - 1, 1.0, 3.0, 1.0)
        train(ws, first + SLOW_STEPS - 1, 1, 1.0, 1.0, 1.0)
    assert ws.state.incidents == ()


def test_steps_of_an_older_generation_say_nothing_of_this_one():
    ws = running()
    ws.feed(ev.StepStable(worker="w0", report=replace(report(0, 0), seconds=(1.0, 9.0, 1.0))))
    ws.feed(ev.StepStable(worker="w0", report=replace(report(1, 1), seconds=(1.0, 9.0))))
    assert all(member.slow_steps == 0 for member in ws.state.members)


def stop_at_the_door(ws: BareController, number: int) -> None:
    """All members stop at the end of step `number`, as one of them was asked."""
    assert ws.addressees(cmd.Pause) == {ws.members[0]}
    for worker in ws.members:
        ws.answer(worker, number)


def test_micro_batches_are_dealt_by_speed_from_the_next_generation_on():
    ws = running(Kind.REDEAL)
    train(ws, 0, SLOW_STEPS, 1.0, 3.0, 1.0)
    assert not ws.view.balanced and ws.state.pause_asked
    stop_at_the_door(ws, SLOW_STEPS)
    assert ws.view.balanced and len(ws.members) == 3
    assert ws.given(cmd.Freeze) == []
    ws.form()
    train(ws, SLOW_STEPS, 30, 1.0, 3.0, 1.0)
    assert ws.generation == 2, "it is dealt less already"
    assert len(ws.state.incidents) == 2


def test_a_spare_takes_the_place_of_a_straggler():
    ws = running(Kind.SWAP, replicas=3, spares=1)
    train(ws, 0, SLOW_STEPS, 1.0, 3.0, 1.0)
    stop_at_the_door(ws, SLOW_STEPS)
    assert ws.members == ["w0", "w2", "w3"]
    assert ws.standing("w1") is Standing.GONE
    assert ws.addressees(cmd.Dismiss) == {"w1"} and ws.given(cmd.Fence) == []
    assert ws.names(ws.view.donors) == ["w0", "w2"]
    ws.form()
    train(ws, SLOW_STEPS, 1, 1.0, 1.0, 1.0)
    assert ws.addressees(cmd.StartWorker) == {"w4"}


def test_a_straggler_is_kept_while_no_spare_is_ready():
    ws = running(Kind.SWAP, replicas=3)
    train(ws, 0, 9, 1.0, 3.0, 1.0)
    assert (ws.phase, ws.generation) == (Phase.RUNNING, 1)
    assert ws.state.incidents[0].decision.endswith("no spare is ready")


@pytest.mark.parametrize("kind", [Kind.SWAP, Kind.SHRINK])
def test_a_straggler_is_kept_where_the_others_would_be_too_few(kind):
    """Whatever a policy of the user's says."""
    policy = lambda incident, view: Remediation(kind=kind, reason="away with it")  # noqa: E731
    ws = BareController(3, policy=policy, slow_steps=SLOW_STEPS).run()
    train(ws, 0, SLOW_STEPS, 1.0, 3.0, 1.0)
    stop_at_the_door(ws, SLOW_STEPS)
    assert ws.members == ["w0", "w1", "w2"]


def test_a_policy_may_do_without_a_straggler():
    ws = running(Kind.SHRINK)
    train(ws, 0, SLOW_STEPS, 1.0, 3.0, 1.0)
    stop_at_the_door(ws, SLOW_STEPS)
    assert ws.members == ["w0", "w2"]
    assert ws.standing("w1") is Standing.GONE


def test_a_straggler_that_alone_holds_the_newest_step_is_kept():
    ws = running(Kind.SWAP, replicas=3, spares=1)
    train(ws, 0, SLOW_STEPS, 1.0, 3.0, 1.0)
    ws.break_("w0")
    ws.answer("w0", 3)
    ws.answer("w2", 3)
    ws.answer("w1", 4)
    assert "w1" in ws.members


def test_a_loss_on_the_way_comes_first():
    ws = running(Kind.REDEAL)
    train(ws, 0, SLOW_STEPS, 1.0, 3.0, 1.0)
    ws.die("w2")
    ws.answer("w0", 3)
    ws.answer("w1", 3)
    assert ws.members == ["w0", "w1"]
    (incident,) = ws.state.incidents
    assert incident.kind is IncidentClass.WORKER_LOST


def test_a_policy_sees_scores_of_workers_and_nodes():
    seen: list[tuple[Incident, ClusterView]] = []

    def policy(incident: Incident, view: ClusterView) -> Remediation:
        seen.append((incident, view))
        return Remediation(kind=Kind.CONTINUE, reason="so be it")

    ws = BareController(3, policy=policy, slow_steps=SLOW_STEPS)
    ws.start()
    ws.place("w0", "w1", node="a")
    ws.place("w2", node="b")
    ws.park("w0", "w1", "w2")
    ws.form()
    train(ws, 0, SLOW_STEPS, 1.0, 1.0, 4.0)
    ((_, view),) = seen
    assert view.slowness == {"w0": 1.0, "w1": 1.0, "w2": 4.0}
    assert view.node_slowness == {"a": 1.0, "b": 4.0}


def test_of_two_replicas_of_two_shards_the_slow_one_that_is_ahead_is_kept():
    ws = running(Kind.SHRINK)
    train(ws, 0, SLOW_STEPS, 1.0, 3.0, 1.0)
    ws.answer("w1", SLOW_STEPS + 1)
    ws.answer("w0", SLOW_STEPS)
    ws.answer("w2", SLOW_STEPS)
    assert "w1" in ws.members and ws.view.resume.step == SLOW_STEPS + 1


def test_a_gpu_that_its_profiler_finds_slow_makes_a_straggler_once():
    ws = running()
    train(ws, 0, 2, 1.0, 1.0, 1.0)
    ws.feed(ev.GpuSlow(worker="w1", share=0.7))
    assert ws.state.incidents == (), "within Limits.slow_ratio"
    ws.feed(ev.GpuSlow(worker="w9", share=0.5))
    ws.feed(ev.GpuSlow(worker="w1", share=0.5))
    (incident,) = ws.state.incidents
    assert (incident.kind, incident.culprits) == (IncidentClass.STRAGGLER, ("w1",))
    assert incident.evidence == ("w1 on node-w1 computes on a GPU at 0.50 of its own best speed",)
    assert ws.state.workers["w1"].slowness == 2.0
    ws.feed(ev.GpuSlow(worker="w2", share=0.0))
    assert len(ws.state.incidents) == 1, "one at a time"
    train(ws, 2, 2, 1.0, 1.0, 1.0)
    ws.feed(ev.GpuSlow(worker="w1", share=0.5), ev.GpuSlow(worker="w2", share=0.0))
    assert [one.culprits for one in ws.state.incidents] == [("w1",), ("w2",)]


def test_a_slow_gpu_is_swapped_where_the_policy_wants_that():
    ws = running(Kind.SWAP, replicas=3, spares=1)
    train(ws, 0, 2, 1.0, 1.0, 1.0)
    ws.feed(ev.GpuSlow(worker="w1", share=0.5))
    stop_at_the_door(ws, 2)
    assert ws.members == ["w0", "w2", "w3"] and ws.addressees(cmd.Dismiss) == {"w1"}
