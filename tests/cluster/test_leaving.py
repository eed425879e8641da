"""Effect. How a run is left: Ctrl-C, a driver that dies, and what remains of it: nothing."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import training
from tests.lines import whole_lines

pytestmark = pytest.mark.timeout(500)

SCRIPT = """
import sys
from pathlib import Path
import elastic
from tests.cluster import training
from ray import cloudpickle

if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(training)
    width = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    train_fn = training.regression if width == 1 else training.fully_sharded
    elastic.fit(
        train_fn(Path(sys.argv[1]), 100_000),
        scaling=elastic.Scaling(num_dp_replicas=2 // width, workers_per_replica=width),
        limits=elastic.Limits(orphan_lease_s=8),
        run_dir=Path(sys.argv[1]) / "run",
        name=Path(sys.argv[1]).name,
        address=sys.argv[2] if len(sys.argv) > 2 else None,
    )
"""


def started(tmp_path: Path, *arguments: str) -> Any:
    """A driver in a process of its own, once its workers have committed a step."""
    process = training.start_python(SCRIPT, tmp_path, str(tmp_path), *arguments)
    deadline_s = time.monotonic() + 240
    while not any(line["event"] == "committed" for line in lines_so_far(tmp_path)):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline_s, "no step within 240 s"
        time.sleep(0.1)
    return process


def lines_so_far(tmp_path: Path) -> list[dict[str, Any]]:
    """Read again if one was being written."""
    for _ in range(1000):
        try:
            return training.read_lines(tmp_path)
        except ValueError:
            time.sleep(0.01)
    raise AssertionError("no line was ever whole")


def worker_pids(tmp_path: Path) -> set[int]:
    return {line["pid"] for line in lines_so_far(tmp_path)}


def wait_until_gone(pids: set[int], within_s: float) -> set[int]:
    """Pids that are still there at the deadline."""
    deadline_s = time.monotonic() + within_s
    while pids and time.monotonic() < deadline_s:
        pids = {pid for pid in pids if Path(f"/proc/{pid}").exists()}
        time.sleep(0.1)
    return pids


def test_ctrl_c_ends_workers_and_the_local_cluster(tmp_path: Path) -> None:
    process = started(tmp_path)
    pids = worker_pids(tmp_path)
    assert len(pids) == 2
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=150)
    assert process.returncode in (130, -signal.SIGINT), stderr
    assert wait_until_gone(pids, 60) == set()
    assert not list(Path("/dev/shm").glob(f"elastic-{tmp_path.name}*"))
    last = whole_lines(tmp_path / "run" / "journal.jsonl")[-2:]
    assert last[0]["outcome"]["ending"] == "stopped" and last[1]["phase"] == "ended"


@pytest.mark.parametrize("width", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_workers_of_a_dead_driver_leave_by_themselves(hosts: Any, width: int, tmp_path: Path) -> None:
    """They wait out the orphan lease, then free their slots: of a replica's workers, who share them, the last does."""
    import ray

    process = started(tmp_path, hosts.address, str(width))
    pids = worker_pids(tmp_path)
    free = ray.available_resources().get("CPU", 0)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert wait_until_gone(pids, 1) == pids, "they left before the lease was over"
    assert wait_until_gone(pids, 90) == set()
    deadline_s = time.monotonic() + 30
    while ray.available_resources().get("CPU", 0) < free + 2:
        assert time.monotonic() < deadline_s, "their slots were not freed"
        time.sleep(0.2)
