"""Effect. How many are done: a bar on a terminal; elsewhere a plain line now and then, and none of what is short."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

EVERY_S = 30.0
_FEW = 100  # of a unit; more of it are told in the next one


class Count:
    """One for each command, which may count several times: so one that counts many short things is told of, too.

    Args:
        now_s: a clock that never goes back.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._told_s = now_s()

    @contextmanager
    def of(self, label: str, total: int) -> Iterator[Callable[[], None]]:
        """What is entered is to be called whenever one of them is done; a line comes with the first that is due it."""
        if sys.stderr.isatty():
            with click.progressbar(length=total, label=label, file=sys.stderr, show_pos=True) as bar:
                yield lambda: bar.update(1)
            return
        begun_s, done = self._now_s(), 0

        def another() -> None:
            nonlocal done
            done, now_s = done + 1, self._now_s()
            if now_s - self._told_s >= EVERY_S:
                self._told_s = now_s
                click.echo(line(label, done, total, now_s - begun_s), err=True)

        yield another


def line(label: str, done: int, total: int, seconds: float) -> str:
    """As "worlds: 120 of 500, 40 s, about 2 min more".

    Args:
        done: at least one; each of the others is expected to take as long as these did.
        seconds: that have passed since the first was begun.
    """
    more = f", about {_rounded(seconds * (total - done) / done)} more" if done < total else ""
    return f"{label}: {done} of {total}, {_rounded(seconds)}{more}"


def _rounded(seconds: float) -> str:
    if seconds < _FEW:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 60 * _FEW else f"{seconds / 3600:.1f} h"
