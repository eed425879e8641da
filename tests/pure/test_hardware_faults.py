"""Findings on hosts: what is only told, what is evidence, who is replaced, and which nodes leave."""

from dataclasses import replace
from math import inf

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.hardware import FindingKind
from elastic.control.hardware_faults import UNHEALTHY
from elastic.control.state import Phase, Standing
from elastic.control.values import IncidentClass
from elastic.control.xid import Severity
from elastic.policies import Ladder
from tests.pure.bare_controller import BareController, trained

HARMED = [Severity.RESTARTABLE, Severity.RESET_NEEDED]


def find(
    ws: BareController, severity: Severity, *workers: str, node: str = "node-w1", **told
) -> tuple[cmd.Command, ...]:
    usual = {"device": "GPU-1", "kind": FindingKind.XID, "detail": "XID 94 on GPU 3"}
    return ws.feed(ev.HardwareFinding(node=node, severity=severity, workers=workers, **{**usual, **told}))


def on_two_nodes() -> BareController:
    """w0 trains on node a, w1 and w2 on node b."""
    ws = BareController((1, 3))
    ws.start()
    ws.place("w0", node="a")
    ws.place("w1", "w2", node="b")
    ws.park("w0", "w1", "w2")
    ws.form()
    return ws


def with_gpus() -> BareController:
    """Each of three workers trains on a GPU of its own node."""
    ws = BareController((1, 3))
    ws.start()
    ws.place("w0", "w1", "w2")
    told = {"host": "h", "port": 1, "pid": 1, "layout": "l"}
    ws.feed(*(ev.WorkerParked(worker=name, gpus=(name[1:],), **told) for name in ("w0", "w1", "w2")))
    ws.form()
    for number in range(8):
        ws.stable(number)
    return ws


def test_what_is_informational_changes_nothing():
    ws = trained()
    event = ev.HardwareFinding(
        node="node-w1", device="", kind=FindingKind.NETWORK, severity=Severity.INFORMATIONAL, detail="eth0 is down"
    )
    assert ws.is_unchanged_by(event)


@pytest.mark.parametrize("severity", HARMED)
def test_a_worker_on_a_gpu_that_failed_is_fenced_and_replaced(severity):
    ws = trained()
    find(ws, severity, "w1")
    assert ws.addressees(cmd.Fence) == {"w1"} and ws.phase is Phase.FREEZING
    (incident,) = ws.state.incidents
    assert (incident.kind, incident.culprits, incident.evidence) == (
        IncidentClass.GPU_FAULT,
        ("w1",),
        ("XID 94 on GPU 3",),
    )
    ws.answer("w0", 9)
    ws.answer("w2", 9)
    ws.die("w1")
    assert ws.members == ["w0", "w2"]
    assert ws.state.incidents[0].kind is IncidentClass.GPU_FAULT, "the death that follows does not blur it"
    ws.form()
    ws.stable(10)
    assert ws.addressees(cmd.StartWorker), "a replacement is asked for"


def test_a_finding_that_is_told_twice_counts_once():
    ws = trained()
    find(ws, Severity.RESTARTABLE, "w1")
    find(ws, Severity.RESET_NEEDED, "w1")
    assert ws.given(cmd.Fence) == [] and len(ws.state.incidents) == 1


def test_the_worst_that_was_found_is_the_class_of_the_incident():
    ws = trained()
    find(ws, Severity.RESTARTABLE, "w1")
    assert ws.state.incidents[0].severity is Severity.RESTARTABLE
    find(ws, Severity.RESET_NEEDED, "w1", detail="XID 95 on GPU 3")
    find(ws, Severity.USER_ERROR, "w1", detail="XID 31 on GPU 3")
    (incident,) = ws.state.incidents
    assert incident.severity is Severity.RESET_NEEDED
    assert incident.evidence == ("XID 94 on GPU 3", "XID 95 on GPU 3", "XID 31 on GPU 3")


