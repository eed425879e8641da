"""Effect. A run's log files in the persistent tier: segments of whole lines, copied by the driver."""

import logging
import threading
from pathlib import Path

from elastic.checkpoint.records import Keys, sealed
from elastic.checkpoint.store import Store, StoreError

log = logging.getLogger("elastic")

PERIOD_S = 30.0
_SEGMENT_BYTES = 1 << 20
_LAST_S = 30.0
_KIND = "log"


class LogsCopy:
    """Copies what this life appends to the files of a folder, until it is closed."""

    def __init__(self, folder: Path, store: Store, run: str, incarnation: int, period_s: float = PERIOD_S) -> None:
        self._folder, self._store, self._keys, self._incarnation = folder, store, Keys(run), incarnation
        self._period_s = period_s
        self._copied_bytes = {path.name: path.stat().st_size for path in folder.glob("*.jsonl")}  # of lives before
        self._numbers: dict[str, int] = {}
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._copy_on, name="elastic-logs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Copy the rest."""
        self._is_closed.set()
        self._thread.join(_LAST_S)

    def _copy_on(self) -> None:
        while not self._is_closed.wait(self._period_s):
            self._copy()
        self._copy()

    def _copy(self) -> None:
        try:
            for path in sorted(self._folder.glob("*.jsonl")):
                while text := self._next_lines(path):
                    number, begin = self._numbers.get(path.name, 0), self._copied_bytes.get(path.name, 0)
                    body = {"begin": begin, "text": text.decode(errors="replace")}
                    self._store.create(self._keys.log(self._incarnation, path.stem, number), sealed(_KIND, body))
                    self._numbers[path.name] = number + 1
                    self._copied_bytes[path.name] = begin + len(text)
        except (StoreError, OSError) as error:
            log.debug("logs are not copied now, and are tried again: %s", error)

    def _next_lines(self, path: Path) -> bytes:
        with path.open("rb") as lines:
            lines.seek(self._copied_bytes.get(path.name, 0))
            text = lines.read(_SEGMENT_BYTES)
            return text[: text.rfind(b"\n") + 1]
