"""Effect. `elastic config`: which values are in effect, and where each came from."""

import json
from pathlib import Path
from typing import Any

import click

from elastic.commands.style import json_option


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--set", "assignments", multiple=True, metavar="KNOB=VALUE", help="As an argument of fit; repeatable.")
@click.option("--explain", is_flag=True, help="Say of each knob what it is, in which unit, and why its default.")
@json_option
def config(file: Path | None, assignments: tuple[str, ...], explain: bool, as_json: bool) -> None:
    """Print the value of every knob that `fit(config=FILE)` would have here, and where it comes from.

    FILE is YAML; without it, the one that ELASTIC_CONFIG names. Variables ELASTIC_<SECTION>__<KNOB> count too.
    """
    from elastic.config import assigned, load
    from elastic.knob_docs import table
    from elastic.knobs import effective, merged

    if explain:
        click.echo(table())
        return
    chosen, tree = load(file, merged(*[assigned(one) for one in assignments]))
    knobs = effective(chosen, tree)
    if as_json:
        click.echo(json.dumps({one.path: {"value": one.value, "source": one.source} for one in knobs}, indent=1))
        return
    width = max(len(one.path) for one in knobs)
    shown = [(one, _shown(one.value)) for one in knobs]
    of_value = max(len(text) for _, text in shown)
    for one, text in shown:
        click.echo(f"{one.path:<{width}}  {text:<{of_value}}  {one.source}")


def _shown(value: Any) -> str:
    return value if value and isinstance(value, str) else json.dumps(value)
