"""Effect. A worker that stops, or hangs, or is out of reach, holds the others up for about a second: P1 to P4 hold."""

import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from elastic.actors.process_fleet import Child, ProcessFleet
from elastic.actors.stacks import NO_LIST
from elastic.control.outcome import Ending
from elastic.control.values import IncidentClass
from tests.chaos import recipes
from tests.chaos.group import FOREVER_S, LONG_S, STEPS, Story, Training, assert_promises, run
from tests.chaos.saboteur import Sabotage

pytestmark = pytest.mark.timeout(120)
STOP = {"step": 8, "signal": signal.SIGSTOP}


def struck(fleet: ProcessFleet, folder: Path) -> Child | None:
    """The child that a sabotage has hit."""
    pids = {int(mark.read_text() or 0) for mark in folder.glob("fired-*")}
    return next((child for child in fleet.children.values() if child.process.pid in pids), None)


def eventually(look: Callable[[], Child | None]) -> Child:
    deadline_s = time.monotonic() + LONG_S
    while time.monotonic() < deadline_s:
        found = look()
        if found is not None:
            return found
        time.sleep(0.01)
    raise AssertionError("it did not come about")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return run(tmp_path_factory.mktemp("clean") / "run")


STORIES = {
    "stopped in forward": [Sabotage(point="forward", rank=1, **STOP)],
    "stopped in forward, the leader": [Sabotage(point="forward", rank=0, **STOP)],
    "stopped between two buckets": [Sabotage(point="between-buckets", rank=1, **STOP)],
    "stopped after the last bucket": [Sabotage(point="reduced", rank=2, **STOP)],
    "stopped inside apply": [Sabotage(point="in-apply", rank=1, **STOP)],
    "stopped while forming after a loss": [
        Sabotage(point="forward", rank=2, step=4),
        Sabotage(point="forming", rank=1, generation=2, signal=signal.SIGSTOP),
    ],
    "hangs in forward": [Sabotage(point="stall", rank=1, step=8, delay_s=FOREVER_S)],
    "hangs, and none of its threads can answer": [Sabotage(point="clench", rank=1, step=8, delay_s=FOREVER_S)],
}


@pytest.mark.parametrize("plan", STORIES.values(), ids=STORIES.keys())
def test_hung(plan: list[Sabotage], clean: Story, tmp_path: Path) -> None:
    story = run(tmp_path, *plan, hang_floor_s=0.5)
    assert_promises(story, clean, *plan)
    assert_fenced_with_its_stack(story, begins_threads=plan[-1].point == "forming")


def test_who_hangs_and_cannot_answer_is_fenced_as_soon_where_another_one_is_lost(clean: Story, tmp_path: Path) -> None:
    """Not only when the time for an answer to the freeze is over."""
    plan = (
        Sabotage(point="clench", rank=1, step=8, delay_s=FOREVER_S),
        Sabotage(point="reduced", rank=2, step=8, delay_s=0.2),
    )
    story = run(tmp_path, *plan, hang_floor_s=0.5)
    assert_promises(story, clean, *plan)
    (fence,) = (line for line in story.journal if line.get("command") == "Fence" and "code" not in line["reason"])
    assert "has stood still" in fence["reason"] and "others have waited" in fence["reason"]


def assert_fenced_with_its_stack(story: Story, begins_threads: bool) -> None:
    """Or, where it begins and ends threads at that place, with the reason why there is none."""
    (hung,) = (one for one in story.finished.state.incidents if one.kind is IncidentClass.WORKER_HUNG)
    (fence,) = (line for line in story.journal if line.get("command") == "Fence")
    assert hung.culprits[-1:] == (fence["worker"],) and "has stood still" in fence["reason"]
    (stack,) = (line["stack"] for line in story.journal if line.get("event") == "StackDumped")
    assert "elastic-train" in stack and "saboteur.py" in stack or (begins_threads and stack == NO_LIST)
    assert any(stack in evidence for evidence in hung.evidence)


