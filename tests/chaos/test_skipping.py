"""Effect. A step that one replica skips, or that ends whoever computes it, is dropped by all, and why is recorded."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.control.outcome import Ending
from elastic.control.remediation import Kind
from elastic.policies import Ladder
from elastic.train.step import POISONED
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


def poisoned(session: Any, *, steps: int, **_: Any) -> list[list[float]]:
    """Micro-batch 4 of step 3 ends the process, whoever computes it."""
    model = session.prepare(torch.nn.Linear(6, 1).double(), digest_steps=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session.track(model=model, optimizer=optimizer)
    seen = []
    for step in session.steps(session.batches(Samples(), batch_size=12, micro_batch_size=2), max_steps=steps):
        with step:
            for micro_batch, (_, x) in zip(step.dealt, step, strict=True):
                if (step.index, micro_batch.number) == (3, 4):
                    os._exit(11)
                step.backward(model(x).square().mean())
            step.apply(optimizer)
        seen.append(model.weight.detach().flatten().tolist())
    return seen


def poisoned_run(tmp_path: Path, poison: Kind) -> Any:
    training = Training(function=poisoned, policy=Ladder(poison=poison))
    return run(tmp_path, replicas=(1, 4), slots=4, steps=STEPS, training=training, poison_deaths=2)


def died(story: Any) -> set[str]:
    """Who has ended itself."""
    return {line["worker"] for line in story.journal if "code 11" in str(line.get("proof"))}


def test_a_micro_batch_that_ends_whoever_computes_it_is_named(tmp_path: Path) -> None:
    story = poisoned_run(tmp_path, Kind.GIVE_UP)
    assert len(died(story)) == 2
    assert story.finished.outcome.ending is Ending.NO_PROGRESS
    assert "micro-batch 4 of step 3 was in flight when" in story.finished.outcome.message


def test_its_step_is_dropped_where_the_policy_wants_that(tmp_path: Path) -> None:
    story = poisoned_run(tmp_path, Kind.LEAVE_OUT)
    assert len(died(story)) == 2
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    assert [report.commit.step for report in story.reports] == list(range(STEPS))
    assert {report.commit.step: report.skipped for report in story.reports if report.skipped} == {3: POISONED}
