"""Effect. `elastic goodput`: where the time of a run went."""

import csv
import sys
from datetime import datetime

import click

from elastic.commands.journals import journal_lines
from elastic.commands.style import in_json, json_option
from elastic.errors import RefusedError
from elastic.ledger.ledger import ledger_of
from elastic.ledger.telling import HEADER, facts, lines, rows


class Moment(click.ParamType):
    """Seconds since the run began, or a time of the wall clock."""

    name = "SECONDS|TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[bool, float]:
        """Whether it is a time of the wall clock, and seconds."""
        if isinstance(value, tuple):
            return value
        try:
            return False, float(str(value))
        except ValueError:
            pass
        try:
            return True, datetime.fromisoformat(str(value)).timestamp()
        except ValueError:
            self.fail(f"{value!r} must be seconds since the run began, or a time such as 2026-11-20T18:00", param, ctx)


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
    ledger = ledger_of(journal_lines(run, address))
    if ledger.is_empty:
        raise RefusedError(f"{run} holds no line that a ledger knows: docs/goodput.md has the forms")
    cut = None
    if between is not None:
        begin_s = ledger.account().begin_s
        begin, end = (at_s if is_absolute else begin_s + at_s for is_absolute, at_s in between)
        if end <= begin:
            raise click.UsageError("--between A B: B must come after A.")
        cut = (begin, end)
    account = ledger.account(between=cut)
    if as_json:
        click.echo(in_json(facts(account)))
    elif as_csv:
        table = csv.writer(sys.stdout, lineterminator="\n")
        table.writerow(HEADER)
        table.writerows(rows(account))
    else:
        click.echo("\n".join(lines(account)))
