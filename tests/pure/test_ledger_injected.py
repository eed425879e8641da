"""Which incident an injected fault became, where several faults strike the same host at nearly one moment."""

import pytest

from elastic.ledger.model import Category
from tests.pure.test_ledger import STEP_S, Journal, causes, near, only, started, strike


def departs(journal: Journal, said: str = "w1 will be lost: SIGTERM") -> Journal:
    """One member leaves at the end of a step, which takes a second."""
    opened_s = journal.at_s
    journal.incident("departure", evidence=[said])
    journal.phase("freezing").form(2, took_s=1.0).steps(1)
    resolved = {"opened_at_s": opened_s, "resumed_s": journal.at_s, "evidence": [said]}
    journal.incident("departure", "IncidentResolved", **resolved)
    return journal


@pytest.mark.parametrize("kind", ["xid", "kill", "bit_flip", "storage_errors", "kill_monitor", "node_down"])
def test_a_worker_that_was_given_notice_leaves_for_no_other_fault_of_its_node(kind):
    """Whatever struck later, and nearer to it."""
    journal = started(replicas=3)
    journal.write(event="WorkerPlaced", worker="w1", node="n")
    strike(journal, "notice", "one")
    strike(journal.sleep(0.01), kind, "two", "n")
    account = departs(journal.sleep(0.1)).account()
    assert causes(only(account, "planned departure")) == [("notice", "w1")]
    assert causes(only(account, "injected fault")) == [(kind, "n")]


def test_a_worker_that_leaves_for_an_xid_that_was_seen_leaves_for_it():
    journal = started(replicas=3)
    journal.write(event="WorkerPlaced", worker="w1", node="n")
    strike(journal, "xid", "one", "n")
    found = {"node": "n", "device": "", "kind": "xid", "severity": "node_must_go", "detail": "XID 79", "workers": []}
    journal.sleep(0.1).write(event="HardwareFinding", **found)
    account = departs(journal, "w1 will be lost: XID 79").account()
    assert causes(only(account, "planned departure")) == [("xid", "n")]


def test_steps_that_are_slow_long_after_somebody_has_left_are_not_the_notice_s():
    """It lasts until the process would be killed, which is gone by then."""
    journal = started(replicas=3)
    strike(journal, "notice", "one")
    account = departs(journal.sleep(0.1)).steps(4).steps(4, 4 * STEP_S).steps(4).account()
    assert only(account, "planned departure").cost_s == near(1.1)
    assert only(account, "slow steps").wall_seconds == {Category.STRAGGLER_DRAG: near(12 * STEP_S)}
