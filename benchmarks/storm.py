"""A storm: faults at times that a seed sets, the same for all systems; then what became of the promises."""

import dataclasses
import itertools
import math
import random
import signal
import time
from typing import Any

from benchmarks import scenarios
from benchmarks.remains import HostsError
from benchmarks.rows import Fault, first_commits, recovery, slowest_resumption_s, where_time_went, whole_run
from benchmarks.scenarios import GROUNDS
from benchmarks.stage import LateError, RunEndedError, ScenarioError, Stage
from benchmarks.training import BATCH, MICRO_BATCH
from benchmarks.turns import Strike, misfire
from elastic.demo.steplog import StepLog

_CALM_S = 15.0  # undisturbed, before the first fault: what the rest is compared with
_SURVIVORS = 2


@dataclasses.dataclass(slots=True)
class Storm:
    """What was done so far.

    Attributes:
        began_s, ended_s: wall clock of the first strike, and of when no more came, whatever the reason.
        skipped: strikes that found nobody whom they might hit, with the reason.
    """

    faults: list[Fault] = dataclasses.field(default_factory=list)
    skipped: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    began_s: float = 0.0
    ended_s: float = 0.0


def strike_often(stage: Stage, plan: list[Strike], storm_s: float, storm: Storm) -> None:
    """Break what the plan says, when it says so, whatever the system does meanwhile; then wait until it is whole.

    A strike that would leave fewer than two survivors is skipped: the system is still down, or small, from an earlier
    one. One that finds the observer at work on an earlier one is late.
    """
    stage.wait_s(_CALM_S)
    storm.began_s, ends_s = time.time(), time.monotonic() + storm_s
    try:
        for strike in plan:
            stage.wait_s(max(0.0, storm.began_s + strike.at_s - time.time()))
            _end_stopped(stage, storm.faults)
            stage.chance = random.Random(strike.seed)
            try:
                storm.faults.append(_STRIKES[strike.kind](stage))
            except ScenarioError as reason:
                storm.skipped.append({"kind": strike.kind, "at_s": storm.began_s + strike.at_s, "note": str(reason)})
        stage.wait_s(max(0.0, ends_s - time.monotonic()))
        _end_stopped(stage, storm.faults)
    finally:
        storm.ended_s = time.time()
    stage.wait_for(lambda: len(_living(stage)) >= stage.size, "the run was whole again")


def _end_stopped(stage: Stage, faults: list[Fault]) -> None:
    """Whom a system has left stopped until the next strike an operator ends; it would never be whole again."""
    for fault in faults[-1:]:
        if fault.kind == "stop":
            for pid in fault.victims & stage.watch.living:
                stage.signal(pid, signal.SIGKILL)


def _living(stage: Stage) -> set[int]:
    """Who trained in the newest generation and is still there."""
    return {pid for pid in stage.watch.members.values() if stage.is_running(pid)}


def _leave_enough(stage: Stage, hit: int) -> None:
    """Raises:
    ScenarioError: too few would be left.
    """
    living = len(_living(stage))
    if living - hit < _SURVIVORS:
        raise ScenarioError(f"{living} trained, of whom {hit} would have been hit")


def _kill(stage: Stage) -> Fault:
    """SIGKILL to any member, the leader too."""
    _leave_enough(stage, 1)
    victim = stage.chance.choice([pid for _, pid in sorted(stage.watch.members.items()) if stage.is_running(pid)])
    fault = stage.fault("kill", {victim})
    stage.signal(victim, signal.SIGKILL)
    return fault


def _stop(stage: Stage) -> Fault:
    _leave_enough(stage, 1)
    return scenarios.stop(stage)


def _notice(stage: Stage) -> Fault:
    _leave_enough(stage, 1)
    return scenarios.notice(stage)


def _node(stage: Stage) -> Fault:
    _leave_enough(stage, max((len(pids) for pids in stage.members_by_host().values()), default=0))
    return scenarios.node(stage)


