"""The HTTP side: buckets, uploads in one request and resumable, ranged downloads, pages, and faults on demand."""

import json
import re
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from tests.effects.gcs_server.bucket import PART_BYTES, Bucket, Object, Precondition, Refused

OBJECT = re.compile(r"/(?:download/)?storage/v1/b/([^/]+)/o/(.+)")
OBJECTS = re.compile(r"/storage/v1/b/([^/]+)/o")
UPLOAD = re.compile(r"/(?:resumable/)?upload/storage/v1/b/([^/]+)/o")
BUCKETS = re.compile(r"/storage/v1/b(?:/([^/]+))?")
CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(slots=True, kw_only=True)
class Fault:
    """Strikes requests until it has struck `times` times.

    Attributes:
        kind: "status": answered with `status`, nothing done. "reset": the connection is reset, nothing done.
            "lost": done, and the connection reset instead of an answer. "cut": half of the body is taken (whole parts
            of a resumable upload), then reset. "forgotten": the session of a resumable upload is dropped.
            "flipped": one bit of a download's body. "short": half of a download's body, then the connection is closed.
            "damaged": one bit of an upload's body, on its way in. "slow": answered after `seconds`.
            "silent": never answered; `lift` closes the connections, and ends it.
        method: of the request. path: pattern that occurs in its path and query.
    """

    kind: str
    method: str = ".*"
    path: str = ""
    times: int = 1
    status: int = 503
    seconds: float = 0.0
    struck: int = 0
    is_lifted: threading.Event = field(default_factory=threading.Event)

    def lift(self) -> None:
        """It strikes no more."""
        self.times = 0
        self.is_lifted.set()


