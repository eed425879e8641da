"""What the recovery benchmark is held to, beside each peer, and why a goal is missed. No Ray, no torch, no clock."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.recovery_tables import BASELINE, counting, counting_by, runs_each
from benchmarks.systems import TUNED
from benchmarks.tables import Result, Table, number, spread

OURS = "elastic"
_LONG_S = 600.0  # storms and loads that ours is held to
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """How many times better than a peer, in medians of one run.

    Attributes:
        figure: key of the rows. at_least: by system, the factor.
        is_less_better: seconds; else a count of which more is better.
    """

    title: str
    scenario: str
    figure: str
    at_least: Mapping[str, float]
    is_less_better: bool = True

    def reached(self, rows: Sequence[Row], system: str) -> float | None:
        """The factor; None: somebody never came to it, or was not measured."""
        theirs, ours = (_median(rows, self.scenario, self.figure, name) for name in (system, OURS))
        if theirs is None or ours is None:
            return None
        better, worse = (ours, theirs) if self.is_less_better else (theirs, ours)
        return worse / better if better else None


# Of a kill it is four for torchft, whose timeout can be as low as a second, or lower.
GOALS = (
    Goal(
        title="kill: the survivors' next commit",
        scenario="kill",
        figure="t_resume_s",
        at_least={"torchft": 4.0, "ray-train": 20.0, "torchrun": 20.0},
    ),
    Goal(
        title="hang: the survivors' next commit",
        scenario="stop",
        figure="t_resume_s",
        at_least={"torchft": 3.0, "ray-train": 10.0, "torchrun": 10.0},
    ),
    Goal(
        title="node loss: the survivors' next commit",
        scenario="node",
        figure="t_resume_s",
        at_least={"torchft": 3.0, "ray-train": 5.0},
    ),
    Goal(
        title="kill: full size again",
        scenario="kill",
        figure="t_full_s",
        at_least={"torchft": 2.0, "ray-train": 4.0, "torchrun": 4.0},
    ),
    Goal(
        title="storm: steps committed",
        scenario="storm",
        figure="steps_in_storm",
        at_least={"torchft": 1.15, "ray-train": 2.0, "torchrun": 2.0},
        is_less_better=False,
    ),
    Goal(
        title="clean run: steps per second",
        scenario="clean",
        figure="mean_step_s",
        at_least={BASELINE: 0.97, "torchft": 1.0, "ray-train": 1.0, "torchrun": 1.0, "nvrx-inprocess": 1.0},
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What is asked of a figure of ours alone.

    Attributes:
        value: of a row, None where it has none. least_runs: repetitions without which a result does not count.
        length_s: of a storm, or of a load, as planned: shorter ones do not count.
    """

    title: str
    scenario: str
    value: Callable[[Row], float | None]
    bound: float
    is_upper: bool = True
    why_missed: str = ""
    least_runs: int = 5
    length_s: float = 0.0

    def is_kept(self, middle: float) -> bool:
        return middle <= self.bound if self.is_upper else middle >= self.bound


def _of(figure: str) -> Callable[[Row], float | None]:
    return lambda row: row.get(figure)


def _gap_in_steps(row: Row) -> float | None:
    gap_s, step_s = row.get("longest_gap_s"), row.get("step_s")
    return gap_s / step_s if gap_s is not None and step_s else None


def _alarms(row: Row) -> float | None:
    """None where the load ended before its time for another reason."""
    lost = row.get("attempts_lost")
    return lost if lost or row.get("lasted_s", 0.0) >= _LONG_S else None


def _pause_in_copies(row: Row) -> float | None:
    """Of the state over the link, beyond 0.2 s; the gap has a step in it."""
    gap_s, copy_s = row.get("longest_gap_s"), row.get("copy_s")
    return (gap_s - 0.2) / copy_s if gap_s is not None and copy_s else None


