"""Effect. Sending a run back to an older step, while it trains or before its next life."""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from elastic.commands.style import address_option, json_option, tell, timeout_option
from elastic.control.values import AS_BEFORE, NONE_LEFT_OUT
from elastic.errors import CorruptError, ElasticError

if TYPE_CHECKING:
    from elastic.checkpoint.leases import Lease
    from elastic.checkpoint.records import Committed
    from elastic.checkpoint.store import Store
    from elastic.checkpoint.vault import Vault

_SILENT_S = 60.0  # a run that trains writes every few seconds
_LAST_SEGMENTS = 5  # of a life: it may end some time after its training


class Steps(click.ParamType):
    """A:B, steps from A to before B; or none."""

    name = "A:B"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        if value == "none":
            return NONE_LEFT_OUT
        begin, colon, end = str(value).partition(":")
        if not (colon and begin.isdigit() and end.isdigit() and int(begin) < int(end)):
            self.fail(f"{value!r} must be A:B, two step numbers with A < B, or none", param, ctx)
        return int(begin), int(end)


@click.command()
@click.argument("run")
@click.option("--to-step", type=click.IntRange(min=0), required=True, help="The newest step that may stand.")
@click.option(
    "--skip-batches",
    type=Steps(),
    default=AS_BEFORE,
    help="A to B-1 are left out, in place of earlier ones; none: no step is.",
)
@click.option("--persistent", metavar="URL", help="RUN has ended: send its next life back.")
@click.option("--killed", is_flag=True, help="With --persistent: no driver of RUN lives, whatever its journal says.")
@timeout_option(600.0, "until all have gone back")
@address_option
@json_option
def rewind(
    run: str,
    to_step: int,
    skip_batches: tuple[int, int],
    persistent: str | None,
    killed: bool,
    timeout: float,
    address: str | None,
    as_json: bool,
) -> None:
    """Have RUN go on from the newest step at or before --to-step that can be restored; later ones are void.

    A run that trains goes back in place: no process is restarted.
    """
    begin, end = skip_batches
    if begin < end and begin <= to_step:
        raise click.BadParameter(f"{begin}:{end} must begin after --to-step {to_step}", param_hint="--skip-batches")
    if killed and persistent is None:
        raise click.BadParameter("say with --persistent where RUN has its steps", param_hint="--killed")
    if persistent is not None:
        _refuse_what_only_a_live_run_has()
        step = send_back_next_life(run, persistent, to_step, skip_batches, is_killed=killed)
    else:
        from elastic.actors.asking import rewind as rewind_run

        step = rewind_run(run, to_step, skip=skip_batches, timeout_s=timeout, address=address)
    tell({"run": run, "step": step}, as_json, f"{run} goes on after step {step}")


def _refuse_what_only_a_live_run_has() -> None:
    """
    Raises:
        UsageError: an option was given that would be passed over.
    """
    ctx = click.get_current_context()
    for name in ("address", "timeout"):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} is of a run that trains; with --persistent it has ended: leave it out")


def _refuse_a_live_run(store: "Store", run: str, is_killed: bool) -> None:
    """A life that goes on would be cut off from its durable steps: who registers after it fences it.

    One in a long step, or that compiles, writes nothing for minutes: silence alone is no sign of an end.

    Raises:
        ElasticError: its journal says nothing of an end, and has grown lately, or nobody says that it was killed.
    """
    from elastic.actors.stored_journal import objects, read

    there = objects(store, run)
    # Of the newest life: what is merged of those before it is written anew.
    newest = max(there, key=lambda span: (span.incarnation, there[span].modified_at_s), default=None)
    if newest is None:
        return
    silent_s = time.time() - there[newest].modified_at_s
    if is_killed and silent_s > _SILENT_S:
        return
    last = [span for span in sorted(there) if span.incarnation == newest.incarnation][-_LAST_SEGMENTS:]
    segments = read(store, run, last)
    text = "".join(segments[number].text for number in sorted(segments))
    if text.rfind('"EndRun"') > text.rfind('"StepStable"'):
        return
    if silent_s <= _SILENT_S:
        raise ElasticError(
            f"the run {run} has written its journal {max(0.0, silent_s):.0f} s ago, and trains: leave --persistent out "
            f"to send it back in place, or, if it was killed, wait until it has been silent for {_SILENT_S:g} s"
        )
    raise ElasticError(
        f"the journal of the run {run} tells of no end, and has been silent for {silent_s:.0f} s: if it trains, leave "
        "--persistent out to send it back in place; if no driver of it lives, say --killed"
    )


def send_back_next_life(run: str, url: str, to_step: int, skip: tuple[int, int], *, is_killed: bool = False) -> int:
    """Record a fork in the store of a run that does not train: the next `fit` of this name starts there.

    Args:
        is_killed: no driver of it lives, though its journal may tell of no end.

    Raises:
        ElasticError: no durable step is that old, and whole, or the run trains. StoreError.
    """
    from elastic.checkpoint.records import name_of
    from elastic.checkpoint.vault import open_vault
    from elastic.control.values import Fork

    vault = open_vault(url, run)
    try:
        _refuse_a_live_run(vault.store, run, is_killed)
        commits, bad = vault.commits(), {name_of(commit) for commit in vault.quarantined()}
        sound = [one for one in commits if one.commit.step <= to_step and one.name not in bad]
        step, lease = next(_held(vault, sound), (None, None))
        if step is None or lease is None:
            there = ", ".join(str(one.commit.step) for one in commits) or "none"
            left = "; those are damaged, or in quarantine" if commits and commits[-1].commit.step <= to_step else ""
            raise ElasticError(f"no durable step of the run {run} is at or before {to_step}{left}; there are: {there}")
        number = vault.register(f"elastic rewind, {socket.gethostname()} {os.getpid()}")
        lease.check()
        vault.fork(Fork(incarnation=number, generation=0, step=step, skip=skip))
        lease.release()
        return step
    finally:
        vault.close()


def _held(vault: "Vault", records: Sequence["Committed"]) -> Iterator[tuple[int, "Lease"]]:
    """Those that can be restored, as far as sizes tell, with a lease: once the fork is there, what is newer is void."""
    from elastic.checkpoint.leases import BusyError
    from elastic.checkpoint.store import MissingError

    for record in records:
        lease = None
        try:
            lease = vault.lease_to_read(record.name)
            vault.check_complete(record)
        except (MissingError, CorruptError, BusyError) as error:
            click.echo(f"step {record.commit.step} is left out: {error}", err=True)
            if lease is not None:
                lease.release()
            continue
        yield record.commit.step, lease
