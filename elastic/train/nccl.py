"""Effect. Collectives on GPUs: an NCCL communicator of one generation, beside its gloo group, and cut with it.

NCCL differs from gloo in what a generation lives by (measured with torch 2.11 and NCCL 2.28 on an H200):

- A work is enqueued: `wait` has a stream wait for it, not the host. A step that is applied must be in memory, so here
  the host waits, in slices, for an event that comes after the work.
- An abort ends kernels in the middle. What they were at then looks completed, with wrong numbers in it, and not only
  here: they still send to their neighbours. So a sum counts once all members have said over gloo, which a cut shuts
  before it aborts anything, that they have theirs (`Reducer.finish`, `Replica.confirm`).
- An abort returns after half a second: NCCL's own thread, which it waits for, looks up no more often. It has a thread
  here, and nobody waits for it. A communicator that is being made can not be aborted; who makes it is left behind.
- The watchdog of torch ends the process when something fails. It is told not to.

This is the one module that touches `ProcessGroupNCCL`, whose names are torch's, and not documented.
"""

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

SETTLE_S = 10.0  # a kernel that was told to end does so within half a second, or the device is broken
_POLL_S = 0.00005
_NEVER = timedelta(days=365)  # who has not come is the driver's to tell
WATCHDOG = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_FR_BUFFER_SIZE": "0",  # else it reads symbols for seconds after each failure
}
_CONNECT = "NCCL_RUNTIME_CONNECT"  # "1": the first collective waits for all members, in C++, where nothing frees it


def has_nccl() -> bool:
    """Whether torch is built with it."""
    return dist.is_nccl_available()


class Nccl:
    """What a lane asks of NCCL. Tests put another in its place, where there is no GPU.

    Args:
        device: of this worker.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
        self._behind_works, self._of_connecting = (torch.cuda.Stream(self._device) for _ in range(2))

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether it is NCCL's to sum."""
        return tensor.is_cuda

    def open(self, store: dist.Store, rank: int, size: int) -> Any:
        """A process group, connected with all members; waits for them in C++."""
        os.environ.update(WATCHDOG)
        os.environ.setdefault(_CONNECT, "0")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _NEVER
        with torch.cuda.device(self._device):
            group = dist.ProcessGroupNCCL(store, rank, size, options)
            group.eager_connect_single_device(self._device)
        return group

    def first_sum(self, group: Any) -> Callable[[], bool]:
        """Start one, in nobody's way: it may be made ahead, beside steps. Returns whether it has completed."""
        with torch.cuda.stream(self._of_connecting):
            word = torch.ones(1, device=self._device)
            work = group.allreduce([word])
            work.wait()
            event = self._of_connecting.record_event()
        return lambda: bool(event.query()) and word is not None  # whose memory is kept until then

    def behind(self, work: Any) -> Callable[[], bool]:
        """Whether a work has completed; asks neither NCCL, whose lock an abort holds, nor the user's streams."""
        with torch.cuda.stream(self._behind_works):
            work.wait()
            event = self._behind_works.record_event()
        return lambda: bool(event.query())


class LaneWork:
    """A collective that the host can wait for as it waits for gloo's.

    Args:
        tensors: whose memory is kept until it has ended.

    Attributes:
        settle_s: what it is given to end, once it was aborted.
    """

    settle_s = SETTLE_S

    def __init__(self, lane: "Lane", work: Any, has_ended: Callable[[], bool], tensors: Any) -> None:
        self.work = work
        self._lane, self._has_ended, self._tensors = lane, has_ended, tensors
        self._until_s = time.monotonic() + lane.timeout_s

    def is_completed(self) -> bool:
        """Whether the device is through with it, well or not."""
        return self._has_ended()

    def wait(self, timeout: timedelta) -> None:
        """
        Raises:
            RuntimeError: it has not ended in time, or the lane was cut; which it is if it takes `Lane.timeout_s`.
        """
        until_s = time.monotonic() + timeout.total_seconds()
        while not self._has_ended():
            if time.monotonic() >= self._until_s:
                self._lane.give_up()
            if time.monotonic() >= until_s:
                raise RuntimeError("timed out: NCCL has not ended a collective")
            time.sleep(_POLL_S)
        self._lane.check()

    def pass_on(self) -> None:
        """Have the current stream wait for it, as it would without this library.

        Raises:
            RuntimeError: the lane was cut.
        """
        self._lane.check()
        self.work.wait()
        self._lane.let_go(self)  # whoever gets its tensors' memory on this stream comes after it


