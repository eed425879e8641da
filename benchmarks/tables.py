"""From result files to tables and to what is drawn. No Ray, no torch, no clock, no files.

A cell without a measurement is empty. The best cell of a row is bold, whoever's it is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Result = Mapping[str, Any]

BASELINE = "ddp"
LOG_ROWS = "896-GPU log"  # of the simulator, on a page of their own
FAULT_FREE = ("clean", "busy", "straggler")
STORM = "storm"
TO_GO_ON = ("t_detect_s", "t_resume_s", "t_full_s")
KEPT_ALIVE = "survivors' processes kept"
NOBODY_HIT = ("coordinator", "driver")  # what it costs is a pause that comes late, if there is one
BOUNDS = ("t_detect_s",)  # from above, for some of no use: members may begin an attempt at once, and wait in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What becomes a table of Markdown.

    Attributes:
        rows: as many cells each as there are columns.
        notes: sentences below it.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        lines = [_line(self.columns), "|---" * len(self.columns) + "|", *map(_line, self.rows)]
        told = "".join(f"\n{note}\n" for note in self.notes)
        return f"**{self.title}**\n\n" + "\n".join(lines) + "\n" + told


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All repetitions of one figure of one system: what a plot draws as one mark."""

    group: str
    name: str
    values: tuple[float, ...]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def number(value: float) -> str:
    """Three digits that count: 0.0123, 0.155, 17.5, 122, 2048."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(values: Sequence[float], tried: int) -> str:
    """Median, range where they differ, and how many came to it where not all did.

    Args:
        tried: repetitions, with those that did not come to it.
    """
    if not values:
        return f"none of {tried}" if tried else ""
    text = number(median(values))
    if min(values) < max(values):
        text += f" [{number(min(values))}, {number(max(values))}]"
    return text if len(values) == tried else f"{text}, {len(values)} of {tried}"


def origin(result: Result, wanted: str = "") -> str:
    """One sentence: what was measured, when, on what, how busy that was."""
    of = result["provenance"]
    versions, machine = of["versions"], of["machine"]
    commit = f"commit `{(of['commit'] or 'unknown')[:7]}`" + (" with uncommitted changes" if of["dirty"] else "")
    used = [f"Python {versions['python']}"]
    used += [f"{name} {versions[name]}" for name in ("torch", "ray") if versions[name]]
    used += [f"{name} {version}" for name, version in of.get("peers", {}).items() if version]
    busy = f"load {machine['load_average_1min']:.1f} at the start"
    place = f"{machine['cores']} cores of {machine['processor']}"
    told = f"{of['date'][:10]}, {commit}, {place}, {', '.join(used)}, {busy}."
    return " ".join(filter(None, [wanted, told, f"`{of['command']}`" if of.get("command") else ""]))


# --- recovery ---


def settings_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """default before tuned."""
    return sorted({row.get("settings", "default") for row in rows})


def counting(results: Sequence[Result]) -> list[Mapping[str, Any]]:
    """Rows of all recovery results, less those whose fault did not fire.

    Of two results with the same scenario and settings only the newer one counts: what was not measured in turns is not
    compared.
    """
    owners = _owners(results)
    return [row for at, result in enumerate(results) for row in result["rows"] if _counts(row, at, owners)]


def standing(results: Sequence[Result]) -> list[Result]:
    """Those of which something counts."""
    owners = _owners(results)
    return [result for at, result in enumerate(results) if any(_counts(row, at, owners) for row in result["rows"])]


def _owners(results: Sequence[Result]) -> Mapping[tuple[str, str], int]:
    """Scenario and settings -> place of the newest result that has rows of them."""
    owners: dict[tuple[str, str], int] = {}
    for at in sorted(range(len(results)), key=lambda at: str(results[at]["provenance"]["date"])):
        owners |= {_kind(row): at for row in results[at]["rows"] if not row.get("discarded")}
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
    """Scenario by system: medians of a figure, of which less is better; None where nobody has it.

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
        values = [[row[figure] for row in group if row.get(figure) is not None] for group in groups]
        cells = [spread(found, len(group)) for found, group in zip(values, groups, strict=True)]
        medians = [median(found) if found else None for found in values]
        lines.append((f"`{scenario}`", *(cells if figure in BOUNDS else _best(cells, medians))))
    return Table(title=title, columns=("scenario", *systems), rows=tuple(lines))


def _best(cells: Sequence[str], values: Sequence[float | None], pick: Callable[..., float] = min) -> list[str]:
    """The best cells bold, if there is somebody to be better than, and a difference."""
    known = [value for value in values if value is not None]
    if len({*known}) < 2:
        return list(cells)
    best = pick(known)
    return [f"**{cell}**" if value == best else cell for cell, value in zip(cells, values, strict=True)]


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
        lines.append((system, str(len(runs)), str(ended), *map(str, worst), f"{kept} of {all_of}"))
    if not lines:
        return None
    columns = ("system", "runs", "did not go on", "steps done again", "samples repeated", "samples skipped", KEPT_ALIVE)
    return Table(title=f"What was lost ({settings}; the worst run of each system)", columns=columns, rows=tuple(lines))


