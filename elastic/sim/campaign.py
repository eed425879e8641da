"""Pure. The protocol campaign: seeded worlds of 3 to 21 workers with a hostile network, each played and judged."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any

from elastic.control.outcome import Ending
from elastic.sim.chance import Chance
from elastic.sim.gangs import GangWorld
from elastic.sim.journalled import journalled
from elastic.sim.laws import Violation
from elastic.sim.parts import Plan
from elastic.sim.succession import (
    DriverDepotWorld,
    DriverGangDepotWorld,
    DriverGangWorld,
    DriverTierWorld,
    DriverWorld,
    Succession,
)
from elastic.sim.unrest import ACTS, Unrest

STEPS = 200
KINDS = ("live", "gangs", "tiers", "depot")
# Virtual time: by then workers train; faults strike in about the first half of a run.
_STARTED_S, _S_PER_STEP, _S_PER_SLOW_STEP = 7.0, 0.1, 0.25
_ENDS_BY_S = 300.0  # after the last fault, beside the steps
_S_PER_STEP_AT_MOST, _S_PER_SLOW_STEP_AT_MOST = 0.3, 1.0
_FEW = 10  # steps: in a shorter run things befall it as often as in one of so many, not ever more often
_STORY_LINES = 60
_RECOUNT = 32
_CALM = 5  # one seed in so many
_LONE = 12  # of the others, one seed in so many has one replica, whose reductions always complete, beside parked ones
_CALM_RATES = {"stall": 0.003, "monitor": 0.05, "lose_beat": 0.1}
_WIDTHS = {"gangs": (2, 2, 3), "depot": (1, 1, 2)}
_HARMFUL = ("bad", "refuse", "node_loss", "rack_loss")  # of tiers
_LUXURIES = ("before", "bad", "refuse", "rewind", "upload_s", "outage", "node_loss", "rack_loss", "racks")
FAULTS = (
    "crash", "hang", "mute", "lose_call", "break_", "lose_order", "duplicate", "stall", "supervisor", "monitor",
    "lose_beat", "partition", "jump", "notice", "corrupt", "announce", "run_out", "xid", "slow", "pause", "tune",
    "raise_", "depart", "rack", "split", "linger", "link",
)  # fmt: skip
_DECIDING = ("Ladder", "Ladder", "HotSwapFirst", "ShrinkFirst", "CostAware", "Redealing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One world: with its seed, all that happens in it.

    Attributes:
        kind: one of KINDS. width: workers of a replica, where it is "gangs" or "depot".
        deaths_s: when drivers die. tiers: arguments of `TierWorld` or `DepotWorld`, where the kind is one of these.
    """

    seed: int
    kind: str
    plan: Plan
    width: int = 1
    deaths_s: tuple[float, ...] = ()
    tiers: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What became of a case.

    Attributes:
        law: that was broken, empty if none was. what: one sentence about it. story: the last events and commands.
        ending: of the run. faults: kinds that struck. generations, events, seconds: how much happened (virtual time).
        kinds, given: names of the events that came, and of the commands that were given.
        digest: of all events and commands; equal for equal histories.
    """

    case: Case
    law: str = ""
    what: str = ""
    story: tuple[str, ...] = ()
    ending: str = ""
    faults: tuple[str, ...] = ()
    generations: int = 0
    events: int = 0
    kinds: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    seconds: float = 0.0
    digest: str = ""

    @property
    def is_sound(self) -> bool:
        return not self.law


def case_of(seed: int, steps: int = STEPS) -> Case:
    """The case that a seed stands for: some faults of some kinds, about as many in a short run as in a long one."""
    rng = Chance("campaign", seed)
    kind = KINDS[seed % len(KINDS)]
    width = rng.choice(_WIDTHS.get(kind, (1,)))
    most = rng.randint(4, 16) // width
    low = rng.randint(1, max(1, most - 1))
    is_slow = kind == "depot"
    steps_s = steps * (_S_PER_SLOW_STEP_AT_MOST if is_slow else _S_PER_STEP_AT_MOST)
    ends_s, often = _STARTED_S + steps * (_S_PER_SLOW_STEP if is_slow else _S_PER_STEP), STEPS / max(_FEW, steps)
    deaths = rng.choice((0, 0, 0, 1, 2))
    plan = Plan(
        replicas=(low, most),
        spares=rng.choice((0, 0, 1, 2)),
        steps=steps,
        per_node=rng.choice((1, 2, 4)) if kind == "live" else 1,
        in_order=rng.random() < 0.5,
        quick=not is_slow,
        drift=rng.choice((0.0, 0.05)),
        faults_end_s=ends_s,
        limit_s=ends_s + _ENDS_BY_S + steps_s,
        crash=often * rng.choice((0.0, 0.0003, 0.001)),
        hang=often * rng.choice((0.0, 0.0, 0.0003)),
        mute=often * rng.choice((0.0, 0.0, 0.0006)),
        lose_call=rng.choice((0.0, 0.5)),
        break_=often * rng.choice((0.0, 0.0005, 0.002)),
        lose_order=rng.choice((0.0, 0.02, 0.1)),
        duplicate=rng.choice((0.0, 0.02, 0.1)),
        stall=often * rng.choice((0.0, 0.0, 0.003)),
        supervisor=often * rng.choice((0.0, 0.0, 0.005)),
        monitor=often * rng.choice((0.0, 0.0, 0.01)),
        lose_beat=rng.choice((0.0, 0.0, 0.1)),
        partition=often * rng.choice((0.0, 0.0, 0.006)),
        jump=often * rng.choice((0.0, 0.0, 0.01)),
        notice=often * rng.choice((0.0, 0.0, 0.0003)),
        corrupt=often * rng.choice((0.0, 0.0, 0.003)) if kind in ("live", "tiers") else 0.0,
    )
    plan = replace(plan, **_unrest(seed, often))
    tiers = _tiers(kind, steps, rng) | (_racks(seed) if kind == "depot" else {})
    deaths_s = tuple(rng.uniform(0.3, ends_s) for _ in range(deaths))
    if seed % _CALM == _CALM - 1:
        plan = _calmed(plan, often, rng, has_deaths=bool(deaths))
        tiers = {name: 0.0 if name in _HARMFUL else value for name, value in tiers.items()}
    elif seed % _LONE == KINDS.index("tiers"):
        plan, tiers, deaths_s = _alone(plan, often, rng), {**tiers, "save": 0.5}, ()
    if kind == "depot":  # with more replicas each step is on several nodes from the start, and nothing is left to do
        few = rng.randint(1, 3)
        plan = replace(plan, replicas=(rng.randint(1, few), few), spares=max(4 // width - few, rng.randint(1, 2)))
    return Case(seed=seed, kind=kind, plan=plan, width=width, deaths_s=deaths_s, tiers=tiers or None)


def _unrest(seed: int, often: float) -> dict[str, Any]:
    """What befalls machines and GPUs and what users want; who decides."""
    rng = Chance("campaign, unrest", seed)
    rates = {
        "announce": 0.02, "run_out": 0.02, "xid": 0.02, "slow": 0.05, "pause": 0.02, "tune": 0.02, "raise_": 0.004,
        "depart": 0.01, "rack": 0.02, "split": 0.04,
    }  # fmt: skip
    return {
        "policy": rng.choice(_DECIDING),
        **{fault: often * rate * rng.choice((0, 0, 0, 0, 1)) for fault, rate in rates.items()},
        "linger": rng.choice((0.0, 0.0, 0.02)),
        "says_at_door": True,
        "link": often * 0.04 * rng.choice((0, 0, 0, 0, 1)),
    }


def _tiers(kind: str, steps: int, rng: Chance) -> dict[str, float]:
    rewind = rng.choice((0.0, 0.0, 0.2))
    if kind == "tiers":
        return {
            "before": min(rng.choice((0, 0, 3)), steps),
            "save": rng.choice((0.1, 0.5)),
            "bad": rng.choice((0.0, 0.3)),
            "refuse": rng.choice((0.0, 0.1)),
            "rewind": rewind,
        }
    if kind == "depot":
        return {
            "stage": rng.choice((0.2, 1.0)),
            "peers": rng.choice((0, 1, 1, 2)),
            "upload_s": rng.choice((0.0, 3.0, 10.0)),
            "link_bytes_per_s": rng.choice((2 << 30, 10 << 30)),
            "outage": rng.choice((0.0, 0.1)),
            "node_loss": rng.choice((0.0, 0.05, 0.2)),
            "rewind": rewind,
        }
    return {}


def _racks(seed: int) -> dict[str, float]:
    """Where nodes stand: one rack may be lost as a whole where another has a copy."""
    rng = Chance("campaign, racks", seed)
    racks = rng.choice((0, 2, 3))
    return {"racks": racks, "rack_loss": rng.choice((0.0, 0.2, 0.5)) if racks else 0.0}


def _calmed(plan: Plan, often: float, rng: Chance, has_deaths: bool) -> Plan:
    """Nobody may be killed for anything that happens."""
    # Not together: a controller that stands still while a host is not heard may believe that it is gone, and so may
    # the next driver, which has heard nobody yet.
    what = rng.choice(("stall",) if has_deaths else ("stall", "monitor", "lose_beat"))
    rates = {"break_": 0.003 * often, "duplicate": 0.05, what: _CALM_RATES[what] * often}
    rates["supervisor"] = 0.003 * often if what == "stall" else 0.0
    return replace(plan, **{fault: rates.get(fault, 0.0) for fault in FAULTS})  # type: ignore[arg-type]


def _alone(plan: Plan, often: float, rng: Chance) -> Plan:
    """One replica trains, and its host is out of reach now and then, so that nothing but its lease stops it."""
    unrest: dict[str, Any] = dict.fromkeys(ACTS, 0.0)
    size: dict[str, Any] = {"replicas": (1, 1), "spares": rng.randint(3, 5), "quick": False}
    return replace(
        plan,
        **size,
        **unrest,
        lease_s=rng.choice((4.0, 20.0)),
        mute=0.005 * often,
        lose_call=0.7,
        hang=0.0,
        partition=0.0,
    )


def world_of(case: Case) -> Succession:
    kind: Any = _kind_of(case)
    build: Any = journalled(unruly(kind))
    width = {"width": case.width} if issubclass(kind, GangWorld) else {}
    world: Succession = build(case.seed, case.plan, **width, **(case.tiers or {}), deaths_s=case.deaths_s)
    return world


@cache
def unruly(kind: type[Succession]) -> type[Succession]:
    """The same world, with all that may befall it."""
    return type(f"Unruly{kind.__name__}", (Unrest, kind), {})


def _kind_of(case: Case) -> type[Succession]:
    if case.kind == "depot":
        return DriverGangDepotWorld if case.width > 1 else DriverDepotWorld
    return {"live": DriverWorld, "gangs": DriverGangWorld, "tiers": DriverTierWorld}[case.kind]


def play(case: Case) -> Played:
    """Play one case and judge it; whatever goes wrong on the way is a violation."""
    world, law, what = world_of(case), "", ""
    world.ws.recount = _RECOUNT
    try:
        world.play()
        world.judge()
    except Violation as violation:
        law, what = violation.law.value, violation.what
    except Exception as error:  # a bug that a law does not name is one too
        law, what = "no exception", f"{type(error).__name__}: {error}"
    state = world.ws.state
    ending = state.outcome.ending if state.outcome is not None else None
    return Played(
        case=case,
        law=law,
        what=what,
        story=tuple(_told(world))[-_STORY_LINES:] if law else (),
        ending="succeeded" if ending is Ending.SUCCEEDED else ending.value if ending is not None else "",
        faults=tuple(sorted(world.faults)),
        generations=state.generation,
        events=world.ws.taken,
        kinds=tuple(sorted(kind.__name__ for kind in world.ws.kinds)),
        given=tuple(sorted(kind.__name__ for kind in world.ws.command_kinds)),
        seconds=world.now_s,
        digest=world.ws.history.hexdigest(),
    )


def _told(world: Succession) -> Iterator[str]:
    for at_s, event, commands in world.ws.story:
        yield f"{at_s:9.3f}  {event}"
        yield from (f"           -> {command}" for command in commands)


def shrink(case: Case, law: str, tries: int = 60) -> Case:
    """A smaller case that breaks the same law: fewer kinds of faults, fewer deaths, fewer steps, a smaller group.

    Args:
        tries: cases that are played at most.
    """
    smaller = True
    while smaller and tries > 0:
        smaller = False
        for candidate in _simpler(case):
            if tries <= 0:
                break
            tries -= 1
            if play(candidate).law == law:
                case, smaller = candidate, True
                break
    return case


def _simpler(case: Case) -> Iterator[Case]:
    plan: Any = case.plan
    for place in range(len(case.deaths_s)):
        yield replace(case, deaths_s=case.deaths_s[:place] + case.deaths_s[place + 1 :])
    for fault in FAULTS:
        if getattr(plan, fault):
            yield replace(case, plan=replace(plan, **{fault: 0.0}))
    tiers = case.tiers or {}
    for name in _LUXURIES:
        if tiers.get(name):
            yield replace(case, tiers={**tiers, name: 0})
    if plan.steps > 10:
        yield replace(case, plan=replace(plan, steps=plan.steps // 2))
    if plan.spares:
        yield replace(case, plan=replace(plan, spares=0))
    if not plan.in_order:
        yield replace(case, plan=replace(plan, in_order=True))
    low, high = plan.replicas
    if high > max(2, low):
        yield replace(case, plan=replace(plan, replicas=(low, high - 1)))


def to_plain(case: Case) -> dict[str, Any]:
    """As JSON holds it."""
    return {**asdict(case), "tiers": dict(case.tiers) if case.tiers is not None else None}


def from_plain(plain: Mapping[str, Any]) -> Case:
    """What `to_plain` has made; what is not known any more is left out."""
    known = {field.name for field in fields(Plan)}
    plan = {name: value for name, value in plain["plan"].items() if name in known}
    return Case(
        seed=plain["seed"],
        kind=plain["kind"],
        plan=Plan(**{**plan, "replicas": tuple(plan["replicas"])}),
        width=plain["width"],
        deaths_s=tuple(plain["deaths_s"]),
        tiers=plain["tiers"],
    )


def scenario_of(case: Case) -> str:
    """What happens in it, in one line; what does not is left out."""
    plain, usual = to_plain(case), asdict(Plan(replicas=(0, 0)))
    told = {name: value for name, value in plain["plan"].items() if value != usual[name]}
    told |= {name: plain[name] for name in ("width", "deaths_s", "tiers") if plain[name] not in (1, (), None)}
    return ", ".join(f"{name}={_short(value)}" for name, value in told.items())


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return f"({', '.join(f'{name}={_short(one)}' for name, one in value.items() if one)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def replay_command(case: Case, file: str = "") -> str:
    """What plays it again; `file`: where the case is kept, which one that was made smaller needs."""
    if file:
        return f"elastic simulate campaign --case {file} --story"
    return f"elastic simulate campaign --first {case.seed} --seeds 1 --steps {case.plan.steps} --story"
