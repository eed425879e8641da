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
                copy = os.dup(int(name))
                try:
                    sock = socket.socket(fileno=copy)
                except OSError:  # another thread has opened a file by this name meanwhile
                    os.close(copy)
                else:
                    yield sock


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
    with _Connections() as tried:
        tried.begin(places)
        is_known = tried.wait(time.monotonic() + within_s, is_over, lambda: len(tried.came) == len(places))
        return tuple(name for name in places if tried.came.get(name) != _CONNECTED) if is_known else None


def knocked_at(
    places: Mapping[str, Address], doubted: Collection[str], within_s: float, is_over: Callable[[], bool]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(Those in doubt whose hosts answer, those of whose hosts nothing comes back): these are gone, or cut off from us.

    That is not said where nobody else's host answers either. A refused connection is an answer, too. A packet may be
    lost, so each is knocked at several times.

    Args:
        places: by name, where it listens: those in doubt, and the others.
        is_over: asked every few milliseconds; then nobody is named.
    """
    began_s, in_doubt = time.monotonic(), [name for name in places if name in doubted]
    with _Connections() as tried:
        for knock in range(1, _KNOCKS + 1):
            tried.begin({name: place for name, place in places.items() if name not in tried.answered})
            until_s = began_s + knock * within_s / _KNOCKS  # that there is no way to it is said at once
            if not tried.wait(until_s, is_over, lambda: tried.answered.issuperset(in_doubt)):
                return (), ()
        answered = tried.answered
    silent = tuple(name for name in in_doubt if name not in answered) if answered.difference(doubted) else ()
    return tuple(name for name in in_doubt if name in answered), silent


class _Connections(contextlib.ExitStack):
    """Connections on their way, some places tried more than once; all are closed at the end.

    Attributes:
        came: by name, the number of the error with which a connection ended, 0 if it was made; nobody of whom nothing
            came back. answered: those of whose host something did.
    """

    def __init__(self) -> None:
        super().__init__()
        self.came: dict[str, int] = {}
        self.answered = set[str]()
        self._waiting = dict[int, tuple[str, socket.socket]]()
        self._poll = select.poll()

    def begin(self, places: Mapping[str, Address]) -> None:
        for name, place in places.items():
            sock = self.enter_context(_socket_for(place))
            error = sock.connect_ex(place)
            if error == errno.EINPROGRESS:
                self._waiting[sock.fileno()] = name, sock
                self._poll.register(sock, select.POLLOUT)
            else:  # such as that there is no way to it
                self._note(name, error)

    def wait(self, until_s: float, is_over: Callable[[], bool], is_known: Callable[[], bool]) -> bool:
        """Until then, or until it is known; whether that was not over before.

        Args:
            is_over: asked every few milliseconds.
        """
        while time.monotonic() < until_s and not is_known():
            for descriptor, _ in self._poll.poll(1000 * _SLICE_S):
                self._poll.unregister(descriptor)
                name, sock = self._waiting.pop(descriptor)
                self._note(name, sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            if is_over():
                return False
        return True

    def _note(self, name: str, error: int) -> None:
        self.came[name] = error
        if error in _ANSWERS:
            self.answered.add(name)


def _socket_for(place: Address) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    return sock
