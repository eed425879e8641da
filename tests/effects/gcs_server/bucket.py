"""What the server keeps: objects with generations, and sessions of resumable uploads. No HTTP here."""

import base64
import hashlib
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime

import google_crc32c

PART_BYTES = 256 << 10


class Refused(Exception):
    """The request is answered with this status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True, slots=True)
class Precondition:
    """`ifGenerationMatch` and its negation; 0 stands for "there is no object"."""

    match: int | None = None
    not_match: int | None = None

    def check(self, generation: int) -> None:
        if self.match is not None and self.match != generation:
            raise Refused(412, "conditionNotMet")
        if self.not_match is not None and self.not_match == generation:
            raise Refused(304, "notModified")


@dataclass(slots=True)
class Object:
    name: str
    data: bytes
    generation: int
    updated_s: float
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def crc32c(self) -> str:
        return base64.b64encode(google_crc32c.value(self.data).to_bytes(4, "big")).decode()

    @property
    def resource(self) -> dict[str, object]:
        return {
            "kind": "storage#object",
            "name": self.name,
            "size": str(len(self.data)),
            "generation": str(self.generation),
            "metageneration": "1",
            "crc32c": self.crc32c,
            "md5Hash": base64.b64encode(hashlib.md5(self.data, usedforsecurity=False).digest()).decode(),
            "updated": datetime.fromtimestamp(self.updated_s, UTC).isoformat().replace("+00:00", "Z"),
            "metadata": self.metadata,
        }


@dataclass(slots=True)
class Session:
    """A resumable upload: what has come so far, and the object once it is finished."""

    name: str
    precondition: Precondition
    resource: dict[str, object]
    data: bytearray = field(default_factory=bytearray)
    finished: Object | None = None


class Bucket:
    """All methods are atomic."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.objects: dict[str, Object] = {}
        self.sessions: dict[str, Session] = {}
        self._lock = threading.RLock()
        self._generation = time.time_ns()

    def insert(self, name: str, data: bytes, precondition: Precondition, resource: dict[str, object]) -> Object:
        with self._lock:
            self._check(name, precondition)
            made = Object(name, data, self._generation, time.time())
            if resource.get("crc32c") not in (None, made.crc32c):
                raise Refused(400, "invalid: the CRC32C that was given does not match the data")
            if resource.get("md5Hash") not in (None, made.resource["md5Hash"]):
                raise Refused(400, "invalid: the MD5 that was given does not match the data")
            self._generation += 1
            self.objects[name] = made
            return made

    def get(self, name: str, precondition: Precondition) -> Object:
        with self._lock:
            if name not in self.objects:
                raise Refused(404, "notFound")
            self._check(name, precondition)
            return self.objects[name]

    def delete(self, name: str, precondition: Precondition) -> None:
        with self._lock:
            self.get(name, precondition)
            del self.objects[name]

    def listed(self, prefix: str, after: str, limit: int) -> tuple[list[Object], str | None]:
        with self._lock:
            names = sorted(name for name in self.objects if name.startswith(prefix) and name > after)
            page = [self.objects[name] for name in names[:limit]]
            return page, (names[limit - 1] if len(names) > limit else None)

    def begin(self, name: str, precondition: Precondition, resource: dict[str, object]) -> str:
        with self._lock:
            self._check(name, precondition)
            session = uuid.uuid4().hex
            self.sessions[session] = Session(name, precondition, resource)
            return session

    def append(self, session_id: str, begin: int | None, data: bytes, total: int | None) -> Session:
        """`begin` None asks how far it has come. Bytes that are here already are passed over; a gap is refused."""
        with self._lock:
            session = self.sessions.get(session_id)
            if session is None:
                raise Refused(410, "the session is gone")
            if session.finished is not None or begin is None:
                return session
            have = len(session.data)
            if begin > have:
                raise Refused(503, f"a gap: {have} bytes are here, and these begin at {begin}")
            is_last = total is not None and begin + len(data) >= total
            fresh = data[have - begin :]
            if not is_last:
                fresh = fresh[: (have + len(fresh)) // PART_BYTES * PART_BYTES - have]
            session.data += fresh
            if is_last:
                session.finished = self.insert(
                    session.name, bytes(session.data), session.precondition, session.resource
                )
            return session

    def _check(self, name: str, precondition: Precondition) -> None:
        found = self.objects.get(name)
        precondition.check(found.generation if found is not None else 0)
