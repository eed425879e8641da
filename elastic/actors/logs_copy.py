"""Effect. A run's log files in the persistent tier: segments of whole lines, copied by the driver."""

import logging
from pathlib import Path

from elastic.actors.run_logs import RunLogs, put_aside
from elastic.actors.segments import Copying, next_lines
from elastic.checkpoint.records import Keys, sealed
from elastic.checkpoint.store import Store, StoreError, TakenError

log = logging.getLogger("elastic")

PERIOD_S = 30.0
_KIND = "log"


class LogsCopy(Copying):
    """Copies what this life appends to the files of its logs, until it is closed."""

    def __init__(self, logs: RunLogs, store: Store, run: str, incarnation: int, period_s: float = PERIOD_S) -> None:
        self._folder, self._store, self._keys, self._incarnation = logs.folder, store, Keys(run), incarnation
        self._copied_bytes = dict(logs.before_bytes)
        self._numbers: dict[str, int] = {}
        super().__init__("elastic-logs", period_s)

    def copy(self) -> None:
        try:
            for path in sorted(self._folder.glob("*.jsonl")):
                if path.stat().st_size < self._copied_bytes.get(path.name, 0):  # the one before is full
                    self._copy_on_from(path.name, put_aside(path))
                    self._copied_bytes[path.name] = 0
                self._copy_on_from(path.name, path)
        except (StoreError, OSError) as error:
            log.debug("logs are not copied now, and are tried again: %s", error)

    def _copy_on_from(self, name: str, path: Path) -> None:
        """Raises: StoreError, OSError."""
        while text := next_lines(path, begin := self._copied_bytes.get(name, 0)):
            number = self._numbers.get(name, 0)
            body = {"begin": begin, "text": text.decode(errors="replace")}
            stem = name.removesuffix(".jsonl")
            self._numbers[name] = number + 1
            try:
                self._store.create(self._keys.log(self._incarnation, stem, number), sealed(_KIND, body))
            except TakenError:  # an answer was lost; some lines are there twice then, which is better than not
                continue
            self._copied_bytes[name] = begin + len(text)
