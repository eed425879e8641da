"""Effect. Calls to actors that are gone on with in one thread: when the answer is there, or when it is late."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Call:
    """A call on its way, and what its end means."""

    due_s: float
    failed: Callable[[str], Any]
    is_over: bool = False


class Calls:
    """See the module.

    Args:
        put: has something done in that thread.
    """

    def __init__(self, put: Callable[[Callable[[], None]], None]) -> None:
        self._put = put
        self._open: list[Call] = []

    def then(
        self,
        ask: Callable[[], Any],
        within_s: float,
        then: Callable[[Any], Any],
        failed: Callable[[str], Any],
        late: Callable[[Any], Any] = lambda _: None,
    ) -> None:
        """Make a call, and go on with its answer, or with why there is none.

        Args:
            ask: makes it. If it can not be made, since Ray's head is away, or its store is full, or the actor is of an
                older release, it has failed like any other.
            late: takes an answer that nobody waits for any more.
        """
        call = Call(time.monotonic() + within_s, failed)
        self._open.append(call)

        def go_on(future: Future[Any]) -> None:
            is_late, call.is_over = call.is_over, True
            error = future.exception()
            if error is None:
                (late if is_late else then)(future.result())
            elif not is_late:
                failed(f"{type(error).__name__}: {error}".splitlines()[0])

        _asked(ask).add_done_callback(lambda future: self._put(lambda: go_on(future)))

    def expire(self, now_s: float) -> None:
        """In that thread: give up what is overdue."""
        for call in self._open:
            if not call.is_over and now_s > call.due_s:
                call.is_over = True
                call.failed("it did not answer in time")
        self._open = [call for call in self._open if not call.is_over]


def _asked(ask: Callable[[], Any]) -> "Future[Any]":
    """The answer to come; where the call could not be made, why."""
    try:
        future: Future[Any] = ask().future()
    except Exception as error:
        future = Future()
        future.set_exception(error)
    return future
