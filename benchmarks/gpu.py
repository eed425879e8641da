"""What this library costs on a GPU, on one machine without Ray, and how a run on GPUs comes back from a loss.

    python -m benchmarks.gpu --out gpu.json          # --parts snapshot,copies, --bytes 1GiB

    snapshot   a step of matrix products with and without a snapshot; the difference, and how much the host waits
    copies     device to page-locked host memory, torch's and a slot's, against the link's limit
    digest     64 bits over all state, as replicas vote on
    step       a small model's step in a run of one worker, against the same loop without this library, in turns
    nvml       a look of the host monitor at the real driver, and whether it says what torch says
    nccl       a process is killed in an all-reduce: abort, a new group of the survivors, its first all-reduce
    kill       a worker of a run of three is killed between two sums: the survivors' next commit
    stop       the same with SIGSTOP: nothing but its silence tells

In the last three, processes have a GPU each, or share the one there is: then NCCL's speed says nothing, the rest does.
Nothing is estimated: a part that cannot be measured here leaves its rows empty, and says why.
"""

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_group, gpu_kill, gpu_step
from benchmarks.checkpoints.bench import Bench, size
from benchmarks.checkpoints.bench import Settings as Snapshots
from benchmarks.checkpoints.state import timed
from benchmarks.provenance import provenance
from elastic.checkpoint import memory
from elastic.checkpoint.arena import Arena
from elastic.hosts.nvml import Gpus, NoGpusError
from elastic.train.copies import pin

NO_GPU = "torch sees no GPU here: run this on a machine with one, and a build of torch for it"
# GB/s of a lane in one direction after encoding, by generation: PCI Express Base Specification, 6.0.
LANE_GB_PER_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
WARM_UP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is measured.

    Attributes:
        faults: of each kind.
        step_copies: length of the step of `snapshot`, in copies of the state to the host.
    """

    nbytes: int = 1 << 30
    repeats: int = 20
    faults: int = 5
    step_copies: float = 3.0
    matrix: int = 4096
    device: str = "cuda"
    directory: str = "/dev/shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A group of rows.

    Attributes:
        rows: key of `measure`'s answer -> (what, unit).
        gpus: that it needs.
    """

    measure: Callable[[Settings], dict[str, float]]
    rows: dict[str, tuple[str, str]]
    gpus: int = 1


def settle(device: str) -> None:
    """Wait until the device has done all that it was told."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


class Product:
    """A step's work on the device: products of matrices, launched without waiting."""

    def __init__(self, settings: Settings, copy_s: float) -> None:
        self._one = torch.randn(settings.matrix, settings.matrix, device=settings.device)
        self._rounds = 1
        self()
        settle(settings.device)
        round_s = statistics.median(timed(lambda: (self(), settle(settings.device))) for _ in range(5))
        self._rounds = max(1, round(settings.step_copies * copy_s / round_s))

    def __call__(self) -> None:
        for _ in range(self._rounds):
            self._one @ self._one


def snapshot(settings: Settings) -> dict[str, float]:
    """Seconds of a step, and of its parts."""
    made = Snapshots(nbytes=settings.nbytes, directory=settings.directory)
    with tempfile.TemporaryDirectory(dir=settings.directory, prefix="bench-gpu-") as scratch:
        bench = Bench(made, Path(scratch), run=f"benchmark-gpu-{os.getpid()}", device=settings.device)
        host = [torch.empty_like(tensor, device="cpu") for tensor in bench.tensors]
        copy_s = statistics.median(timed(lambda: _copy(host, bench.tensors)) for _ in range(3))
        work = Product(settings, copy_s)
        rows = []
        try:
            for _ in range(WARM_UP + settings.repeats):
                plain_s, _ = _step(bench, work, settings, is_taken=False)
                with_s, host_s = _step(bench, work, settings, is_taken=True)
                at_once_s, _ = _step(bench, work, settings, is_taken=True, is_blocking=True)
                rows.append((plain_s, with_s - plain_s, host_s, at_once_s - plain_s))
        finally:
            memory.remove(Path(settings.directory), bench.run)
    step_s, stall_s, host_s, at_once_s = (statistics.median(column) for column in zip(*rows[WARM_UP:], strict=True))
    return {"step_s": step_s, "stall_s": stall_s, "host_s": host_s, "at_once_s": at_once_s}


