"""A process of a group is killed in the middle of its all-reduces; the survivors abort, and form a new group.

Each process has a GPU of its own, or they share the one there is, and then talk through sockets as if each were on a
host of its own (or, to try this out, they have none, with gloo). Who is killed is the last rank. Survivors are
told by their parent, as this library's supervisor does it; with NCCL an abort from another thread frees the operation
that hangs, with gloo the dead process's connections do. Times are of one clock, from the kill to the last survivor.
"""

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from elastic.train.nccl import WATCHDOG

TIMEOUT_S = 120.0
ROUNDS = 20  # all-reduces before the kill
ELEMENTS = 1 << 20
LEAST = 3  # members, so that two are left
FIGURES = ("abort_s", "formed_s", "first_s")
SHARED = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
}


def connected(port: int) -> dist.TCPStore:
    """A connection of its own for each thread: a wait holds it."""
    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=TIMEOUT_S))


class Member:
    """One process of the group."""

    def __init__(self, rank: int, world: int, port: int, backend: str) -> None:
        self._rank, self._world, self._backend = rank, world, backend
        self._port, self._store = port, connected(port)
        is_gpu = backend == "nccl"
        if is_gpu:
            torch.cuda.set_device(rank % torch.cuda.device_count())
        self._tensor = torch.ones(ELEMENTS, device="cuda" if is_gpu else "cpu")
        self._aborted_s = 0.0

    def run(self) -> None:
        """All-reduces until the group breaks; then again in a new one; writes the times to the store."""
        self._form("first", self._world)
        news = threading.Thread(target=self._wait_for_news, daemon=True)
        news.start()
        with contextlib.suppress(RuntimeError):  # the broken operation
            self._reduce_on()
        news.join(TIMEOUT_S)
        self._leave()
        done_s = [max(self._aborted_s, time.monotonic())]
        self._form("second", self._world - 1)
        done_s.append(time.monotonic())
        self._reduce()
        done_s.append(time.monotonic())
        self._store.set(f"done-{self._rank}", " ".join(map(str, done_s)))
        self._store.wait(["over"])

    def _form(self, name: str, world: int) -> None:
        store = dist.PrefixStore(name, self._store)
        timeout = timedelta(seconds=TIMEOUT_S)
        dist.init_process_group(self._backend, store=store, rank=self._rank, world_size=world, timeout=timeout)

    def _reduce(self) -> None:
        dist.all_reduce(self._tensor)
        if self._tensor.is_cuda:
            torch.cuda.synchronize()

    def _reduce_on(self) -> None:
        while True:
            self._reduce()
            self._store.add(f"rounds-{self._rank}", 1)
            self._tensor.fill_(1)

    def _wait_for_news(self) -> None:
        connected(self._port).wait(["killed"])
        if self._backend == "nccl" and dist.group.WORLD is not None:
            dist.group.WORLD.abort()
        self._aborted_s = time.monotonic()

    @staticmethod
    def _leave() -> None:
        with contextlib.suppress(RuntimeError, ValueError):  # of what was aborted
            dist.destroy_process_group()


def once(backend: str, world: int) -> dict[str, float]:
    """One loss. Seconds from the kill until the last survivor was that far.

    Raises:
        RuntimeError: they did not come that far in time.
    """
    timeout = timedelta(seconds=TIMEOUT_S)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timeout)
    command = [sys.executable, "-m", "benchmarks.gpu_group"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(store.port), backend],
            stderr=subprocess.DEVNULL,
            env=os.environ | WATCHDOG | apart(f"host{rank}", world),
        )
        for rank in range(world)
    ]
    try:
        _wait_until(store, [f"rounds-{rank}" for rank in range(world)])
        killed_s = time.monotonic()
        processes[-1].send_signal(signal.SIGKILL)
        store.set("killed", "1")
        keys = [f"done-{rank}" for rank in range(world - 1)]
        try:
            store.wait(keys)
        except RuntimeError as error:
            raise RuntimeError(f"the survivors did not come back within {TIMEOUT_S:g} s") from error
        times = [[float(word) for word in store.get(key).decode().split()] for key in keys]
        store.set("over", "1")
        return {name: max(column) - killed_s for name, column in zip(FIGURES, zip(*times, strict=True), strict=True)}
    finally:
        for process in processes:
            process.kill()
            process.wait(TIMEOUT_S)


def apart(host: str, world: int) -> dict[str, str]:
    """What NCCL must be told where processes share a GPU: it refuses two ranks on one GPU of the same host."""
    return SHARED | {"NCCL_HOSTID": host} if torch.cuda.device_count() < world else {}


def _wait_until(store: dist.TCPStore, keys: list[str]) -> None:
    """All have done some rounds."""
    until_s = time.monotonic() + TIMEOUT_S
    while any(store.add(key, 0) < ROUNDS for key in keys):
        if time.monotonic() > until_s:
            raise RuntimeError(f"the group did not do {ROUNDS} all-reduces within {TIMEOUT_S:g} s")
        time.sleep(0.01)


def measure(backend: str, world: int, repeats: int) -> dict[str, float]:
    """Medians."""
    found = [once(backend, world) for _ in range(repeats)]
    return {name: statistics.median(one[name] for one in found) for name in FIGURES}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A member of a group; see the module.")
    parser.add_argument("rank", type=int)
    parser.add_argument("world", type=int)
    parser.add_argument("port", type=int)
    parser.add_argument("backend")
    torch.set_num_threads(1)
    Member(**vars(parser.parse_args())).run()