BOUNDS = (
    Bound(title="SIGSTOP: seconds to the next commit", scenario="stop", value=_of("t_resume_s"), bound=1.5),
    Bound(title="host cut off: seconds to the next commit", scenario="partition", value=_of("t_resume_s"), bound=2.5),
    Bound(title="notice, then kill: attempts lost", scenario="notice", value=_of("attempts_lost"), bound=0.0),
    Bound(
        title="notice, then kill: longest gap between commits, in steps",
        scenario="notice",
        value=_gap_in_steps,
        bound=3.0,
        why_missed="a whole step is part of it, of fewer members, who take more micro-batches each",
    ),
    Bound(title="a spare for a killed worker: seconds to full size", scenario="swap", value=_of("t_full_s"), bound=1.0),
    Bound(
        title="a joiner of 400 MB: the others' pause beyond 0.2 s, in copies of the state",
        scenario="join",
        value=_pause_in_copies,
        bound=1.5,
        why_missed="beside the copy, state is read to see that it is the same on two donors and has arrived, by five "
        "processes on two cores; and a whole step is part of it",
    ),
    Bound(
        title="a member at half speed: speed, of what the capacity allows",
        scenario="straggler",
        value=_of("share_of_ideal"),
        bound=0.85,
        is_upper=False,
    ),
    Bound(
        title="ten minutes of faults: steps, of those without faults",
        scenario="storm",
        value=_of("share"),
        bound=0.92,
        is_upper=False,
        why_missed="after each loss a process starts and imports torch and Ray, on cores that the steps want: slower "
        "steps in the table of the storm's time; how long that takes depends on the machine",
        least_runs=1,
        length_s=_LONG_S,
    ),
    Bound(
        title="ten minutes with both cores wanted by others: attempts lost to false alarms",
        scenario="busy",
        value=_alarms,
        bound=0.0,
        least_runs=1,
        length_s=_LONG_S,
    ),
)

_EVERYBODY = "*"
# By title, and by peer where they differ: the reason, which is told where the goal is missed.
WHY_MISSED: Mapping[str, Mapping[str, str]] = {
    "kill: the survivors' next commit": {
        _EVERYBODY: "who died is proven dead, the others stop, agree and connect, and one whole step is part of it; of "
        "these only the step is shorter on a machine that is less busy"
    },
    "hang: the survivors' next commit": {
        _EVERYBODY: "who is stopped is known for sure after three looks of its host monitor, and once another one is "
        "seen to wait for it; then it is killed, the others stop, agree and connect, and a whole step is part of it; "
        "on a machine that is slower, or busier, all of that takes longer, and torchft's timeout of a second does not"
    },
    "node loss: the survivors' next commit": {
        _EVERYBODY: "a whole step is part of it on both sides, and so is the forming of the group that makes it"
    },
    "kill: full size again": {
        _EVERYBODY: "where no stand-in is ready, a process starts and imports torch and Ray, on a machine whose cores "
        "are busy with the survivors' steps"
    },
    "storm: steps committed": {
        "torchft": "it skips samples instead of waiting for anybody: a loss costs it a timeout and no work, and its "
        "steps hold fewer samples (the storm's table); what a run makes that nothing befalls is told below",
        "torchrun": "twice its steps are nearly all, or more, of what a run makes that nothing befalls (told below), "
        "and what we lose is said in the table of the storm's time",
        _EVERYBODY: "what we lose is said in the table of the storm's time",
    },
    "clean run: steps per second": {
        _EVERYBODY: "four workers, driver, supervisor, monitors and Ray's daemons of four nodes share two cores "
        "here, and the step is short, so that each wait for a core shows: some of what is missing comes back "
        "while driver, supervisor and monitors are stopped"
    },
}


def _median(rows: Sequence[Row], scenario: str, figure: str, system: str) -> float | None:
    those = [row for row in rows if (row["scenario"], row["system"]) == (scenario, system)]
    values = [row[figure] for row in those if row.get(figure) is not None]
    return median(values) if values and len(values) == len(those) else None


def _tuned(results: Sequence[Result]) -> list[Row]:
    return [row for row in counting(results) if row.get("settings") == TUNED]


def missed(results: Sequence[Result]) -> list[tuple[str, str]]:
    """(title, system) of each goal that was measured and not reached."""
    rows = _tuned(results)
    return [
        (goal.title, system)
        for goal in GOALS
        for system, least in goal.at_least.items()
        if (factor := goal.reached(rows, system)) is not None and factor < least
    ]


def held_to(results: Sequence[Result]) -> Table | None:
    """Factor by goal and peer, with the goal; below it, why those that were missed are; None: nothing was measured."""
    rows = _tuned(results)
    systems = tuple(dict.fromkeys(name for goal in GOALS for name in goal.at_least))
    lines = tuple(
        (f"{goal.title} ({runs_each([row for row in rows if row['scenario'] == goal.scenario])})", *cells)
        for goal in GOALS
        if any(cells := [_cell(rows, goal, name) for name in systems])
    )
    if not lines:
        return None
    by_reason: dict[tuple[str, str], list[str]] = {}
    for title, system in missed(results):
        by_reason.setdefault((title, why_missed(title, system)), []).append(system)
    notes = [f"Missed: {title} ({', '.join(names)}): {why}." for (title, why), names in by_reason.items()]
    return Table(
        title=f"How many times better than each peer ({TUNED}), and the goal",
        columns=("", *systems),
        rows=lines,
        notes=(*notes, *filter(None, [_within_reach(rows), _commits(results)])),
    )


