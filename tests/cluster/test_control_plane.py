"""Effect. What may die while training goes on: the supervisor, processes of Ray, a neighbour's workers; and a pause."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.control.state import RunState
from tests.cluster.ray_processes import is_gone
from tests.cluster.second_faults import fell_within
from tests.cluster.test_fit import committed_samples, control_plane_pids
from tests.cluster.test_tuning import Asking
from tests.cluster.training import At, read_lines, regression, start_python
from tests.lines import whole_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LONG_S = 60.0
LIMITS = elastic.Limits(start_timeout_s=120, hang_floor_s=30)
CLI = "from elastic.cli import main\nmain()\n"


def fit(folder: Path, name: str, *callbacks: Any, steps: int = 300, replicas: Any = (1, 2), **pace: Any) -> Any:
    folder.mkdir(exist_ok=True)
    return elastic.fit(
        regression(folder, steps, **pace),
        name=name,
        scaling=elastic.Scaling(num_dp_replicas=replicas),
        limits=LIMITS,
        callbacks=callbacks,
        run_dir=folder / "run",
    )


def journal(folder: Path) -> list[dict[str, Any]]:
    return whole_lines(folder / "run" / "journal.jsonl")


def assert_exactly_once(folder: Path, steps: int) -> None:
    """Each sample of each step, and each report."""
    samples = committed_samples(folder)
    assert (set(samples.values()), len(samples)) == ({1}, steps * 16)
    told = Counter(line["report"]["commit"]["step"] for line in journal(folder) if line.get("event") == "StepStable")
    assert told == Counter(range(steps))
    assert len({line["digest"] for line in read_lines(folder) if line["event"] == "finished"}) == 1


# --- the supervisor ---------------------------------------------------------------------------------------------------


def test_a_fault_while_there_is_no_supervisor_is_handled_when_one_is_back(hosts: Any, tmp_path: Path) -> None:
    faults: dict[str, Any] = {}

    def kill(state: RunState) -> None:
        (supervisor,) = control_plane_pids("ray::Guard")
        os.kill(supervisor, signal.SIGKILL)
        assert is_gone(supervisor)
        os.kill(state.members[1].pid, signal.SIGKILL)
        faults.update(at_s=time.time(), worker=state.members[1].name, supervisor=supervisor)
        deadline_s = time.monotonic() + LONG_S
        while time.monotonic() < deadline_s and not faults.get("next"):
            faults["next"] = [one for one in control_plane_pids("ray::Guard") if one != supervisor]

    saboteur = At(10, kill)
    result = fit(tmp_path, "absent", saboteur)
    (successor,) = faults["next"]
    assert successor != faults["supervisor"]
    (incident,) = result.incidents
    assert incident.culprits == (faults["worker"],) and incident.step is not None
    assert incident.opened_at_s >= faults["at_s"], "nobody was there before"
    assert result.world_sizes[:2] == [2, 1]
    assert_exactly_once(tmp_path, 300)


def test_a_run_is_paused_by_command_and_resumed(hosts: Any, tmp_path: Path) -> None:
    def cli(*arguments: str) -> tuple[int, str]:
        process = start_python(CLI, tmp_path, *arguments, "--address", hosts.address)
        stdout, stderr = process.communicate(timeout=LONG_S)
        return process.returncode, stdout + stderr

    def steps() -> int:
        return len([line for line in read_lines(tmp_path) if line["event"] == "committed"])

    def act() -> Any:
        paused = cli("pause", "held")
        before = steps()
        again = cli("pause", "held")
        after = steps()
        return paused, again, before, after, cli("resume", "held"), cli("resume", "held")

    asking = Asking(act)
    result = fit(tmp_path, "held", asking.callback, steps=1500, replicas=2)
    paused, again, before, after, resumed, twice = asking.result()
    assert paused[0] == 0 and "held is paused; `elastic resume held` has it go on" in paused[1], paused
    assert again[0] == 1 and "the run held is paused already" in again[1]
    assert before == after < 2 * 1500, "nobody trains meanwhile"
    assert resumed[0] == 0 and "held goes on" in resumed[1]
    assert twice[0] == 1 and "is not paused" in twice[1]
    assert (result.world_sizes, result.incidents) == ([2, 2], [])
    assert_exactly_once(tmp_path, 1500)


# --- two runs ---------------------------------------------------------------------------------------------------------


def test_two_runs_share_a_cluster_and_one_does_not_feel_the_others_faults(hosts: Any, tmp_path: Path) -> None:
    """In two threads of one process, each with a supervisor of its own."""
    trains, is_over = threading.Event(), tmp_path / "over"
    quiet = At(3, lambda state: trains.set())
    came: list[Any] = []
    pace = {"pause_s": 0.05, "until": is_over}  # however long the other one takes to start, this one still trains
    neighbour = threading.Thread(
        target=lambda: came.append(fit(tmp_path / "b", "b", quiet, steps=600, replicas=2, **pace))
    )

    def kill(state: RunState) -> None:
        """A worker and the supervisor of this run, once the other one trains."""
        assert trains.wait(2 * LONG_S)
        own = [pid for pid in control_plane_pids("ray::Guard") if pid not in others]
        os.kill(own[0], signal.SIGKILL)
        os.kill(state.members[1].pid, signal.SIGKILL)

    saboteur = At(10, kill)
    neighbour.start()
    assert trains.wait(2 * LONG_S)
    others = set(control_plane_pids("ray::Guard"))
    try:
        result = fit(tmp_path / "a", "a", saboteur)
    finally:
        is_over.touch()
    assert set(control_plane_pids("ray::Guard")) >= others or came, "the other supervisor is the same process"
    neighbour.join(2 * LONG_S)
    (other,) = came
    assert saboteur.fired_s is not None and len(result.incidents) == 1
    resumed_s = result.incidents[0].resumed_at_s
    assert resumed_s is not None
    times_s = [report.committed_at_s for report in quiet.reports]
    assert times_s[0] < saboteur.fired_s and times_s[-1] > resumed_s, "both trained meanwhile"
    assert (other.world_sizes, other.incidents, other.steps) == ([2], [], 600)
    assert_exactly_once(tmp_path / "a", 300)
    assert_exactly_once(tmp_path / "b", 600)


# --- processes of Ray -------------------------------------------------------------------------------------------------

SCRIPT = """
import json, sys
from pathlib import Path
import ray
from ray import cloudpickle
from ray.cluster_utils import Cluster
from tests.cluster import ray_processes, training

