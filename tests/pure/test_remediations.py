"""Each kind of remediation, from the policy's word to what is done, and to its end."""

from dataclasses import replace
from math import inf

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.care import Care, Reset
from elastic.control.completions import COMPLETIONS
from elastic.control.faults import Fault, FaultKind
from elastic.control.flight import Flying
from elastic.control.moments import NodeQuarantined, moments
from elastic.control.refusing import admitted
from elastic.control.remediation import ClusterView, Kind, Remediation
from elastic.control.state import Phase, RunState, Standing
from elastic.control.tending import _without_reset
from elastic.control.values import Incident, IncidentClass
from elastic.settings import Checkpoint, Limits
from tests.pure.bare_controller import BareController, commit
from tests.pure.remedied import go_on, lose, running, starts, stop, wants

COMMANDS = {kind for kind in vars(cmd).values() if isinstance(kind, type) and issubclass(kind, cmd.Command)}

# --- restart ----------------------------------------------------------------------------------------------------------


def test_a_restarted_worker_is_started_on_its_node():
    ws = running(Kind.RESTART)
    lose(ws)
    assert ws.members == ["w0", "w2"], "the others do not wait for it"
    go_on(ws)
    assert starts(ws) == [(frozenset(), "node-w1")]
    assert ws.state.care.places == ()


def test_a_place_that_has_no_room_is_given_up():
    ws = running(Kind.RESTART)
    lose(ws)
    go_on(ws)
    ws.tick(Limits().place_timeout_s + 1.0)
    assert ws.addressees(cmd.Dismiss) == {"w3"}
    assert starts(ws) == [(frozenset(), "")], "anywhere"


def test_who_waits_for_another_place_goes_on_waiting():
    ws = running(Kind.RESTART)
    lose(ws)
    go_on(ws)
    ws.tick(Limits().place_timeout_s - 1.0)
    lose(ws, "w2", number=5)
    go_on(ws, 6)
    assert starts(ws) == [(frozenset(), "node-w2")]
    ws.tick(2.0)
    assert ws.addressees(cmd.Dismiss) == {"w3"} and starts(ws) == [(frozenset(), "")]


def test_a_replica_on_several_nodes_is_started_anew_wherever_there_is_room():
    ws = BareController((1, 2), width=2, policy=wants(Kind.RESTART))
    settings = ws.state.settings
    ws.state = RunState(settings=replace(settings, scaling=replace(settings.scaling, num_nodes_per_dp=2)))
    ws.run()
    for number in range(4):
        ws.stable(number)
    ws.die("w1")
    for name in ("w0", "w2", "w3"):
        ws.answer(name, 4)
    go_on(ws)
    assert {node for _, node in starts(ws)} == {""} and ws.state.care.places == ()


def test_time_in_which_nobody_looked_is_no_wait_for_a_place():
    ws = running(Kind.RESTART)
    ws.sleep(1000.0)
    lose(ws)
    go_on(ws)
    ws.tick(Limits().place_timeout_s - 1.0)
    ws.sleep(1000.0)
    ws.tick(0.1)
    assert ws.given(cmd.Dismiss) == []
    ws.feed(ev.WorkerPlaced(worker="w3", node="node-w1"))
    ws.park("w3")
    (placed_s,), (*_, loaded_s) = ws.state.care.placing_s, ws.state.care.loading_s
    assert Limits().place_timeout_s - 1.0 <= placed_s <= Limits().place_timeout_s + 2.0 and loaded_s == 0.0


def test_nobody_is_restarted_on_a_node_that_will_be_lost():
    ws = running(Kind.RESTART)
    ws.feed(ev.MonitorLost(node="node-w1"))
    lose(ws)
    assert ws.state.incidents[0].decision.startswith(
        "continue in place: instead of 'restart the worker', since no node"
    )


def test_a_slow_worker_is_restarted_between_two_steps():
    ws = running(Kind.RESTART, targets=("w2",))
    ws.break_("w0")
    stop(ws)
    assert ws.members == ["w0", "w1"]
    assert ws.standing("w2") is Standing.GONE and ws.addressees(cmd.Dismiss) == {"w2"}


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_no_worker_is_placed_on_a_node_in_quarantine_until_it_is_over():
    ws = running(Kind.QUARANTINE, for_s=50.0)
    lose(ws)
    go_on(ws)
    assert starts(ws) == [(frozenset({"node-w1"}), "")]
    ws.tick(30.0)
    assert ws.given(cmd.StartWorker) == []
    ws.tick(30.0)
    assert ws.addressees(cmd.Dismiss) == {"w3"} and starts(ws) == [(frozenset(), "")]


