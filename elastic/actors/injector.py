"""Effect. Faults that a run injects into itself: its schedule, on the clock of its first stable step."""

import logging
import threading
import time
from types import TracebackType
from typing import Self

from elastic.actors.fleet import Emit
from elastic.callbacks.base import Callback
from elastic.control import events as ev
from elastic.control.injecting import nodes_of
from elastic.control.schedules import Course, Schedule
from elastic.control.state import RunState
from elastic.control.values import StepReport

log = logging.getLogger("elastic")

_LOOK_S = 0.05
_LEAVE_S = 5.0


class Injector(Callback):
    """Asks for each fault when it is due; a context manager, in which it may ask.

    Args:
        schedule: may be empty. seed: of all its draws.
        emit: takes what is asked for.
    """

    def __init__(self, schedule: Schedule, seed: int, emit: Emit) -> None:
        self._schedule, self._seed, self._emit = schedule, seed, emit
        self._state: RunState | None = None
        self._trains = threading.Event()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elastic-injector", daemon=True)

    def __enter__(self) -> Self:
        if self._schedule.entries:
            log.warning("this run breaks itself on purpose: fit(chaos=...) has a schedule of faults")
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join(_LEAVE_S)

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        self._state = state
        self._trains.set()

    def on_state(self, state: RunState) -> None:
        self._state = state

    def _run(self) -> None:
        while not self._trains.wait(_LOOK_S):
            if self._is_closed.is_set():
                return
        began_s, until_s, course = time.monotonic(), -1.0, Course(self._schedule, self._seed)
        while not self._is_closed.wait(_LOOK_S) and until_s < self._schedule.end_s:
            until_s = time.monotonic() - began_s
            nodes = nodes_of(self._state) if self._state is not None and self._schedule.is_per_node else ()
            for fault in course.due(until_s, nodes):
                self._emit(ev.FaultAsked(fault=fault))
