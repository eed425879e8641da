"""Effect. Commands that look at checkpoints, check them, and carry them out of here and in."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from elastic.commands.style import UNSOUND, address_option, timeout_option
from elastic.commands.style import json_option as _json
from elastic.commands.style import tell as _say

_KEEP = "checkpoint.keep"
_KEEP_LAST = 2  # of a node's own, and of copies on nodes
MEMORY = "/dev/shm"  # noqa: S108 - the default of Checkpoint.memory

Function = TypeVar("Function", bound=Callable[..., Any])

_persistent = click.option("--persistent", metavar="URL", help="Root of the persistent store (Checkpoint.persistent).")
_required = click.option("--persistent", metavar="URL", required=True, help="Root of the persistent store.")
_disk = click.option("--disk", type=click.Path(path_type=Path), help="This node's disk (Checkpoint.disk).")
_peers = click.option("--peers", is_flag=True, help="All nodes of a cluster where RUN lives, by its replica actors.")
_timeout = timeout_option(3600.0, "for each shard")
_step = click.option("--step", type=click.IntRange(min=0), help="Default: the newest that is whole.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where to look; `memory` if nothing is given. timeout: seconds for each shard."""

    persistent: str | None
    memory: Path | None
    disk: Path | None
    peers: bool
    address: str | None
    timeout: float


def places(function: Function, default: str | None = MEMORY) -> Any:
    """The options that say where to look; the function gets them as `where`.

    Args:
        default: the ramdisk that is looked at if nothing is given; None: no place is.
    """
    told = f"; {default} if nothing else is given." if default else "."
    memory_option = click.option(
        "--memory",
        type=click.Path(file_okay=False, path_type=Path),
        help=f"This node's ramdisk (Checkpoint.memory){told}",
    )

    @functools.wraps(function)
    def gathered(
        persistent: str | None,
        memory: Path | None,
        disk: Path | None,
        peers: bool,
        address: str | None,
        timeout: float,
        **rest: Any,
    ) -> Any:
        if address is not None and not peers:
            raise click.UsageError("--address names the cluster of --peers: give both, or leave it out")
        is_given = persistent is not None or disk is not None or peers
        memory = Path(default) if default and memory is None and not is_given else memory
        where = Where(persistent=persistent, memory=memory, disk=disk, peers=peers, address=address, timeout=timeout)
        return function(where=where, **rest)

    return _persistent(memory_option(_disk(_peers(address_option(_timeout(_json(gathered)))))))


@contextmanager
def _held(run: str, where: Where) -> Iterator[Any]:
    from elastic.commands.places import looked_up

    with looked_up(run, where) as held:
        yield held


def _tell(facts: dict[str, Any], as_json: bool, lines: list[str]) -> None:
    _say(facts, as_json, *lines)


@click.command()
@click.argument("run")
@places
def ls(run: str, where: Where, as_json: bool) -> None:
    """List the steps of RUN that can be restored, best first, and those that lack a shard."""
    from elastic.commands.telling import listing

    with _held(run, where) as held:
        facts, lines = listing(held)
        _tell(facts, as_json, lines)


@click.command()
@click.argument("run")
@click.option("--deep", is_flag=True, help="Read every byte of every copy, and compare sums.")
@click.option("--step", type=click.IntRange(min=0), help="Only this step.")
@places
def verify(run: str, deep: bool, step: int | None, where: Where, as_json: bool) -> None:
    """Check all copies of all whole steps of RUN. Exit code 3: one is bad, or nothing can be restored."""
    from elastic.commands.telling import verification

    with _held(run, where) as held:
        facts, lines = verification(held, step, deep, where.timeout)
        _tell(facts, as_json, lines)
    if not facts["is_sound"]:
        sys.exit(UNSOUND)


@click.command("restore-report")
@click.argument("run")
@places
def restore_report(run: str, where: Where, as_json: bool) -> None:
    """Rehearse a restore of RUN: which step, from where, how fast. Exit code 3: no step can be restored."""
    from elastic.commands.telling import rehearsal

    with _held(run, where) as held:
        facts, lines = rehearsal(held, where.timeout)
        _tell(facts, as_json, lines)
    if facts["step"] is None:
        sys.exit(UNSOUND)


@click.command()
@click.argument("run")
@click.option("--to", type=click.Path(path_type=Path), required=True, help="New directory.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["dcp", "safetensors"]),
    default="safetensors",
    show_default=True,
    help="Of the files: whole tensors for any library, or a checkpoint of torch.distributed.checkpoint.",
)
@_step
@places
def export(
    run: str,
    to: Path,
    form: str,
    step: int | None,
    where: Where,
    as_json: bool,
) -> None:
    """Write a step of RUN as files that load without this package."""
    from dataclasses import asdict

    from elastic.checkpoint.reader import Effort
    from elastic.interchange.exporting import Format
    from elastic.interchange.exporting import export as write

    with _held(run, where) as held:
        told = write(held.at(step), to, Format(form), Effort(timeout_s=where.timeout, knob="--timeout"))
    apart = "" if told.whole else ", each shard apart since they were cut by hand"
    _tell(asdict(told), as_json, [f"step {told.step}: {told.tensors} tensors, {told.nbytes} bytes in {to}{apart}"])


