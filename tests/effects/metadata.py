"""Effect. A metadata server as Compute Engine has it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.effects.helpers import LONG_S

QUIET = {"preempted": "FALSE", "maintenance-event": "NONE"}


class _Answers(BaseHTTPRequestHandler):
    """Answers with what `server.says` holds; without Google's header it refuses, as the real one does."""

    def do_GET(self) -> None:  # noqa: N802 - the library's name
        self.server.asked += 1
        if self.server.says is None:
            return  # as if it were away: the connection closes without an answer
        if self.server.elsewhere:
            self.send_response(302)
            self.send_header("Location", self.server.elsewhere)
            self.end_headers()
            return
        name = self.path.removeprefix("/computeMetadata/v1/instance/")
        is_known = self.headers.get("Metadata-Flavor") == "Google" and name in self.server.says
        body = self.server.says[name].encode() if is_known else b""
        self.send_response(200 if is_known else 403)
        if self.server.is_googles:
            self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Length", str(len(body) + self.server.lacks_bytes))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Silent."""


class Metadata(ThreadingHTTPServer):
    """Serves until it is closed; `says` may be changed meanwhile, `asked` counts.

    It may be another kind of server: one without Google's header, that sends elsewhere, or cuts its answers off.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.says: dict[str, str] | None = dict(QUIET)
        self.asked = 0
        self.is_googles, self.elsewhere, self.lacks_bytes = True, "", 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"


@contextmanager
def metadata_server() -> Iterator[Metadata]:
    with Metadata() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(LONG_S)
