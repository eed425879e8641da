"""A storm: one fault after another, at random, from a seed; then what became of the promises."""

import math
import signal
import time
from collections.abc import Callable
from typing import Any

from benchmarks import scenarios
from benchmarks.rows import Fault, first_commits, recovery, where_time_went, whole_run
from benchmarks.scenarios import GROUNDS
from benchmarks.stage import Stage
from benchmarks.training import BATCH, MICRO_BATCHES
from benchmarks.turns import misfire
from elastic.demo.steplog import StepLog

_CALM_S = 15.0  # undisturbed, before the first fault: what the rest is compared with
_FEWEST = 3  # members that a fault needs, so that two survive it


def strike_often(stage: Stage, storm_s: float, every_s: float, faults: list[Fault]) -> None:
    """Break something every `every_s` for `storm_s`, and note it; a fault that would leave too few is put off."""
    stage.wait_s(_CALM_S)
    ends_s = time.monotonic() + storm_s
    while (began_s := time.monotonic()) < ends_s:
        strike = stage.chance.choice(_possible(stage))
        faults.append(strike(stage))
        stage.wait_s(max(0.0, began_s + every_s - time.monotonic()))
        _end_stopped(stage, faults[-1])
        stage.wait_for(lambda: _is_going_on(stage, faults[-1]), "training went on")
    stage.wait_for(lambda: len(stage.watch.members) >= stage.size, "the run was whole again")


def _end_stopped(stage: Stage, fault: Fault) -> None:
    """Whom a system has left stopped for a whole period an operator ends; it would never be whole again."""
    if fault.kind == "stop":
        for pid in fault.victims & stage.watch.living:
            stage.signal(pid, signal.SIGKILL)


def _possible(stage: Stage) -> list[Callable[[Stage], Fault]]:
    """What may be done now, with two survivors left and a host for those who come."""
    kinds: list[Callable[[Stage], Fault]] = [_kill_any, scenarios.stop, scenarios.notice]
    held = stage.members_by_host()
    most = max((len(pids) for pids in held.values()), default=0)
    if stage.spoiled:
        kinds.append(rejoin)
    elif len(stage.watch.members) - most >= 2:
        kinds.append(scenarios.node)
    return kinds


def rejoin(stage: Stage) -> Fault:
    """A lost host comes back, empty."""
    while stage.spoiled:
        stage.hosts.lose(stage.spoiled.pop())
    stage.hosts.add(slots=GROUNDS["storm"].slots[0])
    return stage.fault("rejoin", set())


def _kill_any(stage: Stage) -> Fault:
    """SIGKILL to any member, the leader too."""
    victim = stage.chance.choice(sorted(stage.watch.members.values()))
    fault = stage.fault("kill", {victim})
    stage.signal(victim, signal.SIGKILL)
    return fault


def _is_going_on(stage: Stage, fault: Fault) -> bool:
    """Those who train now can stand one more fault."""
    members = set(stage.watch.members.values())
    return len(members & stage.watch.living) >= _FEWEST and not members & fault.victims


def report(stage: Stage, faults: list[Fault]) -> dict[str, Any]:
    """The row of a storm: what each fault cost, the run as a whole, and where the time went."""
    log = stage.watch.log()
    rows = []
    for fault, following in zip(faults, [*faults[1:], None], strict=True):
        until_s = following.at_s if following else math.inf
        window = stage.watch.log(until_s)
        rows.append({"kind": fault.kind, "at_s": fault.at_s, "note": fault.note, "misfire": misfire(window, fault)})
        rows[-1] |= recovery(window, fault)
    outages = [(row["at_s"], row["at_s"] + (row["t_resume_s"] or 0.0)) for row in rows if row["kind"] != "rejoin"]
    summary = {
        "t_detect_s": _worst(rows, "t_detect_s"),
        "t_resume_s": _worst(rows, "t_resume_s"),
        "t_full_s": _worst(rows, "t_full_s"),
        "longest_gap_s": _worst(rows, "longest_gap_s"),
        "steps_in_storm": _steps_within(log, faults[0].at_s, stage.long_s),
        "misfires": sum(bool(row["misfire"]) for row in rows),
        "steps_lost": sum(row["steps_lost"] for row in rows),
        "survivors": sum(row["survivors"] for row in rows),
        "survivors_kept": sum(row["survivors_kept"] for row in rows),
    }
    return summary | whole_run(log, BATCH) | where_time_went(log, outages, MICRO_BATCHES) | {"faults": rows}


def _steps_within(log: StepLog, from_s: float, seconds: float) -> int:
    """Steps that were first committed within so many seconds: what systems are compared by."""
    return sum(from_s < at_s <= from_s + seconds for at_s in first_commits(log).values())


def _worst(rows: list[dict[str, Any]], name: str) -> float | None:
    known = [row[name] for row in rows if row[name] is not None]
    return max(known, default=None)