class Lane:
    """One communicator, as seen by one of its ranks.

    Args:
        nccl: see there.
        timeout_s: a collective that takes so long breaks the lane (Limits.collective_timeout_s).

    Attributes:
        is_cut: what ends from now on is void.
    """

    def __init__(self, nccl: Nccl, timeout_s: float) -> None:
        self.is_cut, self.timeout_s = False, timeout_s
        self._why = "the NCCL communicator was aborted"
        self._nccl = nccl
        self._group: Any = None
        self._held: list[LaneWork] = []
        self._lock = threading.Lock()

    def connect(self, store: dist.Store, rank: int, size: int) -> None:
        """Wait until all members have connected, and have made a first sum; callable once.

        Raises:
            RuntimeError: a member has gone, or the lane was cut meanwhile.
        """
        group = self._nccl.open(store, rank, size)
        with self._lock:
            self._group = group
            was_cut = self.is_cut
        if was_cut:
            self.cut()
        self.check()
        has_ended, until_s = self._nccl.first_sum(group), time.monotonic() + self.timeout_s
        while not (has_ended() or self.is_cut):
            if time.monotonic() >= until_s:
                self.give_up()
            time.sleep(_POLL_S)
        self.check()

    @property
    def group(self) -> Any:
        """The process group of torch.

        Raises:
            RuntimeError: the lane was cut, or is not connected.
        """
        group = self._group
        if group is None:
            raise RuntimeError("the NCCL communicator of this generation was aborted, or has never been")
        return group

    def allreduce(self, tensor: torch.Tensor) -> LaneWork:
        """Start a sum over all ranks, in place."""
        return self.started(self.group.allreduce([tensor]), tensor)

    def started(self, work: Any, tensors: Any) -> LaneWork:
        """A work that was started on `group`, with these: what a kernel may still write to is not given to others."""
        mine = LaneWork(self, work, self._nccl.behind(work), tensors)
        held = [one for one in self._held if not one.is_completed()]
        with self._lock:
            self._held = [*held, mine]
        return mine

    def let_go(self, work: LaneWork) -> None:
        """A stream waits for this work, and all that follows there with it."""
        with self._lock:
            self._held = [one for one in self._held if one is not work]

    def check(self) -> None:
        """
        Raises:
            RuntimeError: the lane was cut.
        """
        if self.is_cut:
            raise RuntimeError(self._why)

    def give_up(self) -> None:
        """A collective takes too long."""
        if not self.is_cut:
            self._why = (
                f"members have not all come to a sum by NCCL within Limits.collective_timeout_s={self.timeout_s:g}"
            )
            self.cut()

    def cut(self) -> None:
        """End what is under way; returns at once, callable from any thread."""
        with self._lock:
            self.is_cut = True
            group, self._group = self._group, None
            held, self._held = self._held, []
        if group is not None:
            threading.Thread(target=_take_down, args=(group, held), name="elastic-nccl-abort", daemon=True).start()


def _take_down(group: Any, held: list[LaneWork]) -> None:
    """Abort, and let go of it there: that waits for threads of torch's, too.

    Args:
        held: works whose memory is kept until then.
    """
    group.abort()
    held.clear()


def warm_up(nccl: Nccl, timeout_s: float) -> None:
    """Have NCCL load and the device be prepared, which takes a second: before others wait for it.

    Raises:
        RuntimeError: a sum of this worker's own takes longer than `timeout_s`.
    """
    lane = Lane(nccl, timeout_s)
    lane.connect(dist.HashStore(), 0, 1)
    lane.cut()