def storms(rows: Sequence[Mapping[str, Any]], settings: str) -> Table | None:
    """Steps that were done in a storm all the same, and which part of an undisturbed run's they are."""
    here = [r for r in rows if r["scenario"] == STORM and r.get("settings", "default") == settings and _measured(r)]
    if not here:
        return None
    lines = []
    for system in _ordered(row["system"] for row in here):
        runs = [row for row in here if row["system"] == system]
        lists = {name: [len(row[name]) for row in runs if row.get(name) is not None] for name in _LISTS}
        shown = ("misfires", "steps_in_storm", "share", "steps_lost", "t_resume_s")
        values = [*lists.values(), *([row[name] for row in runs if row.get(name) is not None] for name in shown)]
        cells = [spread(found, len(runs)) for found in values]
        cells[_STEPS_AT] += "".join(map(_cut_short, runs))
        lines.append((system, *cells))
    columns = (
        "system",
        "faults",
        "skipped",
        "not seen",
        "steps in the storm",
        "of an undisturbed run's",
        "steps done again",
        "slowest resumption, s",
    )
    return Table(title=f"A storm of faults ({settings})", columns=columns, rows=tuple(lines))


_LISTS = ("faults", "strikes_skipped")
_STEPS_AT = 3  # among the cells of a storm


def _cut_short(row: Mapping[str, Any]) -> str:
    """What makes a run's steps no match for those of others: it was over before the storm was."""
    length_s, played_s = row.get("storm_length_s"), row.get("storm_seconds_played")
    if length_s is None or played_s is None or played_s > length_s - 1.0:
        return ""
    return f" (over after {played_s:.0f} of {length_s:.0f} s)"


def clean(rows: Sequence[Mapping[str, Any]], settings: str) -> Table | None:
    """Speed without faults against plain DDP's of the same repetition: over all of the time, and in the median step."""
    here = [r for r in rows if r["scenario"] == "clean" and r.get("settings", "default") == settings]
    systems = [name for name in _ordered(row["system"] for row in here) if name != BASELINE]
    ratios = {figure: {name: _against_baseline(here, figure, name) for name in systems} for figure in _PACES}
    systems = [name for name in systems if any(of[name] for of in ratios.values())]
    if not systems:
        return None
    columns = []
    for of in ratios.values():
        cells = [spread(of[name], len(of[name])) for name in systems]
        columns.append(_best(cells, [median(of[name]) if of[name] else None for name in systems], max))
    paces = [[row["mean_step_s"] for row in here if row["system"] == n and row.get("mean_step_s")] for n in systems]
    columns.append([spread(found, len(found)) for found in paces])
    lines = tuple(zip(systems, *columns, strict=True))
    own = [row["mean_step_s"] for row in here if row["system"] == BASELINE and row.get("mean_step_s")]
    notes = (f"A step of plain DDP takes {spread(own, len(own))} s. Nobody keeps checkpoints here.",) if own else ()
    title = f"Steps per second without faults, against plain DDP in the same repetition ({settings})"
    return Table(title=title, columns=("system", *_PACES.values(), "seconds a step"), rows=lines, notes=notes)


_PACES = {"mean_step_s": "over all of the time", "step_s": "in the median step"}


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
    told = [f"Empty: {system}, {', '.join(_ordered(names))}: {reason}." for (system, reason), names in cells.items()]
    tried = [row for result in standing(results) for row in [*result["rows"], *_discarded(result)]]
    count = sum(bool(row.get("discarded")) for row in tried)
    return (*told, f"{count} runs were discarded, since their fault did not fire.") if count else tuple(told)


def _discarded(result: Result) -> Sequence[Mapping[str, Any]]:
    listed = result.get("discarded", ())
    return listed if isinstance(listed, Sequence) else ()


def recovery(results: Sequence[Result], is_short: bool = False) -> list[Table]:
    """All tables of the recovery benchmark.

    Args:
        is_short: only what the README shows, without the reasons.
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
        }
    found: list[Table | None] = []
    for settings in settings_of(rows):
        found += [matrix(rows, name, f"{title} ({settings})", settings) for name, title in figures.items()]
        if is_short:
            title = f"Longest pause after the loss of those who coordinate, seconds ({settings})"
            found.append(matrix(rows, "longest_gap_s", title, settings, NOBODY_HIT))
        found += [losses(rows, settings), storms(rows, settings), clean(rows, settings)]
    tables = [table for table in found if table is not None]
    if tables and not is_short:
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


# --- checkpoints ---

KEPT = {
    "stall_s": "stall of the training",
    "process_s": "until it survives the process",
    "node_s": "until another node holds it",
    "durable_s": "until its files are synced",
    "restore_s": "restore",
}


def checkpoint_systems(result: Result) -> Table:
    """Way of keeping by what it takes, in seconds."""
    rows, titles = result["rows"], result["titles"]
    systems = [name for name in titles if any(row["system"] == name for row in rows)]
    columns: list[list[str]] = []
    for figure in KEPT:
        groups = [[row for row in rows if row["system"] == system] for system in systems]
        values = [[row[figure] for row in group if row.get(figure) is not None] for group in groups]
        cells = [spread(found, len(found)) for found in values]
        columns.append(_best(cells, [median(found) if found else None for found in values]))
    lines = tuple((titles[name], *(column[at] for column in columns)) for at, name in enumerate(systems))
    notes = tuple(_failures(titles[name], [row for row in rows if row["system"] == name]) for name in systems)
    size = f"{result['settings']['nbytes'] / 2**20:.0f} MiB"
    return Table(
        title=f"A checkpoint of {size}, in seconds",
        columns=("", *KEPT.values()),
        rows=lines,
        notes=tuple(filter(None, notes)),
    )


def _failures(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Why a way has no figures, or how often it had none; empty if it always had."""
    told = [row["note"] for row in rows if row.get("note")]
    if not told:
        return ""
    often = "Not measured" if len(told) == len(rows) else f"Failed in {len(told)} of {len(rows)} repetitions"
    return f"{often}: {title}: {told[0]}."


