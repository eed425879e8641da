"""Effect. The logs of a run: a file for each of its processes, and on the terminal what matters, once."""

import json
import logging
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TextIO

from elastic.control import events as ev
from elastic.control.logs import Echo, LogLine
from elastic.settings import RunSettings
from elastic.train.logs import line_of

log = logging.getLogger("elastic")
workers_log = logging.getLogger("elastic.workers")

FOLDER = "logs"
DRIVER = "driver"
MOST_BYTES = 64 << 20  # of a file; twice as much of each process is kept
_LOOK_S = 1.0


class RunLogs(logging.Handler):
    """Writes `<run_dir>/logs/<worker>.jsonl`, a line of JSON each; as a handler it takes what the driver itself logs.

    A file that has come to `most_bytes` is put aside as `<worker>.jsonl.1`, in the place of the one before.

    Use it as a context: inside, what "elastic" logs goes to `driver.jsonl`, and, if nobody else shows it, to stderr.

    Attributes:
        before_bytes: by file, what lives before have left there. afterwards: closed when the last line is written.
    """

    def __init__(
        self, run_dir: Path, settings: RunSettings, stream: TextIO | None = None, most_bytes: int = MOST_BYTES
    ) -> None:
        super().__init__(getattr(logging, settings.logs.level.upper()))
        self.folder = run_dir / FOLDER
        self.incarnation = settings.incarnation  # of the lines that come from now on
        self.before_bytes = {path.name: path.stat().st_size for path in self.folder.glob("*.jsonl")}
        self.afterwards = ExitStack()
        self._run, self._stream, self._most_bytes = settings.run, stream or sys.stderr, most_bytes
        self._echo = Echo(settings.logs.show)
        self._due_s = 0.0  # when to look next for what came again
        self._nodes: dict[str, str] = {}
        self._has_failed = False
        self._writing, self._telling = threading.Lock(), threading.Lock()

    def heed(self, event: ev.Event) -> bool:
        """Whether an event was for the logs alone; from any thread."""
        if isinstance(event, ev.WorkerPlaced):
            self._nodes[event.worker] = event.node
        if isinstance(event, ev.RunTakenOver):
            self._nodes |= {one.worker: one.node for one in event.found}
        if not isinstance(event, ev.Logged):
            self._tell_what_is_due()
            return False
        self._write(event.worker, event.lines, event.role, event.node or self._nodes.get(event.worker, ""))
        for line in event.lines:
            with self._telling:
                told = list(self._echo.heard(line, event.worker, time.monotonic(), event.role))
            for level, text in told:
                _show(level, text)
        return True

    def _tell_what_is_due(self) -> None:
        """What came again is told though no other line comes: there is news of some kind as long as a run goes on."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + _LOOK_S
        with self._telling:
            told = list(self._echo.due(now_s))
        for level, text in told:
            _show(level, text)

    def emit(self, record: logging.LogRecord) -> None:
        self._write(DRIVER, (line_of(record),), DRIVER, "")

    def __enter__(self) -> "RunLogs":
        _SHOWN.enter(self._stream)
        log.addHandler(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self._telling:
            told = list(self._echo.due(time.monotonic(), is_last=True))
        for level, text in told:
            _show(level, text)
        log.removeHandler(self)
        _SHOWN.leave()
        self.afterwards.close()

    def _write(self, name: str, lines: tuple[LogLine, ...], role: str, node: str) -> None:
        who = self._run, self.incarnation, name, node, role
        text = "".join(json.dumps(line.facts(*who)) + "\n" for line in lines)
        try:
            with self._writing:
                self.folder.mkdir(parents=True, exist_ok=True)
                path = self.folder / f"{name}.jsonl"
                with path.open("a") as file:
                    file.write(text)
                    is_full = file.tell() >= self._most_bytes
                if is_full:
                    path.replace(put_aside(path))
                self._has_failed = False
        except OSError as error:  # a full disk ends no training; not logged, since that would come here again
            if not self._has_failed:
                self._has_failed = True
                with suppress(OSError, ValueError):  # it may lead to the same disk, or nowhere any more
                    print(f"logs are not written to {self.folder}: {error.strerror}", file=self._stream)


@dataclass(slots=True)
class _Shown:
    """What all runs of a process share: the level of "elastic", and, if nobody has one, a handler for the terminal."""

    users: int = 0
    level_before: int = logging.NOTSET
    console: logging.Handler | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, stream: TextIO) -> None:
        with self.lock:
            self.users += 1
            if self.users > 1:
                return
            self.level_before = log.level
            if log.level == logging.NOTSET:
                log.setLevel(logging.INFO)
            if not log.handlers and not logging.getLogger().handlers:
                self.console = _console(stream)
                log.addHandler(self.console)

    def leave(self) -> None:
        """As it was before, once the last one has left."""
        with self.lock:
            self.users -= 1
            if self.users:
                return
            if self.console is not None:
                log.removeHandler(self.console)
                self.console = None
            log.setLevel(self.level_before)


_SHOWN = _Shown()


def put_aside(path: Path) -> Path:
    """Where a file goes that is full."""
    return path.with_name(f"{path.name}.1")


def _show(level: str, text: str) -> None:
    workers_log.log(getattr(logging, level.upper()), "%s", text)


class _Clearing(logging.StreamHandler[TextIO]):
    """On a terminal a live line may stand where this one goes."""

    terminator = "\n"

    def format(self, record: logging.LogRecord) -> str:
        clear = "\r\x1b[K" if self.stream.isatty() else ""
        return clear + super().format(record)


def _console(stream: TextIO) -> logging.Handler:
    handler = _Clearing(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    return handler