@click.command("import")
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.option("--run", required=True, help="A new run, which begins with this state as its step 0.")
@click.option("--into", default="model", show_default=True, help="Tracked object that bare tensors belong to.")
@_required
@_json
def import_(path: Path, run: str, into: str, persistent: str, as_json: bool) -> None:
    """Make PATH (safetensors, or a torch DCP directory) the state that a new run begins with."""
    from elastic.commands.places import opened_vault
    from elastic.interchange.importing import begin, import_checkpoint

    manifest, payload = import_checkpoint(path, run, into)
    vault = opened_vault(persistent, run)
    try:
        begin(vault, manifest, payload, path)
        where = vault.where
    finally:
        vault.close()
    facts = {"run": run, "step": 0, "tensors": len(manifest.entries), "bytes": manifest.nbytes, "where": where}
    _tell(facts, as_json, [f"{facts['tensors']} tensors, {facts['bytes']} bytes are step 0 of {where}"])


@click.command()
@click.argument("run")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted, and why.")
@click.option("--keep-last", type=click.IntRange(min=1), help="Newest steps (Keep.last).")
@click.option("--keep-every", type=click.IntRange(min=0), help="The first in each so many steps (Keep.every).")
@click.option("--keep-best", type=click.IntRange(min=0), help="So many by --metric (Keep.best).")
@click.option("--metric", help="Of the steps, which is the better (Keep.metric).")
@click.option("--mode", type=click.Choice(["min", "max"]), help="Which of it is best (Keep.mode).")
@functools.partial(places, default=None)
def gc(
    run: str,
    where: Where,
    dry_run: bool,
    as_json: bool,
    keep_last: int | None,
    **keep: int | str | None,
) -> None:
    """Delete the durable steps of RUN that nobody wants any more, never the newest good one, and what was left behind;
    or old ones on a disk, or in memory, of this node. Of copies on nodes say only which its driver would drop.
    A node knows nothing of the shards of others: see with `elastic ls` that newer steps are whole.
    Of durable steps are kept, where nothing else is said, those that RUN itself was told to keep (Checkpoint.keep), as
    the copy of its journal tells; elsewhere, and without a copy, the newest two.
    """
    from elastic.commands.places import disk_of, opened_vault
    from elastic.commands.telling import collection, copies_that_may_go, disk_collection, memory_collection

    if sum([where.persistent is not None, where.memory is not None, where.disk is not None, where.peers]) != 1:
        raise click.UsageError("give one of --persistent, --memory, --disk and --peers")
    if where.persistent is None:
        _refuse_what_only_durable_steps_have()
    if where.peers and not dry_run:
        raise click.UsageError("nodes drop copies by themselves, as the driver of RUN says: give --dry-run")
    if where.peers:
        with _held(run, where) as held:
            facts, lines = copies_that_may_go(held, keep_last or _KEEP_LAST)
    elif where.memory is not None:
        facts, lines = memory_collection(where.memory, run, keep_last or _KEEP_LAST, dry_run)
    elif where.disk is not None:
        facts, lines = disk_collection(disk_of(run, where.disk), keep_last or _KEEP_LAST, dry_run)
    else:
        said = {name.removeprefix("keep_"): value for name, value in ({"keep_last": keep_last} | keep).items()}
        vault = opened_vault(str(where.persistent), run)
        try:
            wanted = _keep_of(vault, {name: value for name, value in said.items() if value is not None})
            facts, lines = collection(vault, wanted, dry_run)
        finally:
            vault.close()
    _tell(facts, as_json, lines)


def _keep_of(vault: Any, said: dict[str, Any]) -> Any:
    """What is to be kept of a run: as was said here, else as the run itself was told."""
    from dataclasses import fields

    from elastic.actors.stored_journal import knobs_of
    from elastic.settings import Keep

    names = {one.name for one in fields(Keep)}
    knobs = knobs_of(vault.store, vault.run) if names - said.keys() else {}
    told = {name: knobs[f"{_KEEP}.{name}"] for name in names if f"{_KEEP}.{name}" in knobs}
    return Keep(**told | said)


def _refuse_what_only_durable_steps_have() -> None:
    """
    Raises:
        UsageError: an option was given that would be passed over.
    """
    ctx = click.get_current_context()
    for name in ("keep_every", "keep_best", "metric", "mode"):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option}: only --keep-last counts here; the rest is of --persistent: leave it out")


COMMANDS = (ls, verify, restore_report, export, import_, gc)
