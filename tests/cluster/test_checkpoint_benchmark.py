"""Effect. The benchmark of checkpoints, on next to nothing: every goal has its figure."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_goal_has_its_figure(tmp_path: Path) -> None:
    out = tmp_path / "checkpoint.json"
    command = [sys.executable, "-m", "benchmarks.checkpoint", "--out", str(out), "--bytes", "1MiB", "--repeats", "2"]
    command += ["--restarts", "1", "--trials", "2", "--peer-bytes", "16MiB", "--disk", str(tmp_path)]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    played = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, check=False)
    assert played.returncode == 0, played.stderr[-2000:]
    result = json.loads(out.read_text())
    assert set(result["goals"]) >= {
        "peer_vs_ray_pull",
        "restore_peer_vs_ray_pull",
        "persistent_vs_dcp",
        "restart_restore_s",
    }
    assert all(result[name] > 0 or name == "crc_share" for name in result["goals"])
