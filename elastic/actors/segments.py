"""Effect. What is copied to the persistent tier while it is appended to: whole lines, some at a time, by a thread.

A store has no append, so each segment is an object of its own, created once (`checkpoint/records.py`).
"""

import threading
from abc import ABC, abstractmethod
from pathlib import Path

_SEGMENT_BYTES = 1 << 20
_LAST_S = 30.0


class Copying(ABC):
    """Copies now and then until it is closed, and once more then; a subclass says what.

    Args:
        name: of the thread. period_s: between two looks.
    """

    def __init__(self, name: str, period_s: float) -> None:
        self._period_s = period_s
        self._is_due, self._is_closed = threading.Event(), False
        self._thread = threading.Thread(target=self._copy_on, name=name, daemon=True)
        self._thread.start()

    @abstractmethod
    def copy(self) -> None:
        """Copy what has come since, in the thread; must not raise."""

    def copy_now(self) -> None:
        """Do not wait for the next look."""
        self._is_due.set()

    def close(self) -> None:
        """Copy the rest."""
        self._is_closed = True
        self._is_due.set()
        self._thread.join(_LAST_S)

    def _copy_on(self) -> None:
        while not self._is_closed:
            self._is_due.wait(self._period_s)
            self._is_due.clear()
            self.copy()
        self.copy()  # what came while the last look went on


def next_lines(path: Path, begin: int) -> bytes:
    """Whole lines from this byte on, about a segment of them; a longer line as a whole; empty if there is none yet."""
    with path.open("rb") as lines:
        lines.seek(begin)
        text = lines.read(_SEGMENT_BYTES)
        if whole := text[: text.rfind(b"\n") + 1]:
            return whole
        text += lines.readline() if len(text) == _SEGMENT_BYTES else b""
        return text if text.endswith(b"\n") else b""
