"""Effect. A run from a file: its knobs, what its callbacks are told, and who may drive it."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import cloudpickle

import elastic
from elastic.actors.asking import supervisor_name
from elastic.actors.peer_source import namespace
from elastic.callbacks import Callback, IncidentResolved, Resized
from elastic.control import events as ev
from elastic.control.moments import Moment
from elastic.control.state import RunState
from elastic.errors import ElasticError
from elastic.sinks import JsonLog, Webhook
from tests.cluster import training
from tests.cluster.training import At, regression
from tests.lines import whole_lines

pytestmark = pytest.mark.timeout(300)

STEPS = 60
RUN = """\
name: configured
run_dir: {folder}/run
seed: 3
scaling:
  num_dp_replicas: [1, 2]
limits:
  start_timeout_s: 150
  hang_floor_s: 30
  heartbeat_timeout_s: 10
checkpoint:
  persistent: {folder}/store
  local_interval: {{steps: 1}}
  persistent_interval: {{steps: 1}}
"""


class Told(Callback):
    """Keeps all moments, some by their own method."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self.resized: list[Resized] = []
        self.resolved: list[IncidentResolved] = []
        self.has_ended = False

    def on_moment(self, moment: Moment) -> None:
        self.moments.append(moment)
        super().on_moment(moment)

    def on_resized(self, moment: Resized) -> None:
        self.resized.append(moment)

    def on_incident_resolved(self, moment: IncidentResolved) -> None:
        self.resolved.append(moment)

    def on_end(self) -> None:
        self.has_ended = True


class Stranger:
    """Kills a worker, and tries to drive the run without its token."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "run" / "token"
        self.is_done = folder / "done"
        self.refusals: list[str] = []
        self.secret = ""

    def __call__(self, state: RunState) -> None:
        limits = state.settings.limits
        assert state.settings.checkpoint is not None
        assert (limits.start_timeout_s, limits.finish_timeout_s) == (150.0, 77.0)
        actor = ray.get_actor(supervisor_name("configured"), namespace("configured"))
        for secret in ("", "0" * 64):
            for method, arguments in (("ask", (ev.RewindAsked(to_step=1),)), ("observe", ([(0.0, STOP)],))):
                try:
                    ray.get(actor.call.remote(secret, method, *arguments))
                except ray.exceptions.RayTaskError as error:
                    self.refusals.append(str(error.cause))
        self.secret = self._file.read_text()
        with pytest.MonkeyPatch.context() as patch, pytest.raises(ElasticError) as caught:
            patch.setenv("ELASTIC_RUN_TOKEN", "0" * 64)
            elastic.tune("configured", lr_factor=0.5)
        self.refusals.append(str(caught.value))
        os.kill(state.members[1].pid, signal.SIGKILL)
        self.is_done.touch()


STOP = ev.StopAsked(reason="a stranger wants it")


def test_a_run_from_a_file_tells_its_story_and_heeds_no_stranger(hosts: Any, tmp_path: Path, monkeypatch: Any) -> None:
    cloudpickle.register_pickle_by_value(training)
    (tmp_path / "run.yaml").write_text(RUN.format(folder=tmp_path))
    monkeypatch.setenv("ELASTIC_CONFIG", str(tmp_path / "run.yaml"))
    monkeypatch.setenv("ELASTIC_LIMITS__FINISH_TIMEOUT_S", "77")
    stranger, told = Stranger(tmp_path), Told()
    act, log = At(10, stranger), JsonLog(tmp_path / "moments.jsonl")
    deaf = Webhook("http://127.0.0.1:1/secret", timeout_s=0.2, tries=1)
    train_fn = regression(tmp_path, STEPS, pause_s=0.05, until=stranger.is_done)
    result = elastic.fit(train_fn, callbacks=[act, told, log, deaf], seed=5)

    assert (result.steps, result.run_dir) == (STEPS, str(tmp_path / "run"))
    assert act.fired_s is not None and result.world_sizes[:2] == [2, 1]
    _assert_told(told, tmp_path)
    assert deaf.failed > 0, "a webhook that reaches nobody costs nothing"

    refusals = [f"the run configured refuses '{method}'" for method in ("ask", "observe", "ask", "observe", "state")]
    assert [one.partition(":")[0] for one in stranger.refusals] == refusals
    assert not (tmp_path / "run" / "token").exists()
    assert [str(path) for path, text in _written(tmp_path) if stranger.secret in text] == []


def _assert_told(told: Told, folder: Path) -> None:
    names = [moment.name for moment in told.moments]
    story = [name for name in names if not name.startswith("rung_")]  # one may be degraded by the kill, for a moment
    assert story[:4] == ["incident_opened", "incident_decided", "resized", "incident_resolved"]
    assert (told.resized[0].replicas_before, told.resized[0].replicas) == (2, 1)
    assert told.resolved[0].seconds > 0
    rungs = [moment for moment in told.moments if moment.name == "rung_reached"]
    durable = [moment.checkpoint_step for moment in rungs if moment.rung.name == "DURABLE"]
    assert max(durable, default=-1) == STEPS - 1, "the last one comes; an older one may still be on its way then"
    assert told.has_ended and {moment.run for moment in told.moments} == {"configured"}
    lines = whole_lines(folder / "moments.jsonl")
    assert [line["moment"] for line in lines] == names


def _written(folder: Path) -> Iterator[tuple[Path, str]]:
    """All that was written in and about the run, Ray's logs included; it moves those of ended workers to `old`."""
    for pattern in ("logs/*", "logs/old/*"):  # in this order, so that none is missed
        for path in (*folder.rglob("*"), *Path(os.environ["RAY_TMPDIR"]).rglob(pattern)):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and path.suffix != ".npy":
                    yield path, path.read_text(errors="replace")


def test_a_mistake_in_a_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"run_dir: {tmp_path}/run\nscaling:\n  num_replicas: 2\n")
    with pytest.raises(elastic.errors.SettingError, match=r"run.yaml:3: .*did you mean scaling.num_dp_replicas\?"):
        elastic.fit(regression(tmp_path, 1), config=tmp_path / "run.yaml")
    assert not (tmp_path / "run").exists()
