"""Effect. Sockets of this process, and whether others can be reached."""

import contextlib
import errno
import os
import select
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

Address = tuple[str, int]

_SLICE_S = 0.02
_KNOCKS = 3
_CONNECTED = 0
_ANSWERS = (_CONNECTED, errno.ECONNREFUSED, errno.ECONNRESET)


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
    came = _came_back(places, within_s, is_over)
    return None if came is None else tuple(name for name in places if came.get(name) != _CONNECTED)


def unanswered(
    places: Mapping[str, Address], doubted: Collection[str], within_s: float, is_over: Callable[[], bool]
) -> tuple[str, ...]:
    """Those in doubt of whose hosts nothing comes back, though others' hosts answer: they are gone, or cut off from us.

    A refused connection is an answer, too. A packet may be lost, so each is knocked at several times.

    Args:
        places: by name, where it listens: those in doubt, and the others.
        is_over: asked every few milliseconds; then nobody is named.
    """
    waiting, answered, began_s = dict(places), set[str](), time.monotonic()
    for knock in range(_KNOCKS):
        while time.monotonic() < began_s + knock * within_s / _KNOCKS:  # that there is no way to it is said at once
            if is_over():
                return ()
            time.sleep(_SLICE_S)
        came = _came_back(waiting, within_s / _KNOCKS, is_over)
        if came is None:
            return ()
        answered |= {name for name, error in came.items() if error in _ANSWERS}
        waiting = {name: place for name, place in places.items() if name not in answered}
        if answered.issuperset(name for name in places if name in doubted):
            break
    return tuple(name for name in waiting if name in doubted) if answered.difference(doubted) else ()


def _came_back(places: Mapping[str, Address], within_s: float, is_over: Callable[[], bool]) -> dict[str, int] | None:
    """By name, the number of the error with which a connection ended, 0 if it was made; nobody of whom nothing came."""
    with contextlib.ExitStack() as stack:
        came, waiting, poll = dict[str, int](), dict[int, tuple[str, socket.socket]](), select.poll()
        for name, place in places.items():
            sock = stack.enter_context(_socket_for(place))
            error = sock.connect_ex(place)
            if error == errno.EINPROGRESS:
                waiting[sock.fileno()] = name, sock
                poll.register(sock, select.POLLOUT)
            else:  # such as that there is no way to it
                came[name] = error
        until_s = time.monotonic() + within_s
        while waiting and time.monotonic() < until_s:
            for descriptor, _ in poll.poll(1000 * _SLICE_S):
                poll.unregister(descriptor)
                name, sock = waiting.pop(descriptor)
                came[name] = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if is_over():
                return None
        return came


def _socket_for(place: Address) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    return sock
