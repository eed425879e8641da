"""Effect. Follows a journal: what was appended to it since the last look goes into the report and the ledger."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from elastic.ledger.ledger import Ledger
from elastic.report.content.compose import report
from elastic.report.content.fold import Fold
from elastic.report.content.model import Report

_CHUNK_BYTES = 8 << 20
_EVENTS = {"life", "phase", "moment", "command"}  # by what tells the kind of a line
_BEGINNING_BYTES = 256  # the first line of a journal says when it was written, and of which life


class Follower:
    """The report of a journal that grows.

    Args:
        path: of the journal; it need not be there yet.

    Attributes:
        lines: of this journal, taken in so far.
        is_eventful: more than steps and checkpoints has come since this was last set back.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._taken, self.is_eventful = path, 0, False
        self._begin()

    @property
    def has_news(self) -> bool:
        """Whether something was appended; cheap."""
        try:
            return self.path.stat().st_size != self._read_bytes
        except OSError:
            return False

    def read(self, is_whole: bool = False) -> bool:
        """Take in what was appended, up to some megabytes, or all of it; whether there was something."""
        before = self._taken
        while True:
            try:
                with self.path.open("rb") as journal:
                    more = self._read(journal)
            except FileNotFoundError:
                break
            if not (is_whole and more):
                break
        return self._taken > before

    def report(self) -> Report:
        """Of what was taken in; its time runs up to the last line."""
        return report(self._fold, self._ledger.account())

    @property
    def seen_s(self) -> float | None:
        """When the last line was written, of the wall clock; None before any."""
        return self._fold.seen_s

    @property
    def silent_s(self) -> float | None:
        """Seconds since the last line was written; None before any, and once the run is over."""
        seen_s = self.seen_s
        return None if seen_s is None or self.is_over else max(0.0, time.time() - seen_s)

    @property
    def is_over(self) -> bool:
        """The last life has ended."""
        return bool(self._fold.ending)

    def _begin(self) -> None:
        self._fold, self._ledger = Fold(), Ledger()
        self._read_bytes, self._rest, self._begins = 0, b"", b""
        self.lines = 0

    def _read(self, journal: BinaryIO) -> bool:
        size, _ = journal.seek(0, 2), journal.seek(0)
        begins = journal.read(_BEGINNING_BYTES)
        if size < self._read_bytes or not begins.startswith(self._begins):  # another journal has taken its place
            self._begin()
        self._begins = begins
        journal.seek(self._read_bytes)
        data = journal.read(_CHUNK_BYTES)
        self._read_bytes += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for text in lines:
            self._take(text)
        return len(data) == _CHUNK_BYTES

    def _take(self, text: bytes) -> None:
        """A line that a driver was killed in the middle of says nothing."""
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            return
        if isinstance(line, dict) and "t" in line:
            with suppress(AttributeError, KeyError, TypeError, ValueError, OverflowError):  # of another version
                self._fold.take(line)
            self._ledger.feed(line)
            self.is_eventful |= not _EVENTS.isdisjoint(line)
            self.lines += 1
            self._taken += 1
