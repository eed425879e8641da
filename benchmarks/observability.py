"""What it costs to tell of a run: elastic with ledger, metrics, journal and live page, against elastic without.

    python -m benchmarks.overhead --observability --out observability.json

Both sides live through the whole run and take turns, as in `benchmarks.overhead`; each has a driver in a process of its
own, on one Ray cluster. Somebody looks at the page all the time: each newer report is fetched, and thrown away. What
workers do (flight pages, the times in their reports) is part of the control plane, and both sides have it.
"""

import contextlib
import dataclasses
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ray

from benchmarks.overhead import BARE, DEADLINE_S, SEEN, Settings, Turnstile, make_elastic_train_fn
from elastic.callbacks import Callback
from elastic.control.state import RunState
from elastic.control.values import StepReport

_WAITS_S = 1.0  # twice as long after each answer that does not come, and at most 15 s
_DRIVERS_S = 3600.0  # of both sides together, start and end included
_SETTLED = 50


class Viewer:
    """Asks the page of a run for each newer report, as `page.js` does: at once after each answer; a context manager.

    Attributes:
        reports: how many have come.
    """

    def __init__(self, run_dir: Path) -> None:
        self._file, self.reports = run_dir / "page.url", 0
        self._has_left = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Viewer":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._has_left.set()
        self._thread.join(DEADLINE_S)

    def _look(self) -> None:
        version, waits_s = "", _WAITS_S
        while not self._has_left.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                place = urlsplit(self._file.read_text().strip())
                connection = http.client.HTTPConnection(place.hostname or "", place.port or 0, timeout=30)
                with contextlib.closing(connection):
                    while not self._has_left.is_set():
                        connection.request("GET", f"/report.json?after={version}")
                        told = json.loads(connection.getresponse().read())
                        version, waits_s = told["version"], _WAITS_S
                        self.reports += "report" in told
            self._has_left.wait(waits_s)
            waits_s = min(15.0, 2 * waits_s)


def measure(settings: Settings) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All pairs, the warm-up first; and what was counted beside them."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # drivers join from processes of their own
    ray.init(num_cpus=len(settings.sides) * settings.workers, include_dashboard=False)
    ray_address = ray.get_runtime_context().gcs_address
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread, Turnstile(settings) as turnstile:
        pairs = thread.submit(turnstile.measure)
        told = {"settings": dataclasses.asdict(settings), "address": turnstile.address, "ray": ray_address}
        with Viewer(Path(folder) / SEEN) as viewer:
            drivers = [start(side, {**told, "folder": folder}) for side in settings.sides]
            codes = ended(drivers)
        if any(codes):
            raise RuntimeError(f"the drivers ended with codes {codes}")
        beside = {
            f"{side}_driver_cpu_s_per_step": float((Path(folder) / f"{side}.cpu").read_text())
            for side in settings.sides
        }
        return pairs.result(), beside | {"reports_viewed": viewer.reports}


def ended(drivers: list["subprocess.Popen[bytes]"]) -> list[int]:
    """Their exit codes; none outlives this.

    Raises:
        subprocess.TimeoutExpired: names the one that had not ended in time.
    """
    until_s = time.monotonic() + _DRIVERS_S
    try:
        return [driver.wait(max(0.0, until_s - time.monotonic())) for driver in drivers]
    finally:
        for driver in drivers:
            driver.kill()


def start(side: str, told: dict[str, Any]) -> "subprocess.Popen[bytes]":
    """The driver of one side."""
    command = [sys.executable, "-m", "benchmarks.observability", side, json.dumps(told)]
    return subprocess.Popen(command)


class Clock(Callback):
    """What the driver computes in a step, once all have settled.

    Attributes:
        cpu_s_per_step: from step 50 to the newest.
    """

    def __init__(self) -> None:
        self._since: tuple[int, float] | None = None
        self.cpu_s_per_step = float("nan")

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        step = report.commit.step
        if step < _SETTLED:
            return
        self._since = self._since or (step, time.process_time())
        if step > self._since[0]:
            self.cpu_s_per_step = (time.process_time() - self._since[1]) / (step - self._since[0])


def go_bare() -> None:
    """From now on this process keeps no ledger and no journal, and hands out no metrics."""
    from elastic import api
    from elastic.actors import driver, journal, teller

    class NoJournal(journal.Journal):
        def write(self, lines: Iterable[Any]) -> None:
            pass

    class NoLedger:
        goodput = 0.0

        def feed(self, line: Any) -> bool:
            return True

        def account(self) -> "NoLedger":
            return self

    class NoMetrics(Callback):
        def __init__(self, run: str) -> None:
            pass

    replaced: dict[Any, dict[str, Any]] = {
        api: {"Journal": NoJournal, "RayMetrics": NoMetrics},
        teller: {"Ledger": NoLedger},
        driver: {"happened": lambda *told: [], "line_of": lambda *told: {}},
    }
    for module, names in replaced.items():
        for name, thing in names.items():
            assert hasattr(module, name), f"{module.__name__} has no {name} any more"
            setattr(module, name, thing)


def main() -> None:
    """Drive one side's run."""
    import elastic

    clock = Clock()
    side, told = sys.argv[1], json.loads(sys.argv[2])
    settings = Settings(**{**told["settings"], "sides": tuple(told["settings"]["sides"])})
    if side == BARE:
        go_bare()
    result = elastic.fit(
        make_elastic_train_fn(settings, tuple(told["address"]), side),
        scaling=elastic.Scaling(num_dp_replicas=settings.workers, spares=0),
        callbacks=[clock],
        page=elastic.Page(port=0 if side == SEEN else None),
        name=f"observability-{side}",
        run_dir=Path(told["folder"]) / side,
        address=told["ray"],
    )
    (Path(told["folder"]) / f"{side}.cpu").write_text(str(clock.cpu_s_per_step))
    if result.incidents:
        raise RuntimeError(f"not a measurement of undisturbed steps: {result.incidents}")


if __name__ == "__main__":
    main()
