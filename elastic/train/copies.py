"""Effect. Copying state into a slot while the training goes on, and the fence that keeps the optimizer off until then.

What lies in host memory is copied by a thread beside, and by whoever comes to the fence first; what lies on a GPU by a
stream beside. At the fence the host waits for both: what a device alone waited for would come out later, as a step that
hangs, and count as no cost of a snapshot.
"""

import contextlib
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from elastic.errors import StateError
from elastic.train.slot_layout import RunningSums

log = logging.getLogger("elastic")

_POLL_S = 0.0005
PIECE_BYTES = 4 << 20  # what one of the two takes at a time; small enough to be summed while it is in a cache
AT_ONCE_BYTES = 4 << 20  # copied within a millisecond, while to hand it to a thread takes several on busy cores
Pair = tuple[torch.Tensor, torch.Tensor]  # (to, from), of equal shape and dtype


class Copies:
    """The copies of one snapshot.

    Args:
        now: done, or in the device's order before all that follows, when this returns.
        later: begun; their sources must not change before `fence`.
        stream: where copies from a GPU run.
        sums: of the memory that is copied to, in its order; taken along by the thread beside.
    """

    def __init__(
        self, now: Sequence[Pair], later: Sequence[Pair], stream: Any = None, sums: RunningSums | None = None
    ) -> None:
        self._device = None
        if any(source.is_cuda for _, source in (*now, *later)):
            self._device = DeviceCopies(_on_gpu(now), _on_gpu(later), stream)
            now, later = _on_host(now), _on_host(later)
        for target, source in now:
            target.copy_(source)
        self._host = HostCopies(later, sums if self._device is None else None)

    @property
    def took_s(self) -> float:
        """Seconds for which host and GPU have copied, the longer of the two, once all is done."""
        return max(self._host.took_s, self._device.took_s if self._device is not None else 0.0)

    def fence(self, timeout_s: float) -> None:
        """From here on sources may change.

        Raises:
            StateError: a copy failed, or took longer than this.
        """
        self._host.finish(timeout_s)
        if self._device is not None:
            self._device.fence(timeout_s)

    def wait(self, timeout_s: float) -> None:
        """All bytes are where they belong; raises as `fence` does."""
        self._host.finish(timeout_s)
        if self._device is not None:
            self._device.wait()


class HostCopies:
    """Copies within host memory: torch lets go of the GIL in each.

    Pieces are taken in order. Until somebody waits for them only the thread beside takes any, so what it has copied,
    and all before it, is done and can be summed. What is little in all is copied at once.

    Attributes:
        took_s: seconds from the first to the last one; 0 until then.
    """

    def __init__(self, pairs: Sequence[Pair], sums: RunningSums | None = None) -> None:
        self._sums = sums
        self._pieces = deque(piece for pair in pairs for piece in _pieces(*pair))
        self._left = len(self._pieces)
        self._lock = threading.Condition()
        self._error: Exception | None = None
        self._began_s, self.took_s = time.monotonic(), 0.0
        if sum(target.nbytes for target, _ in pairs) <= AT_ONCE_BYTES:
            self._work(sums)
        else:
            threading.Thread(target=self._work, args=(sums,), name="elastic-copies", daemon=True).start()

    def finish(self, timeout_s: float) -> None:
        """Take a hand in what is left, and wait for what others have in theirs."""
        if self._sums is not None:
            self._sums.is_stopped = True
        self._work()
        with self._lock:
            if not self._lock.wait_for(lambda: self._left == 0, timeout_s):
                raise StateError(f"a copy of state within this host took longer than {timeout_s:g} s (door_timeout_s)")
            if self._error is not None:
                raise StateError(f"state could not be copied: {self._error}") from self._error

    def _work(self, sums: RunningSums | None = None) -> None:
        while True:
            try:
                target, source = self._pieces.popleft()
            except IndexError:
                return
            try:
                target.copy_(source)
                if sums is not None:
                    sums.reach(target.data_ptr() + target.nbytes - sums.address)
            except Exception as error:  # whoever waits raises it
                self._error = error
            with self._lock:
                self._left -= 1
                if not self._left:
                    self.took_s = time.monotonic() - self._began_s
                self._lock.notify_all()


class DeviceCopies:
    """Copies from a GPU into pinned memory, ordered by events."""

    def __init__(self, now: Sequence[Pair], later: Sequence[Pair], stream: Any) -> None:
        self._main = torch.cuda.current_stream()
        stream.wait_stream(self._main)
        with torch.cuda.stream(stream):
            self._began = stream.record_event(torch.cuda.Event(enable_timing=True))
            for target, source in now:
                target.copy_(source, non_blocking=True)
            is_rest_free = stream.record_event()
            for target, source in later:
                target.copy_(source, non_blocking=True)
            self._done = stream.record_event(torch.cuda.Event(enable_timing=True))
        self._main.wait_event(is_rest_free)

    @property
    def took_s(self) -> float:
        """Seconds from the first to the last one, by the device's clock; once all are done."""
        return float(self._began.elapsed_time(self._done)) / 1000

    def fence(self, timeout_s: float) -> None:
        """Wait for the copies.

        Raises:
            StateError: they took longer than this.
        """
        until_s = time.monotonic() + timeout_s
        while not self._done.query():
            if time.monotonic() > until_s:
                raise StateError(f"a copy of state from the GPU took longer than {timeout_s:g} s (door_timeout_s)")
            time.sleep(_POLL_S)

    def wait(self) -> None:
        self._done.synchronize()


def pin(slot: Any, array: Any) -> bool:
    """Page-lock a slot's memory for copies from a GPU, as long as the slot lives; whether that could be done.

    Without it the copies take longer, and the host waits for them where they begin.
    """
    runtime, address = torch.cuda.cudart(), array.ctypes.data
    code = int(runtime.cudaHostRegister(address, array.nbytes, 0))
    if code:
        with contextlib.suppress(RuntimeError):  # the runtime keeps its error for whoever launches a kernel next
            torch.zeros(1, device="cuda")
        log.warning(
            "%d bytes for snapshots cannot be page-locked (CUDA error %d): they take longer", array.nbytes, code
        )
        return False
    weakref.finalize(slot, runtime.cudaHostUnregister, address).atexit = False
    return True


def _pieces(target: torch.Tensor, source: torch.Tensor) -> list[Pair]:
    """A large copy in pieces, where its bytes lie in one order on both sides."""
    if target.nbytes <= PIECE_BYTES or not (source.is_contiguous() and target.is_contiguous()):
        return [(target, source)] if target.numel() else []
    raw = (target.view(-1).view(torch.uint8), source.view(-1).view(torch.uint8))
    return list(zip(raw[0].split(PIECE_BYTES), raw[1].split(PIECE_BYTES), strict=True))


def _on_gpu(pairs: Sequence[Pair]) -> list[Pair]:
    return [pair for pair in pairs if pair[1].is_cuda]


def _on_host(pairs: Sequence[Pair]) -> list[Pair]:
    return [pair for pair in pairs if not pair[1].is_cuda]
