"""Effect. The callbacks of one worker: tells them of its steps, and counts what that takes."""

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from elastic.callbacks.worker import WorkerCallback
from elastic.control.flight import Flying
from elastic.train.flight import FlightPage
from elastic.train.meter import Meter

if TYPE_CHECKING:
    from elastic.train.step import Step

log = logging.getLogger("elastic")


class Hooks:
    """Calls who has something to say; with no callbacks nothing is done."""

    def __init__(self, page: FlightPage, meter: Meter) -> None:
        self._page, self._meter = page, meter
        self._all: tuple[WorkerCallback, ...] = ()
        self._at_begin: tuple[WorkerCallback, ...] = ()
        self._at_end: tuple[WorkerCallback, ...] = ()
        self._costs: dict[str, float] = {}

    def use(self, callbacks: Iterable[WorkerCallback], session: Any) -> None:
        """Those that were given to `fit`; train_fn is about to be called."""
        self._all = tuple(callbacks)
        self._at_begin = tuple(one for one in self._all if has_own(one, "on_step_begin"))
        self._at_end = tuple(one for one in self._all if has_own(one, "on_step_end"))
        for one in self._all:
            one.on_begin(session)

    def step_begins(self, step: "Step") -> None:
        step.costs = self._costs  # attempts that failed before it included; its own end is added there
        for one in self._at_begin:
            self._call(one, "on_step_begin", step)

    def step_ends(self, step: "Step") -> None:
        for one in self._at_end:
            self._call(one, "on_step_end", step)
        if step.is_committed:
            self._costs = {}

    def close(self) -> None:
        """train_fn is over; what fails now changes nothing any more. Again: nothing."""
        ended, self._all = self._all, ()
        for one in ended:
            try:
                one.on_end()
            except Exception as error:
                log.warning("%s.on_end failed: %s: %s", type(one).__name__, type(error).__name__, error)

    def _call(self, one: WorkerCallback, method: str, step: "Step") -> None:
        name, since_s = type(one).__name__, time.perf_counter()
        with self._page.during(Flying.SLOW, f"callback {name}"):
            getattr(one, method)(step)
        took_s = time.perf_counter() - since_s
        self._costs[name] = self._costs.get(name, 0.0) + took_s
        self._meter.called(took_s)


def has_own(one: WorkerCallback, method: str) -> bool:
    """Whether it has something to say there."""
    return getattr(type(one), method) is not getattr(WorkerCallback, method)
