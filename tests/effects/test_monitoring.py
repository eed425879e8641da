"""Effect. The alert rules, as Prometheus' own tool reads them, and stories in which they must, and must not, go off."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from elastic.actors.ray_metrics import RayMetrics
from elastic.actors.series import GpuSeries
from elastic.control.hardware import GpuReading
from elastic.control.metrics import OF_RUNS, WAITS_FOR
from elastic.control.moments import IncidentOpened, IncidentResolved
from elastic.control.state import RunState, WorkerRecord
from elastic.control.values import NOTHING_COMMITTED, CommitId, Incident, IncidentClass, Member, StepReport, View
from elastic.settings import RunSettings

MONITORING = Path(__file__).parents[2] / "kuberay" / "monitoring"
RULES = MONITORING / "elastic-rules.yaml"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (apt install prometheus)")


def promtool(*arguments: object) -> str:
    done = subprocess.run([PROMTOOL, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def alerts() -> list[str]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return [rule["alert"] for rule in group["rules"]]


def seen(durable: str, steps: str, running: str, pid: int = 0) -> dict[str, str]:
    """Of one driver: the newest durable step, the steps so far, and whether it trains."""
    where = f'run="r",pid="{pid}"'
    phase = f'phase{{{where},phase="running"}}'
    return {f'rung_step{{{where},rung="durable"}}': durable, f"steps_total{{{where}}}": steps, phase: running}


def waiting(what: str) -> dict[str, str]:
    """Of a run that waits for that; empty: it does not."""
    series = {f'waits_for{{run="r",what="{one}"}}': f"{int(one == what)}x60" for one in WAITS_FOR}
    return {**series, 'phase{run="r",phase="waiting"}': f"{int(bool(what))}x60"}


# What is seen each minute, from minute 0 on, in the notation of promtool: start+step x times. `on` goes off, `off` not.
STORIES: dict[str, dict[str, dict[str, str]]] = {
    "ElasticNoProgress": {
        "on": {'steps_total{run="r"}': "50x60", 'phase{run="r",phase="running"}': "1x60"},
        "on, though it never made a step": {'phase{run="r",phase="running"}': "1x60"},
        "on, with a new driver that makes none": {
            'steps_total{run="r",pid="1"}': "50+1x20",
            'phase{run="r",pid="1",phase="running"}': "1x20",
            'phase{run="r",pid="2",phase="running"}': "_x22 1x37",
        },
        "off": {'steps_total{run="r"}': "50+1x60", 'phase{run="r",phase="running"}': "1x60"},
        "off, since it has just begun": {'phase{run="r",phase="running"}': "_x45 1x14"},
        "off, since it has waited until now": {
            'steps_total{run="r"}': "50x60",
            'phase{run="r",phase="waiting"}': "1x44 0x15",
            'phase{run="r",phase="running"}': "0x44 1x15",
        },
        "off, since it waits": {'steps_total{run="r"}': "50x60", 'phase{run="r",phase="running"}': "0x60"},
    },
    "ElasticBelowMinimum": {
        "on": waiting("workers"),
        "off": waiting(""),
        "off, since it is paused": waiting("hold"),
        "off, since it restores": waiting("restore"),
    },
    "ElasticGoodputLow": {"on": {'goodput{run="r"}': "0.8x60"}, "off": {'goodput{run="r"}': "0.95x60"}},
    "ElasticIncidentStorm": {
        "on": {'incidents_total{run="r",class="worker lost"}': "0+1x60"},
        "on, with the first ones of their class": {'incidents_total{run="r",class="worker lost"}': "0x30 6x29"},
        "off": {'incidents_total{run="r",class="worker lost"}': "0x30 3x29"},
    },
    "ElasticResumeSlow": {
        "on": {
            'resumes_total{run="r",class="node lost"}': "0+1x60",
            'resume_seconds_total{run="r",class="node lost"}': "0+90x60",
        },
        "on, with the first one of its class": {
            'resumes_total{run="r",class="node lost"}': "0x30 1x29",
            'resume_seconds_total{run="r",class="node lost"}': "0x30 90x29",
        },
        "off": {
            'resumes_total{run="r",class="node lost"}': "0x30 1x29",
            'resume_seconds_total{run="r",class="node lost"}': "0x30 2x29",
        },
        "off, since nothing was lost": {
            'resumes_total{run="r",class="node lost"}': "0x60",
            'resume_seconds_total{run="r",class="node lost"}': "0x60",
        },
    },
    "ElasticBudgetLow": {
        "on": {'budget_left{run="r",class="worker lost"}': "1x60"},
        "off": {'budget_left{run="r",class="worker lost"}': "10x60"},
    },
    "ElasticCheckpointDegraded": {
        "on": {'rung_degraded{run="r",rung="replicated"}': "1x60"},
        "off": {'rung_degraded{run="r",rung="replicated"}': "0x60"},
    },
    "ElasticDurableStale": {
        "on": seen("7x240", "0+9x240", "1x240"),
        "on, though nothing ever was durable": seen("-1x240", "0+9x240", "1x240"),
        "on, with a new driver that knows of none": {
            **seen("7x100", "0+9x100", "1x100", pid=1),
            **seen("_x110 -1x129", "_x110 0+9x129", "_x110 1x129", pid=2),
        },
        "off": seen("7+1x240", "0+9x240", "1x240"),
        "off, since it is young": seen("_x190 7x49", "_x190 0+9x49", "_x190 1x49"),
        "off, since its first one is young": seen("-1x200 7x39", "0+9x240", "1x240"),
        "off, since its driver is dead": seen("-1x90 7x110", "0+9x200", "1x200"),
        "off, since it has ended": seen("-1x90 7x149", "0+9x200 1800x39", "1x200 0x39"),
        "off, since its last driver made one durable": {
            **seen("-1x150 7x50", "0+9x200", "1x200", pid=1),
            **seen("_x205 7x35", "_x205 0+9x35", "_x205 1x35", pid=2),
        },
    },
    "ElasticStraggler": {
        "on": {'straggler_score{run="r",worker="w3"}': "2x60"},
        "off": {'straggler_score{run="r",worker="w3"}': "1.2x60"},
    },
}


@needs_promtool
def test_the_rules_are_rules():
    assert f"{len(alerts())} rules found" in promtool("check", "rules", RULES)


def test_every_alert_has_its_stories():
    assert set(STORIES) == set(alerts())
    page = (MONITORING.parents[1] / "docs" / "metrics.md").read_text()
    assert all(f"| `{name}` |" in page for name in alerts())


@needs_promtool
@pytest.mark.parametrize("name", STORIES)
def test_an_alert_goes_off_when_it_must_and_not_else(name, tmp_path):
    (rule,) = [one for one in yaml.safe_load(RULES.read_text())["groups"][0]["rules"] if one["alert"] == name]
    stories = []
    for kind, series in STORIES[name].items():
        minutes = 240 if name == "ElasticDurableStale" else 59
        # Only that it goes off is asked for: labels and sentences are the rule's own.
        query = f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)'
        stories.append(
            {
                "interval": "1m",
                "input_series": [{"series": f"ray_elastic_{key}", "values": value} for key, value in series.items()],
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": f"{minutes}m",
                        "exp_samples": [{"labels": "{}", "value": float(kind.startswith("on"))}],
                    }
                ],
            }
        )
    assert rule["annotations"]["summary"] and rule["annotations"]["description"]
    story = tmp_path / "story.yaml"
    story.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": stories}))
    promtool("test", "rules", story)


# --- what is handed to Ray --------------------------------------------------------------------------------------------


class Recorded:
    """Stands for a metric of Ray's."""

    def __init__(self, metric) -> None:
        self.metric, self.values = metric, {}

    def _key(self, tags):
        assert set(tags) == {"run", *self.metric.tags}
        return tuple(tags.values())

    def set(self, value, tags):
        self.values[self._key(tags)] = value

    def observe(self, value, tags):
        self.values.setdefault(self._key(tags), []).append(value)


