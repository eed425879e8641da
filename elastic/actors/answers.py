"""Effect. Goes on with what calls to Ray answer: Ray hands answers over in a thread in which no call to it may wait."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ray.exceptions import RayActorError


class Answers:
    """A thread in which calls go on, one after the other.

    Args:
        crash: takes the error that has ended the thread, which nothing should.
    """

    def __init__(self, crash: Callable[[Exception], None]) -> None:
        self._crash = crash
        self._queue: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="elastic-answers", daemon=True)
        self._thread.start()

    def then(self, reference: Any, then: Callable[[Any], Any], failed: Callable[[Exception], Any]) -> None:
        """Continue when the answer is there."""

        def done(future: Future[Any]) -> None:
            error = future.exception()
            if isinstance(error, Exception):
                self._queue.put(lambda: failed(error))
            else:
                self._queue.put(lambda: then(future.result()))

        reference.future().add_done_callback(done)

    def close(self, within_s: float) -> None:
        self._is_closed.set()
        self._queue.put(lambda: None)
        self._thread.join(within_s)

    def _go_on(self) -> None:
        try:
            while not self._is_closed.is_set():
                self._queue.get()()
        except Exception as error:  # nobody would hear it here
            self._crash(error)


def first_line(error: Exception) -> str:
    """The sentence of a Ray error, without its pages of advice."""
    cause = "its process or node is gone" if isinstance(error, RayActorError) else type(error).__name__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{cause} ({lines[-1] if lines else 'no detail'})"[:400]
