"""From the rows of the recovery benchmark to its tables. No Ray, no torch, no clock, no files."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.phases import PHASES
from benchmarks.rows import slowest_resumption_s
from benchmarks.systems import RAY_TUNED, SETTINGS
from benchmarks.tables import Result, Sample, Table, best, spread

BASELINE = "ddp"
BUSY = "busy"
FAULT_FREE = ("clean", BUSY, "straggler")
STORM = "storm"
TO_GO_ON = ("t_detect_s", "t_resume_s", "t_full_s")
KEPT_ALIVE = "survivors' processes kept"
NOBODY_HIT = ("coordinator", "driver")  # what it costs is a pause that comes late, if there is one
BETTER_IF_MORE = ("goodput", "step_efficiency")
_FIRST_MODEL = "a perceptron of 161 parameters"  # of results that do not say what was trained
BOUNDS = ("t_detect_s",)  # from above, for some of no use: members may begin an attempt at once, and wait in it


def settings_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Those that there are, default first."""
    there = {row.get("settings", "default") for row in rows}
    return [name for name in SETTINGS if name in there]


def counting(results: Sequence[Result]) -> list[Mapping[str, Any]]:
    """Rows of all recovery results, less those whose fault did not fire.

    Of results with the same scenario and settings only one counts, as what was not measured in turns is not compared:
    of those that compare the most systems, in most runs of each, and of all, the newest.
    """
    return [row for _, rows in counting_by(results) for row in rows]


