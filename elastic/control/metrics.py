"""Pure. What is measured of a run and of its GPUs, by name; from reports, states, moments and looks to samples."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from elastic.control.care import Bucket
from elastic.control.hardware import GpuReading
from elastic.control.moments import (
    IncidentOpened,
    IncidentResolved,
    Moment,
    NodeQuarantined,
    NoticeHeard,
    Resized,
    RungDegraded,
    RungReached,
)
from elastic.control.state import Phase, RunState, Standing
from elastic.control.values import IncidentClass, Rung, StepReport

PREFIX = "elastic_"
WAITS_FOR = ("workers", "hold", "restore")
SLOWEST = 16  # workers whose scores are told: a series for each of thousands would cost more than it tells
SLOW = 1.1


class MetricKind(Enum):
    """How samples of a metric add up."""

    GAUGE = "gauge"  # the newest counts
    COUNTER = "counter"  # all are summed
    HISTOGRAM = "histogram"  # each is counted in its bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Something that is measured.

    Attributes:
        name: unit last. tags: beside `run`, which each has. bounds: of a histogram's buckets, ascending.
        known: of a counter with one tag, the values that it is told of from the start, as 0.
    """

    name: str
    kind: MetricKind
    what: str
    tags: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    known: tuple[str, ...] = ()

    @property
    def zeros(self) -> tuple[tuple[str, ...], ...]:
        """Tags of the series that a counter begins with: one that began with an amount would show no increase."""
        return tuple((value,) for value in self.known) if self.tags else ((),)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric, with the values of its tags in their order."""

    name: str
    value: float
    tags: tuple[str, ...] = ()


_STEP_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_RESUME_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_OF_CLASSES, _CLASSES = ("class",), tuple(kind.value for kind in IncidentClass)
_G, _C, _H = MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.HISTOGRAM

OF_RUNS = (
    Metric(name="step", kind=_G, what="the last stable update"),
    Metric(name="steps_total", kind=_C, what="stable updates; those told again after a rewind count again"),
    Metric(name="samples_total", kind=_C, what="samples in them"),
    Metric(name="step_seconds", kind=_H, what="from an update's beginning to its commit", bounds=_STEP_S),
    Metric(name="callback_seconds_total", kind=_C, what="that worker callbacks took on the leader", tags=("callback",)),
    Metric(name="replicas", kind=_G, what="of the current generation"),
    Metric(name="replicas_least", kind=_G, what="below so many the run pauses"),
    Metric(name="spares", kind=_G, what="workers parked at the door"),
    Metric(name="generation", kind=_G, what="number of the current generation"),
    Metric(name="resizes_total", kind=_C, what="generations of another size than the one before"),
    Metric(name="phase", kind=_G, what="1 for the phase that the run is in, 0 for the others", tags=("phase",)),
    Metric(name="waits_for", kind=_G, what="1 for what the run waits for: workers, hold, restore", tags=("what",)),
    Metric(name="goodput", kind=_G, what="productive share of this life of the driver, 0 to 1"),
    Metric(name="incidents_total", kind=_C, what="incidents that were opened", tags=_OF_CLASSES, known=_CLASSES),
    Metric(name="incidents_open", kind=_G, what="incidents under treatment"),
    Metric(name="resumes_total", kind=_C, what="incidents that ended with a commit", tags=_OF_CLASSES, known=_CLASSES),
    Metric(
        name="resume_seconds_total",
        kind=_C,
        what="from their first signals to these commits",
        tags=_OF_CLASSES,
        known=_CLASSES,
    ),
    Metric(name="resume_seconds", kind=_H, what="the same, in buckets", tags=_OF_CLASSES, bounds=_RESUME_S),
    Metric(name="notices_total", kind=_C, what="announced losses of nodes or workers"),
    Metric(name="budget_left", kind=_G, what="incidents that may yet be mended the usual way", tags=("class",)),
    Metric(name="quarantined_nodes", kind=_G, what="nodes that the policy gives no worker"),
    Metric(name="quarantines_total", kind=_C, what="quarantines that began"),
    Metric(name="straggler_score", kind=_G, what="times the group's median, of the slowest", tags=("worker",)),
    Metric(name="straggler_score_max", kind=_G, what="of the slowest worker"),
    Metric(
        name="rung_step",
        kind=_G,
        what="newest step on a rung of the checkpoint ladder; -1: what was there is lost; durable: -1 before any",
        tags=("rung",),
    ),
    Metric(name="rung_lag_steps", kind=_G, what="stable updates since that step", tags=("rung",)),
    Metric(name="rung_bytes", kind=_G, what="of the newest step there, all copies together", tags=("rung",)),
    Metric(name="rung_degraded", kind=_G, what="1 while a rung has less than asked for, as copies", tags=("rung",)),
)
_GPU = ("node", "gpu")
OF_GPUS = (
    Metric(name="gpu_utilization", kind=_G, what="share of the time in which the GPU computed, 0 to 1", tags=_GPU),
    Metric(name="gpu_memory_used_bytes", kind=_G, what="of the GPU's memory, by all processes", tags=_GPU),
    Metric(name="gpu_memory_bytes", kind=_G, what="that the GPU has", tags=_GPU),
    Metric(name="gpu_power_watts", kind=_G, what="that the GPU draws", tags=_GPU),
    Metric(name="gpu_temperature_celsius", kind=_G, what="of the GPU", tags=_GPU),
)
METRICS = (*OF_RUNS, *OF_GPUS)
BY_NAME = {one.name: one for one in METRICS}


def of_steps(reports: list[StepReport], goodput: float) -> Iterator[Sample]:
    """Steps that have become stable, in their order; at least one."""
    yield Sample("step", reports[-1].commit.step)
    yield Sample("goodput", goodput)
    yield Sample("steps_total", len(reports))
    if samples := sum(one.samples for one in reports):
        yield Sample("samples_total", samples)
    costs: dict[str, float] = {}
    for one in reports:
        yield Sample("step_seconds", max(0.0, one.committed_at_s - one.started_at_s))
        for name, seconds in one.costs.items():
            costs[name] = costs.get(name, 0.0) + seconds
    for name, seconds in costs.items():
        yield Sample("callback_seconds_total", seconds, (name,))


def of_state(state: RunState) -> Iterator[Sample]:
    """Where the run stands."""
    now_s, checkpoint = state.seen_s or 0.0, state.settings.checkpoint
    low, _ = state.settings.scaling.bounds
    yield Sample("replicas", state.replicas)
    yield Sample("replicas_least", low)
    yield Sample("spares", len(state.standing(Standing.PARKED)))
    yield Sample("generation", state.generation)
    yield Sample("incidents_open", sum(one.resumed_at_s is None for one in state.incidents))
    yield Sample("quarantined_nodes", sum(until_s > now_s for until_s in state.care.quarantine.values()))
    for phase in Phase:
        yield Sample("phase", float(phase is state.phase), (phase.value,))
    for what in WAITS_FOR:
        yield Sample("waits_for", float(what == _waits_for(state)), (what,))
    yield from _budgets(state, now_s)
    yield from _scores(state)
    for rung in Rung:
        step = state.care.tier_steps.get(rung.name.lower())
        if step is not None:
            yield Sample("rung_step", step, (rung.name.lower(),))
            yield Sample("rung_lag_steps", max(0, state.published - step), (rung.name.lower(),))
        elif rung is Rung.DURABLE and checkpoint is not None and checkpoint.persistent:
            yield Sample("rung_step", -1, (rung.name.lower(),))  # what is missing can be watched only if it is told


def of_moment(moment: Moment) -> Iterator[Sample]:
    """What a moment adds."""
    match moment:
        case IncidentOpened():
            yield Sample("incidents_total", 1, (moment.incident.kind.value,))
        case IncidentResolved():
            yield Sample("resumes_total", 1, (moment.incident.kind.value,))
            yield Sample("resume_seconds_total", max(0.0, moment.seconds), (moment.incident.kind.value,))
            yield Sample("resume_seconds", max(0.0, moment.seconds), (moment.incident.kind.value,))
        case Resized():
            yield Sample("resizes_total", 1)
        case NoticeHeard():
            yield Sample("notices_total", 1)
        case NodeQuarantined():
            yield Sample("quarantines_total", 1)
        case RungReached():
            copies = 1 if moment.rung is Rung.DURABLE else max(1, moment.copies)
            yield Sample("rung_bytes", moment.nbytes * copies, (moment.rung.name.lower(),))
        case RungDegraded():
            yield Sample("rung_degraded", float(bool(moment.reason)), (moment.rung,))


def of_gpus(node: str, gpus: Iterable[GpuReading]) -> Iterator[Sample]:
    """What a look at the GPUs of a node has shown; nothing of one that is lost, or does not tell it."""
    for gpu in gpus:
        seen = {
            "gpu_utilization": None if gpu.utilization is None else gpu.utilization / 100,
            "gpu_memory_used_bytes": gpu.memory_used_bytes,
            "gpu_memory_bytes": gpu.memory_bytes,
            "gpu_power_watts": gpu.power_w,
            "gpu_temperature_celsius": gpu.temperature_c,
        }
        for name, value in seen.items():
            if value is not None and not gpu.lost:
                yield Sample(name, float(value), (node, str(gpu.index)))


def _waits_for(state: RunState) -> str:
    """One of `WAITS_FOR`, empty while it does not wait; where too few are there for a restore, these come first."""
    if state.phase is not Phase.WAITING:
        return ""
    if state.care.hold is not None:
        return "hold"
    there = len(state.standing(Standing.PARKED)) + len(state.standing(Standing.MEMBER))
    is_enough = there // state.width >= state.settings.scaling.bounds[0]
    return "restore" if state.restore is not None and is_enough else "workers"


def _budgets(state: RunState, now_s: float) -> Iterator[Sample]:
    limits = state.settings.limits
    size = float(limits.budget_incidents)
    for kind in IncidentClass:
        bucket = state.care.budgets.get(kind, Bucket(left=size, at_s=now_s))
        yield Sample("budget_left", bucket.level(now_s, size, limits.budget_refill_s), (kind.value,))


def _scores(state: RunState) -> Iterator[Sample]:
    members = sorted(state.members, key=lambda one: -one.slowness)
    if members:
        yield Sample("straggler_score_max", members[0].slowness)
    for one in members[:SLOWEST]:
        if one.slowness >= SLOW:
            yield Sample("straggler_score", one.slowness, (one.name,))


def table() -> str:
    """All metrics, in Markdown."""
    rows = [f"| `{PREFIX}{one.name}` | {one.kind.value} | {', '.join(one.tags)} | {one.what} |" for one in METRICS]
    return "\n".join(["| metric | kind | tags | what it is |", "|---|---|---|---|", *rows]) + "\n"
