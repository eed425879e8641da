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


def test_a_joiner_that_is_let_in_before_the_step_after_a_failure_is_told_is_no_cost_of_the_failure():
    """Steps are told a few at a time; that all have stopped as was planned says that one was committed."""
    journal = started(replicas=3)
    journal.sleep(0.1).incident("worker_lost")
    opened_s = journal.at_s
    journal.phase("freezing").sleep(0.2).form(2, took_s=0.5)
    journal.sleep(STEP_S)
    resumed_s = journal.at_s
    join(journal, step=20)
    journal.told(20, resumed_s - STEP_S, resumed_s, 2)
    journal.step = 20
    resolved = {"opened_at_s": opened_s, "resumed_s": resumed_s}
    journal.incident("worker_lost", "IncidentResolved", **resolved)
    account = journal.steps(4).account()
    assert only(account, "worker lost").cost_s == near(0.1 + 0.2 + 0.5)
    joined = only(account, "planned stop")
    assert (joined.cost_s, joined.evidence) == (near(2.0), ("w9 can join",))


def join(journal: Journal, step: int) -> None:
    commit = {"incarnation": 1, "generation": journal.generation, "attempt": 1, "step": step, "lineage": "a"}
    journal.write(command="Pause", worker="w0", generation=journal.generation, reason="w9 can join")
    journal.write(event="FreezeAnswered", worker="w0", generation=journal.generation, commit=commit)
    journal.form(3, took_s=2.0)


def test_a_failure_that_goes_on_when_all_were_to_stop_is_still_that_failure():
    journal = started(replicas=3)
    journal.sleep(0.1).incident("worker_lost")
    opened_s = journal.at_s
    journal.phase("freezing").sleep(0.2).form(2, took_s=0.5)
    journal.incident("worker_lost", "IncidentDecided", opened_at_s=opened_s, culprits=["w1", "w2"])
    join(journal, step=20)
    account = journal.steps(4).account()
    assert "planned stop" not in [one.kind for one in account.incidents]
    assert only(account, "worker lost").cost_s == near(0.1 + 0.2 + 0.5 + 2.0)


def test_a_slow_first_step_after_a_failure_is_of_its_cost_and_the_next_one_is_not():
    """The incident lasts until that step is committed."""
    journal = started()
    journal.sleep(0.1).incident("worker_lost")
    opened_s = journal.at_s
    journal.phase("freezing").form(2, took_s=1.0).steps(1, 2 * STEP_S)
    resolved = {"opened_at_s": opened_s, "resumed_s": journal.at_s}
    journal.incident("worker_lost", "IncidentResolved", **resolved)
    account = journal.steps(1, 3 * STEP_S).steps(20).account()
    assert only(account, "worker lost").cost_s == near(0.1 + 1.0 + STEP_S)
    assert only(account, "slow steps").cost_s == near(2 * STEP_S)
