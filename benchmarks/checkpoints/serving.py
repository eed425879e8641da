"""A process that keeps checkpoints when it is told to, and says how long each part took."""

import argparse
import contextlib
import importlib.metadata
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint import CheckpointException

from benchmarks.checkpoints.state import timed

TURN_S = 300.0  # between two words of the one who asks
PACKAGES = ("torch", "ray", "torchft", "nvidia-resiliency-ext")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a process is started with.

    Attributes:
        address: where to ask for turns, HOST:PORT. ramdisk, disk: folders of its own.
    """

    address: str
    nbytes: int
    step_memcpys: float
    ramdisk: Path
    disk: Path


class Keeper:
    """A way to keep a checkpoint. `has`: the figures that mean something for it.

    stall_s: the training thread waits in `begin` and in `fence`, with a step between.
    process_s, node_s: from `begin` until another process, another node, could go on with it if this one died.
    durable_s: from the state at rest until all files are synced.
    restore_s: until the state holds what was kept last.
    """

    has: tuple[str, ...] = ()

    def begin(self) -> None:
        """The training comes to the point where it wants a checkpoint."""

    def fence(self) -> None:
        """From here the state may change."""

    def process(self) -> None:
        """Wait until it survives this process."""

    def node(self) -> None:
        """After that, wait until it survives this node."""

    def durable(self) -> None:
        """Keep one, from the beginning, in synced files on the disk."""

    def restore(self) -> None:
        """Have the state of the last one back."""

    def clear(self) -> None:
        """Make room for the next one; not measured."""

    def close(self) -> None:
        """End what was started."""


def measured(keeper: Keeper, work: Callable[[], None]) -> dict[str, float]:
    """One repetition; seconds by figure, those in `has`."""
    row = {"stall_s": timed(keeper.begin)}
    work()
    row["stall_s"] += timed(keeper.fence)
    keeper.process()
    keeper.clear()
    began_s = time.perf_counter()
    keeper.begin()
    keeper.fence()
    keeper.process()
    row["process_s"] = time.perf_counter() - began_s
    if "node_s" in keeper.has:
        keeper.node()
        row["node_s"] = time.perf_counter() - began_s
    if "restore_s" in keeper.has:
        row["restore_s"] = timed(keeper.restore)
    keeper.clear()
    if "durable_s" in keeper.has:
        row["durable_s"] = timed(keeper.durable)
        keeper.clear()
    return {name: seconds for name, seconds in row.items() if name in keeper.has}


def serve(task: Task, keepers: Mapping[str, Keeper], work: Callable[[], None]) -> None:
    """Say what is installed, then take turns, a name in, a row out, a line each, until the one who asks hangs up."""
    host, port = task.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=TURN_S) as connection, connection.makefile("rw") as file:
        print(json.dumps(versions()), file=file, flush=True)
        for line in file:
            row = _row(keepers[line.strip()], work)
            print(json.dumps(row), file=file, flush=True)


def versions() -> dict[str, str]:
    """Of what is measured here, as far as this environment has it."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _row(keeper: Keeper, work: Callable[[], None]) -> dict[str, float | str]:
    try:
        return dict(measured(keeper, work))
    except (Exception, CheckpointException) as error:  # it is the row's reason; the latter is no Exception
        return {"note": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}


def task_from_arguments() -> Task:
    """For a module's `main`; torch gets one thread."""
    parser = argparse.ArgumentParser(description="Keeps checkpoints in turns; benchmarks.checkpoint_systems starts it.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--nbytes", type=int, required=True)
    parser.add_argument("--step-memcpys", type=float, required=True)
    parser.add_argument("--ramdisk", type=Path, required=True)
    parser.add_argument("--disk", type=Path, required=True)
    torch.set_num_threads(1)
    return Task(**vars(parser.parse_args()))
