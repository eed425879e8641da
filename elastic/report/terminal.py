"""Effect. A report on a terminal: the same parts as on the page, as far as they fit."""

import re

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from elastic.control.metrics import SLOW
from elastic.report.content.model import Headline, Lane, Report, Slowness
from elastic.report.content.words import duration, numbered

_BAR = 28
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and ends of lines
_SILENT_S = 5.0  # as on the page; a run that goes on says something each few seconds
_MOST_SPENT = 9
_MOST_INCIDENTS = 6
_MOST_TOLD = 8
_MOST_WORKERS = 12
_MOST_SLOW = 5
# What needs a chart, or a page.
_SENTENCES = {"sizes": "world size", "throughput": "throughput", "losses": "loss", "settings": "settings"}
_LOOKS = {"training": "blue", "ready": "cyan", "starting": "yellow", "gone": "dim"}


def screen(report: Report, silent_s: float | None = None) -> RenderableType:
    """All of it, for a terminal of any width. silent_s: since the last word of a run that goes on."""
    return Group(
        Panel(_head(report.headline, report.metric), title=_plain(report.headline.run or "a run"), title_align="left"),
        *_silence(silent_s),
        _spent(report),
        _incidents(report),
        _story(report),
        _workers(report),
        _stragglers(report),
        _safety(report),
        *(_plain(f"{name}: {report.summaries[part]}", style="dim") for part, name in _SENTENCES.items()),
    )


def _silence(silent_s: float | None) -> tuple[Text, ...]:
    if silent_s is None or silent_s <= _SILENT_S:
        return ()
    return (Text(f"the run has said nothing for {duration(silent_s)}", style="bold red"),)


def _head(now: Headline, metric: str) -> Table:
    grid = Table.grid(padding=(0, 3))
    is_bad = bool(now.open_incidents) and not now.ending
    loss = "–" if now.loss is None else f"{now.loss:.4g}"
    resumed = "–" if now.typical_resume_s is None else duration(now.typical_resume_s)
    grid.add_row(
        _plain(now.ending or now.phase, style="bold red" if is_bad else "bold green"),
        f"step {now.step}" if now.step >= 0 else "no step yet",
        f"goodput {now.goodput:.1%}",
        _plain(f"{metric or 'loss'} {loss}"),
    )
    grid.add_row(
        f"for {duration(now.wall_s)}",
        f"replicas {now.replicas} of {now.most_replicas} (+{now.spares} spare)",
        f"{now.samples_per_s:.4g} samples/s",
        f"{now.steps_per_s:.4g} steps/s",
    )
    grid.add_row(
        f"generation {now.generation}, life {now.incarnation}",
        f"failures {now.incidents}, {now.open_incidents} open",
        f"resumed after {resumed}",
        "",
    )
    return grid


def _spent(report: Report) -> Table:
    table = _table("where the time went", "category", "wall time", "share", "")
    whole_s = report.waterfall.wall_s
    dearest = sorted(report.waterfall.spent, key=lambda one: (one.category != "productive", -one.wall_s))
    for one in dearest[:_MOST_SPENT]:
        share = one.wall_s / whole_s if whole_s > 0 else 0.0
        look = "blue" if one.category == "productive" else "yellow"
        bar = Text("█" * round(share * _BAR) or ("▏" if share > 0 else ""), style=look)
        table.add_row(one.category, duration(one.wall_s), f"{share:.1%}", bar)
    if rest := [one for one in dearest[_MOST_SPENT:] if one.wall_s > 0]:
        rest_s = sum(one.wall_s for one in rest)
        table.add_row(f"{len(rest)} more", duration(rest_s), f"{rest_s / whole_s:.1%}", "")
    return table


def _incidents(report: Report) -> RenderableType:
    failures = [one for one in report.incidents if one.is_failure]
    if not failures:
        return Text("no failure so far", style="dim")
    table = _table("last failures", "", "what", "who", "cost", "decision")
    for one in failures[-_MOST_INCIDENTS:]:
        state = duration(one.cost_s) if one.resumed_s is not None else "open"
        who = ", ".join(one.culprits[:3])
        table.add_row(one.label, one.kind, _plain(who), state, _plain(one.decision))
    return table


def _story(report: Report) -> RenderableType:
    """What the journal has of the last failure; the page has all."""
    failures = [one for one in report.incidents if one.is_failure]
    if not failures:
        return Text("")
    last = failures[-1]
    title = f"failure {last.label}: {last.kind}" + (f", on purpose: {last.injected}" if last.injected else "")
    table = _table(_plain(title), "after", "what")
    for told in last.told[:_MOST_TOLD]:
        table.add_row(duration(told.at_s), _plain(told.text))
    if (more := len(last.told) - _MOST_TOLD) > 0:
        table.add_row("", f"and {more} more lines: `elastic report` has them", style="dim")
    return table


def _workers(report: Report) -> RenderableType:
    lanes, slow = report.timeline.lanes, {one.worker: one for one in report.stragglers}
    if report.timeline.is_by_node:
        table = _table("nodes", "node", "trains")
        for lane in lanes[:_MOST_WORKERS]:
            table.add_row(_plain(lane.name), f"{lane.shares[-1]:.0%}" if lane.shares else "–")
    else:
        table = _table("workers", "worker", "node", "state", "pace")
        there = [lane for lane in lanes if not lane.end] or list(lanes)
        for lane in there[:_MOST_WORKERS]:
            table.add_row(_plain(lane.name), _plain(lane.node), _state(lane), _pace(slow.get(lane.name)))
        lanes = tuple(there)
    if len(lanes) > _MOST_WORKERS:
        return Group(table, Text(f"and {len(lanes) - _MOST_WORKERS} more", style="dim"))
    return table


def _stragglers(report: Report) -> RenderableType:
    slow = [one for one in report.stragglers if (one.latest or one.mean) >= SLOW]
    if not slow:
        return _plain(report.summaries["stragglers"], style="dim")
    table = _table("stragglers", "worker", "node", "pace", "worst")
    for one in slow[:_MOST_SLOW]:
        table.add_row(_plain(one.worker), _plain(one.node), _pace(one), f"{one.worst:.2f}")
    if (more := len(slow) - _MOST_SLOW) > 0:
        table.add_row(f"and {more} more", style="dim")
    return table


def _safety(report: Report) -> RenderableType:
    """The ladder, from the least safe rung to the safest, and why tiers are written as often as they are."""
    newest = [(one.name, one.values[-1]) for one in report.rungs if one.values]
    sentence = _plain(report.summaries["checkpoints"], style="dim")
    if len(newest) < 2:
        return sentence
    table = _table("how safe each step is", "rung", "newest step", "behind")
    for name, step in newest:
        table.add_row(name, numbered(step), f"{max(0.0, report.headline.step - step):.0f}")
    return Group(table, sentence)


def _state(lane: Lane) -> Text:
    state = lane.end or (lane.segments[-1].state if lane.segments else "starting")
    return _plain(state, style=_LOOKS.get(state, "red" if lane.end.startswith(("dead", "lost")) else "dim"))


def _pace(slowness: Slowness | None) -> str:
    return "–" if slowness is None else f"{slowness.latest or slowness.mean:.2f} × median"


def _plain(text: str, style: str = "") -> Text:
    """What a run has named, or said: no markup, no emoji, and nothing that a terminal would obey."""
    return Text(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text), style=style)


def _table(title: str | Text, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        is_number = name in ("wall time", "share", "cost", "pace", "worst", "trains", "after", "newest step", "behind")
        table.add_column(name, justify="right" if is_number else "left", style=None, header_style="dim")
    return table
