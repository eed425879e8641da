"""Effect. `elastic report`, `top` and `status`: what a run does and did, as a page, on the terminal, for a program."""

import contextlib
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from elastic.commands.journals import journal_file
from elastic.commands.style import Finite, json_option, tell_alone, tell_json
from elastic.errors import RefusedError
from elastic.report.content.model import Report
from elastic.report.follower import Follower

_RUN_HELP = "RUN is a run directory, URL/NAME in a persistent tier (gs://bucket/runs/night), or the name of a run."
_address = click.option("--address", default=None, help="Of the cluster; default: RAY_ADDRESS, or the one here.")


@click.command(epilog=_RUN_HELP)
@click.argument("run")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Where the page is written (default: report.html), or with --json the object (default: stdout); -: stdout.",
)
@json_option
@_address
def report(run: str, output: Path | None, as_json: bool, address: str | None) -> None:
    """Write one page about RUN that works offline."""
    from elastic.report.html import as_json as told
    from elastic.report.html import page

    with journal_file(run, address) as journal:
        made = _followed(run, journal).report()
    output = output or Path("-" if as_json else "report.html")
    text = told(made) if as_json else page(made)
    if str(output) == "-":
        tell_alone(text)
        return
    output.write_text(text)
    if as_json:
        return
    click.echo(f"{output}: {output.stat().st_size / 1e6:.1f} MB, opens in any browser, without a network")


@click.command(epilog=_RUN_HELP)
@click.argument("run")
@click.option("--interval", type=Finite(min=0.1), default=1.0, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Print it and end.")
@_address
def top(run: str, interval: float, once: bool, address: str | None) -> None:
    """Watch RUN on the terminal; ends with the run, or with Ctrl-C. It says when the run has fallen silent."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with journal_file(run, address, is_followed=True) as journal:
        follower = _followed(run, journal)
        if once or not console.is_terminal:
            console.print(_screen(follower))
            return
        shown = Live(_screen(follower), console=console, screen=True, auto_refresh=False)
        with contextlib.suppress(KeyboardInterrupt), shown:
            while not follower.is_over:
                time.sleep(interval)
                follower.read()
                shown.update(_screen(follower), refresh=True)
        console.print(_screen(follower))


@click.command(epilog=_RUN_HELP)
@click.argument("run")
@json_option
@_address
def status(run: str, as_json: bool, address: str | None) -> None:
    """Say where RUN stands: phase, step, replicas, failures, how safe the newest steps are, its live page."""
    with journal_file(run, address) as journal:
        facts = _facts(_followed(run, journal).report(), journal.parent)
    if as_json:
        tell_json(facts)
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        shown = ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else value
        if shown not in ("", None):
            click.echo(f"{name:<{width}}  {shown}")


def _screen(follower: Follower) -> Any:
    from elastic.report.terminal import screen

    return screen(follower.report(), follower.silent_s)


COMMANDS = (report, top, status)


def _followed(run: str, journal: Path) -> Follower:
    """All that is there is taken in.

    Raises:
        RefusedError: that is nothing.
    """
    follower = Follower(journal)
    follower.read(is_whole=True)
    if not follower.lines:
        raise RefusedError(f"{run} holds no line of a journal: name the directory that fit(run_dir=...) wrote to")
    return follower


def _facts(made: Report, folder: Path) -> dict[str, object]:
    """Seconds of the wall clock end in `_at_s`."""
    from elastic.report.window import live_url

    now = made.headline
    facts = asdict(now)
    began_s, seen_s = facts.pop("began_s"), facts.pop("seen_s")
    return {
        **facts,
        "safe_steps": {one.name: int(one.values[-1]) for one in made.rungs if one.values and one.values[-1] >= 0},
        "began_at_s": began_s,
        "seen_at_s": seen_s,
        "silent_s": 0.0 if now.ending else round(max(0.0, time.time() - seen_s), 3),
        "page": live_url(folder),
    }
