"""Effect. `ray job submit` of a whole example, on hosts whose memory is their own: stopped, and gone on from peers.

Each host is a network namespace with its own address and its own /dev/shm; all of Ray asks for a token.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.hosts import Hosts, why_not
from benchmarks.remains import pids_on
from elastic.checkpoint.vault import open_vault
from tests.cluster.test_submit import free_ports, wait_for
from tests.lines import whole_lines

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

ROOT = Path(__file__).parents[2]
TOKEN = "0123456789abcdef" * 4
COMMAND_S = 300.0
BYTES_PER_S = 500_000  # a snapshot of the model takes half a minute; a job that is stopped has 3 s
SETTINGS: dict[str, Any] = {
    "name": "bytes",
    "scaling": {"num_dp_replicas": [2, 2], "resources_per_worker": {"CPU": 1}},
    "limits": {"start_timeout_s": 240, "hang_floor_s": 60, "exit_timeout_s": 60},
    "checkpoint": {"local_interval": {"steps": 1}, "persistent_interval": {"steps": 100_000}, "peers": 1},
}
# A host that is gone is given up in seconds, as the manifests have it.
HEALTH = {"initial_delay_ms": "1000", "period_ms": "500", "timeout_ms": "500", "failure_threshold": "3"}


@dataclass(frozen=True, slots=True)
class Jobs:
    """A cluster that takes jobs; `folder` has what is submitted, and what it writes."""

    hosts: Hosts
    dashboard: str
    folder: Path

    def ray(self, *command: str, check: bool = True) -> str:
        """Ray's own command line, of a user who has the token; what it says."""
        ray = str(Path(sys.executable).parent / "ray")
        done = subprocess.run(
            [ray, "job", command[0], "--address", self.dashboard, *command[1:]],
            env=dict(self.hosts.environment),
            cwd=self.folder / "work",
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        said = done.stdout + done.stderr
        assert not check or done.returncode == 0, said
        return said

    def submit(self, job: str, steps: int, *options: str, **checkpoint: Any) -> str:
        """The example, with what `fit` is configured with beside it; what the command says."""
        tier = {**SETTINGS["checkpoint"], "persistent": str(self.folder / "store"), **checkpoint}
        settings = {**SETTINGS, "checkpoint": tier, "run_dir": str(self.folder / "run")}
        (self.folder / "work" / "run.yaml").write_text(yaml.safe_dump(settings))
        environment = json.dumps({"env_vars": {"ELASTIC_CONFIG": "run.yaml"}})
        how = ["--submission-id", job, "--working-dir", ".", "--runtime-env-json", environment, *options]
        return self.ray("submit", *how, "--", "python", "examples/bytes_gpt.py", "--steps", str(steps))

    def durable(self) -> int:
        """The newest step that the persistent tier holds, -1 if it holds none."""
        commits = open_vault(str(self.folder / "store"), "bytes").commits()
        return commits[0].commit.step if commits else -1

    def journal(self, event: str) -> list[dict[str, Any]]:
        """Lines of the run's last life."""
        lines = whole_lines(self.folder / "run" / "journal.jsonl")
        begins = max(number for number, line in enumerate(lines) if line.get("event") in ("RunStarted", "RunTakenOver"))
        return [line for line in lines[begins:] if event in (line.get("event"), line.get("checkpoint"))]

    def has(self, title: str, host: str) -> bool:
        """Whether a process of this title runs on a host."""
        return any(title in _title(pid) for pid in pids_on(host))


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    folder = Path(tempfile.mkdtemp(prefix="ej", dir="/tmp"))
    (folder / "work" / "examples").mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "bytes_gpt.py", folder / "work" / "examples")
    (folder / "token").write_text(TOKEN)
    dashboard, agent, agent_grpc = free_ports(3)
    head = ("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}")
    head += (f"--dashboard-agent-listen-port={agent}", f"--dashboard-agent-grpc-port={agent_grpc}")
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token"), "HOME": str(folder)}
    environment |= {f"RAY_health_check_{name}": value for name, value in HEALTH.items()}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    try:
        with Hosts((), head, environment) as hosts:
            made = Jobs(hosts, f"http://127.0.0.1:{dashboard}", folder)
            for _ in range(2):
                hosts.add(1, has_own_memory=True)
            wait_for(lambda: "Error" not in made.ray("list", check=False), "no dashboard takes jobs")  # of a connection
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_stopped_job_is_pushed_on_without_it_and_the_next_one_goes_on_from_peers(jobs: Jobs) -> None:
    first, second = jobs.hosts.slots
    jobs.submit("first", 100_000, "--no-wait", upload_bytes_per_s=BYTES_PER_S)
    wait_for(lambda: steps_told(jobs, "first") >= 20, "the job does not train")
    began_s = time.monotonic()
    jobs.ray("stop", "first")
    assert "was stopped" in jobs.ray("status", "first")
    log = jobs.ray("logs", "first")
    (saved,) = {int(step) for step in re.findall(r"the driver was told to end \(SIGTERM\)\); step (\d+) is saved", log)}
    assert "ExitedError" not in log, "it waited for the upload, and was killed"
    assert re.search(r"^generation 1: 2 replicas", log, flags=re.MULTILINE), "progress comes as lines"

    # Workers go at once; the actors that hold their last step push it on, and commit it, with no driver left.
    wait_for(lambda: not any(jobs.has("WorkerActor", one) for one in (first, second)), "slots are not freed", 15)
    assert all(jobs.has("CheckpointReplica", one) for one in (first, second))
    assert jobs.durable() < saved, f"the upload took less than {time.monotonic() - began_s:.0f} s"
    wait_for(lambda: jobs.durable() == saved, f"step {saved} does not become durable: {jobs.durable()}")

    # One host is lost, one is new, and storage keeps the names of all, and no bytes.
    jobs.hosts.lose(first)
    third = jobs.hosts.add(1, has_own_memory=True)
    taken = [path.unlink() for path in (jobs.folder / "store" / "bytes" / "steps").rglob("chunk-*")]
    assert taken
    nodes_before = {line["node"] for line in jobs.journal("WorkerPlaced")}
    log = jobs.submit("second", saved + 21)
    assert f"{saved + 21} steps, 0 incidents, world sizes [2]" in log and "succeeded" in log

    restored = {line["worker"]: line for line in jobs.journal("Restored")}
    (resumed,) = {line["commit"]["step"] for line in restored.values()}
    assert len(restored) == 2 and resumed >= saved  # who trained until it was saved may have kept a later one, too
    places = {worker: [place.rsplit(" ", 1) for place in line["places"]] for worker, line in restored.items()}
    assert {place.split()[0] for found in places.values() for place, _ in found} <= {"memory", "peer"}, places
    assert all(sum(int(nbytes) for _, nbytes in found) > 0 for found in places.values())

    # What the new host has of it has come over the network, from the memory of the one that was left.
    placed = {line["worker"]: line["node"] for line in jobs.journal("WorkerPlaced")}
    (newcomer,) = {worker for worker in restored if placed[worker] not in nodes_before}
    (stayed,) = {placed[worker] for worker in restored} & nodes_before
    brought = [line for line in jobs.journal("Prefetch") if line["node"] == placed[newcomer]]
    by_actor = bool(brought) and {node for line in brought for shard in line["sources"] for node in shard} == {stayed}
    assert by_actor or all(place == f"peer node {stayed[:12]}" for place, _ in places[newcomer]), (places, brought)
    assert jobs.durable() == saved + 20

    def is_empty() -> bool:
        return not any(jobs.has("CheckpointReplica", one) for one in (second, third))

    wait_for(is_empty, "the actors of a run that has ended stay", 30)


def steps_told(jobs: Jobs, job: str) -> int:
    """The last step of the lines that the log of a job has."""
    told = re.findall(r"^step +(\d+)  loss \d", jobs.ray("logs", job, check=False), flags=re.MULTILINE)
    return int(told[-1]) if told else -1
