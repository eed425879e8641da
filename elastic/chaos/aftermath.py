"""Effect. What is undone after a fault, when its time is over, or whoever injected it ends."""

import threading
from collections.abc import Callable

from elastic.errors import ElasticError

_LEAVE_S = 5.0


class CannotStrikeError(ElasticError):
    """This fault can not be injected here; the message says what it needs."""


class Aftermath:
    """Keeps the threads that undo faults; `close` has them all done at once."""

    def __init__(self) -> None:
        self._is_closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def after(self, seconds: float, undo: Callable[[], object]) -> None:
        """Call `undo` after so long."""

        def wait() -> None:
            self._is_closed.wait(seconds)
            undo()

        self.beside(wait)

    def beside(self, act: Callable[[], object]) -> None:
        """Call `act` in a thread of its own; it asks `is_closed` as it goes on."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=act, name="elastic-chaos", daemon=True)
        self._threads.append(thread)
        thread.start()

    def is_closed(self, within_s: float) -> bool:
        """Whether all is to be undone now; waits so long for it."""
        return self._is_closed.wait(within_s)

    def close(self) -> None:
        self._is_closed.set()
        for thread in self._threads:
            thread.join(_LEAVE_S)
