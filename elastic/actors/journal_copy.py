"""Effect. The journal in the persistent tier: segments of whole lines, copied by the driver, a few seconds behind.

A driver that begins on another machine has the lives before it from there.
"""

import json
import logging
from itertools import chain
from pathlib import Path

from elastic.actors.journal import newest_life
from elastic.actors.journal_merging import merge
from elastic.actors.segments import Copying, next_lines
from elastic.actors.stored_journal import Segment, StoredJournal, encoded, end_of, objects
from elastic.checkpoint.merging import last_of
from elastic.checkpoint.records import Keys
from elastic.checkpoint.store import Store, TakenError
from elastic.errors import ElasticError

log = logging.getLogger("elastic")

PERIOD_S = 5.0
_MERGED_EVERY = 64  # segments


class JournalCopy(Copying):
    """Copies what is appended to a journal until it is closed, and merges segments now and then.

    Args:
        path: of the journal; what an earlier life has not copied of it goes first.
        incarnation: of this driver.
        before_bytes: how long the journal was when this life began; all behind it is copied. None: it is none's yet.
    """

    def __init__(
        self,
        path: Path,
        store: Store,
        run: str,
        incarnation: int,
        period_s: float = PERIOD_S,
        before_bytes: int | None = None,
    ) -> None:
        self._before_bytes = path.stat().st_size if before_bytes is None else before_bytes
        self._path, self._store, self._run, self._incarnation = path, store, run, incarnation
        self._number, self._merged_at = 0, -_MERGED_EVERY
        self._copied_bytes: int | None = None  # not known yet
        super().__init__("elastic-journal", period_s)

    def copy(self) -> None:
        try:
            if self._copied_bytes is None:
                if self._number and newest_life(self._path) > self._incarnation:
                    return  # it writes to this file, and has gone on behind what is there of this life
                own = self._incarnation if self._number else None
                there = end_of(self._store, self._run, own)  # of another line of lives it may be further than ours
                self._copied_bytes = there if self._number else min(there, self._before_bytes)
            while text := self._own(next_lines(self._path, self._copied_bytes)):
                segment = Segment(self._copied_bytes, text.decode(errors="replace"))
                self._store.create(Keys(self._run).journal(self._incarnation, self._number), encoded([segment]))
                self._number, self._copied_bytes = self._number + 1, self._copied_bytes + len(text)
        except TakenError:  # an answer was lost, and the segment is there: go on behind it
            self._number, self._copied_bytes = self._number + 1, None
            self.copy()
        except (ElasticError, OSError, ValueError) as error:
            log.warning("the journal is not copied now, and is tried again: %s", error)
        else:
            self._merge_now_and_then()

    def _own(self, text: bytes) -> bytes:
        """Up to where a newer driver has opened the journal: it copies its lines itself, as those of its life."""
        own = b""
        for line in text.splitlines(keepends=True):
            if b'"Settings"' in line and _life_of(line) > self._incarnation:
                break
            own += line
        return own

    def _merge_now_and_then(self) -> None:
        if self._is_closed or self._number - self._merged_at < _MERGED_EVERY:
            return
        self._merged_at = self._number
        try:
            merge(self._store, self._run, self._incarnation)
        except (ElasticError, OSError, ValueError) as error:
            log.warning("the journal's segments are not merged now, and are tried again: %s", error)


def _life_of(line: bytes) -> int:
    """Which life begins with this line; 0: none does."""
    try:
        told = json.loads(line)
    except ValueError:  # who was killed on the way has left a part of it
        return 0
    return int(told["incarnation"]) if told.get("life") == "Settings" else 0


def fetch_journal(path: Path, store: Store, run: str) -> bool:
    """Write what the persistent tier has of a run's journal; whether there was something.

    A file that is there stays, unless the tier knows of a later life, which was elsewhere: then it is put beside.

    Raises:
        StoreError: it cannot be read. CorruptError: a segment is not what was written.
    """
    here = newest_life(path)
    if path.exists():
        there = last_of(objects(store, run))
        if there is None or not here or there.incarnation <= here:
            return False
    parts = StoredJournal(store, run).parts()
    first = next(parts, "")
    if first:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with partial.open("w") as file:
            file.writelines(chain([first], parts))
        if path.exists():
            path.rename(path.with_name(f"{path.name}.until-life-{here}"))
        partial.rename(path)  # who is killed on the way leaves no shorter past to the next one
    return bool(first)
