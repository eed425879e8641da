"""What it costs to tell of a run: ledger, metrics, journal and live page are switched on and off while it trains.

    python -m benchmarks.overhead --observability --out observability.json

One run of steps that last 50 ms by sleeping, as those that compute elsewhere do; `benchmarks/quadruples.py` says when
what is on, and what follows. Somebody looks at the page all the time, as a browser does; where nothing is to be told,
the page's process is stopped. What workers do (flight pages, the times in their reports) is part of the control plane
and always on. A journal with gaps is no easier to account for than a whole one.

Two things are judged: the time of a step, and the processor time that all processes of the run take for it, as a share
of what the workers have (their number times the step). The second is what would be lost at most on a machine without a
core to spare; it can be told on a busy machine too, where the first one may not.
"""

import contextlib
import dataclasses
import http.client
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ray

from benchmarks.quadruples import (
    DROPPED,
    LIMIT,
    Block,
    Compared,
    Does,
    contrasts,
    cost,
    log_ratios,
    planned,
    processor_shares,
    resolves,
    share,
    step_s,
    verdict,
)
from benchmarks.switched import SPIN_S, Switch
from benchmarks.training import Job

STEP_S = 0.05
_SETTLED = 60  # steps before the first block
_AHEAD = 60  # steps after which all have heard that the run ends
_DEADLINE_S = 180.0  # for the run to begin, and to end
_WAITS_S = 1.0  # of who looks at the page; twice as long after each answer that does not come, and at most 15 s
_POLL_S = 0.05
_VERSION = re.compile(rb'"version": "([^"]+)"')
# By the beginning of what a process calls itself; the others of the run's processes are Ray's.
ROLES = {"ray::Guard": "supervisor", "ray::HostMonitor": "monitors", "ray::WorkerActor": "workers"}


# ---- who looks at it


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
        self._thread.join(_DEADLINE_S)

    def _look(self) -> None:
        version, waits_s = b"", _WAITS_S
        while not self._has_left.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                place = urlsplit(self._file.read_text().strip())
                connection = http.client.HTTPConnection(place.hostname or "", place.port or 0, timeout=30)
                with contextlib.closing(connection):
                    while not self._has_left.is_set():
                        connection.request("GET", f"/report.json?after={version.decode()}")
                        told = connection.getresponse().read()  # a browser would read it on another machine
                        found = _VERSION.search(told, 0, 100)
                        before, version = version, found[1] if found else b""
                        self.reports, waits_s = self.reports + (version != before), _WAITS_S
            self._has_left.wait(waits_s)
            waits_s = min(15.0, 2 * waits_s)


