"""Effect. `elastic chaos`: breaks a run that trains, on purpose, and tells what struck."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from elastic.commands.style import Finite, address_option, json_flag, tell_alone
from elastic.control import events as ev
from elastic.control.faults import ANY, Fault, FaultKind, kind_of
from elastic.control.plain import in_json
from elastic.control.schedules import Course, Entry, Schedule, parse
from elastic.errors import ElasticError, SettingError

_POLL_S = 0.1
_MEANS_NOTHING = {  # options by whether a schedule was given: what to do instead
    True: {
        "--target": "each fault of --schedule names its own, as in 'every 60 kill leader'",
        "--duration": "each fault of --schedule says how long it lasts, as in '60 stop rank:1 for=5'",
        "--with": "each fault of --schedule says what it takes, as in '60 slow leader with=3'",
    },
    False: {"--for": "one fault is undone after --duration; --for is how long a schedule goes on"},
}
_PATIENCE_S = 30.0  # beyond the end of a fault, until what came of it is heard

Told = ev.FaultInjected | ev.FaultRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line says."""

    fault: str | None
    target: str
    duration: float
    argument: str
    schedule: str | None
    until: float | None
    seed: int
    nodes: str
    is_dry: bool
    is_forced: bool
    as_json: bool
    address: str | None

    @property
    def faults(self) -> Schedule:
        """
        Raises:
            SettingError: neither or both of --fault and --schedule, or one that cannot be understood.
        """
        if (self.fault is None) == (self.schedule is None):
            raise SettingError("give either --fault, for one fault now, or --schedule")
        if self.fault is not None:
            entry = Entry(
                at_s=0.0,
                kinds=(kind_of(self.fault),),
                target=self.target,
                duration_s=self.duration,
                argument=self.argument,
            )
            return Schedule(entries=(entry,))
        text = str(self.schedule)
        return parse(_text_in(Path(text[1:])) if text.startswith("@") else text)

    def until_s(self, faults: Schedule) -> float:
        """When the last fault strikes.

        Raises:
            SettingError: never, and --for is not given.
        """
        end_s = faults.end_s if self.until is None else self.until
        if end_s == float("inf"):
            raise SettingError("this schedule has no end: say with --for how many seconds it is to go on")
        return end_s


@click.command()
@click.argument("run")
@click.option("--fault", metavar="KIND", help=f"One fault, now: {', '.join(kind.value for kind in FaultKind)}.")
@click.option("--target", default=ANY, show_default=True, help="any, leader, rank:N, worker:NAME or node:ID.")
@click.option("--duration", type=Finite(min=0), default=0.0, help="Seconds until it is undone.")
@click.option("--with", "argument", default="", help="What the kind takes, e.g. 3 for slow, 79 for xid.")
@click.option("--schedule", metavar="TEXT|@FILE", help="'every 60 kill,stop', 'poisson mtbf=2h kill', ...")
@click.option("--for", "until", type=Finite(min=0), help="Seconds for which a schedule goes on.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of all that chance decides.")
@click.option("--nodes", default="", help="With --dry-run: whose faults to draw; default: the run's nodes.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Only print the plan.")
@click.option("--force", "is_forced", is_flag=True, help="Even a run that was not started for fault injection.")
@json_flag("A line of JSON for each fault, for a program.")
@address_option
@click.pass_context
def chaos(ctx: click.Context, run: str, **options: Any) -> None:
    """Break RUN on purpose, while it trains on this cluster, and tell what struck.

    Each fault that strikes is in the journal of the run, as FaultInjected, with its proof.
    """
    asked = Asked(**options)
    faults = asked.faults
    _refuse_what_means_nothing(ctx, asked)
    until_s = asked.until_s(faults)
    if asked.is_dry:
        for fault in faults.plan(asked.seed, until_s, _nodes(run, asked, faults)):
            tell_alone(_json(fault) if asked.as_json else f"{fault.at_s:10.2f} s  {fault}")
        return
    from elastic.actors.cluster import connected

    def tell(fault: Fault, came: Told) -> None:
        if asked.fault is None or isinstance(came, ev.FaultInjected):  # else it is this command's error
            tell_alone(_json(fault, came) if asked.as_json else _line(fault, came))

    with connected(asked.address):
        told = Campaign(run, asked, tell).carry_out(faults, until_s)
    refused = [came for came in told if isinstance(came, ev.FaultRefused)]
    if asked.fault is not None and refused:
        raise ElasticError(f"{refused[0].fault} did not strike: {refused[0].reason}")
    if refused and len(refused) == len(told):
        raise ElasticError(f"none of {len(told)} faults struck; of the last one: {refused[-1].reason}")
    if not told:
        click.echo(f"no fault was due within --for {until_s:g} s", err=True)


