"""Effect. A store that fails while a file says so: for fault injection, in runs that were started for it."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from elastic.checkpoint.store import Item, Store, StoreError
from elastic.control.draws import chance


def turn_on(switch: Path, share: float, lasts_s: float, draw: int) -> None:
    """From now on, for so long, have this share of the calls to stores on this node fail."""
    struck_file(switch).unlink(missing_ok=True)
    beside = switch.with_name(f"{switch.name}.{os.getpid()}")
    beside.write_text(json.dumps({"share": share, "until_s": time.time() + lasts_s, "draw": draw}))
    beside.replace(switch)


def is_on(switch: Path) -> bool:
    """Whether calls fail now."""
    told = _read(switch)
    return told is not None and time.time() <= float(told["until_s"])


def turn_off(switch: Path) -> None:
    for path in (switch, struck_file(switch)):
        path.unlink(missing_ok=True)


def struck_file(switch: Path) -> Path:
    """Where the first call that failed is named."""
    return switch.with_name(f"{switch.stem}-struck{switch.suffix}")


class FaultyStore:
    """See `Store`; each call looks at `switch` first.

    Args:
        switch: a file on this node; see `turn_on`.
    """

    def __init__(self, store: Store, switch: Path) -> None:
        self._store, self._switch, self._calls = store, switch, 0
        self.url = store.url

    @property
    def is_atomic(self) -> bool:
        return self._store.is_atomic

    def create(self, key: str, data: bytes | memoryview) -> None:
        self._may_fail("write", key)
        self._store.create(key, data)

    def read(self, key: str, begin: int = 0, end: int | None = None) -> bytes:
        self._may_fail("read", key)
        return self._store.read(key, begin, end)

    def put(self, key: str, data: bytes) -> None:
        self._may_fail("write", key)
        self._store.put(key, data)

    def advance(self, key: str, data: bytes, is_older: Callable[[bytes], bool]) -> None:
        self._may_fail("write", key)
        self._store.advance(key, data, is_older)

    def list(self, prefix: str) -> Iterator[Item]:
        self._may_fail("list", prefix or "all")
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        self._may_fail("delete", key)
        self._store.delete(key)

    def sweep(self, prefix: str, before_s: float, *, is_dry: bool = False) -> int:
        self._may_fail("sweep", prefix)
        return self._store.sweep(prefix, before_s, is_dry=is_dry)

    def close(self) -> None:
        self._store.close()

    def _may_fail(self, verb: str, key: str) -> None:
        """
        Raises:
            StoreError: a fault is injected, and chance wants this call to fail.
        """
        told = _read(self._switch)
        if told is None or time.time() > told["until_s"]:
            return
        self._calls += 1
        if chance(told["draw"], os.getpid(), self._calls) < told["share"]:
            error = f"{self.url}: cannot {verb} {key}: injected by elastic chaos"
            if not (struck := struck_file(self._switch)).exists():
                struck.write_text(error)
            raise StoreError(error)


def _read(switch: Path) -> Any:
    try:
        return json.loads(switch.read_text())
    except FileNotFoundError:
        return None
