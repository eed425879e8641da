"""Effect. Faults injected into a real run against what the ledger makes of them: class, time, cost; nothing twice.

What a fault has cost is measured apart from the journal, on what the workers wrote down: the time between the commits
around it, beyond what is usual.
"""

import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest

from benchmarks.hosts import Network, why_not
from elastic.actors.monitor import HostMonitor
from elastic.actors.process_fleet import ProcessFleet
from elastic.control import events as ev
from elastic.control.outcome import Ending
from elastic.ledger.model import Account, Category, Incident
from elastic.settings import Chaos, Checkpoint, Health, Interval
from tests.chaos.group import Training, read, run
from tests.chaos.ledger_checks import booked
from tests.effects.tmpfs import mounted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

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
CLASSES = {
    "slow": {"injected fault", "straggler"},
    "kill": {"worker lost", "collective broken"},
    "notice": {"planned departure"},
    "node_down": {"worker lost", "node lost"},
    "stop for good": {"worker hung"},
}
LASTING = ("slow", "stop", "partition", "packets", "disk_full")
LATE_S, APART_S, APART = 0.3, 0.2, 0.1


def measured_s(committed: list[dict[str, Any]], begin_s: float, end_s: float) -> float:
    """What the steps around a time took beyond the usual, by the clocks of those who computed them."""
    first: dict[int, float] = {}
    for line in committed:
        first[line["step"]] = min(line["t"], first.get(line["step"], line["t"]))
    times = [first[step] for step in sorted(first)]
    gaps = [(a, b) for a, b in zip(times, times[1:], strict=False)]
    near = [b - a for a, b in gaps if begin_s - 2.0 <= b <= begin_s or end_s + 1.0 <= a <= end_s + 3.0]
    usual_s = median(near)
    return sum(
        max(0.0, b - a - usual_s) for a, b in gaps if b - a > 1.5 * usual_s and a <= end_s + 0.2 and b >= begin_s
    )


def lost_s(committed: list[dict[str, Any]], begin_s: float, end_s: float) -> float:
    """What the steps of a time took beyond those of the run that were quick: nothing can have cost more there."""
    first: dict[int, float] = {}
    for line in committed:
        first[line["step"]] = min(line["t"], first.get(line["step"], line["t"]))
    times = [first[step] for step in sorted(first)]
    gaps = [(b, b - a) for a, b in zip(times, times[1:], strict=False)]
    quick_s = quantiles([took_s for _, took_s in gaps], n=4)[0]
    return sum(max(0.0, took_s - quick_s) for at_s, took_s in gaps if begin_s <= at_s and at_s - took_s <= end_s)


def assert_close(ours_s: float, theirs_s: float, what: str) -> None:
    assert abs(ours_s - theirs_s) <= max(APART_S, APART * theirs_s), (
        f"{what}: {ours_s:.3f} s, measured {theirs_s:.3f} s"
    )


def told(journal: list[dict[str, Any]], account: Account) -> list[tuple[dict[str, Any], Incident]]:
    """Each fault that struck, with the one incident that stands for it."""
    injected = {line["at_s"]: line for line in journal if line.get("event") == "FaultInjected"}
    found = [(cause.at_s, one) for one in account.incidents for cause in one.injected]
    assert sorted(at_s for at_s, _ in found) == sorted(injected)
    return [(injected[at_s], one) for at_s, one in found]


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
    )
    account = booked(tmp_path / "run" / "run" / "journal.jsonl")
    injected = told(story.journal, account)
    assert len(injected) == 8
    for line, incident in injected:
        compare(story.of("committed"), line["fault"], incident)


def compare(committed: list[dict[str, Any]], fault: dict[str, float | str], incident: Incident) -> None:
    """One fault and its incident."""
    at_s, kind, lasts_s = incident.injected[0].at_s, str(fault["kind"]), float(fault["duration_s"])
    name = "stop for good" if kind == "stop" and not lasts_s else kind
    assert incident.kind in CLASSES.get(name, {"injected fault"}), (name, incident.kind)
    assert abs(incident.began_s - at_s) <= LATE_S, (
        f"{name}: began {incident.began_s - at_s:+.3f} s after it was injected"
    )
    end_s = max(incident.resumed_s or at_s, at_s + lasts_s if kind in LASTING else at_s)
    assert_close(incident.cost_s, measured_s(committed, at_s, end_s), name)


def test_a_second_member_that_is_killed_while_the_first_is_mourned_is_of_the_same_incident(tmp_path: Path) -> None:
    chaos = Chaos(enable_fault_injection=True, schedule="3.0 kill worker:w1; 3.0 kill worker:w2")
    training, size = Training(chaos=chaos), {"replicas": (1, 3), "slots": 5, "spares": 2}
    story = run(tmp_path / "run", steps=STEPS, pause_s=0.02, training=training, **size)
    account = booked(tmp_path / "run" / "run" / "journal.jsonl")
    (first, lost), (second, also) = told(story.journal, account)
    assert {first["target"], second["target"]} == set(lost.culprits) == {"w1", "w2"} and lost is also
    compare(story.of("committed"), first["fault"], lost)


def test_a_full_memory_costs_what_it_costs_and_an_error_of_the_users_the_attempt_in_flight(tmp_path: Path) -> None:
    with mounted(tmp_path, "64m") as tiny:
        schedule = f"1.0 disk_full leader for=1 with={tiny}; 4.0 raise rank:1"
        chaos = Chaos(enable_fault_injection=True, schedule=schedule)
        checkpoint = Checkpoint(memory=str(tiny), local_interval=Interval(steps=5))
        training, senses = Training(chaos=chaos, checkpoint=checkpoint), partial(sense, tiny)
        story = run(tmp_path / "run", steps=STEPS, pause_s=0.02, slots=3, training=training, during=senses)
    assert story.finished.outcome.ending is Ending.TRAIN_FN_RAISED
    account = booked(tmp_path / "run" / "run" / "journal.jsonl")
    (full, filled), (raised, ended) = told(story.journal, account)
    assert "a write fails with" in full["proof"]
    (seen,) = [one for one in filled.evidence if one != full["proof"]]
    assert str(tiny) in seen and "is free" in seen, "what the host monitor has seen, whoever was told to strike"
    compare(story.of("committed"), full["fault"], filled)
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
@pytest.mark.parametrize(
    "fault", ["partition leader for=1.5 with=lo", "packets leader for=1.5 with=lo,delay=0.05"], ids=["cut", "delayed"]
)
def test_a_network_that_fails_for_a_while_costs_what_its_steps_took(fault: str, tmp_path: Path) -> None:
    """All replicas are on the one host that is struck: a process of its own, in a network namespace."""
    folder = tmp_path / "run"
    with Network() as network:
        command = ["ip", "netns", "exec", network.add_host().name, sys.executable, "-c", NETWORK]
        done = subprocess.run(
            [*command, str(folder), f"2.0 {fault}"], cwd=ROOT, capture_output=True, text=True, timeout=200
        )
    assert done.returncode == 0, done.stderr
    journal = read([folder / "run" / "journal.jsonl"])
    refused = [line["reason"] for line in journal if line.get("event") == "FaultRefused"]
    if any("sch_netem" in reason for reason in refused):
        pytest.skip(refused[0])
    ((line, incident),) = told(journal, booked(folder / "run" / "journal.jsonl"))
    committed = [one for one in read(folder.glob("*.jsonl")) if one["event"] == "committed"]
    assert {one["step"] for one in committed} == set(range(150))
    compare(committed, line["fault"], incident)
    assert incident.cost_s > 0.5, "it was not felt"
