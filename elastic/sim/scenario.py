"""Pure. A scenario: a cluster, a job, what fails, and how long everything takes; values, with where they come from.

A scenario is written as a mapping of the sections below. A value is a number, a duration such as "20m", or a mapping
`{value: ..., source: "..."}`; sources are kept beside the values.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, TypeVar

from elastic.control.faults import FaultKind, kind_of, seconds
from elastic.errors import SettingError
from elastic.sim.vocabulary import LEAST, playable, scheduled

T = TypeVar("T")
WAYS = ("restart", "live")
INFINITE = float("inf")
_WHOLE = frozenset(
    {
        "cluster.gpus", "cluster.gpus_per_node", "cluster.nodes_per_replica", "cluster.nodes_per_rack",
        "cluster.racks_per_switch", "cluster.spare_nodes", "job.minimum_replicas", "job.spare_replicas", "job.peers",
    }
)  # fmt: skip
_NEVER = frozenset({"failures.rack_mtbf_s", "failures.switch_mtbf_s", "failures.storage_mtbf_s"})  # where infinite
_OF_NUMBERS = frozenset("0123456789.+-")  # they begin with one of these
_MOST = 1e12  # of anything; more seconds than anything lasts
_BOUNDS = (
    *((where, 1, INFINITE) for where in sorted(_WHOLE) if where.startswith("cluster.") and "spare" not in where),
    *((where, LEAST, INFINITE) for where in ("job.hours", "job.step_s", "times.save_interval_s", *sorted(_NEVER))),
    *((f"failures.{name}_lasts_s", LEAST, INFINITE) for name in ("switch", "storage")),
    ("failures.flapping_up_s", LEAST, INFINITE),
    ("failures.flapping_down_s", LEAST, INFINITE),
    ("failures.per_day", 0.0, 86400.0 / LEAST),
    ("failures.bad_times", 0.0, 1e6),
    ("failures.slow_factor", 1.0, INFINITE),
    ("failures.bad_share", 0.0, 1.0),
    ("failures.flapping_share", 0.0, 1.0),
    ("job.slowdown", 0.0, 0.999),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Machines.

    Attributes:
        gpus: that the job wants. gpus_per_node: GPUs of a machine. nodes_per_replica: machines that hold one copy of
            the model. nodes_per_rack: machines that fail together where a rack does. racks_per_switch: racks that are
            cut off together.
        spare_nodes: machines beside those that the job wants. repair_s: until a machine that has failed is back.
        reset_s: until a machine is back whose GPU needs a reset.
        price_per_gpu_hour: of all machines, spares included; not of those that failures.spot has taken away.
    """

    gpus: int
    gpus_per_node: int = 8
    nodes_per_replica: int = 1
    nodes_per_rack: int = 16
    racks_per_switch: int = 4
    spare_nodes: int = 0
    repair_s: float = 3600.0
    reset_s: float = 120.0
    price_per_gpu_hour: float = 0.0

    @property
    def replicas(self) -> int:
        return self.gpus // (self.gpus_per_node * self.nodes_per_replica)

    @property
    def nodes(self) -> int:
        """That the job wants."""
        return self.replicas * self.nodes_per_replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What runs.

    Attributes:
        hours: wall time that is simulated. step_s: of the full group.
        minimum_replicas: below these it waits. spare_replicas: parked ones, on machines of their own.
        slowdown: share of the time that is lost to stragglers and other drag, with or without failures.
        peers: way "live": machines that hold a copy of what another one has of a snapshot.
    """

    hours: float
    step_s: float = 10.0
    minimum_replicas: int = 0
    spare_replicas: int = 0
    slowdown: float = 0.0
    peers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """What fails, and how often.

    Attributes:
        per_day: of the whole cluster. kinds: what they are, by weight; names are those of `elastic chaos`.
        xids: which number an "xid" among them has, by weight.
        rack_mtbf_s: of one rack; all its machines go down together. Infinite: never.
        switch_mtbf_s: of one switch; all machines of its racks are cut off for switch_lasts_s.
        storage_mtbf_s: of the storage; nothing can be saved there or read for storage_lasts_s.
        bad_share: of machines that fail bad_times as often, and come back as bad as they were.
        flapping_share: of machines that come and go: there for flapping_up_s on average, then away for flapping_down_s.
        lasts_s: how long a fault that ends by itself lasts; what stands still or is cut off for less than
            times.detect_hang_s is waited for.
        notice_s: between a notice and the loss of the machine.
        slow_factor: how many times slower a machine with a "slow" fault is, for lasts_s.
        schedule: more of them, as `elastic chaos --schedule` takes it; times count from the start, and without for= one
            lasts as said above, and a stop for good.
        spot: rows of a capacity trace, (seconds, machines that are there); which ones go is drawn.
    """

    per_day: float = 0.0
    kinds: Mapping[FaultKind, float] = field(default_factory=lambda: {FaultKind.NODE_DOWN: 1.0})
    xids: Mapping[int, float] = field(default_factory=dict)
    rack_mtbf_s: float = INFINITE
    switch_mtbf_s: float = INFINITE
    switch_lasts_s: float = 600.0
    storage_mtbf_s: float = INFINITE
    storage_lasts_s: float = 600.0
    bad_share: float = 0.0
    bad_times: float = 10.0
    flapping_share: float = 0.0
    flapping_up_s: float = 3600.0
    flapping_down_s: float = 120.0
    lasts_s: float = 60.0
    notice_s: float = 30.0
    slow_factor: float = 1.5
    schedule: str = ""
    spot: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long everything takes, in seconds.

    Attributes:
        start_s: from the submission to the first step, once; way "live": until its first workers are asked for.
        detect_s: from a crash until somebody acts on it. detect_hang_s: the same for a process that stands still.
        relaunch_s: way "restart": until all processes are back, on machines that are there.
        replace_s: way "restart": more, where another machine has to come first and a spare is there.
        resize_s: way "restart": more, where the job goes on with fewer machines, or with more again.
        load_s: reading the state from a checkpoint. warmup_s: what first steps after a start take longer.
        freeze_s: way "live": until all members have stopped. form_s: until the next group is connected.
        form_per_replica_s: more, for each replica. heal_s: until a joiner has the state.
        place_s: until a machine that is there is given to a new replica. loading_s: until that stands at its door.
        save_interval_s: between two checkpoints. save_stall_s: for which one holds training up.
        save_lag_s: way "restart": until it can be restored from.
        copy_s: way "live": until what a lost machine had of a snapshot is on as many machines again, see job.peers.
        upload_interval_s: way "live": between two checkpoints that outlive all machines; 0: each one does.
    """

    start_s: float = 0.0
    detect_s: float = 1.0
    detect_hang_s: float = 600.0
    relaunch_s: float = 120.0
    replace_s: float = 0.0
    resize_s: float = 0.0
    load_s: float = 60.0
    warmup_s: float = 0.0
    freeze_s: float = 0.05
    form_s: float = 0.1
    form_per_replica_s: float = 0.0
    heal_s: float = 1.0
    place_s: float = 5.0
    loading_s: float = 60.0
    save_interval_s: float = 3600.0
    save_stall_s: float = 0.0
    save_lag_s: float = 0.0
    copy_s: float = 0.0
    upload_interval_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that a simulated run needs to know.

    Attributes:
        way: "restart": all processes end and start anew from the last checkpoint; "live": this library's.
        is_elastic: way "restart": where no spare is there, the job goes on with fewer replicas.
        sources: by "section.name", where a value comes from.
    """

    name: str
    cluster: Cluster
    job: Job
    failures: Failures = field(default_factory=Failures)
    times: Times = field(default_factory=Times)
    way: str = "live"
    is_elastic: bool = True
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise SettingError(f"way={self.way!r} must be one of {', '.join(WAYS)}")
        if not isinstance(self.is_elastic, bool):
            raise SettingError(f"is_elastic={self.is_elastic!r} must be true or false")
        for where, low, high in _BOUNDS:
            bounded(where, attrgetter(where)(self), low, high)
        whole_replicas(self.cluster.gpus, self.cluster.gpus_per_node * self.cluster.nodes_per_replica, "cluster.gpus")
        if self.job.minimum_replicas > self.cluster.replicas:
            asked = f"job.minimum_replicas={self.job.minimum_replicas}"
            raise SettingError(f"{asked} is more than the {self.cluster.replicas} replicas that cluster.gpus makes")
        for name in ("bad_share", "flapping_share"):
            share = getattr(self.failures, name)
            if share and not round(share * self.cluster.nodes):
                least = f"write {1 / self.cluster.nodes:.3g} or more"
                raise SettingError(f"failures.{name}={share!r} of {self.cluster.nodes} machines is none: {least}")
        for kind in self.failures.kinds:
            playable(kind, f"failures.kinds.{kind.value}")
        if FaultKind.XID in self.failures.kinds and not self.failures.xids:
            raise SettingError("failures.kinds.xid: say in failures.xids which, by weight, e.g. {79: 2, 31: 1}")
        scheduled(self.failures.schedule, self.machines)

    @property
    def machine_count(self) -> int:
        """Those of the job and spares."""
        spares = max(self.cluster.spare_nodes, self.job.spare_replicas * self.cluster.nodes_per_replica)
        return self.cluster.nodes + spares

    @property
    def machines(self) -> tuple[str, ...]:
        """Their names, spares last."""
        return tuple(f"n{number}" for number in range(self.machine_count))

    @property
    def end_s(self) -> float:
        return self.job.hours * 3600.0


_SECTIONS: dict[str, type[Any]] = {"cluster": Cluster, "job": Job, "failures": Failures, "times": Times}


def parse(plain: Mapping[str, Any], base: Scenario | None = None) -> Scenario:
    """What a file holds, laid over `base` where one is given.

    Raises:
        SettingError: a section or a value is unknown, missing, or of the wrong kind; names it.
    """
    sources = dict(base.sources) if base is not None else {}
    found: dict[str, Any] = {}
    for section, kind in _SECTIONS.items():
        given = plain.get(section)
        if given is None and base is not None:
            continue
        before = getattr(base, section) if base is not None else None
        found[section] = _section(section, kind, {} if given is None else given, before, sources)
    for name in ("name", "way", "is_elastic"):
        if name in plain:
            found[name] = _bare(name, plain[name], sources)
    if not isinstance(found.get("name", ""), str):
        raise SettingError(f"name={found['name']!r} must be a text: write it in quotes")
    unknown = set(plain) - {*_SECTIONS, "name", "way", "is_elastic", "assumptions", "published"}
    if unknown:
        raise SettingError(
            f"{', '.join(sorted(map(str, unknown)))}: no part of a scenario: {', '.join(_SECTIONS)}, name, way"
        )
    if base is not None:
        return replace(base, **found, sources=sources)
    found.setdefault("name", "scenario")
    return Scenario(**found, sources=sources)


def _section(name: str, kind: type[T], given: Any, before: T | None, sources: dict[str, str]) -> T:
    if not isinstance(given, Mapping):
        raise SettingError(f"{name}={given!r} must be a mapping")
    assert is_dataclass(kind)
    known = {one.name: one for one in fields(kind)}
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            raise SettingError(f"{name}.{key} is unknown: it may be one of {', '.join(known)}")
        bare = _bare(f"{name}.{key}", value, sources)
        values[key] = _READERS.get(f"{name}.{key}", _number)(f"{name}.{key}", bare)
    if before is not None:
        return replace(before, **values)  # type: ignore[type-var]
    needed = (one.name for one in known.values() if one.default is MISSING and one.default_factory is MISSING)
    if missing := [f"{name}.{one}" for one in needed if one not in values]:
        raise SettingError(f"{', '.join(missing)} must be given")
    return kind(**values)


def _bare(where: str, value: Any, sources: dict[str, str]) -> Any:
    """A value without its source, which is kept; the source of what it takes the place of is not.

    Raises:
        SettingError: something else stands beside it.
    """
    sources.pop(where, None)
    if isinstance(value, Mapping) and "value" in value:
        if beside := ", ".join(sorted(map(str, value.keys() - {"value", "source"}))):
            raise SettingError(f"{where}: {beside}: beside its value stands nothing but its source")
        sources[where] = str(value.get("source", ""))
        return value["value"]
    return value


def whole_replicas(gpus: int, gpus_per_replica: int, where: str) -> None:
    """
    Raises:
        SettingError: they make no whole number of replicas; names `where`, and the next sizes that do.
    """
    left = gpus % gpus_per_replica
    if left:
        sizes = [size for size in (gpus - left, gpus - left + gpus_per_replica) if size]
        said = " or ".join(map(str, sizes))
        raise SettingError(f"{where}={gpus} makes no whole replicas of {gpus_per_replica} GPUs: write {said}")


def bounded(where: str, value: float, low: float, high: float = INFINITE) -> None:
    """
    Raises:
        SettingError: it is not between them; names `where`.
    """
    if not low <= value <= high:
        said = f"{low:g} or more" if high == INFINITE else f"from {low:g} to {high:g}"
        raise SettingError(f"{where}={value!r} must be {said}")


def _number(where: str, value: Any) -> Any:
    if isinstance(value, str) and where.endswith("_s"):
        value = seconds(value, f"{where}=", may_be_none=True)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value != value:  # nan; `math.isnan` takes no integer of any size
        raise SettingError(f"{where}={value!r} must be a number")
    if where in _WHOLE and not isinstance(value, int):
        raise SettingError(f"{where}={value!r} must be a whole number")
    if value == INFINITE and where not in _NEVER:
        raise SettingError(f"{where}={value!r} must be finite")
    if value > _MOST and where not in _NEVER:
        raise SettingError(f"{where}={value!r:.40} must be {_MOST:g} or less")
    if value < 0:
        raise SettingError(f"{where}={value!r} must not be negative")
    return value


def _kinds(where: str, value: Any) -> dict[FaultKind, float]:
    if not isinstance(value, Mapping) or not value:
        raise SettingError(f"{where}={value!r} must be weights by the name of a fault")
    return _weights(
        {_kind(where, str(name)): _number(f"{where}.{name}", weight) for name, weight in value.items()}, where
    )


def _kind(where: str, name: str) -> FaultKind:
    try:
        return kind_of(name)
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from None


def _xids(where: str, value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping) or not all(isinstance(code, int) for code in value):
        raise SettingError(f"{where}={value!r} must be weights by the number of an XID")
    return _weights({code: _number(f"{where}.{code}", weight) for code, weight in value.items()}, where)


def _weights(given: Mapping[T, float], where: str) -> dict[T, float]:
    if given and not any(given.values()):
        raise SettingError(f"{where}: one of the weights must be positive")
    return {name: float(weight) for name, weight in given.items()}


def _text(where: str, value: Any) -> str:
    return str(value)


def _spot(where: str, value: Any) -> tuple[tuple[float, int], ...]:
    if not isinstance(value, list) or not all(isinstance(row, list) and len(row) == 2 for row in value):
        raise SettingError(f"{where} must be rows of [seconds, machines]")
    rows = [(_number(f"{where} seconds", at_s), _number(f"{where} machines", there)) for at_s, there in value]
    for _, there in rows:
        if there != int(there):
            raise SettingError(f"{where} machines={there!r} must be a whole number")
    for (before_s, _), (at_s, _) in pairwise(rows):
        if at_s < before_s:
            raise SettingError(f"{where}: {at_s:g} comes after {before_s:g}; order the rows by their seconds")
    return tuple((float(at_s), int(there)) for at_s, there in rows)


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "failures.kinds": _kinds,
    "failures.xids": _xids,
    "failures.schedule": _text,
    "failures.spot": _spot,
}


def spot_rows(text: str) -> list[list[float]]:
    """A capacity trace: lines `seconds,machines`; a first line that names the columns does not count, nor do comments.

    Raises:
        SettingError: a line holds something else; quotes it.
    """
    rows = []
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    for number, line in enumerate(lines):
        try:
            at_s, machines = line.split(",")
            rows.append([float(at_s), float(int(machines))])
        except ValueError:
            if number == 0 and line[0] not in _OF_NUMBERS:
                continue
            raise SettingError(f"{line!r} is no line of a capacity trace: write seconds,machines") from None
    return rows
