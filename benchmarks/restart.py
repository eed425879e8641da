"""How long a whole-job restart takes to have its state back from the memory tier.

Two workers train in processes of their own, with a driver in another. Once a step is staged, all of them are killed
at once: nobody is left but the slots in shared memory. A second driver is started, and its workers restore. Measured is
the time from when the last worker stands at the door until the last one has the state, by the journal.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from elastic.actors.driver import Driver
from elastic.actors.journal import Journal
from elastic.actors.process_fleet import ProcessFleet
from elastic.actors.supervisor import Supervisor
from elastic.actors.tiers import Tiers
from elastic.checkpoint import memory
from elastic.checkpoint.reach import Reach
from elastic.control.state import RunState
from elastic.policies import Ladder
from elastic.settings import Checkpoint, Interval, Limits, RunSettings, Scaling

WORKERS = 2
TENSORS = 16
STAGED_STEP = 2  # by then the optimizer's moments are there, and pages are warm
DEADLINE_S = 300.0
PAUSE_S = 0.05


class Numbers:
    """As many as there are steps."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> int:
        return index


def train(session: Any, *, folder: Path, nbytes: int) -> None:
    """A state of `nbytes`, and hardly any computing."""
    (folder / f"{os.getpid()}.pid").touch()
    elements = nbytes // 3 // 4 // TENSORS
    model = session.prepare(torch.nn.ParameterList(torch.ones(elements) for _ in range(TENSORS)))
    optimizer = torch.optim.AdamW(model.parameters())
    session.track(model=model, optimizer=optimizer)
    batches = session.batches(Numbers(), batch_size=WORKERS, micro_batch_size=1)
    for step in session.steps(batches, max_steps=len(Numbers()) // WORKERS):
        with step:
            for _ in step:
                step.backward(sum(param.sum() for param in model))
            step.apply(optimizer)


def drive(folder: Path, memory_folder: Path, run: str, nbytes: int) -> None:
    """One life of the driver; it ends by being killed."""
    (folder / f"{os.getpid()}.pid").touch()
    settings = RunSettings(
        run=run,
        scaling=Scaling(num_dp_replicas=WORKERS),
        checkpoint=Checkpoint(local_interval=Interval(steps=1), memory=str(memory_folder), peers=0),
        limits=Limits(hang_floor_s=DEADLINE_S),
    )
    assert settings.checkpoint is not None
    tiers = Tiers(run, Reach(run, settings.checkpoint), lambda event: driver.emit(event), timeout_s=DEADLINE_S)
    incarnation, forks = tiers.begin()
    settings = replace(settings, incarnation=incarnation)
    driver = Driver(Supervisor(RunState(settings=settings, forks=forks), Ladder()), Journal(folder), [])
    fleet = ProcessFleet(settings, partial(train, folder=folder, nbytes=nbytes), ["node"] * WORKERS, 0, driver.emit)
    driver.run(fleet, tiers)


@contextmanager
def life(folder: Path, memory_folder: Path, run: str, nbytes: int) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """A driver and its workers, all killed at the end; yields what reads their journal."""
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.restart", str(folder), str(memory_folder), run, str(nbytes)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)

    def journal() -> list[dict[str, Any]]:
        if process.poll() is not None:
            raise SystemExit(f"the driver ended by itself: {(folder / 'log').read_text()[-2000:]}")
        path = folder / "journal.jsonl"
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    try:
        yield journal
    finally:
        process.kill()
        for mark in folder.glob("*.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(mark.stem), signal.SIGKILL)
        process.wait()


def wait_for(found: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        if answer := found():
            return answer
        time.sleep(PAUSE_S)
    raise SystemExit(f"{what} did not happen within {DEADLINE_S:g} s")


def restarted(scratch: Path, number: int, nbytes: int) -> dict[str, float]:
    """One run, killed and started again: seconds of its restore, and of all from the start of the second driver."""
    run, memory_folder = f"benchmark-restart-{os.getpid()}-{number}", scratch / f"memory-{number}"
    memory_folder.mkdir()
    try:
        with life(scratch / f"first-{number}", memory_folder, run, nbytes) as journal:
            wait_for(lambda: [one for one in journal() if _is_staged(one)], "a snapshot")
        began_s = time.time()
        with life(scratch / f"second-{number}", memory_folder, run, nbytes) as journal:
            restored = wait_for(lambda: _all(journal(), "Restored"), "a restore")
            up_s = max(one["t"] for one in _all(journal(), "WorkerParked"))
        ended_s = max(one["t"] for one in restored)
        return {
            "restart_restore_s": ended_s - up_s,
            "restart_s": ended_s - began_s,
            "restart_bytes": max(one["nbytes"] for one in restored),
        }
    finally:
        memory.remove(memory_folder, run)
        for page in Path("/dev/shm").glob(f"elastic-{run}[-@]*"):
            page.unlink(missing_ok=True)


def measure(directory: Path, nbytes: int, repeats: int) -> dict[str, float]:
    """Medians."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="benchmark-restart-") as scratch:
        rows = [restarted(Path(scratch), number, nbytes) for number in range(repeats)]
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def _is_staged(line: dict[str, Any]) -> bool:
    return line.get("event") == "ShardStaged" and line["commit"]["step"] >= STAGED_STEP


def _all(journal: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    """The first such line of each worker, once there are as many as workers."""
    found = {line["worker"]: line for line in reversed(journal) if line.get("event") == event}
    return list(found.values()) if len(found) == WORKERS else []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One life of a driver; see the module.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("memory_folder", type=Path)
    parser.add_argument("run")
    parser.add_argument("nbytes", type=int)
    drive(**vars(parser.parse_args()))
