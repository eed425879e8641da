"""Effect. The journal of a run: one JSON line for each event, command and decision, with its time and reason."""

import dataclasses
import json
import threading
from enum import Enum
from pathlib import Path
from typing import Any

from elastic.checkpoint.rungs import CheckpointRung, Degraded, UploadInterval
from elastic.control import events as ev
from elastic.control.commands import Command


class Journal:
    """Appends to `<run_dir>/journal.jsonl`, a line at a time, from any thread."""

    def __init__(self, run_dir: Path) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.path = run_dir / "journal.jsonl"
        self._file = self.path.open("a", buffering=1)
        self._lock = threading.Lock()

    def event(self, at_s: float, event: ev.Event) -> None:
        # Parked workers ask every few seconds.
        if not isinstance(event, ev.Tick | ev.HostBeat | ev.HostsHeard | ev.Overdue):
            self._write("event", at_s, event)

    def command(self, at_s: float, command: Command) -> None:
        self._write("command", at_s, command)

    def checkpoint(self, at_s: float, told: CheckpointRung | Degraded | UploadInterval) -> None:
        self._write("checkpoint", at_s, told)

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _write(self, role: str, at_s: float, value: Any) -> None:
        line = {"t": round(at_s, 6), role: type(value).__name__, **_plain(value)}
        with self._lock:
            if not self._file.closed:  # a thread that tells on may end a little later than the run
                self._file.write(json.dumps(line) + "\n")


def _plain(value: Any) -> Any:
    """JSON for a value of the controller's vocabulary."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | type(None)) else repr(value)
