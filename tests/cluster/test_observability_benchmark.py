"""Effect. The benchmark of what telling of a run costs, for seconds: what is off is off, and all of it is told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.quadruples import ORDER, Compared, Verdict


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_is_switched_and_what_that_costs_is_told(tmp_path: Path) -> None:
    out = tmp_path / "observability.json"
    command = [sys.executable, "-m", "benchmarks.overhead", "--observability", "--out", str(out), "--workers", "2"]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    played = subprocess.run(
        [*command, "--minutes", "0.4", "--block-seconds", "2"],
        capture_output=True,
        text=True,
        timeout=280,
        env=environment,
        check=False,
    )
    assert played.returncode == 0, played.stderr[-2000:]
    result = json.loads(out.read_text())
    assert result["benchmark"] == "observability" and set(result["provenance"]) >= {"command", "commit", "machine"}
    assert len(result["blocks"]) == 4 * len(ORDER)
    assert set(result["costs"]) == {one.value for one in Compared}
    assert result["verdict"] == Verdict.NOT_RESOLVED.value, "two quadruples say nothing"
    assert result["settings"]["block_s"] == 2.0 and result["reports_viewed"] > 5
    computed = result["cpu_s_per_step"]
    assert set(computed) >= {"driver", "supervisor", "monitors", "page", "workers", "ray"}
    assert computed["page"]["bare"] < 0.1 * computed["page"]["seen"], "it stands still where nothing is told"
    assert computed["driver"]["bare"] < computed["driver"]["seen"]
    assert set(result["processor_costs"]) == set(result["costs"]) and result["processor_verdict"] == "not resolved"
    assert "time of a step, below 0.5 %: not resolved" in played.stdout and "workers" in played.stdout
    assert "processor time, below 0.5 %: not resolved" in played.stdout
