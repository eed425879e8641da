"""Effect. `elastic simulate`: what a scenario, a policy or the protocol itself is worth, without a cluster."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from elastic.commands.counting import Count
from elastic.commands.many import processors, runs_of, spread
from elastic.commands.scenarios import Entry, load
from elastic.commands.simulation_report import page
from elastic.commands.style import UNSOUND, apart, between, json_option, tell_json
from elastic.errors import SettingError
from elastic.sim.campaign import (
    STEPS,
    Case,
    Played,
    case_of,
    from_plain,
    play,
    replay_command,
    scenario_of,
    shrink,
    to_plain,
    world_of,
)
from elastic.sim.study import Row, difference_of, row_of

CASE_STUDY, LOG = "case_study", "log_896"
_WHAT = {"kinds": "failed", "decided": "decided"}
_LINES, _LINE = 12, 160  # of a story: its last ones, and how much of each
_SEEDS, _LIVE_SEEDS = 2000, 100  # runs that restart take a millisecond, runs under the controller a tenth of a second
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_SCHEDULED_SEEDS = 5  # where failures are scheduled, only whom they strike is left to chance


class _Simulate(click.Group):
    """A file's name, or a preset's, stands for the command that simulates it."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["scenario", *args]
        return super().resolve_command(ctx, args)


@click.group("simulate", cls=_Simulate)
def simulate() -> None:
    """Play runs in a simulated cluster: SCENARIO.yaml (or a preset), `case-study`, or the protocol `campaign`."""


def _in_a_folder(ctx: click.Context, param: click.Parameter, report: Path | None) -> Path | None:
    """What takes minutes is not begun where its page could not be written."""
    if report is not None and not report.parent.is_dir():
        raise click.BadParameter(f"there is no folder {report.parent}")
    return report


_report_option = click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    callback=_in_a_folder,
    help="Write a page with plots there.",
)


@simulate.command("scenario", hidden=True)
@click.argument("scenario")
@click.option("--policy", "policies", multiple=True, metavar="FILE.py:FUNCTION", help="Or a built-in one; repeatable.")
@click.option("--seeds", type=click.IntRange(min=1), default=10, show_default=True, help="Runs of each row.")
@click.option("--calibrate", type=click.Path(path_type=Path), default=None, help="A run's folder: its times are taken.")
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes; default: one a processor.")
@json_option
@_report_option
@click.pass_context
def scenario(
    ctx: click.Context,
    scenario: str,
    policies: tuple[str, ...],
    seeds: int,
    calibrate: Path | None,
    jobs: int | None,
    as_json: bool,
    report: Path | None,
) -> None:
    """Goodput, where the time goes, incidents and cost of SCENARIO; policies side by side.

    Exit code 3: a policy failed, and the ladder had to decide instead.
    """
    found = load(scenario, calibrate)
    if policies and not any(entry.scenario.way == "live" for entry in found):
        raise SettingError(f"--policy: all rows of {scenario} restart, which leaves nothing to decide: write way: live")
    shown = [(entry, policy) for entry in found for policy in _deciding(entry, policies)]
    entries = [one if policy is None else replace(one, name=f"{one.name}: {policy}") for one, policy in shown]
    decided_by = [policy for _, policy in shown]
    many, count = jobs or processors(), Count()
    rows = [_row(one, policy, seeds, many, count) for one, policy in zip(entries, decided_by, strict=True)]
    _tell(facts(entries, rows, decided_by), scenario, as_json, report)
    _fail_if_a_policy_did(ctx, rows)


@simulate.command("case-study")
@click.option("--seeds", type=click.IntRange(min=1), default=None, help="Runs of each row; default: 2000, 100 or 5.")
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes; default: one a processor.")
@json_option
@_report_option
def case_study(seeds: int | None, jobs: int | None, as_json: bool, report: Path | None) -> None:
    """From a plain setup near 80 % to this library: 1,024 GPUs, 40 h, 5 interruptions a day; and a 896-GPU log."""
    _tell(study(seeds, jobs or processors()), "case study", as_json, report)