def test_who_is_placed_there_all_the_same_is_sent_away():
    ws = running(Kind.QUARANTINE)
    lose(ws)
    go_on(ws)
    ws.place("w3", node="node-w1")
    assert ws.standing("w3") is Standing.GONE
    assert ws.addressees(cmd.Dismiss) == {"w3"} and starts(ws) == [(frozenset({"node-w1"}), "")]
    for name in ("w4", "w5"):
        ws.place(name, node="node-w1")
    assert starts(ws) == [], "a fleet that does not heed it is not asked for ever"


def test_live_workers_of_the_node_leave_once_others_are_enough():
    ws = running(Kind.QUARANTINE, replicas=3, targets=("node-w2",))
    ws.break_("w0")
    stop(ws)
    assert ws.members == ["w0", "w1", "w2"], "too few would be left"
    go_on(ws)
    ws.join("w3", node="elsewhere")
    ws.tick(0.5)
    assert ws.addressees(cmd.Pause) == {"w0"}
    stop(ws, number=6)
    assert ws.members == ["w0", "w1", "w3"]


def test_a_replaced_node_does_not_come_back():
    ws = running(Kind.REPLACE_NODE)
    lose(ws)
    go_on(ws)
    assert ws.state.care.quarantine == {"node-w1": inf}
    ws.tick(1000.0)
    assert ws.given(cmd.Dismiss) == []


def test_a_quarantine_is_not_ended_by_a_clock_that_jumps():
    ws = running(Kind.QUARANTINE, for_s=50.0)
    lose(ws)
    for jump_s in (1e6, -3e6):
        ws.sleep(jump_s)
        ws.tick(1.0)
        assert ws.state.care.quarantine


def test_a_hang_that_nobody_explains_evicts_all_suspects_where_spares_suffice():
    ws = BareController((1, 3), spares=1).run()
    for number in range(8):
        ws.stable(number)
    for worker in ("w0", "w2"):
        ws.beat(worker, Flying.REDUCING, 3.0)
    ws.beat("w1", Flying.TALKING, 3.0)
    ws.tick(0.0)
    assert ws.state.incidents[0].suspects == ("w1",)
    stop(ws, number=7)
    assert ws.state.incidents[0].decision.startswith("quarantine w1: one of w1 held the others up")
    assert ws.members == ["w0", "w2", "w3"] and "node-w1" in ws.state.care.quarantine


# --- GPUs -------------------------------------------------------------------------------------------------------------


def test_a_gpu_is_reset_when_its_worker_is_gone_and_the_node_is_free_again_after_that():
    ws = running(Kind.RESET_GPU)
    ws.lose("w1")
    stop(ws, "w1")
    assert ws.phase is Phase.FREEZING
    ws.die("w1")
    assert ws.given(cmd.ResetGpu) == []
    ws.tick(0.1)
    (reset,) = ws.given(cmd.ResetGpu)
    assert (reset.node, reset.gpus) == ("node-w1", ("1",))
    go_on(ws)
    assert starts(ws) == [(frozenset({"node-w1"}), "")]
    ws.feed(ev.GpuReset(node="node-w1", gpus=("1",)))
    ws.tick(0.1)
    assert starts(ws) == [(frozenset(), "")]
    assert ws.state.care.resets == () and ws.state.care.quarantine == {}


def quarantines_of(ws: BareController) -> list[NodeQuarantined]:
    """What users are told of from now on."""
    told: list[NodeQuarantined] = []
    last = ws.state

    def look(now: RunState) -> None:
        nonlocal last
        told.extend(one for one in moments(last, now, [], -1) if isinstance(one, NodeQuarantined))
        last = now

    ws.on_state = look
    return told


@pytest.mark.parametrize("is_told", [True, False], ids=["it fails", "nothing is heard"])
def test_a_reset_that_comes_to_nothing_leaves_the_node_in_quarantine(is_told):
    ws = running(Kind.RESET_GPU)
    told = quarantines_of(ws)
    lose(ws)
    go_on(ws)
    ws.tick(0.1)
    assert [one.node for one in told] == ["node-w1"], "for as long as the reset may take"
    if is_told:
        ws.feed(ev.GpuReset(node="node-w1", gpus=("1",), error="in use"))
    else:
        ws.tick(Limits().gpu_reset_timeout_s + 0.1)
    assert ws.state.care.resets == ()
    assert ws.state.care.quarantine["node-w1"] == pytest.approx(ws.now_s + Limits().quarantine_s, abs=2.0)
    assert [one.until_s for one in told[1:]] == [ws.state.care.quarantine["node-w1"]], "and once for what follows"


