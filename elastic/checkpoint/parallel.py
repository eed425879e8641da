"""Effect. Many transfers at once, with an end: threads that stop at the first error or when nothing moves any more."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from elastic.checkpoint.store import StoreError

T = TypeVar("T")
R = TypeVar("R")

QUIET_S = 1.0  # who has not answered so long after the last one may be gone


def in_parallel(work: Callable[[T], R], items: Sequence[T], *, threads: int, stall_s: float, what: str) -> list[R]:
    """Do `work` on each item, several at a time; returns the results in the items' order.

    The threads are daemons: one that hangs in a call of the operating system holds up nobody, not even the end of the
    process.

    Raises:
        StoreError: nothing was completed for stall_s; names `what` and the items that hang.
        Exception: the first that `work` raised; no new item is begun after it.
    """
    return _Crew(work, items, stall_s, what).run(min(threads, len(items)))


def each(
    jobs: Sequence[T],
    act: Callable[[T], None],
    threads: int,
    deadline_s: float,
    is_enough: Callable[[], bool] = lambda: False,
) -> list[T]:
    """Act on all jobs, some at a time; the first error ends it, and is raised here.

    The threads are daemons: a source that never answers holds up neither the caller nor the end of the process.

    Args:
        is_enough: asked whenever no job was done for `QUIET_S`: whether to leave it at that.

    Returns:
        Jobs that were not done at the deadline (monotonic time), or when it was enough.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Future[None]]] = queue.SimpleQueue()
    ending = threading.Event()

    def work() -> None:
        while not ending.is_set():
            try:
                number = todo.get_nowait()
            except queue.Empty:
                return
            future: Future[None] = Future()
            try:
                act(jobs[number])
                future.set_result(None)
            except BaseException as error:  # raised where it is waited for
                future.set_exception(error)
            done.put((number, future))

    for number in range(len(jobs)):
        todo.put(number)
    for _ in range(min(threads, len(jobs))):
        threading.Thread(target=work, name="elastic-read", daemon=True).start()
    left = set(range(len(jobs)))
    try:
        while left:
            left_s = max(0.0, deadline_s - time.monotonic())
            try:
                number, future = done.get(timeout=min(QUIET_S, left_s))
            except queue.Empty:
                if left_s <= QUIET_S or is_enough():
                    break
                continue
            left.discard(number)
            future.result()
    finally:
        ending.set()
    return [jobs[number] for number in sorted(left)]


class _Crew:
    def __init__(self, work: Callable, items: Sequence, stall_s: float, what: str) -> None:
        self._work, self._items, self._stall_s, self._what = work, items, stall_s, what
        self._news = threading.Condition()
        self._next = 0
        self._busy: dict[int, object] = {}
        self._results: dict[int, object] = {}
        self._error: Exception | None = None

    def run(self, threads: int) -> list:
        for number in range(threads):
            threading.Thread(target=self._labour, name=f"transfer-{number}", daemon=True).start()
        with self._news:
            while not self._is_over:
                if not self._news.wait_for(self._has_moved(len(self._results)), self._stall_s):
                    hanging = ", ".join(map(str, list(self._busy.values())[:4]))
                    self._error = self._error or StoreError(
                        f"{self._what}: nothing moved for {self._stall_s:.0f} s, waiting for {hanging}"
                    )
                    break
            if self._error is not None:
                raise self._error
        return [self._results[number] for number in range(len(self._items))]

    def _has_moved(self, done: int) -> Callable[[], bool]:
        return lambda: self._is_over or len(self._results) > done

    @property
    def _is_over(self) -> bool:
        is_done = len(self._results) == len(self._items)
        return is_done or (self._error is not None and not self._busy)

    def _labour(self) -> None:
        while True:
            with self._news:
                if self._error is not None or self._next == len(self._items):
                    return
                number = self._next
                self._next += 1
                self._busy[number] = self._items[number]
            result, error = None, None
            try:
                result = self._work(self._items[number])
            except Exception as caught:  # handed on to the caller of in_parallel
                error = caught
            with self._news:
                self._busy.pop(number)
                if error is None:
                    self._results[number] = result
                self._error = self._error or error
                self._news.notify_all()


class Throttle:
    """A cap on bytes per second for all threads that share it; None: no cap."""

    def __init__(
        self,
        bytes_per_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s, self._clock, self._sleep = bytes_per_s, clock, sleep
        self._lock = threading.Lock()
        self._free_at_s = clock()

    def duration_s(self, nbytes: int) -> float:
        """How long so many bytes take at the cap."""
        return nbytes / self._bytes_per_s if self._bytes_per_s else 0.0

    def take(self, nbytes: int) -> None:
        """Wait as long as so many bytes take at the cap: what is sent after it, at once, is within the cap, too."""
        with self._lock:
            now_s = self._clock()
            self._free_at_s = free_at_s = max(now_s, self._free_at_s) + self.duration_s(nbytes)
        if free_at_s > now_s:
            self._sleep(free_at_s - now_s)
