"""Effect. Planned stops: who goes on has connected before it, and nothing is lost where that goes wrong."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.actors.process_fleet import ProcessFleet
from elastic.control.outcome import Ending
from elastic.control.values import IncidentClass
from tests.chaos import gangs
from tests.chaos.group import (
    LONG_S,
    Story,
    Training,
    assert_exactly_once,
    assert_no_stable_step_lost,
    assert_same_answer,
    run,
)
from tests.chaos.saboteur import Sabotage
from tests.chaos.test_gangs import assert_gang_promises

pytestmark = pytest.mark.timeout(180)
# Slow: what is to happen in the midst of the steps does so on a busy machine, too.
PACE: dict[str, Any] = {"steps": 30, "pause_s": 0.05, "connect_ahead_s": 20.0}
GANGS = Training(function=gangs.train, width=2)


def told(*workers: str) -> Callable[[ProcessFleet, Path], None]:
    """These are told, in the middle of it, that they will be ended."""

    def during(fleet: ProcessFleet, folder: Path) -> None:
        wait_for_steps(folder)
        for worker in workers:
            os.kill(fleet.children[worker].process.pid, signal.SIGTERM)

    return during


def grows(fleet: ProcessFleet, folder: Path) -> None:
    wait_for_steps(folder)
    fleet.add_slot("node9")


def wait_for_steps(folder: Path) -> None:
    deadline_s = time.monotonic() + 3 * LONG_S
    while sum(path.read_text().count('"committed"') for path in folder.glob("w*.jsonl")) < 10:
        assert time.monotonic() < deadline_s, "nobody trains"
        time.sleep(0.02)


def assert_nothing_lost(story: Story, clean: Story) -> None:
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    assert_no_stable_step_lost(story, PACE["steps"])
    assert_same_answer(story, clean)
    assert_exactly_once(story, clean, PACE["steps"])


def forms(story: Story) -> list[dict[str, Any]]:
    return [line["view"] for line in story.journal if line.get("command") == "Form"]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return run(tmp_path_factory.mktemp("clean") / "run", **PACE)


def test_when_one_leaves_the_others_have_connected(clean: Story, tmp_path: Path) -> None:
    story = run(tmp_path, during=told("w1"), **PACE)
    assert_nothing_lost(story, clean)
    assert [incident.kind for incident in story.finished.state.incidents] == [IncidentClass.DEPARTURE]
    (first, second, *_) = forms(story)
    assert len(second["members"]) == len(first["members"]) - 1
    assert (first["is_connected"], second["is_connected"]) == (False, True)


def test_a_joiner_has_connected_with_the_others_when_they_stop_for_it(clean: Story, tmp_path: Path) -> None:
    story = run(tmp_path, slots=2, during=grows, **{**PACE, "steps": 150, "pause_s": 0.01})
    assert [report.commit.step for report in story.reports] == list(range(150))
    last = forms(story)[-1]
    assert len(last["members"]) == 3 and last["behind"] == [2] and last["is_connected"]
    assert len({line["digest"] for line in story.of("finished")}) == 1


def test_replicas_of_several_workers_connect_ahead_too(tmp_path: Path) -> None:
    whole = run(tmp_path / "clean", slots=6, training=GANGS, **PACE)
    story = run(tmp_path / "run", slots=6, training=GANGS, during=told("w2"), **PACE)
    assert_gang_promises(story, whole, steps=PACE["steps"])
    assert [view["is_connected"] for view in forms(story)][:2] == [False, True]


def test_one_that_dies_while_the_others_connect_costs_no_step(clean: Story, tmp_path: Path) -> None:
    """It is one of those who were to go on: all are stopped at once, and whoever is left connects anew."""
    kill = Sabotage(point="forming", rank=1, generation=2)
    story = run(tmp_path, kill, slots=4, during=told("w1"), **PACE)
    assert story.fired == {kill.name} and len(story.killed) == 1
    assert_nothing_lost(story, clean)
    assert not forms(story)[1]["is_connected"]