@pytest.mark.parametrize(
    ("severity", "decision", "node", "is_reset", "is_kept_out"),
    [
        (Severity.RESTARTABLE, "restart the worker", "node-w1", False, False),
        (Severity.RESET_NEEDED, "reset the GPU", "", True, True),
        (Severity.NODE_MUST_GO, "replace the node", "", False, True),
    ],
    ids=lambda one: one.value if isinstance(one, Severity) else "",
)
def test_each_class_gets_what_it_asks_for(severity, decision, node, is_reset, is_kept_out):
    ws = with_gpus()
    given = [*find(ws, severity, "w1"), *ws.answer("w0", 9), *ws.answer("w2", 9), *ws.die("w1")]
    assert ws.state.incidents[0].decision.startswith(decision) and ws.members == ["w0", "w2"]
    given += [*ws.tick(0.1), *ws.form()]
    assert ("node-w1" in ws.state.care.quarantine) is is_kept_out
    given += ws.stable(10)
    assert (cmd.ResetGpu in map(type, given)) is is_reset
    assert [one.node for one in given if isinstance(one, cmd.StartWorker)] == [node]


def test_a_process_that_ends_before_the_log_says_why_is_no_mere_loss():
    ws = with_gpus()
    ws.die("w1")
    assert ws.state.incidents[0].kind is IncidentClass.WORKER_LOST
    find(ws, Severity.RESET_NEEDED, "w1")
    ws.answer("w0", 9)
    ws.answer("w2", 9)
    (incident,) = ws.state.incidents
    assert (incident.kind, incident.severity) == (IncidentClass.GPU_FAULT, Severity.RESET_NEEDED)
    assert incident.decision.startswith("reset the GPU")


def test_what_comes_after_the_decision_is_another_matter():
    ws = with_gpus()
    ws.die("w1")
    ws.answer("w0", 9)
    ws.answer("w2", 9)
    find(ws, Severity.RESET_NEEDED, "w1")
    assert (ws.state.incidents[0].kind, ws.state.incidents[0].severity) == (IncidentClass.WORKER_LOST, None)


def test_a_node_is_not_blamed_for_what_the_user_did():
    for severity, blamed in ((Severity.USER_ERROR, {}), (Severity.RESTARTABLE, {"node-w1": 1})):
        ws = trained()
        find(ws, severity, "w1")
        ws.die("w1")
        assert ws.state.incidents[0].severity is severity
        ws.answer("w0", 9)
        ws.answer("w2", 9)
        assert ws.phase is Phase.FORMING and ws.state.care.node_incidents == blamed


def test_a_policy_sees_why_a_node_is_left():
    ws = on_two_nodes()
    seen = []
    ws.policy = lambda incident, view: seen.append(incident.severity) or Ladder()(incident, view)
    find(ws, Severity.NODE_MUST_GO, node="b", device="", kind=FindingKind.DRIVER_HUNG, detail="the driver hangs")
    find(ws, Severity.USER_ERROR, "w1", node="b", detail="XID 31")
    ws.tick(0.2)
    assert seen == [Severity.NODE_MUST_GO]
    assert ws.state.incidents[0].severity is Severity.NODE_MUST_GO


def test_two_gpus_that_fail_together_are_one_incident():
    ws = trained()
    find(ws, Severity.RESTARTABLE, "w1")
    find(ws, Severity.RESTARTABLE, "w2", node="node-w2")
    (incident,) = ws.state.incidents
    assert incident.culprits == ("w1", "w2") and ws.phase is Phase.FREEZING


def test_a_gpu_fault_explains_the_hang_that_it_causes():
    ws = trained()
    ws.lose("w1")
    find(ws, Severity.RESET_NEEDED, "w1")
    (incident,) = ws.state.incidents
    assert incident.kind is IncidentClass.GPU_FAULT


@pytest.mark.parametrize("severity", HARMED)
def test_a_spare_on_a_gpu_that_failed_is_replaced_without_an_incident(severity):
    ws = BareController(2, spares=1).run()
    find(ws, severity, "w2", node="node-w2")
    assert ws.addressees(cmd.Fence) == {"w2"} and ws.phase is Phase.RUNNING and ws.state.incidents == ()
    assert ws.standing("w2") is Standing.SUSPECT
    ws.die("w2")
    assert ws.addressees(cmd.StartWorker) == {"w3"}


def test_a_gpu_fault_while_a_generation_forms_ends_the_forming():
    ws = BareController(2)
    ws.start()
    ws.join("w0", "w1")
    assert ws.phase is Phase.FORMING
    find(ws, Severity.RESTARTABLE, "w1")
    assert ws.phase is Phase.FREEZING and ws.addressees(cmd.Fence) == {"w1"}


