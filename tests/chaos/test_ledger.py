"""Effect. Faults injected into a real run against what the ledger makes of them: class, time, cost; nothing twice.

What a fault has cost is measured apart from the journal, on what the workers wrote down: the time between the commits
around it, beyond what is usual.
"""

from pathlib import Path
from statistics import median

import pytest

from elastic.ledger.model import Incident
from elastic.settings import Chaos, Checkpoint, Interval
from tests.chaos.group import Story, Training, run
from tests.chaos.ledger_checks import booked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = 330
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
LATE_S, APART_S, APART = 0.3, 0.2, 0.1


def measured_s(story: Story, begin_s: float, end_s: float) -> float:
    """What the steps around a time took beyond the usual, by the clocks of those who computed them."""
    first: dict[int, float] = {}
    for line in story.of("committed"):
        first[line["step"]] = min(line["t"], first.get(line["step"], line["t"]))
    times = [first[step] for step in sorted(first)]
    gaps = [(a, b) for a, b in zip(times, times[1:], strict=False)]
    near = [b - a for a, b in gaps if begin_s - 2.0 <= b <= begin_s or end_s + 1.0 <= a <= end_s + 3.0]
    usual_s = median(near)
    return sum(
        max(0.0, b - a - usual_s) for a, b in gaps if b - a > 1.5 * usual_s and a <= end_s + 0.2 and b >= begin_s
    )


def assert_close(ours_s: float, theirs_s: float, what: str) -> None:
    assert abs(ours_s - theirs_s) <= max(APART_S, APART * theirs_s), (
        f"{what}: {ours_s:.3f} s, measured {theirs_s:.3f} s"
    )


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
    found = {one.injected.at_s: one for one in account.incidents if one.injected is not None}
    injected = [line for line in story.journal if line.get("event") == "FaultInjected"]
    assert len(injected) == 8 and set(found) == {line["at_s"] for line in injected}
    for line in injected:
        compare(story, line["fault"], found[line["at_s"]])


def compare(story: Story, fault: dict[str, float | str], incident: Incident) -> None:
    """One fault and its incident."""
    assert incident.injected is not None
    at_s, kind, lasts_s = incident.injected.at_s, str(fault["kind"]), float(fault["duration_s"])
    name = "stop for good" if kind == "stop" and not lasts_s else kind
    assert incident.kind in CLASSES.get(name, {"injected fault"}), (name, incident.kind)
    assert abs(incident.began_s - at_s) <= LATE_S, (
        f"{name}: began {incident.began_s - at_s:+.3f} s after it was injected"
    )
    end_s = max(incident.resumed_s or at_s, at_s + lasts_s if kind in ("slow", "stop") else at_s)
    assert_close(incident.cost_s, measured_s(story, at_s, end_s), name)
