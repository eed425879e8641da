"""Pure. Lines of logs: their one form, and which of the same lines of many workers are shown."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from elastic.settings.logs import LEVELS

_MOST = 256  # kinds of lines that are remembered
WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """What was logged once.

    Attributes:
        at_s: of the wall clock. level: see `Logs`. logger: its name.
        generation, step, rank: of the worker at that time; -1 before it had one, and in the driver.
        text: for people. kind: the text before values were put in: equal lines have one.
        traceback: of the exception that was logged along, empty if there was none.
    """

    at_s: float
    level: str
    logger: str
    generation: int
    step: int
    rank: int
    text: str
    kind: str
    traceback: str = ""

    def facts(self, run: str, incarnation: int, worker: str, node: str, role: str = WORKER) -> dict[str, Any]:
        """The line as it stands in a file; `worker` and `role`: see `Logged`."""
        found: dict[str, Any] = {"t": round(self.at_s, 3), "level": self.level, "run": run, "incarnation": incarnation}
        found |= {"generation": self.generation, "step": self.step, "rank": self.rank}
        found |= {"role": role, "worker": worker, "node": node, "logger": self.logger, "text": self.text}
        return found | ({"traceback": self.traceback} if self.traceback else {})


@dataclass(slots=True)
class _Repeated:
    """Lines of one kind that were not shown."""

    since_s: float
    level: str
    text: str
    count: int = 0
    workers: set[str] = field(default_factory=set)


class Echo:
    """Which lines of other processes the driver shows: the first of a kind, and later how often it came again.

    Args:
        show: least severe level. window_s: for so long the same is not shown again.
    """

    def __init__(self, show: str, window_s: float = 60.0) -> None:
        self._least, self._window_s = LEVELS.index(show), window_s
        self._heard: dict[tuple[str, str, str, str], _Repeated] = {}

    def heard(self, line: LogLine, worker: str, now_s: float, role: str = WORKER) -> Iterator[tuple[str, str]]:
        """(level, text) of what is to be shown now that this line has come; `worker` and `role`: see `Logged`."""
        yield from self.due(now_s)
        if LEVELS.index(line.level) < self._least:
            return
        key = (role, line.logger, line.level, line.kind)
        known = self._heard.get(key)
        if known is not None:
            known.count += 1
            known.workers.add(worker)
            return
        if len(self._heard) >= _MOST:
            yield from self._told(next(iter(self._heard)))
        self._heard[key] = _Repeated(now_s, line.level, line.text)
        where = f" (rank {line.rank}, step {line.step})" if role == WORKER else ""
        yield line.level, f"{worker}{where}: {line.text}"

    def due(self, now_s: float, is_last: bool = False) -> Iterator[tuple[str, str]]:
        """What came again in windows that are over."""
        over = [key for key, one in self._heard.items() if is_last or now_s - one.since_s >= self._window_s]
        for key in over:
            yield from self._told(key)

    def _told(self, key: tuple[str, str, str, str]) -> Iterator[tuple[str, str]]:
        one = self._heard.pop(key)
        if one.count:
            who = f"{len(one.workers)} {key[0]}{'s' if len(one.workers) > 1 else ''}"
            yield one.level, f"{one.count} more from {who}: {one.text}"
