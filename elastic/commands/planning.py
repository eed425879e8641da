"""Effect. `elastic plan`: which settings suit a cluster, and what each of them is worth."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
import yaml

from elastic.commands.counting import Count
from elastic.commands.many import processors, runs_of
from elastic.commands.style import Finite, apart, between, json_option, tell_json
from elastic.control.faults import seconds
from elastic.sim.planning import Choice, Given, Plan, disk_interval_s, disk_worth, doubts, planned, settings_of
from elastic.sim.scenario import Scenario
from elastic.sim.study import Row, difference_of, row_of

_SETTINGS = {  # as users call what is chosen
    "spare_nodes": "a number of spare machines",
    "spare_replicas": "scaling.spares",
    "minimum_replicas": "the minimum of scaling.num_dp_replicas",
    "peers": "checkpoint.peers",
    "local_interval_s": "checkpoint.local_interval",
    "persistent_interval_s": "checkpoint.persistent_interval",
}


class _Seconds(click.ParamType):
    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        return seconds(value, f"--{param.name.replace('_', '-')}=") if isinstance(value, str) else float(value)


_S = _Seconds()
_POSITIVE, _NOT_NEGATIVE = Finite(min=0, min_open=True), Finite(min=0)


@click.command("plan")
@click.option("--gpus", type=click.IntRange(min=1), required=True, help="That the job wants.")
@click.option("--mtbf", type=_S, required=True, help="Between two failures of the whole cluster, e.g. 7.9h.")
@click.option("--state-gb", type=_POSITIVE, required=True, help="One copy of model and optimizer, see `elastic size`.")
@click.option("--gpus-per-node", type=click.IntRange(min=1), default=8, show_default=True, help="Of a machine.")
@click.option("--nodes-per-replica", type=click.IntRange(min=1), default=1, show_default=True, help="Machines.")
@click.option("--notice-share", type=Finite(0, 1), default=0.0, show_default=True, help="Announced failures.")
@click.option("--notice", type=_S, default="30s", show_default=True, help="By which they are announced.")
@click.option("--repair", type=_S, default="4h", show_default=True, help="Until a machine is back.")
@click.option("--outage", type=_S, default="30d", show_default=True, help="Between two failures of all at once.")
@click.option("--link", type=_POSITIVE, default=25.0, show_default=True, help="GB/s between two machines.")
@click.option("--storage", type=_POSITIVE, default=10.0, show_default=True, help="GB/s of the persistent tier, in all.")
@click.option("--disk", type=_NOT_NEGATIVE, default=0.0, show_default=True, help="GB/s of one that a machine has.")
@click.option("--loading", type=_S, default="5m", show_default=True, help="From a start to the first step.")
@click.option("--step", type=_S, default="10s", show_default=True, help="Of the full group.")
@click.option("--hours", type=_POSITIVE, default=168.0, show_default=True, help="Of the job.")
@click.option("--price", type=_NOT_NEGATIVE, default=0.0, show_default=True, help="Of a GPU for an hour.")
@click.option("--seeds", type=click.IntRange(min=1), default=4, show_default=True, help="Runs of each choice.")
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes; default: one a processor.")
@json_option
def plan(seeds: int, jobs: int | None, as_json: bool, **options: Any) -> None:
    """Which policy, spares, minimum and intervals suit a cluster; each choice is tried in simulated runs."""
    given, count = _given(options), Count()

    def play(label: str, wanted: Sequence[tuple[Scenario, str]]) -> list[Row]:
        found = runs_of(wanted, seeds, jobs or processors(), label, count)
        return [row_of(policy, scenario, runs) for (scenario, policy), runs in zip(wanted, found, strict=True)]

    found = planned(given, play)
    if as_json:
        worth = {
            name: [{"value": value, **other.told} for value, other in tried] for name, tried in found.worth.items()
        }
        said = {"settings": settings_of(given, found.choice), "disk_worth": disk_worth(given, found.choice)}
        tell_json({"choice": asdict(found.choice), **found.row.told, "worth": worth, **said})
    else:
        _tell(given, found)
    for doubt in doubts(given, found):
        click.echo(f"warning: {doubt}", err=True)


def _given(options: dict[str, Any]) -> Given:
    return Given(
        gpus=options["gpus"],
        mtbf_s=options["mtbf"],
        state_bytes=options["state_gb"] * 1e9,
        gpus_per_node=options["gpus_per_node"],
        nodes_per_replica=options["nodes_per_replica"],
        notice_share=options["notice_share"],
        notice_s=options["notice"],
        repair_s=options["repair"],
        outage_mtbf_s=options["outage"],
        link_bytes_per_s=options["link"] * 1e9,
        storage_bytes_per_s=options["storage"] * 1e9,
        disk_bytes_per_s=options["disk"] * 1e9,
        loading_s=options["loading"],
        step_s=options["step"],
        hours=options["hours"],
        price_per_gpu_hour=options["price"],
    )


def _tell(given: Given, found: Plan) -> None:
    choice, row = found.choice, found.row
    click.echo(f"policy               elastic.policies.{choice.policy}()")
    click.echo(
        f"spare machines       {choice.spare_nodes}, beside the {given.replicas * given.nodes_per_replica} of the job"
    )
    bounds = f"num_dp_replicas=({choice.minimum_replicas}, {given.replicas}), spares={choice.spare_replicas}"
    click.echo(f"replicas             Scaling({bounds})")
    click.echo(f"snapshots in memory  every {_seconds(choice.local_interval_s)}")
    click.echo(f"copies of each       {_copies(given, choice)}")
    if given.disk_bytes_per_s:
        saved = f"saves {100 * disk_worth(given, choice):.3f} points where it outlives an outage"
        click.echo(f"snapshots on disks   every {_seconds(disk_interval_s(given, choice))}; {saved}")
    click.echo(f"uploads              every {_seconds(choice.persistent_interval_s)}; one takes {given.upload_s:.0f} s")
    click.echo(f"expected goodput     {100 * row.goodput:.2f} %{between(row.interval, 2)}")
    if row.cost:
        click.echo(f"cost                 {row.cost:.0f}, {row.useful_cost:.0f} for an hour of the full group's work")
    for name, tried in found.worth.items():
        if len({(other.goodput, other.useful_cost) for _, other in tried}) == 1:
            click.echo(f"what {_SETTINGS.get(name, name)} is worth: it makes no difference here")
            continue
        click.echo(f"what {_SETTINGS.get(name, name)} is worth:")
        for value, other in tried:
            mark = "*" if other is row else " "
            money = f"  {other.useful_cost:10.0f} a useful hour" if other.cost else ""
            said = _seconds(float(value)) if name.endswith("_s") else value
            click.echo(f"  {mark} {said:>14}  {100 * other.goodput:7.3f} %{money}{_against(row, other)}")
    where = "with checkpoint.persistent" + ", and checkpoint.disk," * bool(given.disk_bytes_per_s)
    click.echo(f"\n# The run's file, {where} to be added:")
    click.echo(yaml.safe_dump(settings_of(given, choice), sort_keys=False), nl=False)


def _copies(given: Given, choice: Choice) -> str:
    if not choice.peers:
        return "none: there is no other machine"
    how = f"one takes {_seconds(given.copy_s)}, and comes with each snapshot"
    where = "another machine" if choice.peers == 1 else f"{choice.peers} other machines"
    return f"on {where}; {how if given.replicas <= choice.peers else 'replicas have them'}"


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"


def _against(row: Row, other: Row) -> str:
    """By how much another value does more or less work than the chosen one, on the same failures."""
    return "" if other is row else f"  {apart(*difference_of(other, row))}"
