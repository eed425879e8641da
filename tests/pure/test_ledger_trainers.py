"""The ledger on what other trainers tell: it says what is true where the best-known library does not."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.ledger.ledger import Ledger
from elastic.ledger.model import Account, Category, Definition
from elastic.ledger.trainer import DOES

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


def library(account: Account) -> Definition:
    """What the best-known library says, by its formulae."""
    return next(one for one in account.definitions if one.name == "ml-goodput-measurement goodput")


def balanced(account: Account) -> Account:
    """Both views add up to their wholes, and each second is known."""
    assert sum(account.wall_seconds.values()) == pytest.approx(account.wall_s, rel=1e-3)
    assert sum(account.worker_seconds.values()) == pytest.approx(account.workers_s, rel=1e-3)
    assert account.wall_seconds.get(C.UNKNOWN, 0.0) < 0.01 * account.wall_s
    for incident in account.incidents:
        assert incident.evidence and incident.decision, incident.kind
        assert all(seconds >= 0 for seconds in incident.wall_seconds.values())
    return account


def test_a_clean_run():
    account = balanced(Told().launch().steps(0, STEPS).end())
    assert account.goodput == pytest.approx(100 / 110)
    assert account.wall_seconds[C.INITIALIZATION] == pytest.approx(10)
    assert library(account).value == pytest.approx(0.909, abs=5e-4) and "0 disruptions" in library(account).formula
    assert [incident.kind for incident in account.incidents] == ["run start"]


def test_an_outage_after_which_it_goes_on_exactly_at_the_next_step_is_not_productive():
    """The library says 96.9 %, and no disruption: its parts are more than the whole."""
    told = Told().launch().steps(0, 50).sleep(200.0).launch().steps(50, STEPS)
    account = balanced(told.end())
    assert account.goodput == pytest.approx(100 / 320, abs=0.001)
    assert account.wall_seconds[C.BETWEEN_INCARNATIONS] == pytest.approx(200, abs=0.1)
    lost = next(incident for incident in account.incidents if incident.kind == "driver lost")
    assert lost.cost_s == pytest.approx(210, abs=0.1) and not lost.is_planned
    theirs = library(account)
    assert theirs.value == pytest.approx(0.969, abs=5e-4) and "0 disruptions" in theirs.formula
    assert theirs.parts["OTHER"] == 0.0 and theirs.value * 320 + sum(theirs.parts.values()) > 320


def test_a_launch_that_comes_to_nothing_loses_no_step():
    """Step 49 died with its job, perhaps at its end; a job that dies before its first step says nothing of it."""
    told = Told().launch().steps(0, 50).sleep(200.0).launch().sleep(30.0).launch().steps(50, STEPS)
    account = balanced(told.end())
    assert account.goodput == pytest.approx(100 / 360, abs=0.001)
    assert account.wall_seconds[C.PRODUCTIVE] == pytest.approx(100, abs=0.1)


def test_steps_that_are_done_again_are_redone():
    """The library says 30.3 % here too: it sees an outage where a step number comes twice."""
    told = Told().launch().steps(0, 50).sleep(200.0).launch().steps(40, STEPS)
    account = balanced(told.end())
    assert account.goodput == pytest.approx(100 / 330, abs=0.002)
    assert account.wall_seconds[C.REDONE] == pytest.approx(10, abs=1.0)
    assert account.steps.kept == STEPS
    theirs = library(account)
    assert theirs.value == pytest.approx(0.303, abs=5e-4) and "1 disruptions" in theirs.formula
    assert {name: round(seconds, 6) for name, seconds in theirs.parts.items() if seconds} == {
        "TRAINING_PREP": 20.0,
        "WASTED_PROGRESS_FROM_DISRUPTION": 9.0,
        "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": 201.0,
    }


def test_a_slow_half_is_drag_not_progress():
    """The library says 95.2 %: half the run was three times slower."""
    for halves in ((1.0, 3.0), (3.0, 1.0)):
        told = Told().launch().steps(0, 50, halves[0]).steps(50, STEPS, halves[1])
        account = balanced(told.end())
        assert account.goodput == pytest.approx(100 / 210, abs=0.001), halves
        assert account.wall_seconds[C.STRAGGLER_DRAG] == pytest.approx(100, abs=2.5)
        slow = next(incident for incident in account.incidents if incident.kind == "slow steps")
        assert slow.wall_seconds[C.STRAGGLER_DRAG] == account.wall_seconds[C.STRAGGLER_DRAG]
    assert library(account).parts["PROGRAM_STARTUP"] == pytest.approx(3.0 - (49 * 3.0 + 50) / 99)
    assert library(Told().launch().steps(0, 50).steps(50, STEPS, 3.0).end()).value == pytest.approx(0.952, abs=5e-4)


@pytest.mark.parametrize("slow", [1.15, 1.45])
@pytest.mark.parametrize("step_s", [0.02, 1.0, 30.0])
def test_steps_that_are_all_a_little_slower_are_drag_too(slow, step_s):
    """From where a straggler has a score; one such step alone is how steps are."""
    told = Told().launch()
    for step in range(60):
        told.steps(step, step + 1, step_s * (1.45 if step % 10 == 5 else 1.0))
    assert C.STRAGGLER_DRAG not in balanced(told.ledger.account()).wall_seconds
    told.steps(60, 100, slow * step_s).steps(100, 140, step_s)
    account = balanced(told.end())
    drag_s = 40 * (slow - 1) * step_s
    assert account.wall_seconds[C.STRAGGLER_DRAG] == pytest.approx(drag_s, rel=0.1)
    (seen,) = [one for one in account.incidents if one.kind == "slow steps"]
    assert seen.wall_seconds == {C.STRAGGLER_DRAG: account.wall_seconds[C.STRAGGLER_DRAG]}


def test_steps_that_differ_by_nature_are_no_drag():
    told = Told().launch()
    for step in range(300):
        told.steps(step, step + 1, 1.0 + 0.08 * (step * 7 % 11) / 10)
    assert C.STRAGGLER_DRAG not in balanced(told.end()).wall_seconds


def test_a_hang_that_nobody_noticed_is_not_productive():
    """The library says 98.6 %, and no disruption: one step took ten minutes."""
    told = Told().launch().steps(0, 50).sleep(600.0).steps(50, STEPS)
    account = balanced(told.end())
    assert account.goodput == pytest.approx(100 / 710, abs=0.001)
    stalled = next(incident for incident in account.incidents if incident.kind == "stalled step")
    assert stalled.wall_seconds == {C.DETECTING: pytest.approx(600)}
    assert stalled.step == 49 and "step 49 took 601 s, where 1 s is usual" in stalled.evidence
    theirs = library(account)
    assert theirs.value == pytest.approx(0.986, abs=5e-4) and "0 disruptions" in theirs.formula
    assert {name for name, seconds in theirs.parts.items() if seconds > 1e-6} == {"TRAINING_PREP"}


def outage(back_to: int) -> Told:
    return Told().launch().steps(0, 50).sleep(200.0).launch().steps(back_to, STEPS)


# What the best-known library does not see, as docs/goodput.md calls it.
BLIND_SPOTS: dict[str, Callable[[], Told]] = {
    "crash, 200 s, goes on exactly at the next step": lambda: outage(50),
    "the same, 10 steps back": lambda: outage(40),
    "half of it three times slower": lambda: Told().launch().steps(0, 50).steps(50, STEPS, 3.0),
    "a hang of 600 s, no restart": lambda: Told().launch().steps(0, 50).sleep(600.0).steps(50, STEPS),
}


def test_the_page_has_what_comes_out_of_each_blind_spot():
    text = (Path(__file__).parents[2] / "docs" / "goodput.md").read_text()
    rows = re.findall(r"^\| (.+) \| ([0-9.]+) % \| ([0-9.]+) % \|$", text, re.MULTILINE)
    assert [name for name, _, _ in rows] == list(BLIND_SPOTS)
    for name, theirs, ours in rows:
        account = balanced(BLIND_SPOTS[name]().end())
        found = library(account).value, account.goodput
        assert found == pytest.approx((float(theirs) / 100, float(ours) / 100), abs=6e-4), name


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


@pytest.mark.parametrize("what", sorted(DOES))
def test_whatever_is_done_within_a_step_is_told_by_name(what):
    told = Told().launch()
    for step in range(10):
        told.say("step_started", step=step).sleep(0.5).say("begin", what=what).sleep(0.25).say("end").sleep(0.5)
    account = balanced(told.end())
    before_s = INIT_S if what == "initialization" else 0.0
    assert account.wall_seconds[Category(what)] == pytest.approx(2.5 + before_s)
    assert account.wall_seconds[C.PRODUCTIVE] == pytest.approx(10.0)
    assert account.steps.usual_s == pytest.approx(1.0)


def test_what_begins_in_a_step_and_ends_in_another_or_outside_is_shared_out_at_the_border():
    told = Told().launch().steps(0, 10).say("step_started", step=10).sleep(1.0).say("begin", what="restore").sleep(2.0)
    told.say("step_started", step=11).sleep(3.0).say("end").sleep(1.0)
    told.say("begin", what="evaluation").sleep(4.0).say("step_ended").sleep(5.0).say("end").sleep(0.0)
    told.say("begin", what="data_wait").sleep(6.0).say("step_started", step=12).sleep(7.0).say("end").sleep(1.0)
    told.say("step_ended").sleep(8.0).steps(13, 20)
    account = balanced(told.end())
    assert account.wall_seconds[C.RESTORE] == pytest.approx(5.0)
    assert account.wall_seconds[C.EVALUATION] == pytest.approx(9.0)
    assert account.wall_seconds[C.DATA_WAIT] == pytest.approx(13.0)
    assert account.steps.usual_s == pytest.approx(1.0)


def test_what_was_done_within_steps_that_are_done_again_is_redone():
    told = Told().launch()
    for step in [*range(10), *range(4, 20)]:
        told.say("step_started", step=step).say("begin", what="compilation").sleep(0.5).say("end").sleep(1.0)
    account = balanced(told.end())
    assert account.wall_seconds[C.REDONE] == pytest.approx(6 * 1.5)
    assert account.wall_seconds[C.COMPILATION] == pytest.approx(20 * 0.5, rel=0.01)


def test_published_definitions_stand_beside_ours():
    told = Told().say("job_started").say("checkpoint_loaded", step=0).steps(0, STEPS).say("checkpoint_saved", step=90)
    account = balanced(told.end())
    found = {one.name: one for one in account.definitions}
    assert found["resiliency_metrics goodput"].value == pytest.approx(0.9)
    assert found["step efficiency"].value == 1.0
    assert found["ETTR"].value == pytest.approx(1.0)
    assert found["ml-goodput-measurement goodput"].value == pytest.approx(1.0)


def test_the_library_takes_off_what_it_is_told_by_name_and_the_step_in_flight():
    told = Told().launch()
    for step in range(10):
        told.say("step_started", step=step).say("begin", what="evaluation").sleep(0.5).say("end").sleep(1.0)
        told.say("begin", what="checkpoint_stall").sleep(0.25).say("end")
        told.say("begin", what="data_wait").sleep(0.25).say("end")
    cut = library(told.ledger.account())
    assert cut.value == pytest.approx((9 * 2.0 - 9 * 0.75) / 30.0)
    account = balanced(told.end())
    (ettr,) = [one.value for one in account.definitions if one.name == "ETTR"]
    assert ettr == pytest.approx(10 * 2.0 / 30.0), (
        "time in steps is all of it: only a restart, and what is done again, is lost"
    )
    theirs = library(account)
    assert theirs.value == pytest.approx((10 * 2.0 - 10 * 0.75) / 30.0)
    assert theirs.parts["DATA_LOADING_ASYNC"] == pytest.approx(2.5) and theirs.parts["DATA_LOADING_SYNC"] == 0.0
    assert theirs.parts["CUSTOM_BADPUT_EVENTS"] == pytest.approx(5.0)
    assert theirs.parts["OTHER"] == pytest.approx(0.0, abs=1e-6)


def test_the_library_knows_no_time_of_what_lies_between_steps_that_do_not_follow_each_other():
    told = Told().launch().steps(0, 10).say("step_ended").sleep(5.0).steps(12, 20).steps(5, 30)
    theirs = library(told.end())
    assert theirs.value == pytest.approx((5 + 25) / 58)
    assert theirs.parts["WASTED_PROGRESS_FROM_DISRUPTION"] == pytest.approx(5 + 8)
    assert theirs.parts["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"] == 0.0, "it went back in the same job"


def test_the_library_books_the_start_of_each_segment():
    told = Told().launch().steps(0, 1, 9.0).steps(2, 10).steps(1, 2, 5.0).steps(2, 10)
    assert library(told.end()).parts["PROGRAM_STARTUP"] == pytest.approx(8.0 + 4.0)
    assert library(Told().launch().steps(0, 1, 9.0).end()).parts["PROGRAM_STARTUP"] == 0.0


def test_published_measures_of_a_time_between_two_moments_are_of_that_time():
    told = Told().say("job_started").say("checkpoint_loaded", step=0)
    for first in range(0, STEPS, 10):
        told.steps(first, first + 10).say("checkpoint_saved", step=first + 9)
        told.say("checkpoint_saved", step=first + 9)  # by another tier
    told.say("job_ended").launch().say("checkpoint_loaded", step=99).steps(STEPS, 2 * STEPS)
    told.say("checkpoint_saved", step=199).say("job_ended")
    for begin_s, end_s, seeds in ((1000.0, 1010.0, 0.9), (1050.0, 1060.0, 0.0), (1100.0, 1210.0, 100 / 110)):
        account = balanced(told.ledger.account(between=(begin_s, end_s)))
        found = {one.name: one.value for one in account.definitions}
        assert found["resiliency_metrics goodput"] == pytest.approx(seeds), (begin_s, end_s)
        assert all(value is not None and value <= 1.0 for value in found.values()), (begin_s, end_s)
    assert account.steps.saved == 199 and account.steps.loaded == (99,)
    within = library(told.ledger.account(between=(1049.5, 1059.5)))
    assert within.value == pytest.approx(0.9), "nine started and ended"
    assert library(told.ledger.account(between=(1010.0, 1010.0))).value is None


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
    (struck,) = [cause for one in told.end().incidents for cause in one.injected]
    assert (struck.fault, struck.proof) == ("kill rank 1", "SIGKILL")
