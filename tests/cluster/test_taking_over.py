"""Effect. The driver dies, or stands still: `fit` with the same name goes on with its workers, or finds their state."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.actors import asking
from elastic.checkpoint.vault import open_vault
from elastic.control.remediation import Kind, Remediation
from tests.chaos.ledger_checks import booked
from tests.cluster import training
from tests.cluster.test_fit import committed_samples, control_plane_pids
from tests.cluster.training import read_lines, relative_difference
from tests.lines import whole_lines

pytestmark = pytest.mark.timeout(300)

STEPS = 250
SUCCEEDED_S = 5.0  # within which another supervisor goes on with an incident
SLOW = "slow"  # a file: names a step whose update takes long
EVERY = elastic.Interval(steps=10)
DRIVER = """
import sys
from pathlib import Path
import ray
from ray import cloudpickle
from tests.cluster import test_taking_over, training
cloudpickle.register_pickle_by_value(training)
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
test_taking_over.fit(Path(sys.argv[2]), sys.argv[3], **eval(sys.argv[4]))
"""


def fit(
    folder: Path,
    name: str,
    persistent: bool = False,
    orphan_lease_s: float = 60.0,
    steps: int = STEPS,
    policy: str | None = None,
    where: str = "run",
    pool: str = "",
    most: int = 2,
    update_s: float = 0.0,
) -> Any:
    """What all drivers of a run call: their code and settings are the same."""
    checkpoint = None
    if persistent:
        store = {"persistent": str(folder / "store"), "persistent_interval": elastic.Interval(seconds=1)}
        checkpoint = elastic.Checkpoint(local_interval=elastic.Interval(seconds=1000), peers=0, **store)
    return elastic.fit(
        training.updating_slowly(training.regression(folder, steps=steps), folder / SLOW, update_s),
        scaling=elastic.Scaling(
            num_dp_replicas=(1, most),
            resources_per_worker={"CPU": 1},
            supervisor_labels={"pool": "b"},
            label_selector={"pool": pool} if pool else None,
        ),
        limits=elastic.Limits(start_timeout_s=120, hang_floor_s=30, orphan_lease_s=orphan_lease_s),
        checkpoint=checkpoint,
        name=name,
        run_dir=folder / where,
        policy=policy,
    )


class Driver:
    """`fit` in a process of its own, once its workers have committed some steps; killed at the end of the context.

    Args:
        prelude: what the process runs first.
    """

    def __init__(self, hosts: Any, folder: Path, name: str, after: int = 20, prelude: str = "", **options: Any) -> None:
        command = [sys.executable, "-c", prelude + DRIVER, hosts.address, str(folder), name, repr(options)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline_s = time.monotonic() + 120
        try:
            while last_step(folder) < after:
                assert time.monotonic() < deadline_s and self.process.poll() is None, self.process.stderr
                time.sleep(0.05)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def last_step(folder: Path) -> int:
    """That was committed by somebody."""
    try:
        return max((line["step"] for line in read_lines(folder) if line["event"] == "committed"), default=-1)
    except ValueError:  # a line is being written
        return -1


def pids(folder: Path) -> dict[str, int]:
    return {line["node"]: line["pid"] for line in read_lines(folder) if line["event"] == "started"}


def journal(folder: Path, where: str = "run") -> list[dict[str, Any]]:
    return whole_lines(folder / where / "journal.jsonl")


def assert_nothing_lost(folder: Path, result: Any, steps: int = STEPS) -> None:
    """All steps once, told once, all samples once."""
    assert result.steps == steps
    told = Counter(line["report"]["commit"]["step"] for line in journal(folder) if line.get("event") == "StepStable")
    assert told == Counter(range(steps)), "a stable step is missing in the journal, or is there twice"
    booked(folder / "run" / "journal.jsonl")
    assert set(committed_samples(folder).values()) == {1}


def kill_the_driver(hosts: Any, folder: Path, name: str) -> int:
    """SIGKILL in mid-run; the last step that was committed by then."""
    with Driver(hosts, folder, name) as driver:
        os.kill(driver.process.pid, signal.SIGKILL)
        driver.process.wait()
        return last_step(folder)


def test_a_new_driver_goes_on_with_the_same_processes(hosts: Any, tmp_path: Path) -> None:
    kill_the_driver(hosts, tmp_path, "heirs")
    before = pids(tmp_path)
    result = fit(tmp_path, "heirs")
    assert len(before) == 2 and pids(tmp_path) == before, "nobody was started anew"
    started = [line for line in read_lines(tmp_path) if line["event"] == "started"]
    assert len(started) == 2
    (taken,) = [line for line in journal(tmp_path) if line.get("event") == "RunTakenOver"]
    assert {one["worker"] for one in taken["found"]} == set(before)
    assert_nothing_lost(tmp_path, result)
    digests = {line["digest"] for line in read_lines(tmp_path) if line["event"] == "finished"}
    assert len(digests) == 1


@pytest.mark.slow
def test_workers_that_are_all_in_the_middle_of_a_long_update_are_waited_for(hosts: Any, tmp_path: Path) -> None:
    """They hold what nobody else does, and can say so only after it."""
    name, options = "long", {"update_s": 30.0}
    with Driver(hosts, tmp_path, name, **options):
        before = pids(tmp_path)
        (tmp_path / "new").write_text(str(last_step(tmp_path) + 40))
        (tmp_path / "new").rename(tmp_path / SLOW)
        until(lambda: time.time() - max(line["t"] for line in read_lines(tmp_path)) > 2.0, "no update takes long")
        step = last_step(tmp_path)
    began_s = time.time()
    result = fit(tmp_path, name, **options)
    assert pids(tmp_path) == before, "somebody was started anew"
    after = [line for line in read_lines(tmp_path) if line["event"] == "committed" and line["step"] == step + 1]
    assert min(line["t"] for line in after) - began_s > 15.0, "it was over before anybody was adopted"
    assert_nothing_lost(tmp_path, result)


@pytest.mark.slow
def test_it_comes_to_the_same_parameters(hosts: Any, tmp_path: Path) -> None:
    (tmp_path / "clean").mkdir()
    (tmp_path / "heirs").mkdir()
    clean = fit(tmp_path / "clean", "clean")
    kill_the_driver(hosts, tmp_path / "heirs", "twice-driven")
    result = fit(tmp_path / "heirs", "twice-driven")
    assert_nothing_lost(tmp_path / "heirs", result)
    assert relative_difference(result.value["parameters"], clean.value["parameters"]) < 1e-12


@pytest.mark.slow
def test_a_worker_dies_with_the_driver(hosts: Any, tmp_path: Path) -> None:
    """The fault is handled by the driver that comes."""
    with Driver(hosts, tmp_path, "both") as driver:
        before = pids(tmp_path)
        killed = sorted(before)[0]
        os.kill(before[killed], signal.SIGKILL)
        os.kill(driver.process.pid, signal.SIGKILL)
    result = fit(tmp_path, "both")
    survivor = sorted(before)[1]
    assert pids(tmp_path)[survivor] == before[survivor]
    assert any(line.get("event") == "WorkerDead" and line["worker"] == killed for line in journal(tmp_path))
    assert_nothing_lost(tmp_path, result)


def keeps_away(incident: Any, view: Any) -> Remediation:
    """A policy: a node that has lost a worker gets no other."""
    return Remediation(kind=Kind.REPLACE_NODE, reason="of a test")


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.1)


@pytest.mark.slow
def test_a_quarantine_and_a_pause_outlive_the_driver(hosts: Any, tmp_path: Path) -> None:
    """Whoever resumes the run asks the next driver's supervisor."""
    name, options = "careful", {"steps": 600, "policy": f"{__file__}:keeps_away"}
    with Driver(hosts, tmp_path, name, **options) as driver:
        killed, survivor = sorted(before := pids(tmp_path))
        os.kill(before[killed], signal.SIGKILL)
        until(lambda: any("quarantine" in line and line["quarantine"] for line in journal(tmp_path)), "no quarantine")
        asking.pause(name)
        os.kill(driver.process.pid, signal.SIGKILL)
        driver.process.wait(30)
    held = last_step(tmp_path)
    placed = [line for line in journal(tmp_path) if line.get("event") == "WorkerPlaced" and line["worker"] == killed]
    node = placed[0]["node"]

    def go_on() -> int:
        until(lambda: any(line.get("waits_for") == "hold" for line in since_taken_over(tmp_path)), "it does not wait")
        still = last_step(tmp_path)
        asking.resume(name)
        return still

    with ThreadPoolExecutor(1) as pool:
        still = pool.submit(go_on)
        result = fit(tmp_path, name, **options)
    assert still.result(30) == held, "a step was made before somebody had the run go on"
    taken, *later = since_taken_over(tmp_path)
    assert taken["left"]["quarantine"] == {node: None} and 0 < taken["left"]["paused_s"] <= 3600
    assert pids(tmp_path)[survivor] == before[survivor]
    others = [line["node"] for line in later if line.get("event") == "WorkerPlaced"]
    assert node not in others
    assert_nothing_lost(tmp_path, result, 600)


