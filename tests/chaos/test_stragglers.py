"""Effect. A worker that is slow and right: dealt less, or replaced; no step, sample or attempt is lost over it."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from elastic.control.remediation import Kind
from elastic.control.values import IncidentClass
from elastic.policies import Ladder
from tests.chaos.group import (
    LONG_S,
    Story,
    Training,
    assert_exactly_once,
    assert_no_stable_step_lost,
    assert_same_answer,
    run,
)
from tests.chaos.saboteur import train

pytestmark = pytest.mark.timeout(180)

STEPS = 60
SLOW = {"slow": {"w1": 0.05}}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The run without a straggler."""
    return run(tmp_path_factory.mktemp("clean") / "run", steps=STEPS, pause_s=0)


def assert_nothing_lost(story: Story, clean: Story, steps: int = STEPS) -> None:
    assert_no_stable_step_lost(story, steps)
    assert_same_answer(story, clean)
    assert_exactly_once(story, clean, steps)
    attempts = Counter((line["worker"], line["step"]) for line in story.of("committed"))
    consumed = {(line["worker"], line["step"], line["generation"]) for line in story.of("consumed")}
    assert len(consumed) == len({(worker, step) for worker, step, _ in consumed}), "an attempt was lost"
    assert set(attempts.values()) == {1}
    assert story.killed == set()


def dealt(story: Story, worker: str, generation: int, step: int) -> int:
    """Micro-batches that a worker computed in a step."""
    place = {"worker": worker, "generation": generation, "step": step}
    return sum(all(line[name] == value for name, value in place.items()) for line in story.of("consumed"))


def test_a_straggler_is_dealt_less(clean, tmp_path):
    policy = Ladder(straggler=Kind.REDEAL)
    story = run(tmp_path, steps=STEPS, pause_s=0.002, slow_steps=5, training=Training(options=SLOW, policy=policy))
    first = story.finished.state.incidents[0]
    assert (first.kind, first.culprits) == (IncidentClass.STRAGGLER, ("w1",))
    assert story.finished.state.world_sizes == (3, 3)
    assert {dealt(story, worker, 1, 3) for worker in ("w0", "w1", "w2")} == {2}
    assert dealt(story, "w1", 2, STEPS - 1) == 1
    assert sum(dealt(story, worker, 2, STEPS - 1) for worker in ("w0", "w2")) == 5
    assert_nothing_lost(story, clean)


def train_with_w3_as_the_spare(session: Any, *, folder: Path, **options: Any) -> str:
    """Whoever comes last to the door waits there; the slow one must not be it."""
    journal, deadline_s = folder / "run" / "journal.jsonl", time.monotonic() + LONG_S
    while session.worker == "w3" and journal.read_text().count('"WorkerParked"') < 3:
        assert time.monotonic() < deadline_s, "the others have not come"
        time.sleep(0.02)
    return train(session, folder=folder, **options)


@pytest.mark.slow
def test_a_straggler_makes_room_for_a_spare(tmp_path, tmp_path_factory):
    steps = 100
    policy = Ladder(straggler=Kind.SWAP)
    limits = {"slow_steps": 30, "slow_ratio": 1.4}
    story = run(
        tmp_path,
        steps=steps,
        slots=4,
        spares=1,
        pause_s=0.01,
        training=Training(function=train_with_w3_as_the_spare, options=SLOW, policy=policy, parked=4),
        **limits,
    )
    clean = run(tmp_path_factory.mktemp("clean") / "run", steps=steps, pause_s=0)
    swapped = [one for one in story.finished.state.incidents if one.decision.startswith("swap")]
    assert [one.culprits for one in swapped] == [("w1",)]
    assert "w1" not in {line["worker"] for line in story.of("finished")}
    assert_nothing_lost(story, clean, steps)
