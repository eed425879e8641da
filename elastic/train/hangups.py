"""Effect. Tells of a member that is gone while this one computes: the kernel closes the connections of who has ended.

A reduction tells of it, too, but only whoever has come to it, which of a long step is seconds later.
"""

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable

from elastic.train.sockets import own_sockets

# Members that freeze shut their connections, too: whoever is about to be frozen as well has nothing to tell.
_ORDERED_WITHIN_S = 0.05


class Hangups:
    """Watches connections, in a thread that sleeps until another side closes one of them.

    It holds duplicates: gloo closes its own as soon as it sees the same, and nothing would be left to see. So what is
    closed here is open for the other side until it is shut down (`GlooGroup.cut` does that), or the watch is over.

    Args:
        whose: with whom a socket of this process is connected; None: it is none of those that are watched.
        tell: called once, with that of the first one that was closed, unless the watch ends within a moment of that.
    """

    def __init__(self, whose: Callable[[socket.socket], str | None], tell: Callable[[str], None]) -> None:
        self._whose, self._tell = whose, tell
        self._lock, self._bell = threading.Lock(), os.eventfd(0, os.EFD_CLOEXEC)
        self._is_closed = self._has_ended = False
        threading.Thread(target=self._watch, name="elastic-hangups", daemon=True).start()

    def close(self) -> None:
        """Nothing is told any more, but what is being told. Callable from any thread, and twice."""
        with self._lock:
            self._is_closed = True
            if not self._has_ended:
                os.eventfd_write(self._bell, 1)

    def _watch(self) -> None:
        try:
            whose = self._first()
            if whose and not self._is_closed:
                self._tell(whose)
        finally:
            with self._lock:
                self._has_ended = True
                os.close(self._bell)

    def _first(self) -> str:
        """With whom the first connection is that was closed; empty if the watch ended before."""
        names, poll, end = dict[int, str](), select.poll(), select.poll()
        for one in (poll, end):
            one.register(self._bell, select.POLLIN)
        with contextlib.ExitStack() as watched:
            for sock in own_sockets():
                name = None
                with contextlib.suppress(OSError):  # it is connected with nobody any more
                    name = self._whose(sock)
                if name is None:
                    sock.close()
                    continue
                names[watched.enter_context(sock).fileno()] = name
                poll.register(sock, select.POLLRDHUP)
            closed = next((names[found] for found, _ in poll.poll() if found in names), "")
        if closed:
            end.poll(1000 * _ORDERED_WITHIN_S)
        return closed
