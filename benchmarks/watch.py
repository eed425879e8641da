"""The outside observer's eyes: reads step logs while they are written."""

import json
import math
from pathlib import Path
from typing import Any

from elastic.demo.steplog import StepLog, collect


class Watch:
    """Follows all step logs of a folder.

    Attributes:
        lines: everything read so far. started: pids whose train_fn began, in order. heard_s: time of the newest line.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._ranks: dict[tuple[int, int, int], dict[int, int]] = {}  # (generation, step, attempt) -> rank -> pid
        self.lines: list[dict[str, Any]] = []
        self.started: list[int] = []
        self.heard_s = 0.0

    def look(self) -> None:
        """Take in what has been written since."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]  # the rest of a line is still being written
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in map(json.loads, whole.splitlines()):
                self._take(line)

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
