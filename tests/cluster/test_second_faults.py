"""Effect. Who drives, senses or decides dies while the death of a worker is handled, at each point of that.

No step is lost, nothing is done twice, survivors are the same processes.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import elastic
from tests.cluster import training
from tests.cluster.second_faults import POINTS, Strike, faults, fell_within, kill
from tests.cluster.test_fit import control_plane_pids
from tests.cluster.test_taking_over import Driver, as_fit, assert_nothing_lost, fit, journal, pids, until
from tests.cluster.training import read_lines

pytestmark = pytest.mark.timeout(300)

LONG_S = 120.0
EVERYBODY = "others.json"


def dying(point: str, folder: Path) -> str:
    """What a driver runs first that is to die there."""
    others = str(folder / EVERYBODY)
    return f"from tests.cluster import second_faults\nsecond_faults.die_at({point!r}, {others!r})\n"


def trains(folder: Path) -> set[str]:
    """Workers that have committed a step."""
    try:
        return {line["node"] for line in read_lines(folder) if line["event"] == "started"} & {
            path.stem for path in folder.glob("w*.jsonl") if '"committed"' in path.read_text()
        }
    except ValueError:  # a line is being written
        return set()


def lives(folder: Path) -> list[list[dict[str, Any]]]:
    """The journal's lines, by life of the driver."""
    found: list[list[dict[str, Any]]] = []
    for line in journal(folder):
        if line.get("life") == "Settings":
            found.append([])
        found[-1].append(line)
    return found


def assert_died_within(life: list[dict[str, Any]], point: str) -> None:
    """This life ended at the point, with a fault open, which a worker's death had opened."""
    opened = [number for number, line in enumerate(life) if line.get("moment") == "IncidentOpened"]
    begun = opened[-1:] or [number for number, line in enumerate(life) if line.get("event") == "RunTakenOver"]
    assert begun, "there was no fault"
    assert [resolved_s for _, resolved_s in faults(life)][-1:] in ([None], []), "the fault was over"
    assert any(POINTS[point](line) for line in life[begun[-1] :])


def assert_same_processes(folder: Path, before: dict[str, int], killed: str) -> None:
    after = pids(folder)
    assert {name: after[name] for name in before if name != killed} == {
        name: pid for name, pid in before.items() if name != killed
    }
    started = [line["node"] for line in read_lines(folder) if line["event"] == "started"]
    assert len(started) == len(set(started)), "somebody has begun twice"
    assert any(line.get("event") == "WorkerDead" and line["worker"] == killed for line in journal(folder))
    assert not Path(f"/proc/{before[killed]}").exists()
    assert len({line["digest"] for line in read_lines(folder) if line["event"] == "finished"}) == 1


def kill_a_worker(hosts: Any, folder: Path, name: str, point: str, all_others: bool = False, **options: Any) -> Any:
    """A worker is killed, and the first driver dies at the point; returns pids before, and who was killed."""
    with Driver(hosts, folder, name, prelude=dying(point, folder), **options) as driver:
        until(lambda: len(trains(folder)) == options.get("most", 2), "they do not all train")
        before = pids(folder)
        if all_others:
            (folder / EVERYBODY).write_text(json.dumps(control_plane_pids()))
        killed = max(before)
        os.kill(before[killed], signal.SIGKILL)
        assert driver.process.wait(LONG_S) == -signal.SIGKILL, "it did not come to the point"
    (folder / EVERYBODY).unlink(missing_ok=True)
    return before, killed


@pytest.mark.slow
@pytest.mark.parametrize(("point", "most"), [(point, 2 if point == "forming" else 3) for point in POINTS])
def test_the_driver_dies_while_a_fault_is_handled(point: str, most: int, hosts: Any, tmp_path: Path) -> None:
    name, options = f"second-{point}", {"steps": 150 * most, "most": most}
    before, killed = kill_a_worker(hosts, tmp_path, name, point, **options)
    result = fit(tmp_path, name, **options)
    first, second = lives(tmp_path)
    assert_died_within(first, point)
    (taken,) = [line for line in second if line.get("event") == "RunTakenOver"]
    assert set(before) - {killed} <= {one["worker"] for one in taken["found"]}
    assert_same_processes(tmp_path, before, killed)
    assert_nothing_lost(tmp_path, result, options["steps"])


@pytest.mark.slow
def test_so_does_the_one_that_takes_its_place(hosts: Any, tmp_path: Path) -> None:
    name, options = "third", {"steps": 400}
    before, killed = kill_a_worker(hosts, tmp_path, name, "forming", **options)
    with Driver(hosts, tmp_path, name, prelude=dying("forming", tmp_path), **options) as driver:
        assert driver.process.wait(LONG_S) == -signal.SIGKILL
    result = fit(tmp_path, name, **options)
    first, second, _ = lives(tmp_path)
    assert_died_within(first, "forming")
    assert_died_within(second, "forming")
    assert_same_processes(tmp_path, before, killed)
    assert_nothing_lost(tmp_path, result, options["steps"])


@pytest.mark.slow
@pytest.mark.parametrize("point", ["stopping", "formed"])
def test_nobody_is_left_who_drives_decides_or_senses(point: str, hosts: Any, tmp_path: Path) -> None:
    """As if their machine had gone."""
    name, options = f"alone-{point}", {"steps": 400}
    before, killed = kill_a_worker(hosts, tmp_path, name, point, all_others=True, **options)
    until(lambda: control_plane_pids() == [], "somebody is left")
    result = fit(tmp_path, name, **options)
    assert_died_within(lives(tmp_path)[0], point)
    assert_same_processes(tmp_path, before, killed)
    assert_nothing_lost(tmp_path, result, options["steps"])


@pytest.mark.slow
@pytest.mark.parametrize("point", ["stopping", "forming", "formed"])
@pytest.mark.parametrize("title", ["ray::Guard", "ray::HostMonitor"], ids=["the supervisor", "all monitors"])
def test_who_decides_or_senses_dies_at_a_point(title: str, point: str, hosts: Any, tmp_path: Path) -> None:
    """Between the decision and whoever is told of it."""
    victims: list[int] = []

    def kill_a_member(state: Any) -> None:
        victims.extend(control_plane_pids(title))
        os.kill(state.members[-1].pid, signal.SIGKILL)

    saboteur = training.At(10, kill_a_member)
    with Strike(point, lambda: kill(victims)) as strike:
        arguments = as_fit(tmp_path, f"second-{title[5:10].lower()}-{point}", most=3, steps=400)
        result = elastic.fit(**arguments, callbacks=[saboteur])
    assert saboteur.fired_s is not None and victims
    assert not any(Path(f"/proc/{pid}").exists() for pid in victims)
    assert strike.struck_s is not None, "nobody came to the point"
    assert fell_within(strike.struck_s, journal(tmp_path))
    assert_nothing_lost(tmp_path, result, 400)
    assert len({line["digest"] for line in read_lines(tmp_path) if line["event"] == "finished"}) == 1
