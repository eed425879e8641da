"""Effect. A call that hangs holds up nobody else, nor does a clock: what fails is sensed, decided and acted upon."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from elastic.actors import driver
from elastic.actors.driver import Driver, Finished, Observed
from elastic.actors.fleet import Emit
from elastic.actors.journal import Journal
from elastic.actors.supervisor import Supervisor
from elastic.control import events as ev
from elastic.control.commands import Command
from elastic.control.flight import STOPPED, Flying, Reading
from elastic.control.hardware import FindingKind
from elastic.control.outcome import Ending
from elastic.control.state import RunState
from elastic.control.values import CommitId, View
from elastic.control.xid import Severity
from elastic.errors import SupersededError
from elastic.policies import Ladder
from elastic.report.follower import Follower
from elastic.settings import Limits, RunSettings, Scaling
from tests.effects.helpers import eventually
from tests.effects.tmpfs import mounted
from tests.lines import whole_lines
from tests.pure.bare_controller import commit, report

LONG_S = 20.0
FIRST = ("w0", "w1", "w2")
Call = tuple[str, str, int]


class ScriptedFleet:
    """Workers that do at once what they are told, and calls that hang as the test wants.

    Attributes:
        calls: (method, worker or node, generation), as they were begun. hanging: those that hang, until `gate` opens.
    """

    def __init__(self, hangs: set[tuple[str, str]], emit: Emit) -> None:
        self.hangs, self.emit = hangs, emit
        self.gate = threading.Event()
        self.calls: list[Call] = []
        self.views: list[View] = []
        self.dead: set[str] = set()
        self._changed = threading.Condition()

    def _begin(self, method: str, whom: str, generation: int = 0) -> None:
        with self._changed:
            self.calls.append((method, whom, generation))
            self._changed.notify_all()
        if (method, whom) in self.hangs:
            self.gate.wait(2 * LONG_S)

    def wait_for(self, what: str, is_so: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(is_so, LONG_S), f"{what}: {self.calls}"

    def called(self, method: str, whom: str, generation: int = 0) -> None:
        self.wait_for(f"{method} {whom} {generation}", lambda: (method, whom, generation) in self.calls)

    def start(self, worker: str, gang: int, shard: int, *where: Any) -> None:
        self._begin("start", worker)
        self.emit(ev.WorkerPlaced(worker=worker, node=f"node-{worker}"))
        for name in () if worker in FIRST[:-1] else FIRST if worker in FIRST else (worker,):  # the first come together
            self.emit(ev.WorkerParked(worker=name, host="h", port=1, pid=1, layout="l", gpus=(name[1:],)))

    def freeze(self, worker: str, generation: int) -> None:
        self._begin("freeze", worker, generation)
        if worker not in self.dead:
            self.emit(ev.FreezeAnswered(worker=worker, generation=generation, commit=self.at(), healed=True))

    def at(self) -> CommitId:
        return commit(3 * len(self.views), len(self.views))

    def form(self, worker: str, view: View) -> None:
        self._begin("form", worker, view.generation)
        with self._changed:
            if view not in self.views:
                self.views.append(view)
        self.emit(ev.Formed(worker=worker, generation=view.generation))

    def go(self, worker: str, generation: int) -> None:
        self._begin("go", worker, generation)

    def reset_gpu(self, node: str, gpus: tuple[str, ...]) -> None:
        self._begin("reset_gpu", node)

    def fence(self, worker: str) -> None:
        self._begin("fence", worker)
        self.die(worker)

    def die(self, worker: str) -> None:
        self.dead.add(worker)
        self.emit(ev.WorkerDead(worker=worker, proof="gone"))

    def told(self, generation: int, published: int) -> None:
        """Nothing is kept."""

    def value(self, worker: str, timeout_s: float) -> Any:
        raise AssertionError("nobody returns")

    def __getattr__(self, method: str) -> Callable[..., None]:
        return lambda whom="", *arguments: self._begin(method, whom)

    def stable(self, number: int) -> None:
        """The leader of the last generation tells of a step."""
        told = report(number, len(self.views), time.time())
        self.emit(ev.StepStable(worker=self.views[-1].leader.worker, report=told))


class Noting(Supervisor):
    """A supervisor that keeps what it was told."""

    heard: list[ev.Event]

    def observe(self, events: Observed) -> tuple[tuple[Command, ...], RunState]:
        self.heard = [*getattr(self, "heard", []), *(event for _, event in events)]
        return super().observe(events)


class Playing:
    """A run of three replicas, at least one, on a scripted fleet, in a thread of its own.

    Attribute `ahead_s`: how far the driver's wall clock is ahead of this machine's.
    """

    def __init__(self, folder: Path, hangs: set[tuple[str, str]], **limits: float) -> None:
        self.ahead_s = 0.0
        settings = RunSettings(run="r", scaling=Scaling(num_dp_replicas=(1, 3)), limits=Limits(**limits))  # type: ignore[arg-type]
        self.journal = Journal(folder)
        self.brain = Noting(RunState(settings=settings), Ladder())
        self.driver = Driver(self.brain, self.journal, [], clock=lambda: time.time() + self.ahead_s)
        self.fleet = ScriptedFleet(hangs, self.driver.emit)
        self._end: Future[Finished] = Future()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def _play(self) -> None:
        try:
            self._end.set_result(self.driver.run(self.fleet))  # type: ignore[arg-type]
        except BaseException as error:
            self._end.set_exception(error)

    def end(self) -> Finished:
        self.driver.emit(ev.StopAsked(reason="enough was seen"))
        try:
            return self._end.result(LONG_S)
        finally:
            self.fleet.gate.set()
            self._thread.join(LONG_S)
            self.journal.close()

    def lines(self, kind: str) -> list[dict[str, Any]]:
        found = whole_lines(self.journal.path)
        return [line for line in found if kind in (line.get("event"), line.get("command"))]


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., Playing]]:
    plays: list[Playing] = []

    def begin(*hangs: tuple[str, str], **limits: float) -> Playing:
        plays.append(Playing(tmp_path, set(hangs), **limits))
        return plays[-1]

    yield begin
    for one in plays:
        one.fleet.gate.set()


def trains(playing: Playing) -> None:
    for worker in FIRST:
        playing.fleet.called("go", worker, 1)
    playing.fleet.stable(3)


def beat(
    playing: Playing, worker: str, phase: Flying, state: str = "S", generation: int = 1, still_s: float = 9.0
) -> None:
    """The monitor of its host tells what it sees of it, in step 7."""
    at = {"generation": generation, "step": 7, "micro_batch": 0, "commits": 6, "still_s": still_s}
    reading = Reading(worker=worker, phase=phase, state=state, **at)  # type: ignore[arg-type]
    playing.driver.emit(ev.HostBeat(node=f"node-{worker}", readings=(reading,)))


def one_is_lost(playing: Playing, worker: str, *left: str) -> None:
    """It dies; the others form the next generation, and go on."""
    fleet = playing.fleet
    generation = len(fleet.views)
    fleet.die(worker)
    for name in left:
        fleet.called("freeze", name, generation)
        fleet.called("go", name, generation + 1)
    members = {member.worker for member in fleet.views[-1].members}
    assert members >= set(left) and worker not in members
    fleet.stable(3 * (generation + 1))


def test_a_full_disk_ends_no_run_and_workers_keep_what_they_have_told(tmp_path: Path) -> None:
    """Who drives the run next is told it again, should this driver die before it could write it."""
    told: list[tuple[int, int]] = []
    with mounted(tmp_path, "256k") as tiny:
        playing = Playing(tiny, set())
        playing.fleet.told = lambda *journalled: told.append(journalled)  # type: ignore[method-assign,assignment]
        trains(playing)
        eventually(lambda: told, "steps are in the journal")
        with contextlib.suppress(OSError), (tiny / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                continue
        number = 3
        while not playing.journal.is_behind and number < 1000:
            number += 1
            playing.fleet.stable(number)
            time.sleep(0.01)
        assert playing.journal.is_behind, "the disk is full"
        until = len(told)
        time.sleep(0.5)  # some turns of the control
        assert len(told) == until
        (tiny / "filler").unlink()
        eventually(lambda: len(told) > until and not playing.journal.is_behind, "it is written, and workers hear of it")
        playing.end()
        steps = [line["report"]["commit"]["step"] for line in playing.lines("StepStable")]
    assert steps == list(range(3, number + 1)), "each once, in order"


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (KeyboardInterrupt(), "stopped: KeyboardInterrupt"),
        (ValueError("a callback's own"), "driver failed: ValueError: a callback's own"),
        (SupersededError("a newer driver"), ""),
    ],
    ids=["interrupted", "failed", "superseded"],
)
def test_a_driver_that_leaves_says_so_unless_the_run_goes_on_elsewhere(
    play: Callable[..., Playing], error: BaseException, ending: str
) -> None:
    playing = play()
    trains(playing)
    playing.driver._news.put(error)
    with pytest.raises(type(error)):
        playing._end.result(LONG_S)
    playing.journal.close()
    follower = Follower(playing.journal.path)
    follower.read()
    assert (follower.is_over, follower.report().headline.ending) == (bool(ending), ending)


def test_a_loss_is_dealt_with_while_the_start_of_a_worker_hangs(play: Callable[..., Playing]) -> None:
    playing = play(("start", "w3"))
    trains(playing)
    one_is_lost(playing, "w1", "w0", "w2")
    playing.fleet.called("start", "w3")
    one_is_lost(playing, "w2", "w0")
    playing.fleet.called("start", "w4")
    finished = playing.end()
    assert finished.outcome.ending is Ending.STOPPED
    assert [incident.culprits for incident in finished.state.incidents] == [("w1",), ("w2",)]
    assert all(incident.step is not None for incident in finished.state.incidents)


def test_a_start_that_hangs_until_its_deadline_is_given_up_and_taken_back(play: Callable[..., Playing]) -> None:
    playing = play(("start", "w3"), place_timeout_s=0.3)
    trains(playing)
    one_is_lost(playing, "w1", "w0", "w2")
    playing.fleet.called("start", "w4")
    proof = playing.lines("WorkerDead")[-1]
    assert proof["worker"] == "w3" and "Limits.place_timeout_s=0.3" in proof["proof"]
    assert ("dismiss", "w3", 0) not in playing.fleet.calls
    playing.fleet.gate.set()
    playing.fleet.called("dismiss", "w3")
    playing.end()


def test_a_loss_is_dealt_with_while_a_reset_hangs_and_the_reset_ends(play: Callable[..., Playing]) -> None:
    playing = play(("reset_gpu", "node-w1"), gpu_reset_timeout_s=0.5)
    trains(playing)
    found = {"node": "node-w1", "device": "GPU-1", "kind": FindingKind.XID, "detail": "XID 95"}
    playing.fleet.emit(ev.HardwareFinding(severity=Severity.RESET_NEEDED, workers=("w1",), **found))
    playing.fleet.called("go", "w0", 2)
    playing.fleet.stable(6)
    playing.fleet.called("reset_gpu", "node-w1")
    one_is_lost(playing, "w2", "w0")
    deadline_s = time.monotonic() + LONG_S
    while not playing.lines("GpuReset") and time.monotonic() < deadline_s:
        time.sleep(0.02)
    (reset,) = playing.lines("GpuReset")
    assert "was not given within Limits.gpu_reset_timeout_s=0.5" in reset["error"]
    playing.end()


def test_a_loss_is_dealt_with_while_a_fence_hangs(play: Callable[..., Playing]) -> None:
    """Its host is out of reach: it is left behind, and all that follows is done."""
    playing = play(("fence", "w1"), freeze_timeout_s=0.3, lease_s=0.3)
    trains(playing)
    playing.fleet.dead.add("w1")
    playing.fleet.emit(ev.CollectiveBroken(worker="w0", generation=1, error="timed out"))
    playing.fleet.called("fence", "w1")
    playing.fleet.called("go", "w2", 2)
    playing.fleet.stable(6)
    one_is_lost(playing, "w2", "w0")
    assert ("fence", "w1", 0) in playing.fleet.calls
    playing.end()


def test_a_wall_clock_that_is_set_back_stops_neither_ticks_nor_beats(play: Callable[..., Playing]) -> None:
    """However much is going on: deadlines are looked at, and hosts heard, by a clock that nobody sets."""
    playing = play()
    trains(playing)
    playing.ahead_s, before = -3600.0, len(playing.brain.heard)
    playing.driver.emit(ev.HostBeat(node="node-w0"))
    ticks = 0
    deadline_s = time.monotonic() + LONG_S
    while ticks < 3 and time.monotonic() < deadline_s:
        playing.driver.emit(ev.FreezeAnswered(worker="w0", generation=0, commit=None, healed=True))  # an old one
        time.sleep(0.1)
        ticks = sum(isinstance(event, ev.Tick) for event in playing.brain.heard[before:])
    assert ticks >= 3
    assert any(isinstance(event, ev.HostBeat) for event in playing.brain.heard[before:])
    playing.end()


@pytest.mark.parametrize("is_first", [False, True])
def test_a_process_that_is_stopped_is_not_left_until_the_next_tick(
    play: Callable[..., Playing], monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """Nor if that somebody waits for it is heard only after that it is stopped."""
    playing = play()
    trains(playing)
    playing.fleet.stable(6)
    monkeypatch.setattr(driver, "_TICK_S", 10 * LONG_S)
    told = [("w0", Flying.REDUCING, "S"), ("w2", Flying.REDUCING, "S"), ("w1", Flying.COMPUTING, STOPPED)]
    before = len(playing.brain.heard)
    for worker, phase, state in reversed(told) if is_first else told:
        beat(playing, worker, phase, state)
        if state == STOPPED:
            eventually(lambda: any(isinstance(one, ev.Tick) for one in playing.brain.heard[before:]), "it is judged")
    playing.fleet.called("fence", "w1")
    monkeypatch.undo()
    playing.end()


def test_hosts_are_asked_for_a_look_as_soon_as_somebody_is_stopped(
    play: Callable[..., Playing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for it may have told that it does not a moment ago. While no member is stopped, no host is asked."""
    playing = play()
    trains(playing)
    playing.fleet.stable(6)

    def answer() -> None:
        playing.fleet.calls.append(("look", "", 0))
        for worker in ("w0", "w2"):
            beat(playing, worker, Flying.REDUCING)

    monkeypatch.setattr(playing.fleet, "look", answer)
    for worker in FIRST:
        beat(playing, worker, Flying.COMPUTING)
    beat(playing, "w3", Flying.AT_DOOR, STOPPED, generation=0)
    eventually(lambda: "node-w3" in {getattr(one, "node", "") for one in playing.brain.heard}, "all were heard")
    assert ("look", "", 0) not in playing.fleet.calls
    beat(playing, "w1", Flying.COMPUTING, STOPPED)
    playing.fleet.called("fence", "w1")
    assert ("look", "", 0) in playing.fleet.calls
    playing.end()


