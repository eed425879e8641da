"""Effect. A loop that is left: by all at once, or by one too early; and one who is slow on the way to its end."""

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.control.outcome import Ending
from tests.chaos.group import Training, run
from tests.chaos.saboteur import Samples

pytestmark = pytest.mark.timeout(120)
STEPS = 8


def leaves(session: Any, *, early: int, steps: int, reproducible: bool = False, late_s: float = 0.0, **_: Any) -> None:
    """The replica of rank `early` leaves the loop at step 3; another one is slow after the last step."""
    model = session.prepare(torch.nn.Linear(6, 1), reproducible=reproducible)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session.track(model=model, optimizer=optimizer)
    for step in session.steps(session.batches(Samples(), batch_size=12, micro_batch_size=2), max_steps=steps):
        if step.index == 3 and session.rank == early:
            break
        with step:
            for _, x in step:
                step.backward(model(x.float()).square().mean())
            step.apply(optimizer)
        if step.index == steps - 1 and session.rank == 1:
            time.sleep(late_s)


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("early", [0, 2])
def test_who_leaves_the_loop_too_early_ends_the_run_with_a_sentence(
    early: int, reproducible: bool, tmp_path: Path
) -> None:
    """Sums in order exchange blocks, and gloo aborts a process whose blocks do not fit."""
    work = partial(leaves, early=early, reproducible=reproducible)
    story = run(tmp_path, steps=STEPS, training=Training(function=work))
    assert story.finished.outcome.ending is Ending.TRAIN_FN_RAISED
    assert "ConservationError" in story.finished.outcome.message
    assert story.finished.state.incidents == ()


class Goal:
    """As docs/steps.md has it."""

    is_reached = False

    def state_dict(self) -> dict[str, bool]:
        return {"is_reached": self.is_reached}

    def load_state_dict(self, state: dict[str, bool]) -> None:
        self.is_reached = state["is_reached"]


def stops(session: Any, *, last: int, steps: int, folder: Path, **_: Any) -> None:
    """The loop is left behind step `last`, which the replica of rank 1 dies in, once it has applied it."""
    model = session.prepare(torch.nn.Linear(6, 1))
    optimizer, goal = torch.optim.SGD(model.parameters(), lr=0.1), Goal()
    session.track(model=model, optimizer=optimizer, goal=goal)
    for step in session.steps(session.batches(Samples(), batch_size=12, micro_batch_size=2), max_steps=steps):
        if goal.is_reached:
            break
        with step:
            for _, x in step:
                step.backward(model(x.float()).square().mean())
            step.apply(optimizer)
            goal.is_reached = step.index == last
            if goal.is_reached and session.rank == 1 and not (folder / "fired").exists():
                (folder / "fired").touch()
                os.kill(os.getpid(), signal.SIGKILL)


def test_who_is_healed_to_the_last_step_leaves_the_loop_with_the_others(tmp_path: Path) -> None:
    work = partial(stops, last=5)
    story = run(tmp_path, steps=STEPS, replicas=(3, 3), slots=4, spares=1, training=Training(function=work, parked=4))
    assert (tmp_path / "fired").exists()
    assert story.finished.outcome.ending is Ending.SUCCEEDED
    assert story.finished.state.published == 5
    assert story.finished.state.world_sizes == (3, 3), "the spare takes part in the end"


def test_who_waits_for_the_end_is_no_culprit(tmp_path: Path) -> None:
    work = partial(leaves, early=-1, late_s=3.0)
    story = run(tmp_path, steps=STEPS, hang_floor_s=0.3, door_timeout_s=2.0, training=Training(function=work))
    assert story.finished.outcome.ending is Ending.SUCCEEDED
    (incident,) = story.finished.state.incidents
    assert incident.culprits == ("w1",)
