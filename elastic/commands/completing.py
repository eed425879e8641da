"""Effect. `elastic completion`: what a shell needs to complete this command line."""

import click
from click.shell_completion import get_completion_class

from elastic.commands.style import PROGRAM

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL: `eval "$(elastic completion bash)"`, in its start-up file."""
    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root().command
    click.echo(kind(root, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source())
