"""Effect. A store whose calls end, around one whose calls may not: a mount that hangs cannot be given a deadline."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from elastic.checkpoint.parallel import in_parallel
from elastic.checkpoint.store import Item, Store

T = TypeVar("T")


class BoundedStore:
    """See `elastic.checkpoint.store.Store`. A call that hangs is left behind, in a daemon thread of its own."""

    def __init__(self, store: Store, deadline_s: float) -> None:
        self._store, self._deadline_s = store, deadline_s
        self.url = store.url

    @property
    def is_atomic(self) -> bool:
        return self._within("try", "links", lambda: self._store.is_atomic)

    def create(self, key: str, data: bytes | memoryview) -> None:
        self._within("write", key, lambda: self._store.create(key, data))

    def put(self, key: str, data: bytes) -> None:
        self._within("write", key, lambda: self._store.put(key, data))

    def read(self, key: str, begin: int = 0, end: int | None = None) -> bytes:
        return self._within("read", key, lambda: self._store.read(key, begin, end))

    def advance(self, key: str, data: bytes, is_older: Callable[[bytes], bool]) -> None:
        self._within("write", key, lambda: self._store.advance(key, data, is_older))

    def list(self, prefix: str) -> Iterator[Item]:
        return iter(self._within("list", prefix or "all", lambda: [*self._store.list(prefix)]))

    def delete(self, key: str) -> None:
        self._within("delete", key, lambda: self._store.delete(key))

    def sweep(self, prefix: str, before_s: float, *, is_dry: bool = False) -> int:
        return self._within("sweep", prefix, lambda: self._store.sweep(prefix, before_s, is_dry=is_dry))

    def close(self) -> None:
        self._store.close()

    def _within(self, verb: str, key: str, call: Callable[[], T]) -> T:
        what = f"{self.url}: cannot {verb}"
        return in_parallel(lambda _: call(), [key], threads=1, stall_s=self._deadline_s, what=what)[0]
