"""Effect. A real Prometheus scrapes a real run: what is on the dashboard has values, and they are the run's."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.callbacks import CollectGarbage
from elastic.control.state import RunState, Standing
from tests.cluster.training import At, regression

MONITORING = Path(__file__).parents[2] / "kuberay" / "monitoring"
PROMETHEUS = shutil.which("prometheus")
STEPS = 600
LATE_S = 60.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (apt install prometheus)"),
]

# What of the dashboard has nothing to show in this run: no stragglers, no notices, no GPUs.
EMPTY = ("gpu_", "straggler_score{", "quarantin", "notices_total")
FIRST = {"Incidents in the last day": 1.0}  # what the first of its kind counts for
MANY = 9  # copies on so many other nodes, which the cluster has not


class Prometheus:
    """One that scrapes all nodes of the connected cluster each second."""

    def __init__(self, folder: Path) -> None:
        import ray

        targets = [f"{one['NodeManagerAddress']}:{one['MetricsExportPort']}" for one in ray.nodes() if one["Alive"]]
        jobs = [{"job_name": "ray", "scrape_interval": "1s", "static_configs": [{"targets": targets}]}]
        rules = [str(MONITORING / "elastic-rules.yaml")]
        (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": jobs, "rule_files": rules}))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._url = f"http://127.0.0.1:{free.getsockname()[1]}"
        command = [
            str(PROMETHEUS),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
        ]
        command += [f"--web.listen-address={self._url.removeprefix('http://')}", "--log.level=warn"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """Raises: OSError: it does not answer, or the expression is none."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{query}", timeout=10) as answer:
            found = json.loads(answer.read())
        assert found["status"] == "success", expression
        return found["data"]["result"]

    def eventually(self, expression: str, wanted: float) -> None:
        """Ray hands metrics on every few seconds."""
        deadline_s, got = time.monotonic() + LATE_S, []
        while time.monotonic() < deadline_s:
            try:
                got = self.ask(expression)
            except OSError:
                got = []
            if got and float(got[0]["value"][1]) == wanted:
                return
            time.sleep(0.5)
        raise AssertionError(f"{expression} is {got}, not {wanted}")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture
def prometheus(hosts: Any, tmp_path: Path) -> Iterator[Prometheus]:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    one = Prometheus(folder)
    yield one
    one.close()


def kill_one(state: RunState) -> None:
    members = state.standing(Standing.MEMBER)
    os.kill(members[-1].pid, signal.SIGKILL)


def test_what_a_run_tells_arrives(prometheus: Prometheus, tmp_path: Path) -> None:

    def kill_once_it_is_watched(state: RunState) -> None:
        prometheus.eventually('sum by (run) (ray_elastic_incidents_total{run="scraped"})', 0)
        kill_one(state)

    killer, memory = At(30, kill_once_it_is_watched), tmp_path / "memory"
    memory.mkdir()
    result = elastic.fit(
        regression(tmp_path, steps=STEPS, pause_s=0.05),
        name="scraped",
        scaling=elastic.Scaling(num_dp_replicas=(1, 2)),
        callbacks=[killer, CollectGarbage(every_steps=10)],
        checkpoint=elastic.Checkpoint(
            memory=str(memory),
            persistent=str(tmp_path / "store"),
            local_interval=elastic.Interval(steps=10),
            persistent_interval=elastic.Interval(steps=20),
            peers=MANY,
        ),
        limits=elastic.Limits(start_timeout_s=150),
        run_dir=tmp_path / "run",
    )
    assert killer.fired_s is not None and len(result.incidents) == 1
    kind = result.incidents[0].kind.value
    run = 'run="scraped"'
    prometheus.eventually(f"max by (run) (ray_elastic_step{{{run}}})", STEPS - 1)
    prometheus.eventually(f"sum by (run) (ray_elastic_steps_total{{{run}}})", STEPS)
    prometheus.eventually(f"sum by (run) (ray_elastic_samples_total{{{run}}})", 16 * STEPS)
    prometheus.eventually(f'sum by (run) (ray_elastic_incidents_total{{{run},class="{kind}"}})', 1)
    prometheus.eventually(f"sum by (run) (ray_elastic_resumes_total{{{run}}})", 1)
    prometheus.eventually(f'max by (run) (ray_elastic_phase{{{run},phase="ended"}})', 1)
    for rung in ("local", "replicated", "durable"):
        where = f'{{{run},rung="{rung}"}}'
        prometheus.eventually(f"max by (run) (ray_elastic_rung_step{where}) >= bool 9", 1)
        prometheus.eventually(f"max by (run) (ray_elastic_rung_bytes{where}) > bool 0", 1)
    prometheus.eventually(f'max by (run) (ray_elastic_rung_degraded{{{run},rung="replicated"}})', 1)
    assert float(prometheus.ask(f"max by (run) (ray_elastic_goodput{{{run}}})")[0]["value"][1]) > 0.3
    for title, expression in panels():
        filled = expression.replace("$__rate_interval", "5m").replace("$__range", "5m").replace("$run", "scraped")
        found = prometheus.ask(filled)
        assert found or any(part in expression for part in EMPTY), f"{title}: {filled} shows nothing"
        if title in FIRST:
            assert float(found[0]["value"][1]) >= FIRST[title], f"{title}: {filled} shows {found}"


def panels() -> list[tuple[str, str]]:
    """Titles and expressions of the dashboard."""
    board = json.loads((MONITORING / "elastic-dashboard.json").read_text())
    return [(panel["title"], one["expr"]) for panel in board["panels"] for one in panel.get("targets", ())]
