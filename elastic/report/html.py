"""Effect. A report as one HTML page: self-contained in a file, or live from a server."""

import html
import json
from dataclasses import asdict, fields
from functools import cache
from importlib import resources
from string import Template
from typing import Any

from elastic import __version__
from elastic.control.plain import finite
from elastic.report.content.model import Report


def as_json(report: Report) -> str:
    """The report as a program reads it; what is no finite number becomes null."""
    compact: dict[str, Any] = {"separators": (",", ":"), "allow_nan": False}
    try:
        return json.dumps(report, default=_fields, **compact)  # ten times as fast as copying it first
    except ValueError:
        return json.dumps(finite(asdict(report)), **compact)


def page(report: Report) -> str:
    """A page that needs nothing else, the library of its charts included."""
    return _page(_in_script(as_json(report)), f"<script>{charts()}</script>", report.headline.run, is_live=False)


def live_page(run: str) -> str:
    """A page that asks the server it came from for `charts.js`, and again and again for `report.json`."""
    return _page("null", '<script src="charts.js"></script>', run, is_live=True)


@cache
def charts() -> str:
    """The library that draws the charts (Plotly, MIT license), as one script; empty where it is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return ""

    # A closing tag inside of the script would end it.
    return str(get_plotlyjs()).replace("</script", "<\\/script")


def _page(report: str, script: str, run: str, is_live: bool) -> str:
    return Template(_asset("page.html")).substitute(
        title=html.escape(run or "elastic"),
        style=_asset("page.css"),
        report=report,
        charts=script,
        program=_asset("drawing.js") + _asset("page.js"),
        version=__version__,
        live=' data-live="yes"' if is_live else "",
    )


def _in_script(text: str) -> str:
    """JSON that cannot end the element it stands in."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _asset(name: str) -> str:
    return resources.files("elastic.report").joinpath("assets", name).read_text()


def _fields(value: Any) -> dict[str, Any]:
    return {one.name: getattr(value, one.name) for one in fields(value)}
