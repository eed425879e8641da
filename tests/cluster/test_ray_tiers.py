"""Effect. What the driver's tiers tell their keeper, and when; the keeper is a stand-in, and no cluster is started."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError, RayTaskError

from elastic.actors.peer_source import PeerSource, peer_sources
from elastic.actors.prefetcher import Aim
from elastic.actors.ray_tiers import RayTiers
from elastic.actors.replica import end_replicas
from elastic.actors.upload_keeper import UploadKeeper
from elastic.checkpoint import rungs
from elastic.checkpoint.catalog import Candidate
from elastic.checkpoint.rungs import CheckpointRung, DiskStep, Rung
from elastic.checkpoint.seen import Seen
from elastic.checkpoint.store import StoreError
from elastic.control import events as ev
from elastic.control.state import Phase, Restoring, RunState, Standing, WorkerRecord
from elastic.control.values import CommitId, Fork, View
from elastic.settings import Checkpoint, Keep, RunSettings, Scaling
from tests.cluster.test_prefetcher import candidate_of
from tests.pure.bare_controller import commit, report

LATE_S = 0.2


class Keeper:
    """Answers a prefetch a moment later, if at all."""

    def __init__(self, answers: bool = True) -> None:
        self.answers, self.aims, self.staged_, self.urged = answers, list[Aim | None](), list[Any](), list[str]()
        self.leases: list[tuple[int, bool]] = []
        self.expected: set[str] = set()
        self.forks: tuple[Fork, ...] = ()
        self.going: dict[int, frozenset[tuple[str, int]]] = {}
        self.clean = threading.Event()
        self.clean.set()

    def prefetch(self, aim: Aim | None, then: Callable[[], None] = lambda: None) -> None:
        self.aims.append(aim)
        if self.answers:
            threading.Timer(LATE_S, then).start()

    def expect(self, node: str) -> None:
        self.expected.add(node)

    def staged(self, *what: Any) -> None:
        self.staged_.append(what)

    def lease(
        self, commit: CommitId, shards: int, is_over: bool = False, then: Callable[[Any], object] = lambda going: None
    ) -> None:
        self.leases.append((commit.step, is_over))
        then(self.going.get(commit.step, frozenset()))

    def forked(self, forks: tuple[Fork, ...]) -> None:
        self.forks = forks

    def redundancy_lost(self, reason: str) -> None:
        self.urged.append(reason)

    def wait_clean(self, within_s: float) -> bool:
        return self.clean.wait(within_s)


def seen(*those: Candidate) -> Seen:
    """By a look at tiers that all answer."""
    nothing: dict[str, Any] = dict.fromkeys(("forks", "starts", "silent", "quarantined", "unread"), ())
    return Seen(candidates=those, incarnation=1, is_durable_heard=True, **nothing)


def tiers_of(tmp_path: Path, keeper: Keeper, **checkpoint: Any) -> tuple[RayTiers, RunState, list[ev.Event]]:
    """With two workers of a run that trains, each on a node of its own."""
    kept = Checkpoint(memory=str(tmp_path), **checkpoint)
    settings = RunSettings(run="r", scaling=Scaling(num_dp_replicas=2), checkpoint=kept)
    emitted: list[ev.Event] = []
    tiers = RayTiers(settings, "here", emitted.append, lambda told: None, lambda error: None)
    tiers._keeper = keeper  # type: ignore[assignment]
    workers = {name: WorkerRecord(name=name, node=f"n-{name}", standing=Standing.MEMBER) for name in ("w0", "w1")}
    return tiers, RunState(settings=settings, phase=Phase.RUNNING, workers=workers), emitted


def test_what_can_be_restored_is_told_when_the_nodes_of_live_workers_expect_it(
    tmp_path: Path, monkeypatch: Any
) -> None:
    keeper = Keeper()
    tiers, state, emitted = tiers_of(tmp_path, keeper)
    found = candidate_of(7, 1, "")
    monkeypatch.setattr("elastic.actors.tiers.next_candidate", lambda *_: type("", (), {"candidate": found, "bad": ()}))
    monkeypatch.setattr(tiers, "_look", lambda **_: seen())
    tiers.heed(ev.Tick(), state)
    began_s = time.monotonic()
    tiers._find(0, None, ())
    assert time.monotonic() - began_s >= LATE_S, "it was told at once"
    (aim,) = keeper.aims
    assert aim is not None and set(aim.homes) == {"n-w0", "n-w1"} and aim.candidate is found
    (told,) = emitted
    assert isinstance(told, ev.RestoreFound) and told.commit == found.commit
    tiers.heed(told, RunState(**{**fields_of(state), "restore": Restoring(number=1, commit=found.commit)}))
    assert len(keeper.aims) == 2 and keeper.aims[-1] is not None
    assert keeper.leases == [(7, False), (7, False), (7, True)]
    tiers.heed(told, state)
    assert keeper.aims[-1] is None, "nobody restores it after all"
    assert keeper.leases[3:] == [(7, True)]


def test_who_is_placed_where_its_shard_is_expected_is_no_news(tmp_path: Path) -> None:
    keeper = Keeper()
    tiers, state, _ = tiers_of(tmp_path, keeper)
    tiers._found = found = candidate_of(7, 1, "")
    workers = dict(state.workers)
    for worker, node, aims in (("w2", "n-w2", 1), ("w3", "n-w2", 1), ("w4", "n-w0", 1), ("w5", "n-w5", 2)):
        workers[worker] = WorkerRecord(name=worker, node=node, standing=Standing.LOADING)
        wish = Restoring(number=1, commit=found.commit)
        now = RunState(**{**fields_of(state), "restore": wish, "workers": dict(workers)})
        tiers.heed(ev.WorkerPlaced(worker=worker, node=node), now)
        assert len(keeper.aims) == aims
    assert keeper.aims[-1] is not None and set(keeper.aims[-1].homes) == {"n-w0", "n-w1", "n-w2", "n-w5"}
    assert keeper.expected == {"n-w0", "n-w2", "n-w5"}


def test_nobody_waits_for_a_node_out_of_reach_nor_for_anybody_once_the_newest_step_is_whole(tmp_path: Path) -> None:
    tiers, state, _ = tiers_of(tmp_path, Keeper())
    reached, lost = (PeerSource(None, node) for node in ("n-w0", "n-w1"))
    holders = [one for row in candidate_of(7, 1, "", run="r").shards for one in row]
    assert not tiers._is_enough(True, holders, [lost]), "it is not known yet"
    late_s = 100.0 - 2 * state.settings.limits.heartbeat_timeout_s
    state = RunState(**{**fields_of(state), "seen_s": 100.0, "heard_s": {"n-w0": 100.0, "n-w1": late_s}})
    tiers.heed(ev.Tick(), state)
    assert tiers._is_enough(False, holders, [lost]) and not tiers._is_enough(False, holders, [lost, reached])
    for step, is_whole in ((7, True), (8, False)):
        tiers.heed(ev.ShardStaged(worker="w0", commit=commit(step), shard=0, shards=1, nbytes=64), state)
        assert tiers._is_enough(True, holders, [reached]) == is_whole
        assert not tiers._is_enough(False, holders, [reached]), "an older one is wanted, and there may be a better one"
    part = candidate_of(9, 2, "", run="r").shards[0]
    tiers._staged = 7
    assert not tiers._is_enough(True, [*holders, *part], [reached]), "it may have the rest of step 9"


def test_a_node_that_ray_has_lost_is_not_asked(monkeypatch: Any) -> None:
    monkeypatch.setattr("elastic.actors.peer_source.replica_actors", lambda run: {"a": None, "b": None, "c": None})
    monkeypatch.setattr("ray.nodes", lambda: [{"NodeID": node, "Alive": node != "b"} for node in "ab"])
    assert [one.node for one in peer_sources("r", "")] == ["a"]


def test_what_is_being_dropped_everywhere_is_not_told(tmp_path: Path, monkeypatch: Any) -> None:
    keeper = Keeper(answers=False)
    tiers, _, emitted = tiers_of(tmp_path, keeper)
    found = [candidate_of(step, 1, "ab") for step in (9, 8, 7)]
    found = [
        replace(one, shards=tuple(row[:2] for row in one.shards)) for one in found
    ]  # only in the memory of a and b
    monkeypatch.setattr(tiers, "_look", lambda **_: seen(*found))
    keeper.going = {9: frozenset({("a", 0), ("b", 0)}), 8: frozenset({("a", 0), ("b", 1)})}
    tiers._find(0, 9, ())
    (told,) = emitted
    assert isinstance(told, ev.RestoreFound) and told.commit == found[1].commit, "b keeps it"
    assert keeper.leases == [(9, False), (9, True), (8, False)]


def test_a_keeper_that_stands_still_does_not_keep_what_was_found_from_being_told(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("elastic.actors.ray_tiers._ANNOUNCE_S", LATE_S)
    tiers, _, _ = tiers_of(tmp_path, Keeper(answers=False))
    monkeypatch.setattr(tiers._keeper, "lease", lambda *_, then: None)
    assert tiers._claim(candidate_of(7, 1, ""))
    tiers._keeper = None
    assert tiers._claim(candidate_of(7, 1, "")), "nobody drops anything"


def test_keepers_that_do_not_answer_hold_up_a_restore_for_a_moment_only(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("elastic.actors.ray_tiers._ANNOUNCE_S", LATE_S)
    tiers, state, _ = tiers_of(tmp_path, Keeper(answers=False))
    tiers.heed(ev.Tick(), state)
    began_s = time.monotonic()
    tiers._announce(candidate_of(7, 1, ""))
    assert time.monotonic() - began_s >= LATE_S


def test_before_there_are_workers_nobody_is_waited_for(tmp_path: Path) -> None:
    keeper = Keeper(answers=False)
    tiers, state, _ = tiers_of(tmp_path, keeper)
    tiers._announce(candidate_of(7, 1, ""))
    tiers.heed(ev.Tick(), RunState(settings=state.settings))
    tiers._announce(candidate_of(7, 1, ""))
    assert keeper.aims == []


def test_what_is_staged_while_the_run_waits_goes_down_at_once(tmp_path: Path) -> None:
    keeper = Keeper()
    tiers, state, _ = tiers_of(tmp_path, keeper)
    staged = ev.ShardStaged(worker="w0", commit=commit(4), shard=0, shards=1, nbytes=64)
    tiers.heed(staged, state)
    tiers.heed(staged, RunState(**{**fields_of(state), "phase": Phase.WAITING}))
    assert keeper.staged_ == [("n-w0", staged, ""), ("n-w0", staged, "fewer than 2 replicas are left")]
    assert keeper.urged == ["fewer than 2 replicas are left"]


@pytest.mark.parametrize("is_written", [True, False])
def test_the_end_waits_for_disks_but_not_for_long(is_written: bool, tmp_path: Path, monkeypatch: Any) -> None:
    disk_s = 20.0 if is_written else 2 * LATE_S
    monkeypatch.setattr("elastic.actors.ray_tiers._DISK_S", disk_s)
    monkeypatch.setattr("elastic.actors.ray_tiers._ASK_S", LATE_S / 4)
    keeper = Keeper()
    tiers, state, _ = tiers_of(tmp_path, keeper, disk=str(tmp_path))
    tiers.heed(ev.ShardStaged(worker="w0", commit=commit(4), shard=0, shards=1, nbytes=64), state)
    if is_written:
        tiers._told(DiskStep(commit=commit(4), shards=1, nodes=("n-w0",)))
    began_s = time.monotonic()
    assert tiers.flush() == is_written, "else the memory of nodes has the only copy, and stays"
    assert (time.monotonic() - began_s < disk_s / 2) == is_written
    assert set(keeper.urged) == (set() if is_written else {"the run is over"})
    assert is_written or len(keeper.urged) > 1, "the keeper may hear of the last step after it was urged"


def test_the_end_waits_for_who_deletes_old_steps_but_not_for_ever(
    tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr("elastic.actors.ray_tiers._TOLD_S", LATE_S)
    keeper = Keeper()
    tiers, state, _ = tiers_of(tmp_path, keeper, persistent=str(tmp_path / "store"))
    tiers.heed(ev.ShardStaged(worker="w0", commit=commit(4), shard=0, shards=1, nbytes=64), state)
    told = CheckpointRung(commit=commit(4), shards=1, rung=Rung.DURABLE, copies=1, degraded="", reason="it is there")
    tiers._told(told)
    keeper.clean.clear()
    threading.Timer(2.5 * LATE_S, keeper.clean.set).start()
    assert tiers.flush() and keeper.clean.is_set()
    assert "old steps are still being deleted" in caplog.text
    keeper.clean.clear()
    monkeypatch.setattr("elastic.actors.ray_tiers._FLUSH_S", LATE_S)
    assert tiers.flush(), "the last step is durable all the same"
    tiers._keeper = None
    tiers.close(keep=True)


def test_a_commit_has_the_metrics_of_its_step_however_long_it_took(tmp_path: Path) -> None:
    """Steps of 10 ms are made by the hundred while one is copied and uploaded."""
    tiers, state, _ = tiers_of(tmp_path, Keeper(), persistent=str(tmp_path / "store"))
    told = ev.StepStable(worker="w0", report=replace(report(1), metrics={"loss": 0.5}))
    tiers.heed(told, state)
    tiers.heed(ev.ShardStaged(worker="w0", commit=commit(1), shard=0, shards=1, nbytes=64), state)
    for step in range(2, 302):
        tiers.heed(ev.StepStable(worker="w0", report=report(step)), state)
    sent: list[Any] = []
    remote = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *what: sent.append(what)))
    kept = Checkpoint(persistent="/store", keep=Keep(best=1))
    uploads = UploadKeeper(kept, 1, print, lambda ask, *_: ask(), print, tiers._metrics_of)  # type: ignore[arg-type]
    uploads.commit(rungs.Commit(commit=commit(1), digests=("d0",), node="n-w0"), SimpleNamespace(commit=remote))
    assert sent == [(1, commit(1), ("d0",), {"loss": 0.5})]
    tiers._keeper = None
    tiers.formed(view_of(0, restored=True), state)
    assert tiers._metrics_of(commit(1)) == {}, "it is made anew"
    tiers.close(keep=True)


def fields_of(state: RunState) -> dict[str, Any]:
    return {name: getattr(state, name) for name in RunState.__slots__ if name != "tally"}


def test_a_view_that_was_restored_begins_the_count_anew(tmp_path: Path) -> None:
    tiers, state, _ = tiers_of(tmp_path, Keeper(), disk=str(tmp_path))
    tiers._keeper = None
    tiers._told(DiskStep(commit=commit(9), shards=1, nodes=("n-w0",)))
    line = (Fork(incarnation=1, generation=2, step=3),)
    shape = {"run": "r", "incarnation": 1, "generation": 2, "members": (), "donors": (), "behind": ()}
    view = View(resume=commit(3), restored=True, forks=line, **shape)
    tiers.formed(view, state)
    assert (tiers._staged, tiers._on_disk) == (3, 3)


def view_of(step: int, generation: int = 2, **more: Any) -> View:
    """Of a generation that goes on from there."""
    line = (Fork(incarnation=1, generation=generation, step=step),)
    shape: dict[str, Any] = {"run": "r", "incarnation": 1, "generation": generation}
    shape |= dict.fromkeys(("members", "donors", "behind"), ())
    return View(resume=commit(step, lineage=f"l{step}"), forks=line, **shape, **more)


@pytest.mark.parametrize(("held", "is_safe"), [("in memory alone", False), ("durable", True), ("told of since", True)])
def test_the_end_waits_for_a_step_that_was_restored_and_is_in_memory_alone(
    held: str, is_safe: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    """It may be the last one of the run, whose driver died before it was durable: its memory goes with the run."""
    monkeypatch.setattr("elastic.actors.ray_tiers._FLUSH_S", LATE_S)
    keeper = Keeper()
    tiers, state, _ = tiers_of(tmp_path, keeper, persistent=str(tmp_path / "store"))
    tiers._keeper, tiers._durable = None, 9
    tiers._found = candidate_of(3, 1, "ab", held == "durable", run="r")
    if held == "told of since":
        tiers._durable = 3
    tiers.formed(view_of(3, restored=True), state)
    tiers._keeper = keeper  # type: ignore[assignment]
    assert tiers.flush() == is_safe
    assert set(keeper.urged) == (set() if is_safe else {"the run is over"})
    told = CheckpointRung(commit=commit(3), shards=1, rung=Rung.DURABLE, copies=1, degraded="", reason="it is there")
    tiers._told(told)
    assert tiers.flush()
    tiers._keeper = None
    tiers.close(keep=True)


def test_the_end_waits_for_what_live_workers_have_staged_for_an_earlier_driver(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("elastic.actors.ray_tiers._FLUSH_S", LATE_S)
    keeper = Keeper()
    tiers, state, _ = tiers_of(tmp_path, keeper, persistent=str(tmp_path / "store"))
    monkeypatch.setattr(tiers, "_look", lambda: seen(candidate_of(7, 1, "ab", is_durable=False, run="r")))
    tiers.begin()
    assert tiers.flush() and keeper.urged == [], "nobody goes on with it yet"
    tiers._keeper = None
    tiers.formed(view_of(7), state)
    tiers._keeper = keeper  # type: ignore[assignment]
    assert not tiers.flush() and set(keeper.urged) == {"the run is over"}
    tiers._keeper = None
    tiers.formed(view_of(4, generation=3, restored=True), state)
    tiers.formed(view_of(4, generation=4), state)
    assert tiers._staged == 4, "it was left behind"
    tiers.close(keep=True)


@pytest.mark.parametrize("keep", [True, False])
def test_actors_that_were_woken_for_their_disks_end_with_the_run(keep: bool, tmp_path: Path, monkeypatch: Any) -> None:
    done: list[Any] = []
    monkeypatch.setattr(
        "elastic.actors.ray_tiers.end_replicas", lambda run, incarnation: done.append((run, incarnation))
    )
    monkeypatch.setattr("elastic.actors.ray_tiers.wake", lambda settings: done.append("woken"))
    monkeypatch.setattr("elastic.actors.tiers.Tiers.begin", lambda self, at_least: (at_least, ()))
    tiers, _, _ = tiers_of(tmp_path, Keeper(), disk=str(tmp_path))
    tiers._keeper = None
    assert tiers.begin(3) == (3, ())
    tiers.close(keep)
    assert done == (["woken"] if keep else ["woken", ("r", 0)])


class Actor:
    """Of one node; what it is asked for stands for its answer."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.clear = self

    def options(self, **options: Any) -> "Actor":
        return self

    def remote(self, incarnation: int) -> tuple[str, int]:
        return self.node, incarnation


