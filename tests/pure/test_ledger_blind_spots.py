"""What the best-known library takes for progress, in journals of ours; test_ledger_trainers.py has theirs beside it."""

from collections.abc import Callable

import pytest

from tests.pure.test_ledger import STEP_S, C, Journal, near, started

START_S, STEPS = 10.0, 100
USEFUL_S = STEPS * STEP_S


def resubmitted(back_to: int | None = None) -> Journal:
    """After an outage of 200 s, from there on."""
    journal = started().steps(STEPS // 2 - 20).sleep(200.0).begin().sleep(START_S)
    journal.form(2, took_s=0.0, back_to=back_to)
    return journal.steps(STEPS - 1 - journal.step)


@pytest.mark.parametrize(
    ("run", "lost_s"),
    [
        pytest.param(lambda: started().steps(STEPS - 20), {}, id="clean"),
        pytest.param(
            resubmitted, {C.BETWEEN_INCARNATIONS: 200.0, C.WORKER_START: START_S}, id="outage, goes on exactly there"
        ),
        pytest.param(
            lambda: resubmitted(back_to=39),
            {C.BETWEEN_INCARNATIONS: 200.0, C.WORKER_START: START_S, C.REDONE: 10 * STEP_S},
            id="outage, ten steps back",
        ),
        pytest.param(
            lambda: started().steps(30).steps(50, 3 * STEP_S), {C.STRAGGLER_DRAG: USEFUL_S}, id="half is slow"
        ),
        pytest.param(lambda: started().steps(30).sleep(600.0).steps(50), {C.DETECTING: 600.0}, id="hang"),
    ],
)
def test_what_is_no_progress_is_not_booked_as_progress(run: Callable[[], Journal], lost_s: dict[C, float]) -> None:
    account, clean = run().account(), started().steps(STEPS - 20).account()
    assert account.wall_s == near(START_S + USEFUL_S + sum(lost_s.values()))
    assert account.wall_seconds[C.PRODUCTIVE] == near(USEFUL_S) and account.steps.kept == STEPS
    assert account.goodput == pytest.approx(USEFUL_S / account.wall_s)
    more_s = {
        category: seconds - clean.wall_seconds.get(category, 0.0) for category, seconds in account.wall_seconds.items()
    }
    assert {category: near(seconds) for category, seconds in more_s.items() if abs(seconds) > 1e-6} == lost_s
