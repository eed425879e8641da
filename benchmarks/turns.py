"""Who is measured when, and which runs do not count. No Ray, no torch, no clock."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.rows import Fault
from elastic.demo.steplog import Attempt, StepLog

TRIES = 3  # of a repetition whose fault did not fire
_GRACE_S = 0.5  # a line that was being written, and the fault's own way
_CUT_GRACE_S = 1.0  # of packets under way when a host is cut off
_SILENT_AFTER_S = {"notice": 6.0} | dict.fromkeys(
    ("kill", "early", "leader", "swap", "stop", "node", "power", "donor", "everyone", "shrink"), _GRACE_S
)
_PARTED = ("partition", "split", "halves", "link", "mute", "deaf")
_PARTED_S = 10.0
_UNWRITTEN = ("coordinator", "driver", "headless")  # they hit nobody who trains


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One run: the `number`-th repetition of a scenario by a system with its settings."""

    scenario: str
    settings: str
    system: str
    number: int


def turns(
    scenarios: Sequence[str], settings: Sequence[str], systems: Sequence[str], repeats: int, begin: int = 0
) -> Iterator[Turn]:
    """All runs in their order: in each repetition every scenario, in that every system, and each time another begins.

    Settings come one after the other, since each has a cluster of its own.

    Args:
        begin: place of the system that begins the first time.
    """
    for setting in settings:
        for number in range(repeats):
            for place, scenario in enumerate(scenarios):
                first = (begin + number + place) % len(systems)
                for system in (*systems[first:], *systems[:first]):
                    yield Turn(scenario=scenario, settings=setting, system=system, number=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault of a storm: what, when, counted from the storm's beginning, and a seed for whom it hits."""

    kind: str
    at_s: float
    seed: int


def storm_plan(storm_s: float, gaps_s: tuple[float, float], seed: int) -> list[Strike]:
    """The faults of a storm, the same whatever system it comes over; a lost host comes back before another is lost.

    Args:
        gaps_s: least and most time between two of them; the first one begins the storm.
    """
    chance = random.Random(seed)
    plan: list[Strike] = []
    at_s, is_host_lost = 0.0, False
    while at_s < storm_s:
        kind = chance.choice(("kill", "stop", "notice", "rejoin" if is_host_lost else "node"))
        is_host_lost = (is_host_lost or kind == "node") and kind != "rejoin"
        plan.append(Strike(kind=kind, at_s=at_s, seed=chance.randrange(1 << 30)))
        at_s += chance.uniform(*gaps_s)
    return plan


def played(
    turn: Turn, play: Callable[[Turn], dict[str, Any]], tries: int = TRIES, has_time: Callable[[], bool] = lambda: True
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Play a turn, again where its fault did not fire.

    Args:
        play: makes a row; one that must not count has a reason in `discarded`.
        has_time: whether one more try may begin.

    Returns:
        The row that counts, if there was one within so many tries, and those that were discarded.
    """
    discarded: list[dict[str, Any]] = []
    for _ in range(tries):
        if not has_time():
            break
        row = play(turn)
        if not row.get("discarded"):
            return [row], discarded
        discarded.append(row)
    return [], discarded


def misfire(log: StepLog, fault: Fault) -> str:
    """Why nothing shows that the fault took place; empty if something does, or if there is nothing to show.

    Who was killed or stopped had trained before and wrote nothing after it; who was cut off committed no attempt that
    began soon after, together with those who were not, until all was mended. Where nobody who trains was hit, the
    observer has seen it.
    """
    if (silent_after_s := _SILENT_AFTER_S.get(fault.kind)) is not None:
        return _misfired_silence(log, fault, silent_after_s)
    if fault.kind in _PARTED:
        return _misfired_parting(log, fault)
    if fault.kind in _UNWRITTEN and not fault.proof:
        return "nobody saw that the fault took place"
    return ""


def _misfired_silence(log: StepLog, fault: Fault, after_s: float) -> str:
    if not fault.victims:
        return "the fault hit nobody"
    before = {commit.pid for commit in log.commits if commit.at_s <= fault.at_s}
    if strangers := fault.victims - before:
        return f"{sorted(strangers)} had not trained before the fault"
    from_s, until_s = fault.at_s + after_s, _answered_s(log, fault) if fault.kind == "stop" else math.inf
    late = {commit.pid for commit in log.commits if from_s < commit.at_s < until_s}
    begun = log.begun_s
    late |= {pid for attempt, pids in log.takers.items() if from_s < begun[attempt] < until_s for pid in pids}
    if unhurt := fault.victims & late:
        return f"{sorted(unhurt)} trained on after the fault"
    return ""


def _answered_s(log: StepLog, fault: Fault) -> float:
    """When the others first went on without the victims: from then on a system may wake whom it has left behind."""
    without = [
        log.begun_s[attempt]
        for attempt, pids in log.takers.items()
        if log.begun_s[attempt] > fault.at_s + _GRACE_S and not pids & fault.victims
    ]
    return min(without, default=math.inf)


def _misfired_parting(log: StepLog, fault: Fault) -> str:
    if not fault.victims:
        return "the fault hit nobody"
    from_s, until_s = fault.at_s + _CUT_GRACE_S, fault.at_s + _PARTED_S
    together: dict[Attempt, set[int]] = {}  # who began it may have computed in vain
    for commit in log.commits:
        # What was begun then and committed much later may have waited until all was mended.
        if commit.at_s < until_s and log.begun_s.get(commit.attempt, 0.0) > from_s:
            together.setdefault(commit.attempt, set()).add(commit.pid)
    if any(pids & fault.victims and pids & fault.survivors for pids in together.values()):
        return "who was cut off trained on with the others"
    return ""
