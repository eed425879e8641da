"""Effect. `elastic goodput`: where the time of a run went."""

import contextlib
import csv
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import isnan

import click

from elastic.commands.journals import journal_lines
from elastic.commands.style import json_option, tell_json
from elastic.errors import RefusedError
from elastic.ledger.ledger import ledger_of
from elastic.ledger.model import Account
from elastic.ledger.telling import HEADER, facts, lines, rows
from elastic.report.content.words import duration

_MOST_NUMBERS = 5
_SILENT_S = 60.0  # a run that goes on has something to tell each few seconds


class Moment(click.ParamType):
    """Seconds since the run began, or a time of the wall clock; one without a zone is UTC, as on a run's page."""

    name = "SECONDS|TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[bool, float]:
        """Whether it is a time of the wall clock, and seconds."""
        if isinstance(value, tuple):
            return value
        forms: tuple[tuple[bool, Callable[[str], float]], ...] = ((False, float), (True, _of_the_day))
        for is_absolute, read in forms:
            with contextlib.suppress(ValueError):
                at_s = read(str(value))
                if not isnan(at_s):
                    return is_absolute, at_s
        self.fail(f"{value!r} must be seconds since the run began, or a time such as 2026-11-20T18:00", param, ctx)


def _of_the_day(text: str) -> float:
    told = datetime.fromisoformat(text)
    return (told if told.tzinfo is not None else told.replace(tzinfo=UTC)).timestamp()


@click.command()
@click.argument("run")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Seconds by category, for a spreadsheet.")
@click.option("--between", nargs=2, type=Moment(), default=None, help="Only from A to B.")
@click.option("--address", default=None, help="Of the cluster; default: RAY_ADDRESS, or the one on this machine.")
def goodput(
    run: str,
    as_json: bool,
    as_csv: bool,
    between: tuple[tuple[bool, float], tuple[bool, float]] | None,
    address: str | None,
) -> None:
    """Say where the time of RUN went, second by second, and who is to blame.

    RUN is a run directory, a file of a trainer's events, URL/NAME in a persistent tier (gs://bucket/runs/night), or the
    name of a run.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other: choose one.")
    ledger, passed_over = ledger_of(journal_lines(run, address))
    if ledger.is_empty:
        raise RefusedError(f"{run} holds no line that a ledger knows: docs/goodput.md has the forms")
    if passed_over:
        click.echo(f"warning: {_told_nothing(passed_over)}", err=True)
    account = ledger.account()
    silent_s = time.time() - account.run_end_s
    if account.is_live and not ledger.is_of_trainer and silent_s > _SILENT_S:
        told = f"nothing was told for {duration(silent_s)}, which counts nowhere"
        click.echo(f"note: {told}: `elastic status {run}` says how the run was left", err=True)
    if between is not None:
        account = ledger.account(between=_cut(account, *between))
    if as_json:
        tell_json(facts(account))
    elif as_csv:
        table = csv.writer(sys.stdout, lineterminator="\n")
        table.writerow(HEADER)
        table.writerows(rows(account))
    else:
        click.echo("\n".join(lines(account)))


def _told_nothing(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_MOST_NUMBERS])) + (", ..." if len(numbers) > _MOST_NUMBERS else "")
    told = "1 line that tells" if len(numbers) == 1 else f"{len(numbers)} lines that tell"
    return f"not counted: {told} nothing that a ledger knows (line {shown}); docs/goodput.md has the forms"


def _cut(account: Account, *between: tuple[bool, float]) -> tuple[float, float]:
    """Two moments of the run's clock.

    Args:
        account: of the whole run.

    Raises:
        click.UsageError: nothing of the run lies between them.
    """
    began_s = account.begin_s
    begin_s, end_s = (at_s if is_absolute else began_s + at_s for is_absolute, at_s in between)
    if end_s <= begin_s:
        raise click.UsageError("--between A B: B must come after A.")
    if begin_s >= account.end_s or end_s <= began_s:
        lasted = f"it has lasted {account.wall_s:.1f} s, from {_time_of(began_s)} on"
        raise click.UsageError(f"--between A B: nothing of the run lies between them; {lasted}.")
    return begin_s, end_s


def _time_of(at_s: float) -> str:
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OSError, OverflowError, ValueError):  # another trainer's clock may be any
        return f"{at_s:.0f} s"