@pytest.fixture
def recorded():
    made = {}

    def make(metric):
        made[metric.name] = Recorded(metric)
        return made[metric.name]

    return RayMetrics("night", make), made


def state(**slowness: float) -> RunState:
    members = tuple(Member(name, "h", 1) for name in slowness)
    view = View(run="r", incarnation=1, generation=1, members=members, resume=NOTHING_COMMITTED, donors=(0,), behind=())
    workers = {name: WorkerRecord(name=name, slowness=score) for name, score in slowness.items()}
    return RunState(settings=RunSettings(run="night"), view=view, workers=workers)


def report(step: int) -> StepReport:
    when = {"started_at_s": 1.0, "committed_at_s": 1.5}
    return StepReport(commit=CommitId(1, 1, 1, step, "s"), metrics={}, replicas=1, samples=4, **when)


def test_what_happens_between_two_looks_is_not_lost(recorded):
    metrics, made = recorded
    for step in range(5):
        metrics.on_step(report(step), state(w0=1.0), 0.5)
    lost = Incident(number=0, kind=IncidentClass.NODE_LOST, opened_at_s=1.0)
    metrics.on_moment(IncidentOpened(run="night", at_s=1.0, step=3, incident=lost))
    metrics.on_moment(IncidentResolved(run="night", at_s=1.0, step=3, incident=lost, seconds=2.0))
    metrics.on_end()
    assert made["steps_total"].values == {("night",): 5} and made["samples_total"].values == {("night",): 20}
    assert made["step_seconds"].values == {("night",): [0.5] * 5}
    assert made["incidents_total"].values["night", "node lost"] == 1
    assert made["resumes_total"].values["night", "node lost"] == 1
    assert made["resume_seconds_total"].values["night", "node lost"] == 2.0
    assert made["goodput"].values == {("night",): 0.5}


