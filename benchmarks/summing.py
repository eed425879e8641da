"""What a sum over ranks costs: around gloo's ring, and in one message to everybody (`elastic/train/direct.py`).

    python -m benchmarks.summing --out summing.json

Processes of this machine, on loopback. For each size both ways take turns; between two sums all sleep for a moment, as
between two steps. `latency_s` is from the start of a sum until it is there, `cpu_s` the processor time of all threads
of one rank; both are medians over the turns, of rank 1. `message_vs_ring` is the ratio of processor time.
"""

import argparse
import json
import socket
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.provenance import provenance
from elastic.train.direct import SumTogether, is_small

SIZES_BYTES = (128, 2 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 340 << 10, 512 << 10, 1 << 20)
_PAUSE_S = 0.005
_WARM = 10
_SUM_TIMEOUT = timedelta(seconds=60)  # of each wait for the others


def _ring(tensor: torch.Tensor) -> Any:
    return dist.all_reduce(tensor, async_op=True)


def _message(tensor: torch.Tensor) -> Any:
    return SumTogether(dist.group.WORLD, [tensor])


WAYS: dict[str, Callable[[torch.Tensor], Any]] = {"ring": _ring, "message": _message}


def _turn(start: Callable[[torch.Tensor], Any], tensor: torch.Tensor, sums: int) -> tuple[float, float]:
    """Seconds and processor seconds of one sum, the pauses left out."""
    for _ in range(_WARM):
        start(tensor).wait()
    waited_s, cpu_s = 0.0, time.process_time()
    for _ in range(sums):
        time.sleep(_PAUSE_S)
        began_s = time.perf_counter()
        start(tensor).wait()
        waited_s += time.perf_counter() - began_s
    return waited_s / sums, (time.process_time() - cpu_s) / sums


def _rank(rank: int, ranks: int, port: int, turns: int, sums: int, found: Any) -> None:
    torch.set_num_threads(1)
    place = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=ranks, timeout=_SUM_TIMEOUT)
    for size_bytes in SIZES_BYTES:
        tensor = torch.zeros(size_bytes // 4)
        taken: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for _ in range(turns):
            for way, start in WAYS.items():
                taken[way].append(_turn(start, tensor, sums))
        if rank == 1:
            found.append(row(ranks, size_bytes, taken))
    dist.barrier()
    dist.destroy_process_group()


def row(ranks: int, size_bytes: int, taken: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """One line of the result, from (seconds, processor seconds) of each turn."""
    ways = {
        way: {
            "latency_s": statistics.median(latency_s for latency_s, _ in turns),
            "cpu_s": statistics.median(cpu_s for _, cpu_s in turns),
            "turns": turns,
        }
        for way, turns in taken.items()
    }
    ratio = ways["message"]["cpu_s"] / ways["ring"]["cpu_s"]
    is_taken = is_small(size_bytes, ranks)
    return {"ranks": ranks, "bytes": size_bytes, "message_vs_ring": ratio, "goes_in_a_message": is_taken, **ways}


def measure(ranks: int, turns: int, sums: int) -> list[dict[str, Any]]:
    """Rows for one number of ranks, each of them a process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with mp.Manager() as manager:
        found = manager.list()
        mp.spawn(_rank, (ranks, port, turns, sums, found), nprocs=ranks)
        return list(found)


def main() -> None:
    """Measure, write the result, print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the result")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--turns", type=int, default=10, help="of each way, for each size")
    parser.add_argument("--sums", type=int, default=30, help="of a turn")
    args = parser.parse_args()
    origin = provenance()
    rows = [one for ranks in args.ranks for one in measure(ranks, args.turns, args.sums)]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"benchmark": "summing", "rows": rows, "provenance": origin}, indent=2) + "\n")
    print(f"{'ranks':>5} {'bytes':>8} {'ring, ms':>9} {'cpu':>6} {'message':>9} {'cpu':>6} {'ratio':>6}")
    for one in rows:
        ring, message = one["ring"], one["message"]
        figures = (ring["latency_s"], ring["cpu_s"], message["latency_s"], message["cpu_s"])
        told = "{:9.2f} {:6.2f} {:9.2f} {:6.2f}".format(*(1e3 * figure for figure in figures))
        print(f"{one['ranks']:5} {one['bytes']:8} {told} {one['message_vs_ring']:6.2f}")


if __name__ == "__main__":
    main()