@pytest.mark.parametrize("first", [0, 1])
def test_a_node_of_which_two_gpus_are_reset_is_free_when_both_are(first):
    care = Care(
        quarantine={"b": 110.0},
        resets=tuple(
            Reset(node="b", gpus=(gpu,), since_s=0.0, until_s=until_s) for gpu, until_s in (("0", 100.0), ("1", 110.0))
        ),
    )
    left = replace(care, resets=(care.resets[1 - first],))
    after = _without_reset(left, "b")
    assert after.quarantine == {"b": left.resets[0].until_s}
    assert _without_reset(replace(after, resets=()), "b").quarantine == {}


def test_a_reset_does_not_end_a_longer_quarantine():
    wanted = [Kind.RESET_GPU, Kind.QUARANTINE]
    ws = BareController((1, 3), policy=lambda incident, view: Remediation(kind=wanted[0], reason="by choice"))
    ws.start()
    ws.place("w0", node="a")
    ws.place("w1", "w2", node="b")
    told = {"host": "h", "port": 1, "pid": 1, "layout": "l"}
    ws.feed(*(ev.WorkerParked(worker=name, gpus=(name[1:],), **told) for name in ("w0", "w1", "w2")))
    ws.form()
    lose(ws, "w1")
    go_on(ws)
    ws.tick(0.1)
    (reset,) = ws.given(cmd.ResetGpu)
    wanted.pop(0)
    lose(ws, "w2", number=5)
    until_s = ws.state.care.quarantine["b"]
    ws.feed(ev.GpuReset(node=reset.node, gpus=reset.gpus))
    assert ws.state.care.resets == () and ws.state.care.quarantine == {"b": until_s}


def test_without_a_gpu_there_is_nothing_to_reset():
    ws = BareController((1, 2), policy=wants(Kind.RESET_GPU)).run()
    lose(ws)
    why = "instead of 'reset the GPU', since no GPU of it is known; by choice"
    assert ws.state.incidents[0].decision == f"continue in place: {why}"
    assert ws.members == ["w0"]


# --- what a policy sees -----------------------------------------------------------------------------------------------


def seen_by(ws: BareController) -> ClusterView:
    """What the policy is shown of the next incident."""
    views: list[ClusterView] = []

    def policy(incident: Incident, view: ClusterView) -> Remediation:
        views.append(view)
        return Remediation(kind=Kind.SHRINK, reason="so be it")

    ws.policy = policy
    ws.break_("w0")
    stop(ws, number=max(ws.state.published, *ws.state.published_ahead, -1) + 1)
    return views[-1]


def test_a_policy_sees_budgets_that_heal():
    ws = running(Kind.SHRINK)
    lose(ws)
    go_on(ws)
    view = seen_by(ws)
    size, refill_s = Limits().budget_incidents, Limits().budget_refill_s
    assert view.budget_left[IncidentClass.WORKER_LOST] == pytest.approx(size - 1, abs=0.1)
    assert view.has_budget(IncidentClass.WORKER_LOST) and view.has_budget(IncidentClass.NODE_LOST)
    go_on(ws, 7)
    ws.tick(refill_s / 2)
    assert seen_by(ws).budget_left[IncidentClass.WORKER_LOST] == pytest.approx(size - 0.5, abs=0.1)
    go_on(ws, 8)
    ws.sleep(100 * refill_s)
    ws.tick(1.0)
    left = seen_by(ws).budget_left[IncidentClass.WORKER_LOST]
    assert left == pytest.approx(size - 0.5, abs=0.1), "time in which nobody looked heals nothing"


def test_a_budget_can_be_spent():
    ws = BareController((1, 3), policy=wants(Kind.SHRINK), budget_incidents=1).run()
    lose(ws)
    go_on(ws)
    assert not seen_by(ws).has_budget(IncidentClass.WORKER_LOST)


def test_a_policy_sees_nodes_and_measured_times():
    ws = running(Kind.SHRINK)
    lose(ws)
    ws.form()
    ws.stable(5, after_s=3.0)
    ws.tick(20.0)
    ws.place("w3", node="new")
    ws.now_s += 0.5
    ws.park("w3")
    view = seen_by(ws)
    assert view.nodes["w0"] == "node-w0" and view.nodes["w3"] == "new"
    assert view.node_incidents == {"node-w1": 1}
    assert view.recovery_s == {Kind.SHRINK: 3.0}
    assert view.node_return_s == pytest.approx(20.0)
    assert view.loading_s == 0.0, "three of four were there at once"
    assert (view.step, view.step_s) == (5, 1.0)


