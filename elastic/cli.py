"""Effect. The command line."""

import sys
from pathlib import Path

import click

from elastic import __version__
from elastic.commands import checkpoints
from elastic.errors import ElasticError


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
def demo(out: Path, steps: int, seed: int, no_faults: bool, float64: bool) -> None:
    """Train on three nodes of this machine, kill a worker, lose a node, add one; then compare with a clean run."""
    from elastic.demo.run import demo as run_demo

    run_demo(out, steps=steps, seed=seed, with_faults=not no_faults, float64=float64)


@cli.command()
@click.argument("node")
@click.option("--deadline", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds it has left.")
@click.option("--reason", default="elastic drain", show_default=True, help="For the records.")
@click.option("--address", default=None, help="Of the cluster; default: RAY_ADDRESS, or the one on this machine.")
def drain(node: str, deadline: float, reason: str, address: str | None) -> None:
    """Announce that NODE (beginning of its id, address or name) will be taken away: its workers leave between steps."""
    from elastic.actors.cluster import connected
    from elastic.actors.draining import drain_node

    with connected(address):
        click.echo(f"draining {drain_node(node, reason, deadline)}")


for command in checkpoints.COMMANDS:
    cli.add_command(command)


def main() -> None:
    """Entry point: errors are one sentence, Ctrl-C is 130."""
    try:
        cli.main(standalone_mode=False)
    except KeyboardInterrupt:
        sys.exit(130)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ElasticError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