def study(seeds: int | None, jobs: int) -> dict[str, Any]:
    """The case study's rows, from a plain setup to this library, and under a key of their own those of the log.

    Args:
        seeds: runs of each row; None: as many as its way takes little time for.
    """
    found: dict[str, Any] = {}
    count = Count()
    for key, preset, before in (("rows", CASE_STUDY, ""), ("log_rows", LOG, "896-GPU log: ")):
        entries = [replace(one, name=f"{before}{one.name}") for one in load(preset)]
        rows = [_row(one, None, seeds or _usual(one), jobs, count) for one in entries]
        found[key] = facts(entries, rows)["rows"]
    return found


def _usual(entry: Entry) -> int:
    if not entry.scenario.failures.per_day:
        return _SCHEDULED_SEEDS
    return _LIVE_SEEDS if entry.scenario.way == "live" else _SEEDS


def _row(entry: Entry, policy: str | None, seeds: int, jobs: int, count: Count) -> Row:
    many = jobs if entry.scenario.way == "live" else 1
    (runs,) = runs_of([(entry.scenario, policy)], seeds, many, entry.name, count)
    return row_of(entry.name, entry.scenario, runs)


def _deciding(entry: Entry, policies: Sequence[str]) -> Sequence[str | None]:
    """Where all processes end with a failure there is nothing to decide: such a row is played once."""
    return policies if policies and entry.scenario.way == "live" else (None,)


def facts(entries: Sequence[Entry], rows: Sequence[Row], policies: Sequence[str | None] = ()) -> dict[str, Any]:
    """What `--json` prints: a row's gain is over the row before it under the same policy, or under none.

    `against` compares a row with the same one under the first of its policies, on the same failures; None of the first.

    Args:
        policies: by row, who decides in it; empty: nobody in particular.
    """
    told: list[dict[str, Any]] = []
    before: dict[str | None, float] = {}
    first, leads, are_several = None, next(filter(None, policies), None), len({*policies} - {None}) > 1
    for entry, row, policy in zip(entries, rows, policies or [None] * len(rows), strict=True):
        gain = None if entry.is_first or policy not in before else row.goodput - before[policy]
        is_one_of_several = policy is not None and are_several
        before |= dict.fromkeys([policy] if is_one_of_several else [None, *policies], row.goodput)
        if is_one_of_several:
            before.pop(None, None)  # a row that is played once comes after all of these, and not after one
        first = row if policy in (None, leads) else first
        sources = {where: source for where, source in entry.scenario.sources.items() if source}
        said = {"assumptions": entry.assumptions, "published": entry.published, "sources": sources}
        told.append({**row.told, "gain": gain, "against": _against(row, first), **said})
    return {"rows": told}


def _against(row: Row, first: Row | None) -> dict[str, Any] | None:
    if first is None or first is row:
        return None
    mean, interval = difference_of(row, first)
    return {"row": first.name, "difference": mean, "interval": interval}


def _tell(found: dict[str, Any], title: str, as_json: bool, report: Path | None) -> None:
    """Rows, by their key in JSON. The page comes last: what was found is not lost where it cannot be written."""
    if as_json:
        tell_json(found)
    else:
        _print(found)
    if report is not None:
        report.write_text(page(title, _all(found)))