def test_at_the_end_all_actors_of_the_run_end_but_those_of_a_newer_driver(monkeypatch: Any) -> None:
    waited: list[Any] = []
    killed: list[str] = []

    def answer(call: tuple[str, int], timeout: float) -> None:
        if call[0] == "newer":
            raise RayTaskError("clear", "traceback", StoreError("one of 3 took over"))
        if call[0] != "here":
            raise GetTimeoutError("no answer")

    actors = {node: Actor(node) for node in ("here", "newer", "hangs", "lost")}
    alive = [{"NodeID": node, "Alive": node != "lost"} for node in actors]
    monkeypatch.setattr("elastic.actors.replica.replica_actors", lambda run: actors if run == "r" else {})
    monkeypatch.setattr("ray.nodes", lambda: alive)
    monkeypatch.setattr("ray.wait", lambda calls, **how: waited.extend(calls))
    monkeypatch.setattr("ray.get", answer)
    monkeypatch.setattr("ray.kill", lambda actor, no_restart: killed.append(actor.node))
    end_replicas("r", 2)
    assert waited == [("here", 2), ("newer", 2), ("hangs", 2)], "nobody waits for a node that is gone"
    assert killed == ["here", "hangs", "lost"]
    end_replicas("another", 2)
    assert len(killed) == 3
