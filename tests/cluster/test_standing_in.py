"""Effect. A lost worker is replaced by a process that stood by on its node, on a real cluster."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util import list_named_actors

import elastic
from elastic.actors.peer_source import namespace
from tests.chaos.ledger_checks import booked
from tests.cluster import training
from tests.cluster.test_fit import committed_samples
from tests.cluster.test_taking_over import Driver, assert_nothing_lost, fit, pids, until
from tests.cluster.training import read_lines, regression
from tests.lines import whole_lines

pytestmark = pytest.mark.timeout(600)

STEPS, PAUSE_S = 1500, 0.05  # minutes, unless there is a hurry: who stands by has imported in idle time


def stand_ins(run: str) -> dict[int, Any]:
    """Actors of those that are ready, by pid; of one that has become a worker, too."""
    named = [one for one in list_named_actors(all_namespaces=True) if one["namespace"] == namespace(run)]
    actors = [ray.get_actor(one["name"], one["namespace"]) for one in named if "-standin" in one["name"]]
    calls = [actor.stand_by.options(concurrency_group="control").remote() for actor in actors]
    return dict(zip(ray.get(calls, timeout=240), actors, strict=True))


class Loads:
    """Goes with train_fn: but for the driver and the first two, processes load it until the file `may_end` is there."""

    def __init__(self, noted: Path, may_end: Path, driver: int) -> None:
        self.noted, self.may_end, self.driver = noted, may_end, driver

    def __reduce__(self) -> Any:
        return _loaded, (self.noted, self.may_end, self.driver)

    @property
    def hurried(self) -> Path:
        """Whether threads that were kept had the priority of their process's others at the end, a line each."""
        return self.noted.with_suffix(".hurried")

    @property
    def pids(self) -> list[int]:
        """Processes that have begun to load it."""
        found = map(int, self.noted.read_text().split()) if self.noted.exists() else ()
        return list(dict.fromkeys(pid for pid in found if pid != self.driver))


def _loaded(noted: Path, may_end: Path, driver: int) -> Loads:
    loads = Loads(noted, may_end, driver)
    with noted.open("a") as file:
        file.write(f"{os.getpid()}\n")
    if os.getpid() in loads.pids[2:]:
        until(may_end.exists, "nobody ends the loading")
        with loads.hurried.open("a") as file:
            mine, others = (os.getpriority(os.PRIO_PROCESS, which) for which in (0, os.getpid()))
            file.write(f"{mine == others}\n")
    return loads


class KillsOnceOneStandsBy(training.At):
    """Waits for a stand-in, and kills the member of the highest rank; has the run end soon once it is whole again."""

    def __init__(self, run: str, hurry: Path) -> None:
        super().__init__(20, self._strike)
        self.run, self.hurry = run, hurry
        self.ready: dict[int, Any] = {}
        self.killed = 0

    def _strike(self, state: Any) -> None:
        deadline_s = time.monotonic() + 240
        while not (found := stand_ins(self.run)):
            assert time.monotonic() < deadline_s, "nobody stands by"
            time.sleep(0.2)
        self.before_it_is_killed(found)
        self.ready, self.killed = found, state.members[-1].pid
        os.kill(self.killed, signal.SIGKILL)

    def before_it_is_killed(self, ready: dict[int, Any]) -> None:
        """For a test that has more in mind."""

    def on_generation(self, view: Any) -> None:
        super().on_generation(view)
        if self.killed and view.replicas == 2:
            self.hurry.touch()


def run_until_replaced(
    folder: Path, saboteur: KillsOnceOneStandsBy, loads: Loads | None = None, **scaling: Any
) -> dict[str, Any]:
    """What the journal says of the replacement at the door of its first step."""
    train_fn = regression(folder, STEPS, PAUSE_S, until=saboteur.hurry)
    result = elastic.fit(
        lambda session, loads=loads: train_fn(session),
        scaling=elastic.Scaling(**scaling),
        limits=elastic.Limits(start_timeout_s=120),
        health=elastic.Health(checks=False),  # GPUs are Ray's word alone here
        callbacks=[saboteur],
        name=saboteur.run,
        run_dir=folder / "run",
    )
    booked(folder / "run" / "journal.jsonl")
    assert saboteur.killed and saboteur.ready and result.steps == STEPS
    assert set(committed_samples(folder).values()) == {1}
    digests = [line["digest"] for line in read_lines(folder) if line["event"] == "finished"]
    assert len(digests) == 2 and len(set(digests)) == 1
    lines = whole_lines(folder / "run" / "journal.jsonl")
    *_, replacement = (line for line in lines if line.get("event") == "WorkerParked")
    return replacement


