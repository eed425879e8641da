"""Effect. Carries errands out beside the thread that decides, so that one that hangs holds nothing else up.

What concerns one worker is done in the order in which it was asked for; so is everything else, as long as nothing
hangs. One thread carries out. Where an errand takes longer than a moment, another thread goes on with those that need
not wait for it. One that has not returned by its deadline is told of, and what it may do yet is undone.
"""

import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

log = logging.getLogger("elastic")

_PATIENCE_S = 0.1
_LOOK_S = 0.05
_MOST = 64  # threads, all but one of which hang
_CLOSE_S = 5.0


def _nothing() -> None:
    """Nothing follows."""


@dataclass(slots=True, eq=False, kw_only=True)
class Errand:
    """Something to be done.

    Attributes:
        act: does it; may hang. What it raises ends the run.
        keys: no two errands with the same key are under way at once, and they are begun in order.
        after: it is begun after those with these keys that were handed over before it, and holds none up itself.
        within_s: deadline, from when it is begun. overdue: called then, once; must not wait.
        late: called when it returns after that.
        is_slow: it gives way to those that are not.
    """

    act: Callable[[], None]
    keys: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    within_s: float
    overdue: Callable[[], None] = _nothing
    late: Callable[[], None] = _nothing
    is_slow: bool = False
    began_s: float = 0.0
    is_passed: bool = False
    is_overdue: bool = False
    number: int = 0
    waits_for: int = 0
    followers: list["Errand"] = field(default_factory=list)


class Carrier:
    """See the module.

    Args:
        crash: takes what an errand raises; nothing is begun after that.
    """

    def __init__(self, crash: Callable[[Exception], None]) -> None:
        self._crash = crash
        self._changed = threading.Condition()
        self._ready: list[tuple[bool, int, Errand]] = []  # a heap: those that are slow come last
        self._number = 0
        self._last: dict[str, Errand] = {}  # by key
        self._running: list[Errand] = []
        self._takers = 0  # threads that begin errands: one, unless too many hang
        self._threads = 0
        self._is_closed = threading.Event()
        with self._changed:
            self._add_thread()
        threading.Thread(target=self._watch, name="elastic-carrier-watch", daemon=True).start()

    def hand_over(self, errands: Iterable[Errand]) -> None:
        """Have these done; returns at once."""
        with self._changed:
            for errand in errands:
                before = {self._last[key] for key in (*errand.keys, *errand.after) if key in self._last}
                errand.number, errand.waits_for = self._number, len(before)
                self._number += 1
                for one in before:
                    one.followers.append(errand)
                self._last.update(dict.fromkeys(errand.keys, errand))
                if not before:
                    self._make_ready(errand)
            self._changed.notify_all()

    def close(self) -> None:
        """Begin nothing more, once what can be done now is done; errands that hang are left behind."""
        with self._changed:
            self._changed.wait_for(self._is_idle, _CLOSE_S)
            self._is_closed.set()
            self._changed.notify_all()

    def _is_idle(self) -> bool:
        is_held_up = all(errand.is_passed for errand in self._running)
        return self._is_closed.is_set() or (is_held_up and not self._ready)

    # --- the threads; all below is called with the lock held, unless it says otherwise ---

    def _make_ready(self, errand: Errand) -> None:
        heapq.heappush(self._ready, (errand.is_slow, errand.number, errand))

    def _add_thread(self) -> None:
        if self._threads >= _MOST:
            log.error("%d commands hang: no others are carried out before one of them returns", self._threads)
            return
        self._takers, self._threads = self._takers + 1, self._threads + 1
        threading.Thread(target=self._carry, name="elastic-carrier", daemon=True).start()

    def _carry(self) -> None:
        """A thread, without the lock."""
        while True:
            with self._changed:
                while not self._ready and not self._is_closed.is_set():
                    self._changed.wait()
                if self._is_closed.is_set():
                    return
                _, _, errand = heapq.heappop(self._ready)
                errand.began_s = time.monotonic()
                self._running.append(errand)
            is_done = self._guarded(errand.act)
            with self._changed:
                is_late, errand.is_overdue = errand.is_overdue, True  # from now on nobody tells of it
            if is_late:
                self._guarded(errand.late)
            with self._changed:
                self._running.remove(errand)
                if not is_done:
                    self._is_closed.set()
                self._follow(errand)
                self._changed.notify_all()
                if errand.is_passed and self._takers:
                    self._threads -= 1
                    return  # another thread has gone on
                self._takers = 1

    def _guarded(self, act: Callable[[], None]) -> bool:
        """Whether it went well; without the lock."""
        try:
            act()
        except Exception as error:  # nobody would hear it here
            self._crash(error)
            return False
        return True

    def _follow(self, errand: Errand) -> None:
        for key in errand.keys:
            if self._last.get(key) is errand:
                del self._last[key]
        for one in errand.followers:
            one.waits_for -= 1
            if not one.waits_for:
                self._make_ready(one)

    def _watch(self) -> None:
        """A thread, without the lock."""
        while not self._is_closed.wait(_LOOK_S):
            with self._changed:
                now_s = time.monotonic()
                for errand in self._running:
                    if not errand.is_passed and now_s - errand.began_s > _PATIENCE_S:
                        errand.is_passed = True
                        self._takers -= 1
                        self._add_thread()
                        self._changed.notify_all()
                overdue = [one for one in self._running if not one.is_overdue and now_s - one.began_s > one.within_s]
                for errand in overdue:
                    errand.is_overdue = True
            for errand in overdue:
                self._guarded(errand.overdue)
