"""Effect. A member is lost while all others compute, and nobody but its kernel says so."""

import threading
from pathlib import Path

import pytest

from elastic.actors.process_fleet import ProcessFleet
from elastic.control import events as ev
from tests.chaos.group import LONG_S, assert_promises, run
from tests.chaos.saboteur import Sabotage

pytestmark = pytest.mark.timeout(120)
STALL_S = 4.0


def only_others_tell(fleet: ProcessFleet, folder: Path) -> None:
    """Whoever watches processes tells of an end after the other members have."""
    emit, has_been_told = fleet._emit, threading.Event()

    def late(event: ev.Event) -> None:
        if isinstance(event, ev.CollectiveBroken):
            has_been_told.set()
        if isinstance(event, ev.WorkerLost | ev.WorkerDead):
            has_been_told.wait(LONG_S)
        emit(event)

    fleet._emit = late


def test_a_loss_is_felt_in_the_midst_of_a_step_and_not_only_by_who_waits_in_its_reduction(tmp_path: Path) -> None:
    stalls = [Sabotage(point="stall", rank=rank, step=8, delay_s=STALL_S) for rank in (0, 1)]
    kill = Sabotage(point="reduced", rank=2, step=8, delay_s=STALL_S / 4)
    story = run(tmp_path / "killed", *stalls, kill, during=only_others_tell)
    assert_promises(story, run(tmp_path / "clean"), *stalls, kill)
    told = next(line for line in story.journal if line.get("event") in ("CollectiveBroken", "WorkerLost", "WorkerDead"))
    assert told["event"] == "CollectiveBroken" and "was closed on the other side" in told["error"]
