"""Pure. What a persistent tier must be able to do: small objects by key, create-if-absent, ranged reads. No rename.

Every decision (which incarnation is the newest, is a step committed) is one small object, created once: that is atomic
on Google Cloud Storage, on S3 and in a directory. What a store cannot promise it says (`is_atomic`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from elastic.checkpoint.manifest import checked_name
from elastic.errors import ElasticError, SettingError


class StoreError(ElasticError):
    """The store failed for good: after retries, within its deadline; the message names it and the key."""


class MissingError(StoreError):
    """There is no object of this key, or it ends before the bytes that were asked for."""


class TakenError(StoreError):
    """The object exists, and holds other bytes: somebody else wrote it."""


@dataclass(frozen=True, slots=True)
class Item:
    """An object in a listing."""

    key: str
    nbytes: int
    modified_at_s: float


class Store(Protocol):
    """Objects below one root. Keys are relative, '/'-separated; each part is a `checked_name`.

    Calls are retried within a deadline of the store's own, and may be made from any thread. Attribute `is_atomic`: two
    writers that create one key cannot both believe that they did. Attribute `url`: for people, without secrets.
    """

    url: str

    @property
    def is_atomic(self) -> bool: ...

    def create(self, key: str, data: bytes | memoryview) -> None:
        """Write an object that is not there; once it returns, the object is durable and whole.

        The very bytes being there already is success: a retry whose answer was lost finds its own object.

        Raises:
            TakenError: it is there with other bytes. StoreError.
        """

    def read(self, key: str, begin: int = 0, end: int | None = None) -> bytes:
        """Bytes [begin, end) of an object; to its end by default. Unverified: sums are the caller's.

        Raises:
            MissingError: also where fewer bytes than asked for are there. StoreError.
        """

    def put(self, key: str, data: bytes) -> None:
        """Write or replace a small object that is only a hint.

        Raises:
            StoreError.
        """

    def advance(self, key: str, data: bytes, is_older: Callable[[bytes], bool]) -> None:
        """Write or replace a small object that is only a hint, unless what is there is no older.

        In one step where the store compares and sets (Cloud Storage); else another writer may come between look and
        write.

        Args:
            is_older: whether bytes that are there may be replaced.

        Raises:
            StoreError.
        """

    def list(self, prefix: str) -> Iterator[Item]:
        """All objects whose key begins with `prefix`, by key. What is no `checked_key` is nobody's, and left out.

        Raises:
            StoreError.
        """

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is success.

        Raises:
            StoreError.
        """

    def sweep(self, prefix: str, before_s: float, *, is_dry: bool = False) -> int:
        """Remove what killed writers left below a prefix: no objects, and last written before a wall-clock time.

        Args:
            is_dry: only count.

        Returns how many such leftovers there were. Raises StoreError.
        """

    def close(self) -> None:
        """Give back connections and threads."""


def advance_by_looking(store: Store, key: str, data: bytes, is_older: Callable[[bytes], bool]) -> None:
    """`Store.advance` where nothing is compared and set: look, then write."""
    try:
        is_due = is_older(store.read(key))
    except MissingError:
        is_due = True
    if is_due:
        store.put(key, data)


def checked_key(key: str) -> str:
    """A key whose parts cannot lead out of the store.

    Raises:
        SettingError: a part of it is no `checked_name`.
    """
    for part in key.split("/"):
        checked_name(part, f"a part of the key {key!r},")
    return key


def is_key(key: str) -> bool:
    """Whether `checked_key` would take it."""
    try:
        checked_key(key)
    except SettingError:
        return False
    return True


def is_stored(store: Store, key: str) -> bool:
    """Whether there is an object of this very key; a listing has all whose keys begin like it. Raises: StoreError."""
    return any(item.key == key for item in store.list(key))
