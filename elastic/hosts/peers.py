"""Effect. How fast bytes come from another node: a stream over one TCP connection, for a moment."""

import contextlib
import socket
import threading
import time

_CHUNK = bytes(1 << 20)
_STREAM_S = 0.3
_ACCEPT_S = 30.0


def lend(host: str) -> int:
    """Send to whoever connects first, for a moment; returns the port. Ends by itself if nobody comes."""
    listener = socket.create_server((host, 0))
    listener.settimeout(_ACCEPT_S)

    def send() -> None:
        with listener, contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(_ACCEPT_S)
                until_s = time.monotonic() + _STREAM_S
                while time.monotonic() < until_s:
                    connection.sendall(_CHUNK)

    threading.Thread(target=send, name="elastic-lend", daemon=True).start()
    return int(listener.getsockname()[1])


def bytes_per_s(host: str, port: int, timeout_s: float) -> float:
    """The speed at which the peer that lends there is heard.

    Raises:
        OSError: it is not there, or falls silent.
    """
    buffer, received = bytearray(1 << 20), 0
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        began_s = time.perf_counter()
        while count := connection.recv_into(buffer):
            received += count
    return received / (time.perf_counter() - began_s)