def checkpoint_samples(result: Result) -> list[Sample]:
    """One mark for each way and each figure that it has."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in sorted(result["rows"], key=lambda row: list(result["titles"]).index(row["system"])):
        for figure, title in KEPT.items():
            if row.get(figure) is not None:
                groups.setdefault((title, row["system"]), []).append(row[figure])
    titles = result["titles"]
    return [
        Sample(group=group, name=titles[name].replace("`", ""), values=tuple(v)) for (group, name), v in groups.items()
    ]


def corruption(counts: Mapping[str, Mapping[str, int]]) -> Table:
    """Who took wrong bytes for right."""
    kinds = ("tried", "silent", "refused", "healed", "harmless")
    lines = [(name, *(str(count[kind]) if kind in count else "" for kind in kinds)) for name, count in counts.items()]
    columns = ("", "damaged", "wrong values loaded in silence", "refused", "healed", "harmless")
    return Table(title="Damaged checkpoints", columns=columns, rows=tuple(lines))


def snapshots(result: Result) -> Table:
    """The ratios of benchmarks.checkpoint, with their goals."""
    goals = result.get("goals", {})
    lines = []
    for name, quartiles in result["quartiles"].items():
        low, _, high = quartiles
        goal = " ".join(map(str, goals[name])) if name in goals else ""
        lines.append((f"`{name}`", number(result[name]), f"{number(low)} to {number(high)}", goal))
    return Table(title="What a snapshot costs", columns=("", "median", "quartiles", "goal"), rows=tuple(lines))


# --- the rest ---


def case_study(result: Result) -> Table:
    """Goodput of the simulated rows."""
    lines = []
    for row in result["case_study"]:
        if row["name"].startswith(LOG_ROWS):
            continue
        low, high = row["interval"]
        gain = f"{100 * row['gain']:+.2f}" if row["gain"] is not None else ""
        published = "{:.0f} to {:.0f}".format(*(100 * end for end in row["published"])) if row["published"] else ""
        goodput, interval = f"{100 * row['goodput']:.2f} %", f"{100 * low:.2f} to {100 * high:.2f}"
        incidents = f"{row['incidents']:.1f} of {number(row['lost_s'])} s"
        numbers = (goodput, interval, gain, published, incidents, str(row["seeds"]))
        lines.append((row["name"], *numbers, row["assumptions"]))
    columns = ("row", "goodput", "95 % of the mean", "gain", "published", "incidents, median", "runs", "assumptions")
    return Table(title="1,024 GPUs for 40 h, simulated", columns=columns, rows=tuple(lines))


def overhead(result: Result) -> Table:
    """Speed against plain DDP, pairs in turns."""
    low, high = result["ratio_ci95"]
    row = (f"{result['ratio']:.3f}", f"{low:.3f} to {high:.3f}", str(len(result["blocks"])))
    return Table(
        title="Steps per second against plain DDP",
        columns=("ratio", "95 % of resampled medians", "pairs of blocks"),
        rows=(row,),
    )


def control_plane(result: Result) -> Table:
    """The supervisor at some sizes."""
    names = {
        "hosts": "hosts",
        "workers": "workers",
        "core_share": "share of a core",
        "p99_decision_ms": "decision, 99th percentile, ms",
        "failure_decided_ms": "1 % of the hosts lost: decided after, ms",
        "rss_mib": "memory, MiB",
    }
    lines = tuple(tuple(number(size[name]) for name in names) for size in result["sizes"])
    return Table(title="What the supervisor costs", columns=tuple(names.values()), rows=lines)


def gpu(result: Result) -> Table:
    """What was measured on a GPU; what was not stays empty."""
    lines = tuple(
        (row["what"], number(row["value"]) if row["value"] is not None else "", row["unit"], row["note"])
        for row in result["rows"]
    )
    return Table(title="On a GPU", columns=("", "measured", "unit", ""), rows=lines)
