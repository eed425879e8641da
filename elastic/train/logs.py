"""Effect. What a process of a run logs, on its way to the driver."""

import logging
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from elastic.control import events as ev
from elastic.control.logs import WORKER, LogLine
from elastic.settings.logs import LEVELS, Logs

KEPT = 1000  # lines that wait for the driver
_TEXT = 4000  # characters of one
NOWHERE = (-1, -1, -1)  # generation, step, rank of who is no worker


def level_of(record: logging.LogRecord) -> str:
    """In the words of `Logs`."""
    if record.levelno >= logging.ERROR:
        return "error"
    return LEVELS[max(0, min(2, record.levelno // 10 - 1))]


def line_of(record: logging.LogRecord, where: tuple[int, int, int] = NOWHERE) -> LogLine:
    """A record in the one form; where: generation, step, rank."""
    try:
        text = record.getMessage()
    except Exception:  # values that do not fit the text, or cannot be shown: whoever logs goes on
        text = _shown(record.msg)
    generation, step, rank = where
    raised = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info and record.exc_info[0] else ""
    return LogLine(
        at_s=record.created,
        level=level_of(record),
        logger=record.name,
        generation=generation,
        step=step,
        rank=rank,
        text=text[:_TEXT],
        kind=_shown(record.msg)[:_TEXT],
        traceback=raised[-_TEXT:],
    )


def _shown(message: object) -> str:
    try:
        return str(message)
    except Exception as error:
        return f"a {type(message).__name__} that cannot be shown: {type(error).__name__}"


class LogBuffer(logging.Handler):
    """Keeps lines until the driver takes them; the oldest go first when it does not.

    It has no lock: the training thread may log while it holds one that another thread, which logs, waits for. Python's
    own `handle` does without one until 3.12.

    Args:
        worker, role, node: see `Logged`.
        where: generation, step and rank of this worker now.
    """

    def __init__(
        self,
        worker: str,
        logs: Logs,
        where: Callable[[], tuple[int, int, int]] = lambda: NOWHERE,
        role: str = WORKER,
        node: str = "",
    ) -> None:
        super().__init__(getattr(logging, logs.level.upper()))
        self._worker, self._where, self._role, self._node = worker, where, role, node
        self._lines: deque[LogLine] = deque(maxlen=KEPT)

    def createLock(self) -> None:  # noqa: N802 - logging's name
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        found: Any = self.filter(record)  # from 3.12 on it may be another one
        if found:
            self.emit(found if isinstance(found, logging.LogRecord) else record)
        return bool(found)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(line_of(record, self._where()))

    def attach(self) -> None:
        """Take what all loggers of this process say from now on."""
        root = logging.getLogger()
        root.addHandler(self)
        if root.level == logging.NOTSET or root.level > self.level:
            root.setLevel(self.level)

    def taken(self) -> list[ev.Logged]:
        """What has come since the last time, as one event; nothing if there is none."""
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        told = ev.Logged(worker=self._worker, lines=tuple(lines), role=self._role, node=self._node)
        return [told] if lines else []


def lines_of(role: str, node: str, logs: Logs) -> LogBuffer:
    """What this process logs from now on: that of an actor of which a node has one."""
    made = LogBuffer(f"{role}-{node[:12]}", logs, role=role, node=node)
    made.attach()
    return made
