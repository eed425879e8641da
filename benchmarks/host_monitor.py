"""What a host monitor costs: processor time and memory beyond what an empty actor of Ray costs.

    python -m benchmarks.host_monitor --out host_monitor.json

A local cluster hosts an empty actor and a HostMonitor that watches 8 worker processes, each of which moves its flight
page on, and 8 GPUs of the stand-in driver that the tests compile. Both are left alone for `--seconds`; processor time
is read from /proc/<pid>/stat, memory as USS and RSS from /proc/<pid>/smaps_rollup. The monitor is asked for a beat as
the driver does, every `heartbeat_polling_period_s`, and the empty actor as often for nothing.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import ray

from benchmarks.provenance import provenance
from elastic.actors.monitor import HostMonitor
from elastic.actors.series import GpuSeries
from elastic.control.flight import Flying
from elastic.settings import Health, Limits
from elastic.train.flight import FlightPage

SOURCE = Path(__file__).resolve().parent.parent / "tests" / "effects" / "nvml_standin.c"
GPUS = 8
CORE_SHARE, MIB = 0.01, 40.0  # what is promised
STEP_S = 0.01
DEADLINE_S = 60.0


class Empty:
    """An actor that does nothing."""

    def pid(self) -> int:
        return os.getpid()

    def beat(self, timeout_s: float) -> None:
        time.sleep(timeout_s)


class Monitor(HostMonitor):
    """The real one; says who it is."""

    def pid(self) -> int:
        return os.getpid()

    def has_looked(self) -> bool:
        """Whether all senses have had their first look at the GPUs, and how many there are."""
        senses = self._senses
        assert senses is not None
        return len(senses.gpus(DEADLINE_S) or []) == GPUS


def fly(path: Path, stop: Any) -> None:
    """A worker as its monitor sees it: a page that moves on at every phase."""
    page = FlightPage(path)
    step = 0
    while not stop.wait(STEP_S):
        step += 1
        page.place(generation=1, step=step, attempt=1)
        page.note(Flying.COMPUTING, micro_batch=step % 8)
    page.remove()


def cpu_s(pid: int) -> float:
    """Processor time of a process and its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> dict[str, float]:
    """Resident memory, all of it and what the process alone holds."""
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, size = line.split()[:2]
        sizes[name.rstrip(":")] = int(size) / 1024
    return {"rss": sizes["Rss"], "uss": sizes["Private_Clean"] + sizes["Private_Dirty"]}


def measure(seconds: float, workers: int) -> dict[str, Any]:
    """Both actors side by side; returns what each took."""
    period_s = Limits().heartbeat_polling_period_s
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = standin(folder)
        ray.init(address="local", num_cpus=4, include_dashboard=False, runtime_env={"env_vars": environment})
        groups: dict[str, Any] = {"num_cpus": 0, "concurrency_groups": {"events": 1, "control": 2, "health": 2}}
        empty = ray.remote(**groups)(Empty).remote()
        monitor = ray.remote(**groups)(Monitor).remote("n1", True, Health(), show_gpus=GpuSeries("r", "n1").show)
        pids = {"empty": ray.get(empty.pid.remote(), timeout=DEADLINE_S)}
        pids["monitor"] = ray.get(monitor.pid.remote(), timeout=DEADLINE_S)
        assert ray.get(monitor.has_looked.remote(), timeout=DEADLINE_S), "the stand-in's GPUs are not seen"
        context = multiprocessing.get_context("spawn")
        stop = context.Event()
        children = [context.Process(target=fly, args=(folder / f"{one}.page", stop)) for one in range(workers)]
        for child in children:
            child.start()
        watching = [monitor.watch.remote(f"w{i}", one.pid, folder / f"{i}.page") for i, one in enumerate(children)]
        assert all(ray.get(watching, timeout=DEADLINE_S))
        time.sleep(2.0)  # imports of the children, first looks
        before, began_s = {who: cpu_s(pid) for who, pid in pids.items()}, time.monotonic()
        while time.monotonic() - began_s < seconds:
            beats = [empty.beat.remote(period_s), monitor.beat.options(concurrency_group="events").remote(period_s)]
            ray.get(beats, timeout=DEADLINE_S)
        took_s = time.monotonic() - began_s
        result = {
            who: {"core_share": (cpu_s(pid) - before[who]) / took_s, **memory_mib(pid)} for who, pid in pids.items()
        }
        stop.set()
        for child in children:
            child.join(DEADLINE_S)
        ray.shutdown()
    return {"seconds": took_s, **result}


def standin(folder: Path) -> dict[str, str]:
    """Compile the stand-in driver; returns what processes need to find it and its state."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise SystemExit("no C compiler (cc): the stand-in for libnvidia-ml.so.1 can not be built")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run(command, check=True)
    (folder / "state").write_text(f"count {GPUS}\n")
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("LD_LIBRARY_PATH", ""))))
    return {"LD_LIBRARY_PATH": path, "NVML_STANDIN_STATE": str(folder / "state")}


def main() -> None:
    """Measure, write the result, print a short table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the result")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=8)
    args = parser.parse_args()
    origin = provenance()
    measured = measure(args.seconds, args.workers)
    beyond = {name: measured["monitor"][name] - measured["empty"][name] for name in ("core_share", "rss", "uss")}
    is_kept = measured["monitor"]["core_share"] <= CORE_SHARE + measured["empty"]["core_share"] and beyond["rss"] <= MIB
    result = {
        "benchmark": "host_monitor",
        "workers": args.workers,
        "gpus": GPUS,
        **measured,
        "beyond_an_empty_actor": beyond,
        "limits": {"core_share": CORE_SHARE, "mib": MIB},
        "is_kept": is_kept,
        "provenance": origin,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    for who in ("empty", "monitor"):
        one = measured[who]
        print(f"{who:8} {one['core_share']:.3%} of a core, {one['rss']:.1f} MiB resident, {one['uss']:.1f} its own")
    print(
        f"beyond   {beyond['core_share']:.3%} of a core, {beyond['rss']:.1f} MiB resident, {beyond['uss']:.1f} its own"
    )


if __name__ == "__main__":
    main()
