"""Effect. What a node must show before its workers may join: each check returns sentences, none if all is well.

The cheap ones take a few hundredths of a second together. Matrices are multiplied in a process of its own, which may
hang with the driver and is then ended; `python -m elastic.hosts.health` is that process.
"""

import hashlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from elastic.control.hardware import GpuReading, short_of
from elastic.control.xid import Severity, recovery
from elastic.hosts import machine, peers
from elastic.settings import Health

_COPY_BYTES, _HASH_BYTES = 8 << 20, 4 << 20
_TRIES = 3
_SIZE = 256  # of the matrices: products of small integers are exact in float32


def within(check: Callable[[], list[str]], timeout_s: float, turn: threading.Semaphore) -> list[str]:
    """What a check says, or that it did not end in time; its thread is then left behind, and keeps its turn."""
    if not turn.acquire(timeout=timeout_s):
        return [f"an earlier check still has not ended, nor within Health.check_timeout_s={timeout_s:g} more"]
    said: list[list[str]] = []

    def run() -> None:
        try:
            said.append(check())
        except Exception as error:  # a check that fails has found something
            said.append([f"{type(error).__name__}: {error}"])
        finally:
            turn.release()

    thread = threading.Thread(target=run, name="elastic-health", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return said[0] if said else [f"the check did not end within Health.check_timeout_s={timeout_s:g}"]


def check_node(
    health: Health,
    gpus: Callable[[float], list[GpuReading] | None] | None,
    peer: tuple[str, int] | None = None,
    wanted_gpus: int = 0,
    turn: threading.Semaphore | None = None,
) -> list[str]:
    """All checks that are asked for, within `Health.check_timeout_s`.

    Args:
        gpus: what was last seen of the GPUs, waiting so long for the first look; None if that does not end. None where
            nobody looks.
        peer: where another node of the run lends its bytes.
        wanted_gpus: what the workers that are placed there are given, at least.
        turn: of the checks of this node, one at a time: one that hangs is not joined by others.
    """

    def check() -> list[str]:
        found = list(short_of(machine.look((health.ramdisk, health.disk)), health).values())
        found += check_gpus(gpus(health.check_timeout_s / 2), wanted_gpus) if gpus is not None else []
        found += _speed("a copy in memory", copy_bytes_per_s(), health.memory_bytes_per_s, "memory_bytes_per_s")
        found += _speed("SHA-256", hash_bytes_per_s(), health.hash_bytes_per_s, "hash_bytes_per_s")
        found += check_matmul(health.check_timeout_s, wanted_gpus) if health.matmul else []
        if peer is not None:
            speed = peers.bytes_per_s(*peer, health.check_timeout_s)
            found += _speed(f"what comes from {peer[0]}", speed, health.peer_bytes_per_s, "peer_bytes_per_s")
        return found

    return within(check, health.check_timeout_s, turn or threading.Semaphore())


def check_gpus(gpus: list[GpuReading] | None, wanted: int = 0) -> list[str]:
    """GPUs that can not be used as they are, and that there are too few; `wanted`: see `check_node`."""
    if gpus is None:
        return ["the GPU driver does not answer"]
    found = [f"{gpu.name} is lost: {gpu.lost}" for gpu in gpus if gpu.lost]
    found += [f"{gpu.name} needs a reset" for gpu in gpus if gpu.needs_reset]
    for gpu in gpus:
        severity, name = recovery(gpu.recovery_action or 0)
        if severity is not Severity.INFORMATIONAL:
            found.append(f"{gpu.name} asks for: {name}")
    if len(gpus) < wanted:
        given = f"the driver shows {len(gpus)} GPUs, and workers are given {wanted} on a node"
        found.append(f"{given}: give its container its GPUs; Health.sensing=False where they are not NVIDIA's")
    return found + [f"{gpu.name} could not remap a row of its memory" for gpu in gpus if gpu.remap_failed]


def copy_bytes_per_s() -> float:
    """The speed of a copy in memory: the best of a few, by the clock of this thread, so that others do not count."""
    source, target = bytes(_COPY_BYTES), bytearray(_COPY_BYTES)
    best_s = min(_seconds(lambda: target.__setitem__(slice(None), source)) for _ in range(_TRIES))
    return _COPY_BYTES / best_s


def hash_bytes_per_s() -> float:
    """The speed of SHA-256 on one core.

    Raises:
        ArithmeticError: the same bytes have two sums.
    """
    data = bytes(range(256)) * (_HASH_BYTES // 256)
    sums: set[bytes] = set()
    best_s = min(_seconds(lambda: sums.add(hashlib.sha256(data).digest())) for _ in range(_TRIES))
    if len(sums) > 1:
        raise ArithmeticError("the same bytes have two SHA-256 sums on this machine")
    return _HASH_BYTES / best_s


def check_matmul(timeout_s: float, wanted_gpus: int = 0) -> list[str]:
    """Matrices are multiplied on each GPU, or on the CPU if there and wanted is none, in a process of its own."""
    command = [sys.executable, "-m", "elastic.hosts.health", str(wanted_gpus)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return [f"a matrix product did not end within Health.check_timeout_s={timeout_s:g}"]
    if done.returncode != 0:
        last = (done.stderr.strip() or "no word").splitlines()[-1]
        return [f"a matrix product failed (code {done.returncode}): {last}"]
    return [line for line in done.stdout.splitlines() if line]


def multiply(wanted_gpus: int) -> list[str]:
    """The other process: what is wrong with the products, by device."""
    import torch

    count = torch.cuda.device_count()
    if count < wanted_gpus:
        return [f"torch sees {count} GPUs, and workers are given {wanted_gpus} on a node: is it a torch for CPUs?"]
    devices = [f"cuda:{index}" for index in range(count)] or ["cpu"]
    wrong = []
    for device in devices:
        rows = torch.arange(_SIZE, device=device, dtype=torch.float32) % 7
        left = rows.repeat(_SIZE, 1)
        exact = float((rows * rows).sum(dtype=torch.float64))
        product = left @ left.T  # each element is the sum of rows * rows
        if not bool((product == exact).all()):
            wrong.append(f"{device} multiplies matrices wrongly")
    return wrong


def _speed(what: str, is_bytes_per_s: float, least: float, setting: str) -> list[str]:
    if is_bytes_per_s >= least:
        return []
    return [f"{what}: {is_bytes_per_s / 1e6:.1f} MB/s, less than Health.{setting}={least:g}"]


def _seconds(act: Callable[[], object]) -> float:
    began_s = time.thread_time()
    act()
    return max(time.thread_time() - began_s, 1e-9)


if __name__ == "__main__":
    print("\n".join(multiply(int(sys.argv[1]))))
