"""Effect. A GPU fails under a worker that trains: it is fenced and left out, and P1 to P4 hold.

The GPU is the stand-in driver's; the XID goes through `pynvml`, a host monitor, the controller and back.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.actors.monitor import HostMonitor
from elastic.actors.process_fleet import ProcessFleet
from elastic.control import events as ev
from elastic.control.faults import Fault, FaultKind
from elastic.control.values import IncidentClass
from elastic.settings import Chaos, Health
from elastic.train.flight import page_path
from elastic.train.surroundings import Surroundings
from tests.chaos.group import LONG_S, STEPS, Story, Training, assert_promises, run
from tests.chaos.injected import compare, told
from tests.chaos.ledger_checks import booked
from tests.chaos.saboteur import train
from tests.effects.nvml_standin import STATE, Standin, compiled, install, install_smi

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


def train_on_gpu(*arguments: Any, **options: Any) -> Any:
    """As if the worker had been given GPU 0 of its node."""
    Surroundings.gpus = property(lambda self: ("0",))  # type: ignore[assignment,method-assign]
    return train(*arguments, **options)


def test_a_gpu_that_asks_for_it_is_reset_when_its_worker_is_gone(
    standin: Standin, clean: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "arguments"
    install_smi(tmp_path, f'printf "%s " "$@" > {told}')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    training, done = Training(function=train_on_gpu), []
    breaking = breaks(standin, lambda standin: standin.xid(48), done)
    story = run(tmp_path / "run", during=breaking, pause_s=0.05, steps=LONGER, training=training)
    assert told.read_text() == "--gpu-reset -i 0 "
    (incident,) = story.finished.state.incidents
    assert (incident.kind, incident.culprits) == (IncidentClass.GPU_FAULT, ("w1",))
    assert incident.decision.startswith("reset the GPU")
    (death,) = (line for line in story.journal if line.get("event") == "WorkerDead")
    (order,) = (line for line in story.journal if line.get("command") == "ResetGpu")
    (answer,) = (line for line in story.journal if line.get("event") == "GpuReset")
    assert (order["node"], order["gpus"]) == (answer["node"], answer["gpus"]) == (done[0].node, ["0"])
    assert answer["error"] == "" and death["t"] <= order["t"] <= answer["t"]
    assert story.finished.state.care.resets == () and story.finished.state.care.quarantine == {}
    assert_promises(story, clean, steps=LONGER, killed=1)


def test_an_xid_that_is_injected_becomes_an_incident(standin: Standin, clean: Story, tmp_path: Path) -> None:
    """It is asked for as `elastic chaos` asks, and sensed as a real one is."""
    done: list[ev.HardwareFinding] = []
    fault = Fault(kind=FaultKind.XID, target="worker:w1", argument=f"94,nvml={tmp_path / 'nvml.state'}", name="x1")

    def during(fleet: ProcessFleet, folder: Path) -> None:
        asks = lambda standin: fleet._emit(ev.FaultAsked(fault=fault, is_forced=True))  # noqa: E731
        breaks(standin, asks, done)(fleet, folder)

    story = run(tmp_path / "run", during=during, pause_s=0.05, steps=LONGER)
    (struck,) = (line for line in story.journal if line.get("event") == "FaultInjected")
    (found,) = (line for line in story.journal if line.get("event") == "HardwareFinding")
    (opened,) = (line for line in story.journal if line.get("moment") == "IncidentOpened")
    assert struck["fault"]["name"] == "x1" and "xid.code 94" in struck["proof"]
    assert found["workers"] == ["w1"] and "XID 94" in found["detail"]
    assert (opened["incident"]["kind"], opened["incident"]["culprits"]) == ("gpu_fault", ["w1"])
    assert_promises(story, clean, steps=LONGER, killed=1)


def test_an_injected_error_of_a_gpu_is_the_incident_that_the_sensor_has_opened(
    standin: Standin, tmp_path: Path
) -> None:
    """In the ledger it is told with what was seen of it, not with what the injection says of itself."""
    schedule = f"3 xid worker:w1 with=94,nvml={os.environ[STATE]},gpu=0"
    training, done = Training(chaos=Chaos(enable_fault_injection=True, schedule=schedule)), []
    breaking = breaks(standin, lambda standin: None, done)
    story = run(tmp_path / "run", during=breaking, pause_s=0.02, steps=200, training=training)
    account = booked(tmp_path / "run" / "run" / "journal.jsonl")
    (incident,) = [one for one in account.incidents if one.injected]
    (struck,) = incident.injected
    assert struck.kind == "xid"
    assert (incident.kind, incident.culprits) == (IncidentClass.GPU_FAULT.value, ("w1",))
    assert done[0].detail in incident.evidence and "XID 94" in done[0].detail
    assert struck.proof not in incident.evidence
    compare(story.of("committed"), told(story.journal, account))
