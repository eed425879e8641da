"""Effect. The live page: a process of its own, so that who looks at a run costs its control plane nothing.

It reads the journal, and nothing else; it answers GET alone, and changes nothing.
"""

import argparse
import contextlib
import hmac
import json
import math
import os
import socket
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from elastic.report.follower import Follower
from elastic.report.html import as_json, charts, live_page

TOKEN_VARIABLE = "ELASTIC_PAGE_TOKEN"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LOOK_S = 0.1
_ASKED_S = 5.0  # an answer comes at the latest after this long, with or without news
_SHARE = 0.25  # of a core, at most, goes into making reports
_APART_S = 1.0  # between two reports of a run that goes on; nobody reads faster, and what happens shows within 2 s
_CALM_APART_S = 2.0  # while there are only more steps: they are most of what making reports costs
_MOST_CLIENTS = 32
_SOCKET_S = 60.0
_NICE = 10


class Live:
    """The newest report of a run, made when somebody asks for it, and something has changed."""

    def __init__(self, journal: Path) -> None:
        self._follower = Follower(journal)
        self._lock = threading.Lock()
        self._report, self._number, self._has_more = "", 0, False
        self._made_s, self._took_s = -math.inf, 0.0
        self._life = os.urandom(4).hex()

    @property
    def version(self) -> str:
        return f"{self._life}-{self._number}"

    def newer(self, version: str, within_s: float) -> bytes:
        """The newest report, as soon as it is not that one; or, after so long, nothing but its version."""
        deadline_s = time.monotonic() + within_s
        while True:
            with self._lock:
                self._refresh()
                if self._report and version != self.version:
                    return self._told(f'"report":{self._report}')
            if time.monotonic() > deadline_s:
                return self._told("")
            time.sleep(_LOOK_S)

    def _told(self, more: str) -> bytes:
        """silent_s: since the last word of the run; None where it is over, or none has come."""
        silent_s = self._follower.silent_s
        rounded_s = None if silent_s is None else round(silent_s, 1)
        head = json.dumps({"version": self.version, "silent_s": rounded_s})
        return (f"{head[:-1]},{more}}}" if more else head).encode()

    def _refresh(self) -> None:
        if self._follower.has_news:
            self._has_more |= self._follower.read(is_whole=True)
        began_s = time.monotonic()
        apart_s = _APART_S if self._follower.is_eventful else _CALM_APART_S
        is_early = began_s - self._made_s < max(apart_s, self._took_s / _SHARE)
        if not self._has_more or (is_early and not self._follower.is_over):
            return
        self._report = as_json(self._follower.report())
        self._number, self._has_more, self._follower.is_eventful = self._number + 1, False, False
        self._made_s = time.monotonic()
        self._took_s = self._made_s - began_s


class _Handler(BaseHTTPRequestHandler):
    server: "Server"
    server_version, sys_version = "elastic", ""
    protocol_version = "HTTP/1.1"
    timeout = _SOCKET_S

    def do_GET(self) -> None:
        try:
            parts, host = urlsplit(self.path), urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, b"there is no such URL, or no such host\n", "text/plain")
            return
        query = parse_qs(parts.query)
        if not self.server.token and host not in LOOPBACK:
            # A page elsewhere that has its name lead here, to read what only this machine may, is told nothing.
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"this page is not served under that name\n", "text/plain")
        elif parts.path != "/charts.js" and not self._is_known(query):
            told = b"the page's token is missing or wrong: open the URL that the run has told, ?token=... included\n"
            self._send(HTTPStatus.UNAUTHORIZED, told, "text/plain")
        elif parts.path == "/":
            self._send(HTTPStatus.OK, live_page(self.server.run).encode(), "text/html")
        elif parts.path == "/charts.js":
            self._send(HTTPStatus.OK, charts().encode(), "text/javascript", is_kept=True)
        elif parts.path == "/report.json":
            after = query.get("after", [""])[0]
            self._send(HTTPStatus.OK, self.server.live.newer(after, _ASKED_S), "application/json")
        else:
            self._send(HTTPStatus.NOT_FOUND, b"there is /, and /report.json\n", "text/plain")

    def _is_known(self, query: dict[str, list[str]]) -> bool:
        if not self.server.token:
            return True
        told = self.headers.get("Authorization", "").removeprefix("Bearer ") or query.get("token", [""])[0]
        return hmac.compare_digest(told.encode(), self.server.token.encode())

    def _send(self, status: HTTPStatus, body: bytes, kind: str, is_kept: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "max-age=86400" if is_kept else "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Who looks is nobody's business; and the token must be in no log."""


class Server(ThreadingHTTPServer):
    """Serves one run's page.

    Args:
        listening: a socket that listens. token: who does not tell it sees nothing; empty: for who is on this machine.
    """

    daemon_threads = True

    def __init__(self, listening: socket.socket, journal: Path, run: str, token: str = "") -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.live, self.run, self.token = Live(journal), run, token
        self._places = threading.BoundedSemaphore(_MOST_CLIENTS)

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that goes away in the middle is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def main() -> None:
    """Serve on a socket that was handed over, until whoever started this is gone: its end of stdin is closed then."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True, help="file descriptor that listens")
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--run", required=True)
    given = parser.parse_args()
    os.nice(_NICE)
    server = Server(socket.socket(fileno=given.socket), given.journal, given.run, os.environ.get(TOKEN_VARIABLE, ""))
    threading.Thread(target=server.serve_forever, name="elastic-page", daemon=True).start()
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
