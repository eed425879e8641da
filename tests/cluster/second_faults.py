"""Effect. A second fault that strikes within the handling of a first one: at a line of the journal.

Whoever writes the line strikes, in the thread that writes it: what follows from the line has not begun.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from elastic.actors.journal import Journal

Line = dict[str, Any]

# How far the handling of a worker's death has come; what is decided there, or follows, has been told to nobody.
POINTS: dict[str, Callable[[Line], bool]] = {
    "stopping": lambda line: line.get("command") == "Freeze",
    "stopped": lambda line: line.get("event") == "FreezeAnswered",
    "forming": lambda line: line.get("command") == "Form",
    "formed": lambda line: line.get("event") == "Formed",
    "going": lambda line: line.get("command") == "Go",
}


class Strike:
    """Takes the place of `Journal.write`, and calls `act` once: when a line of `point` is written in a fault.

    Attributes:
        struck_s: when it did, by the wall clock; told once it has.
    """

    def __init__(self, point: str, act: Callable[[], None]) -> None:
        self._is_there, self._act, self._write = POINTS[point], act, Journal.write
        self._is_open, self._is_armed = False, True
        self.struck_s: float | None = None

    def install(self) -> None:
        Journal.write = lambda journal, lines: self._written(journal, list(lines))  # type: ignore[method-assign]

    def remove(self) -> None:
        Journal.write = self._write  # type: ignore[method-assign]

    def arm(self, act: Callable[[], None]) -> None:
        """Have it strike once more, at the next fault."""
        self._act, self._is_open, self.struck_s = act, False, None
        self._is_armed = True

    def __enter__(self) -> "Strike":
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _written(self, journal: Journal, lines: Iterable[Line]) -> None:
        self._write(journal, lines)
        for line in lines:
            if line.get("moment") == "IncidentResolved":
                self._is_open = False
            elif line.get("moment") == "IncidentOpened" or line.get("event") == "RunTakenOver":
                self._is_open = True
            elif self._is_open and self._is_armed and self._is_there(line):
                self._is_armed, at_s = False, time.time()
                self._act()
                self.struck_s = at_s


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def die_at(point: str, others: str) -> None:
    """This process is killed there, and before it those whose pids are in the file `others`, if there is one."""

    def act() -> None:
        if Path(others).exists():
            kill(json.loads(Path(others).read_text()))
        kill([os.getpid()])

    Strike(point, act).install()


def faults(lines: Iterable[Line]) -> list[tuple[float, float | None]]:
    """When each was opened, and when resolved, None if it was not, as the journal of one life tells."""
    found: dict[int, tuple[float, float | None]] = {}
    for line in lines:
        if line.get("moment") == "IncidentOpened":
            found[line["incident"]["number"]] = (line["t"], None)
        elif line.get("moment") == "IncidentResolved":
            found[line["incident"]["number"]] = (found[line["incident"]["number"]][0], line["t"])
    return list(found.values())


def fell_within(struck_s: float, lines: Iterable[Line]) -> bool:
    """Whether it was while a fault was handled, which was over later."""
    return any(opened_s <= struck_s < resolved_s for opened_s, resolved_s in faults(lines) if resolved_s is not None)
