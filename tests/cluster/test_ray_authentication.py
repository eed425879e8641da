"""Effect. A cluster with Ray's token authentication: all works for who has Ray's token, nothing for who has not."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OURS = "0123456789abcdef" * 4
ANSWER_S = 120.0

# A run on two nodes with checkpoints: a worker is killed, then a command of another process tunes it.
DRIVER = """
import os, signal, subprocess, sys, threading
from pathlib import Path
import ray
from ray import cloudpickle
from ray.cluster_utils import Cluster
import elastic
from tests.cluster import training
from tests.cluster.training import At, regression

folder = Path(sys.argv[1])
cloudpickle.register_pickle_by_value(training)
cluster = Cluster()
cluster.add_node(num_cpus=0, include_dashboard=False, object_store_memory=80 << 20)
for _ in range(2):
    cluster.add_node(num_cpus=2, object_store_memory=80 << 20)
(folder / "address").write_text(cluster.address)
told = []

def tune():
    command = [sys.executable, "-c", "from elastic.cli import main; main()", "tune", "guarded", "--lr-factor", "0.5"]
    told.append(subprocess.run([*command, "--address", cluster.address], capture_output=True, text=True))

tuning = threading.Thread(target=tune)

def act(state):
    os.kill(state.members[1].pid, signal.SIGKILL)
    tuning.start()

try:
    ray.init(address=cluster.address, log_to_driver=False)
    kept = elastic.Checkpoint(persistent=str(folder / "store"), local_interval=elastic.Interval(steps=1))
    result = elastic.fit(
        regression(folder, steps=200, pause_s=0.02),
        name="guarded",
        scaling=elastic.Scaling(num_dp_replicas=(1, 2)),
        limits=elastic.Limits(start_timeout_s=120, hang_floor_s=30),
        checkpoint=kept,
        callbacks=[At(10, act)],
        run_dir=folder / "run",
    )
    tuning.join(60)
    assert result.steps == 200 and result.world_sizes[:2] == [2, 1], result
    assert told and told[0].returncode == 0, told
    print(told[0].stdout)
    print("waiting", flush=True)
    sys.stdin.readline()
finally:
    ray.shutdown()
    cluster.shutdown()
"""

STRANGER = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False)
    ray.get(ray.remote(lambda: 1).remote(), timeout=30)
except Exception as error:
    print("refused:", type(error).__name__)
else:
    print("let in")
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, since Ray puts sockets below it."""
    directory = tempfile.mkdtemp(prefix="ea", dir="/tmp")
    yield Path(directory)
    shutil.rmtree(directory, ignore_errors=True)


def start(code: str, folder: Path, name: str, token: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process with a token for Ray, and a home of its own; what it says of errors goes to a file there."""
    home = folder / name
    home.mkdir()
    (home / "ray_token").write_text(token)
    (home / "ray_token").chmod(0o600)
    (home / "script.py").write_text(code)
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(home / "ray_token"), "HOME": str(home)}
    environment |= {"RAY_TMPDIR": str(folder), "PYTHONPATH": str(Path(__file__).parents[2])}
    with (home / "stderr").open("w") as stderr:
        return subprocess.Popen(
            [sys.executable, str(home / "script.py"), *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )


def test_a_run_trains_survives_and_is_tuned_where_ray_asks_for_a_token(folder: Path) -> None:
    driver = start(DRIVER, folder, "driver", OURS, str(folder))
    assert driver.stdout is not None
    try:
        lines = []
        while (line := driver.stdout.readline()) not in ("", "waiting\n"):
            lines.append(line)
        assert line == "waiting\n", (folder / "driver" / "stderr").read_text()
        assert any("guarded is tuned from step" in line for line in lines), lines
        address = (folder / "address").read_text()
        stranger, _ = start(STRANGER, folder, "stranger", OURS[::-1], address).communicate(timeout=ANSWER_S)
        assert "refused: " in stranger
        friend, _ = start(STRANGER, folder, "friend", OURS, address).communicate(timeout=ANSWER_S)
        assert "let in" in friend, (folder / "friend" / "stderr").read_text()
        driver.communicate("\n", timeout=ANSWER_S)
        assert driver.returncode == 0, (folder / "driver" / "stderr").read_text()
        written = [path for path in (folder / "run").rglob("*") if path.is_file()]
        assert written and not any(OURS in path.read_text(errors="replace") for path in written)
    finally:
        if driver.poll() is None:
            driver.send_signal(signal.SIGINT)
            driver.communicate(timeout=ANSWER_S)
