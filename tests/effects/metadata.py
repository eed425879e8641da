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
        name = self.path.removeprefix("/computeMetadata/v1/instance/")
        is_known = self.headers.get("Metadata-Flavor") == "Google" and name in self.server.says
        self.send_response(200 if is_known else 403)
        self.end_headers()
        if is_known:
            self.wfile.write(self.server.says[name].encode())

    def log_message(self, *args: Any) -> None:
        """Silent."""


class Metadata(ThreadingHTTPServer):
    """Serves until it is closed; `says` may be changed meanwhile, `asked` counts."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.says: dict[str, str] | None = dict(QUIET)
        self.asked = 0

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
