"""Effect. What the ladder says comes to callbacks, and to the gauges: what is degraded stays so until that is over."""

import logging
from dataclasses import replace

import pytest

from elastic.actors.ray_metrics import RayMetrics
from elastic.actors.teller import Teller
from elastic.callbacks import Callback, RungDegraded
from elastic.checkpoint.rungs import CheckpointRung, Degraded, Rung
from elastic.control.care import Care
from elastic.control.metrics import Metric
from elastic.control.state import RunState
from elastic.control.values import CommitId
from elastic.settings import RunSettings


class Shelf:
    """Keeps what a gauge was set to last, by its tags."""

    def __init__(self, shelves: "dict[str, Shelf]", metric: Metric) -> None:
        shelves[metric.name] = self
        self.values: dict[str, float] = {}

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.values[tags.get("rung", "")] = value


class Listening(Callback):
    def __init__(self) -> None:
        self.heard: list[RungDegraded] = []

    def on_rung_degraded(self, moment: RungDegraded) -> None:
        self.heard.append(moment)


def rung(step: int, to: Rung, degraded: str = "") -> CheckpointRung:
    commit = CommitId(1, 1, 1, step, "s")
    return CheckpointRung(commit=commit, shards=1, rung=to, copies=1, degraded=degraded, reason="kept")


def test_a_degraded_rung_is_so_until_it_is_told_to_be_over() -> None:
    shelves: dict[str, Shelf] = {}
    listening = Listening()
    metrics = RayMetrics("r", lambda metric: Shelf(shelves, metric))
    teller = Teller([listening, metrics])
    degraded = shelves["rung_degraded"].values
    teller.ladder(1.0, Degraded(reason="1 nodes for 2 copies"))
    for step in (5, 10):  # a new step has not its copies yet, so it lacks none
        teller.ladder(2.0, rung(step, Rung.LOCAL))
        assert degraded == {"replicated": 1.0}
        teller.ladder(2.5, rung(step, Rung.REPLICATED, "1 nodes for 2 copies"))
    teller.ladder(3.0, Degraded(reason="no space left", rung="durable"))
    assert degraded == {"replicated": 1.0, "durable": 1.0}
    degraded.clear()
    metrics.on_end()
    assert degraded == {"replicated": 1.0, "durable": 1.0}, "Ray forgets a gauge that is not told again and again"
    teller.ladder(4.0, Degraded(reason=""))
    assert degraded == {"replicated": 0.0, "durable": 1.0}
    assert [(one.rung, one.reason) for one in listening.heard] == [
        ("replicated", "1 nodes for 2 copies"),
        ("durable", "no space left"),
        ("replicated", ""),
    ]


def test_that_no_workers_are_started_any_more_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    state, why = RunState(settings=RunSettings(run="r")), "3 workers in a row ended before their first step"
    teller = Teller([])
    with caplog.at_level(logging.WARNING, logger="elastic"):
        for no_starts in ("", why, why, ""):
            teller.tell([], replace(state, care=Care(no_starts=no_starts)), [])
    assert caplog.messages == [f"the run goes on with the workers it has: {why}"]
