"""Effect. How often Python looks for values that hold each other: what is known of a run holds no cycles.

A look at all that is known of 80,000 workers takes a second, in which nothing else happens in the process.
"""

import gc

_YOUNG = 100_000  # new values, after which they are looked at; older ones, 100 and 10,000 times as rarely


class Cycles:
    """Made rare, and put back as it was."""

    def __init__(self) -> None:
        self._before: tuple[int, int, int] | None = None

    def spare(self) -> None:
        """Look rarely."""
        if self._before is None:
            self._before = gc.get_threshold()
            gc.set_threshold(_YOUNG, 100, 100)

    def seek(self) -> None:
        """Look as often as before."""
        if self._before is not None:
            gc.set_threshold(*self._before)
            self._before = None