def test_a_stand_in_takes_the_place_of_a_killed_worker(hosts: Any, tmp_path: Path) -> None:
    """Wherever it stands by: replacements go there."""
    saboteur = KillsOnceOneStandsBy("in-place", tmp_path / "hurry")
    replacement = run_until_replaced(tmp_path, saboteur, num_dp_replicas=2)
    assert replacement["worker"] == "w2"
    assert replacement["pid"] in saboteur.ready, "its process was there before"
    assert stand_ins(saboteur.run) == {}, "nobody stands by for a run that has ended"


class KillsWhileOneImports(KillsOnceOneStandsBy):
    """As soon as a third process loads what it is to run: two have it, and this one stands by."""

    def __init__(self, run: str, hurry: Path, loads: Loads) -> None:
        super().__init__(run, hurry)
        self.loads = loads

    def _strike(self, state: Any) -> None:
        until(lambda: len(self.loads.pids) > 2, "nobody stands by")
        self.ready = dict.fromkeys(self.loads.pids[2:])
        self.killed = state.members[-1].pid
        os.kill(self.killed, signal.SIGKILL)
        threading.Timer(3.0, self.loads.may_end.touch).start()  # by then a process in the slot would have begun


def test_one_that_still_imports_takes_the_place_of_a_killed_worker(hosts: Any, tmp_path: Path) -> None:
    loads = Loads(tmp_path / "loads", tmp_path / "may-end", os.getpid())
    saboteur = KillsWhileOneImports("half-in-place", tmp_path / "hurry", loads)
    replacement = run_until_replaced(tmp_path, saboteur, loads, num_dp_replicas=2, label_selector={"pool": "b"})
    assert list(saboteur.ready) == [replacement["pid"]], "no other process was begun"
    assert loads.hurried.read_text().split()[0] == "True"


@pytest.mark.slow
def test_it_has_the_gpus_of_the_slot_that_it_takes(hosts: Any, tmp_path: Path) -> None:
    seen: dict[int, str] = {}

    class Notes(KillsOnceOneStandsBy):
        def before_it_is_killed(self, ready: dict[int, Any]) -> None:
            for pid, actor in ready.items():
                calls = [actor.surroundings.options(concurrency_group="control").remote()]
                seen[pid] = ray.get(calls, timeout=60)[0]["CUDA_VISIBLE_DEVICES"]

    saboteur = Notes("gpu-in-place", tmp_path / "hurry")
    replacement = run_until_replaced(tmp_path, saboteur, num_dp_replicas=2, use_gpu=True)
    assert replacement["pid"] in saboteur.ready
    assert seen[replacement["pid"]] == "", "a stand-in has no GPU of its own"
    given = [line["gpus"] for line in read_lines(tmp_path) if line["event"] == "started"]
    assert len(given) == 3 and sorted(given[:2]) == ["0", "1"] and given[2] in given[:2]


@pytest.mark.slow
def test_one_that_dies_when_it_is_wanted_costs_a_start(hosts: Any, tmp_path: Path) -> None:
    class Kills(KillsOnceOneStandsBy):
        def before_it_is_killed(self, ready: dict[int, Any]) -> None:
            for pid in ready:
                os.kill(pid, signal.SIGKILL)

    saboteur = Kills("vain-in-place", tmp_path / "hurry")
    replacement = run_until_replaced(tmp_path, saboteur, num_dp_replicas=2, label_selector={"pool": "b"})
    assert replacement["pid"] not in saboteur.ready


@pytest.mark.slow
def test_a_new_driver_goes_on_with_one_that_stood_in_and_ends_those_that_stand_by(hosts: Any, tmp_path: Path) -> None:
    name = "in-place-twice"
    options: dict[str, Any] = {"steps": 1200, "pool": "b"}
    with Driver(hosts, tmp_path, name, **options) as driver:
        until(lambda: len(stand_ins(name)) == 1, "nobody stands by")
        ready, before = stand_ins(name), pids(tmp_path)
        os.kill(before[max(before)], signal.SIGKILL)
        until(lambda: trained(tmp_path) & ready.keys(), "no stand-in has taken its place")
        until(lambda: len(stand_ins(name)) == 2, "nobody stands by after that")
        left_idle = stand_ins(name).keys() - ready.keys()
        os.kill(driver.process.pid, signal.SIGKILL)
        driver.process.wait(30)
    stood = pids(tmp_path)
    result = fit(tmp_path, name, **options)
    assert pids(tmp_path) == stood, "nobody was started anew"
    assert not any(Path(f"/proc/{pid}").exists() for pid in left_idle)
    assert_nothing_lost(tmp_path, result, options["steps"])


def trained(folder: Path) -> set[int]:
    """Processes that have committed a step."""
    return {line["pid"] for line in read_lines(folder) if line["event"] == "committed"}