def _refuse_what_means_nothing(ctx: click.Context, asked: Asked) -> None:
    """
    Raises:
        SettingError: an option was given that would be passed over; what is broken would not be what was meant.
    """
    given = {one.opts[0] for one in ctx.command.params if _is_given(ctx, one)}
    for option, instead in _MEANS_NOTHING[asked.schedule is not None].items():
        if option in given:
            raise SettingError(f"{option}: {instead}: leave it out")
    if "--nodes" in given and not asked.is_dry:
        raise SettingError("--nodes: names nodes of a plan: give --dry-run, or leave it out")


def _is_given(ctx: click.Context, option: click.Parameter) -> bool:
    return ctx.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE


def _text_in(path: Path) -> str:
    """
    Raises:
        SettingError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingError(f"--schedule @{path} cannot be read ({why}): name a text file with faults") from error


class Campaign:
    """Asks for the faults of a schedule when they are due, and tells what came of each.

    Args:
        tell: takes each fault and what came of it.
    """

    def __init__(self, run: str, asked: Asked, tell: Callable[[Fault, Told], None]) -> None:
        self._run, self._asked, self._tell = run, asked, tell
        self._mark = uuid.uuid4().hex[:6]  # names of faults are unique in a run, whoever asks
        self._open: dict[str, tuple[Fault, float]] = {}
        self._told: list[Told] = []

    def carry_out(self, faults: Schedule, until_s: float) -> Sequence[Told]:
        """Stay until the last fault has struck, or has not for so long; returns what came of all.

        Raises:
            ElasticError: no such run trains on the connected cluster.
        """
        from elastic.actors.asking import nodes_now

        began_s, now_s, course = time.monotonic(), -1.0, Course(faults, self._asked.seed)
        while now_s < until_s or self._open:
            now_s = min(until_s, time.monotonic() - began_s)
            nodes = nodes_now(self._run) if faults.is_per_node else ()
            for fault in course.due(now_s, nodes):
                self._ask(replace(fault, name=f"{self._mark}-{fault.name}"))
            self._hear()
            time.sleep(_POLL_S)
        return self._told

    def _ask(self, fault: Fault) -> None:
        from elastic.actors.asking import ask_fault

        refused = ask_fault(self._run, fault, self._asked.is_forced)
        self._open[fault.name] = (fault, time.monotonic() + fault.lasts_s + _PATIENCE_S)
        if refused:
            self._close(ev.FaultRefused(fault=fault, reason=refused))

    def _hear(self) -> None:
        from elastic.actors.asking import faults_told

        for came in faults_told(self._run) if self._open else ():
            if came.fault.name in self._open:
                self._close(came)
        for fault, due_s in list(self._open.values()):
            if time.monotonic() > due_s:
                self._close(ev.FaultRefused(fault=fault, reason="no word of it came; the run's journal may know more"))

    def _close(self, came: Told) -> None:
        fault, _ = self._open.pop(came.fault.name)
        self._told.append(came)
        self._tell(fault, came)


def _nodes(run: str, asked: Asked, faults: Schedule) -> Sequence[str]:
    """Whose faults a plan holds: those named, or those of the run."""
    if asked.nodes or not faults.is_per_node:
        return [node for node in asked.nodes.split(",") if node]
    from elastic.actors.asking import nodes_now
    from elastic.actors.cluster import connected

    with connected(asked.address):
        return nodes_now(run)


def _line(fault: Fault, came: Told) -> str:
    if isinstance(came, ev.FaultRefused):
        return f"{fault}: did not strike: {came.reason}"
    return f"{fault}: struck {came.target}: {came.proof}"


def _json(fault: Fault, came: Told | None = None) -> str:
    facts: dict[str, Any] = {"fault": str(fault), "name": fault.name, "planned_at_s": fault.at_s}
    if isinstance(came, ev.FaultRefused):
        facts["refused"] = came.reason
    elif came is not None:
        facts |= {"target": came.target, "at_s": came.at_s, "proof": came.proof}
    return in_json(facts)
