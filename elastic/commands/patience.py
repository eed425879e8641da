"""Effect. What others answer, within a deadline, whatever the library that asks them does."""

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from elastic.errors import ElasticError

T = TypeVar("T")


def answer(act: Callable[[], T], within_s: float, late: str) -> T:
    """What a call returns, or raises; it is left behind in a thread of its own if that takes longer.

    Raises:
        ElasticError: it took longer; `late` says who has not answered, and the option to turn.
    """
    told: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            told.put((act(), None))
        except BaseException as error:
            told.put((None, error))

    threading.Thread(target=run, name="elastic-answer", daemon=True).start()
    try:
        value, error = told.get(timeout=within_s)
    except queue.Empty:
        raise ElasticError(late) from None
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]