def test_steps_wait_for_the_next_tick_but_for_the_first_of_a_generation(
    play: Callable[..., Playing], monkeypatch: pytest.MonkeyPatch
) -> None:
    playing = play(heartbeat_timeout_s=4 * LONG_S)
    trains(playing)

    def steps() -> list[int]:
        return [one.report.commit.step for one in playing.brain.heard if isinstance(one, ev.StepStable)]

    eventually(lambda: steps() == [3], "the first one is told")
    monkeypatch.setattr(driver, "_TICK_S", 10 * LONG_S)
    before = len(playing.brain.heard)
    playing.driver.emit(ev.Overdue(worker="w0", generation=1))  # the wait that has begun is the last short one
    eventually(lambda: any(isinstance(one, ev.Overdue) for one in playing.brain.heard[before:]), "it waits for long")
    for number in (4, 5):
        playing.fleet.stable(number)
    eventually(lambda: playing.driver._inbox.empty(), "they have been taken in")
    assert steps() == [3]
    playing.driver.emit(ev.StepStable(worker="w0", report=report(6, 2, time.time())))
    eventually(lambda: steps() == [3, 4, 5, 6], "all are told, in their order")
    monkeypatch.undo()
    playing.end()


def test_a_host_that_falls_silent_is_not_left_until_the_next_tick(
    play: Callable[..., Playing], monkeypatch: pytest.MonkeyPatch
) -> None:
    playing = play()
    trains(playing)
    playing.fleet.stable(6)

    def is_knocked_at() -> bool:
        for worker in ("w0", "w2"):
            beat(playing, worker, Flying.REDUCING, still_s=0.1)
        return any(method == "knock" for method, *_ in playing.fleet.calls)

    beat(playing, "w1", Flying.COMPUTING, still_s=0.1)
    eventually(lambda: "node-w1" in {getattr(one, "node", "") for one in playing.brain.heard}, "it was heard")
    monkeypatch.setattr(driver, "_TICK_S", 10 * LONG_S)
    eventually(is_knocked_at, "somebody knocks at its host")
    monkeypatch.undo()
    playing.end()
