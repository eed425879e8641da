"""Effect. The demo, as a user calls it: what it writes shows that nothing was lost."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.ledger_checks import booked

pytestmark = pytest.mark.timeout(600)


def demo(out: Path, *options: str) -> dict[str, Any]:
    command = [str(Path(sys.executable).with_name("elastic")), "demo", "--json", "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, env=os.environ | {"COLUMNS": "120"})
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report == json.loads((out / "run.json").read_text())
    return report


@pytest.mark.slow
def test_three_faults_cost_no_step_no_sample_and_no_survivor(tmp_path: Path) -> None:
    """In double precision, where the order of summation cannot hide a lost sample."""
    report = demo(tmp_path, "--float64", "--steps", "120", "--seed", "3")
    assert [fault["kind"] for fault in report["faults"]] == ["kill", "node-lost", "node-added"]
    for fault in report["faults"]:
        assert fault["steps_lost"] == 0
        assert fault["survivor_pids_kept"] == fault["survivors"] > 0
    for fault in report["faults"][:2]:
        assert fault["detected_after_s"] is not None
        assert fault["resumed_after_s"] is not None
    assert report["samples"] == {"committed": 120 * 32, "distinct": 120 * 32, "repeated": 0, "skipped": 0}
    lost = [incident for incident in booked(tmp_path / "faulty" / "journal.jsonl").incidents if incident.culprits]
    assert len(lost) >= 2 and all(incident.cost_s > 0 and incident.decision for incident in lost)
    assert report["digests_equal"]
    assert report["survivor_objects_kept"]
    assert report["param_rel_diff_vs_clean"] <= 1e-9
    assert report["bits_per_byte"] < report["baseline_bits_per_byte"] - 0.5
    assert abs(report["final_loss"] / report["clean_final_loss"] - 1) < 0.005
