"""A step with this library and without it, in turns, in a run of one worker on one device, without Ray.

The worker trains two equal models: one in the run's steps, one in a plain loop. A block of steps of one follows a block
of the other, so both meet the same clocks and the same neighbours. At the end of a block the device is waited for.
"""

import argparse
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_run import DEADLINE_S, play, play_apart
from elastic.settings import Scaling

WIDTHS = {"cuda": 2048, "cpu": 128}
MICRO_BATCHES, SAMPLES = 4, 64
STEPS = 20  # of a block


class Numbers:
    """As many as there are steps."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> int:
        return index


def new_model(device: str, width: int = 0) -> torch.nn.Module:
    width = width or WIDTHS[torch.device(device).type]
    layers = [torch.nn.Linear(width, width) for _ in range(4)]
    return torch.nn.Sequential(*layers).to(device)


class Clock:
    """Seconds of blocks; the device has done its work when one ends."""

    def __init__(self, device: str) -> None:
        self._is_gpu = torch.device(device).type == "cuda"
        self._began_s = 0.0

    def begin(self) -> None:
        self._settle()
        self._began_s = time.perf_counter()

    def end(self) -> float:
        self._settle()
        return time.perf_counter() - self._began_s

    def _settle(self) -> None:
        if self._is_gpu:
            torch.cuda.synchronize()


class Plain:
    """The loop that one would write without this library."""

    def __init__(self, device: str, batch: torch.Tensor) -> None:
        self._model, self._batch = new_model(device), batch
        self._optimizer = torch.optim.AdamW(self._model.parameters())

    def block(self) -> None:
        for _ in range(STEPS):
            for _ in range(MICRO_BATCHES):
                (self._model(self._batch).square().mean() / MICRO_BATCHES).backward()
            self._optimizer.step()
            self._optimizer.zero_grad()


def train(session: Any, *, out: Path, device: str, blocks: int) -> None:
    """Writes {"elastic": seconds of blocks, "plain": seconds of blocks}; the first ones warm up."""
    batch = torch.ones(SAMPLES, WIDTHS[torch.device(device).type], device=device)
    plain, clock = Plain(device, batch), Clock(device)
    model = session.prepare(new_model(device))
    optimizer = torch.optim.AdamW(model.parameters())
    session.track(model=model, optimizer=optimizer)
    seconds: dict[str, list[float]] = {"elastic": [], "plain": []}
    batches = session.batches(Numbers(), batch_size=MICRO_BATCHES, micro_batch_size=1)
    for step in session.steps(batches, max_steps=(1 + blocks) * STEPS + 1):
        if step.number % STEPS == 0:
            seconds["elastic"] += [clock.end()] if step.number else []
            clock.begin()
            plain.block()
            seconds["plain"].append(clock.end())
            clock.begin()
        with step:
            for _ in step:
                step.backward(model(batch).square().mean())
            step.apply(optimizer)
    out.write_text(json.dumps(seconds))


def drive(folder: Path, device: str, blocks: int) -> None:
    """The run, in this process and its child."""
    function = partial(train, out=folder / "seconds.json", device=device, blocks=blocks)
    play(function, folder, Scaling(use_gpu=torch.device(device).type == "cuda"), hang_floor_s=DEADLINE_S)


def measure(device: str, blocks: int) -> dict[str, float]:
    """Seconds of a step on each side, and the ratio of speeds: medians over blocks.

    Raises:
        RuntimeError: the run ended without figures; says how.
    """
    with tempfile.TemporaryDirectory(prefix="bench-step-") as folder:
        play_apart("benchmarks.gpu_step", folder, device, str(blocks))
        seconds = json.loads((Path(folder) / "seconds.json").read_text())
    pairs = list(zip(seconds["plain"], seconds["elastic"], strict=False))[1:]
    return {
        "plain_s": statistics.median(plain for plain, _ in pairs) / STEPS,
        "elastic_s": statistics.median(elastic for _, elastic in pairs) / STEPS,
        "ratio": statistics.median(plain / elastic for plain, elastic in pairs),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A run of one worker; see the module.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("device")
    parser.add_argument("blocks", type=int)
    drive(**vars(parser.parse_args()))
