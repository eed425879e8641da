"""What a snapshot costs: the stall of the training thread, the speed that is left, the time until a crash is survived.

    python -m benchmarks.checkpoint --out checkpoint.json

One process, one thread of torch, a state of `--bytes` (parameters and two moments). The variants take turns within a
repetition, in another order each time, so that a machine that is busier for a while meets all alike; a ratio is the
median over repetitions of the ratio within one. What is measured is the product's own `Snapshots`, with a training step
around it that multiplies small matrices.

    memcpy        the state's bytes once, into memory that was touched before
    blocking      a snapshot of which all is copied at the door
    overlapped    door and fence of a snapshot with `--step` memcpys of computing between them
    plain, every  steps of that length without snapshots, and with one in each
    no_sums       the latter without checksums
    survivable    from the door until the slot is sealed: another process could read it if this one died
    dcp           torch.distributed.checkpoint.async_save, one stager with all options False, until its files are there

What restores, uploads, restarts and other nodes cost comes from `checkpoint_tiers.py`, `restart.py` and, where Ray is
installed, `checkpoint_peers.py`; how many damaged checkpoints were taken for right, from `corruption.py`.
"""

import argparse
import importlib.util
import itertools
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from benchmarks import checkpoint_tiers, corruption, restart
from benchmarks.checkpoints.state import as_dict, new_state, timed
from benchmarks.provenance import provenance
from elastic.checkpoint import memory
from elastic.checkpoint.arena import free_bytes, needed_bytes
from elastic.checkpoint.manifest import chunk_count
from elastic.control.values import CommitId, Member, View
from elastic.policies.sizing import slots_for
from elastic.settings import Checkpoint, Interval, Limits
from elastic.train import snapshot
from elastic.train.flight import FlightPage
from elastic.train.link import Link
from elastic.train.surroundings import Surroundings
from elastic.train.tracked import Tracked

