"""A micro-batch with which one worker dies after the other: named, and the run ended, or its step left out."""

from dataclasses import replace

import pytest

from elastic.control import events as ev
from elastic.control.flight import Flying, Reading
from elastic.control.outcome import Ending
from elastic.control.poison import KEPT, Flown, after, noted, worst
from elastic.control.refusing import malformed
from elastic.control.remediation import Kind, Remediation
from elastic.control.state import Phase
from elastic.policies import CostAware, ExitOnNotice, HotSwapFirst, Ladder, ShrinkFirst
from elastic.policies.table import BUILT_IN
from tests.pure.bare_controller import BareController

STEP = 5


def reading(worker: str, micro_batch: int, generation: int = 1, step: int = STEP) -> Reading:
    where = {"generation": generation, "step": step, "phase": Flying.COMPUTING, "micro_batch": micro_batch}
    return Reading(worker=worker, commits=step, still_s=0.0, state="R", **where)


def die_with(ws: BareController, micro_batch: int, held: int = STEP - 1, late: bool = False) -> str:
    """The last member dies with a micro-batch of step 5 in hand; who is left goes on.

    Args:
        held: the step that the others hold. late: somebody else has the proof first, and the others have gone on.
    """
    worker, *others = reversed(ws.members)
    death = ev.WorkerDead(worker=worker, proof="gone", last=reading(worker, micro_batch, ws.generation))
    ws.die(worker) if late else ws.feed(death)
    for other in others:
        ws.answer(other, held)
    if ws.phase is Phase.FORMING:
        ws.form()
    if late:
        ws.feed(death)
    return worker


def running(*, poison: Kind = Kind.GIVE_UP, **limits: int) -> BareController:
    ws = BareController((1, 6), policy=Ladder(poison=poison), **limits).run()
    ws.stable(STEP - 1)
    return ws


def test_the_third_death_with_one_micro_batch_ends_the_run_and_names_it():
    ws = running()
    dead = [die_with(ws, 2), die_with(ws, 2)]
    assert ws.phase is Phase.RUNNING
    dead.append(die_with(ws, 2, late=True))
    assert ws.phase is Phase.RUNNING, "what comes late counts with the next one"
    dead.append(die_with(ws, 2))
    assert ws.state.outcome is not None and ws.state.outcome.ending is Ending.NO_PROGRESS
    assert f"micro-batch 2 of step 5 was in flight when {', '.join(dead)} died" in ws.state.outcome.message
    assert "Ladder(poison=Kind.LEAVE_OUT)" in ws.state.outcome.message


@pytest.mark.parametrize("policy", BUILT_IN.values(), ids=BUILT_IN)
def test_every_policy_of_ours_ends_it(policy):
    ws = BareController((1, 6), policy=policy, poison_deaths=2).run()
    ws.stable(STEP - 1)
    die_with(ws, 2)
    die_with(ws, 2)
    assert ws.state.outcome is not None and "micro-batch 2 of step 5" in ws.state.outcome.message


@pytest.mark.parametrize("policy", [HotSwapFirst, ShrinkFirst, CostAware, ExitOnNotice])
def test_whatever_comes_first_its_step_is_left_out_where_that_is_wanted_otherwise(policy):
    otherwise = Ladder(poison=Kind.LEAVE_OUT)
    ws = BareController((1, 6), policy=policy(otherwise=otherwise), poison_deaths=2).run()
    ws.stable(STEP - 1)
    die_with(ws, 2)
    die_with(ws, 2)
    assert ws.phase is Phase.RUNNING and ws.view.left_out == (STEP,)


def test_its_step_is_left_out_by_all_if_that_is_wanted():
    ws = running(poison=Kind.LEAVE_OUT, poison_deaths=2)
    die_with(ws, 2)
    assert ws.view.left_out == ()
    die_with(ws, 2)
    assert ws.phase is Phase.RUNNING and ws.view.left_out == (STEP,)
    assert ws.state.incidents[-1].decision.startswith("leave the step out: micro-batch 2 of step 5")
    assert ws.state.flown == ()
    die_with(ws, -1)
    assert ws.view.left_out == (STEP,), "whoever joins, or tries again, leaves it out, too"


def test_who_wants_it_without_a_cause_is_told_so():
    def always(incident, view):
        return Remediation(kind=Kind.LEAVE_OUT, reason="to see")

    ws = BareController((1, 3), policy=always).run()
    die_with(ws, -1)
    assert ws.view.left_out == ()
    assert "no micro-batch is known to be the cause" in ws.state.incidents[-1].decision


def test_a_committed_step_acquits_its_micro_batches():
    ws = running(poison_deaths=2)
    die_with(ws, 2)
    ws.stable(STEP)
    assert ws.state.flown == ()
    die_with(ws, 2, held=STEP)
    assert ws.phase is Phase.RUNNING


def test_deaths_with_different_micro_batches_are_no_series():
    ws = running(poison_deaths=2)
    for micro_batch in (0, 1, 2):
        die_with(ws, micro_batch)
    assert ws.phase is Phase.RUNNING and len(ws.state.flown) == 3


def test_a_gang_counts_once_an_attempt():
    flown: tuple[Flown, ...] = ()
    for worker, gang, generation in (("w0", 0, 1), ("w1", 0, 1), ("w2", 1, 1), ("w3", 0, 2)):
        flown = noted(flown, worker, gang, reading(worker, 4, generation))
    assert [one.worker for one in flown] == ["w0", "w2", "w3"]
    found = worst(flown)
    assert found is not None and found.workers == ("w0", "w2", "w3")


def test_of_several_the_first_with_most_deaths_is_meant():
    flown = (Flown(5, 1, 1, 0, "a"), Flown(5, 3, 1, 1, "b"), Flown(5, 3, 2, 2, "c"), Flown(5, 1, 2, 3, "d"))
    found = worst(flown)
    assert found is not None and (found.micro_batch, found.workers) == (1, ("a", "d"))
    assert worst(()) is None


def test_a_wave_of_deaths_is_kept_within_bounds():
    flown: tuple[Flown, ...] = ()
    for number in range(KEPT + 10):
        flown = noted(flown, f"w{number}", number, reading(f"w{number}", number))
    assert len(flown) == KEPT and flown[-1].worker == f"w{KEPT + 9}"
    assert after(flown, STEP - 1) == flown and after(flown, STEP) == ()


@pytest.mark.parametrize("seen", [{"micro_batch": "two"}, {"step": None}, {"generation": 1.5}])
def test_a_page_that_says_nonsense_is_refused(seen):
    last = replace(reading("w5", 2), **seen)
    assert "last=" in malformed(ev.WorkerDead(worker="w5", proof="gone", last=last))
    assert malformed(ev.WorkerDead(worker="w5", proof="gone", last=reading("w5", 2))) == ""