def since_taken_over(folder: Path) -> list[dict[str, Any]]:
    """What the journal tells of the second driver."""
    lines = journal(folder)
    begins = [number for number, line in enumerate(lines) if line.get("event") == "RunTakenOver"]
    return lines[begins[0] :] if begins else []


class KillsAtTheIncident(training.At):
    """Kills a worker, and the moment that is told, those who sense or decide: they are looked for before."""

    def __init__(self, title: str, most: int) -> None:
        super().__init__(10, self._kill_a_worker)
        self.title, self.most = title, most
        self.killed: list[int] = []
        self.killed_s = 0.0

    def _kill_a_worker(self, state: Any) -> None:
        self.killed = control_plane_pids(self.title)[: self.most]
        os.kill(state.members[1].pid, signal.SIGKILL)

    def on_incident_opened(self, moment: Any) -> None:
        if not self.killed_s:
            self.killed_s = time.time()
            for pid in self.killed:
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "most"),
    [
        pytest.param("ray::Guard", 1, id="the supervisor"),
        pytest.param("ray::HostMonitor", 1, id="one monitor"),
        pytest.param("ray::HostMonitor", 99, id="all monitors"),
    ],
)
def test_who_decides_or_senses_dies_while_a_fault_is_handled(title: str, most: int, hosts: Any, tmp_path: Path) -> None:
    saboteur = KillsAtTheIncident(title, most)
    result = elastic.fit(**as_fit(tmp_path, f"killed-{title[5:10].lower()}-{most}"), callbacks=[saboteur])
    assert saboteur.fired_s is not None and saboteur.killed
    assert not any(Path(f"/proc/{pid}").exists() for pid in saboteur.killed)
    (incident,) = result.incidents
    assert incident.resumed_at_s > saboteur.killed_s, "the fault was over before they were killed"
    assert_nothing_lost(tmp_path, result)
    if title == "ray::Guard":
        first, *others = supervisors(tmp_path)
        assert first["t"] < saboteur.killed_s and others, "nobody took the place of the supervisor"
        assert first["node"] and hosts.nodes["b"].node_id.startswith(first["node"]), "it is where its label is"
        after_s = [
            line["t"] - saboteur.killed_s
            for line in journal(tmp_path)
            if line.get("moment") in ("IncidentDecided", "IncidentResolved") and line["t"] > saboteur.killed_s
        ]
        assert after_s[0] < SUCCEEDED_S, f"the incident stood still for {after_s[0]:.2f} s after its supervisor's end"