RUN = "benchmark-checkpoint"
DEADLINE_S = 60.0
GOALS = {
    "stall_blocking_vs_memcpy": ("<=", 1.15),
    "stall_overlapped_vs_memcpy": ("<=", 0.35),
    "every_step_throughput_ratio": (">=", 0.95),
    "survivable_vs_dcp": ("<=", 0.4),
    "crc_share": ("<", 0.03),
    "restore_local_bytes_per_s": (">=", 5e9),
    "restart_restore_s": ("<=", 1.0),
    "persistent_vs_dcp": ("<=", 1.0),
    "peer_vs_ray_pull": (">=", 0.7),
    "restore_peer_vs_ray_pull": (">=", 0.7),
}
PEERS = (
    "peer_vs_ray_pull",
    "peer_pull_bytes_per_s",
    "ray_pull_bytes_per_s",
    "restore_actor_bytes_per_s",
    "restore_peer_bytes_per_s",
    "restore_peer_vs_ray_pull",
)
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is measured. `step_memcpys`: length of a step; `steps`: of them in a repetition of `plain` and `every`."""

    nbytes: int = 1 << 30
    repeats: int = 12
    step_memcpys: float = 10.0
    steps: int = 3
    directory: str = "/dev/shm"


class Measured(snapshot.Snapshots):
    """With parts that can be left out. `is_blocking`: all is copied at the door. `has_sums`: chunks are summed."""

    is_blocking = False
    has_sums = True

    def _steady(self) -> set[int]:
        return set() if self.is_blocking else super()._steady()

    def _running_sums(self, slot: Any) -> Any:
        running = super()._running_sums(slot)
        running.is_stopped = not self.has_sums
        return running

    def _seal(self, taken: snapshot.Snapshot) -> None:
        if self.has_sums:
            super()._seal(taken)
            return
        taken.copies.wait(DEADLINE_S)
        count = chunk_count(taken.manifest.nbytes)
        self._arena.seal(taken.slot, replace(taken.manifest, chunks=(0,) * count))


class Bench:
    """A state, and one worker's snapshots of it.

    Args:
        run: its slots have names with it. device: where the state is.
    """

    def __init__(self, settings: Settings, scratch: Path, run: str = RUN, device: str = "cpu") -> None:
        self.settings, self.scratch, self.run, self.device = settings, scratch, run, device
        self.model, self.optimizer = new_state(settings.nbytes, device)
        self.tracked = Tracked()
        self.tracked.add({"model": self.model, "optimizer": self.optimizer})
        self.tensors = self.tracked.flatten().tensors
        self.buffers = [torch.zeros_like(tensor).fill_(1) for tensor in self.tensors]
        self.nbytes = sum(tensor.nbytes for tensor in self.tensors)
        self.stager = DefaultStager(StagingOptions(False, False, False, False))
        self.small = torch.randn(192, 192)
        self.rounds = 0
        self.snapshots = self._make_snapshots()
        self._number = itertools.count()

    def calibrate(self) -> None:
        """How many products of matrices make a step."""
        memcpy_s = statistics.median(self.memcpy() for _ in range(5))
        self.rounds = 200
        round_s = statistics.median(timed(self.compute) for _ in range(3)) / self.rounds
        self.rounds = max(1, round(self.settings.step_memcpys * memcpy_s / round_s))

    def compute(self) -> None:
        for _ in range(self.rounds):
            self.small @ self.small

    def _make_snapshots(self) -> Measured:
        """Ready to take some."""
        link, limits = Link("w0", 1e9), Limits()
        page = FlightPage(self.scratch / "page")
        checkpoint = Checkpoint(local_interval=Interval(steps=1), memory=self.settings.directory)
        around = Surroundings(
            run=self.run,
            worker="w0",
            host="127.0.0.1",
            device=torch.device(self.device),
            seed=0,
            limits=limits,
            link=link,
            page=page,
            checkpoint=checkpoint,
        )
        replica: Any = SimpleNamespace(
            link=link,
            page=page,
            tracked=self.tracked,
            model=self.model,
            rank=0,
            shard=0,
            width=1,
            replicas=1,
            last_number=-1,
        )
        made = Measured(replica, around, checkpoint)
        made.expect(self.tensors, [self.optimizer])
        start = CommitId(1, 1, 1, -1, "")
        members = (Member("w0", "127.0.0.1", 1),)
        made.joined(
            View(run=self.run, incarnation=1, generation=1, members=members, resume=start, donors=(0,), behind=())
        )
        made.flush()
        return made

    def door(self) -> CommitId:
        """The next step is applied, and all is at rest."""
        number = next(self._number)
        commit = CommitId(1, 1, 1, number, f"{number:016x}")
        step: Any = SimpleNamespace(
            number=number, index=number, commit=commit, is_staged=True, replicas=1, wants_pause=True
        )
        self.snapshots.committed(step)
        self.snapshots.at_door()
        return commit

    # --- the variants: each returns seconds ---

    def memcpy(self) -> float:
        def copy() -> None:
            for target, source in zip(self.buffers, self.tensors, strict=True):
                target.copy_(source)

        return timed(copy)

    def stall(self, between: Callable[[], None], is_blocking: bool = False) -> float:
        """Door and fence."""
        self.snapshots.is_blocking = is_blocking
        started_s = time.perf_counter()
        commit = self.door()
        stall_s = time.perf_counter() - started_s
        between()
        stall_s += timed(self.snapshots.fence)
        self.snapshots.is_blocking = False
        self.snapshots.stable(commit)
        self.snapshots.flush()
        return stall_s

    def survivable(self) -> float:
        started_s = time.perf_counter()
        self.snapshots.stable(self.door())
        self.snapshots.fence()
        self.snapshots.flush()
        return time.perf_counter() - started_s

    def dcp(self) -> float:
        folder = self.scratch / "dcp"
        shutil.rmtree(folder, ignore_errors=True)
        state = as_dict(self.model, self.optimizer)
        writer = dcp.FileSystemWriter(folder, sync_files=False)
        started_s = time.perf_counter()
        saving: Any = dcp.async_save(state, storage_writer=writer, async_stager=self.stager, no_dist=True)
        getattr(saving, "upload_completion", saving).result()
        return time.perf_counter() - started_s

    def plain(self) -> float:
        """A step, on average."""
        return timed(lambda: [self.compute() for _ in range(self.settings.steps)]) / self.settings.steps

    def every(self, has_sums: bool = True) -> float:
        """A step with a snapshot, on average: one is sealed while the next is copied."""
        snapshots = self.snapshots
        snapshots.has_sums = has_sums

        def steps() -> None:
            commit = None
            for _ in range(self.settings.steps):
                self.compute()
                if commit is not None:
                    snapshots.stable(commit)
                snapshots.fence()
                commit = self.door()

        step_s = timed(steps) / self.settings.steps
        snapshots.fence()
        snapshots.drop()
        snapshots.flush()
        snapshots.has_sums = True
        return step_s


def measure(settings: Settings) -> list[dict[str, float]]:
    """Seconds of each variant, by repetition; the first one warms up, and is not among them."""
    need = needed_bytes(settings.nbytes, slots_for(Checkpoint().peers)) + 2 * settings.nbytes
    if free_bytes(Path(settings.directory)) < need:
        raise SystemExit(f"{settings.directory} needs {need >> 20} MiB free: make --bytes smaller")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=settings.directory, prefix=RUN) as scratch:
        bench = Bench(settings, Path(scratch))
        bench.calibrate()
        try:
            return [_repetition(bench, number) for number in range(1 + settings.repeats)][1:]
        finally:
            memory.remove(Path(settings.directory), RUN)


def _repetition(bench: Bench, number: int) -> dict[str, float]:
    """All variants once. They share one arena, so that its pages are as warm for one as for the others."""
    variants: dict[str, Callable[[], float]] = {
        "memcpy": bench.memcpy,
        "blocking": lambda: bench.stall(lambda: None, is_blocking=True),
        "overlapped": lambda: bench.stall(bench.compute),
        "plain": bench.plain,
        "every": bench.every,
        "no_sums": lambda: bench.every(has_sums=False),
        "survivable": bench.survivable,
        "dcp": bench.dcp,
    }
    names, row = list(variants), dict[str, float]()
    for name in names[number % len(names) :] + names[: number % len(names)]:
        all_s, own_s = time.process_time(), time.thread_time()
        row[name] = variants[name]()
        row[f"{name}_cpu"], row[f"{name}_own_cpu"] = time.process_time() - all_s, time.thread_time() - own_s
    return row


def summarize(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Medians over the repetitions, of ratios within one and of seconds; and the quartiles of the ratios."""
    ratios = {
        "stall_blocking_vs_memcpy": [row["blocking"] / row["memcpy"] for row in rows],
        "stall_overlapped_vs_memcpy": [row["overlapped"] / row["memcpy"] for row in rows],
        "every_step_throughput_ratio": [row["plain"] / row["every"] for row in rows],
        "every_step_cpu_ratio": [row["plain_cpu"] / row["every_cpu"] for row in rows],
        "every_step_own_cpu_ratio": [row["plain_own_cpu"] / row["every_own_cpu"] for row in rows],
        "survivable_vs_dcp": [row["survivable"] / row["dcp"] for row in rows],
        "crc_share": [(row["every"] - row["no_sums"]) / row["every"] for row in rows],
        "step_in_memcpys": [row["plain"] / row["memcpy"] for row in rows],
    }
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    seconds = {f"{name}_s": statistics.median(row[name] for row in rows) for name in rows[0]}
    return medians | seconds | {"quartiles": {name: statistics.quantiles(ratios[name]) for name in ratios}}


