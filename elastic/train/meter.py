"""Effect. What a worker's time between two commits goes into, for the report of the step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from elastic.control.values import StepTimes
from elastic.train.flight import FlightPage


class Meter:
    """Counts from one lap to the next; what the flight page counts anyway is read there."""

    def __init__(self, page: FlightPage) -> None:
        self._page = page
        self.restart(time.time())

    def restart(self, at_s: float) -> None:
        """A generation goes: whatever was before has no part in its first step."""
        self._since_s = at_s
        self._stall_s = self._evaluation_s = self._callback_s = 0.0
        self._fetched_s, self._waited_s = self._page.fetching_s, self._page.waiting_s

    @contextmanager
    def stalling(self) -> Iterator[None]:
        """Snapshots are waited for inside."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._stall_s += time.perf_counter() - began_s

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """An evaluation runs inside."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._evaluation_s += time.perf_counter() - began_s

    def called(self, seconds: float) -> None:
        """A callback took so long."""
        self._callback_s += seconds

    def lap(self, at_s: float) -> StepTimes:
        """What the time since the last one went into; the next one begins at `at_s`."""
        page = self._page
        times = StepTimes(
            since_s=self._since_s,
            data_s=round(page.fetching_s - self._fetched_s, 6),
            wait_s=round(page.waiting_s - self._waited_s, 6),
            stall_s=round(self._stall_s, 6),
            evaluation_s=round(self._evaluation_s, 6),
            callback_s=round(self._callback_s, 6),
        )
        self.restart(at_s)
        return times
