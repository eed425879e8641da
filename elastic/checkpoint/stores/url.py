"""Effect. A store wherever fsspec leads: s3:// with s3fs, memory:// in tests.

fsspec asks its implementations for exclusive creation (`mode="create"`), and not all of them can: what is written is
read back, and `is_atomic` stays False.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import fsspec.core

from elastic.checkpoint.store import Item, MissingError, StoreError, TakenError, advance_by_looking, checked_key, is_key


class UrlStore:
    """See `elastic.checkpoint.store.Store`. Retries are those of the implementation."""

    is_atomic = False

    def __init__(self, url: str) -> None:
        """
        Raises:
            ValueError, ImportError: fsspec does not know the scheme, or its implementation is not installed.
        """
        parts = urlsplit(url)
        place = parts.netloc.rpartition("@")[2]
        self.url = f"{parts.scheme}://{place}{parts.path}"
        self._fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        self._root = root.rstrip("/")

    def create(self, key: str, data: bytes | memoryview) -> None:
        path, data = self._path(key), bytes(data)
        with self._told("write", key):
            try:
                if not self._fs.exists(path):
                    self._fs.pipe_file(path, data, mode="create")
            except FileExistsError:
                pass
            size = self._fs.info(path)["size"]
            is_ours = size == len(data) and self._fs.cat_file(path) == data
        if not is_ours:
            raise TakenError(f"{self.url}: {key} is there, with other bytes")

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        with self._told("write", key):
            self._fs.pipe_file(path, data)

    def read(self, key: str, begin: int = 0, end: int | None = None) -> bytes:
        path = self._path(key)
        with self._told("read", key):
            try:
                size = self._fs.info(path)["size"]
                data = bytes(self._fs.cat_file(path, start=begin, end=end))
            except (FileNotFoundError, IsADirectoryError):
                raise MissingError(f"{self.url}: there is no {key}") from None
        if begin > size or (end is not None and len(data) < end - begin):
            raise MissingError(f"{self.url}: {key} has {size} bytes, and not those from {begin} to {end}")
        return data

    def advance(self, key: str, data: bytes, is_older: Callable[[bytes], bool]) -> None:
        advance_by_looking(self, key, data, is_older)

    def list(self, prefix: str) -> Iterator[Item]:
        folder = prefix.rpartition("/")[0]
        base = f"{self._root}/{checked_key(folder)}" if folder else self._root
        with self._told("list", prefix):
            try:
                found = self._fs.find(base, detail=True)
            except FileNotFoundError:
                found = {}
        items = [
            Item(
                path.strip("/").removeprefix(self._root.strip("/")).lstrip("/"), int(info["size"]), _modified_at_s(info)
            )
            for path, info in found.items()
        ]
        return iter(
            sorted(
                (item for item in items if item.key.startswith(prefix) and is_key(item.key)), key=lambda item: item.key
            )
        )

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._told("delete", key), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def sweep(self, prefix: str, before_s: float, *, is_dry: bool = False) -> int:
        del prefix, before_s, is_dry  # an interrupted upload is no concern of fsspec's
        return 0

    def close(self) -> None:
        return

    def _path(self, key: str) -> str:
        return f"{self._root}/{checked_key(key)}"

    @contextlib.contextmanager
    def _told(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except Exception as error:  # an implementation raises what its client does, such as botocore's, of any class
            raise StoreError(f"{self.url}: cannot {verb} {key}: {type(error).__name__}; see its cause") from error


def _modified_at_s(info: dict[str, Any]) -> float:
    """When an object was written; now, if its implementation does not tell."""
    for name in ("LastModified", "last_modified", "mtime", "created"):
        value = info.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return time.time()
