"""Effect. The journal in the persistent tier: segments of whole lines, copied by the driver, a few seconds behind.

A store has no append, so each segment is an object of its own, created once (`checkpoint/records.py`). A driver that
begins on another machine has the lives before it from there.
"""

import logging
import threading
from pathlib import Path

from elastic.checkpoint.records import Keys, opened, sealed
from elastic.checkpoint.store import Store, StoreError

log = logging.getLogger("elastic")

PERIOD_S = 5.0
_SEGMENT_BYTES = 1 << 20
_LAST_S = 30.0
_KIND = "journal"


class JournalCopy:
    """Copies what is appended to a journal until it is closed.

    Args:
        path: of the journal; what an earlier life has not copied of it goes first.
        incarnation: of this driver.
    """

    def __init__(self, path: Path, store: Store, run: str, incarnation: int, period_s: float = PERIOD_S) -> None:
        self._path, self._store, self._keys, self._incarnation = path, store, Keys(run), incarnation
        self._period_s, self._number = period_s, 0
        self._copied_bytes: int | None = None  # not known yet
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._copy_on, name="elastic-journal", daemon=True)
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
            if self._copied_bytes is None:
                self._copied_bytes = min(_end_of(self._store, self._keys), self._path.stat().st_size)
            while text := self._next_lines(self._copied_bytes):
                body = {"begin": self._copied_bytes, "text": text.decode(errors="replace")}
                self._store.create(self._keys.journal(self._incarnation, self._number), sealed(_KIND, body))
                self._number, self._copied_bytes = self._number + 1, self._copied_bytes + len(text)
        except (StoreError, OSError) as error:
            log.warning("the journal is not copied now, and is tried again: %s", error)

    def _next_lines(self, begin: int) -> bytes:
        with self._path.open("rb") as lines:
            lines.seek(begin)
            text = lines.read(_SEGMENT_BYTES)
            return text[: text.rfind(b"\n") + 1] or (text + lines.readline() if len(text) == _SEGMENT_BYTES else b"")


def fetch_journal(path: Path, store: Store, run: str) -> bool:
    """Write what the persistent tier has of a run's journal, if there is no file; whether there was something.

    Raises:
        StoreError: it cannot be read. CorruptError: a segment is not what was written.
    """
    if path.exists():
        return False
    text = stored_journal(store, run)
    if text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return bool(text)


def stored_journal(store: Store, run: str) -> str:
    """What the persistent tier has of a run's journal; empty if it has nothing.

    Raises:
        StoreError: it cannot be read. CorruptError: a segment is not what was written.
    """
    segments = [opened(_KIND, store.read(item.key)) for item in store.list(Keys(run).folder("journal"))]
    return "".join(str(segment["text"]) for segment in segments)


def _end_of(store: Store, keys: Keys) -> int:
    """How many bytes of the journal were copied by earlier lives."""
    last = max((item.key for item in store.list(keys.folder("journal"))), default=None)
    if last is None:
        return 0
    segment = opened(_KIND, store.read(last))
    return int(segment["begin"]) + len(str(segment["text"]).encode())
