"""Effect. What a policy wants is done to real processes: no step, sample or process is lost over it."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.actors.process_fleet import ProcessFleet
from elastic.control.outcome import Ending
from elastic.control.remediation import ClusterView, Kind, Policy, Remediation
from elastic.control.values import Incident
from elastic.policies import ExitOnNotice
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

pytestmark = pytest.mark.timeout(180)

STEPS = 60
KILL = Sabotage(point="forward", rank=1, step=3)


def wants(kind: Kind, **more: Any) -> Policy:
    def policy(incident: Incident, view: ClusterView) -> Remediation:
        return Remediation(kind=kind, reason="by choice", **more)

    return policy


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return run(tmp_path_factory.mktemp("clean") / "run", steps=STEPS, pause_s=0)


def offering(*nodes: str) -> Callable[[ProcessFleet, Path], None]:
    """More places for workers, once the first three are taken."""

    def during(fleet: ProcessFleet, folder: Path) -> None:
        deadline_s = time.monotonic() + LONG_S
        while len(fleet.children) < 3 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        for node in nodes:
            fleet.add_slot(node)

    return during


def placed(story: Story) -> dict[str, str]:
    return {line["worker"]: line["node"] for line in story.journal if line.get("event") == "WorkerPlaced"}


def killed_at(story: Story) -> tuple[str, str]:
    """The worker that was killed, and its node."""
    (worker,) = story.killed
    return worker, placed(story)[worker]


def assert_nothing_lost(story: Story, clean: Story) -> None:
    assert story.fired == {KILL.name}, "the sabotage did not strike"
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    assert_no_stable_step_lost(story, STEPS)
    assert_same_answer(story, clean)
    assert_exactly_once(story, clean, STEPS)


@pytest.mark.slow
def test_no_worker_is_placed_on_a_node_in_quarantine(clean, tmp_path):
    """The node of the killed worker has room again, and comes first."""
    nodes = ("node0", "node1", "node2", "node9")
    training = Training(policy=wants(Kind.QUARANTINE, for_s=1000.0))
    story = run(tmp_path, KILL, steps=STEPS, pause_s=0.01, training=training, during=offering(*nodes))
    worker, node = killed_at(story)
    assert story.finished.state.incidents[0].decision.startswith("quarantine")
    later = {name: at for name, at in placed(story).items() if name not in ("w0", "w1", "w2")}
    assert later and node not in later.values(), f"{worker} was on {node}"
    assert_nothing_lost(story, clean)


@pytest.mark.slow
def test_a_restarted_worker_comes_back_to_its_node(clean, tmp_path):
    nodes = ("node8", "node0", "node1", "node2")
    training = Training(policy=wants(Kind.RESTART))
    story = run(tmp_path, KILL, steps=STEPS, pause_s=0.01, training=training, during=offering(*nodes))
    _, node = killed_at(story)
    assert placed(story)["w3"] == node, "although another place was free before"
    assert_nothing_lost(story, clean)


@pytest.mark.slow
def test_a_paused_run_goes_on_where_it_stopped(clean, tmp_path):
    training = Training(policy=wants(Kind.PAUSE, for_s=1.0))
    story = run(tmp_path, KILL, steps=STEPS, pause_s=0.002, training=training)
    (incident,) = story.finished.state.incidents
    assert incident.decision == "continue in place: pause is over"
    assert incident.resumed_at_s is not None and incident.resumed_at_s - incident.opened_at_s > 1.0
    assert_nothing_lost(story, clean)


def test_a_run_exits_on_notice(tmp_path):
    """SIGTERM to one of three: all stop after a step, and the run says so."""

    def during(fleet: ProcessFleet, folder: Path) -> None:
        deadline_s = time.monotonic() + LONG_S
        while "committed" not in _told(folder / "w1.jsonl") and time.monotonic() < deadline_s:
            time.sleep(0.02)
        os.kill(fleet.children["w1"].process.pid or 0, signal.SIGTERM)

    training = Training(policy=ExitOnNotice())
    story = run(tmp_path, steps=1000, pause_s=0.01, training=training, during=during)
    outcome = story.finished.outcome
    assert outcome.ending is Ending.EXITED and "w1 will be lost: SIGTERM" in outcome.message
    last = {line["worker"]: line["step"] for line in story.of("committed")}
    assert len(last) == 3 and len(set(last.values())) == 1, "all have stopped after the same step"
    assert max(last.values()) < 999


def _told(path: Path) -> str:
    return path.read_text() if path.exists() else ""
