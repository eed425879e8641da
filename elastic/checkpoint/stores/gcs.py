"""Effect. A store in Google Cloud Storage; `STORAGE_EMULATOR_HOST` leads to another server of the same interface.

An object is created with `ifGenerationMatch=0`, and its CRC32C is checked by the server (one request) or against its
answer (resumable, above 8 MiB). A 412 may be the answer to our own write, whose first answer was lost: size, CRC32C and
MD5 of what is there tell (python-storage, issues 477 and 480).
"""

import base64
import hashlib
import http.client
import io
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import google_crc32c
import requests
import urllib3
from google.api_core.exceptions import GoogleAPICallError, NotFound, PreconditionFailed, RetryError
from google.api_core.retry import Retry
from google.auth.exceptions import GoogleAuthError, TransportError
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from elastic.checkpoint.store import Item, MissingError, StoreError, TakenError, checked_key, is_key
from elastic.errors import SettingError

T = TypeVar("T")
_CONNECT_S, _ANSWER_S = 10.0, 60.0
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.2, 10.0
_FAILURES = (GoogleAPICallError, RetryError, GoogleAuthError, requests.RequestException, InvalidResponse, OSError)
_PASSING = (
    ConnectionError,
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    TransportError,
)
# A session that the server has forgotten, and bytes that were damaged on the way: the upload begins anew.
_ANEW = (400, 410)
_ANEW_TRIES = 3
_ADVANCE_TRIES = 8
# For traces alone the library asks for the bucket's place, in a thread that goes on for two minutes where nobody
# answers, and whose waits are drawn from the `random` that training draws from, too.
_ASKS_FOR_NO_PLACE = ("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")