def by_bench(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results by the machine and the model, those of the newest comparison first: figures of two are never mixed."""
    found: dict[str, list[Result]] = {}
    for result in results:
        machine = result["provenance"]["machine"]
        bench = f"{machine['cores']} cores of {machine['processor']}, with {model_of(result)}"
        found.setdefault(bench, []).append(result)
    return dict(sorted(found.items(), key=lambda one: max(map(_newness, one[1])), reverse=True))


def model_of(result: Result) -> str:
    """What was trained."""
    return str(result.get("model", _FIRST_MODEL))


def shown(results: Sequence[Result]) -> list[Result]:
    """What the README and plots show: of the machine and the model of the newest comparison."""
    return next(iter(by_bench(results).values()), [])


def _newness(result: Result) -> tuple[bool, str]:
    return len({row["system"] for row in result["rows"]}) > 1, str(result["provenance"]["date"])


def counting_by(results: Sequence[Result]) -> list[tuple[Result, list[Mapping[str, Any]]]]:
    """Each result with those of its rows that count; see `counting`."""
    owners = _owners(results)
    return [(result, [row for row in result["rows"] if _counts(row, at, owners)]) for at, result in enumerate(results)]


def standing(results: Sequence[Result]) -> list[Result]:
    """Those of which something counts."""
    return [result for result, rows in counting_by(results) if rows]


def has_faults(result: Result) -> bool:
    """Whether there is more in it than who is taken for dead though nothing is wrong."""
    return any(row["scenario"] != BUSY for row in result["rows"])


def _owners(results: Sequence[Result]) -> Mapping[tuple[str, str], int]:
    """Scenario and settings -> place of the newest result among those with most figures: of systems, of each, of all.

    Where none has figures, the newest tells why.
    """
    owners: dict[tuple[str, str], int] = {}
    ranks: dict[tuple[str, str], tuple[int, int, int, str]] = {}
    for at, result in enumerate(results):
        systems: dict[tuple[str, str], Counter[str]] = {}
        for row in result["rows"]:
            if not row.get("discarded"):
                systems.setdefault(_kind(row), Counter()).update([row["system"]] if _measured(row) else [])
        for kind, runs in systems.items():
            least = min(runs.values(), default=0)
            rank = len(runs), least, sum(runs.values()), str(result["provenance"]["date"])
            if rank >= ranks.get(kind, (0, 0, 0, "")):
                owners[kind], ranks[kind] = at, rank
    return owners


def _counts(row: Mapping[str, Any], at: int, owners: Mapping[tuple[str, str], int]) -> bool:
    return not row.get("discarded") and owners[_kind(row)] == at


def _kind(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["scenario"], row.get("settings", "default")


def _measured(row: Mapping[str, Any]) -> bool:
    """Whether a run took place: one that could not has a reason and nothing else."""
    return not row.get("unavailable")


def _ordered(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def matrix(
    rows: Sequence[Mapping[str, Any]], figure: str, title: str, settings: str, only: Sequence[str] = ()
) -> Table | None:
    """Scenario by system: medians of a figure and how many runs they are of; None where nobody has it.

    Args:
        only: these scenarios; empty: all.
    """
    left_out = NOBODY_HIT if figure in TO_GO_ON else ()
    here = [row for row in rows if row.get("settings", "default") == settings and _measured(row)]
    here = [row for row in here if row["scenario"] not in (*FAULT_FREE, STORM, *left_out)]
    here = [row for row in here if not only or row["scenario"] in only]
    if not any(row.get(figure) is not None for row in here):
        return None
    systems = _ordered(row["system"] for row in here)
    lines = []
    for scenario in _ordered(row["scenario"] for row in here):
        groups = [[r for r in here if (r["scenario"], r["system"]) == (scenario, system)] for system in systems]
        values = [[row[figure] for row in group if _has(row, figure)] for group in groups]
        cells = [spread(found, len(group)) for found, group in zip(values, groups, strict=True)]
        medians = [median(found) if found else None for found in values]
        runs = "–".join(map(str, sorted({len(group) for group in groups if group})))
        pick = max if figure in BETTER_IF_MORE else min
        lines.append((f"`{scenario}`", runs, *(cells if figure in BOUNDS else best(cells, medians, pick))))
    return Table(title=title, columns=("scenario", "runs each", *systems), rows=tuple(lines))


def _has(row: Mapping[str, Any], figure: str) -> bool:
    """Whether it says something: a gap that never ended has no length, though older results have one that did."""
    never_ended = figure == "longest_gap_s" and row["scenario"] not in NOBODY_HIT and row.get("t_resume_s") is None
    return row.get(figure) is not None and not never_ended


def losses(rows: Sequence[Mapping[str, Any]], settings: str) -> Table | None:
    """System by system, over all faults: the worst run's steps done again and samples lost, and who stayed alive."""
    here = [row for row in rows if row.get("settings", "default") == settings and _measured(row)]
    here = [row for row in here if row["scenario"] not in FAULT_FREE and row["system"] != BASELINE]
    shown = ("steps_lost", "samples_repeated", "samples_skipped")
    lines = []
    for system in _ordered(row["system"] for row in here):
        runs = [row for row in here if row["system"] == system]
        ended = sum(row.get("longest_gap_s" if row["scenario"] in NOBODY_HIT else "t_resume_s") is None for row in runs)
        kept, all_of = (sum(row.get(name) or 0 for row in runs) for name in ("survivors_kept", "survivors"))
        worst = [max(row.get(name) or 0 for row in runs) for name in shown]
        ratios = [ratio for row in runs if (ratio := _loss_against_clean(rows, row)) is not None]
        lost = (str(len(runs)), str(ended), *map(str, worst), f"{kept} of {all_of}", spread(ratios, len(ratios)))
        lines.append((system, *lost))
    if not lines:
        return None
    counted = ("runs", "did not go on", "steps done again", "samples repeated", "samples skipped")
    columns = ("system", *counted, KEPT_ALIVE, "loss, of that without faults")
    return Table(title=f"What was lost ({settings}; the worst run of each system)", columns=columns, rows=tuple(lines))


def _loss_against_clean(rows: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> float | None:
    """The last loss that both know, of this run and of the one without faults of the same system and seed."""
    same = ("system", "settings", "repetition")
    for row in rows:
        if row["scenario"] == "clean" and all(row.get(name) == run.get(name) for name in same):
            pairs = list(zip(run.get("losses") or (), row.get("losses") or (), strict=False))
            return pairs[-1][0] / pairs[-1][1] if pairs else None
    return None


def storms(rows: Sequence[Mapping[str, Any]], settings: str) -> Table | None:
    """Steps that were done in a storm all the same, and which part of an undisturbed run's they are."""
    here = [r for r in rows if r["scenario"] == STORM and r.get("settings", "default") == settings and _measured(r)]
    if not here:
        return None
    lines = []
    for system in _ordered(row["system"] for row in here):
        runs = [row for row in here if row["system"] == system]
        lists = {name: [len(row[name]) for row in runs if row.get(name) is not None] for name in _LISTS}
        shown = ("misfires", "steps_in_storm", _SAMPLES, "share", "steps_lost")
        slowest = [slowest_resumption_s(row["faults"]) for row in runs if row.get("faults")]
        figures = ([row[name] for row in runs if row.get(name) is not None] for name in shown)
        values = [*lists.values(), *figures, [seconds for seconds in slowest if seconds is not None]]
        cells = [spread(found, len(runs)) for found in values]
        cells[_STEPS_AT] += "".join(map(_cut_short, runs))
        if not any(_SAMPLES in row for row in runs):  # an older result
            cells[_STEPS_AT + 1] = ""
        lines.append((system, *cells))
    columns = (
        "system",
        "faults",
        "skipped",
        "not seen",
        "steps in the storm",
        "samples in these",
        "of an undisturbed run's",
        "steps done again",
        "slowest resumption, s",
    )
    return Table(title=f"{_lasting(here)} ({settings})", columns=columns, rows=tuple(lines))


def storm_times(rows: Sequence[Mapping[str, Any]], settings: str) -> Table | None:
    """Where the time of a storm went, of which an undisturbed run makes steps; None: nobody's is known."""
    here = [r for r in rows if r["scenario"] == STORM and r.get("settings", "default") == settings]
    here = [row for row in here if row.get("outage_share") is not None]
    lines = []
    for system in _ordered(row["system"] for row in here):
        runs = [row for row in here if row["system"] == system]
        lines.append((system, *(spread([row[name] for row in runs], len(runs)) for name in _SHARES)))
    if not lines:
        return None
    title = f"Where the time of a storm went, as shares ({settings})"
    note = (
        "Slower steps are mostly those beside processes that start. A share below nothing: the steps were faster than "
        "their undisturbed ones, of more members."
    )
    return Table(title=title, columns=("system", *_SHARES.values()), rows=tuple(lines), notes=(note,))


_SHARES = {
    "share": "steps, as of an undisturbed run",
    "outage_share": "from a fault to the next step",
    "below_full_size_share": "more work for fewer members",
    "start_up_share": "slower steps",
}


def _lasting(runs: Sequence[Mapping[str, Any]]) -> str:
    lengths = sorted({row["storm_length_s"] for row in runs if row.get("storm_length_s")})
    told = f" of {' or '.join(f'{length_s:.0f}' for length_s in lengths)} s" if lengths else ""
    return f"A storm of faults{told}, {runs_each(runs)}"


def runs_each(runs: Iterable[Mapping[str, Any]]) -> str:
    each = max(Counter(row["system"] for row in runs if _measured(row)).values(), default=0)
    return f"{each} run{'s' * (each != 1)} each"


_LISTS = ("faults", "strikes_skipped")
_SAMPLES = "samples_in_storm"
_STEPS_AT = 3  # among the cells of a storm


def _cut_short(row: Mapping[str, Any]) -> str:
    """What makes a run's steps no match for those of others: it was over before the storm was."""
    length_s, played_s = row.get("storm_length_s"), row.get("storm_seconds_played")
    if length_s is None or played_s is None or played_s > length_s - 1.0:
        return ""
    return f" (over after {played_s:.0f} of {length_s:.0f} s)"


def phases(rows: Sequence[Mapping[str, Any]], settings: str) -> Table | None:
    """Where the time of ours went from a fault to the next commit; None: no row has it."""
    here = [row for row in rows if row.get("settings", "default") == settings and row.get("phases_s")]
    lines = []
    for scenario in _ordered(row["scenario"] for row in here):
        runs = [row["phases_s"] for row in here if row["scenario"] == scenario]
        cells = (spread([run[name] for run in runs], len(runs)) for name in PHASES)
        lines.append((f"`{scenario}`", str(len(runs)), *cells))
    if not lines:
        return None
    note = (
        "The whole is what an observer saw: from the fault to the survivors' next commit, or, where nobody was lost "
        "at once, the longest gap between commits. Its parts are by the run's journal."
    )
    columns = ("scenario", "runs", *PHASES.values())
    return Table(title=f"Where our time goes, seconds ({settings})", columns=columns, rows=tuple(lines), notes=(note,))


def alarms(rows: Sequence[Mapping[str, Any]]) -> Table | None:
    """Who was taken for dead though nothing was wrong, by system and settings; None: nobody was tried."""
    here = [row for row in rows if row["scenario"] == BUSY and _measured(row)]
    lines = []
    for system in _ordered(row["system"] for row in here):
        for settings in settings_of(row for row in here if row["system"] == system):
            runs = [row for row in here if (row["system"], row["settings"]) == (system, settings)]
            figures = ([row[name] for row in runs if row.get(name) is not None] for name in _UNDER_LOAD)
            set_to = ", ".join(f"{name} {value}" for name, value in runs[0]["knobs"].items() if name not in _NO_ALARMS)
            lines.append((system, settings, *(spread(found, len(runs)) for found in figures), set_to or "nothing"))
    if not lines:
        return None
    return Table(
        title="False alarms while other processes want all cores",
        columns=("system", "settings", *_UNDER_LOAD.values(), "set"),
        rows=tuple(lines),
        notes=("It ends with the first attempt that nobody commits.",),
    )


_UNDER_LOAD = {"lasted_s": "seconds under load", "steps": "steps of the run", "attempts_lost": "attempts lost"}
_NO_ALARMS = ("checkpoint_steps", "quorum_retries", "resize_s", *RAY_TUNED)


def clean(rows: Sequence[Mapping[str, Any]], settings: str) -> Table | None:
    """Speed without faults against plain DDP's of the same repetition: of steps by time, and in the median step."""
    here = [r for r in rows if r["scenario"] == "clean" and r.get("settings", "default") == settings]
    systems = [name for name in _ordered(row["system"] for row in here) if name != BASELINE]
    ratios = {figure: {name: _against_baseline(here, figure, name) for name in systems} for figure in _PACES}
    systems = [name for name in systems if any(of[name] for of in ratios.values())]
    if not systems:
        return None
    columns = []
    for of in ratios.values():
        cells = [spread(of[name], len(of[name])) for name in systems]
        columns.append(best(cells, [median(of[name]) if of[name] else None for name in systems], max))
    paces = [[row["mean_step_s"] for row in here if row["system"] == n and row.get("mean_step_s")] for n in systems]
    columns.append([spread(found, len(found)) for found in paces])
    lines = tuple(zip(systems, *columns, strict=True))
    own = [row["mean_step_s"] for row in here if row["system"] == BASELINE and row.get("mean_step_s")]
    notes = (f"A step of plain DDP takes {spread(own, len(own))} s. Nobody keeps checkpoints here.",) if own else ()
    title = f"Steps per second without faults, against plain DDP in the same repetition, {runs_each(here)} ({settings})"
    return Table(title=title, columns=("system", *_PACES.values(), "seconds a step"), rows=lines, notes=notes)


_PACES = {"mean_step_s": "over the last 20 s", "step_s": "in the median step"}


def _against_baseline(rows: Sequence[Mapping[str, Any]], figure: str, system: str) -> list[float]:
    steps = {(row["system"], row["repetition"]): row[figure] for row in rows if row.get(figure)}
    return [
        steps[BASELINE, at] / own for (name, at), own in steps.items() if name == system and (BASELINE, at) in steps
    ]


def reasons(results: Sequence[Result]) -> tuple[str, ...]:
    """Why cells are empty, and how many runs did not count, in sentences."""
    rows = counting(results)
    cells: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if not _measured(row):
            cells.setdefault((row["system"], row["unavailable"]), []).append(row["scenario"])
    alike: dict[tuple[str, str], list[str]] = {}
    for (system, reason), names in cells.items():
        alike.setdefault((", ".join(_ordered(names)), reason), []).append(system)
    told = [f"Empty: {names} of {', '.join(systems)}: {reason}." for (names, reason), systems in alike.items()]
    tried = [row for result in standing(results) for row in [*result["rows"], *_discarded(result)]]
    count = sum(bool(row.get("discarded")) for row in tried)
    return (*told, f"{count} runs were discarded, since their fault did not fire.") if count else tuple(told)


def _discarded(result: Result) -> Sequence[Mapping[str, Any]]:
    listed = result.get("discarded", ())
    return listed if isinstance(listed, Sequence) else ()


def recovery(results: Sequence[Result], is_short: bool = False) -> list[Table]:
    """All tables of the recovery benchmark.

    Args:
        is_short: only what the README shows.
    """
    rows = counting(results)
    figures = {
        "t_resume_s": "Seconds from the fault to the survivors' next new commit",
        "t_full_s": "Seconds from the fault to full size again",
    }
    if not is_short:
        figures |= {
            "t_detect_s": "Seconds from the fault to the first attempt without the victims",
            "longest_gap_s": "Longest gap between two commits, seconds",
            "steps_lost": "Steps done again",
            "attempts_lost": "Attempts that nobody committed",
            "goodput": "Time of the steps that stand, of the whole run's from its first step on",
            "step_efficiency": "Steps that stand, of all attempts",
        }
    found: list[Table | None] = []
    for settings in settings_of(rows):
        found += [matrix(rows, name, f"{title} ({settings})", settings) for name, title in figures.items()]
        if is_short:
            title = f"Longest pause after the loss of those who coordinate, seconds ({settings})"
            found.append(matrix(rows, "longest_gap_s", title, settings, NOBODY_HIT))
        found += [losses(rows, settings), storms(rows, settings)]
        found += [] if is_short else [phases(rows, settings), storm_times(rows, settings)]
        found.append(clean(rows, settings))
    found += [] if is_short else [alarms(rows)]
    tables = [table for table in found if table is not None]
    if tables:
        last = tables[-1]
        notes = (*last.notes, *reasons(results))
        tables[-1] = Table(title=last.title, columns=last.columns, rows=last.rows, notes=notes)
    return tables


def recovery_samples(results: Sequence[Result], figure: str, settings: str) -> list[Sample]:
    """What a plot of a figure shows: one mark for each scenario and system that has it."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in counting(results):
        is_here = row.get("settings", "default") == settings and row["scenario"] not in (
            *FAULT_FREE,
            STORM,
            *NOBODY_HIT,
        )
        if is_here and row.get(figure) is not None:
            groups.setdefault((row["scenario"], row["system"]), []).append(row[figure])
    return [Sample(group=group, name=name, values=tuple(values)) for (group, name), values in groups.items()]
