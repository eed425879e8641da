"""Effect. Faults injected into runs on a real cluster against what their ledgers make of them; see `injected.py`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.control.schedules import parse
from elastic.errors import TrainFnError
from tests.chaos.injected import APART_S, LATE_S, assert_close, compare, told
from tests.chaos.ledger_checks import booked
from tests.cluster.training import read_lines, regression
from tests.effects.tmpfs import mounted
from tests.lines import whole_lines

pytestmark = pytest.mark.timeout(400)

PAUSE_S = 0.03  # for each of 8 micro-batches: what a step takes is sleep, and not the machine's to say
QUICK = "3 kill rank:1; 8 stop leader for=0.6; 10 bit_flip leader"
SCHEDULE = """
    3 slow rank:1 for=1 with=4
    6 kill rank:1
    12 stop leader for=0.6
    15 kill_monitor leader
    19 kill_supervisor
    22 bit_flip leader
    24 storage_errors leader for=4
    30 xid leader with=79,kmsg={folder}/kmsg
    33 notice rank:1 for=4
    41 stop rank:1
"""
FULL = "2 disk_full leader for=1 with={folder}"
LAST = "5 node_down rank:1; 14 raise leader"


def train(folder: Path, schedule: str, steps: int, **settings: Any) -> Any:
    chaos = elastic.Chaos(enable_fault_injection=True, schedule=schedule)
    scaling = elastic.Scaling(num_dp_replicas=(1, 3), spares=1, resources_per_worker={"CPU": 1})
    checkpoint = elastic.Checkpoint(
        local_interval=elastic.Interval(steps=5),
        persistent=str(folder / "store"),
        persistent_interval=elastic.Interval(seconds=1),
    )
    limits = elastic.Limits(start_timeout_s=120, hang_floor_s=2, stopped_timeout_s=2)
    usual = {"scaling": scaling, "checkpoint": checkpoint, "limits": limits, "chaos": chaos}
    return elastic.fit(regression(folder, steps, PAUSE_S), run_dir=folder / "run", **{**usual, **settings})


def assert_told(folder: Path, kinds: list[str], apart_s: float = APART_S) -> None:
    """Each of these faults struck, in this order, and is one incident; none is in two.

    Args:
        apart_s: by so much the ledger's cost of a fault may differ from what the workers' clocks say.
    """
    path = folder / "run" / "journal.jsonl"
    journal = whole_lines(path)
    assert [line["reason"] for line in journal if line.get("event") == "FaultRefused"] == []
    account = booked(path)
    found = sorted(told(journal, account), key=lambda one: one[0]["at_s"])
    assert [line["fault"]["kind"] for line, _ in found] == kinds
    assert len({incident.number for _, incident in found}) == len(found), "each is an incident of its own"
    committed = [line for line in read_lines(folder) if line["event"] == "committed"]
    joins = [one for one in account.incidents if one.kind == "planned stop"]
    compare(committed, [one for one in found if one[0]["fault"]["kind"] != "raise"], joins, apart_s)
    for line, incident in found:
        if line["fault"]["kind"] != "raise":
            continue
        assert incident.kind == "train_fn raised" and abs(incident.began_s - line["at_s"]) <= LATE_S
        (heard_s,) = [one["t"] for one in journal if one.get("event") == "TrainFnRaised"]
        assert_close(incident.cost_s, heard_s - max(one["t"] for one in committed), "raise", apart_s)


def kinds_of(schedule: str) -> list[str]:
    return [fault.kind.value for fault in parse(schedule.format(folder="/")).plan(0, 100.0)]


def test_what_a_few_faults_cost_is_what_the_workers_clocks_say(hosts: Any, tmp_path: Path) -> None:
    # Beside other tests' work steps come near to what counts as slow, and either clock may count a few of them alone.
    train(tmp_path, QUICK, steps=140)
    assert_told(tmp_path, kinds_of(QUICK), apart_s=1.0)


@pytest.mark.slow
def test_each_fault_of_a_run_is_an_incident_of_its_class_at_its_time_with_its_cost(hosts: Any, tmp_path: Path) -> None:
    (tmp_path / "kmsg").touch()
    train(tmp_path, SCHEDULE.format(folder=tmp_path), steps=500)
    assert_told(tmp_path, kinds_of(SCHEDULE))


@pytest.mark.slow
def test_a_full_memory_costs_what_the_workers_clocks_say(hosts: Any, tmp_path: Path) -> None:
    with mounted(tmp_path, "64m") as tiny:
        train(tmp_path, FULL.format(folder=tiny), steps=70)
    assert_told(tmp_path, kinds_of(FULL))


@contextmanager
def added_nodes(hosts: Any, number: int) -> Iterator[None]:
    nodes = [hosts.add_node(num_cpus=1, object_store_memory=80 << 20, resources={"there": 1}) for _ in range(number)]
    try:
        yield
    finally:
        for node in nodes:
            hosts.remove_node(node, allow_graceful=False)


@pytest.mark.slow
def test_a_node_that_goes_down_and_an_error_of_the_users_cost_what_the_workers_clocks_say(
    hosts: Any, tmp_path: Path
) -> None:
    scaling = elastic.Scaling(num_dp_replicas=(1, 3), resources_per_worker={"CPU": 1, "there": 1})
    with added_nodes(hosts, 3), pytest.raises(TrainFnError, match="injected by elastic chaos"):
        train(tmp_path, LAST, steps=400, scaling=scaling)
    assert_told(tmp_path, kinds_of(LAST))
