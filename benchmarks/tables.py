"""From result files to tables and to what is drawn. No Ray, no torch, no clock, no files.

A cell without a measurement is empty. The best cell of a row is bold, whoever's it is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Result = Mapping[str, Any]
LOG_PUBLISHED = "43.4 %"  # AI-Hypercomputer/resiliency, event_log.log by their calculator; scenarios/log_896.yaml


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


def origins(results: Iterable[Result]) -> list[str]:
    """What was measured, when, on what, how busy that was: a sentence for all parts of one run of a command."""
    loads: dict[tuple[str, str], list[float]] = {}
    for result in results:
        loads.setdefault(_origin(result), []).append(result["provenance"]["machine"]["load_average_1min"])
    told = []
    for (origin, command), of in loads.items():
        busy = " to ".join(dict.fromkeys(f"{load:.1f}" for load in (min(of), max(of))))
        told.append(f"Measured {origin}, load {busy} at the start." + (f" `{command}`" if command else ""))
    return told


def _origin(result: Result) -> tuple[str, str]:
    of = result["provenance"]
    versions, machine = of["versions"], of["machine"]
    commit = f"commit `{(of['commit'] or 'unknown')[:7]}`" + (" with uncommitted changes" if of["dirty"] else "")
    used = [f"Python {versions['python']}"]
    used += [f"{name} {versions[name]}" for name in ("torch", "ray") if versions[name]]
    used += [f"{name} {version}" for name, version in of.get("peers", {}).items() if version]
    place = f"{machine['cores']} cores of {machine['processor']}"
    return f"{of['date'][:10]}, {commit}, {place}, {', '.join(used)}", of.get("command", "")


def best(cells: Sequence[str], values: Sequence[float | None], pick: Callable[..., float] = min) -> list[str]:
    """The best cells bold, if there is somebody to be better than, and a difference."""
    known = [value for value in values if value is not None]
    if len({*known}) < 2:
        return list(cells)
    best = pick(known)
    return [f"**{cell}**" if value == best else cell for cell, value in zip(cells, values, strict=True)]


# --- checkpoints ---

OUTAGE = "outage_s"
KEPT = {
    "stall_s": "stall of the training",
    "process_s": "until it survives the process",
    OUTAGE: "the same, while its storage is away",
    "node_s": "until another node holds it",
    "durable_s": "until its files are synced",
    "restore_s": "restore",
}


def checkpoint_systems(result: Result) -> Table:
    """Way of keeping by what it takes, in seconds."""
    rows, titles = result["rows"], result["titles"]
    systems = [name for name in titles if any(row["system"] == name for row in rows)]
    columns: list[list[str]] = []
    groups = [[row for row in rows if row["system"] == system] for system in systems]
    has_outages = any(_is_outage(row) for row in rows)  # older results have none
    figures = [figure for figure in KEPT if figure != OUTAGE or has_outages]
    for figure in figures:
        values = [[row[figure] for row in group if row.get(figure) is not None] for group in groups]
        cells = [spread(found, len(found)) for found in values]
        if figure == OUTAGE:
            lost = [_lost(group) for group in groups]
            cells = [", ".join(filter(None, both)) for both in zip(cells, lost, strict=True)]
            values = [[] if one else found for found, one in zip(values, lost, strict=True)]
        columns.append(best(cells, [median(found) if found else None for found in values]))
    lines = tuple((titles[name], *(column[at] for column in columns)) for at, name in enumerate(systems))
    turns = [row for row in rows if not _is_outage(row)]
    notes = tuple(_failures(titles[name], [row for row in turns if row["system"] == name]) for name in systems)
    size = f"{result['settings']['nbytes'] / 2**20:.0f} MiB"
    return Table(
        title=f"A checkpoint of {size}, in seconds",
        columns=("", *(KEPT[figure] for figure in figures)),
        rows=lines,
        notes=tuple(filter(None, notes)),
    )


def _is_outage(row: Mapping[str, Any]) -> bool:
    return row.get(OUTAGE) is not None or bool(row.get("lost"))


def _lost(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the training function was told instead, the first time; empty where nothing was lost."""
    told = next((row["lost"] for row in rows if row.get("lost")), "")
    return f"lost: `{told.partition(':')[0]}`" if told else ""


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
    """The ratios of benchmarks.checkpoint, with their goals; nothing between where all rounds gave one figure."""
    goals, quartiles = result.get("goals", {}), result["quartiles"]
    lines = []
    for name in dict.fromkeys((*quartiles, *goals)):
        low, _, high = quartiles.get(name, (None, None, None))
        between = f"{number(low)} to {number(high)}" if low is not None else ""
        goal = " ".join(map(str, goals[name])) if name in goals else ""
        lines.append((f"`{name}`", number(result[name]), between, goal))
    return Table(title="What a snapshot costs", columns=("", "median", "quartiles", "goal"), rows=tuple(lines))