cloudpickle.register_pickle_by_value(training)
folder = Path(sys.argv[1])
cluster = Cluster()
try:
    cluster.add_node(num_cpus=0, include_dashboard=True, dashboard_port=0, object_store_memory=80 << 20)
    for _ in range(2):
        cluster.add_node(num_cpus=2, object_store_memory=80 << 20)
    ray.init(address=cluster.address, log_to_driver=False)
    told = ray_processes.survive(cluster, folder, sys.argv[2], sys.argv[3:])
    (folder / "told.json").write_text(json.dumps(told))
finally:
    ray.shutdown()
    cluster.shutdown()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, since Ray puts sockets below it."""
    directory = tempfile.mkdtemp(prefix="ep", dir="/tmp")
    yield Path(directory)
    shutil.rmtree(directory, ignore_errors=True)


def play(folder: Path, *victims: str, point: str = "") -> dict[str, Any]:
    """A run in a cluster of its own, in which these processes are killed; what it tells. `point`: see `survive`."""
    (folder / "script.py").write_text(SCRIPT)
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment |= {"RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "disabled"}
    environment |= {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(folder / "gcs")}
    environment |= {"RAY_gcs_rpc_server_reconnect_timeout_s": "60", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(folder / "script.py"), str(folder), point, *victims]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=270, check=False
    )
    assert done.returncode == 0, done.stderr[-8000:]
    told: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return told


HEAD = ("dashboard", "log_monitor", "autoscaler", "gcs_server")  # what may die of a head node


@pytest.mark.parametrize("point", ["", "forming"], ids=["before a worker does", "while the death of one is handled"])
def test_the_run_goes_on_without_processes_of_ray_and_handles_faults_meanwhile(point: str, folder: Path) -> None:
    """With each of them a worker is killed. The GCS server is started again, as Kubernetes would."""
    told = play(folder, *HEAD, point=point)
    assert [one["victim"] for one in told["faults"]] == list(HEAD)
    assert all(one["is_gone"] for one in told["faults"]), told
    if point:
        assert all(fell_within(one["struck_s"], journal(folder)) for one in told["faults"])
    lost = [one["worker"] for one in told["faults"]]
    assert [culprits for culprits in told["culprits"] if set(culprits) & set(lost)] == [[one] for one in lost]
    assert_exactly_once(folder, told["steps"])
    pids = {line["node"]: line["pid"] for line in read_lines(folder) if line["event"] == "started"}
    ended = {line["pid"] for line in read_lines(folder) if line["event"] == "finished"}
    assert pids[told["survivor"]] in ended, "the first worker is the same process in the end"


@pytest.mark.parametrize("agent", ["dashboard_agent", "runtime_env_agent"])
def test_an_agent_takes_its_node_along_and_the_run_goes_on_with_the_others(agent: str, folder: Path) -> None:
    """Ray's raylet ends with its agents; beside it a worker is killed."""
    told = play(folder, agent)
    (fault,) = told["faults"]
    assert fault["is_gone"], told
    assert fault["worker"] in {name for culprits in told["culprits"] for name in culprits}
    assert told["nodes_left"] == 2, "the head and one of two nodes"
    assert_exactly_once(folder, told["steps"])
