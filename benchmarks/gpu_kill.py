"""A worker of a run on GPUs is killed between two sums; the others go on. Without Ray.

    python -m benchmarks.gpu_kill folder cuda 1      # what `benchmarks.gpu` calls for each repetition

Each worker has a GPU of its own, or they share the one there is. Times are of one clock, from just before the kill.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_group import apart
from benchmarks.gpu_step import DEADLINE_S, MICRO_BATCHES, SAMPLES, Numbers, new_model
from elastic.actors.driver import Driver
from elastic.actors.journal import Journal
from elastic.actors.process_fleet import ProcessFleet
from elastic.actors.supervisor import Supervisor
from elastic.control.outcome import Ending
from elastic.control.state import RunState
from elastic.policies import Ladder
from elastic.settings import Limits, RunSettings, Scaling

WORLD = 3
WIDTH = 256  # little to send: processes that share a GPU talk through sockets
KILLED_AT, STEPS = 40, 80
FIGURES = ("step_s", "resumed_s")


def train(session: Any, *, folder: Path, device: str, fault: int) -> None:
    """Writes a line of time and generation for each committed step; the last rank strikes itself once."""
    os.environ.update(apart(session.worker, WORLD))
    if device == "cuda":
        torch.cuda.set_device(int(session.worker.strip("w")) % torch.cuda.device_count())
    batch = torch.ones(SAMPLES, WIDTH, device=device)
    model = session.prepare(new_model(device, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters())
    session.track(model=model, optimizer=optimizer)
    batches = session.batches(Numbers(), batch_size=WORLD * MICRO_BATCHES, micro_batch_size=1)
    with (folder / f"{session.worker}.txt").open("w", buffering=1) as log:
        for step in session.steps(batches, max_steps=STEPS):
            with step:
                for number, _ in enumerate(step):
                    if step.index == KILLED_AT and step.generation == 1 and session.rank == WORLD - 1 and number == 1:
                        (folder / "fault").write_text(str(time.monotonic()))
                        os.kill(os.getpid(), fault)
                    step.backward(model(batch).square().mean())
                step.apply(optimizer)
            log.write(f"{time.monotonic()} {step.index} {step.generation}\n")


def drive(folder: Path, device: str, fault: int) -> None:
    """The run, in this process and its children."""
    settings = RunSettings(
        run=f"benchmark-kill-{os.getpid()}",
        scaling=Scaling(num_dp_replicas=(1, WORLD), use_gpu=device == "cuda"),
        limits=Limits(start_timeout_s=DEADLINE_S),
    )
    driver = Driver(Supervisor(RunState(settings=settings), Ladder()), Journal(folder / "run"), [])
    function = partial(train, folder=folder, device=device, fault=fault)
    fleet = ProcessFleet(settings, function, ["node"] * WORLD, 0, driver.emit)
    try:
        finished = driver.run(fleet)
        if finished.outcome.ending is not Ending.SUCCEEDED:
            sys.exit(finished.outcome.message)
    finally:
        fleet.shutdown()


def once(device: str, fault: int) -> dict[str, float]:
    """Seconds of a step before the fault, and from the fault to the survivors' next commit.

    Raises:
        RuntimeError: the run ended before that, or nothing befell it.
    """
    with tempfile.TemporaryDirectory(prefix="bench-kill-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "benchmarks.gpu_kill", name, device, str(fault)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        logs = [[line.split() for line in path.read_text().splitlines()] for path in folder.glob("w*.txt")]
        struck = folder / "fault"
        if done.returncode or not struck.exists():
            raise RuntimeError(f"the run ended with code {done.returncode}: {done.stderr.strip()[-300:]}")
        fault_s = float(struck.read_text())
    commits = [(float(time_s), int(step), int(generation)) for log in logs for time_s, step, generation in log]
    after = [time_s for time_s, step, generation in commits if generation > 1 and step >= KILLED_AT]
    before = sorted({step: time_s for time_s, step, _ in commits if step < KILLED_AT}.values())
    pairs = zip(before, before[1:], strict=False)
    return {"step_s": statistics.median(later - one for one, later in pairs), "resumed_s": min(after) - fault_s}


def measure(device: str, repeats: int, fault: int = signal.SIGKILL) -> dict[str, float]:
    """Medians."""
    found = [once(device, fault) for _ in range(repeats)]
    return {name: statistics.median(one[name] for one in found) for name in FIGURES}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A run of some workers; see the module.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("device")
    parser.add_argument("fault", type=int)
    drive(**vars(parser.parse_args()))