class GcsServer:
    """Listens on a free port of this host as long as it is entered.

    Attribute `requests`: "METHOD path" of those on objects.
    """

    def __init__(self, page: int = 3) -> None:
        self.page = page
        self.buckets: dict[str, Bucket] = {"bucket": Bucket("bucket")}
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self._lock = threading.Lock()

    def __enter__(self) -> "GcsServer":
        handler = type("BoundHandler", (Handler,), {"gcs": self})
        self._server = Listener(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fail(self, kind: str, **settings) -> Fault:
        fault = Fault(kind=kind, **settings)
        with self._lock:
            self.faults.append(fault)
        return fault

    def strikes(self, method: str, path: str, kinds: tuple[str, ...]) -> Fault | None:
        if BUCKETS.fullmatch(urlsplit(path).path):
            return None
        with self._lock:
            for fault in self.faults:
                is_meant = re.fullmatch(fault.method, method) and re.search(fault.path, path)
                if fault.kind in kinds and fault.struck < fault.times and is_meant:
                    fault.struck += 1
                    return fault
        return None


class Listener(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # those are the client's right, or our own doing
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    gcs: GcsServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        return

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        if not BUCKETS.fullmatch(parts.path):  # the client asks for the bucket's own data whenever it likes
            self.gcs.requests.append(f"{self.command} {self.path}")
        self.route = unquote(parts.path) if "/o/" not in parts.path else parts.path
        self.query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        fault = self._struck("status", "reset", "cut", "slow", "forgotten", "silent")
        if fault is not None and fault.kind == "silent":
            fault.is_lifted.wait()
            return self._reset()
        if fault is not None and fault.kind == "slow":
            time.sleep(fault.seconds)
        if fault is not None and fault.kind == "reset":
            return self._reset()
        body = self._body(is_cut=fault is not None and fault.kind == "cut")
        if fault is not None and fault.kind == "status":
            return self._answer(fault.status, {"error": {"code": fault.status, "message": "injected"}})
        if fault is not None and fault.kind == "forgotten":
            self._bucket_of_session().sessions.pop(self.query.get("upload_id", ""), None)
        try:
            self._route(body, is_cut=fault is not None and fault.kind == "cut")
        except Refused as refusal:
            self._answer(refusal.status, {"error": {"code": refusal.status, "message": refusal.reason}})

    def _route(self, body: bytes, is_cut: bool) -> None:
        if match := UPLOAD.fullmatch(self.route):
            bucket = self._bucket(match[1])
            if self.command == "PUT":
                return self._part(bucket, body, is_cut)
            if is_cut:
                return self._reset()
            if self.query.get("uploadType") == "resumable":
                return self._begin(bucket, body)
            return self._multipart(bucket, body)
        if match := OBJECT.fullmatch(self.route):
            return self._object(self._bucket(match[1]), unquote(match[2]))
        if match := OBJECTS.fullmatch(self.route):
            return self._list(self._bucket(match[1]))
        if match := BUCKETS.fullmatch(self.route):
            return self._buckets(match[1], body)
        raise Refused(404, f"no such method: {self.command} {self.route}")

    def _buckets(self, name: str | None, body: bytes) -> None:
        if self.command == "POST":
            name = str(json.loads(body)["name"])
            if name in self.gcs.buckets:
                raise Refused(409, "conflict")
            self.gcs.buckets[name] = Bucket(name)
        self._answer(200, {"kind": "storage#bucket", "name": self._bucket(name or "").name})

    def _multipart(self, bucket: Bucket, body: bytes) -> None:
        boundary = b"--" + re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])[1].encode()
        _, head, rest = body.split(boundary, 2)
        resource = json.loads(head.partition(b"\r\n\r\n")[2])
        data = rest.rpartition(b"\r\n" + boundary + b"--")[0].partition(b"\r\n\r\n")[2]
        made = bucket.insert(str(resource["name"]), self._damaged(data), self._precondition, resource)
        self._done(made.resource)

    def _begin(self, bucket: Bucket, body: bytes) -> None:
        resource = json.loads(body)
        session = bucket.begin(str(resource["name"]), self._precondition, resource)
        location = f"{self.gcs.url}/upload/storage/v1/b/{bucket.name}/o?uploadType=resumable&upload_id={session}"
        self._done({}, Location=location)

    def _part(self, bucket: Bucket, body: bytes, is_cut: bool) -> None:
        match = CONTENT_RANGE.fullmatch(self.headers["Content-Range"])
        begin = int(match[1]) if match[1] else None
        total = None if match[3] == "*" or is_cut else int(match[3])
        session = bucket.append(self.query["upload_id"], begin, self._damaged(body), total)
        if is_cut:
            return self._reset()
        if session.finished is not None:
            return self._done(session.finished.resource)
        have = {"Range": f"bytes=0-{len(session.data) - 1}"} if session.data else {}
        self._answer(308, {}, **have)

    def _object(self, bucket: Bucket, name: str) -> None:
        if self.command == "DELETE":
            bucket.delete(name, self._precondition)
            return self._done(None, status=204)
        found = bucket.get(name, self._precondition)
        if self.query.get("alt") == "media":
            return self._media(found)
        self._done(found.resource)

    def _media(self, found: Object) -> None:
        begin, end, status = 0, len(found.data), 200
        if match := RANGE.fullmatch(self.headers.get("Range", "")):
            begin, status = int(match[1]), 206
            end = min(int(match[2]) + 1, end) if match[2] else end
            if begin >= len(found.data):
                raise Refused(416, "requestedRangeNotSatisfiable")
        data = bytearray(found.data[begin:end])
        if data and self._struck("flipped"):
            data[len(data) // 2] ^= 1
        is_short = self._struck("short") is not None
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(found.data)}")
        self.send_header("X-Goog-Generation", str(found.generation))
        self.send_header("X-Goog-Hash", f"crc32c={found.crc32c}")
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if is_short else data)
        self.close_connection = is_short or self.close_connection

    def _list(self, bucket: Bucket) -> None:
        limit = min(self.gcs.page, int(self.query.get("maxResults", self.gcs.page)))
        page, after = bucket.listed(self.query.get("prefix", ""), self.query.get("pageToken", ""), limit)
        listing: dict[str, object] = {"kind": "storage#objects", "items": [found.resource for found in page]}
        if after is not None:
            listing["nextPageToken"] = after
        self._done(listing)

    @property
    def _precondition(self) -> Precondition:
        match, unlike = (self.query.get(name) for name in ("ifGenerationMatch", "ifGenerationNotMatch"))
        return Precondition(None if match is None else int(match), None if unlike is None else int(unlike))

    def _bucket(self, name: str) -> Bucket:
        if name not in self.gcs.buckets:
            raise Refused(404, "notFound: no such bucket")
        return self.gcs.buckets[name]

    def _bucket_of_session(self) -> Bucket:
        return self._bucket(UPLOAD.fullmatch(self.route)[1])

    def _struck(self, *kinds: str) -> Fault | None:
        return self.gcs.strikes(self.command, self.path, kinds)

    def _damaged(self, data: bytes) -> bytes:
        if not data or not self._struck("damaged"):
            return data
        return data[:-1] + bytes([data[-1] ^ 1])

    def _body(self, is_cut: bool) -> bytes:
        nbytes = int(self.headers.get("Content-Length") or 0)
        if is_cut:
            nbytes = nbytes // 2 // PART_BYTES * PART_BYTES
        return self.rfile.read(nbytes)

    def _done(self, resource: dict[str, object] | None, status: int = 200, **headers: str) -> None:
        """The answer to something that was done."""
        if self._struck("lost"):
            return self._reset()
        self._answer(status, resource, **headers)

    def _answer(self, status: int, resource: dict[str, object] | None, **headers: str) -> None:
        body = b"" if resource is None else json.dumps(resource).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _reset(self) -> None:
        """Close the connection as a router that has lost it would."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.connection.close()
