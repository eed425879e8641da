"""Effect. C15: a persistent store that says nothing any more costs a run on Ray what it alone holds, and no step."""

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.actors import equipment
from elastic.callbacks import Callback
from elastic.checkpoint.rungs import Rung
from elastic.checkpoint.stores import open_store
from elastic.checkpoint.vault import Vault
from elastic.control.moments import RungDegraded, RungReached
from elastic.control.state import RunState
from elastic.control.values import StepReport
from elastic.settings import Checkpoint
from tests.cluster.training import regression
from tests.effects.gcs_server import Fault, GcsServer
from tests.lines import whole_lines

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

RUN, URL = "unheard", "gs://bucket/runs"
STEPS, MORE = 500, 10
DEADLINE_S = 2.0
MANY = 1 << 30


def impatient(checkpoint: Checkpoint, run: str, incarnation: int, switch: Path | None = None) -> Callable[[], Vault]:
    """In place of `elastic.actors.equipment.opener`: replica actors wait seconds for what usually has minutes."""
    return functools.partial(opened, str(checkpoint.persistent), run, incarnation)


def opened(url: str, run: str, incarnation: int) -> Vault:
    return Vault(open_store(url, deadline_s=DEADLINE_S), run, incarnation=incarnation)


class Silencing(Callback):
    """Once a step is durable the store falls silent; then all workers are killed; when they train again, it answers.

    Attributes:
        degraded: why nothing is durable, as was told. killed, back: the last step before, the first one after.
        durable_then: the newest step that was durable when they were killed.
        is_over: touched when all is as it was.
    """

    def __init__(self, gcs: GcsServer, is_over: Path) -> None:
        self._gcs, self.is_over = gcs, is_over
        self.fault: Fault | None = None
        self.struck = self.durable_then = self.killed = self.back = self._durable = -1
        self.degraded, self._told_at = "", -1

    def on_rung_reached(self, moment: RungReached) -> None:
        if moment.rung is Rung.DURABLE:
            self._durable = max(self._durable, moment.checkpoint_step)

    def on_rung_degraded(self, moment: RungDegraded) -> None:
        if moment.rung == "durable" and moment.reason:
            self.degraded = moment.reason
        elif moment.rung == "durable" and self.back >= 0:
            self.is_over.touch()

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        step = report.commit.step
        if self.fault is None and self._durable >= 0:
            self.fault = self._gcs.fail("silent", times=MANY, path=RUN)
        elif self.degraded and self._told_at < 0:
            self._told_at = step
        elif self.killed < 0 <= self._told_at and step >= self._told_at + MORE:
            self.killed, self.durable_then = step, self._durable
            for member in state.members:
                os.kill(member.pid, signal.SIGKILL)
        elif self.fault is not None and self.killed >= 0 > self.back and state.forks and state.forks[-1].step >= 0:
            self.back, self.struck = step, self.fault.struck
            self.fault.lift()


def test_c15_training_goes_on_and_is_restored_while_the_persistent_tier_is_silent(
    hosts: Any, gcs: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nodes have in memory is as new as what is durable, so nobody has to wait for the store."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(equipment, "opener", impatient)
    every, silencing = elastic.Interval(steps=1), Silencing(gcs, tmp_path / "is-over")
    try:
        result = elastic.fit(
            regression(tmp_path, STEPS, pause_s=0.01, until=silencing.is_over),
            name=RUN,
            scaling=elastic.Scaling(num_dp_replicas=1, resources_per_worker={"CPU": 1}),
            limits=elastic.Limits(start_timeout_s=120, hang_floor_s=30),
            checkpoint=elastic.Checkpoint(persistent=URL, local_interval=every, persistent_interval=every),
            callbacks=[silencing],
            run_dir=tmp_path / "run",
        )
    finally:
        if silencing.fault is not None:
            silencing.fault.lift()
    assert result.steps == STEPS
    assert silencing.struck > 0, "nobody asked the silent store"
    assert silencing.degraded.count(URL) and "retried in vain" in silencing.degraded, silencing.degraded
    assert silencing.is_over.exists(), "it was not durable again, or that was not told"
    lines = whole_lines(tmp_path / "run" / "journal.jsonl")
    (restored,) = [line for line in lines if line.get("event") == "Restored"]
    assert silencing.durable_then < silencing.killed - 1 <= restored["commit"]["step"] < silencing.back
    assert all(place.startswith("memory ") for place in restored["places"])
