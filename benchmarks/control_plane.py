"""What the control plane costs at many hosts: the supervisor's share of a core, its memory, and how soon it decides.

A real supervisor actor, fed as the driver feeds it; hosts, workers and their relays are made up (`benchmarks.crowd`) in
this process, whose own cost does not count. The crowd starts, trains, loses 1 % of its hosts at once, re-forms and
trains on. A message's time runs from the moment at which it is due, whether or not anybody had the time to send it,
until the commands that follow from it are here.

The pure controller is measured by itself: events a second, one after the other, at 1,024 workers.
"""

import argparse
import dataclasses
import itertools
import json
import math
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from benchmarks.controller_rate import controller_rates
from benchmarks.crowd import Crowd, Loop, Size
from benchmarks.provenance import provenance
from elastic.actors import token
from elastic.actors.asking import supervisor_name
from elastic.actors.brain import RayBrain
from elastic.actors.peer_source import namespace
from elastic.control.state import RunState
from elastic.policies import Ladder

CALM_S = 5.0  # after the start, before anything is measured
_ANSWER_S = 60.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Process:
    """What Linux says of a process."""

    pid: int

    @property
    def cpu_s(self) -> float:
        user, system = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / TICKS_PER_S

    def memory_mib(self, which: str) -> float:
        """`VmRSS` now, `VmHWM` at most so far."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


def measure(size: Size, seconds: float, folder: Path, calm_s: float = CALM_S) -> dict[str, Any]:
    """One size, on the Ray that this process is connected to; the run's token lies in `folder`."""
    settings = size.settings
    drawn = token.draw(folder)
    brain = RayBrain(RunState(settings=settings), Ladder(), drawn)
    try:
        actor = ray.get_actor(supervisor_name(settings.run), namespace=namespace(settings.run))
        supervisor = Process(ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=_ANSWER_S))
        loop = Loop(brain, Crowd(size))
        loop.start()
        loop.run(calm_s)
        loop.waits_s.clear()
        calm_cpu_s, before_s = supervisor.cpu_s, loop.clock()
        loop.run(seconds / 2)
        cpu_s, middle_s = supervisor.cpu_s, loop.clock()
        calm_waits_s, loop.waits_s = loop.waits_s, []
        loop.calls_s.clear()
        loop.run(seconds / 2, fail_after_s=0.0)
        after_cpu_s, after_s = supervisor.cpu_s, loop.clock()
        waits_s = [wait_s for _, wait_s in loop.waits_s] + loop.failure_waits_s
        return {
            "hosts": size.hosts,
            "workers": size.hosts * size.workers_per_host,
            "core_share": (after_cpu_s - calm_cpu_s) / (after_s - before_s),
            "calm_core_share": (cpu_s - calm_cpu_s) / (middle_s - before_s),
            "failing_core_share": (after_cpu_s - cpu_s) / (after_s - middle_s),
            "calm_p99_ms": 1e3 * percentile([wait_s for _, wait_s in calm_waits_s], 0.99),
            "p99_decision_ms": 1e3 * percentile(waits_s, 0.99),
            "longest_decision_ms": 1e3 * max(waits_s),
            "longest_call_ms": 1e3 * max(loop.calls_s),
            "failure_decided_ms": 1e3 * max(loop.failure_waits_s),
            "after_failure_s": loop.moments,
            "messages": len(waits_s),
            "rss_mib": supervisor.memory_mib("VmHWM"),
            "core_us_per_host_s": 1e6 * (after_cpu_s - calm_cpu_s) / (after_s - before_s) / size.hosts,
        }
    finally:
        brain.close()
        token.forget(drawn)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of them does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def exponent(rows: Sequence[dict[str, Any]]) -> float:
    """By which power of the number of hosts the cost of one grows: slope of a line through the logarithms."""
    points = [(math.log(row["hosts"]), math.log(row["core_us_per_host_s"])) for row in rows]
    slope, _ = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
    return slope


def sizes(hosts: int) -> list[int]:
    """A hundredth, a tenth and all of them."""
    return sorted({max(1, hosts // share) for share in (100, 10, 1)})


def main() -> None:
    """Measure, write the result, print a short table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the result")
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--workers-per-host", type=int, default=8)
    parser.add_argument("--hosts-per-relay", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=40.0, help="half of them calm, half from the failure on")
    args = parser.parse_args()
    origin = provenance()
    rates = controller_rates()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    rows = []
    for hosts in sizes(args.hosts):
        size = Size(hosts=hosts, workers_per_host=args.workers_per_host, hosts_per_relay=args.hosts_per_relay)
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(size, args.seconds, Path(folder)))
        print(json.dumps(rows[-1]))
    largest = rows[-1]
    result = {
        "benchmark": "control_plane",
        "core_share": largest["core_share"],
        "p99_decision_ms": largest["p99_decision_ms"],
        "rss_mib": largest["rss_mib"],
        "controller_events_per_s": rates["all"],
        "exponent": exponent(rows) if len(rows) > 1 else None,
        "controller_events_per_s_by_kind": rates,
        "sizes": rows,
        "settings": dataclasses.asdict(size),
        "provenance": origin,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    for key in itertools.islice(result, 1, 6):
        print(f"{key:24} {result[key]}")


if __name__ == "__main__":
    main()