def _copy(targets: Iterable[torch.Tensor], sources: Iterable[torch.Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def _step(
    bench: Bench, work: Product, settings: Settings, is_taken: bool, is_blocking: bool = False
) -> tuple[float, float]:
    """Seconds until the device is done with the step and its update; of these, the host waited in door and fence."""
    snapshots = bench.snapshots
    snapshots.is_blocking, host_s, commit = is_blocking, 0.0, None
    settle(settings.device)
    began_s = time.perf_counter()
    if is_taken:
        commit = bench.door()
        host_s = time.perf_counter() - began_s
    work()
    if is_taken:
        host_s += timed(snapshots.fence)
    with torch.no_grad():
        for param in bench.model:  # what must not begin before the copies are done
            param.add_(0.0)
    settle(settings.device)
    seconds = time.perf_counter() - began_s
    if commit is not None:
        snapshots.stable(commit)
        snapshots.flush()
    snapshots.is_blocking = False
    return seconds, host_s


def copies(settings: Settings) -> dict[str, float]:
    """GB/s from the device into page-locked memory; the limit of its link by NVML, one direction."""
    source = torch.ones(settings.nbytes, dtype=torch.uint8, device=settings.device)
    found = {
        "pinned_gb_per_s": _speed(torch.empty(settings.nbytes, dtype=torch.uint8, pin_memory=True), source, settings)
    }
    with tempfile.TemporaryDirectory(dir=settings.directory, prefix="bench-gpu-") as folder:
        arena = Arena(Path(folder), "copies", 1, "w0", slots=1)
        slot = arena.begin(settings.nbytes)
        if slot is None:
            raise RuntimeError("a new arena has no free slot")
        pin(slot, slot.payload)
        found["slot_gb_per_s"] = _speed(torch.from_numpy(slot.payload[: settings.nbytes]), source, settings)
        slot.abandon()
        arena.close()
    found["limit_gb_per_s"] = link_gb_per_s()
    found["share"] = found["slot_gb_per_s"] / found["limit_gb_per_s"]
    return found


def _speed(target: torch.Tensor, source: torch.Tensor, settings: Settings) -> float:
    seconds = []
    for _ in range(WARM_UP + settings.repeats):
        settle(settings.device)
        seconds.append(timed(lambda: (target.copy_(source, non_blocking=True), settle(settings.device))))
    return settings.nbytes / 1e9 / statistics.median(seconds[WARM_UP:])


def link_gb_per_s() -> float:
    """Of the link that the GPU and its slot have in common: generation times lanes.

    Raises:
        RuntimeError: a generation that this table does not know.
    """
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid())
        generation = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        lanes = pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    finally:
        pynvml.nvmlShutdown()
    if generation not in LANE_GB_PER_S:
        raise RuntimeError(f"PCI Express generation {generation} is not in this table")
    return LANE_GB_PER_S[generation] * lanes


def uuid() -> str:
    """Of torch's first GPU, as NVML writes it."""
    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def digest(settings: Settings) -> dict[str, float]:
    """Seconds, and bytes a second."""
    with tempfile.TemporaryDirectory(dir=settings.directory, prefix="bench-gpu-") as scratch:
        made = Snapshots(nbytes=settings.nbytes, directory=settings.directory)
        bench = Bench(made, Path(scratch), run=f"benchmark-gpu-{os.getpid()}", device=settings.device)
        try:
            seconds = [timed(bench.tracked.digests) for _ in range(WARM_UP + settings.repeats)][WARM_UP:]
        finally:
            bench.snapshots.flush()
            memory.remove(Path(settings.directory), bench.run)
    middle_s = statistics.median(seconds)
    return {"digest_s": middle_s, "digest_gb_per_s": bench.nbytes / 1e9 / middle_s}


def step(settings: Settings) -> dict[str, float]:
    """Seconds of a step with and without this library, and the ratio of speeds; blocks in turns."""
    return gpu_step.measure(settings.device, blocks=settings.repeats)


def nvml(settings: Settings) -> dict[str, float]:
    """How long looks take, and whether the driver's word fits torch's.

    Raises:
        RuntimeError: no driver answers, or it says something else than torch does.
    """
    try:
        gpus = Gpus()
    except NoGpusError as error:
        raise RuntimeError(str(error)) from error
    try:
        seldom = [timed(lambda: gpus.read(with_links=True)) for _ in range(settings.repeats)]
        often = [timed(lambda: gpus.read(with_links=False)) for _ in range(settings.repeats)]
        readings = {reading.device: reading for reading in gpus.read(with_links=True)}
        unseen = len(gpus.unseen)
    finally:
        gpus.close()
    _compare(readings)
    return {
        "often_ms": 1e3 * statistics.median(often),
        "seldom_ms": 1e3 * statistics.median(seldom),
        "gpus": len(readings),
        "unseen": unseen,
    }


def _compare(readings: dict[str, Any]) -> None:
    """The driver must know torch's GPU, at about its size."""
    if not torch.cuda.is_available():
        return
    mine = readings.get(uuid())
    if mine is None:
        raise RuntimeError(f"NVML does not know {uuid()}, which torch uses; it knows {', '.join(readings)}")
    total = torch.cuda.get_device_properties(0).total_memory
    if mine.memory_bytes is None or not 0.8 < mine.memory_bytes / total < 1.25:
        raise RuntimeError(f"NVML says that {uuid()} has {mine.memory_bytes} bytes, torch {total}")


def nccl(settings: Settings) -> dict[str, float]:
    """Seconds from the kill."""
    return gpu_group.measure("nccl", max(gpu_group.LEAST, torch.cuda.device_count()), settings.faults)


def kill(settings: Settings) -> dict[str, float]:
    """Seconds of a step, and from the kill."""
    return gpu_kill.measure(settings.device, settings.faults)


def stop(settings: Settings) -> dict[str, float]:
    """Seconds from the stop."""
    found = gpu_kill.measure(settings.device, settings.faults, signal.SIGSTOP)
    return {"resumed_s": found["resumed_s"]}


PARTS = {
    "snapshot": Part(
        measure=snapshot,
        rows={
            "step_s": ("a step without a snapshot", "s"),
            "stall_s": ("a snapshot beside a step: what the step takes longer", "s"),
            "host_s": ("of that, the host waits", "s"),
            "at_once_s": ("a snapshot that is copied at the door altogether: what the step takes longer", "s"),
        },
    ),
    "copies": Part(
        measure=copies,
        rows={
            "pinned_gb_per_s": ("device to page-locked memory of torch", "GB/s"),
            "slot_gb_per_s": ("device to a page-locked slot", "GB/s"),
            "limit_gb_per_s": ("the link's limit", "GB/s"),
            "share": ("slot, of the limit", ""),
        },
    ),
    "digest": Part(
        measure=digest, rows={"digest_s": ("a digest of all state", "s"), "digest_gb_per_s": ("the same", "GB/s")}
    ),
    "step": Part(
        measure=step,
        rows={
            "plain_s": ("a step without this library", "s"),
            "elastic_s": ("a step with it", "s"),
            "ratio": ("steps per second against without", ""),
        },
    ),
    "nvml": Part(
        measure=nvml,
        rows={
            "often_ms": ("a look of the host monitor at all GPUs", "ms"),
            "seldom_ms": ("the same, with links and processes", "ms"),
            "gpus": ("GPUs seen", ""),
            "unseen": ("kinds of news that some GPU does not tell", ""),
        },
    ),
    "nccl": Part(
        measure=nccl,
        rows={
            "abort_s": ("kill of a process to the survivors' abort done", "s"),
            "formed_s": ("to their new group", "s"),
            "first_s": ("to its first all-reduce done", "s"),
        },
    ),
    "kill": Part(
        measure=kill,
        rows={
            "step_s": ("a step of three workers", "s"),
            "resumed_s": ("kill of a worker to the survivors' next commit", "s"),
        },
    ),
    "stop": Part(measure=stop, rows={"resumed_s": ("SIGSTOP of a worker to the survivors' next commit", "s")}),
}


def rows_of(name: str, part: Part, settings: Settings, gpus: int) -> list[dict[str, Any]]:
    """The rows of a part, with figures, or empty with the reason."""
    found: dict[str, float] = {}
    note = f"needs {part.gpus} GPUs; torch sees {gpus}" if gpus < part.gpus else ""
    if not note:
        try:
            found = part.measure(settings)
        except Exception as error:  # NVML's are of no kind in particular; the other parts are measured all the same
            note = (str(error) or type(error).__name__).splitlines()[0]
    return [
        {"part": name, "key": key, "what": what, "value": found.get(key), "unit": unit, "note": note}
        for key, (what, unit) in part.rows.items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write the result, print a line for each row."""
    usual = Settings()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the result")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them, with commas between")
    parser.add_argument("--bytes", type=size, default=usual.nbytes, help="of the state, e.g. 64MiB")
    parser.add_argument("--repeats", type=int, default=usual.repeats)
    parser.add_argument("--faults", type=int, default=usual.faults, help="of each kind")
    parser.add_argument("--directory", default=usual.directory, help="a ramdisk")
    args = parser.parse_args(arguments)
    names = args.parts.split(",")
    if unknown := {*names} - {*PARTS}:
        parser.error(f"{', '.join(sorted(unknown))}: not among {', '.join(PARTS)}")
    if not torch.cuda.is_available():
        parser.exit(1, f"error: {NO_GPU}\n")
    settings = Settings(nbytes=args.bytes, repeats=args.repeats, faults=args.faults, directory=args.directory)
    origin, gpus = provenance(), torch.cuda.device_count()
    rows: list[dict[str, Any]] = []
    told = {name: getattr(settings, name) for name in settings.__slots__}
    machine = {"gpus": gpus, "name": torch.cuda.get_device_name(0), "cuda": torch.version.cuda}
    result = {"benchmark": "gpu", "rows": rows, "gpu": machine, "settings": told, "provenance": origin}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        rows += rows_of(name, PARTS[name], settings, gpus)
        args.out.write_text(json.dumps(result, indent=2) + "\n")  # after each part: what is measured is kept
    for row in rows:
        value = "" if row["value"] is None else f"{row['value']:.4g}"
        print(f"{row['what']:80} {value:>10} {row['unit']}  {row['note']}")


if __name__ == "__main__":
    main()
