"""Effect. Jobs, on a head with dashboard and agent that asks for a token: logs, stop, and another try that goes on."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.training import read_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
TOKEN = "0123456789abcdef" * 4
START_S, JOB_S = 90.0, 200.0
TRAIN = """
import sys
from pathlib import Path
import elastic
from tests.cluster.training import regression

if int(sys.argv[2]) < 0:
    sys.exit(3)

result = elastic.fit(regression(Path(sys.argv[1]), steps=int(sys.argv[2]), pause_s=0.02))
print("trained", result.steps, "steps", flush=True)
"""
SETTINGS = [
    "scaling.num_dp_replicas=[1, 2]",
    "limits.start_timeout_s=120",
    "limits.hang_floor_s=30",
    "checkpoint.local_interval.steps=1",
    "checkpoint.peers=0",
]


@dataclass(frozen=True, slots=True)
class Head:
    """A running head; `folder` is for jobs."""

    dashboard: str
    environment: dict[str, str]
    folder: Path

    def run(self, *command: str, timeout_s: float = JOB_S) -> subprocess.CompletedProcess[str]:
        """A command of a user who has the token."""
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def submit(self, name: str, steps: int, *options: str) -> subprocess.CompletedProcess[str]:
        """`elastic submit` of a training that writes its lines into `folder / name`."""
        (self.folder / name).mkdir(exist_ok=True)
        settings = [part for one in SETTINGS for part in ("--set", one)]
        job = ["--", "python", str(self.folder / "train.py"), str(self.folder / name), str(steps)]
        command = [sys.executable, "-c", "from elastic.cli import main; main()", "submit", "--name", name]
        return self.run(*command, "--address", self.dashboard, *settings, *options, *job)

    def job(self, verb: str, job: str) -> str:
        ray = str(Path(sys.executable).parent / "ray")
        done = self.run(ray, "job", verb, "--address", self.dashboard, job)
        return done.stdout + done.stderr


def free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    folder = Path(tempfile.mkdtemp(prefix="es", dir="/tmp"))
    (folder / "token").write_text(TOKEN)
    (folder / "train.py").write_text(TRAIN)
    gcs, dashboard, agent, agent_grpc = free_ports(4)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
    environment |= {"RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0", "HOME": str(folder)}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    ray = str(Path(sys.executable).parent / "ray")
    command = [ray, "start", "--head", "--block", "--num-cpus=4", f"--port={gcs}", f"--dashboard-port={dashboard}"]
    command += [f"--dashboard-agent-listen-port={agent}", f"--dashboard-agent-grpc-port={agent_grpc}"]
    command += ["--object-store-memory=100000000", "--include-dashboard=true", "--node-ip-address=127.0.0.1"]
    with (folder / "head.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
    try:
        running = Head(f"http://127.0.0.1:{dashboard}", environment, folder)
        deadline_s = time.monotonic() + START_S
        while running.run(ray, "job", "list", "--address", running.dashboard, timeout_s=60).returncode:
            assert process.poll() is None and time.monotonic() < deadline_s, (folder / "head.log").read_text()
            time.sleep(1)
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def steps_of(folder: Path) -> list[int]:
    return [line["step"] for line in read_lines(folder) if line["event"] == "committed"]


def wait_for(condition: object, why: str, within_s: float = 120.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline_s, why
        time.sleep(0.1)


def test_a_job_trains_and_its_log_is_shown(head: Head) -> None:
    done = head.submit("plain", 30)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained 30 steps" in done.stdout and "succeeded" in done.stderr
    assert set(steps_of(head.folder / "plain")) == set(range(30))


def test_a_job_that_fails_is_a_failure(head: Head) -> None:
    done = head.submit("wrong", -1)
    assert done.returncode == 3 and "failed" in done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("token", [TOKEN[::-1], None])
def test_who_has_not_the_token_submits_nothing(head: Head, token: str | None) -> None:
    folder = head.folder / f"stranger-{token is None}"
    folder.mkdir()
    if token is not None:
        (folder / "token").write_text(token)
    environment = head.environment | {"RAY_AUTH_TOKEN_PATH": str(folder / "token"), "HOME": str(folder)}
    stranger = Head(head.dashboard, environment, folder)
    shutil.copy(head.folder / "train.py", folder)
    done = stranger.submit("stranger", 3)
    assert done.returncode == 1 and not list((folder / "stranger").iterdir()), done.stdout + done.stderr
    assert "Traceback" not in done.stderr and done.stderr.splitlines()[-1].startswith("error: "), done.stderr
    assert "Ray's token" in done.stderr and "RAY_AUTH_TOKEN" in done.stderr


def test_what_a_stopped_job_leaves_in_memory_goes_by_itself(head: Head) -> None:
    job = head.submit("brief", 4000, "--set", "checkpoint.memory_lease_s=20", "--no-wait").stdout.split()[-1]
    wait_for(lambda: max(steps_of(head.folder / "brief"), default=0) >= 20, "the job does not train")
    head.job("stop", job)
    slots = list(Path("/dev/shm").glob("elastic-brief@*.slot"))
    assert slots, "nothing was left, so nothing can go"
    titles = "ray::CheckpointReplica", "ray::WorkerActor"
    assert running(titles[0], head.folder), "nobody keeps what was left"
    assert "is saved" in head.job("logs", job)
    wait_for(lambda: not any(slot.exists() for slot in slots), "slots stay although nobody comes", 60)
    wait_for(lambda: not any(running(title, head.folder) for title in titles), "actors stay although nobody comes", 60)


def running(title: str, folder: Path) -> list[int]:
    """Processes of the cluster in this folder whose command line begins so."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            log = os.readlink(path.with_name("fd") / "1")  # of its cluster's session
            if log.startswith(str(folder)) and path.read_bytes().startswith(title.encode()):
                found.append(int(path.parent.name))
    return found


def test_a_stopped_job_saves_and_the_next_one_goes_on(head: Head) -> None:
    folder = head.folder / "long"
    job = head.submit("long", 400, "--no-wait").stdout.split()[-1]
    wait_for(lambda: folder.exists() and max(steps_of(folder), default=0) >= 20, "the job does not train")
    head.job("stop", job)
    wait_for(lambda: "was stopped" in head.job("status", job), "the job does not stop")
    before = max(steps_of(folder))
    pids = {line["pid"] for line in read_lines(folder)}
    log = head.job("logs", job)
    assert "the driver was told to end (SIGTERM)" in log and "is saved" in log, log[-3000:]
    time.sleep(3)
    assert max(steps_of(folder)) == before, "workers train on although their job was stopped"
    done = head.submit("long", before + 20)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"trained {before + 20} steps" in done.stdout
    again = [line for line in read_lines(folder) if line["event"] == "committed" and line["pid"] not in pids]
    saved = max(int(number) for number in re.findall(r"step (\d+) is (?:saved|the newest)", log))
    assert again and saved < min(line["step"] for line in again) <= before + 1, "from the newest step in memory"
