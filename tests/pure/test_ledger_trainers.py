"""The ledger on what other trainers tell: it says what is true where the best-known library does not."""

from typing import Any

import pytest

from elastic.ledger.ledger import Ledger
from elastic.ledger.model import Account, Category

INIT_S, STEP_S, STEPS = 10.0, 1.0, 100
C = Category


class Told:
    """A job that tells what it does; its clock goes on with what it does."""

    def __init__(self) -> None:
        self.ledger, self.at_s = Ledger(), 1000.0

    def say(self, name: str, **more: Any) -> "Told":
        assert self.ledger.feed({"t": self.at_s, "trainer": name, **more})
        return self

    def sleep(self, seconds: float) -> "Told":
        self.at_s += seconds
        return self

    def launch(self, **more: Any) -> "Told":
        """A job starts, and builds its model."""
        return self.say("job_started", **more).say("begin", what="initialization").sleep(INIT_S).say("end")

    def steps(self, first: int, end: int, step_s: float = STEP_S, **more: Any) -> "Told":
        for step in range(first, end):
            self.say("step_started", step=step, **more).sleep(step_s)
        return self

    def end(self) -> Account:
        return self.say("job_ended").ledger.account()


def balanced(account: Account) -> Account:
    """Both views add up to their wholes, and each second is known."""
    assert sum(account.wall_seconds.values()) == pytest.approx(account.wall_s, rel=1e-3)
    assert sum(account.worker_seconds.values()) == pytest.approx(account.workers_s, rel=1e-3)
    assert account.wall_seconds.get(C.UNKNOWN, 0.0) < 0.01 * account.wall_s
    for incident in account.incidents:
        assert all(seconds >= 0 for seconds in incident.wall_seconds.values())
    return account


def test_a_clean_run():
    account = balanced(Told().launch().steps(0, STEPS).end())
    assert account.goodput == pytest.approx(100 / 110)
    assert account.wall_seconds[C.INITIALIZATION] == pytest.approx(10)
    assert [incident.kind for incident in account.incidents] == ["run start"]


def test_an_outage_after_which_it_goes_on_exactly_at_the_next_step_is_not_productive():
    """The library says 96.9 %, and no disruption."""
    told = Told().launch().steps(0, 50).sleep(200.0).launch().steps(50, STEPS)
    account = balanced(told.end())
    assert account.goodput == pytest.approx(100 / 320, abs=0.001)
    assert account.wall_seconds[C.BETWEEN_INCARNATIONS] == pytest.approx(200, abs=0.1)
    lost = next(incident for incident in account.incidents if incident.kind == "driver lost")
    assert lost.cost_s == pytest.approx(210, abs=0.1) and not lost.is_planned


def test_steps_that_are_done_again_are_redone():
    """The library says 30.3 % here too: it sees an outage where a step number comes twice."""
    told = Told().launch().steps(0, 50).sleep(200.0).launch().steps(40, STEPS)
    account = balanced(told.end())
    assert account.goodput == pytest.approx(100 / 330, abs=0.002)
    assert account.wall_seconds[C.REDONE] == pytest.approx(10, abs=1.0)
    assert account.steps.kept == STEPS


def test_a_slow_half_is_drag_not_progress():
    """The library says 95.2 %: half the run was three times slower."""
    for halves in ((1.0, 3.0), (3.0, 1.0)):
        told = Told().launch().steps(0, 50, halves[0]).steps(50, STEPS, halves[1])
        account = balanced(told.end())
        assert account.goodput == pytest.approx(100 / 210, abs=0.001), halves
        assert account.wall_seconds[C.STRAGGLER_DRAG] == pytest.approx(100, abs=2.5)
        slow = next(incident for incident in account.incidents if incident.kind == "slow steps")
        assert slow.wall_seconds[C.STRAGGLER_DRAG] == account.wall_seconds[C.STRAGGLER_DRAG]


