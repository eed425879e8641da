"""Effect. A run's log files in the persistent tier: segments of whole lines, copied by the driver."""

import logging
from pathlib import Path

from elastic.actors.segments import Copying, next_lines
from elastic.checkpoint.records import Keys, sealed
from elastic.checkpoint.store import Store, StoreError

log = logging.getLogger("elastic")

PERIOD_S = 30.0
_KIND = "log"


class LogsCopy(Copying):
    """Copies what this life appends to the files of a folder, until it is closed."""

    def __init__(self, folder: Path, store: Store, run: str, incarnation: int, period_s: float = PERIOD_S) -> None:
        self._folder, self._store, self._keys, self._incarnation = folder, store, Keys(run), incarnation
        self._copied_bytes = {path.name: path.stat().st_size for path in folder.glob("*.jsonl")}  # of lives before
        self._numbers: dict[str, int] = {}
        super().__init__("elastic-logs", period_s)

    def copy(self) -> None:
        try:
            for path in sorted(self._folder.glob("*.jsonl")):
                while text := next_lines(path, begin := self._copied_bytes.get(path.name, 0)):
                    number = self._numbers.get(path.name, 0)
                    body = {"begin": begin, "text": text.decode(errors="replace")}
                    self._store.create(self._keys.log(self._incarnation, path.stem, number), sealed(_KIND, body))
                    self._numbers[path.name] = number + 1
                    self._copied_bytes[path.name] = begin + len(text)
        except (StoreError, OSError) as error:
            log.debug("logs are not copied now, and are tried again: %s", error)