def test_a_policy_sees_what_the_tiers_hold():
    ws = running(Kind.SHRINK, checkpoint=Checkpoint())
    ws.feed(ev.RungReached(commit=commit(3), rung="local"), ev.RungReached(commit=commit(1), rung="durable"))
    ws.feed(ev.RungReached(commit=commit(2), rung="local"))
    assert seen_by(ws).tier_steps == {"staged": 3, "local": 3, "replicated": 1, "durable": 1}
    ws.feed(ev.RungReached(commit=commit(3), rung="staged"))
    assert seen_by(ws).tier_steps == {"staged": 3, "local": 1, "replicated": 1, "durable": 1}


def test_what_is_lost_is_nothing_to_fall_back_to():
    ws = running(Kind.SHRINK, checkpoint=Checkpoint())
    ws.feed(ev.RungReached(commit=commit(3), rung="local"), ev.RungReached(commit=commit(3), rung=""))
    assert seen_by(ws).tier_steps == {}


def test_a_policy_is_told_that_a_node_is_lost():
    kinds: list[IncidentClass] = []

    def policy(incident: Incident, view: ClusterView) -> Remediation:
        kinds.append(incident.kind)
        return Remediation(kind=Kind.SHRINK, reason="so be it")

    ws = running(Kind.SHRINK)
    ws.policy = policy
    ws.feed(ev.MonitorLost(node="node-w1"))
    lose(ws)
    assert kinds == [IncidentClass.NODE_LOST]


# --- every command ends -----------------------------------------------------------------------------------------------


def test_every_command_has_a_completion():
    assert set(COMPLETIONS) == COMMANDS - {cmd.Command}
    limits = Limits()
    for kind, ends in COMPLETIONS.items():
        assert ends.then and all(hasattr(limits, name) for name in ends.within), kind
        assert all(issubclass(event, ev.Event) for event in ends.by), kind
        assert ends.by or kind is cmd.EndRun
        assert ends.within or ends.answer_s or kind in (cmd.DropFault, cmd.EndRun), f"{kind} may be open for ever"
        assert hasattr(limits, ends.sent_within), kind


@pytest.mark.parametrize(
    "command",
    [
        cmd.StartWorker(worker="w1", reason="missing"),
        cmd.Inspect(worker="w1", reason="it hangs"),
        cmd.ResetGpu(node="a", gpus=("0",), reason="XID 95"),
        cmd.InjectFault(fault=Fault(kind=FaultKind.KILL), worker="w1", reason="asked for"),
        cmd.FindRestore(reason="the run starts"),
        cmd.Restore(workers=("w1",), commit=commit(3), reason="the run goes on"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_an_order_that_was_not_given_is_answered_in_its_place(command):
    ends = COMPLETIONS[type(command)]
    event = ends.unsent(command, "w1", "it hung")
    assert isinstance(event, ends.by) and "it hung" in str(event)
    assert admitted(running(Kind.SHRINK).state, event)[1] == ""


def test_who_could_not_be_started_is_replaced():
    ws = running(Kind.SHRINK)
    lose(ws)
    go_on(ws)
    (start,) = ws.given(cmd.StartWorker)
    ws.feed(COMPLETIONS[cmd.StartWorker].unsent(start, start.worker, "it hung"))
    (again,) = ws.given(cmd.StartWorker)
    assert again.worker != start.worker and again.gang != start.gang
    ws.join(start.worker)
    assert ws.standing(start.worker) is Standing.DEAD, "it came up too late"


def test_who_was_told_to_leave_and_stays_is_ended():
    ws = running(Kind.SHRINK, spares=1)
    ws.feed(ev.WorkerNotice(worker="w3", reason="SIGTERM"))
    assert ws.addressees(cmd.Dismiss) == {"w3"}
    ws.tick(Limits().pod_termination_threshold_s - 1.0)
    assert ws.given(cmd.Fence) == []
    ws.tick(2.0)
    assert ws.addressees(cmd.Fence) == {"w3"}
    ws.tick(Limits().pod_termination_threshold_s + 1.0)
    assert ws.given(cmd.Fence) == []


def test_who_has_left_is_not_ended():
    ws = running(Kind.SHRINK, spares=1)
    ws.feed(ev.WorkerNotice(worker="w3", reason="SIGTERM"), ev.TrainFnReturned(worker="w3", dismissed=True))
    ws.tick(Limits().pod_termination_threshold_s + 1.0)
    assert ws.given(cmd.Fence) == []


def test_an_order_to_stop_that_was_lost_is_said_again():
    ws = running(Kind.SHRINK)
    lose(ws)
    go_on(ws)
    ws.join("w3")
    assert ws.addressees(cmd.Pause) == {"w0"}
    ws.tick(3.0)
    assert ws.given(cmd.Pause) == []
    ws.tick(3.0)
    assert ws.addressees(cmd.Pause) == {"w0"}