# --- the rest ---


def case_study(result: Result) -> Table:
    """Goodput of the simulated rows."""
    lines = []
    for row in result["case_study"]:
        low, high = row["interval"]
        gain = f"{100 * row['gain']:+.2f}" if row["gain"] is not None else ""
        published = "{:.0f} to {:.0f}".format(*(100 * end for end in row["published"])) if row["published"] else ""
        goodput, interval = f"{100 * row['goodput']:.2f} %", f"{100 * low:.2f} to {100 * high:.2f}"
        incidents = f"{row['incidents']:.1f} of {number(row['lost_s'])} s"
        numbers = (goodput, interval, gain, published, incidents, str(row["seeds"]))
        lines.append((row["name"], *numbers, row["assumptions"]))
    columns = ("row", "goodput", "95 % of the mean", "gain", "published", "incidents, median", "runs", "assumptions")
    return Table(title="1,024 GPUs for 40 h, simulated", columns=columns, rows=tuple(lines))


def log_replayed(result: Result) -> Table:
    """Goodput of a published log, with the recovery that it shows and with this library's."""
    lines = []
    for row in result["log_896"]:
        goodput, steps = f"{100 * row['goodput']:.2f} %", f"{100 * _of_steps(row):.1f} %"
        incidents = f"{row['incidents']:.1f} of {number(row['lost_s'])} s"
        lines.append((row["name"].removeprefix("896-GPU log: "), goodput, steps, incidents, row["assumptions"]))
    replayed = f"{100 * _of_steps(result['log_896'][0]):.1f} %"
    note = (
        f"Published is {LOG_PUBLISHED}, by a calculator that counts steps whatever the number of machines; counted so, "
        f"the replay of the recipe's recovery comes to {replayed}, mostly since what of the log is neither steps, nor "
        "the start, nor incidents is not replayed."
    )
    columns = ("row", "goodput", "steps, whatever the number of machines", "incidents, median", "assumptions")
    return Table(title="A log of 896 GPUs, 9.82 h, replayed", columns=columns, rows=tuple(lines), notes=(note,))


def _of_steps(row: Mapping[str, Any]) -> float:
    """Share of the wall time, as who counts steps sees it."""
    shares = row["shares"]
    return float(shares["productive"] + shares.get("reduced_capacity", 0.0))


def overhead(result: Result) -> Table:
    """Speed against plain DDP, pairs in turns."""
    low, high = result["ratio_ci95"]
    row = (f"{result['ratio']:.3f}", f"{low:.3f} to {high:.3f}", str(len(result["blocks"])))
    return Table(
        title="Steps per second against plain DDP",
        columns=("ratio", "95 % of resampled medians", "pairs of blocks"),
        rows=(row,),
    )


def observability(result: Result) -> Table:
    """What ledger, journal, metrics and live page cost together, beside two controls."""
    settings, lines = result["settings"], []
    known = settings["spin_s"] / settings["step_s"]
    judged = (
        ("time of a step", "costs", "verdict", known),
        ("processor time of the workers", "processor_costs", "processor_verdict", known / settings["workers"]),
    )
    for what, costs, verdict, cost in judged:
        shown = [_share(result[costs][one]) for one in ("observability", "null", "positive")]
        lines.append((what, *shown, f"{100 * cost:.3f} %", result[verdict]))
    roles = ", ".join(
        f"{role} {1e3 * of['seen']:.2f} ({1e3 * of['bare']:.2f})" for role, of in result["cpu_s_per_step"].items()
    )
    goal = f"below {100 * settings['limit']:g} %"
    columns = ("share of the", "telling of the run", "control: nothing", "control: a known cost", "which is", goal)
    note = f"Processor time of a step, ms, and without what tells of the run: {roles}."
    title = "What telling of a run costs, and 95 % of its mean"
    return Table(title=title, columns=columns, rows=tuple(lines), notes=(note,))


def _share(cost: Mapping[str, float] | None) -> str:
    if cost is None:
        return ""
    return f"{100 * cost['mean']:+.3f} % [{100 * cost['low']:+.3f}, {100 * cost['high']:+.3f}]"


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
    machine = result.get("gpu")
    notes = (f"{machine['gpus']} x {machine['name']}, CUDA {machine['cuda']}.",) if machine else ()
    return Table(title="On a GPU", columns=("", "measured", "unit", ""), rows=lines, notes=notes)