def _commits(results: Sequence[Result]) -> str:
    """Which lines are of which commit, if they are of several; a factor is always of one run."""
    by_commit: dict[str, list[str]] = {}
    for result, rows in counting_by(results):
        scenarios = {row["scenario"] for row in rows if row.get("settings") == TUNED}
        told = [goal.title for goal in GOALS if goal.scenario in scenarios]
        commit = (result["provenance"]["commit"] or "unknown")[:7]
        by_commit.setdefault(commit, []).extend(told)
    told = [f"`{commit}`: {', '.join(dict.fromkeys(titles))}" for commit, titles in by_commit.items() if titles]
    return f"Of several commits. {'; '.join(told)}." if len(told) > 1 else ""


def alone(results: Sequence[Result]) -> Table | None:
    """Our own figures at the settings that users have, each of the newest result with enough repetitions."""
    lines, notes = [], []
    for bound in BOUNDS:
        measured = [(result, tried) for result in results if len(tried := _tried(result, bound)) >= bound.least_runs]
        if not measured:
            continue
        newest, tried = max(measured, key=lambda one: str(one[0]["provenance"]["date"]))
        values = [value for value in tried if value is not None]
        is_kept = len(values) == len(tried) and bound.is_kept(median(values))
        asked = f"{'<=' if bound.is_upper else '>='} {number(bound.bound)}" + ("" if is_kept else " (missed)")
        of = newest["provenance"]
        commit = f"`{(of['commit'] or 'unknown')[:7]}`, {of['machine']['processor']}"
        lines.append((bound.title, spread(values, len(tried)), str(len(tried)), asked, commit))
        if not is_kept and bound.why_missed:
            notes.append(f"Missed: {bound.title}: {bound.why_missed}.")
    columns = ("", "median [smallest, largest]", "runs", "goal", "commit, machine")
    return (
        Table(title=f"{OURS} alone (default)", columns=columns, rows=tuple(lines), notes=tuple(notes))
        if lines
        else None
    )


def _tried(result: Result, bound: Bound) -> list[float | None]:
    """Of our rows of this scenario; None where a run never came to it."""
    rows = [row for row in result["rows"] if (row["scenario"], row["system"]) == (bound.scenario, OURS)]
    counted = [row for row in rows if row.get("settings", "default") == "default" and not row.get("discarded")]
    planned_s = result.get("settings", {}).get("storm_s", 0.0)  # not what it came to: an alarm ends a load
    if planned_s < bound.length_s:
        return []
    return [bound.value(row) for row in counted if not row.get("unavailable")]


def why_missed(title: str, system: str) -> str:
    """The reason, without a full stop."""
    reasons = WHY_MISSED[title]
    return reasons.get(system, reasons[_EVERYBODY])


def _within_reach(rows: Sequence[Row]) -> str:
    """How many times each one's steps in a storm plain DDP's would be that no fault befalls; empty: not measured."""
    step_s = _median(rows, "clean", "mean_step_s", BASELINE)
    lengths = [row["storm_length_s"] for row in rows if row["scenario"] == "storm" and row.get("storm_length_s")]
    storm = next(goal for goal in GOALS if goal.scenario == "storm")
    steps = {system: _median(rows, "storm", storm.figure, system) for system in (OURS, *storm.at_least)}
    if step_s is None or not lengths or not all(steps.values()):
        return ""
    most = median(lengths) / step_s
    told = ", ".join(f"{system} {number(most / count)}" for system, count in steps.items() if count)
    return (
        f"In the time of a storm, plain DDP that no fault befalls would make {most:.0f} steps (by its step in the "
        f"clean run); that is, times the steps of each: {told}."
    )


def _cell(rows: Sequence[Row], goal: Goal, system: str) -> str:
    least = goal.at_least.get(system)
    if least is None:
        return ""
    factor = goal.reached(rows, system)
    if factor is None:
        return f"never, goal {number(least)}" if _were_there(rows, goal, system) else ""
    return f"{number(factor)}, goal {number(least)}" + (" (missed)" if factor < least else "")


def _were_there(rows: Sequence[Row], goal: Goal, system: str) -> bool:
    """Both were measured, and one of them did not come to it in some run."""
    names = {row["system"] for row in rows if row["scenario"] == goal.scenario and not row.get("unavailable")}
    return {system, OURS} <= names
