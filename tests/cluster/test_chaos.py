"""Effect. Fault injection on a real cluster: by schedule, by command, and against what the journal says afterwards."""

import json
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.actors import asking
from elastic.actors.cluster import connected
from elastic.control.schedules import schedule_of
from tests.chaos.ledger_checks import booked
from tests.cluster.test_fit import assert_nothing_lost, committed_samples, fit
from tests.cluster.test_tuning import Asking
from tests.cluster.training import start_python
from tests.lines import whole_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = 900
CLI = "from elastic.cli import main\nmain()\n"
SCHEDULE = """
    0.5 slow leader for=1 with=3
    1.0 kill rank:1
    3.0 kill_monitor leader
    4.0 kill_supervisor
    5.0 stop any for=0.3
    6.0 bit_flip leader
    6.5 storage_errors leader for=8
    8.0 notice any
    9.0 xid leader with=79,kmsg={folder}/kmsg
"""


def journal(folder: Path, event: str) -> list[dict[str, Any]]:
    lines = whole_lines(folder / "run" / "journal.jsonl")
    return [line for line in lines if line.get("event") == event]


def test_a_run_goes_through_a_schedule_and_its_journal_holds_every_fault(hosts: Any, tmp_path: Path) -> None:
    (tmp_path / "clean").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "kmsg").touch()
    clean = fit(tmp_path / "clean", steps=STEPS)
    every = elastic.Interval(steps=5)
    store = str(tmp_path / "store")
    kept = elastic.Checkpoint(local_interval=every, persistent=store, persistent_interval=elastic.Interval(seconds=0.5))
    chaos = elastic.Chaos(enable_fault_injection=True, schedule=SCHEDULE.format(folder=tmp_path))
    result = fit(
        tmp_path / "broken",
        steps=STEPS,
        scaling=elastic.Scaling(num_dp_replicas=(1, 3), spares=1, resources_per_worker={"CPU": 1}),
        limits=elastic.Limits(start_timeout_s=120, hang_floor_s=5, stopped_timeout_s=5),
        checkpoint=kept,
        chaos=chaos,
    )
    plan = schedule_of(chaos).plan(0, 100.0)
    injected = journal(tmp_path / "broken", "FaultInjected")
    assert journal(tmp_path / "broken", "FaultRefused") == []
    assert {line["fault"]["name"] for line in injected} == {fault.name for fault in plan}
    assert all(line["proof"] for line in injected)
    assert_nothing_lost(tmp_path / "broken", clean, result, STEPS)
    account = booked(tmp_path / "broken" / "run" / "journal.jsonl")
    assert result.goodput == pytest.approx(account.goodput, rel=0.1)
    told = [cause.kind for one in account.incidents for cause in one.injected]
    assert sorted(line["fault"]["kind"] for line in injected) == sorted(told), "each is told once"


def test_a_node_goes_down_by_command_and_an_unwilling_run_is_left_alone(hosts: Any, tmp_path: Path) -> None:
    nodes = [hosts.add_node(num_cpus=1, object_store_memory=80 << 20, resources={"there": 1}) for _ in range(3)]
    doomed = nodes[1].node_id

    def cli(*arguments: str) -> tuple[int, str]:
        process = start_python(CLI, tmp_path, "chaos", *arguments, "--address", hosts.address)
        stdout, stderr = process.communicate(timeout=120)
        return process.returncode, stdout + stderr

    def goodput() -> dict[str, Any]:
        """By its name, while it trains."""
        process = start_python(CLI, tmp_path, "goodput", "broken", "--json", "--address", hosts.address)
        told: dict[str, Any] = json.loads(process.communicate(timeout=120)[0])
        return told

    def act() -> Any:
        down = ("broken", "--fault", "node-down", "--target", f"node:{doomed[:12]}")
        with connected(hosts.address):
            there = asking.nodes_now("broken")
        return (
            there,
            cli("nobody", "--fault", "kill"),
            cli(*down),
            cli("broken", "--fault", "partition", "--with", "nowhere0", "--force"),
            goodput(),
            cli(*down, "--force"),
            cli("broken", "--schedule", "0 kill any; 0.5 kill_supervisor", "--force", "--json"),
        )

    asking_ = Asking(act)
    try:
        scaling = elastic.Scaling(num_dp_replicas=(1, 3), resources_per_worker={"CPU": 1, "there": 1})
        limits = elastic.Limits(start_timeout_s=150)
        result = fit(tmp_path, asking_.callback, name="broken", steps=2500, scaling=scaling, limits=limits)
    finally:
        for node in nodes:
            hosts.remove_node(node, allow_graceful=False)
    there, unknown, unwilling, unable, live, down, both = asking_.result()
    assert live["run"] == "broken" and live["is_live"] and live["steps"]["kept"] > 0
    assert sum(live["wall_seconds"].values()) == pytest.approx(live["wall_s"], rel=1e-3)
    assert doomed in there and len(there) == 3
    assert unknown[0] == 1 and "no run 'nobody' trains on this cluster" in unknown[1]
    assert unwilling[0] == 1 and "was not started for fault injection" in unwilling[1]
    assert unable[0] == 1 and "nowhere0" in unable[1]
    assert down[0] == 0 and f"struck {doomed}: the host monitor of its node was lost meanwhile" in down[1]
    told = [json.loads(line) for line in both[1].splitlines() if line.startswith("{")]
    assert both[0] == 0 and {line["fault"] for line in told} == {"kill any", "kill_supervisor any"}
    assert {line["fault"]["kind"] for line in journal(tmp_path, "FaultInjected")} == {
        "node_down",
        "kill",
        "kill_supervisor",
    }
    assert set(committed_samples(tmp_path).values()) == {1}
    assert result.steps == 2500
