"""Draws what `benchmarks.tables` has in numbers: PNG and SVG, for light and dark pages.

Systems are told apart by colour, by the shape of their mark, and by their place in the group; the colours are Okabe's
and Ito's, as on the report's page, so that colour-blind readers and grey prints do not lose anything. Equal results
give equal files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import recovery_tables, tables
from benchmarks.tables import Sample

HELP = "plots need matplotlib: pip install 'ray-elastic[bench]', or --plots '' for tables alone"
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
HUES = ("blue", "orange", "green", "pink", "red", "sky", "grey", "ink")
WIDTH_IN, ROW_IN, GROUP_IN, HEAD_IN = 8.6, 0.2, 0.14, 1.15
DPI = 160
WIDE = 200.0  # an axis with more between its ends has ticks at powers of ten alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours of a page, as in `elastic/report/assets/page.css`."""

    name: str
    colours: Mapping[str, str]


LIGHT = Theme(
    name="light",
    colours={
        **{"paper": "#ffffff", "panel": "#f5f6f8", "ink": "#16181d", "faint": "#5a6270", "grid": "#d5d9e0"},
        **{"blue": "#0072b2", "orange": "#d98a00", "green": "#00825d", "red": "#c44e00", "pink": "#b35a8c"},
        **{"sky": "#3a9bd1", "grey": "#6f7885"},
    },
)
DARK = Theme(
    name="dark",
    colours={
        **{"paper": "#101317", "panel": "#191d23", "ink": "#e8eaee", "faint": "#a2abb8", "grid": "#343b45"},
        **{"blue": "#4da3dd", "orange": "#f0ae2e", "green": "#35c196", "red": "#f07a3c", "pink": "#dd92ba"},
        **{"sky": "#8fd0f5", "grey": "#8a93a0"},
    },
)


def draw(found: Any, names: Sequence[str], folder: Path) -> list[Path]:
    """Writes each plot four times, and returns the paths.

    Raises:
        SystemExit: matplotlib is missing.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit(f"error: {HELP}") from error
    matplotlib.use("agg")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in names:
        for theme in (LIGHT, DARK):
            with matplotlib.rc_context(_style(theme)):
                figure = _figure(name, found, theme)
                for suffix, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
                    path = folder / f"{name}-{theme.name}.{suffix}"
                    figure.savefig(path, metadata=metadata)
                    written.append(path)
    return written


def _style(theme: Theme) -> dict[str, Any]:
    of = theme.colours
    return {
        "figure.facecolor": of["paper"],
        "savefig.facecolor": of["paper"],
        "savefig.dpi": DPI,
        "axes.facecolor": of["paper"],
        "axes.edgecolor": of["grid"],
        "axes.labelcolor": of["faint"],
        "axes.titlecolor": of["ink"],
        "text.color": of["ink"],
        "xtick.color": of["faint"],
        "ytick.color": of["ink"],
        "grid.color": of["grid"],
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "svg.hashsalt": "elastic",  # else ids differ from time to time
        "svg.fonttype": "path",
    }


def _figure(name: str, found: Any, theme: Theme) -> Any:
    if name == "goodput":
        (result,) = found["simulator"]
        return _goodput(result, theme)
    if name == "checkpoint":
        (result,) = found["checkpoint_systems"]
        return _lines(tables.checkpoint_samples(result), theme)
    settings, results = name.removeprefix("recovery-"), recovery_tables.shown(found["recovery"])
    figures = {"t_resume_s": "the survivors' next new commit", "t_full_s": "full size again"}
    panels = {
        f"From the fault to {title} ({settings})": recovery_tables.recovery_samples(results, figure, settings)
        for figure, title in figures.items()
    }
    return _marks({title: s for title, s in panels.items() if s}, theme)


def _marks(panels: Mapping[str, Sequence[Sample]], theme: Theme) -> Any:
    """Panels side by side, with a legend for all: few names in many groups."""
    from matplotlib.figure import Figure

    everything = [sample for samples in panels.values() for sample in samples]
    groups = list(dict.fromkeys(sample.group for sample in everything))
    names = list(dict.fromkeys(sample.name for sample in everything))
    looks = {name: (MARKS[at % len(MARKS)], theme.colours[HUES[at % len(HUES)]]) for at, name in enumerate(names)}
    places, edges, height = _places(everything, groups, names, head=0.0)
    legend_rows = -(-len(names) // 4)
    tall_in = HEAD_IN + 0.22 * legend_rows + ROW_IN * height
    figure = Figure(figsize=(WIDTH_IN, tall_in), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - 0.24 * (legend_rows + 0.4) / tall_in))
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, samples) in zip(all_axes, panels.items(), strict=True):
        for sample in samples:
            at, (mark, colour) = places[sample.group, sample.name], looks[sample.name]
            _one(axes, sample.values, at, mark, colour)
        axes.set_title(title, loc="left", fontsize=9.5)
        _ground(axes, edges, height, theme)
    all_axes[0].set_yticks([(a + b) / 2 for a, b in edges], groups)
    _legend(figure, names, looks)
    return figure


def _lines(samples: Sequence[Sample], theme: Theme) -> Any:
    """One panel whose lines bear their names: many names in few groups. Colour and mark are the family's."""
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys(sample.group for sample in samples))
    groups.sort(key=list(tables.KEPT.values()).index)
    names = list(dict.fromkeys(sample.name for sample in samples))
    families = list(dict.fromkeys(map(_family, names)))
    places, edges, height = _places(samples, groups, names, head=1.1)
    figure = Figure(figsize=(WIDTH_IN, HEAD_IN - 0.5 + ROW_IN * height), layout="constrained")
    axes = figure.subplots()
    for sample in samples:
        at = families.index(_family(sample.name))
        _one(axes, sample.values, places[sample.group, sample.name], MARKS[at], theme.colours[HUES[at]])
    _ground(axes, edges, height, theme)
    axes.set_yticks(list(places.values()), [name for _, name in places], fontsize=8)
    for group, (begin, _) in zip(groups, edges, strict=True):
        place = (0.008, begin + GROUP_IN / ROW_IN + 0.5)
        axes.text(*place, group, transform=axes.get_yaxis_transform(), va="center", fontsize=9, fontweight="bold")
    return figure


