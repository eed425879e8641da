"""Effect. The journal in the persistent tier: segments of whole lines, copied by the driver, a few seconds behind.

A driver that begins on another machine has the lives before it from there.
"""

import logging
from pathlib import Path

from elastic.actors.segments import Copying, next_lines
from elastic.checkpoint.parallel import in_parallel
from elastic.checkpoint.records import Keys, opened, sealed
from elastic.checkpoint.store import Store, TakenError
from elastic.errors import ElasticError

log = logging.getLogger("elastic")

PERIOD_S = 5.0
_KIND = "journal"
_READERS = 8  # a day has up to 17,000 segments, and a bucket takes tens of milliseconds for each
_STALL_S = 300.0


class JournalCopy(Copying):
    """Copies what is appended to a journal until it is closed.

    Args:
        path: of the journal; what an earlier life has not copied of it goes first.
        incarnation: of this driver.
    """

    def __init__(self, path: Path, store: Store, run: str, incarnation: int, period_s: float = PERIOD_S) -> None:
        self._path, self._store, self._keys, self._incarnation = path, store, Keys(run), incarnation
        self._number = 0
        self._copied_bytes: int | None = None  # not known yet
        super().__init__("elastic-journal", period_s)

    def copy(self) -> None:
        try:
            if self._copied_bytes is None:
                self._copied_bytes = min(_end_of(self._store, self._keys), self._path.stat().st_size)
            while text := next_lines(self._path, self._copied_bytes):
                body = {"begin": self._copied_bytes, "text": text.decode(errors="replace")}
                self._store.create(self._keys.journal(self._incarnation, self._number), sealed(_KIND, body))
                self._number, self._copied_bytes = self._number + 1, self._copied_bytes + len(text)
        except TakenError:  # an answer was lost, and the segment is there: go on behind it
            self._number, self._copied_bytes = self._number + 1, None
            self.copy()
        except (ElasticError, KeyError, OSError, ValueError) as error:
            log.warning("the journal is not copied now, and is tried again: %s", error)


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


class StoredJournal:
    """What the persistent tier has of a run's journal: first all, then what has come since."""

    def __init__(self, store: Store, run: str) -> None:
        self._store, self._run, self._known = store, run, set[str]()

    def more(self) -> str:
        """Whole lines that were not told before; empty if there are none.

        Raises:
            StoreError: it cannot be read. CorruptError: a segment is not what was written.
        """
        there = [item.key for item in self._store.list(Keys(self._run).folder("journal"))]
        keys = [key for key in there if key not in self._known]
        segments = in_parallel(
            lambda key: opened(_KIND, self._store.read(key)),
            keys,
            threads=_READERS,
            stall_s=_STALL_S,
            what=f"{self._store.url}: the journal of {self._run}",
        )
        self._known.update(keys)
        return "".join(str(segment["text"]) for segment in segments)


def stored_journal(store: Store, run: str) -> str:
    """What the persistent tier has of a run's journal; empty if it has nothing. Errors are those of `StoredJournal`."""
    return StoredJournal(store, run).more()


def _end_of(store: Store, keys: Keys) -> int:
    """How many bytes of the journal were copied by earlier lives."""
    last = max((item.key for item in store.list(keys.folder("journal"))), default=None)
    if last is None:
        return 0
    segment = opened(_KIND, store.read(last))
    return int(segment["begin"]) + len(str(segment["text"]).encode())
