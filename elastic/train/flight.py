"""Effect. The flight page: what a worker is doing, in shared memory, readable without asking it.

The worker writes a few fixed fields with plain memory stores; its host monitor reads them ten times a second, even
while the worker holds the GIL, and once more after its death, to learn which micro-batch was in flight.

A worker holds a lock on its page for as long as it lives, so that pages of dead ones can be told where no host monitor
is left: that one goes with its driver.
"""

import contextlib
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elastic.checkpoint.arena import opened, try_lock
from elastic.control.flight import Flying

_FORMAT = struct.Struct("<qqqqqqqdddd")
_REMARK_BYTES = 128
_VISIBLE_BYTES = 1024
_SIZE = 4096
_PHASES = frozenset(map(int, Flying))


@dataclass(frozen=True, slots=True)
class Flight:
    """One reading of a page.

    Attributes:
        micro_batch: -1 outside of one. commits: steps of this process. at_s: time of the last change.
        computing_s, waiting_s: spent so far, up to that change, on micro-batches (loading included), and for others.
        remark: what its user says of a long phase.
    """

    version: int
    generation: int
    step: int
    attempt: int
    phase: Flying
    micro_batch: int
    commits: int
    at_s: float
    started_at_s: float
    computing_s: float
    waiting_s: float
    remark: str


PAGES = Path("/dev/shm")


def page_path(run: str, worker: str, incarnation: int) -> Path:
    """Where a worker's page lies on its node."""
    return PAGES / f"elastic-{run}@{incarnation}-{worker}.page"


def storage_switch(run: str) -> Path:
    """Where faults of storage are switched on a node; named like a page, so that it goes with them."""
    return page_path(run, "storage-faults", 0)


def page_pattern(run: str) -> str:
    """What the names of a run's pages look like, in all its lives; those of no other run do ('@' is in no name)."""
    return f"elastic-{run}@*.page"


def sweep_pages(run: str) -> None:
    """Take away the pages that dead workers of a run have left on this node, for who leaves it without a driver."""
    for path in PAGES.glob(page_pattern(run)):
        with opened(path) as fd:
            if fd is not None and try_lock(fd, fcntl.LOCK_EX):
                path.unlink(missing_ok=True)


class FlightPage:
    """The worker's end of its page."""

    def __init__(self, path: Path) -> None:
        self.path = path
        fd = _locked(path)
        try:
            os.ftruncate(fd, _SIZE)
            self._memory = mmap.mmap(fd, _SIZE)  # keeps a duplicate of the descriptor, and with it the lock
        finally:
            os.close(fd)
        self._started_at_s = time.time()
        self._noted_s = time.perf_counter()
        self._phase, self._micro_batch = Flying.LOADING, -1
        self.computing_s = self.waiting_s = self.fetching_s = 0.0  # of the first, the last is a part
        self._version = 0
        self._place, self._micro_batch, self._commits = (0, -1, 0), -1, 0
        self.note(Flying.LOADING)

    def place(self, generation: int, step: int, attempt: int) -> None:
        """The attempt that the next notes belong to."""
        self._place = (generation, step, attempt)

    @property
    def placed(self) -> tuple[int, int]:
        """Generation and step of that attempt."""
        generation, step, _ = self._place
        return generation, step

    def committed(self) -> None:
        """One more step; counts from the next note on."""
        self._commits += 1

    def remark(self, text: str) -> None:
        """What the user says of the phase to come; cut to 128 bytes."""
        data = text.encode()[:_REMARK_BYTES].ljust(_REMARK_BYTES, b"\0")
        self._memory[_FORMAT.size : _FORMAT.size + _REMARK_BYTES] = data

    def visible(self, devices: str) -> None:
        """The GPUs that were given to this process, as CUDA_VISIBLE_DEVICES has them."""
        data = devices.encode()[:_VISIBLE_BYTES].ljust(_VISIBLE_BYTES, b"\0")
        begin = _FORMAT.size + _REMARK_BYTES
        self._memory[begin : begin + _VISIBLE_BYTES] = data

    def note(self, phase: Flying, micro_batch: int = -1) -> None:
        """Write what is done now: a few microseconds, no system call but the clock."""
        self._count()
        self._version, self._phase, self._micro_batch = self._version + 1, phase, micro_batch
        where = (self._version, *self._place, int(phase), micro_batch, self._commits)
        times = (time.time(), self._started_at_s, self.computing_s, self.waiting_s)
        _FORMAT.pack_into(self._memory, 0, *where, *times)

    @contextlib.contextmanager
    def during(self, phase: Flying, remark: str = "") -> Iterator[None]:
        """Something else is done inside; afterwards, what was done before."""
        before, micro_batch = self._phase, self._micro_batch
        if remark:
            self.remark(remark)
        self.note(phase, micro_batch)
        try:
            yield
        finally:
            if remark:
                self.remark("")
            self.note(before, micro_batch)

    def _count(self) -> None:
        """Book the time since the last note to what was done in it."""
        now_s = time.perf_counter()
        elapsed_s, self._noted_s = now_s - self._noted_s, now_s
        if self._phase in (Flying.FETCHING, Flying.COMPUTING):
            self.computing_s += elapsed_s
            self.fetching_s += elapsed_s if self._phase is Flying.FETCHING else 0.0
        elif self._phase in (Flying.REDUCING, Flying.TALKING):
            self.waiting_s += elapsed_s

    def remove(self) -> None:
        """Take the page away, at a clean exit."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def _locked(path: Path) -> int:
    """A page's file with its owner's lock; made anew where a sweep came between the two."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_SH)  # a sweep holds it for a moment only
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)


def read_visible(path: Path) -> str:
    """The GPUs that were given to the worker of this page, empty if none were, or there is no page."""
    try:
        data = path.read_bytes()[_FORMAT.size + _REMARK_BYTES :][:_VISIBLE_BYTES]
    except FileNotFoundError:
        return ""
    return data.rstrip(b"\0").decode(errors="replace")


def read_page(path: Path) -> Flight | None:
    """The last state a worker wrote, None if there is no page, or no sense in it."""
    try:
        data = path.read_bytes()[: _FORMAT.size + _REMARK_BYTES]
    except FileNotFoundError:
        return None
    if len(data) < _FORMAT.size + _REMARK_BYTES:
        return None
    version, generation, step, attempt, phase, micro_batch, commits, *times = _FORMAT.unpack_from(data)
    if phase not in _PHASES:
        return None
    at_s, started_at_s, computing_s, waiting_s = times
    return Flight(
        version=version,
        generation=generation,
        step=step,
        attempt=attempt,
        phase=Flying(phase),
        micro_batch=micro_batch,
        commits=commits,
        at_s=at_s,
        started_at_s=started_at_s,
        computing_s=computing_s,
        waiting_s=waiting_s,
        remark=data[_FORMAT.size :].rstrip(b"\0").decode(errors="replace"),
    )
