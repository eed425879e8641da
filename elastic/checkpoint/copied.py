"""Effect. A shard as it comes to a node: part after part, in order, and read by others while it comes."""

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.store import MissingError, StoreError

COMING_S = 30.0
MIN_BYTES_PER_S = 10e6  # a peer that is slower than this is given up


def patience_s(end: int) -> float:
    """How long to wait for bytes up to `end` of a shard that is on its way itself."""
    return COMING_S + end / MIN_BYTES_PER_S


class ComingError(StoreError):
    """The bytes are on their way and not here yet: whoever asks may ask again."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some chunks of a copy: the bytes, and what keeps them alive."""

    begin: int
    end: int
    keeper: Any
    array: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """How a pull went; where: who gave the last part."""

    where: str
    nbytes: int
    seconds: float
    retries: int


class Copied:
    """A shard whose parts come, verified, until it is whole or given up. Any thread may call.

    Attributes:
        manifest: of the shard.
        is_passing: it is here for a restore alone, and does not count as a copy.
        is_begun: somebody is at it.
    """

    def __init__(self, manifest: Manifest, is_passing: bool = False) -> None:
        self.manifest, self.is_passing, self.is_begun = manifest, is_passing, not is_passing
        self._parts: list[Part] = []
        self._failure = ""
        self._news = threading.Condition()

    @property
    def arrived_bytes(self) -> int:
        return self._parts[-1].end if self._parts else 0

    @property
    def is_whole(self) -> bool:
        return self.arrived_bytes == self.manifest.nbytes

    @property
    def is_over(self) -> bool:
        """It was given up."""
        return bool(self._failure)

    def add(self, part: Part) -> None:
        """The next part.

        Raises:
            MissingError: the copy was given up meanwhile.
        """
        with self._news:
            if self._failure:
                raise self._missing()
            self._parts.append(part)
            self._news.notify_all()

    def end(self, reason: str) -> None:
        """No more parts will come; whoever waits for one is told why."""
        with self._news:
            self._failure = self._failure or reason
            self._news.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Until it is whole or given up; whether it is whole.

        Raises:
            ComingError: neither in time.
        """
        self._await(self.manifest.nbytes, timeout_s)
        return self.is_whole

    def read(self, begin: int, end: int, timeout_s: float | None = None) -> Any:
        """Bytes [begin, end) of the payload, (end - begin,) uint8; waits for them, as long as `patience_s` by default.

        Raises:
            MissingError: they will not come. ComingError: they have not come in time.
        """
        self._await(end, patience_s(end) if timeout_s is None else timeout_s)
        if self.arrived_bytes < end:
            raise self._missing()
        found = [
            part.array[max(begin, part.begin) - part.begin : end - part.begin]
            for part in list(self._parts)
            if part.begin < end and begin < part.end
        ]
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.empty(0, dtype=np.uint8)

    def _await(self, end: int, timeout_s: float) -> None:
        with self._news:
            if not self._news.wait_for(lambda: self.arrived_bytes >= end or self._failure, timeout_s):
                at, of = self.arrived_bytes >> 20, self.manifest.nbytes >> 20
                raise ComingError(f"{self.manifest.name}, is on its way: {at} of {of} MiB after {timeout_s:.1f} s more")

    def _missing(self) -> MissingError:
        return MissingError(f"{self.manifest.name}, did not come in full: {self._failure}")


def cuts(manifest: Manifest, at: int, part_bytes: int) -> list[tuple[int, int]]:
    """(begin, end) of the parts from `at` on: whole chunks each."""
    step = max(1, part_bytes // manifest.chunk_bytes) * manifest.chunk_bytes
    return [(begin, min(begin + step, manifest.nbytes)) for begin in range(at, manifest.nbytes, step)]