def test_counters_are_there_before_there_is_anything_to_count(recorded):
    """Else the first incident of a class is no increase."""
    metrics, made = recorded
    metrics.on_state(state(w0=1.0))
    for name in ("incidents_total", "resumes_total", "resume_seconds_total"):
        assert made[name].values == {("night", kind.value): 0 for kind in IncidentClass}
    assert made["notices_total"].values == made["steps_total"].values == {("night",): 0}
    metrics.on_step(report(0), state(w0=1.0), 0.5)
    made["steps_total"].values.clear()  # Ray forgets what it hears once
    metrics.on_end()
    metrics.on_end()
    assert made["steps_total"].values == {("night",): 1}


def test_a_series_that_is_not_told_any_more_goes_to_zero(recorded):
    metrics, made = recorded
    metrics.on_state(state(w0=1.0, w1=3.0))
    assert made["straggler_score"].values == {("night", "w1"): 3.0}
    metrics.on_state(state(w0=1.0, w1=1.0))
    metrics.on_end()
    assert made["straggler_score"].values == {("night", "w1"): 0.0}


def test_all_metrics_are_made_once(recorded):
    assert set(recorded[1]) == {one.name for one in OF_RUNS}


def gpu(index: int, **seen) -> GpuReading:
    return GpuReading(
        **{"device": f"GPU-{index}", "index": index, "pci": "p", "power_w": 350.0, "utilization": 97, **seen}
    )


def test_the_gpus_of_a_node_are_told_until_they_are_lost():
    made = {}
    shown = GpuSeries("night", "n1", lambda metric: made.setdefault(metric.name, Recorded(metric)))
    assert made == {}, "a node without GPUs has no such series"
    shown.show([gpu(0, memory_used_bytes=50, memory_bytes=80, temperature_c=45), gpu(1)])
    assert made["gpu_power_watts"].values == {("night", "n1", "0"): 350.0, ("night", "n1", "1"): 350.0}
    assert made["gpu_utilization"].values["night", "n1", "0"] == 0.97
    assert [made[f"gpu_{name}"].values for name in ("memory_used_bytes", "memory_bytes", "temperature_celsius")] == [
        {("night", "n1", "0"): value} for value in (50, 80, 45)
    ]
    shown.show([gpu(0), gpu(1, lost="it is gone")])
    assert made["gpu_power_watts"].values == {("night", "n1", "0"): 350.0, ("night", "n1", "1"): 0.0}
    assert made["gpu_memory_bytes"].values == {("night", "n1", "0"): 0.0}
