"""Effect. `elastic run`: trains what a file, or a configuration, names."""

from pathlib import Path
from typing import Any

import click

from elastic.commands.style import address_option, json_option, tell
from elastic.errors import SettingError

FUNCTION = "train_fn"  # what is taken of a file, unless another name is given


@click.command("run")
@click.argument("what", metavar="TRAIN_FN|CONFIG")
@click.option("--config", type=click.Path(path_type=Path), help="YAML; default: the one that ELASTIC_CONFIG names.")
@click.option("--set", "assignments", multiple=True, metavar="KNOB=VALUE", help="Over all else; repeatable.")
@click.option("--name", help="Of the run; one of the same name goes on where it ended (knob name).")
@click.option("--policy", metavar="FILE.py:FUNCTION", help="What decides about incidents (knob policy).")
@click.option("--chaos", metavar="SCHEDULE", help="Break the run on purpose: 'every 60 kill,stop' (knob chaos).")
@address_option
@json_option
def run(
    what: str,
    config: Path | None,
    assignments: tuple[str, ...],
    name: str | None,
    policy: str | None,
    chaos: str | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Train, as `elastic.fit` does in Python.

    TRAIN_FN is file.py:function, package.module:function, or file.py, whose function is train_fn. CONFIG is a YAML file
    that names it, as its knob train_fn.
    """
    from elastic.api import fit_configured
    from elastic.config import assigned, load
    from elastic.knobs import merged
    from elastic.settings import Chaos

    if Path(what).suffix in (".yaml", ".yml"):
        if config is not None:
            raise SettingError(f"{what} is a configuration, and --config={config} another: give one of them")
        what, config = "", Path(what)
    broken = None if chaos is None else Chaos(enable_fault_injection=True, schedule=chaos)
    given = _given(name=name, policy=policy, address=address, chaos=broken)
    chosen, tree = load(config, merged(*[assigned(one) for one in assignments], given))
    result = fit_configured(_loaded(what or chosen.train_fn or ""), chosen, tree)
    facts = {
        "run_dir": result.run_dir,
        "steps": result.steps,
        "last_report": result.last_report,
        "world_sizes": result.world_sizes,
        "incidents": len(result.incidents),
        "goodput": result.goodput,
    }
    metrics = ", ".join(f"{key} {value:.6g}" for key, value in result.last_report.items())
    told = f"{result.steps} steps, {len(result.incidents)} incidents, goodput {result.goodput:.1%}"
    tell(facts, as_json, f"{told}{'; ' if metrics else ''}{metrics}", f"journal in {result.run_dir}")


def _given(**values: Any) -> dict[str, Any]:
    from elastic.knobs import Given

    return {name: Given(value, f"--{name}") for name, value in values.items() if value is not None}


def _loaded(place: str) -> Any:
    """The function that a place names.

    Raises:
        SettingError: there is none.
    """
    from elastic.actors.policy_file import load_named

    if not place:
        raise SettingError("this configuration names no train_fn: add `train_fn: file.py:function`, or give TRAIN_FN")
    if place.endswith(".py"):
        place = f"{place}:{FUNCTION}"
    return load_named(place, FUNCTION)
