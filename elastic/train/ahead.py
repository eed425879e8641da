"""Effect. Connections for the generation after a planned stop, made by a thread while the training thread still steps.

Who will be that generation is the controller's guess (`control/ahead.py`). Only where it says that all of them have
connected does the next generation begin with these connections; otherwise they are dropped, and it connects anew.
"""

import logging
import threading
from collections.abc import Callable, Sequence

from elastic.control import events as ev
from elastic.control.values import View
from elastic.settings import Limits
from elastic.train.gloo import GlooGroup, close_all, views_of
from elastic.train.link import Link
from elastic.train.meeting import StoreHost

log = logging.getLogger("elastic")


class Ahead:
    """One worker's connections with those who are expected.

    Args:
        link: tells the driver once there are all of them.
        own: the store that this worker hosts.
        layouts: digests of what is summed over replicas, and of what the workers of one have in common.
        groups_of: (view, prefix) -> its groups, not formed yet.
    """

    def __init__(
        self,
        link: Link,
        own: StoreHost,
        layouts: Callable[[], Sequence[str]],
        groups_of: Callable[[View, str], list[GlooGroup]],
        limits: Limits,
    ) -> None:
        self._link, self._own, self._layouts, self._limits = link, own, layouts, limits
        self._groups_of = groups_of
        self._guess: _Guess | None = None

    def connect(self, view: View) -> None:
        """Begin to connect with the members of this view; an earlier guess is dropped."""
        state = self._link.state
        if view.incarnation < state.incarnation or view.generation <= state.generation:
            return
        self.drop()
        guess = self._guess = _Guess(view, self._groups_of(view, "ahead/"))
        threading.Thread(target=self._carry_out, args=(guess,), name="elastic-ahead", daemon=True).start()

    def take(self, view: View) -> list[GlooGroup] | None:
        """The groups of this view, connected; None where it is to connect anew, or others count on them in vain."""
        guess, self._guess = self._guess, None
        is_it = guess is not None and (guess.view.generation, guess.view.members) == (view.generation, view.members)
        if guess is not None and view.is_connected and is_it and guess.has_connected:
            return guess.groups_of(view, self._link.worker)
        if guess is not None:
            guess.drop()
        return None

    def drop(self) -> None:
        """Nobody counts on them."""
        guess, self._guess = self._guess, None
        if guess is not None:
            guess.drop()

    def _carry_out(self, guess: "_Guess") -> None:
        try:
            for group, layout in zip(guess.groups, self._layouts(), strict=False):
                within_s = self._limits.connect_ahead_s
                group.form(self._own, layout, guess.is_dropped.is_set, within_s, "Limits.connect_ahead_s")
        except Exception as error:  # the next generation connects in any case
            log.debug("%s has not connected ahead: %s", self._link.worker, error)
            guess.fail()
            return
        if guess.succeed():
            self._link.post(ev.Connected(worker=self._link.worker, generation=guess.view.generation - 1))


class _Guess:
    """Who is expected, and the groups with them; its thread takes them down, or who drops it later."""

    def __init__(self, view: View, groups: list[GlooGroup]) -> None:
        self.view, self.groups = view, groups
        self.is_dropped = threading.Event()
        self.has_connected = False
        self._lock = threading.Lock()

    def succeed(self) -> bool:
        """False if it was dropped meanwhile."""
        with self._lock:
            self.has_connected = not self.is_dropped.is_set()
        if not self.has_connected:
            self._take_down()
        return self.has_connected

    def fail(self) -> None:
        self.is_dropped.set()
        self._take_down()

    def drop(self) -> None:
        with self._lock:
            was_connected, self.has_connected = self.has_connected, False
            self.is_dropped.set()
        if was_connected:
            self._take_down()

    def groups_of(self, view: View, worker: str) -> list[GlooGroup]:
        """They are those of this view from now on."""
        for group, one in zip(self.groups, views_of(view, worker), strict=True):
            group.become(one)
        return self.groups

    def _take_down(self) -> None:
        """No cut: it would shut connections with the same leader's store that others of this process need."""
        close_all(self.groups)
