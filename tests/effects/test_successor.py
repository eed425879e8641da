"""Effect. A driver dies with its supervisor, and nobody of its workers is left: the next one goes by its journal."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.actors.driver import Driver
from elastic.actors.journal import Journal, read_past
from elastic.actors.supervisor import Supervisor
from elastic.control import events as ev
from elastic.control.remediation import Kind, Remediation
from elastic.control.state import RunState
from elastic.settings import RunSettings, Scaling
from tests.effects.test_driver_hangs import LONG_S, ScriptedFleet

SETTINGS = RunSettings(run="r", scaling=Scaling(num_dp_replicas=(1, 3)))


class Avoiding(ScriptedFleet):
    """Keeps what the driver knows of nodes whenever it asks for a worker."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(set(), driver.emit)
        self.avoid: dict[str, frozenset[str]] = {}

    def start(self, worker: str, gang: int, shard: int, *where: Any) -> None:
        self.avoid[worker], *_ = where
        super().start(worker, gang, shard, *where)


def replaces_the_node(incident: Any, view: Any) -> Remediation:
    return Remediation(kind=Kind.REPLACE_NODE, reason="of a test")


def live(folder: Path, act: Callable[[Driver, Avoiding], None]) -> None:
    """One life of the driver, as `fit` begins it, until it is killed."""
    path = folder / "journal.jsonl"
    past, journal = read_past(path), Journal(folder)
    driver = Driver(Supervisor(RunState(settings=SETTINGS), replaces_the_node), journal, [])
    fleet, killed = Avoiding(driver), list[BaseException]()

    def run() -> None:
        with pytest.raises(RuntimeError, match="killed") as raised:
            driver.run(fleet, opening=ev.RunStarted(left=past.left))  # type: ignore[arg-type]
        killed.append(raised.value)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        act(driver, fleet)
    finally:
        driver.crash(RuntimeError("killed"))
        thread.join(LONG_S)
        journal.close()
    assert killed


def test_a_quarantine_and_a_pause_are_there_in_the_next_life(tmp_path: Path) -> None:
    told = tmp_path / "journal.jsonl"

    def lose(driver: Driver, fleet: Avoiding) -> None:
        fleet.called("go", "w0", 1)
        fleet.stable(3)
        fleet.die("w1")
        fleet.called("go", "w0", 2)
        driver.emit(ev.PauseAsked(for_s=3600.0))
        fleet.wait_for("the pause", lambda: read_past(told).left.paused != "")

    def see(driver: Driver, fleet: Avoiding) -> None:
        fleet.called("start", "w3")  # for w1, which this fleet places on its old node whatever it is told
        assert fleet.avoid == dict.fromkeys(("w0", "w1", "w2", "w3"), frozenset({"node-w1"}))
        assert not threading.Event().wait(0.5) and fleet.views == [], "it is paused"
        driver.emit(ev.ResumeAsked())
        fleet.called("go", "w0", 1)

    live(tmp_path, lose)
    left = read_past(told).left
    assert left.quarantine == {"node-w1": None} and left.node_incidents == {"node-w1": 1}
    assert left.budgets.keys() == {"worker lost"} and 3590 < left.paused_s <= 3600
    live(tmp_path, see)
    again = read_past(told).left
    assert again.quarantine == left.quarantine and again.node_incidents == left.node_incidents
    assert again.paused == ""
