"""Effect. A GPU fails under a worker that trains: it is fenced and left out, and P1 to P4 hold.

The GPU is the stand-in driver's; the XID goes through `pynvml`, a host monitor, the controller and back.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.actors.monitor import HostMonitor
from elastic.actors.process_fleet import ProcessFleet
from elastic.control import events as ev
from elastic.control.values import IncidentClass
from elastic.settings import Health
from elastic.train.flight import page_path
from tests.chaos.group import LONG_S, STEPS, Story, assert_promises, run
from tests.effects.nvml_standin import Standin, compiled, install

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
LONGER = 3 * STEPS


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return run(tmp_path_factory.mktemp("clean") / "run", steps=LONGER)


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standin:
    return install(compiled(tmp_path), tmp_path, monkeypatch, count=1)


def breaks(standin: Standin, act: Callable[[Standin], None], done: list[Any]) -> Callable[[ProcessFleet, Path], None]:
    """The GPU of a worker breaks once it trains; its host monitor is beside the fleet's, and senses."""

    def during(fleet: ProcessFleet, folder: Path) -> None:
        worker, child = _training(fleet, folder)
        standin["gpu0.pid"] = child.process.pid
        monitor = HostMonitor(child.node, health=Health(period_s=0.02))
        monitor.watch(worker, child.process.pid, page_path(fleet.settings.run, worker, fleet.settings.incarnation))
        assert monitor._senses is not None and monitor._senses.gpus(LONG_S)
        act(standin)
        deadline_s = time.monotonic() + LONG_S
        while not done and time.monotonic() < deadline_s:
            for event in monitor.events(0.05):
                if isinstance(event, ev.HardwareFinding) and event.workers:
                    done.append(event)
                    fleet._emit(event)
        monitor.close()

    return during


def _training(fleet: ProcessFleet, folder: Path) -> tuple[str, Any]:
    deadline_s = time.monotonic() + LONG_S
    while time.monotonic() < deadline_s:
        path = folder / "run" / "journal.jsonl"
        if path.exists() and '"StepStable"' in path.read_text():
            return "w1", fleet.children["w1"]
        time.sleep(0.01)
    raise AssertionError("no step was stable in time")


@pytest.mark.parametrize(
    "act",
    [lambda standin: standin.xid(94), lambda standin: standin.__setitem__("gpu0.lost", 1)],
    ids=["a contained memory error", "off the bus"],
)
def test_a_worker_on_a_gpu_that_fails_is_left_out(act, standin: Standin, clean: Story, tmp_path: Path) -> None:
    done: list[ev.HardwareFinding] = []
    story = run(tmp_path / "run", during=breaks(standin, act, done), pause_s=0.02, steps=LONGER)
    (found,) = done
    assert found.workers == ("w1",)
    (incident,) = story.finished.state.incidents
    assert (incident.kind, incident.culprits) == (IncidentClass.GPU_FAULT, ("w1",))
    assert story.killed == {"w1"}, "it was fenced, not told to leave"
    assert found.detail in incident.evidence
    assert_promises(story, clean, steps=LONGER, killed=1)
