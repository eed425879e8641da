"""Effect. A compilation in mid-step is a phase of its own: a batch of a new shape has torch.compile begin anew.

To the eye from outside it is a micro-batch that stands still; only who was dealt it compiles, and all others wait.
This is the one module that touches `torch._dynamo.callback`, which is private; tests/effects/test_compiling.py watches.
"""

import sys
from contextlib import ExitStack, suppress
from typing import Any

from elastic.control.flight import Flying
from elastic.train.flight import FlightPage


class Compilations:
    """Notes on the flight page that the compiler is at work, from the first step on that finds it loaded."""

    def __init__(self, page: FlightPage) -> None:
        self._page, self._at_work = page, ExitStack()
        self._handler: Any = None

    def watch(self) -> None:
        """Called before each step: what is not loaded yet costs nothing, and is not loaded for this."""
        if self._handler is None and "torch._dynamo" in sys.modules:
            from torch._dynamo.callback import callback_handler

            self._handler = callback_handler
        if self._handler is not None and self._begins not in self._handler.start_callbacks:
            self._handler.register_start_callback(self._begins)
            self._handler.register_end_callback(self._ends)

    def close(self) -> None:
        if self._handler is not None:
            with suppress(ValueError):  # torch._dynamo.reset() has taken them away
                self._handler.remove_start_callback(self._begins)
                self._handler.remove_end_callback(self._ends)
            self._handler = None

    def _begins(self, _: Any) -> None:
        self._at_work.enter_context(self._page.during(Flying.SLOW, "compiling"))

    def _ends(self, _: Any) -> None:
        self._at_work.close()
