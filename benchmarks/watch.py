"""The outside observer's eyes: reads step logs while they are written."""

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from elastic.demo.steplog import StepLog, collect

_CHUNK_BYTES = 1 << 20
_SETTLED_NS = 100_000_000  # a folder's time is coarse: within it there may be one more file


class _Tail:
    """What is appended to a file; it stays open, since the observer looks often and takes the cores that it watches."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._half = b""

    def whole_lines(self) -> list[bytes]:
        """Those that were ended since the last call; the rest of a line is still being written."""
        if not (text := os.read(self._file, _CHUNK_BYTES)):
            return []
        while more := os.read(self._file, _CHUNK_BYTES):
            text += more
        *lines, self._half = (self._half + text).split(b"\n")
        return lines

    def close(self) -> None:
        os.close(self._file)


class Watch:
    """Follows all step logs of a folder.

    Attributes:
        lines: everything read so far. started: pids whose train_fn began, in order. heard_s: time of the newest line.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: dict[Path, _Tail] = {}
        self._listed_ns = -1  # when the folder had last changed, as it was listed
        self._ranks: dict[tuple[int, int, int], dict[int, int]] = {}  # (generation, step, attempt) -> rank -> pid
        self.lines: list[dict[str, Any]] = []
        self.started: list[int] = []
        self.heard_s = 0.0

    def look(self) -> None:
        """Take in what has been written since."""
        if (changed_ns := self._folder.stat().st_mtime_ns) != self._listed_ns:
            self._listed_ns = changed_ns if time.time_ns() - changed_ns > _SETTLED_NS else -1
            for path in self._folder.glob("*.jsonl"):
                if path not in self._tails:
                    self._tails[path] = _Tail(path)
        for tail in self._tails.values():
            for line in map(json.loads, tail.whole_lines()):
                self._take(line)

    def close(self) -> None:
        """Let go of the files."""
        for tail in self._tails.values():
            tail.close()

    def _take(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        self.heard_s = max(self.heard_s, line["t"])
        if line["event"] == "started":
            self.started.append(line["pid"])
        if line["event"] == "committed":
            place = (line["generation"], line["step"], line["attempt"])
            self._ranks.setdefault(place, {})[line["rank"]] = line["pid"]
            while len(self._ranks) > 4:  # the newest few
                del self._ranks[min(self._ranks)]

    @property
    def step(self) -> int:
        """The newest committed step, -1 before the first."""
        return max(self._ranks)[1] if self._ranks else -1

    @property
    def members(self) -> dict[int, int]:
        """Rank -> pid in the newest generation; from several steps, since the last one may be half committed."""
        newest = max(self._ranks, default=(0, 0, 0))[0]
        return {
            rank: pid for place in sorted(self._ranks) if place[0] == newest for rank, pid in self._ranks[place].items()
        }

    @property
    def living(self) -> set[int]:
        """Pids that have started and are still there."""
        return {pid for pid in self.started if Path(f"/proc/{pid}").exists()}

    def log(self, until_s: float = math.inf) -> StepLog:
        """What was written before a moment, in order."""
        return collect(line for line in self.lines if line["t"] < until_s)