def _rejoin(stage: Stage) -> Fault:
    """A lost host comes back, empty."""
    if not stage.spoiled:
        raise ScenarioError("no host was lost")
    while stage.spoiled:
        stage.hosts.lose(stage.spoiled.pop())
    stage.hosts.add(slots=GROUNDS["storm"].slots[0])
    return stage.fault("rejoin", set())


_STRIKES = {"kill": _kill, "stop": _stop, "notice": _notice, "node": _node, "rejoin": _rejoin}


def play(stage: Stage, plan: list[Strike], storm_s: float) -> dict[str, Any]:
    """The row of a storm, also of one that ended before its time: what was measured until then is kept."""
    storm, note = Storm(), ""
    try:
        strike_often(stage, plan, storm_s, storm)
        code = stage.finish()
        note = f"the run ended with code {code}" if code else ""
    except HostsError:  # no system's doing
        raise
    except Exception as error:  # whatever it was: the step log is there
        if stage.struck is None:
            raise
        if not storm.faults or storm.faults[-1].at_s != stage.struck.at_s:
            storm.faults.append(stage.struck)  # it was done, and the run ended while it lasted
        note = str(error) if isinstance(error, LateError | RunEndedError) else f"{type(error).__name__}: {error}"
    stage.watch.look()
    return report(stage, storm, storm_s) | {"timed_out": note.startswith("not in time"), "note": note}


def report(stage: Stage, storm: Storm, storm_s: float) -> dict[str, Any]:
    """The row of a storm: what each fault cost, the run as a whole, and where the time went."""
    log, faults = stage.watch.log(), storm.faults
    rows: list[dict[str, Any]] = []
    for fault, following in itertools.zip_longest(faults, faults[1:]):
        until_s = following.at_s if following else math.inf
        window = stage.watch.log(until_s)
        rows.append({"kind": fault.kind, "at_s": fault.at_s, "note": fault.note, "misfire": misfire(window, fault)})
        rows[-1] |= recovery(window, fault)
    costly = [row for row in rows if row["kind"] != "rejoin"]
    outages = [(row["at_s"], row["at_s"] + (row["t_resume_s"] or 0.0)) for row in costly]
    spent = where_time_went(log, outages or [(storm.began_s, storm.began_s)], MICRO_BATCH, _CALM_S)
    summary = {
        "discarded": "" if any(not row["misfire"] for row in costly) else "nothing shows that any strike took place",
        "t_detect_s": _worst(rows, "t_detect_s"),
        "t_resume_s": slowest_resumption_s(rows),
        "t_full_s": _worst(rows, "t_full_s"),
        "longest_gap_s": _worst(rows, "longest_gap_s"),
        **_done_within(log, storm.began_s, storm_s),
        "storm_length_s": storm_s,
        "storm_seconds_played": min(storm_s, storm.ended_s - storm.began_s),
        "strikes_skipped": storm.skipped,
        "misfires": sum(bool(row["misfire"]) for row in rows),
        "steps_lost": sum(row["steps_lost"] for row in rows),
        "survivors": sum(row["survivors"] for row in rows),
        "survivors_kept": sum(row["survivors_kept"] for row in rows),
    }
    return summary | whole_run(log, BATCH, spent["undisturbed_step_s"]) | spent | {"faults": rows}


def _done_within(log: StepLog, from_s: float, seconds: float) -> dict[str, int]:
    """Steps that were first committed within so many seconds: what systems are compared by; and what was in them."""
    stands = log.committed_attempts()
    steps = [step for step, at_s in first_commits(log).items() if from_s < at_s <= from_s + seconds]
    samples = sum(len(log.consumed.get(stands[step], ())) for step in steps)
    return {"steps_in_storm": len(steps), "samples_in_storm": samples}


def _worst(rows: list[dict[str, Any]], name: str) -> float | None:
    known = [row[name] for row in rows if row[name] is not None]
    return max(known, default=None)
