"""Effect. Marks tests by their folder, and fails a test that leaves something of its own behind.

A test may not outlive itself: no process, no file in shared memory, no non-daemon thread. What existed
before the test, a session-scoped Ray cluster for instance, is nobody's leak. Pure tests are not watched: they
start nothing.
"""

import os
import signal
import threading
import time
import uuid
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import side_by_side
from tests.chaos.ledger_checks import booked

TESTS = Path(__file__).parent
FOLDER_MARKS = ("pure", "effects", "cluster", "chaos")
RUNNING = ("cluster", "chaos")  # the tests that train
GRACE_S = 10.0
POLL_S = 0.05
JOURNAL_LINES, JOURNAL_COLUMNS = 40, 400

# Inherited by every process that a test starts, so that orphans are found after their parents are gone.
RUN_MARK = ("ELASTIC_TEST_RUN", uuid.uuid4().hex)
os.environ[RUN_MARK[0]] = RUN_MARK[1]
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# The same examples in every run; to look for new ones: pytest --hypothesis-profile=search. How long they take to make
# is the machine's business: nothing here fails for being slow on a busy one.
PATIENT = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow], "database": None}
hypothesis.settings.register_profile("repeat", derandomize=True, max_examples=30, **PATIENT)
hypothesis.settings.register_profile("search", **PATIENT)
hypothesis.settings.load_profile("repeat")

