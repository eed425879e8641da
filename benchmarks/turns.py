"""Who is measured when, and which runs do not count. No Ray, no torch, no clock."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.rows import Fault
from elastic.demo.steplog import StepLog

TRIES = 3  # of a repetition whose fault did not fire
_GRACE_S = 0.5  # a line that was being written, and the fault's own way
_CUT_GRACE_S = 1.0  # of packets under way when a host is cut off
_SILENT_AFTER_S = {"notice": 6.0} | dict.fromkeys(
    ("kill", "leader", "swap", "stop", "node", "power", "donor", "everyone", "shrink"), _GRACE_S
)
_PARTED = ("partition", "split", "mute", "deaf")
_PARTED_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One run: the `number`-th repetition of a scenario by a system with its settings."""

    scenario: str
    settings: str
    system: str
    number: int


def turns(scenarios: Sequence[str], settings: Sequence[str], systems: Sequence[str], repeats: int) -> Iterator[Turn]:
    """All runs in their order: in each repetition every scenario, in that every system, and each time another begins.

    Settings come one after the other, since each has a cluster of its own.
    """
    for setting in settings:
        for number in range(repeats):
            first = number % len(systems)
            for scenario in scenarios:
                for system in (*systems[first:], *systems[:first]):
                    yield Turn(scenario=scenario, settings=setting, system=system, number=number)


def played(
    turn: Turn, play: Callable[[Turn], dict[str, Any]], tries: int = TRIES
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Play a turn, again where its fault did not fire.

    Args:
        play: makes a row; one that must not count has a reason in `discarded`.

    Returns:
        The row that counts, if there was one within so many tries, and those that were discarded.
    """
    discarded: list[dict[str, Any]] = []
    for _ in range(tries):
        row = play(turn)
        if not row.get("discarded"):
            return [row], discarded
        discarded.append(row)
    return [], discarded


def misfire(log: StepLog, fault: Fault) -> str:
    """Why the step log does not show that the fault took place; empty if it does, or if there is nothing to show.

    Who was killed or stopped had trained before and wrote nothing after it; who was cut off took part in no attempt
    that began soon after, together with those who were not.
    """
    if (silent_after_s := _SILENT_AFTER_S.get(fault.kind)) is not None:
        return _misfired_silence(log, fault, silent_after_s)
    if fault.kind in _PARTED:
        return _misfired_parting(log, fault)
    return ""


def _misfired_silence(log: StepLog, fault: Fault, after_s: float) -> str:
    if not fault.victims:
        return "the fault hit nobody"
    before = {commit.pid for commit in log.commits if commit.at_s <= fault.at_s}
    if strangers := fault.victims - before:
        return f"{sorted(strangers)} had not trained before the fault"
    late = {commit.pid for commit in log.commits if commit.at_s > fault.at_s + after_s}
    late |= {pid for attempt, pids in log.takers.items() if log.begun_s[attempt] > fault.at_s + after_s for pid in pids}
    if unhurt := fault.victims & late:
        return f"{sorted(unhurt)} trained on after the fault"
    return ""


def _misfired_parting(log: StepLog, fault: Fault) -> str:
    from_s, until_s = fault.at_s + _CUT_GRACE_S, fault.at_s + _PARTED_S
    done = {commit.attempt for commit in log.commits}
    soon = [pids for attempt, pids in log.takers.items() if attempt in done and from_s < log.begun_s[attempt] < until_s]
    if any(pids & fault.victims and pids & fault.survivors for pids in soon):
        return "who was cut off trained on with the others"
    return ""