def _all(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [told for rows in found.values() for told in rows]


def _print(found: dict[str, Any]) -> None:
    width = max(len(told["name"]) for told in _all(found))
    for told in _all(found):
        gain = f"{100 * told['gain']:+6.2f}" if told["gain"] is not None else " " * 6
        said = told["published"]
        published = f"  published {100 * said[0]:.0f} to {100 * said[1]:.0f}" if said is not None else ""
        cost = f"  {told['cost']:.0f} a run, {told['useful_cost']:.0f} a useful hour" if told["cost"] else ""
        click.echo(
            f"{told['name']:<{width}}  {100 * told['goodput']:6.2f} % {between(told['interval'], 2)}  {gain}"
            f"  {told['incidents']:.1f} incidents of {told['lost_s']:.0f} s{published}{cost}"
        )
        if told["against"] is not None:
            other = told["against"]
            click.echo(f"{'':<{width}}    against {other['row']}: {apart(other['difference'], other['interval'])}")
        largest = sorted(told["shares"].items(), key=lambda one: -one[1])
        lost = ", ".join(
            f"{name} {100 * share:.2f}" for name, share in largest if name != "productive" and share > 5e-5
        )
        click.echo(f"{'':<{width}}    lost: {lost or 'nothing'}")
        for what in ("kinds", "decided"):
            if told[what]:
                counts = ", ".join(f"{name} {count:.1f}" for name, count in told[what].items())
                click.echo(f"{'':<{width}}    {_WHAT[what]}: {counts}")
        for ending in told["endings"]:
            click.echo(f"{'':<{width}}    ended: {ending}")


def _fail_if_a_policy_did(ctx: click.Context, rows: Sequence[Row]) -> None:
    """What a policy is worth is not what its row says, where another one had to decide."""
    for row in rows:
        for fault in row.faults:
            click.echo(f"warning: {row.name}: the ladder decided instead, since {fault}", err=True)
    if any(row.faults for row in rows):
        ctx.exit(UNSOUND)


@simulate.command("campaign")
@click.option("--seeds", type=click.IntRange(min=1), default=100, show_default=True, help="How many worlds.")
@click.option("--first", type=int, default=0, show_default=True, help="The first seed.")
@click.option("--steps", type=click.IntRange(min=1), default=STEPS, show_default=True, help="Steps of each run.")
@click.option("--case", "file", type=_FILE, default=None, help="Play this file's, and none of seeds.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), default=None, help="Folder for what fails.")
@click.option("--shrink", "is_shrunk", is_flag=True, help="Make what fails as small as it gets.")
@click.option("--story", is_flag=True, help="Tell more of the story of each world that fails, in full.")
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes; default: one a processor.")
@json_option
@click.pass_context
def campaign(
    ctx: click.Context,
    seeds: int,
    first: int,
    steps: int,
    file: Path | None,
    keep: Path | None,
    is_shrunk: bool,
    story: bool,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Play small worlds with a hostile network, every step of them. Exit code 3: a law was broken."""
    cases = [case_of(seed, steps) for seed in range(first, first + seeds)] if file is None else [_only_case(ctx, file)]
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)  # what takes minutes is not begun where it could not be kept
    many, count = jobs or processors(), Count()
    played = spread(play, cases, many, "worlds", count)
    bad = [one for one in played if not one.is_sound]
    if is_shrunk:
        bad = [play(case) for case in spread(_shrunk, bad, many, "made smaller", count)]
    keep = Path("runs/campaign") if is_shrunk and keep is None else keep
    files = [_keep(one, keep) if keep is not None else str(file or "") for one in bad]
    if as_json:
        told = [_violation(one, kept) for one, kept in zip(bad, files, strict=True)]
        tell_json({"played": len(played), "violations": told})
    else:
        for one, kept in zip(bad, files, strict=True):
            click.echo(f"seed {one.case.seed} ({one.case.kind}): {one.law}: {one.what}")
            click.echo(f"  scenario: {scenario_of(one.case)}")
            click.echo(f"  {replay_command(one.case, kept)}")
            lines = [line if story else line[:_LINE] for line in one.story[0 if story else -_LINES :]]
            click.echo("".join(f"    {line}\n" for line in lines), nl=False)
        virtual_h = sum(one.seconds for one in played) / 3600
        events = sum(one.events for one in played)
        click.echo(f"{len(played)} worlds, {events} events, {virtual_h:.1f} virtual hours: {len(bad)} violations")
    if bad:
        ctx.exit(UNSOUND)


def _only_case(ctx: click.Context, file: Path) -> Case:
    """
    Raises:
        SettingError: worlds are asked for that would not be played; or see `_case_in`.
    """
    for name in ("seeds", "first", "steps"):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise SettingError(f"--{name}: the world of --case {file} alone is played, as it is there: leave it out")
    return _case_in(file)


def _case_in(file: Path) -> Case:
    """
    Raises:
        SettingError: the file holds no case, or one that no world can be made of.
    """
    try:
        found = from_plain(json.loads(file.read_text())["case"])
        world_of(found)
        return found
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise SettingError(f"--case {file} holds no case as --keep writes it ({why})") from None


def _shrunk(bad: Played) -> Case:
    return shrink(bad.case, bad.law)


def _keep(bad: Played, folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    said = {"law": bad.law, "what": bad.what, "case": to_plain(bad.case)}
    file = folder / f"seed-{bad.case.seed}.json"
    file.write_text(json.dumps(said, indent=1, sort_keys=True) + "\n")
    return str(file)


def _violation(bad: Played, kept: str) -> dict[str, Any]:
    return {
        "case": to_plain(bad.case),
        "story": bad.story,
        "law": bad.law,
        "what": bad.what,
        "replay": replay_command(bad.case, kept),
    }
