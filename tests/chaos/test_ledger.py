"""Effect. Faults injected into a run of processes against what its ledger makes of them; see `injected.py`."""

import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks.hosts import Network, why_not
from elastic.actors.monitor import HostMonitor
from elastic.actors.process_fleet import ProcessFleet
from elastic.control import events as ev
from elastic.control.outcome import Ending
from elastic.ledger.model import Category
from elastic.settings import Chaos, Checkpoint, Health, Interval
from tests.chaos.group import Training, read, run
from tests.chaos.injected import LATE_S, assert_close, compare, told
from tests.chaos.ledger_checks import booked
from tests.chaos.netem import has_netem
from tests.effects.tmpfs import mounted

pytestmark = [pytest.mark.slow, pytest.mark.host, pytest.mark.timeout(300)]

STEPS = 330
ROOT = Path(__file__).parents[2]
SCHEDULE = """
    1.0 slow rank:1 for=0.8 with=4
    3.0 kill rank:1
    6.0 stop rank:1 for=0.5
    8.0 notice rank:1 for=2
    11.0 node_down rank:1
    14.0 bit_flip leader
    15.5 xid leader with=79,kmsg={folder}/kmsg
    17.0 stop rank:1
"""
FULL = "1.0 disk_full leader for=1 with={folder}; 4.0 raise rank:1"
CUT, DELAYED = "partition leader for=1.5 with=lo", "packets leader for=1.5 with=lo,delay=0.05"


def test_each_fault_is_an_incident_of_its_class_at_its_time_with_its_cost(tmp_path: Path) -> None:
    (tmp_path / "kmsg").touch()
    chaos = Chaos(enable_fault_injection=True, schedule=SCHEDULE.format(folder=tmp_path))
    checkpoint = Checkpoint(
        local_interval=Interval(steps=5), persistent=str(tmp_path / "store"), persistent_interval=Interval(seconds=1)
    )
    story = run(
        tmp_path / "run",
        steps=STEPS,
        pause_s=0.02,
        slots=10,
        spares=1,
        replicas=(1, 3),
        training=Training(chaos=chaos, checkpoint=checkpoint),
        hang_floor_s=2.0,
        stopped_timeout_s=2.0,
    )
    account = booked(tmp_path / "run" / "run" / "journal.jsonl")
    injected = told(story.journal, account)
    assert len(injected) == 8
    assert len({incident.number for _, incident in injected}) == 8
    compare(story.of("committed"), injected)


def test_a_second_member_that_is_killed_while_the_first_is_mourned_is_of_the_same_incident(tmp_path: Path) -> None:
    chaos = Chaos(enable_fault_injection=True, schedule="3.0 kill worker:w1; 3.0 kill worker:w2")
    training, size = Training(chaos=chaos), {"replicas": (1, 3), "slots": 5, "spares": 2}
    story = run(tmp_path / "run", steps=STEPS, pause_s=0.02, training=training, **size)
    account = booked(tmp_path / "run" / "run" / "journal.jsonl")
    ((first, lost), (second, also)) = injected = told(story.journal, account)
    assert {first["target"], second["target"]} == set(lost.culprits) == {"w1", "w2"} and lost is also
    compare(story.of("committed"), injected)


def test_a_full_memory_costs_what_it_costs_and_an_error_of_the_users_the_attempt_in_flight(tmp_path: Path) -> None:
    with mounted(tmp_path, "64m") as tiny:
        chaos = Chaos(enable_fault_injection=True, schedule=FULL.format(folder=tiny))
        checkpoint = Checkpoint(memory=str(tiny), local_interval=Interval(steps=5))
        training, senses = Training(chaos=chaos, checkpoint=checkpoint), partial(sense, tiny)
        story = run(tmp_path / "run", steps=STEPS, pause_s=0.02, slots=3, training=training, during=senses)
    assert story.finished.outcome.ending is Ending.TRAIN_FN_RAISED
    account = booked(tmp_path / "run" / "run" / "journal.jsonl")
    (full, filled), (raised, ended) = told(story.journal, account)
    assert "a write fails with" in full["proof"]
    (seen,) = [one for one in filled.evidence if one != full["proof"]]
    assert str(tiny) in seen and "is free" in seen, "what the host monitor has seen, whoever was told to strike"
    compare(story.of("committed"), [(full, filled)])
    assert (raised["fault"]["kind"], ended.kind, ended.culprits) == ("raise", "train_fn raised", (raised["target"],))
    assert abs(ended.began_s - raised["at_s"]) <= LATE_S
    (heard_s,) = [line["t"] for line in story.journal if line.get("event") == "TrainFnRaised"]
    assert_close(ended.cost_s, heard_s - max(line["t"] for line in story.of("committed")), "raise")
    assert ended.wall_seconds.keys() <= {Category.REDONE, Category.DETECTING}, "what follows is finishing"


def sense(memory: Path, fleet: ProcessFleet, folder: Path) -> None:
    """A host monitor beside the fleet's looks at this file system, on each worker's node, until it is full."""
    while "FaultAsked" not in (folder / "run" / "journal.jsonl").read_text():
        time.sleep(0.02)
    nodes = [child.node for child in list(fleet.children.values())]
    monitor = HostMonitor(nodes[0], health=Health(period_s=0.02, disk=str(memory), space_free=0.2))
    try:
        found: list[ev.Event] = []
        while not found:
            news = [one for one in monitor.events(0.05) if isinstance(one, ev.HardwareFinding)]
            found = [one for one in news if one.device == str(memory)]
        for node in nodes:
            fleet._emit(replace(found[0], node=node))
    finally:
        monitor.close()


NETWORK = """
import sys
from pathlib import Path
from elastic.settings import Chaos
from tests.chaos.group import Training, run
folder, schedule = sys.argv[1:]
chaos = Chaos(enable_fault_injection=True, schedule=schedule)
run(Path(folder), steps=150, pause_s=0.02, training=Training(chaos=chaos))
"""


@pytest.mark.skipif(bool(why_not("tc")), reason=why_not("tc"))
@pytest.mark.parametrize("fault", [CUT, DELAYED], ids=["cut", "delayed"])
def test_a_network_that_fails_for_a_while_costs_what_its_steps_took(fault: str, tmp_path: Path) -> None:
    """All replicas are on the one host that is struck: a process of its own, in a network namespace."""
    folder = tmp_path / "run"
    with Network() as network:
        host = network.add_host().name
        is_able = fault is not DELAYED or has_netem(host)
        command = ["ip", "netns", "exec", host, sys.executable, "-c", NETWORK]
        done = subprocess.run(
            [*command, str(folder), f"2.0 {fault}"], cwd=ROOT, capture_output=True, text=True, timeout=200
        )
    assert done.returncode == 0, done.stderr
    journal = read([folder / "run" / "journal.jsonl"])
    refused = [line["reason"] for line in journal if line.get("event") == "FaultRefused"]
    assert is_able == (not any("sch_netem" in reason for reason in refused)), refused
    if not is_able:
        pytest.skip(refused[0])
    ((line, incident),) = told(journal, booked(folder / "run" / "journal.jsonl"))
    committed = [one for one in read(folder.glob("*.jsonl")) if one["event"] == "committed"]
    assert {one["step"] for one in committed} == set(range(150))
    compare(committed, [(line, incident)])
    assert incident.cost_s > 0.5, "it was not felt"
