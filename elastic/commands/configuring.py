"""Effect. `elastic config`: which values are in effect, and where each came from."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from elastic.commands.style import json_option, tell_json


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--set", "assignments", multiple=True, metavar="KNOB=VALUE", help="As an argument of fit; repeatable.")
@click.option(
    "--from-google", "values", type=click.Path(path_type=Path), help="Translate values of Google's supervisor chart."
)
@click.option("--explain", is_flag=True, help="Say of each knob what it is, in which unit, and why its default.")
@json_option
def config(file: Path | None, assignments: tuple[str, ...], values: Path | None, explain: bool, as_json: bool) -> None:
    """Print the value of every knob that `fit(config=FILE)` would have here, and where it comes from.

    FILE is YAML; without it, the one that ELASTIC_CONFIG names. Variables ELASTIC_<SECTION>__<KNOB> count too.
    """
    from elastic.config import assigned, load
    from elastic.knobs import effective, merged

    if sum([explain, values is not None, file is not None or bool(assignments)]) > 1:
        raise click.UsageError("--explain and --from-google print something else, and take nothing beside them")
    if explain:
        _explain(as_json)
        return
    if values is not None:
        _translate(values, as_json)
        return
    chosen, tree = load(file, merged(*[assigned(one) for one in assignments]))
    knobs = effective(chosen, tree)
    if as_json:
        tell_json({one.path: {"value": one.value, "source": one.source} for one in knobs}, indent=1)
        return
    width = max(len(one.path) for one in knobs)
    shown = [(one, _shown(one.value)) for one in knobs]
    of_value = max(len(text) for _, text in shown)
    for one, text in shown:
        click.echo(f"{one.path:<{width}}  {text:<{of_value}}  {one.source}")


def _explain(as_json: bool) -> None:
    """Say what each knob is."""
    from elastic.knob_docs import documented, sections, table

    if not as_json:
        click.echo(table())
        return
    knobs = {path: [asdict(one) for one in documented(kind)] for path, kind in sections().items()}
    tell_json(knobs, indent=1)


def _translate(path: Path, as_json: bool) -> None:
    """Print a configuration, and what of the values has no place in it."""
    import yaml

    from elastic.config import checked
    from elastic.errors import SettingError
    from elastic.kube.google_values import translate
    from elastic.yamls import NO_YAML

    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, *NO_YAML) as error:
        raise SettingError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(values, dict):
        raise SettingError(f"{path} holds no values by name")
    translation = translate(values)
    checked(_tree(translation.config, str(path)))  # refuses what cannot work here
    if as_json:
        told = {"config": translation.config, "not_needed": translation.dropped, "not_known": translation.unknown}
        tell_json(told, indent=1)
        return
    click.echo(yaml.safe_dump(translation.config, sort_keys=False), nl=False)
    for key, why in translation.dropped.items():
        click.echo(f"not needed: {key}: {why}", err=True)
    for key in translation.unknown:
        click.echo(f"not known: {key}", err=True)


def _tree(section: dict[str, Any], source: str) -> dict[str, Any]:
    from elastic.knobs import Given

    return {
        name: _tree(value, source) if isinstance(value, dict) else Given(value, source)
        for name, value in section.items()
    }


def _shown(value: Any) -> str:
    return value if value and isinstance(value, str) else json.dumps(value)
