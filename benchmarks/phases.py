"""Where the time of a pause of ours went, phase by phase. No Ray, no torch, no clock.

An observer says how long the pause was; the run's journal says what its parts are. So the parts add up to what was
measured from outside, and only where one of them ends is the system's own word.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

Line = Mapping[str, Any]
# By what ends each of them, in their order.
PHASES = {
    "noticed": "until the driver has heard",
    "stopped": "until all have stopped",
    "connected": "until they are connected",
    "handed_on": "state handed on and compared",
    "installed": "until it is installed",
    "let_go": "until the go",
    "stepped": "the step",
}


def phases_s(journal: Iterable[Line], from_s: float, until_s: float) -> dict[str, float]:
    """Seconds of each phase of a pause, by wall clock; empty where no generation began in it.

    Of several generations that were formed in it the last one's forming counts, and all before it as stopping.

    Args:
        journal: lines as `elastic.ledger` reads them. from_s, until_s: the pause, as the observer saw it.
    """
    lines = [line for line in journal if from_s <= line["t"] <= until_s]
    stopping, forming, running = (_times(lines, phase) for phase in ("freezing", "forming", "running"))
    if not (stopping and forming and running):
        return {}
    formed = [line for line in lines if line.get("event") == "Formed" and forming[-1] <= line["t"] <= running[-1]]
    if not formed:
        return {}
    behind = _behind(lines, running[-1])
    gave = [line["t"] for line in formed if line["worker"] not in behind]
    ended_s = max(line["t"] for line in formed)
    connected_s = min(line["t"] - line.get("healing_s", 0.0) for line in formed)
    ends = (stopping[0], forming[-1], connected_s, min(max(gave, default=ended_s), ended_s), ended_s, running[-1])
    ends = (from_s, *ends, until_s)
    return {name: max(0.0, b - a) for name, (a, b) in zip(PHASES, pairwise(ends), strict=True)}


def _times(lines: Sequence[Line], phase: str) -> list[float]:
    return [line["t"] for line in lines if line.get("phase") == phase]


def _behind(lines: Sequence[Line], running_s: float) -> set[str]:
    """Who was handed the state in the generation that was ordered last by then."""
    views = [line["view"] for line in lines if line.get("command") == "Form" and line["t"] <= running_s]
    return {views[-1]["members"][rank]["worker"] for rank in views[-1]["behind"]} if views else set()
