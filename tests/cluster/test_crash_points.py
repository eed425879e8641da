"""Effect. C2 on Ray: at each point of a checkpoint's way its actor, raylet, node, supervisor or driver is killed.

The trainer dies with each of them (`crash_points.py`), so the run goes on from the tiers: from a whole committed step,
not older than the ladder had promised. Its own points, with nobody else, `tests/chaos/test_crashes.py` plays.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.actors import equipment
from elastic.callbacks import Callback
from elastic.control.values import View
from tests.chaos import crashing
from tests.cluster import crash_points
from tests.cluster.crash_points import STEPS, Strike, forking_with_point, journal, promised, striking
from tests.cluster.test_fit import control_plane_pids
from tests.cluster.training import relative_difference
from tests.crash_matrix import POINTS, RAY, SPREADING, VICTIMS
from tests.effects.helpers import process_state

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

MATRIX = [(point, victim) for victim in VICTIMS for point in POINTS if (point, victim) in RAY]
DRIVER = """
import sys
from pathlib import Path
import ray
from tests.cluster import test_crash_points as test
test.by_value()
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
folder = Path(sys.argv[2])
test.fit(folder, test.Strike(sys.argv[3], "driver", folder))
"""


class Introducing(Callback):
    """Writes down who drives and who decides, for those who strike."""

    def __init__(self, strike: Strike) -> None:
        self._strike = strike

    def on_generation(self, view: View) -> None:
        self._strike.note("driver", os.getpid())
        self._strike.note("supervisor", max(control_plane_pids("ray::Guard"), default=0))


def by_value() -> None:
    from ray import cloudpickle

    for module in (crash_points, crashing):
        cloudpickle.register_pickle_by_value(module)


def fit(folder: Path, strike: Strike | None) -> Any:
    """A run of one worker; where its node goes, on nodes that are there for that."""
    (folder / "memory").mkdir(parents=True, exist_ok=True)
    is_uploaded = strike is not None and strike.point in (*SPREADING, "forking")
    every, keep = elastic.Interval(steps=1), elastic.Keep(last=1 if strike and strike.point == "deleting" else 2)
    store = {"persistent": str(folder / "store"), "persistent_interval": every, "keep": keep} if is_uploaded else {}
    is_bound = strike is not None and strike.victim in ("raylet", "node")
    resources = {"CPU": 1, "doomed": 1} if is_bound else {"CPU": 1}
    usual = equipment.slots_in
    equipment.slots_in = crash_points.keep_with_points(strike) if strike is not None else usual
    try:
        with forking_with_point(strike):
            return elastic.fit(
                striking(strike, folder),
                name=f"crash-{strike.point}-{strike.victim}" if strike is not None else "crash-clean",
                scaling=elastic.Scaling(num_dp_replicas=1, resources_per_worker=resources),
                limits=elastic.Limits(start_timeout_s=120, hang_floor_s=100),
                checkpoint=elastic.Checkpoint(local_interval=every, memory=str(folder / "memory"), **store),
                callbacks=[Introducing(strike)] if strike is not None else [],
                run_dir=folder / "run",
            )
    finally:
        equipment.slots_in = usual


@pytest.fixture(scope="module")
def clean(hosts: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    by_value()
    return fit(tmp_path_factory.mktemp("clean"), None).value


@contextmanager
def doomed_nodes(hosts: Any) -> Iterator[None]:
    """Two nodes with room for a worker each; a raylet that is killed is waited for, as init does."""
    nodes = [hosts.add_node(num_cpus=1, object_store_memory=80 << 20, resources={"doomed": 1}) for _ in range(2)]
    raylets = [info.process for node in nodes for info in node.all_processes["raylet"]]
    is_over = threading.Event()

    def reap() -> None:
        while not is_over.wait(0.05):
            for raylet in raylets:
                raylet.poll()

    reaping = threading.Thread(target=reap, daemon=True)
    reaping.start()
    try:
        yield
    finally:
        is_over.set()
        reaping.join()
        for node in nodes:
            hosts.remove_node(node, allow_graceful=False)


def is_dead(pid: int) -> bool:
    try:
        return process_state(pid) == "Z"
    except FileNotFoundError:
        return True


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def first_driver(hosts: Any, folder: Path, strike: Strike) -> None:
    """One that is killed."""
    command = [sys.executable, "-c", DRIVER, hosts.address, str(folder), strike.point]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, said = driver.communicate(timeout=120)
        assert driver.returncode == -9, said[-2000:]
    finally:
        driver.kill()
        driver.wait()


@pytest.mark.parametrize(("point", "victim"), MATRIX)
def test_c02_killed_on_the_way_of_a_checkpoint(point: str, victim: str, hosts: Any, clean: Any, tmp_path: Path) -> None:
    strike = Strike(point, victim, tmp_path)
    if victim == "driver":
        first_driver(hosts, tmp_path, strike)
        result = fit(tmp_path, strike)
    elif victim in ("raylet", "node"):
        with doomed_nodes(hosts):
            result = fit(tmp_path, strike)
    else:
        result = fit(tmp_path, strike)
    assert strike.mark.exists(), f"nobody came to {point}"
    struck_s, pid = strike.mark.stat().st_mtime, int(strike.mark.read_text())
    until(lambda: is_dead(pid), f"the {victim} lives")
    assert result.steps == STEPS
    assert relative_difference(result.value, clean) < 1e-12
    restored = [line for line in journal(tmp_path) if line.get("event") == "Restored" and line["t"] > struck_s]
    assert restored, "nothing was restored"
    promise = max(promised(tmp_path, victim, struck_s), default=-1)
    assert promise >= 0, "nothing was promised before"
    assert all(line["commit"]["step"] >= promise for line in restored)
