"""Effect. Where the members of a generation find each other: keys and values, hosted by its leader.

torch's TCPStore looks up the name of each peer's address, in the thread that serves all of them: a resolver that
answers late, or not at all, kept generations from forming for half a minute (seen on torch 2.13; torch's issue 159007).
This one asks no resolver, and waits under cancellation. Requests are lines of JSON, {"set": {key: text}, "get": [key]},
and so is its answer: what was asked for, null where it is not there.
"""

import contextlib
import json
import socket
import socketserver
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_POLL_S = 0.002
_SLICE_S = 0.05
_CONNECT_S = 1.0
_PROBES = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 20, socket.TCP_KEEPCNT: 3}  # s, s, how many
_BYTES = "latin-1"  # one character for each byte

Check = Callable[[str], None]


class _Handler(socketserver.StreamRequestHandler):
    """One connection."""

    disable_nagle_algorithm = True

    def setup(self) -> None:
        """Of whose host vanished nothing more is heard: without probes its thread would wait for it for ever."""
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _PROBES.items():
            self.connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def handle(self) -> None:
        held: dict[str, str] = self.server.held  # type: ignore[attr-defined]
        with contextlib.suppress(ConnectionError, ValueError):  # who breaks off, or sends something else, is let go
            for line in self.rfile:
                request = json.loads(line)
                held.update(request.get("set", {}))
                answer = {key: held.get(key) for key in request.get("get", ())}
                self.wfile.write(json.dumps(answer).encode() + b"\n")


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, host: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), _Handler)
        self.held: dict[str, str] = {}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that was cut is no news."""


class StoreHost:
    """The store that this worker hosts for any generation it comes to lead; open as long as the process lives.

    Its port also tells life from death: the kernel refuses connections to it only once the process is gone.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        server = _Server(host)
        self.port = int(server.server_address[1])
        threading.Thread(target=server.serve_forever, name="elastic-store", daemon=True).start()
        weakref.finalize(self, _close, server)


def _close(server: _Server) -> None:
    server.shutdown()
    server.server_close()


class Store(dist.Store):
    """A member's connection to its leader's store, as gloo asks for it. Keep it as long as gloo may ask.

    Args:
        check: called with what is waited for, every few milliseconds of a wait; raises to end it.
    """

    def __init__(self, host: str, port: int, check: Check, whom: str) -> None:
        super().__init__()
        self._check_on, self._whom = check, whom
        self._socket = _connected(host, port, check, whom)
        weakref.finalize(self, self._socket.close)
        self._unread = b""
        self._lock = threading.Lock()

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(set={key: value.decode(_BYTES) if isinstance(value, bytes) else value})

    def look(self, keys: Sequence[str]) -> list[str | None]:
        """The values of keys, None where there is none yet."""
        answer = self._ask(get=list(keys))
        return [answer[key] for key in keys]

    def get(self, key: str) -> bytes:
        self.wait([key])
        (value,) = self.look([key])
        return (value or "").encode(_BYTES)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Until all keys are there; the deadline is the one of `check`."""
        while None in self.look(keys):
            self._check_on(f"an entry in {self._whom}")
            time.sleep(_POLL_S)

    def check(self, keys: list[str]) -> bool:
        return None not in self.look(keys)

    def close(self) -> None:
        self._socket.close()

    def _ask(self, **request: Any) -> dict[str, str | None]:
        try:
            return self._answer(json.dumps(request).encode() + b"\n")
        except OSError as error:
            self._check_on(self._whom)  # it may have been cut, as a way to end the wait
            raise ConnectionError(f"the connection with {self._whom} broke: {error}") from error

    def _answer(self, request: bytes) -> dict[str, str | None]:
        with self._lock:
            self._socket.sendall(request)
            while b"\n" not in self._unread:
                with contextlib.suppress(TimeoutError):
                    part = self._socket.recv(1 << 16)
                    if not part:
                        raise ConnectionResetError("it was closed")
                    self._unread += part
                    continue
                self._check_on(self._whom)
            line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, str | None] = json.loads(line)
        return answer


def _connected(host: str, port: int, check: Check, whom: str) -> socket.socket:
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=_CONNECT_S)
        except OSError as error:
            check(f"{whom}: {error}")
            time.sleep(_SLICE_S)
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(_SLICE_S)
            return sock
