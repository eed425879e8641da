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
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import checkpoint_tiers, corruption, restart
from benchmarks.checkpoints.bench import RUN, Bench, Settings, size
from benchmarks.provenance import provenance
from elastic.checkpoint import memory
from elastic.checkpoint.arena import free_bytes, needed_bytes
from elastic.policies.sizing import slots_for
from elastic.settings import Checkpoint

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
