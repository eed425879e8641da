"""Effect. Sockets of this process, and whether others can be reached."""

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Address = tuple[str, int]

_SLICE_S = 0.02


def own_sockets() -> Iterator[socket.socket]:
    """Duplicates of this process's open sockets; the caller closes each."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                yield socket.socket(fileno=os.dup(int(name)))


def listeners() -> dict[int, int]:
    """Inode -> port of the listening TCP sockets of this process."""
    found: dict[int, int] = {}
    for sock in own_sockets():
        with contextlib.suppress(OSError), sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN
            ):
                found[os.fstat(sock.fileno()).st_ino] = sock.getsockname()[1]
    return found


def plain(address: Any) -> Address:
    """An address without IPv6's mapping of IPv4."""
    host = str(address[0])
    return (host.removeprefix("::ffff:"), int(address[1]))


def unreached(places: Mapping[str, Address], within_s: float, is_over: Callable[[], bool]) -> tuple[str, ...] | None:
    """Those with whom no connection comes about: packets have to pass both ways for one.

    The kernel answers for a process that is stopped, or is slow to accept.

    Args:
        places: by name, where it listens.
        is_over: asked every few milliseconds.

    Returns:
        Their names, as in `places`; None: it was over before that was known.
    """
    with contextlib.ExitStack() as stack:
        knocking = {name: stack.enter_context(_knocking(*place)) for name, place in places.items()}
        waiting, poll = {sock.fileno(): name for name, sock in knocking.items()}, select.poll()
        for descriptor in waiting:
            poll.register(descriptor, select.POLLOUT)
        reached = set[str]()
        until_s = time.monotonic() + within_s
        while waiting and time.monotonic() < until_s:
            for descriptor, _ in poll.poll(1000 * _SLICE_S):
                poll.unregister(descriptor)
                name = waiting.pop(descriptor)
                if not knocking[name].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    reached.add(name)
            if is_over():
                return None
        return tuple(name for name in places if name not in reached)


def _knocking(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.connect_ex((host, port))
    return sock
