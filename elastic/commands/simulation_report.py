"""Effect. The page of `elastic simulate --report`: one file, no scripts, plots as drawings in it."""

from collections.abc import Sequence
from html import escape
from typing import Any

from elastic.commands.style import apart

_COLOURS = (
    "#2e7d32", "#c62828", "#ef6c00", "#6a1b9a", "#00838f", "#4e342e", "#546e7a", "#f9a825", "#ad1457", "#283593",
    "#9e9d24", "#37474f",
)  # fmt: skip
_BAR, _GAP, _WIDE, _LABEL = 22, 10, 620, 300
_SHOWN = 44  # characters of a name beside its bar
_STYLE = (
    "body{font:15px sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}"
    "td,th{padding:.3em .7em;border-bottom:1px solid #ccc;text-align:right}"
    "td:first-child,th:first-child{text-align:left}"
    "dt{font-weight:bold;margin-top:1em}"
)


def page(title: str, rows: Sequence[dict[str, Any]]) -> str:
    """The page, of rows as `--json` prints them."""
    name = escape(title)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title><style>{_STYLE}</style>'
        f"<h1>{name}</h1>{_plot(rows)}{_table(rows)}{_sources(rows)}</html>\n"
    )


def _plot(rows: Sequence[dict[str, Any]]) -> str:
    """A bar for each row, cut by where the time went; a mark for the interval of the goodput."""
    causes = list(dict.fromkeys(cause for row in rows for cause in row["shares"]))
    colours = {cause: _COLOURS[place % len(_COLOURS)] for place, cause in enumerate(causes)}
    parts = []
    for place, row in enumerate(rows):
        top, left = place * (_BAR + _GAP), float(_LABEL)
        parts.append(f'<text x="0" y="{top + 16}" font-size="13">{escape(row["name"][:_SHOWN])}</text>')
        for cause, share in row["shares"].items():
            said = f"{escape(cause)} {100 * share:.2f} %"
            at = f'x="{left:.1f}" y="{top}" width="{max(0.0, share) * _WIDE:.1f}" height="{_BAR}"'
            parts.append(f'<rect {at} fill="{colours[cause]}"><title>{said}</title></rect>')
            left += max(0.0, share) * _WIDE
        middle = top + _BAR / 2
        for low, high in [row["interval"]] if row["interval"] else []:
            at = f'x1="{_LABEL + _WIDE * low:.1f}" x2="{_LABEL + _WIDE * high:.1f}" y1="{middle}" y2="{middle}"'
            parts.append(f'<line {at} stroke="#000" stroke-width="3"/>')
        parts.append(
            f'<text x="{_LABEL + _WIDE + 8}" y="{top + 16}" font-size="13">{100 * row["goodput"]:.2f} %</text>'
        )
    height = len(rows) * (_BAR + _GAP)
    legend = " ".join(f'<span style="color:{colours[cause]}">&#9632;</span> {escape(cause)}' for cause in causes)
    return f'<svg width="{_LABEL + _WIDE + 90}" height="{height}">{"".join(parts)}</svg><p>{legend}</p>'


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """What rows with other policies differ by stands in a column of its own, where there are any."""
    has_others = any(row["against"] is not None for row in rows)
    names = ["row", "goodput", "95 %", "gain", *["against"] * has_others, "incidents", "each", "cost"]
    head = "<tr>" + "".join(f"<th>{name}</th>" for name in names) + "</tr>"
    lines = []
    for row in rows:
        between = " to ".join(f"{100 * end:.2f}" for end in row["interval"] or ())
        gain = f"{100 * row['gain']:+.2f}" if row["gain"] is not None else ""
        cells = [
            escape(row["name"]), f"{100 * row['goodput']:.2f} %", between, gain,
            *[_against(row["against"])] * has_others,
            f"{row['incidents']:.1f}", f"{row['lost_s']:.0f} s", f"{row['cost']:.0f}",
        ]  # fmt: skip
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<table>{head}{''.join(lines)}</table>"


def _against(other: dict[str, Any] | None) -> str:
    if other is None:
        return ""
    return f"{escape(other['row'])}: {apart(other['difference'], other['interval'])}"


def _sources(rows: Sequence[dict[str, Any]]) -> str:
    """Each row's assumptions, and the sources that the row before did not have."""
    before: dict[str, str] = {}
    parts = []
    for row in rows:
        new = {where: said for where, said in row["sources"].items() if before.get(where) != said}
        before = {**before, **row["sources"]}
        items = "".join(f"<li>{escape(where)}: {escape(said)}</li>" for where, said in new.items())
        parts.append(f"<dt>{escape(row['name'])}</dt><dd>{escape(row['assumptions'])}<ul>{items}</ul></dd>")
    return f"<h2>Assumptions and sources</h2><dl>{''.join(parts)}</dl>"