class Processes:
    """Those of the run, by what they do, and what they compute.

    Args:
        root: its descendants are meant. driver: one of them.
    """

    def __init__(self, root: int, driver: int) -> None:
        self._root, self._driver = root, driver

    def cpu_s(self) -> Counter[str]:
        """Processor seconds so far, by role; of threads that have ended nothing is known."""
        found: Counter[str] = Counter()
        for pid in self._descendants():
            with contextlib.suppress(OSError):
                ran = (file.read_text().split()[0] for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))
                found[self._role(pid)] += sum(map(int, ran)) / 1e9
        return found

    def hold_page(self, is_held: bool) -> None:
        """Whoever asks the page waits meanwhile."""
        for pid in self._descendants():
            with contextlib.suppress(OSError):
                if self._role(pid) == "page":
                    os.kill(pid, signal.SIGSTOP if is_held else signal.SIGCONT)

    def _role(self, pid: int) -> str:
        if pid == self._driver:
            return "driver"
        told = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        if "elastic.report.server" in told:
            return "page"
        return next((role for begin, role in ROLES.items() if told.startswith(begin)), "ray")

    def _descendants(self) -> Iterator[int]:
        children: dict[int, list[int]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parent = int(path.read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(path.parent.name))
        left = list(children.get(self._root, ()))
        while left:
            yield (pid := left.pop())
            left += children.get(pid, ())


# ---- the measurement


def measure(minutes: float, block_s: float, *, workers: int, seed: int) -> dict[str, Any]:
    """Play the run on a local Ray cluster; what is told of it, as JSON has it.

    Raises:
        RuntimeError: it did not begin, or did not end as it should.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # the driver joins from a process of its own
    ray.init(address="local", num_cpus=workers, include_dashboard=False)
    seconds = 60.0 * minutes
    blocks = planned(seconds, block_s)
    with tempfile.TemporaryDirectory() as folder:
        address = ray.get_runtime_context().gcs_address
        job = Job(name="observability", folder=folder, address=address, workers=(workers, workers), step_s=STEP_S)
        given = [str(job.write()), repr(seconds), repr(block_s)]
        driver = subprocess.Popen([sys.executable, "-m", "benchmarks.switched", *given])
        processes = Processes(os.getpid(), driver.pid)
        try:
            with Viewer(Path(folder) / "run") as viewer:
                begin_s = _begin(job, driver, Switch(folder, seconds, block_s))
                computed = list(_accompany(blocks, begin_s, processes, driver))
                job.stop_at(len(_commits_s(job)) + _AHEAD)
                if code := driver.wait(_DEADLINE_S):
                    raise RuntimeError(f"the driver ended with code {code}")
        finally:
            processes.hold_page(False)
            driver.kill()
            driver.wait()
        commits_s = [at_s - begin_s for at_s in _commits_s(job)]
    told = {"step_s": STEP_S, "spin_s": SPIN_S, "block_s": block_s, "seconds": seconds, "workers": workers}
    settings = {**told, "dropped_steps": DROPPED, "limit": LIMIT, "seed": seed}
    summary = summarized(blocks, commits_s, computed, workers * STEP_S, seed)
    return {**summary, "reports_viewed": viewer.reports, "settings": settings}


def _begin(job: Job, driver: "subprocess.Popen[bytes]", switch: Switch) -> float:
    """When the first block begins: a second after the run has settled."""
    deadline_s = time.monotonic() + _DEADLINE_S
    while len(_commits_s(job)) < _SETTLED:
        if driver.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the run has not come to step {_SETTLED} within {_DEADLINE_S:.0f} s")
        time.sleep(_POLL_S)
    begin_s = time.monotonic() + 1.0
    switch.begin(begin_s)
    return begin_s


def _accompany(
    blocks: Sequence[Block], begin_s: float, processes: Processes, driver: "subprocess.Popen[bytes]"
) -> Iterator[tuple[float, float, dict[str, float]]]:
    """Of each block: from when to when it was looked at, and what each role computed meanwhile."""
    for block in blocks:
        _sleep_until(begin_s + block.begin_s)
        if driver.poll() is not None:
            raise RuntimeError(f"the driver ended with code {driver.returncode} in the middle")
        processes.hold_page(block.does is Does.BARE)
        _sleep_until(begin_s + block.begin_s + DROPPED * STEP_S)
        from_s, before = time.monotonic() - begin_s, processes.cpu_s()
        _sleep_until(begin_s + block.end_s - 2 * _POLL_S)
        after = processes.cpu_s()
        yield from_s, time.monotonic() - begin_s, {role: after[role] - before[role] for role in sorted(before | after)}


def _sleep_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))


def _commits_s(job: Job) -> list[float]:
    with contextlib.suppress(FileNotFoundError):
        text = Path(job.folder, "commits").read_text()
        return [float(line) for line in text.rpartition("\n")[0].splitlines()]
    return []


def summarized(
    blocks: Sequence[Block],
    commits_s: Sequence[float],
    computed: Sequence[tuple[float, float, dict[str, float]]],
    whole_s: float,
    seed: int,
) -> dict[str, Any]:
    """Costs with their intervals, verdicts, and what each role computes in a step, on and off.

    Args:
        whole_s: processor time of a step that all workers have together.
    """
    taken_s = [step_s(commits_s, block) for block in blocks]
    ratios = log_ratios(blocks, taken_s)
    costs = {one: cost(ratios[one], seed) for one in Compared}
    all_s = [(from_s, until_s, sum(spent.values())) for from_s, until_s, spent in computed]
    shares = processor_shares(commits_s, all_s, whole_s)
    differences = contrasts(blocks, shares)
    of_processors = {one: share(differences[one], seed) for one in Compared}
    found = costs[Compared.OBSERVABILITY]
    roles: dict[str, dict[str, float]] = {}
    steps: Counter[Does] = Counter()
    for block, (from_s, until_s, spent) in zip(blocks, computed, strict=True):
        if block.compared is Compared.OBSERVABILITY:
            steps[block.does] += sum(from_s <= at_s < until_s for at_s in commits_s)
            for role, seconds in spent.items():
                of_role = roles.setdefault(role, {Does.SEEN.value: 0.0, Does.BARE.value: 0.0})
                of_role[block.does.value] += seconds
    rows = zip(blocks, taken_s, shares, strict=True)
    return {
        "ratio": None if found is None else 1 - found.mean,
        "ratio_ci95": None if found is None else [1 - found.high, 1 - found.low],
        "verdict": verdict(costs).value,
        "resolves": resolves(costs),
        "costs": {one.value: told and dataclasses.asdict(told) for one, told in costs.items()},
        "processor_verdict": verdict(of_processors).value,
        "processor_resolves": resolves(of_processors),
        "processor_costs": {one.value: told and dataclasses.asdict(told) for one, told in of_processors.items()},
        "cpu_s_per_step": {
            role: {does: spent / max(1, steps[Does(does)]) for does, spent in told.items()}
            for role, told in sorted(roles.items())
        },
        "blocks": [
            {
                "compared": block.compared.value,
                "letter": block.letter,
                "does": block.does.value,
                "step_s": taken,
                "processors": taken_up,
            }
            for block, taken, taken_up in rows
        ],
    }


def lines(told: dict[str, Any]) -> Iterator[str]:
    """For people."""
    settings = told["settings"]
    known, limit = settings["spin_s"] / settings["step_s"], f"below {100 * settings['limit']:g} %"
    yield from _judged(told["costs"], "of a step", told["resolves"], known)
    yield f"time of a step, {limit}: {told['verdict']}"
    of_processors = known / settings["workers"]
    yield from _judged(told["processor_costs"], "of processors", told["processor_resolves"], of_processors)
    yield f"processor time, {limit}: {told['processor_verdict']}"
    for role, of in told["cpu_s_per_step"].items():
        yield f"{role:14} {1e3 * of['seen']:.3f} ms of CPU a step, {1e3 * of['bare']:.3f} without"


def _judged(costs: dict[str, Any], of: str, is_resolved: bool, known: float) -> Iterator[str]:
    for name, one in costs.items():
        if one is None:
            yield f"{name:14} no whole quadruple"
            continue
        mean, low, high = (100 * one[key] for key in ("mean", "low", "high"))
        yield f"{name:14} {mean:+.3f} % {of}, 95 % in {low:+.3f} to {high:+.3f}, {one['quadruples']} quadruples"
    yield f"the controls must show 0 and {100 * known:.3f} %: they {'do' if is_resolved else 'do not'}"
