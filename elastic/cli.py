"""Effect. The command line."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from elastic import __version__
from elastic.commands import checkpoints, reporting
from elastic.commands.chaos import chaos
from elastic.commands.completing import completion
from elastic.commands.configuring import config
from elastic.commands.doctoring import doctor
from elastic.commands.goodput import goodput
from elastic.commands.kuberay import kuberay
from elastic.commands.planning import plan
from elastic.commands.rewinding import rewind
from elastic.commands.running import run
from elastic.commands.simulating import simulate
from elastic.commands.style import Finite, address_option, json_option, run_cli, tell, tell_json, timeout_option
from elastic.commands.submit import submit


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Fault-tolerant, elastic data-parallel training for PyTorch, on Ray."""


@cli.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for run.json, journals and logs.")
@click.option("--steps", type=click.IntRange(min=24), default=320, show_default=True, help="Optimizer steps.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of model, data, and whom the faults hit.")
@click.option("--no-faults", is_flag=True, help="Only train; break nothing.")
@click.option("--float64", is_flag=True, help="Double precision: rounding cannot hide a lost sample.")
@click.option("--policy", metavar="FILE.py:FUNCTION", help="What decides about the faults; default: the ladder.")
@json_option
def demo(out: Path, steps: int, seed: int, no_faults: bool, float64: bool, policy: str | None, as_json: bool) -> None:
    """Train on three nodes of this machine, kill a worker, lose a node, add one; then compare with a clean run.

    What --json prints is in OUT/run.json, too.
    """
    from elastic.demo.run import demo as run_demo

    told = partial(tell_json, indent=1) if as_json else None
    run_demo(out, steps=steps, seed=seed, with_faults=not no_faults, float64=float64, policy=policy, tell=told)


@cli.command()
@click.argument("node")
@click.option("--deadline", type=Finite(min=0), default=30.0, show_default=True, help="Seconds it has left.")
@click.option("--reason", default="elastic drain", show_default=True, help="For the records.")
@timeout_option(30.0, "until Ray answers")
@address_option
@json_option
def drain(node: str, deadline: float, reason: str, timeout: float, address: str | None, as_json: bool) -> None:
    """Announce that NODE (beginning of its id, address or name) will be taken away: its workers leave between steps."""
    from elastic.actors.cluster import connected
    from elastic.actors.draining import drain_node
    from elastic.commands.patience import answer

    late = f"Ray's head has not answered within --timeout {timeout:g} s, so {node} may not be drained: is it alive?"
    with connected(address):
        drained = answer(lambda: drain_node(node, reason, deadline), timeout, late)
    tell({"node": drained, "deadline_s": deadline}, as_json, f"draining {drained}")


@cli.command()
@click.argument("run")
@click.option(
    "--for",
    "for_s",
    type=Finite(min=0, min_open=True),
    default=None,
    help="Seconds; default: the run's limits.hold_timeout_s.",
)
@timeout_option(60.0, "until all have stopped")
@address_option
@json_option
def pause(run: str, for_s: float | None, timeout: float, address: str | None, as_json: bool) -> None:
    """Have all workers of RUN stop at the end of a step, and keep their state."""
    from elastic.actors.asking import pause as pause_run

    pause_run(run, for_s=for_s, timeout_s=timeout, address=address)
    told = f"{run} is paused; `elastic resume {run}` has it go on"
    tell({"run": run, "paused": True}, as_json, told)


@cli.command()
@click.argument("run")
@timeout_option(60.0, "until it is heard")
@address_option
@json_option
def resume(run: str, timeout: float, address: str | None, as_json: bool) -> None:
    """Have RUN go on, which is paused."""
    from elastic.actors.asking import resume as resume_run

    resume_run(run, timeout_s=timeout, address=address)
    tell({"run": run, "resumed": True}, as_json, f"{run} goes on")


_OTHERS = (run, submit, config, doctor, chaos, rewind, goodput, simulate, plan, kuberay, completion)
for command in (*_OTHERS, *checkpoints.COMMANDS, *reporting.COMMANDS):
    cli.add_command(command)


@cli.command()
@click.argument("run")
@click.option(
    "--lr-factor", type=float, default=None, help="On the learning rates that train_fn sets; 1 puts them back."
)
@click.option("--batch-size", type=int, default=None, help="Samples of a step.")
@click.option("--micro-batch-size", type=int, default=None, help="Samples of one forward.")
@click.option("--bucket-bytes", type=int, default=None, help="Gradients are summed in buckets of about this size.")
@timeout_option(60.0, "until a step has taken it in")
@address_option
@json_option
def tune(
    run: str,
    lr_factor: float | None,
    batch_size: int | None,
    micro_batch_size: int | None,
    bucket_bytes: int | None,
    timeout: float,
    address: str | None,
    as_json: bool,
) -> None:
    """Change settings of RUN while it trains: at the end of a step, on all workers, without a restart.

    Which settings suit a cluster says `elastic plan`, without a run.
    """
    from elastic.actors.asking import tune as tune_run

    settings: dict[str, Any] = {"batch_size": batch_size, "micro_batch_size": micro_batch_size}
    settings |= {"bucket_bytes": bucket_bytes, "lr_factor": lr_factor}
    if all(value is None for value in settings.values()):
        raise click.UsageError("name what to change: --lr-factor, --batch-size, --micro-batch-size or --bucket-bytes.")
    step = tune_run(run, **settings, timeout_s=timeout, address=address)
    tell({"run": run, "step": step}, as_json, f"{run} is tuned from step {step} on")


@cli.command()
@click.option("--params", type=float, required=True, help="Parameters of the model, e.g. 70e9.")
@click.option("--hosts", type=int, required=True, help="Hosts that share one copy of the state.")
@click.option("--bytes-per-param", type=float, default=12, show_default=True, help="Of the state, optimizer included.")
@click.option("--copies", type=int, help="Snapshots that a host keeps at once; default: as many as a worker has slots.")
@json_option
def size(params: float, hosts: int, bytes_per_param: float, copies: int | None, as_json: bool) -> None:
    """How much memory snapshots need on each host."""
    from elastic.policies.sizing import sizing, slots_for
    from elastic.settings import Checkpoint

    copies = slots_for(Checkpoint().peers) if copies is None else copies
    found = sizing(params, hosts, copies=copies, bytes_per_param=bytes_per_param)
    tell(
        asdict(found),
        as_json,
        f"state    {_gib(found.state_bytes)}  {params:g} parameters of {bytes_per_param:g} bytes",
        f"shard    {_gib(found.shard_bytes)}  a host, of {hosts}",
        f"arena    {_gib(found.arena_bytes)}  a host: {copies} snapshots",
        f"ramdisk  {_gib(found.ramdisk_bytes)}  a host: the arena and 15 % (/dev/shm, or Checkpoint.memory)",
    )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:10.2f} GiB"


def main() -> None:
    """Entry point: errors are one sentence, Ctrl-C is 130."""
    run_cli(cli)