def tiers(settings: Settings, disk: Path | None, restarts: int, peer_bytes: int) -> dict[str, Any]:
    """What the tiers cost beside the training; what needs Ray is left out without it."""
    directory = Path(settings.directory)
    found: dict[str, Any] = checkpoint_tiers.measure(directory, disk, settings.nbytes, settings.repeats)
    found |= restart.measure(directory, settings.nbytes, restarts)
    if importlib.util.find_spec("ray") is not None:
        from benchmarks import checkpoint_peers

        peers = checkpoint_peers.figures(peer_bytes, settings.repeats)
        found |= {name: peers[name] for name in PEERS}
    return found


def size(text: str) -> int:
    """Bytes: 64MiB, 1GiB, 4096."""
    digits = text.rstrip("KMGiB")
    return int(digits) * UNITS[text.removeprefix(digits)]


def main() -> None:
    """Measure, write the result, print a short table."""
    usual = Settings()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the result")
    parser.add_argument("--bytes", type=size, default=usual.nbytes, help="of the state, e.g. 64MiB")
    parser.add_argument("--repeats", type=int, default=usual.repeats)
    parser.add_argument("--restarts", type=int, default=10, help="of a whole job")
    parser.add_argument("--peer-bytes", type=size, help="of a shard on another node; default: as --bytes")
    parser.add_argument("--trials", type=int, default=corruption.TRIALS, help="damaged checkpoints")
    parser.add_argument("--step", type=float, default=usual.step_memcpys, help="length of a step, in memcpys")
    parser.add_argument("--directory", default=usual.directory, help="a ramdisk")
    parser.add_argument("--disk", type=Path, help="where durable files go; default: where temporary files do")
    args = parser.parse_args()
    settings = Settings(nbytes=args.bytes, repeats=args.repeats, step_memcpys=args.step, directory=args.directory)
    origin = provenance()
    rows = measure(settings)
    summary = summarize(rows) | tiers(settings, args.disk, args.restarts, args.peer_bytes or args.bytes)
    told = {name: getattr(settings, name) for name in settings.__slots__}
    details = {"goals": GOALS, "repetitions": rows, "settings": told, "provenance": origin}
    result = {"benchmark": "checkpoint", **summary, "corruption": corruption.counts(args.trials)} | details
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    quartiles = summary.pop("quartiles")
    for name, value in summary.items():
        goal = " ".join(map(str, GOALS[name])) if name in GOALS else ""
        spread = "{0:.3f} to {2:.3f}".format(*quartiles[name]) if name in quartiles else ""
        print(f"{name:30} {value:14.4g}   {spread:20} {goal}")


if __name__ == "__main__":
    main()
