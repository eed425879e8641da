"""Effect. C2: everybody dies, at each point of a snapshot and a restore: what is restored is whole, and as promised."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic.actors.supervisor import Supervisor
from elastic.control import events as ev
from elastic.control.commands import Command
from elastic.control.outcome import Ending
from elastic.control.state import RunState
from elastic.settings import Checkpoint, Interval
from tests.chaos import crashing
from tests.chaos.group import STEPS, Story, Training, assert_same_answer, committed_samples, read, run, thinned
from tests.chaos.saboteur import BATCH, Sabotage
from tests.crash_matrix import PROCESS
from tests.effects.helpers import LONG_S, child, eventually, process_state
from tests.lines import whole_lines

pytestmark = pytest.mark.timeout(120)
AT = 7


def training(folder: Path, keep: bool = False) -> Training:
    memory = folder / "memory"
    memory.mkdir(parents=True, exist_ok=True)
    checkpoint = Checkpoint(local_interval=Interval(steps=1), memory=str(memory))
    at_end = (lambda name: None) if keep else None
    return Training(function=crashing.train, checkpoint=checkpoint, at_end=at_end)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return run(tmp_path_factory.mktemp("clean"), replicas=(1, 1))


def restored_steps(story: Story) -> list[int]:
    return [line["commit"]["step"] for line in story.journal if line.get("event") == "Restored"]


def promised(journal: list[dict[str, Any]], before_s: float) -> int:
    """The newest step that was told to be sealed until then."""
    told = [line for line in journal if line.get("event") == "ShardStaged" and line["t"] <= before_s]
    return max((line["commit"]["step"] for line in told), default=-1)


def assert_restored_as_promised(story: Story, clean: Story, first_restore_s: float) -> None:
    """The fault-free answer, from a whole committed step that is no older than what was told of."""
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    assert_same_answer(story, clean)
    step = restored_steps(story)[0]
    assert step >= promised(story.journal, first_restore_s)
    assert all(later >= step for later in restored_steps(story))


def assert_exactly_once(story: Story, clean: Story) -> None:
    assert committed_samples(story) == committed_samples(clean)
    assert sum(committed_samples(story).values()) == STEPS * BATCH


STAGING = {point: [Sabotage(point=point, rank=0, step=AT)] for point in ("unstamped", "staging", "copying")}
STAGING |= {point: [Sabotage(point=point, rank=0, step=AT)] for point in ("stamped", "summing")}
RESTORING = {
    point: [Sabotage(point="forward", rank=0, step=AT), Sabotage(point=point, rank=0, generation=generation)]
    for point, generation in (("reading", 0), ("installing", 0), ("installed", 0), ("forming", 2))
}
SEALED = {"stamped": (AT,), "copying": range(AT + 1)}  # what is being copied may be stable, and be sealed meanwhile


@pytest.mark.parametrize("plan", thinned(STAGING, 5))
def test_c02_killed_while_a_step_is_staged(plan: list[Sabotage], tmp_path: Path, clean: Story) -> None:
    story = run(tmp_path, *plan, replicas=(1, 1), slots=3, training=training(tmp_path))
    assert story.fired == {sabotage.name for sabotage in plan} and len(story.killed) == 1
    assert_restored_as_promised(story, clean, death_s(story))
    assert_exactly_once(story, clean)
    (step,) = set(restored_steps(story))
    assert step in SEALED.get(plan[0].point, range(AT))


@pytest.mark.parametrize("plan", thinned(RESTORING, 4))
def test_c02_killed_while_a_step_is_restored(plan: list[Sabotage], tmp_path: Path, clean: Story) -> None:
    story = run(tmp_path, *plan, replicas=(1, 1), slots=4, training=training(tmp_path))
    assert story.fired == {sabotage.name for sabotage in plan}
    assert_restored_as_promised(story, clean, death_s(story))
    assert_exactly_once(story, clean)


def death_s(story: Story) -> float:
    """When the first worker was known to be dead."""
    return min(line["t"] for line in story.journal if line.get("event") == "WorkerDead")


class Failing(Supervisor):
    """Raises the next time it is asked after it has heard of a few steps."""

    def observe(self, events: list[tuple[float, ev.Event]]) -> tuple[tuple[Command, ...], RunState]:
        if self._state.published >= AT - 4:
            raise RuntimeError("the supervisor is gone")
        return super().observe(events)


@pytest.mark.parametrize(
    "plan",
    thinned({"whole": [], "killed in its restore": [Sabotage(point="reading", rank=0)]}, 2),
)
def test_c02_the_driver_dies_and_another_life_goes_on(plan: Any, tmp_path: Path, clean: Story) -> None:
    with pytest.raises(RuntimeError, match="the supervisor is gone"):
        run(tmp_path, replicas=(1, 1), supervisor=Failing, pause_s=0.03, training=training(tmp_path, keep=True))
    lines = whole_lines(tmp_path / "run" / "journal.jsonl")
    assert promised(lines, lines[-1]["t"]) >= 0, "the first life has sealed nothing"
    for steps in tmp_path.glob("*.jsonl"):
        steps.unlink()
    second = run(tmp_path, *plan, replicas=(1, 1), slots=3, training=training(tmp_path))
    assert second.finished.state.settings.incarnation == 2
    assert_restored_as_promised(second, clean, lines[-1]["t"])
    begins_after = restored_steps(second)[-1]
    assert [report.commit.step for report in second.reports] == list(range(begins_after + 1, STEPS))


def test_what_is_played_here_is_what_the_matrix_says() -> None:
    assert {(point, victim) for point in STAGING | RESTORING for victim in ("trainer", "driver")} == PROCESS


DRIVER = "driver"

KILLED_STAGING = {point: [replace(sabotage, victim=DRIVER) for sabotage in plan] for point, plan in STAGING.items()}
KILLED_RESTORING = {point: [first, replace(second, victim=DRIVER)] for point, (first, second) in RESTORING.items()}


def drive(pipe: Any, folder: Path, plan: list[Sabotage]) -> None:
    (folder / f"{DRIVER}.pid").write_text(str(os.getpid()))
    run(folder, *plan, replicas=(1, 1), slots=3, pause_s=0.03, training=training(folder, keep=True))


def is_gone(pid: int) -> bool:
    try:
        return process_state(pid) == "Z"
    except FileNotFoundError:
        return True


def first_life(folder: Path, plan: list[Sabotage], begin: Any = drive) -> list[dict[str, Any]]:
    """A driver that is killed, until nobody of its life is left; returns its journal."""
    with child(begin, folder, plan, daemon=False) as (process, _):
        process.join(2 * LONG_S)
        assert process.exitcode == -signal.SIGKILL, "the driver was not killed"
    for line in read(folder.glob("*.jsonl")):
        eventually(lambda pid=line["pid"]: is_gone(pid), "the workers are gone")
    for steps in folder.glob("*.jsonl"):
        steps.unlink()
    return whole_lines(folder / "run" / "journal.jsonl")


def next_life(folder: Path, clean: Story, plan: list[Sabotage]) -> int:
    """Kill the driver, and go on; returns the step that the next one has restored."""
    told = first_life(folder, plan)
    ended_s = told[-1]["t"]
    assert promised(told, ended_s) >= 0, "nothing was sealed that could be lost"
    story = run(folder, replicas=(1, 1), slots=3, training=training(folder))
    assert story.fired == {sabotage.name for sabotage in plan}, "a sabotage did not strike"
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    assert_same_answer(story, clean)
    steps = restored_steps(replace(story, journal=[line for line in story.journal if line["t"] > ended_s]))
    assert min(steps) >= promised(told, ended_s)
    assert [report.commit.step for report in story.reports] == list(range(steps[-1] + 1, STEPS))
    return steps[0]


@pytest.mark.parametrize("plan", thinned(KILLED_STAGING, 5))
def test_c02_the_driver_is_killed_while_a_step_is_staged(plan: list[Sabotage], tmp_path: Path, clean: Story) -> None:
    assert next_life(tmp_path, clean, plan) in SEALED.get(plan[0].point, range(AT))


@pytest.mark.parametrize("plan", thinned(KILLED_RESTORING, 5))
def test_c02_the_driver_is_killed_while_a_step_is_restored(plan: list[Sabotage], tmp_path: Path, clean: Story) -> None:
    next_life(tmp_path, clean, plan)