def supervisors(folder: Path) -> list[dict[str, Any]]:
    """What each supervisor of the run said when it began to decide."""
    lines = whole_lines(folder / "run" / "logs" / "supervisor.jsonl")
    return [line for line in lines if "decides for the run" in line["text"]]


@pytest.mark.slow
def test_a_driver_that_stood_still_leaves_its_workers_to_the_next(hosts: Any, tmp_path: Path) -> None:
    with Driver(hosts, tmp_path, "still", after=5) as driver:
        before = pids(tmp_path)
        os.kill(driver.process.pid, signal.SIGSTOP)
        time.sleep(6)  # a supervisor on another node knows of it by its silence
        waked: list[str] = []

        def wake(state: Any) -> None:
            os.kill(driver.process.pid, signal.SIGCONT)
            _, stderr = driver.process.communicate(timeout=60)
            waked.append(stderr)

        saboteur = training.At(last_step(tmp_path) + 5, wake)
        result = elastic.fit(**as_fit(tmp_path, "still"), callbacks=[saboteur])
    assert "SupersededError" in waked[0]
    assert pids(tmp_path) == before
    assert_nothing_lost(tmp_path, result)


def as_fit(folder: Path, name: str, **options: Any) -> dict[str, Any]:
    """The arguments that `fit` gives to `elastic.fit`."""
    given: dict[str, Any] = {}
    original, elastic.fit = elastic.fit, lambda train_fn, **rest: given.update(train_fn=train_fn, **rest)
    try:
        fit(folder, name, **options)
    finally:
        elastic.fit = original
    return given