def test_who_waits_in_a_collective_of_ones_own_is_no_culprit(tmp_path: Path) -> None:
    """Victims in the body of a step look like culprits, but for what they wait for."""
    plan = [Sabotage(point="stall", rank=2, step=8, delay_s=FOREVER_S)]
    story = run(tmp_path, *plan, training=Training(function=partial(recipes.train, recipe="Talking")), hang_floor_s=0.5)
    assert story.fired == {sabotage.name for sabotage in plan}
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    (victim,) = story.killed
    (fence,) = (line["worker"] for line in story.journal if line.get("command") == "Fence")
    assert fence == victim
    assert story.finished.state.world_sizes == (3, 2)


def test_a_hang_in_an_evaluation_ends_with_the_limit_of_evaluations(tmp_path: Path) -> None:
    """Which is longer than that of a step: others wait for it at the next door."""
    plan = [Sabotage(point="evaluating", rank=1, step=6, delay_s=FOREVER_S)]
    work = Training(function=partial(recipes.train, recipe="Evaluated"))
    story = run(tmp_path, *plan, training=work, hang_floor_s=0.5, door_timeout_s=3.0)
    assert story.fired == {plan[0].name}, "nobody has hung"
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    (victim,) = story.killed
    (fence,) = (line for line in story.journal if line.get("command") == "Fence")
    assert fence["worker"] == victim and "evaluating" in fence["reason"], fence
    assert story.finished.state.world_sizes == (3, 2)
    assert {line["step"] for line in story.of("committed")} == set(range(STEPS))


def test_a_worker_out_of_reach_is_left_behind(clean: Story, tmp_path: Path) -> None:
    """Nobody can prove its death, and nobody waits for the end of its lease."""
    plan = [Sabotage(point="forward", rank=1, **STOP)]

    def cut(fleet: ProcessFleet, folder: Path) -> None:
        fleet.cut_off(eventually(lambda: struck(fleet, folder)).node)

    story = run(tmp_path, *plan, hang_floor_s=0.5, lease_s=300.0, during=cut)
    (incident,) = story.finished.state.incidents
    assert incident.kind is IncidentClass.HOST_SILENT
    (left,) = incident.culprits
    assert story.finished.state.workers[left].standing.value == "exiled"
    assert story.finished.state.world_sizes == (3, 2)
    assert_promises(story, clean, *plan, killed=0)


def test_a_slow_phase_that_was_announced_is_nobodys_fault(clean: Story, tmp_path: Path) -> None:
    plan = [Sabotage(point="slow", rank=1, step=8, delay_s=1.5)]
    story = run(tmp_path, *plan, hang_floor_s=0.5)
    assert_promises(story, clean, *plan, killed=0)
    assert story.finished.state.incidents == ()


def test_who_waits_in_a_collective_is_no_culprit(tmp_path: Path) -> None:
    plan = [Sabotage(point="slow", rank=1, step=8, delay_s=2.0)]
    story = run(tmp_path, *plan, hang_floor_s=0.5, training=Training(function=partial(recipes.train, recipe="Talking")))
    assert story.fired == {plan[0].name}
    assert story.finished.outcome.ending is Ending.SUCCEEDED
    assert story.finished.state.incidents == ()


@pytest.mark.slow
def test_a_worker_that_is_told_of_its_end_wastes_no_attempt(clean: Story, tmp_path: Path) -> None:
    """SIGTERM, and SIGKILL a while later: by then it has left, at the end of a step."""
    plan = [Sabotage(point="forward", rank=1, step=3, signal=signal.SIGTERM)]

    def kill_later(fleet: ProcessFleet, folder: Path) -> None:
        child = eventually(lambda: struck(fleet, folder))
        eventually(lambda: child if '"Dismiss"' in (folder / "run" / "journal.jsonl").read_text() else None)
        child.process.kill()

    story = run(tmp_path, *plan, steps=60, pause_s=0.01, during=kill_later)
    (incident,) = story.finished.state.incidents
    assert incident.kind is IncidentClass.DEPARTURE
    assert story.finished.state.world_sizes == (3, 2)
    attempts = [{(line["step"], line["generation"]) for line in story.of(event)} for event in ("consumed", "committed")]
    assert attempts[0] == attempts[1]
    clean_of_60 = run(tmp_path / "clean", steps=60, pause_s=0)
    assert_promises(story, clean_of_60, *plan, steps=60)
