"""Pure. Metrics: what a run's reports, states and moments add to which series; what is watched exists."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from elastic.control.care import Bucket, Care, Hold
from elastic.control.hardware import GpuReading
from elastic.control.metrics import (
    BY_NAME,
    METRICS,
    OF_RUNS,
    PREFIX,
    WAITS_FOR,
    MetricKind,
    Sample,
    of_gpus,
    of_moment,
    of_state,
    of_steps,
    table,
)
from elastic.control.moments import (
    MOMENTS,
    IncidentDecided,
    IncidentOpened,
    IncidentResolved,
    Moment,
    NodeQuarantined,
    NoticeHeard,
    Resized,
    RungDegraded,
    RungReached,
)
from elastic.control.state import Phase, Restoring, RunState, Standing, WorkerRecord
from elastic.control.values import NOTHING_COMMITTED, CommitId, Incident, IncidentClass, Member, Rung, StepReport, View
from elastic.settings import Checkpoint, Limits, RunSettings, Scaling

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "kuberay" / "monitoring"
SETTINGS = RunSettings(
    run="r", scaling=Scaling(num_dp_replicas=(2, 4)), limits=Limits(budget_incidents=10, budget_refill_s=100)
)
LOST = Incident(number=0, kind=IncidentClass.WORKER_LOST, opened_at_s=10.0)
RESUMED = [
    Sample("resumes_total", 1, ("worker lost",)),
    Sample("resume_seconds_total", 0.5, ("worker lost",)),
    Sample("resume_seconds", 0.5, ("worker lost",)),
]
AT = {"run": "r", "at_s": 12.0, "step": 7}


def report(step: int, seconds: float, samples: int = 8, **costs: float) -> StepReport:
    commit = CommitId(1, 1, 1, step, "s")
    when = {"started_at_s": 100.0, "committed_at_s": 100.0 + seconds}
    return StepReport(commit=commit, metrics={}, replicas=2, samples=samples, costs=costs, **when)


def view(*workers: str) -> View:
    members = tuple(Member(worker, "h", 1) for worker in workers)
    facts = {"resume": NOTHING_COMMITTED, "donors": (0,), "behind": ()}
    return View(run="r", incarnation=1, generation=3, members=members, **facts)


def values(samples: object) -> dict[tuple[str, ...], float]:
    return {(one.name, *one.tags): one.value for one in samples}  # type: ignore[attr-defined]


def test_steps_are_summed_and_each_is_in_the_histogram():
    found = list(of_steps([report(6, 0.5, GC=0.1), report(7, 0.25, GC=0.2, Profile=1.0)], goodput=0.9))
    assert [one.value for one in found if one.name == "step_seconds"] == [0.5, 0.25]
    got = values(found)
    assert got["step",] == 7 and got["goodput",] == 0.9
    assert got["steps_total",] == 2 and got["samples_total",] == 16
    assert got["callback_seconds_total", "GC"] == pytest.approx(0.3)
    assert got["callback_seconds_total", "Profile"] == 1.0


def test_that_nothing_is_durable_yet_is_told_where_something_should_be():
    state = RunState(settings=SETTINGS)
    assert not [one for one in of_state(state) if one.name == "rung_step"]
    state = RunState(settings=replace(SETTINGS, checkpoint=Checkpoint(persistent="/mnt/tier")))
    assert [one for one in of_state(state) if one.name.startswith("rung_")] == [Sample("rung_step", -1, ("durable",))]


def there(*names):
    return {name: WorkerRecord(name=name, standing=Standing.PARKED) for name in names}


@pytest.mark.parametrize(
    "what, more",
    [
        ("workers", {}),
        ("hold", {"care": Care(hold=Hold(reason="paused", until_s=9.0))}),
        ("restore", {"restore": Restoring(), "workers": there("w0", "w1")}),
        ("workers", {"restore": Restoring(), "workers": there("w0")}),
        ("", {"phase": Phase.RUNNING}),
    ],
)
def test_what_is_waited_for_is_told(what, more):
    got = values(of_state(RunState(settings=SETTINGS, **{"phase": Phase.WAITING, **more})))
    assert {one for one in WAITS_FOR if got["waits_for", one]} == ({what} if what else set())


def test_that_a_step_is_lost_is_told():
    care = Care().reached("replicated", 4).reached("local", 8).reached("staged", 8)
    got = values(of_state(RunState(settings=SETTINGS, care=care, published=10)))
    assert got["rung_step", "staged"] == 8 and got["rung_step", "local"] == got["rung_step", "replicated"] == 4
    got = values(of_state(RunState(settings=SETTINGS, care=care.reached("", 8).reached("", 4), published=10)))
    assert got["rung_step", "local"] == -1 and got["rung_lag_steps", "local"] == 11


def test_phases_of_a_step_without_samples_count_as_steps_only():
    assert "samples_total" not in {one.name for one in of_steps([report(0, 0.5, samples=0)], 1.0)}


def test_a_state_tells_where_the_run_stands():
    workers = {
        "w0": WorkerRecord(name="w0", standing=Standing.MEMBER, slowness=1.0),
        "w1": WorkerRecord(name="w1", standing=Standing.MEMBER, slowness=2.5),
        "w2": WorkerRecord(name="w2", standing=Standing.PARKED),
    }
    care = Care(
        quarantine={"n1": 50.0, "n2": 5.0},
        budgets={IncidentClass.WORKER_LOST: Bucket(left=3.0, at_s=0.0)},
        tier_steps={"local": 40, "durable": 20},
    )
    state = RunState(
        settings=SETTINGS,
        phase=Phase.RUNNING,
        workers=workers,
        view=view("w0", "w1"),
        generation=3,
        published=45,
        care=care,
        incidents=(LOST, replace(LOST, number=1, resumed_at_s=11.0)),
        seen_s=10.0,
    )
    got = values(of_state(state))
    assert (got["replicas",], got["replicas_least",], got["spares",], got["generation",]) == (2, 2, 1, 3)
    assert got["incidents_open",] == 1 and got["quarantined_nodes",] == 1
    assert {phase for phase in Phase if got["phase", phase.value]} == {Phase.RUNNING}
    assert got["budget_left", "worker lost"] == pytest.approx(3.1) and got["budget_left", "node lost"] == 10
    assert got["straggler_score_max",] == 2.5 and got["straggler_score", "w1"] == 2.5
    assert ("straggler_score", "w0") not in got
    assert got["rung_lag_steps", "local"] == 5 and got["rung_lag_steps", "durable"] == 25
    assert ("rung_step", "replicated") not in got


def test_the_series_of_slow_workers_are_bounded():
    names = [f"w{number}" for number in range(100)]
    workers = {name: WorkerRecord(name=name, slowness=2.0) for name in names}
    state = RunState(settings=SETTINGS, workers=workers, view=view(*names))
    assert len([one for one in of_state(state) if one.name == "straggler_score"]) == 16


def rung(of: Rung, copies: int, degraded: str = "") -> RungReached:
    facts = {"checkpoint_step": 5, "rung": of, "copies": copies, "degraded": degraded, "reason": "kept"}
    return RungReached(**AT, **facts, nbytes=100)


@pytest.mark.parametrize(
    ("moment", "wanted"),
    [
        (IncidentOpened(**AT, incident=LOST), [Sample("incidents_total", 1, ("worker lost",))]),
        (IncidentResolved(**AT, incident=LOST, seconds=0.5), RESUMED),
        (Resized(**AT, generation=2, replicas_before=3, replicas=2), [Sample("resizes_total", 1)]),
        (NoticeHeard(**AT, node="n", worker="", reason=""), [Sample("notices_total", 1)]),
        (NodeQuarantined(**AT, node="n", until_s=99.0), [Sample("quarantines_total", 1)]),
        (rung(Rung.REPLICATED, 2), [Sample("rung_bytes", 200, ("replicated",))]),
        (rung(Rung.DURABLE, 2), [Sample("rung_bytes", 100, ("durable",))]),
        (rung(Rung.LOCAL, 0, "full"), [Sample("rung_bytes", 100, ("local",))]),
        (RungDegraded(**AT, rung="replicated", reason="full"), [Sample("rung_degraded", 1.0, ("replicated",))]),
        (RungDegraded(**AT, rung="durable", reason=""), [Sample("rung_degraded", 0.0, ("durable",))]),
    ],
    ids=lambda one: one.name if isinstance(one, Moment) else "",
)
def test_a_moment_adds_to_its_series(moment, wanted):
    assert list(of_moment(moment)) == wanted


def test_a_gpu_tells_what_it_knows_and_a_lost_one_nothing():
    known = {"device": "GPU-1", "index": 3, "pci": "p", "utilization": 50, "power_w": 300.5}
    whole = GpuReading(**known, memory_used_bytes=7, memory_bytes=9, temperature_c=60)
    tags = ("n1", "3")
    assert list(of_gpus("n1", [whole, replace(whole, lost="gone")])) == [
        Sample("gpu_utilization", 0.5, tags),
        Sample("gpu_memory_used_bytes", 7.0, tags),
        Sample("gpu_memory_bytes", 9.0, tags),
        Sample("gpu_power_watts", 300.5, tags),
        Sample("gpu_temperature_celsius", 60.0, tags),
    ]
    assert [one.name for one in of_gpus("n1", [GpuReading(**known)])] == ["gpu_utilization", "gpu_power_watts"]


def test_counters_begin_with_the_series_that_are_known():
    zeros = {metric.name: metric.zeros for metric in OF_RUNS if metric.kind is MetricKind.COUNTER}
    assert zeros["steps_total"] == ((),)
    assert zeros["incidents_total"] == tuple((kind.value,) for kind in IncidentClass)


def test_names_are_those_that_prometheus_takes_and_say_their_unit():
    assert all(re.fullmatch(r"[a-z][a-z_]*", one.name) for one in METRICS) and len(BY_NAME) == len(METRICS)
    assert all(one.name.endswith("_total") == (one.kind is MetricKind.COUNTER) for one in METRICS)
    assert all(not one.known or (one.kind is MetricKind.COUNTER and len(one.tags) == 1) for one in METRICS)
    assert all(bool(one.bounds) == (one.kind is MetricKind.HISTOGRAM) for one in METRICS)
    assert len(MOMENTS) == 10, "does the new moment belong to a metric?"


# --- what watches them ------------------------------------------------------------------------------------------------


def known(text: str) -> None:
    """Every series of ours that a text names is exported."""
    used = set(re.findall(rf"\bray_{PREFIX}([a-z_]+)", text))
    assert used, "it watches nothing"
    bases = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in used}
    assert bases <= set(BY_NAME) | {f"{name}_total" for name in BY_NAME}


def test_the_dashboard_shows_what_there_is():
    text = (MONITORING / "elastic-dashboard.json").read_text()
    known(text)
    board = json.loads(text)
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(panel["title"] and panel["targets"] and panel["description"] for panel in panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_the_alerts_watch_what_there_is():
    known((MONITORING / "elastic-rules.yaml").read_text())


def test_every_metric_is_on_the_dashboard_or_in_an_alert():
    text = "".join(path.read_text() for path in MONITORING.iterdir())
    assert {one.name for one in METRICS if f"ray_{PREFIX}{one.name}" not in text} == set()


def test_the_page_lists_them_all():
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert table() in page, "put the output of elastic.control.metrics.table() between its lines"


def test_without_members_nobody_is_slow_and_what_has_no_series_adds_nothing():
    names = {one.name for one in of_state(RunState(settings=SETTINGS))}
    assert "straggler_score_max" not in names and "replicas" in names
    assert list(of_moment(IncidentDecided(**AT, incident=LOST))) == []
