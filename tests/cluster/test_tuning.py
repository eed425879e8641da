"""Effect. `elastic tune` on a real cluster: another process changes a run that trains, which goes on in its own."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import cloudpickle

import elastic
from elastic.actors.asking import namespace, supervisor_name
from elastic.control.state import RunState
from elastic.control.tuning import NOT_TUNED, Tuning
from elastic.errors import ElasticError
from tests.cluster import training
from tests.cluster.test_fit import committed_samples
from tests.cluster.training import At, read_lines, start_python

pytestmark = pytest.mark.timeout(300)

CLI = "from elastic.cli import main\nmain()\n"
MORE_STEPS = 80
ANSWER_S = 60.0


def until_tuned(folder: Path) -> Any:
    """A train_fn that ends some steps after its rates were tuned."""

    def train_fn(session: Any) -> int:
        tuned = set()

        def counting(batches: Any) -> Any:
            for step in steps(batches, max_steps=1500):
                tuned.update([step.index] if step.rate_factor != 1 else [])
                if len(tuned) > MORE_STEPS:
                    return
                yield step

        steps = session.steps
        session.steps = lambda batches, max_steps: counting(batches)
        training.regression(folder)(session)
        return len(tuned)

    return train_fn


class Asking:
    """Acts in a thread of its own once the run trains; `result()` is what came of it, or raises what it raised."""

    def __init__(self, act: Any) -> None:
        self._act, self._came = act, []
        self.callback = At(3, self._start)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _start(self, state: RunState) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._came.append(self._act())
        except Exception as error:
            self._came.append(error)

    def result(self) -> Any:
        self._thread.join(ANSWER_S)
        (came,) = self._came
        if isinstance(came, Exception):
            raise came
        return came


def fit(folder: Path, name: str, asking: Asking) -> Any:
    cloudpickle.register_pickle_by_value(training)
    return elastic.fit(
        until_tuned(folder),
        name=name,
        scaling=elastic.Scaling(num_dp_replicas=2),
        limits=elastic.Limits(start_timeout_s=150),
        callbacks=[asking.callback],
        run_dir=folder / "run",
    )


def assert_tuned(folder: Path, result: Any, asking: Asking, first: int, wish: Tuning) -> None:
    """From `first` on; each sample once; the same processes; no incident but those of the test."""
    tunings = [report.tuning for report in asking.callback.reports]
    assert tunings == [NOT_TUNED] * first + [wish] * (len(tunings) - first) and len(tunings) - first >= MORE_STEPS
    assert set(committed_samples(folder).values()) == {1}
    lines = read_lines(folder)
    assert len([line for line in lines if line["event"] == "started"]) == len({line["pid"] for line in lines}) == 2
    assert len({line["digest"] for line in lines if line["event"] == "finished"}) == 1
    assert (result.world_sizes, result.incidents) == ([2, 2], [])


@pytest.mark.slow
def test_the_command_changes_a_run_that_trains(hosts: Any, tmp_path: Path) -> None:
    def cli(*arguments: str) -> tuple[int, str]:
        process = start_python(CLI, tmp_path, "tune", *arguments, "--address", hosts.address)
        stdout, stderr = process.communicate(timeout=ANSWER_S)
        return process.returncode, stdout + stderr

    def act() -> Any:
        return (
            cli("tuned", "--batch-size", "1"),
            cli("nobody", "--lr-factor", "0.5"),
            cli("tuned", "--lr-factor", "0.5", "--batch-size", "32"),
        )

    asking = Asking(act)
    result = fit(tmp_path, "tuned", asking)
    refused, unknown, tuned = asking.result()
    assert refused[0] == 1 and "batch_size=1 does not fit the run tuned: a batch of 1 samples is smaller" in refused[1]
    assert unknown[0] == 1 and "no run 'nobody' trains on this cluster; these do: tuned" in unknown[1]
    assert tuned[0] == 0, tuned[1]
    first = next(n for n, report in enumerate(asking.callback.reports) if report.tuning != NOT_TUNED)
    assert f"tuned is tuned from step {first} on" in tuned[1]
    assert [asking.callback.reports[step].samples for step in (first - 1, first)] == [16, 32]
    assert_tuned(tmp_path, result, asking, first, Tuning(lr_factor=0.5, batch_size=32))


@pytest.mark.slow
def test_a_wish_outlives_the_supervisor_that_was_asked(hosts: Any, tmp_path: Path) -> None:
    """From Python, in the process of the driver; the supervisor dies at the same moment."""

    def act() -> int:
        actor = ray.get_actor(supervisor_name("outlived"), namespace("outlived"))
        ray.kill(actor)
        return elastic.tune("outlived", lr_factor=0.5, timeout_s=ANSWER_S)

    asking = Asking(act)
    result = fit(tmp_path, "outlived", asking)
    assert_tuned(tmp_path, result, asking, asking.result(), Tuning(lr_factor=0.5))
    with pytest.raises(ElasticError, match="no run 'outlived' trains on this cluster; these do: none"):
        elastic.tune("outlived", lr_factor=1.0)


@pytest.mark.slow
def test_a_name_that_trains_already_is_refused(hosts: Any, tmp_path: Path) -> None:
    def act() -> int:
        started_s = time.monotonic()
        with pytest.raises(ElasticError, match="a run 'twice' trains on this cluster already"):
            fit(tmp_path / "second", "twice", Asking(lambda: None))
        assert time.monotonic() - started_s < ANSWER_S
        return elastic.tune("twice", lr_factor=0.5, timeout_s=ANSWER_S)

    asking = Asking(act)
    result = fit(tmp_path, "twice", asking)
    assert_tuned(tmp_path, result, asking, asking.result(), Tuning(lr_factor=0.5))
