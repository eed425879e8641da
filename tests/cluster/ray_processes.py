"""Effect. A run whose cluster loses processes of Ray, one after the other, each together with a worker."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

import elastic
from elastic.actors.processes import process_state
from elastic.callbacks import Callback
from elastic.control.state import RunState
from elastic.control.values import StepReport
from tests.cluster.second_faults import Strike
from tests.cluster.training import regression

STEPS = 2500
REPLICAS = 3
GONE_S = 10.0
STRUCK_S = 60.0
_LINES = {
    "dashboard": "/ray/dashboard/dashboard.py",
    "log_monitor": "/ray/_private/log_monitor.py",
    "autoscaler": "/ray/autoscaler/_private/monitor.py",
    "gcs_server": "/gcs_server",
    "dashboard_agent": "ray::DashboardAgent",
    "runtime_env_agent": "ray::RuntimeEnvAgent",
    "host_monitor": "ray::HostMonitor",
}


def found(victim: str) -> list[int]:
    """Pids in this cluster by what they are, lowest first.

    An agent of Ray that gives itself a name writes over its environment; its raylet's line tells whose it is.
    """
    pids = []
    for pid in (int(path.name) for path in Path("/proc").glob("[0-9]*")):
        try:
            is_ours = any(os.environ["RAY_TMPDIR"] in line(one) for one in (pid, parent(pid)))
            if is_ours and _LINES[victim] in line(pid):
                pids.append(pid)
        except OSError:
            continue
    return sorted(pids)


def line(pid: int) -> str:
    """What it was started as, or calls itself."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_gone(pid: int) -> bool:
    """Waits for the end of a process that was killed."""
    deadline_s = time.monotonic() + GONE_S
    while process_state(pid) not in ("", "Z", "X") and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return process_state(pid) in ("", "Z", "X")


@dataclass
class Killer(Callback):
    """Kills the next victim, and a worker, once all replicas train; when all are done, the rest is trained quickly.

    With a `strike` the worker comes first, and the victim at that point of what follows.
    """

    cluster: Any
    folder: Path
    victims: list[str]
    strike: Strike | None = None
    faults: list[dict[str, Any]] = field(default_factory=list)
    next_step: int = 10

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        if report.commit.step < self.next_step:
            return
        if not self.victims:
            (self.folder / "enough").touch()
            return
        if state.replicas < REPLICAS or any(one.resumed_at_s is None for one in state.incidents):
            return
        victim, worker = self.victims.pop(0), state.members[-1]
        struck_s, has_ended = self._kill(victim, worker.pid)
        told = {"victim": victim, "worker": worker.name, "is_gone": has_ended, "struck_s": struck_s}
        self.faults.append(told)
        self.next_step = report.commit.step + 20

    def _kill(self, victim: str, worker: int) -> tuple[float, bool]:
        """When the victim was killed, and whether it has ended; the GCS server is started again."""
        killed: list[int] = []
        struck_s: float | None = time.time()
        if self.strike is None:
            killed += self._end(victim)
            os.kill(worker, signal.SIGKILL)
        else:
            self.strike.arm(lambda: killed.extend(self._end(victim)))
            os.kill(worker, signal.SIGKILL)
            deadline_s = time.monotonic() + STRUCK_S
            while (struck_s := self.strike.struck_s) is None and time.monotonic() < deadline_s:
                time.sleep(0.01)
        has_ended = bool(killed) and all(map(is_gone, killed))
        if victim == "gcs_server":
            time.sleep(2.0)  # until somebody starts it again
            self.cluster.head_node.start_gcs_server()
        return struck_s or 0.0, has_ended

    def _end(self, victim: str) -> list[int]:
        if victim == "gcs_server":
            head = self.cluster.head_node
            killed = [head.all_processes["gcs_server"][0].process.pid]
            head.kill_gcs_server(check_alive=False)
            return killed
        killed = found(victim)[:1]
        if victim.endswith("agent"):  # not of the node that this process is connected to
            here = ray.get_runtime_context().get_node_id()
            raylets = {
                node.all_processes["raylet"][0].process.pid
                for node in self.cluster.worker_nodes
                if node.node_id != here
            }
            killed = [pid for pid in found(victim) if parent(pid) in raylets][:1]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        return killed


def survive(cluster: Any, folder: Path, point: str, victims: Sequence[str]) -> dict[str, Any]:
    """Args: point: of the handling of a worker's death, at which each victim is killed; empty: before the worker."""
    strike = Strike(point, lambda: None) if point else None
    killer = Killer(cluster, folder, list(victims), strike)
    with strike or contextlib.nullcontext():
        result = elastic.fit(
            regression(folder, STEPS, pause_s=0.02, until=folder / "enough"),
            name="survivor",
            scaling=elastic.Scaling(num_dp_replicas=(1, REPLICAS)),
            # One node loses all of these workers; the next one shall not have to wait until it is trusted again.
            limits=elastic.Limits(start_timeout_s=120, hang_floor_s=30, flap_losses=len(victims) + 1),
            callbacks=[killer],
            run_dir=folder / "run",
        )
    return {
        "steps": result.steps,
        "faults": killer.faults,
        "culprits": [list(incident.culprits) for incident in result.incidents],
        "world_sizes": result.world_sizes,
        "nodes_left": sum(node["Alive"] for node in ray.nodes()),
        "survivor": "w0",
    }
