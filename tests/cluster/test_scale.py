"""Effect. Host monitors heard through relays, and the control plane's benchmark, on a real cluster."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

import elastic
from benchmarks.control_plane import exponent, measure, percentile
from benchmarks.crowd import Size
from elastic.actors.monitor import HostMonitor
from elastic.actors.relay import Relay
from elastic.actors.relays import Relays
from elastic.control.envelopes import Heard
from elastic.control.state import RunState
from elastic.control.values import IncidentClass
from tests.cluster.test_fit import control_plane_pids
from tests.cluster.training import At, regression

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def relays(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Those that are started, in order."""
    started: list[Any] = []
    start: Callable[..., Any] = Relays._start

    def record(self: Relays, node: str) -> Any:
        started.append(start(self, node))
        return started[-1]

    monkeypatch.setattr(Relays, "_start", record)
    return started


@pytest.mark.slow
def test_a_hang_is_seen_beside_a_host_monitor_that_was_stopped(
    hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic.actors.host_monitors._HUNG_S", 3.0)
    stopped: list[int] = []

    def stop_monitors(state: RunState) -> None:
        stopped.extend(control_plane_pids("ray::HostMonitor"))
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)

    def stop(state: RunState) -> None:
        os.kill(state.members[-1].pid, signal.SIGSTOP)

    saboteurs = At(8, stop_monitors), At(100, stop)
    try:
        result = elastic.fit(
            regression(tmp_path, 140),
            scaling=elastic.Scaling(num_dp_replicas=(1, 4)),
            limits=elastic.Limits(start_timeout_s=150),
            callbacks=list(saboteurs),
            run_dir=tmp_path / "run",
        )
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert stopped and all(one.fired_s is not None for one in saboteurs)
    assert IncidentClass.WORKER_HUNG in {incident.kind for incident in result.incidents}
    assert result.steps == 140


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["killed", "stopped"])
def test_a_hang_is_seen_through_relays_after_they_have_died_too(
    fate: str, hosts: Any, relays: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic.actors.relays._HUNG_S", 3.0)
    stopped: list[int] = []
    before: list[int] = []

    def strike_relays(state: RunState) -> None:
        before.append(len(relays))
        if fate == "stopped":
            stopped.extend(control_plane_pids("ray::Relay"))
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            return
        for relay in list(relays):
            ray.kill(relay)

    def stop(state: RunState) -> None:
        assert len({worker.node for worker in state.members}) > 1
        os.kill(state.members[-1].pid, signal.SIGSTOP)

    killer, saboteur = At(8, strike_relays), At(60, stop)
    try:
        result = elastic.fit(
            regression(tmp_path, 100),
            scaling=elastic.Scaling(num_dp_replicas=(1, 4)),
            limits=elastic.Limits(start_timeout_s=150, relay_above_hosts=1, hosts_per_relay=1),
            callbacks=[killer, saboteur],
            run_dir=tmp_path / "run",
        )
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert killer.fired_s is not None and saboteur.fired_s is not None
    assert bool(stopped) == (fate == "stopped")
    assert len(relays) > before[0], "others have taken the place of those that were killed"
    assert IncidentClass.WORKER_HUNG in {incident.kind for incident in result.incidents}
    assert result.steps == 100


def test_a_death_that_dies_with_a_relay_is_told_by_the_next_one(hosts: Any, tmp_path: Path) -> None:
    """The driver never gets the answer of the first relay, which is killed; it has that of the second one."""
    monitor = ray.remote(num_cpus=0, concurrency_groups={"events": 1})(HostMonitor).remote("a")
    relays = [ray.remote(num_cpus=0)(Relay).remote(0.2, 0.5, 0.2) for _ in range(3)]
    processes = {name: subprocess.Popen(["sleep", "600"]) for name in ("w0", "w1")}

    def told_by(relay: Any, had: int) -> Heard:
        ray.get(relay.add.remote("a", monitor, had), timeout=60)
        while not (told := ray.get(relay.beat.remote(0.2), timeout=60)).events:
            assert not told.lost
        return told

    try:
        for name, process in processes.items():
            assert ray.get(monitor.watch.remote(name, process.pid, tmp_path / name), timeout=60)
        processes["w0"].kill()
        lost = told_by(relays[0], 0)
        ray.kill(relays[0])
        passed = told_by(relays[1], 0)
        ray.kill(relays[1])
        processes["w1"].kill()
        later = told_by(relays[2], passed.numbers["a"])
        assert [event.worker for _, event in lost.events] == ["w0"] and passed.events == lost.events
        assert [event.worker for _, event in later.events] == ["w1"], "nothing is told twice"
    finally:
        for process in processes.values():
            process.kill()
            process.wait(30)
        for actor in (monitor, *relays):
            ray.kill(actor)


@pytest.mark.slow
def test_the_benchmark_measures_a_real_supervisor(hosts: Any, tmp_path: Path) -> None:
    rows = []
    for number in (16, 32):
        size = Size(hosts=number, workers_per_host=2, hosts_per_relay=16)
        row = measure(size, seconds=4.0, folder=tmp_path, calm_s=0.5)
        assert list(row["after_failure_s"]) == ["freeze", "form", "go"]
        assert row["messages"] > 1 and row["core_share"] > 0 and 10 < row["rss_mib"] < 1024
        rows.append(row)
    assert rows[1]["workers"] == 64 and isinstance(exponent(rows), float)
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0 and percentile([float(one) for one in range(100)], 0.5) == 49.0
