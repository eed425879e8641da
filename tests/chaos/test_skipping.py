"""Effect. A step that one replica skips is dropped by all, however their code goes on, and its reason is recorded."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.control.outcome import Ending
from tests.chaos.group import Training, run
from tests.chaos.saboteur import Samples

pytestmark = pytest.mark.timeout(120)
STEPS = 6
REASON = "nothing to learn here"


def skips(session: Any, *, steps: int, asks: bool, reproducible: bool, **_: Any) -> list[list[float]]:
    """Rank 2 skips step 3 in the middle; with `asks` nobody applies what he knows to be skipped."""
    model = session.prepare(torch.nn.Linear(6, 1).double(), digest_steps=1, reproducible=reproducible)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session.track(model=model, optimizer=optimizer)
    seen = []
    for step in session.steps(session.batches(Samples(), batch_size=12, micro_batch_size=2), max_steps=steps):
        with step:
            for number, (_, x) in enumerate(step):
                if (step.index, session.rank, number) == (3, 2, 1):
                    step.skip(REASON)
                    break
                step.backward(model(x).square().mean())
            if not (asks and step.skipped):
                step.apply(optimizer)
        seen.append(model.weight.detach().flatten().tolist())
    return seen


@pytest.mark.parametrize(("asks", "reproducible"), [(False, True), (True, False)])
def test_a_step_that_one_skips_is_dropped_by_all(asks: bool, reproducible: bool, tmp_path: Path) -> None:
    work = partial(skips, asks=asks, reproducible=reproducible)
    story = run(tmp_path, steps=STEPS, training=Training(function=work))
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    seen = story.finished.value
    assert [seen[number] == seen[number - 1] for number in range(1, STEPS)] == [False, False, True, False, False]
    assert [report.commit.step for report in story.reports] == list(range(STEPS))
    assert [report.commit.step for report in story.reports if report.skipped] == [3]
    told = [line["report"] for line in story.journal if line.get("event") == "StepStable"]
    assert REASON in {report["skipped"] for report in told}
