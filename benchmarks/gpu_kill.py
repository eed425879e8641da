"""A worker of a run on GPUs is killed between two sums; the others go on. Without Ray.

    python -m benchmarks.gpu_kill folder cuda 1      # what `benchmarks.gpu` calls for each repetition

Each worker has a GPU of its own, or they share the one there is. Times are of one clock, from just before the kill.
"""

import argparse
import os
import signal
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_group import apart
from benchmarks.gpu_run import play, play_apart
from benchmarks.gpu_step import MICRO_BATCHES, SAMPLES, Numbers, new_model
from elastic.settings import Scaling

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
    scaling = Scaling(num_dp_replicas=(1, WORLD), use_gpu=device == "cuda")
    play(partial(train, folder=folder, device=device, fault=fault), folder / "run", scaling)


def once(device: str, fault: int) -> dict[str, float]:
    """Seconds of a step before the fault, and from the fault to the survivors' next commit.

    Raises:
        RuntimeError: the run ended before that, or nothing befell it.
    """
    with tempfile.TemporaryDirectory(prefix="bench-kill-") as name:
        folder = Path(name)
        play_apart("benchmarks.gpu_kill", name, device, str(fault))
        logs = [[line.split() for line in path.read_text().splitlines()] for path in folder.glob("w*.txt")]
        struck = folder / "fault"
        if not struck.exists():
            raise RuntimeError("the run ended, and nothing had befallen it")
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