def test_a_user_error_is_evidence_of_the_incident_that_follows():
    ws = trained()
    find(ws, Severity.USER_ERROR, "w1", detail="XID 31: a memory page fault")
    assert ws.phase is Phase.RUNNING and ws.state.incidents == ()
    ws.die("w1")
    (incident,) = ws.state.incidents
    assert incident.kind is IncidentClass.WORKER_LOST
    assert incident.evidence == ("pid 1 is gone", "XID 31: a memory page fault")


def test_a_user_error_is_evidence_of_the_incident_it_came_after():
    """The kernel's log is read a moment after the pidfd."""
    ws = trained()
    ws.die("w1")
    find(ws, Severity.USER_ERROR, "w1", kind=FindingKind.OUT_OF_MEMORY, device="", detail="out of memory")
    find(ws, Severity.USER_ERROR, "w1", kind=FindingKind.OUT_OF_MEMORY, device="", detail="out of memory")
    (incident,) = ws.state.incidents
    assert incident.evidence == ("pid 1 is gone", "out of memory")
    find(ws, Severity.USER_ERROR, "w2", detail="XID 13")
    assert ws.state.incidents[0].evidence == incident.evidence, "it is nobody's else"


def test_what_train_fn_raises_comes_with_what_the_host_says():
    ws = trained()
    find(ws, Severity.USER_ERROR, "w1", detail="XID 31: a memory page fault")
    ws.raise_("w1")
    assert ws.state.outcome is not None
    assert (
        "ValueError: no on rank 1 (w1); its host monitor says: XID 31: a memory page fault" in ws.state.outcome.message
    )


def test_a_node_that_must_go_leaves_at_the_end_of_a_step():
    ws = on_two_nodes()
    find(ws, Severity.NODE_MUST_GO, node="b", device="", kind=FindingKind.DRIVER_HUNG, detail="the driver hangs")
    assert ws.given(cmd.Fence) == []
    ws.tick(0.2)
    assert ws.addressees(cmd.Pause) == {"w0"}
    for worker in ("w0", "w1", "w2"):
        ws.answer(worker, 9)
    assert ws.members == ["w0"]
    assert ws.state.incidents[0].kind is IncidentClass.DEPARTURE
    assert ws.state.leaving == {"b": "the driver hangs"}
    assert ws.state.care.quarantine == {"b": inf}, "as if a policy had wanted it replaced"


def test_a_worker_on_a_lost_gpu_does_not_wait_for_the_end_of_a_step():
    """It can not finish one; its neighbours leave with the generation that follows."""
    ws = on_two_nodes()
    find(ws, Severity.NODE_MUST_GO, "w1", node="b", detail="GPU 3 is lost")
    assert ws.addressees(cmd.Fence) == {"w1"} and ws.phase is Phase.FREEZING
    ws.answer("w0", 9)
    ws.answer("w2", 9)
    ws.die("w1")
    assert ws.members == ["w0"] and ws.standing("w2") is Standing.GONE


def test_a_node_whose_workers_are_dead_already_only_gets_no_new_ones():
    ws = trained()
    ws.die("w1")
    find(ws, Severity.NODE_MUST_GO, "w1", detail="GPU 3 is lost")
    assert ws.given(cmd.Fence) == []
    ws.answer("w0", 9)
    ws.answer("w2", 9)
    ws.form()
    ws.stable(10)
    ws.place("w3", node="node-w1")
    assert ws.standing("w3") is Standing.GONE


def test_workers_on_a_node_that_fails_its_check_are_not_admitted_until_it_passes():
    ws = BareController((1, 2))
    ws.start()
    ws.place("w0", node="a")
    ws.place("w1", node="b")
    failed = {"node": "b", "device": "", "kind": FindingKind.HEALTH}
    find(ws, Severity.NODE_MUST_GO, detail="0.1% of /tmp is free", **failed)
    assert ws.standing("w1") is Standing.GONE and ws.addressees(cmd.StartWorker) == {"w2"}
    assert "it fails its health check: 0.1% of /tmp is free" in ws.state.leaving["b"]
    until_s = ws.now_s + ws.state.settings.limits.quarantine_s
    assert ws.state.care.quarantine == ws.state.care.unhealthy == {"b": until_s}, "it may pass a later one"
    assert ws.given(cmd.StartWorker)[0].avoid == {"b"}
    ws.park("w1", "w0")
    ws.form()
    assert ws.members == ["w0"]
    find(ws, Severity.INFORMATIONAL, detail="healthy", **failed)
    assert ws.state.leaving == {} == ws.state.care.quarantine
    ws.place("w2", node="b")
    ws.park("w2")
    assert ws.standing("w2") is Standing.PARKED


