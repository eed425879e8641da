"""A process that keeps checkpoints when it is told to, and says how long each part took."""

import argparse
import importlib.metadata
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint import CheckpointException

from benchmarks.checkpoints.state import timed

TURN_S = 300.0  # between two words of the one who asks
AWAY = "away"
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

    Attributes:
        storage: folders that stand for a bucket; all else is memory, or another process's.
    """

    has: tuple[str, ...] = ()
    storage: tuple[Path, ...] = ()

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
    row["process_s"] = timed(lambda: _kept(keeper))
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


def outlasted(keeper: Keeper) -> dict[str, float]:
    """One repetition while the storage is away: until the state survives the process; what does must give it back."""
    with ExitStack() as stack:
        for folder in keeper.storage:
            stack.enter_context(away(folder))
        outage_s = timed(lambda: _kept(keeper))
        keeper.node()  # some give back what another node holds
        keeper.restore()
    keeper.clear()
    return {"outage_s": outage_s}


@contextmanager
def away(folder: Path) -> Iterator[None]:
    """A file lies where the folder was, or would be: nothing is written or read there."""
    aside = folder.with_name(f"{folder.name}-aside")
    if folder.exists():
        folder.rename(aside)
    folder.touch()
    try:
        yield
    finally:
        folder.unlink()
        if aside.exists():
            aside.rename(folder)


def _kept(keeper: Keeper) -> None:
    keeper.begin()
    keeper.fence()
    keeper.process()


def serve(task: Task, keepers: Mapping[str, Keeper], work: Callable[[], None]) -> None:
    """Say what is installed, then take turns, a name in, a row out, a line each, until the one who asks hangs up.

    After a name may stand AWAY: the turn is taken while the storage is away.
    """
    host, port = task.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=TURN_S) as connection, connection.makefile("rw") as file:
        print(json.dumps(versions()), file=file, flush=True)
        for line in file:
            name, *how = line.split()
            keeper = keepers[name]
            row = outage_row(keeper) if how == [AWAY] else _row(lambda keeper=keeper: measured(keeper, work))
            print(json.dumps(row), file=file, flush=True)


def versions() -> dict[str, str]:
    """Of what is measured here, as far as this environment has it."""
    found = {}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def outage_row(keeper: Keeper) -> dict[str, float | str]:
    """What was `lost`, if it was, because its storage was away; where it has none, a failure is one as any."""
    row = _row(lambda: outlasted(keeper))
    return {"lost": row["note"]} if keeper.storage and "note" in row else row


def _row(turn: Callable[[], Mapping[str, float]]) -> dict[str, float | str]:
    try:
        return dict(turn())
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