# Helpers that Python keeps, once started, until the interpreter ends.
PYTHON_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
# A Ray worker between two tasks: it belongs to its node, not to the test that used it last.
RAY_IDLE = ("ray::IDLE", "ray::SPILL_", "ray::RESTORE_", "ray::DELETE_")
# What a Ray node consists of. It is let off only in a cluster that is older than the test.
RAY_DAEMONS = (
    "/gcs_server",
    "/raylet",
    "/ray/autoscaler/",
    "/ray/dashboard/",
    "/ray/_private/log_monitor.py",
    "/ray/_private/workers/",  # a worker that has not registered yet
    "/ray/_private/runtime_env/",
    "ray::DashboardAgent",
    "ray::RuntimeEnvAgent",
    "ray-dashboard",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What `-n auto` means here."""
    return side_by_side.workers()


def pytest_configure(config: pytest.Config) -> None:
    """A worker of pytest-xdist parts from the others."""
    if hasattr(config, "workerinput"):
        side_by_side.part()


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives each test the mark of its folder, and of the group that one worker plays."""
    for item in items:
        parts = item.path.relative_to(TESTS).parts if item.path.is_relative_to(TESTS) else ()
        if parts and parts[0] in FOLDER_MARKS:
            item.add_marker(parts[0])
        group = side_by_side.group_of({mark.name for mark in item.iter_markers()}, item.path.stem)
        item.add_marker(pytest.mark.xdist_group(group))


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A line of the process table. `start_ticks` tells a process from a later one of the same pid."""

    pid: int
    parent_pid: int
    start_ticks: int
    command: str

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.start_ticks


@dataclass(frozen=True, slots=True, kw_only=True)
class Belongings:
    """What the test process owns at one moment."""

    processes: dict[int, Process]
    shm_names: frozenset[str]
    threads: frozenset[threading.Thread]


def read_process(directory: Path) -> tuple[Process, bool] | None:
    """Reads a process from /proc and whether it carries the run's mark; None if it is gone or a zombie."""
    try:
        # The command name in parentheses may itself hold blanks and parentheses.
        state, parent, *rest = (directory / "stat").read_text().rpartition(")")[2].split()
        command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        is_marked = "=".join(RUN_MARK).encode() in (directory / "environ").read_bytes()
    except OSError:
        return None
    if state in "ZX":
        return None
    pid = int(directory.name)
    return Process(pid=pid, parent_pid=int(parent), start_ticks=int(rest[17]), command=command), is_marked


def started_processes() -> dict[int, Process]:
    """Returns the descendants of this process, and their orphans, by pid."""
    found = [read for path in Path("/proc").glob("[0-9]*") if (read := read_process(path)) is not None]
    ours = {process.pid for process, is_marked in found if is_marked} | {os.getpid()}
    grown = True
    while grown:
        children = {process.pid for process, _ in found if process.parent_pid in ours}
        grown = not children <= ours
        ours |= children
    ours.discard(os.getpid())
    return {process.pid: process for process, _ in found if process.pid in ours}


def belongings() -> Belongings:
    """Looks at what the test process owns now."""
    return Belongings(
        processes=started_processes(),
        shm_names=frozenset(path.name for path in Path("/dev/shm").glob("elastic-*")),
        threads=frozenset(t for t in threading.enumerate() if not t.daemon),
    )


def is_excused(process: Process, now: Belongings, before: Belongings) -> bool:
    """Whether a new process is no leak: a helper of Python, or part of a Ray cluster older than the test."""
    if any(helper in process.command for helper in PYTHON_HELPERS):
        return True
    is_ray = process.command.startswith(RAY_IDLE) or any(name in process.command for name in RAY_DAEMONS)
    if not is_ray:
        return False
    ancestor = now.processes.get(process.parent_pid)
    while ancestor is not None:
        old = before.processes.get(ancestor.pid)
        if old is not None and old.identity == ancestor.identity:
            return True
        ancestor = now.processes.get(ancestor.parent_pid)
    return False


def leaked_processes(now: Belongings, before: Belongings) -> list[Process]:
    """Returns the processes started since `before` that are not excused."""
    old = {process.identity for process in before.processes.values()}
    new = [process for process in now.processes.values() if process.identity not in old]
    return [process for process in new if not is_excused(process, now, before)]


def leaked_files(now: Belongings, before: Belongings) -> list[str]:
    """Returns the files in shared memory since `before`, less those that a process of somebody else has mapped."""
    new = now.shm_names - before.shm_names
    return sorted(name for name in new if not is_mapped_by_a_stranger(name, set(now.processes) | {os.getpid()}))


def is_mapped_by_a_stranger(name: str, ours: set[int]) -> bool:
    """Whether a process that is not ours uses the file: a run beside the tests on the same machine."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        if int(maps.parent.name) in ours:
            continue
        try:
            if f"/dev/shm/{name}\n" in maps.read_text():
                return True
        except OSError:
            continue  # it has ended
    return False


def leaks(now: Belongings, before: Belongings) -> list[str]:
    """Returns one line for each thing that was not there before."""
    processes = [f"process {p.pid}: {p.command[:160]}" for p in leaked_processes(now, before)]
    files = [f"file /dev/shm/{name}" for name in leaked_files(now, before)]
    threads = [f"thread {t.name}" for t in now.threads - before.threads]
    return processes + files + threads


def end(process: Process) -> None:
    """Ends a leaked process, so that one leak does not spoil the tests that follow."""
    read = read_process(Path("/proc") / str(process.pid))
    if read is not None and read[0].identity == process.identity:
        os.kill(process.pid, signal.SIGKILL)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Of each run of a test, whoever drove it and however it ended, the ledger adds up, and nothing is unknown."""
    done = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if folder is not None and any(item.get_closest_marker(name) for name in RUNNING):
        for journal in sorted(folder.rglob("journal.jsonl")):
            booked(journal)
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test of a run shows how its journal ends: what happened is there, and the folder may be out of reach."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.when == "call" and report.failed and folder is not None:
        for journal in sorted(folder.rglob("journal.jsonl")):
            lines = journal.read_text().splitlines()[-JOURNAL_LINES:]
            report.sections.append((f"end of {journal}", "\n".join(line[:JOURNAL_COLUMNS] for line in lines)))
        told = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
        report.sections.append(("what failed, again: the ends of long logs are what is kept", "\n".join(told)))
    return report


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test after which something of its own is still there when the grace period ends.

    Pytest sets up fixtures of wider scope first, so their processes count as older than the test.
    """
    if request.node.get_closest_marker("pure") is not None:
        yield
        return
    before = belongings()
    yield
    deadline_s = time.monotonic() + GRACE_S
    while leaks(now := belongings(), before) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    if found := leaks(now, before):
        for process in leaked_processes(now, before):
            end(process)
        for name in leaked_files(now, before):
            (Path("/dev/shm") / name).unlink(missing_ok=True)
        pytest.fail(f"left behind {GRACE_S:g} s after the test:\n  " + "\n  ".join(found), pytrace=False)