@pytest.mark.slow
def test_orphans_make_their_state_durable_and_leave(hosts: Any, tmp_path: Path) -> None:
    """No driver comes: what they hold when the lease is over is found by whoever comes later."""
    options = {"persistent": True, "orphan_lease_s": 5.0, "steps": 4000}
    with Driver(hosts, tmp_path, "orphans", **options) as driver:
        before = pids(tmp_path)
        parked = {line["worker"]: line["pid"] for line in journal(tmp_path) if line.get("event") == "WorkerParked"}
        os.kill(parked["w0"], signal.SIGKILL)  # who saves for both; nobody is left to see to that
        os.kill(driver.process.pid, signal.SIGKILL)
        driver.process.wait()
        deadline_s = time.monotonic() + 60
        while any(Path(f"/proc/{pid}").exists() for pid in before.values()):
            assert time.monotonic() < deadline_s, "they have not left"
            time.sleep(0.1)
    held = last_step(tmp_path)
    durable = open_vault(str(tmp_path / "store"), "orphans").commits()
    assert durable and durable[0].commit.step in (held - 1, held), "the last one may not have been everybody's yet"
    result = fit(tmp_path, "orphans", **{**options, "steps": held + 50, "where": "elsewhere"})
    assert result.steps == held + 50
    told = journal(tmp_path, "elsewhere")
    lives = [number for number, line in enumerate(told) if line.get("life") == "Settings"]
    assert [told[number]["incarnation"] for number in lives] == [1, 2]
    copied = told[: lives[1]]
    assert len(copied) > 9, "on another machine the journal is that of the persistent tier, as far as it got there"
    assert copied == journal(tmp_path)[: len(copied)]
    (restored,) = {line["commit"]["step"] for line in told if line.get("event") == "Restored"}
    assert restored == durable[0].commit.step
    kept = committed_samples(tmp_path, lambda line: line["pid"] in before.values() and line.get("step", 0) > restored)
    assert set(kept.values()) == {1}


@pytest.mark.slow
def test_who_trains_other_code_begins_from_what_is_saved(hosts: Any, tmp_path: Path) -> None:
    kill_the_driver(hosts, tmp_path, "other")
    before = pids(tmp_path)
    result = fit(tmp_path, "other", steps=60)
    assert result.steps == 60
    started = {line["pid"] for line in read_lines(tmp_path) if line["event"] == "started"}
    assert len(started) == 4 and not any(Path(f"/proc/{pid}").exists() for pid in before.values())