def test_a_node_that_fails_check_after_check_stays_in_quarantine_and_one_that_is_asked_no_more_leaves_it():
    ws = trained()
    failed = {"node": "b", "device": "", "kind": FindingKind.HEALTH, "detail": "/tmp is full"}
    find(ws, Severity.NODE_MUST_GO, **failed)
    first_s = ws.state.care.quarantine["b"]
    ws.tick(60.0)
    find(ws, Severity.NODE_MUST_GO, **failed)
    assert ws.state.care.quarantine == {"b": first_s + 60.0}
    ws.tick(ws.state.settings.limits.quarantine_s + 1.0)
    assert ws.state.care.quarantine == {} == ws.state.care.unhealthy, "its time is over"


def test_a_check_that_passes_ends_no_quarantine_that_something_else_has_begun():
    ws = trained()
    find(ws, Severity.NODE_MUST_GO, node="b", device="", kind=FindingKind.HEALTH, detail="/tmp is full")
    find(ws, Severity.NODE_MUST_GO, node="b", detail="XID 79")
    ws.feed(ev.NodeNotice(node="b", reason=f"{UNHEALTHY}/tmp is full"))
    find(ws, Severity.INFORMATIONAL, node="b", device="", kind=FindingKind.HEALTH, detail="healthy")
    assert ws.state.care.quarantine == {"b": inf} and ws.state.care.unhealthy == {}


@pytest.mark.parametrize("fails", [False, True])
def test_a_check_that_passes_brings_nobody_back_who_must_go_for_another_reason(fails):
    ws = trained()
    ws.feed(ev.NodeNotice(node="b", reason="preempted"))
    if fails:
        find(ws, Severity.NODE_MUST_GO, node="b", device="", kind=FindingKind.HEALTH, detail="/tmp is full")
    find(ws, Severity.INFORMATIONAL, node="b", device="", kind=FindingKind.HEALTH, detail="healthy")
    assert ws.state.leaving == {"b": "preempted"}


def test_a_check_that_fails_and_passes_leaves_nothing_for_later_incidents():
    """No node must go for what costs a worker a restart."""
    ws = trained()
    failed = {"node": "node-w1", "device": "", "kind": FindingKind.HEALTH}
    find(ws, Severity.NODE_MUST_GO, detail="0.1% of /tmp is free", **failed)
    assert ws.state.workers["w1"].notice, "the check had no effect"
    find(ws, Severity.INFORMATIONAL, detail="healthy", **failed)
    find(ws, Severity.RESTARTABLE, "w1", node="node-w1", detail="XID 94")
    assert ws.state.incidents[-1].severity is Severity.RESTARTABLE
    assert ws.state.care.quarantine == {} == ws.state.leaving


def test_a_check_ends_no_quarantine_that_began_between_two_that_failed():
    ws = trained()
    failed = {"node": "b", "device": "", "kind": FindingKind.HEALTH}
    find(ws, Severity.NODE_MUST_GO, detail="/tmp is full", **failed)
    until_s = ws.now_s + 1000.0
    ws.state = replace(ws.state, care=ws.state.care.quarantined("b", until_s))
    ws.tick(60.0)
    find(ws, Severity.NODE_MUST_GO, detail="/tmp is full", **failed)
    find(ws, Severity.INFORMATIONAL, detail="healthy", **failed)
    assert ws.state.care.quarantine == {"b": until_s}


def test_a_worker_of_an_earlier_incarnation_is_nobody():
    ws = trained()
    find(ws, Severity.RESTARTABLE, "w77")
    assert ws.phase is Phase.RUNNING and ws.commands == ()


def test_a_run_that_is_finishing_lets_everybody_return():
    ws = trained()
    ws.end_loop("w0")
    assert ws.phase is Phase.FINISHING
    find(ws, Severity.RESTARTABLE, "w1")
    assert ws.commands == ()