def _family(name: str) -> str:
    """Who made it: the first word."""
    return name.replace(".", " ").split()[0].strip(":,")


def _places(
    samples: Sequence[Sample], groups: Sequence[str], names: Sequence[str], head: float
) -> tuple[dict[tuple[str, str], float], list[tuple[float, float]], float]:
    """Where each (group, name) stands, where each group begins and ends, and how many lines there are in all.

    Args:
        head: lines that a group's title takes.
    """
    places, edges, at = {}, [], 0.0
    has = {(sample.group, sample.name) for sample in samples}
    for group in groups:
        begin = at
        at += GROUP_IN / ROW_IN + head
        for name in names:
            if (group, name) in has:
                places[group, name] = at + 0.5
                at += 1.0
        at += GROUP_IN / ROW_IN
        edges.append((begin, at))
    return places, edges, at


def _one(axes: Any, values: Sequence[float], at: float, mark: str, colour: str) -> None:
    middle = median(values)
    axes.plot([min(values), max(values)], [at, at], color=colour, linewidth=1.4, alpha=0.6, solid_capstyle="round")
    axes.plot(values, [at] * len(values), "|", color=colour, markersize=6, markeredgewidth=0.9, alpha=0.75)
    axes.plot([middle], [at], mark, color=colour, markersize=6.5)
    _label(axes, tables.number(middle), (max(values), at), 7.5)


def _label(axes: Any, text: str, place: tuple[float, float], size: float) -> None:
    axes.annotate(text, place, xytext=(7, 0), textcoords="offset points", va="center", fontsize=size)


def _ground(axes: Any, edges: Sequence[tuple[float, float]], height: float, theme: Theme) -> None:
    """Every other group lies on a band."""
    from matplotlib.ticker import LogLocator

    axes.set_xscale("log")
    axes.set_xlabel("seconds, logarithmic; less is better")
    for begin, end in edges[::2]:
        axes.axhspan(begin, end, color=theme.colours["panel"], zorder=0, linewidth=0)
    axes.set_ylim(height, 0)
    axes.grid(axis="x", which="major", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.16)
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < WIDE * low else (1.0,)))
    axes.xaxis.set_major_formatter(_plain)
    axes.xaxis.set_minor_formatter(_nothing)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _plain(value: float, _: int) -> str:
    return f"{value:g}"


def _nothing(value: float, _: int) -> str:
    return ""


def _legend(figure: Any, names: Sequence[str], looks: Mapping[str, tuple[str, str]]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], marker=looks[n][0], color=looks[n][1], linestyle="", markersize=6.5) for n in names]
    figure.legend(
        handles,
        names,
        loc="upper left",
        ncols=min(4, len(names)),
        frameon=False,
        fontsize=8.5,
        handletextpad=0.3,
        columnspacing=1.4,
    )


def _goodput(result: Mapping[str, Any], theme: Theme) -> Any:
    """What became of the time, row by row: the productive part is open, the lost parts are cut at 100 %."""
    from matplotlib.figure import Figure

    rows = result["case_study"]
    figure = Figure(figsize=(WIDTH_IN, 0.9 + 0.34 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for at, row in enumerate(rows):
        colour = theme.colours["blue" if row["name"] == "elastic" else "orange"]
        low, high = (100 * end for end in row["interval"])
        value = 100 * row["goodput"]
        axes.plot([low, high], [at, at], color=colour, linewidth=4, alpha=0.5, solid_capstyle="butt")
        axes.plot([value], [at], "o" if row["name"] == "elastic" else "s", color=colour, markersize=7)
        axes.annotate(
            f"{value:.1f} %", (high, at), xytext=(8, 0), textcoords="offset points", va="center", fontsize=8.5
        )
        published = _published(rows, at)
        if published:
            axes.plot(published, [at + 0.3] * 2, color=theme.colours["faint"], linewidth=1.2, marker="|", markersize=5)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(78, 100)
    axes.set_xticks(range(80, 101, 5))
    axes.set_xlabel(
        "goodput, % of the wall time; the axis begins at 78 %. Grey: gain as published, on top of the row above"
    )
    axes.set_title("1,024 GPUs, 40 h, five interruptions a day, simulated", loc="left", fontsize=9.5)
    axes.grid(axis="x", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return figure


def _published(rows: Sequence[Mapping[str, Any]], at: int) -> list[float]:
    """Where the published gain, on top of the simulated row above, would end."""
    if not rows[at].get("published") or at == 0:
        return []
    return [100 * (rows[at - 1]["goodput"] + gain) for gain in rows[at]["published"]]
