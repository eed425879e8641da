"""Effect. gs:// in a real run: replica actors upload, all that is on nodes is lost, and the next driver restores."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.actors.peer_source import replica_actors
from elastic.actors.replica import end_replicas
from elastic.checkpoint.vault import open_vault
from tests.cluster.ray_processes import is_gone
from tests.cluster.training import read_lines, regression
from tests.effects.gcs_server import GcsServer
from tests.lines import whole_lines

pytestmark = pytest.mark.timeout(180)

RUN, URL = "in-the-cloud", "gs://bucket/runs"
WIDTH = 40_000  # 9.6 MB: resumable uploads
NEWER = 1 << 30  # incarnation of somebody whom all actors obey
DRIVER = """
import sys
from pathlib import Path
import ray
from ray import cloudpickle
from tests.cluster import test_checkpoint_gcs, training
cloudpickle.register_pickle_by_value(training)
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
test_checkpoint_gcs.fit(Path(sys.argv[2]), steps=100_000)
"""


def fit(folder: Path, steps: int) -> Any:
    return elastic.fit(
        regression(folder, steps, width=WIDTH),
        name=RUN,
        scaling=elastic.Scaling(num_dp_replicas=2, resources_per_worker={"CPU": 1}),
        limits=elastic.Limits(start_timeout_s=120, hang_floor_s=30),
        checkpoint=elastic.Checkpoint(persistent=URL, local_interval=elastic.Interval(steps=1)),
        run_dir=folder / "run",
    )


def journal(folder: Path) -> list[dict[str, Any]]:
    path = folder / "run" / "journal.jsonl"
    return whole_lines(path) if path.exists() else []


def durable(folder: Path) -> list[int]:
    told = [line for line in journal(folder) if line.get("checkpoint") == "CheckpointRung"]
    return [line["commit"]["step"] for line in told if line["rung"] == "durable"]


def lose_all_nodes(folder: Path) -> None:
    """As far as tests can: workers are killed, then the actors end, with their copies and the slots of their nodes."""
    pids = {line["pid"] for line in read_lines(folder)}
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + 30
    while not all(map(is_gone, pids)):
        assert time.monotonic() < deadline_s, "a worker lives"
        time.sleep(0.05)
    end_replicas(RUN, NEWER)
    while replica_actors(RUN):
        assert time.monotonic() < deadline_s, "an actor lives"
        time.sleep(0.05)
    for slot in Path("/dev/shm").glob(f"elastic-{RUN}@*.slot"):  # what was being uploaded
        slot.unlink()


@pytest.mark.slow
def test_a_cluster_is_lost_and_the_next_driver_restores_from_gcs(hosts: Any, gcs: GcsServer, tmp_path: Path) -> None:
    refused = gcs.fail("status", method="POST", path="upload", times=2)
    cut = gcs.fail("cut", method="PUT", path="upload")
    command = [sys.executable, "-c", DRIVER, hosts.address, str(tmp_path)]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 120
        while not durable(tmp_path):
            assert time.monotonic() < deadline_s and driver.poll() is None
            time.sleep(0.05)
    finally:
        driver.kill()
        driver.wait(30)
    lose_all_nodes(tmp_path)
    assert (refused.struck, cut.struck) == (2, 1), "the uploads met no fault"
    kept = [one.commit.step for one in open_vault(URL, RUN).commits()]
    assert kept[0] >= max(durable(tmp_path)), "what was told to be durable is not there"

    before = len(gcs.requests)
    result = fit(tmp_path, steps=kept[0] + 20)
    assert result.steps == kept[0] + 20
    restored = [line for line in journal(tmp_path) if line.get("event") == "Restored"]
    assert {line["commit"]["step"] for line in restored} == {kept[0]}
    read = [one for one in gcs.requests[before:] if one.startswith("GET") and "alt=media" in one and "chunk-" in one]
    assert read, "no payload came from there"
