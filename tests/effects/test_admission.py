"""Effect. Workers are announced once their node was checked, and a node that fails gets no more of them."""

from typing import Any

import pytest

from elastic.actors.admission import Admission
from elastic.actors.host_monitors import HostMonitors
from elastic.control import events as ev
from elastic.control.hardware import FindingKind
from elastic.control.xid import Severity
from elastic.settings import Health, RunSettings

PARKED = ev.WorkerParked(worker="w0", host="h", port=1, pid=1, layout="l")


class Checked:
    """An admission, what it told, and the checks that it has asked for."""

    def __init__(self, **health: Any) -> None:
        self.told: list[ev.Event] = []
        self.asked: list[tuple[str, Any, Any]] = []
        check = lambda node, done, failed: self.asked.append((node, done, failed))  # noqa: E731
        self.admission = Admission(Health(**health), self.told.append, check)

    def answer(self, *found: str) -> None:
        node, done, _ = self.asked.pop(0)
        done(list(found))


def test_a_worker_waits_for_the_check_of_its_node():
    checked = Checked()
    checked.admission.begin("a")
    assert checked.admission.must_wait("a", PARKED) and not checked.admission.must_wait("b", PARKED)
    assert checked.told == []
    checked.answer()
    finding, parked = checked.told
    assert (finding.kind, finding.severity, finding.node) == (FindingKind.HEALTH, Severity.INFORMATIONAL, "a")
    assert parked is PARKED and not checked.admission.must_wait("a", PARKED)
    assert checked.admission.labels(None, frozenset(), "") == {}


def test_a_node_that_fails_is_told_first_and_gets_no_more_workers():
    checked = Checked(recheck_s=1e-6)
    checked.admission.begin("a")
    checked.admission.must_wait("a", PARKED)
    checked.answer("no memory", "no space")
    finding, _ = checked.told
    assert (finding.severity, finding.detail) == (Severity.NODE_MUST_GO, "no memory; no space")
    checked.admission.heed(finding)  # as the fleet does with all that passes
    assert checked.admission.labels({"pool": "x"}, frozenset(), "") == {"pool": "x", "ray.io/node-id": "!in(a)"}
    checked.admission.recheck()
    checked.answer()
    assert checked.told[-1].severity is Severity.INFORMATIONAL
    assert checked.admission.labels({"pool": "x"}, frozenset(), "") == {"pool": "x"}


def test_a_node_that_must_go_for_another_reason_gets_no_more_workers():
    checked = Checked()
    lost = {"device": "GPU-1", "kind": FindingKind.GPU_LOST, "detail": "lost"}
    checked.admission.heed(ev.HardwareFinding(node="b", severity=Severity.NODE_MUST_GO, **lost))
    checked.admission.heed(ev.HardwareFinding(node="c", severity=Severity.RESET_NEEDED, **lost))
    checked.admission.heed(ev.NodeNotice(node="d", reason="drained"))
    assert checked.admission.labels(None, frozenset({"c"}), "") == {"ray.io/node-id": "!in(b,c)"}
    assert checked.admission.labels({"pool": "x"}, frozenset({"c"}), "d") == {"pool": "x", "ray.io/node-id": "d"}
    among, never, wanted = checked.admission.labels_among, frozenset({"c"}), {"pool": "x"}
    assert among(wanted, never, ["d", "c", "b", "a"], frozenset()) == {"pool": "x", "ray.io/node-id": "in(a,d)"}
    assert among(wanted, never, ["c", "b"], frozenset()) == {}, "not on those that get no workers"
    assert among(None, never, ["d", "c", "a"], frozenset({"c", "d"})) == {"ray.io/node-id": "in(a)"}
    assert among(None, never, ["d", "c"], frozenset({"c", "d"})) == {"ray.io/node-id": "in(d)"}, "better than nowhere"
    assert checked.admission.shunned == {"b"}


def test_a_node_that_was_avoided_is_checked_before_it_has_workers_again():
    """Its quarantine is over, and its monitor the old one."""
    checked = Checked()
    checked.admission.begin("a")
    checked.answer()
    checked.admission.begin_again("a")
    assert checked.asked == [], "nothing was wrong with it"
    checked.admission.labels(None, frozenset({"a"}), "")
    for _ in range(2):  # workers
        checked.admission.begin_again("a")
    assert len(checked.asked) == 1 and checked.admission.must_wait("a", PARKED)
    checked.answer("no memory")
    assert [getattr(one, "detail", "") for one in checked.told] == ["healthy", "no memory", ""]


def test_a_monitor_that_stays_is_asked_again_when_workers_come_back():
    monitors = HostMonitors(print, lambda *_: None, print, RunSettings(run="r"))
    asked: list[str] = []
    monitors.admission = Admission(Health(), print, lambda node, done, failed: asked.append(node))
    monitors._monitors["a"] = object()
    monitors.need("a")
    monitors.admission.labels(None, frozenset({"a"}), "")
    monitors.need("a")
    assert asked == ["a"]


def test_a_check_that_can_not_be_made_is_a_failed_one():
    checked = Checked()
    checked.admission.begin("a")
    _, _, failed = checked.asked.pop()
    failed(ValueError("odd"))
    assert checked.told[0].detail == "it could not be checked: ValueError"


def test_a_check_whose_answer_was_lost_is_made_again(monkeypatch):
    """Contact with its monitor was gone for a moment: nothing is held against the node, and its workers still wait."""
    monkeypatch.setattr("elastic.actors.admission._AGAIN_S", 0.0)
    checked = Checked()
    checked.admission.begin("a")
    assert checked.admission.must_wait("a", PARKED)
    checked.admission.ask_again("a")
    assert checked.admission.is_open("a") and checked.told == [] and checked.admission.shunned == frozenset()
    checked.admission.recheck()
    checked.asked.pop(0)  # the one that nobody answers
    checked.answer()
    assert [type(one) for one in checked.told] == [ev.HardwareFinding, ev.WorkerParked]


def test_a_run_without_checks_lets_everybody_in():
    checked = Checked(checks=False)
    checked.admission.begin("a")
    assert checked.asked == [] and not checked.admission.must_wait("a", PARKED)


@pytest.mark.parametrize("setting", [{"period_s": 0.0}, {"memory_free": 1.0}, {"peer_bytes_per_s": -1.0}], ids=str)
def test_health_that_cannot_work_names_its_field(setting):
    from elastic.errors import SettingError

    with pytest.raises(SettingError, match=f"^Health.{next(iter(setting))}="):
        Health(**setting)