class GcsStore:
    """See `elastic.checkpoint.store.Store`."""

    is_atomic = True

    def __init__(self, url: str, *, deadline_s: float = 120.0, part_bytes: int | None = None) -> None:
        """
        Args:
            url: gs://bucket/prefix. deadline_s: how long one request is retried.
            part_bytes: of a resumable upload, in multiples of 256 KiB; None: all of an object in one part.

        Raises:
            SettingError: the URL names no bucket. StoreError: there are no credentials.
        """
        bucket, _, prefix = url.removeprefix("gs://").strip("/").partition("/")
        if not bucket:
            raise SettingError(f"Checkpoint.persistent={url!r} names no bucket: gs://bucket/prefix")
        if prefix:
            checked_key(prefix)
        self.url = f"gs://{bucket}/{prefix}".rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._part_bytes = part_bytes
        timeout = (min(_CONNECT_S, deadline_s), min(_ANSWER_S, deadline_s))
        retry = Retry(
            predicate=_is_passing,
            initial=_FIRST_DELAY_S,
            maximum=_LONGEST_DELAY_S,
            timeout=deadline_s,
            on_error=_close_answer,
        )
        os.environ.setdefault(*_ASKS_FOR_NO_PLACE)
        self._patience: dict[str, Any] = {"timeout": timeout, "retry": retry}
        self._deadline_s = deadline_s
        try:
            self._client = storage.Client()
        except (GoogleAuthError, OSError) as error:
            raise StoreError(
                f"{self.url}: no credentials ({type(error).__name__}); set GOOGLE_APPLICATION_CREDENTIALS, run on a "
                "node with a service account, or set STORAGE_EMULATOR_HOST"
            ) from error
        self._bucket = self._client.bucket(bucket)

    def create(self, key: str, data: bytes | memoryview) -> None:
        try:
            self._upload(key, data, if_generation_match=0)
        except PreconditionFailed:
            self._compare(key, bytes(data))

    def put(self, key: str, data: bytes) -> None:
        self._upload(key, data)

    def advance(self, key: str, data: bytes, is_older: Callable[[bytes], bool]) -> None:
        for _ in range(_ADVANCE_TRIES):
            blob = self._found(key)
            try:
                if blob is not None and not is_older(self.read(key)):
                    return
                self._upload(key, data, if_generation_match=0 if blob is None else blob.generation)
                return
            except (PreconditionFailed, MissingError):  # somebody came between, or an answer was lost: look again
                continue
        raise StoreError(f"{self.url}: {key} is written by others all the time; try again later")

    def read(self, key: str, begin: int = 0, end: int | None = None) -> bytes:
        if end is not None and end <= begin:
            return b""
        is_whole = begin == 0 and end is None
        last = None if end is None else end - 1
        arguments = {"start": begin or None, "end": last, "raw_download": True, **self._patience}

        def download() -> bytes:
            return self._blob(key).download_as_bytes(checksum="crc32c" if is_whole else None, **arguments)

        try:
            data = self._told("read", key, lambda: self._anew(download))
        except NotFound:
            raise MissingError(f"{self.url}: there is no {key}, or no such bucket") from None
        except GoogleAPICallError as error:  # 416
            raise MissingError(f"{self.url}: {key} has no byte {begin}") from error
        if end is not None and len(data) != end - begin:
            raise MissingError(f"{self.url}: of {key}, from {begin} to {end}, only {len(data)} bytes came")
        return data

    def list(self, prefix: str) -> Iterator[Item]:
        def every_page() -> list[Item]:
            blobs = self._client.list_blobs(
                self._bucket,
                prefix=self._prefix + prefix,
                fields="items(name,size,updated),nextPageToken",
                **self._patience,
            )
            items = (
                Item(blob.name.removeprefix(self._prefix), int(blob.size), blob.updated.timestamp()) for blob in blobs
            )
            return [item for item in items if is_key(item.key)]

        try:
            return iter(self._told("list", prefix, every_page))
        except NotFound:
            raise self._no_bucket() from None

    def delete(self, key: str) -> None:
        try:
            self._told("delete", key, lambda: self._blob(key).delete(**self._patience))
        except NotFound:
            return

    def sweep(self, prefix: str, before_s: float, *, is_dry: bool = False) -> int:
        del prefix, before_s, is_dry  # an interrupted upload is no object; its session is forgotten after a week
        return 0

    def close(self) -> None:
        self._client.close()

    def _blob(self, key: str) -> storage.Blob:
        return self._bucket.blob(self._prefix + checked_key(key), chunk_size=None)

    def _found(self, key: str) -> storage.Blob | None:
        """What is there, with its generation."""
        return self._told("read", key, lambda: self._bucket.get_blob(self._prefix + checked_key(key), **self._patience))

    def _upload(self, key: str, data: bytes | memoryview, **condition: int) -> None:
        def upload() -> None:
            blob = self._blob(key)
            blob.chunk_size = self._part_bytes
            blob.upload_from_file(
                io.BytesIO(data),
                size=len(data),
                content_type="application/octet-stream",
                checksum="crc32c",
                **condition,
                **self._patience,
            )

        try:
            self._told("write", key, lambda: self._anew(upload))
        except NotFound:
            raise self._no_bucket() from None

    def _compare(self, key: str, data: bytes) -> None:
        """Whether what is there, and made the server refuse ours, is ours.

        Raises:
            TakenError: it is not. StoreError.
        """
        blob = self._found(key)
        if blob is None:
            raise StoreError(f"{self.url}: {key} was there and has been deleted; write it again")
        crc32c = base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
        md5 = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        is_same = blob.size == len(data) and blob.crc32c == crc32c and blob.md5_hash in (None, md5)
        if not is_same:
            raise TakenError(f"{self.url}: {key} is there, with other bytes")

    def _anew(self, transfer: Callable[[], T]) -> T:
        deadline_s = time.monotonic() + self._deadline_s
        for tries_left in reversed(range(_ANEW_TRIES)):
            try:
                return transfer()
            except (DataCorruption, GoogleAPICallError) as error:
                is_passing = isinstance(error, DataCorruption) or error.code in _ANEW
                if not is_passing or not tries_left or time.monotonic() > deadline_s:
                    raise
        raise AssertionError("unreachable")

    def _told(self, verb: str, key: str, call: Callable[[], T]) -> T:
        """What the caller has an answer to passes: not found, exists already, no such range."""
        try:
            return call()
        except (*_FAILURES, DataCorruption) as error:
            _close_answer(error)
            if isinstance(error, GoogleAPICallError) and error.code in (404, 412, 416):
                raise
            raise StoreError(
                f"{self.url}: cannot {verb} {key}: {_cause(error)}; look at the network, the permissions of the "
                "service account, and quotas"
            ) from error

    def _no_bucket(self) -> StoreError:
        return StoreError(f"{self.url}: there is no such bucket, or it may not be seen; create it, or mend the URL")


def _is_passing(error: BaseException) -> bool:
    """Whether to try again: what the client's own `DEFAULT_RETRY` says, too, but that is told of no error."""
    code = _status(error)
    if code is not None:
        return code in (408, 429) or code >= 500
    return isinstance(error, _PASSING)


def _close_answer(error: BaseException) -> None:
    """A download that is refused leaves its connection open until it is collected as garbage."""
    answer = getattr(error, "response", None)
    if isinstance(answer, requests.Response):
        answer.close()


def _status(error: BaseException) -> int | None:
    code = error.code if isinstance(error, GoogleAPICallError) else None
    return code or getattr(getattr(error, "response", None), "status_code", None)


def _cause(error: BaseException) -> str:
    """A failure in a few words that hold no request: its URL may carry a token."""
    if isinstance(error, RetryError) and error.cause is not None:
        return f"retried in vain, last {_cause(error.cause)}"
    code = _status(error)
    return f"{type(error).__name__} {int(code)}" if code else type(error).__name__