def test_a_hang_that_nobody_noticed_is_not_productive():
    """The library says 98.6 %, and no disruption: one step took ten minutes."""
    told = Told().launch().steps(0, 50).sleep(600.0).steps(50, STEPS)
    account = balanced(told.end())
    assert account.goodput == pytest.approx(100 / 710, abs=0.001)
    stalled = next(incident for incident in account.incidents if incident.kind == "stalled step")
    assert stalled.wall_seconds == {C.DETECTING: pytest.approx(600)}
    assert stalled.step == 49 and "step 49 took 601 s, where 1 s is usual" in stalled.evidence


def test_a_smaller_job_is_not_given_full_credit():
    told = Told().launch(workers=8).steps(0, 50, workers=8).steps(50, STEPS, workers=4)
    account = balanced(told.end())
    assert account.goodput == pytest.approx((50 * 8 + 50 * 4) / (110 * 8))
    assert account.wall_seconds[C.REDUCED_CAPACITY] == pytest.approx(25)
    assert account.worker_seconds[C.REDUCED_CAPACITY] == pytest.approx(50 * 4)


def test_what_a_step_waits_for_is_told_by_name():
    told = Told().launch()
    for step in range(10):
        told.say("step_started", step=step).say("begin", what="data_wait").sleep(0.5).say("end").sleep(1.0)
        told.say("begin", what="checkpoint_stall").sleep(0.25).say("end")
    account = balanced(told.end())
    assert account.wall_seconds[C.DATA_WAIT] == pytest.approx(5.0)
    assert account.wall_seconds[C.CHECKPOINT_STALL] == pytest.approx(2.5)
    assert account.wall_seconds[C.PRODUCTIVE] == pytest.approx(10.0)


def test_published_definitions_stand_beside_ours():
    told = Told().say("job_started").say("checkpoint_loaded", step=0).steps(0, STEPS).say("checkpoint_saved", step=90)
    account = balanced(told.end())
    found = {one.name: one for one in account.definitions}
    assert found["resiliency_metrics goodput"].value == pytest.approx(0.9)
    assert found["step efficiency"].value == 1.0
    assert found["ETTR"].value == pytest.approx(1.0)
    assert sum(found["ml-goodput-measurement goodput"].parts.values()) == pytest.approx(0.0, abs=1e-6)


def test_the_seeds_calculator_says_nothing_for_a_run_that_never_loaded():
    account = Told().launch().steps(0, STEPS).say("checkpoint_saved", step=90).end()
    found = {one.name: one.value for one in account.definitions}
    assert found["resiliency_metrics goodput"] == 0.0 < found["goodput"]


def test_between_two_moments():
    told = Told().launch().steps(0, 50).sleep(600.0).steps(50, STEPS)
    told.say("job_ended")
    whole, begin_s = told.ledger.account(), 1000.0
    parts = [told.ledger.account(between=cut) for cut in ((begin_s, 1333.0), (1333.0, 1700.0), (1700.0, 1e9))]
    for category in C:
        together = sum(part.wall_seconds.get(category, 0.0) for part in parts)
        assert together == pytest.approx(whole.wall_seconds.get(category, 0.0)), category
    assert all(balanced(part) for part in parts)


def test_a_line_of_another_kind_is_passed_over():
    ledger = Ledger()
    assert not ledger.feed({"t": 1.0, "trainer": "coffee"})
    assert not ledger.feed_text('{"t": 1.0, "trainer": "job_sta')
    assert ledger.is_empty and ledger.account().wall_s == 0.0


def test_a_step_that_is_told_to_have_ended_is_over():
    told = Told().launch()
    for step in range(10):
        told.say("step_started", step=step).sleep(1.0).say("step_ended").sleep(0.25)
        told.say("begin", what="evaluation").sleep(0.5).say("end").say("end")
    account = balanced(told.end())
    assert account.steps.usual_s == pytest.approx(1.0) and account.wall_seconds[C.EVALUATION] == pytest.approx(5.0)


def test_a_fault_that_somebody_injected_is_told_with_its_proof():
    told = Told().launch().steps(0, 20).say("fault", kind="kill", target="rank 1", proof="SIGKILL").steps(20, 40)
    (struck,) = [one.injected for one in told.end().incidents if one.injected is not None]
    assert (struck.fault, struck.proof) == ("kill rank 1", "SIGKILL")
