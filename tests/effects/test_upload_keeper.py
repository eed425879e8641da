"""Effect. When the keeper has nodes upload: as measured costs and observed failures say, with the reason told.

And that what is handed over is committed by whoever is left: nothing that was begun, or told, is broken off.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic.actors import replica, upload_keeper, uploading
from elastic.actors.equipment import Equipment
from elastic.actors.keeper import Hand, Keeper
from elastic.actors.replica import CheckpointReplica
from elastic.actors.upload_keeper import UploadKeeper
from elastic.actors.uploading import UploadAnswer
from elastic.checkpoint import rungs
from elastic.checkpoint.disk import Disk
from elastic.checkpoint.manifest import ShardKey
from elastic.checkpoint.store import StoreError
from elastic.policies.interval import PRIOR_HOST_S, optimal_interval_s
from elastic.settings import Checkpoint, Interval, Keep, RunSettings
from tests.effects.helpers import LONG_S, Running, eventually
from tests.effects.shards import FakeMemory, key


class Nodes:
    """Nodes that upload when they are told to; each call costs what `cost_s` says. Time passes when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **checkpoint: Any) -> None:
        self.now_s, self.cost_s, self.reason = 1000.0, 0.0, ""
        self.told, self.heard = list[str](), list[rungs.Event]()
        monkeypatch.setattr(upload_keeper, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        settings = Checkpoint(persistent="/store", **checkpoint)
        self.keeper = UploadKeeper(
            settings, 1, lambda one: self.told.append(one.reason), self.then, self.heard.append, lambda _: {}
        )
        remote = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: None))
        self.actor = SimpleNamespace(upload=remote, commit=remote, clean=remote)

    def then(
        self, ask: Callable[[], Any], within_s: float, ended: Callable[[Any], Any], failed: Callable[[str], Any]
    ) -> None:
        ask()
        ended(UploadAnswer(digest="d", reason=self.reason, cost_s=self.cost_s))

    def upload(self, step: int, *nodes: str, takes_s: float = 0.0) -> None:
        for shard, node in enumerate(nodes):
            self.keeper.upload(rungs.Upload(key=key(step, shard, len(nodes)), node=node, reason=""), self.actor)
        self.now_s += takes_s
        self.keeper.arrived(durable(key(step, 0, len(nodes))))

    def idle_s(self, step: int) -> float:
        """How long until an upload of this step is due, to 10 %; time goes back afterwards."""
        before_s = self.now_s
        wait_s = 0.01
        while not self.keeper.is_due(step):
            wait_s *= 1.1
            self.now_s = before_s + wait_s
        self.now_s = before_s
        return wait_s


def durable(one: ShardKey) -> rungs.CheckpointRung:
    return rungs.CheckpointRung(
        commit=one.commit, shards=one.shards, rung=rungs.Rung.DURABLE, copies=1, degraded="", reason=""
    )


def test_an_upload_that_costs_something_is_not_followed_by_the_next_at_once(monkeypatch) -> None:
    nodes = Nodes(monkeypatch)
    assert nodes.keeper.is_due(1), "the first one measures"
    nodes.cost_s = 0.5
    nodes.upload(1, "a", "b", "b", takes_s=3.0)
    best_s = optimal_interval_s(1.0, PRIOR_HOST_S)
    assert nodes.idle_s(2) == pytest.approx(best_s - 3.0, rel=0.11), "node b took a second for its two"
    (told,) = nodes.told
    assert "CPU time, on all cores of a node, of 1 s" in told and "a failure every" in told


def test_uploads_cost_no_more_than_their_share(monkeypatch) -> None:
    nodes = Nodes(monkeypatch, overhead=0.01)
    nodes.keeper.watched(failures=10**6, hosts=1, watched_s=10**6)
    nodes.cost_s = 2.0
    nodes.upload(1, "a")
    assert nodes.idle_s(2) == pytest.approx(200.0, rel=0.11)
    assert "Checkpoint.overhead=0.01" in nodes.told[-1]


def test_more_failures_more_uploads_and_the_change_is_told(monkeypatch) -> None:
    nodes = Nodes(monkeypatch)
    nodes.keeper.watched(failures=3, hosts=4, watched_s=100.0)
    assert nodes.told == [], "nothing was measured yet"
    nodes.cost_s = 0.05
    nodes.upload(1, "a")
    quiet_s = nodes.idle_s(2)
    nodes.keeper.watched(failures=300, hosts=4, watched_s=10000.0)
    assert nodes.idle_s(2) < quiet_s / 3
    assert len(nodes.told) == 2 and "300 failures" in nodes.told[-1]


def test_an_interval_that_is_set_is_kept(monkeypatch) -> None:
    nodes = Nodes(monkeypatch, persistent_interval=Interval(seconds=60))
    nodes.cost_s = 9.0
    nodes.upload(1, "a")
    assert nodes.idle_s(2) == pytest.approx(60.0, rel=0.11)
    assert not nodes.keeper.is_due(1) and not nodes.keeper.is_due(None)


def test_a_failed_upload_is_heard_of_and_measures_nothing(monkeypatch) -> None:
    nodes = Nodes(monkeypatch)
    nodes.reason = "503"
    nodes.keeper.upload(rungs.Upload(key=key(1), node="a", reason=""), nodes.actor)
    (heard,) = nodes.heard
    assert isinstance(heard, rungs.Uploaded) and heard.reason == "503"
    assert nodes.keeper.is_due(2) and nodes.told == []


def test_after_a_step_that_could_not_be_uploaded_one_node_sweeps_what_such_steps_have_left(monkeypatch) -> None:
    """It may be what the next one lacks the room for, and no COMMIT comes before that."""
    nodes = Nodes(monkeypatch)
    asked: list[str] = []
    clean = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: asked.append("clean")))
    nodes.actor.clean = clean
    nodes.upload(1, "a", "b")
    assert asked == []
    nodes.reason = "No space left on device"
    nodes.upload(2, "a", "b")
    nodes.upload(3, "a", "b")
    assert asked == ["clean"] * 2 and nodes.keeper.is_clean.is_set()


@pytest.mark.parametrize(("best", "is_told"), [(0, False), (2, True)])
def test_a_commit_without_metrics_is_told_of_where_the_best_are_kept(
    best: int, is_told: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes(monkeypatch, keep=Keep(best=best))
    nodes.keeper.commit(rungs.Commit(commit=key(7).commit, digests=("d",), node="a"), nodes.actor)
    assert ("no metric of step 7 is known" in caplog.text and "Checkpoint.keep.best" in caplog.text) == is_told


LEASE_S = 0.1


class SlowVault:
    """Of two shards, of which another node has sent the second; an upload and a commit each wait for their word."""

    def __init__(self) -> None:
        self.said, self.may_send, self.may_commit = list[str](), threading.Event(), threading.Event()
        self.is_sent = False

    def upload(self, manifest: Any, read: Callable[[int, int], Any]) -> str:
        self.said.append("nothing is missing" if self.is_sent else "sending")
        assert self.may_send.wait(LONG_S)
        self.is_sent = True
        self.said.append("sent")
        return "d0"

    def uploaded(self, commit: Any, shards: int) -> list[str]:
        return ["d0", "d1"] if self.is_sent else ["d1"]

    def commit(self, commit: Any, digests: Any, metrics: Any) -> None:
        self.said.append("committing")
        assert self.may_commit.wait(LONG_S)
        self.said.append(f"committed {','.join(digests)} {metrics}")


def test_a_step_is_durable_before_old_ones_are_deleted() -> None:
    """That takes seconds for each thousand objects; the next step, and who waits for this one, need not."""
    asked, open_ = list[str](), list[tuple[Callable[[Any], Any], Callable[[str], Any]]]()
    heard = list[rungs.Event]()

    def remote(name: str) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: asked.append(name)))

    def then(
        ask: Callable[[], Any], within_s: float, ended: Callable[[Any], Any], failed: Callable[[str], Any]
    ) -> None:
        ask()
        open_.append((ended, failed))

    keeper = UploadKeeper(Checkpoint(persistent="/store"), 1, print, then, heard.append, lambda _: {})
    actor = SimpleNamespace(commit=remote("commit"), clean=remote("clean"))
    for step in (1, 2):
        keeper.commit(rungs.Commit(commit=key(step).commit, digests=("d0",), node="a"), actor)
    assert keeper.is_clean.is_set()
    for committed, _ in open_[:2]:
        committed("")
    assert asked == ["commit", "commit", "clean", "clean"] and not keeper.is_clean.is_set()
    assert [(one.commit.step, one.reason) for one in heard if isinstance(one, rungs.Committed)] == [(1, ""), (2, "")]
    open_[2][0](None)
    assert not keeper.is_clean.is_set(), "the other one is at it"
    open_[3][1]("RayActorError: it died")
    assert keeper.is_clean.is_set()
    keeper.commit(rungs.Commit(commit=key(3).commit, digests=("d0",), node="a"), actor)
    open_[4][0]("node a: it is away")
    assert asked[4:] == ["commit"] and keeper.is_clean.is_set(), "nothing new is there that an older one could go for"


def replica_of(vault: SlowVault, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[CheckpointReplica, list[str]]:
    """An actor, here, with shard 0 of step 1 in its memory; and what is said when it was ended."""
    ended: list[str] = []
    context = SimpleNamespace(current_actor=None)
    ray = SimpleNamespace(get_runtime_context=lambda: context, kill=lambda actor, no_restart: ended.append("ended"))
    monkeypatch.setattr(replica, "ray", ray)
    monkeypatch.setattr(replica, "_put", lambda array: (None, array))
    monkeypatch.setattr(uploading, "_NEXT_S", LEASE_S)
    monkeypatch.setattr(replica, "_LEASE_LOOK_S", LEASE_S / 10)
    memory = FakeMemory()
    memory.seal(key(1, 0, 2))
    equipment = Equipment(
        run="night",
        incarnation=1,
        memory=lambda node: memory,
        vault=lambda: vault,  # type: ignore[arg-type, return-value]
        keep=Keep(),
        budget_bytes=1 << 20,
        slots=folder,
        lease_s=LONG_S,
    )
    actor = CheckpointReplica("node", equipment)
    actor._janitor = SimpleNamespace(clean=lambda vault, keep: None)  # type: ignore[assignment]
    return actor, ended


def test_an_actor_that_was_left_behind_serves_what_the_next_driver_has_elsewhere_and_what_it_had(
    monkeypatch, tmp_path: Path
) -> None:
    """The run was submitted again with other places in its settings, and finds the actors of its last life."""
    places = [tmp_path / name for name in ("a", "b", "disk a", "disk b", "no disk")]
    for place in places[:4]:
        place.mkdir()
    places[4].touch()
    actor, ended = replica_of(SlowVault(), places[0], monkeypatch)
    old, new = actor._equipment, FakeMemory()
    actor.equip(replace(old, incarnation=2, disk=lambda node: Disk(places[2], "night")))
    assert actor.to_disk(2, key(1, 0, 2)).reason == ""
    elsewhere = {"memory": lambda node: new, "slots": places[1], "disk": lambda node: Disk(places[3], "night")}
    for incarnation in (3, 4):
        actor.equip(replace(old, incarnation=incarnation, **elsewhere))
    data = new.seal(key(2))
    assert actor.to_disk(4, key(2)).reason == ""
    holding, _ = actor.beat(4, {key(2)})
    assert holding.slots == {key(1, 0, 2), key(2)} == holding.disk and holding.pinned == {key(2)}
    assert actor.read(key(2), 0, 10).tobytes() == data[:10].tobytes() and len(actor.read(key(1, 0, 2), 0, 10)) == 10
    written = [{one.commit.step for one in Disk(place, "night").manifests()} for place in places[2:4]]
    assert written == [{1}, {2}]
    actor.equip(replace(old, incarnation=5, **elsewhere | {"disk": lambda node: Disk(places[4], "night")}))
    assert str(places[4]) in actor.to_disk(5, key(2)).reason, "it was written where nobody wants it"
    assert actor.off_disk(5, key(1, 0, 2)).disk == {key(2)}
    cleared: list[Path] = []
    monkeypatch.setattr(replica, "reclaim", lambda slots, run, kept: cleared.append(slots))
    actor.clear(5)
    assert sorted(cleared) == places[:2]
    expire(actor)
    eventually(lambda: ended == ["ended"], "its lease is over")


def expire(actor: CheckpointReplica) -> None:
    """No driver was heard for the length of the lease."""
    actor._equipment = replace(actor._equipment, lease_s=LEASE_S)
    time.sleep(3 * LEASE_S)


def test_an_actor_whose_lease_is_over_commits_before_it_ends(monkeypatch, tmp_path: Path) -> None:
    """It took longer than the lease to send it; the COMMIT comes after, and a second order meanwhile."""
    vault = SlowVault()
    actor, ended = replica_of(vault, tmp_path, monkeypatch)
    order = Running(lambda: actor.make_durable(1, key(1, 0, 2)))
    eventually(lambda: vault.said == ["sending"], "it is sent")
    expire(actor)
    vault.may_send.set()
    eventually(lambda: vault.said[-1] == "committing", "it is committed")
    time.sleep(5 * LEASE_S)
    assert ended == [], "it was ended before it had committed"
    vault.may_commit.set()
    assert order.result() == "" and vault.said[-1] == "committed d0,d1 {}"
    eventually(lambda: ended == ["ended"], "its lease is over")


def test_what_is_handed_over_while_it_is_sent_is_sent_once_and_committed(monkeypatch, tmp_path: Path) -> None:
    vault = SlowVault()
    actor, ended = replica_of(vault, tmp_path, monkeypatch)
    first = Running(lambda: actor.upload(1, key(1, 0, 2)))
    eventually(lambda: vault.said == ["sending"], "it is sent")
    second = Running(lambda: actor.upload(1, key(1, 0, 2), {"loss": 1.0}))
    eventually(lambda: actor._uploads._at_work == 2, "it was told of the end")
    expire(actor)
    assert vault.said == ["sending"] and ended == []
    vault.may_commit.set()
    vault.may_send.set()
    assert [one.result().digest for one in (first, second)] == ["d0", "d0"]
    assert vault.said[:4] == ["sending", "sent", "nothing is missing", "sent"]
    assert vault.said[4:] == ["committing", "committed d0,d1 {'loss': 1.0}"]
    eventually(lambda: ended == ["ended"], "its lease is over")


class FailingVault(SlowVault):
    """The first time it can neither be written to nor committed to."""

    def upload(self, manifest: Any, read: Callable[[int, int], Any]) -> str:
        if "no upload" not in self.said:
            self.said.append("no upload")
            raise StoreError("it is away")
        return super().upload(manifest, read)

    def commit(self, commit: Any, digests: Any, metrics: Any) -> None:
        if "no commit" not in self.said:
            self.said.append("no commit")
            raise StoreError("it is away again")
        super().commit(commit, digests, metrics)


def test_what_is_handed_over_is_tried_again_while_the_store_is_away(monkeypatch, tmp_path: Path) -> None:
    """Nobody else would, and the copy in memory goes with its lease."""
    monkeypatch.setattr(replica, "_AGAIN_S", 0.01)
    vault = FailingVault()
    vault.may_send.set()
    vault.may_commit.set()
    actor, ended = replica_of(vault, tmp_path, monkeypatch)
    assert actor.upload(1, key(1, 0, 2), {"loss": 1.0}).reason == ""
    assert vault.said[0] == "no upload" and "no commit" in vault.said
    assert vault.said[-1] == "committed d0,d1 {'loss': 1.0}"
    monkeypatch.setattr(vault, "upload", lambda manifest, read: (_ for _ in ()).throw(StoreError("for good")))
    assert "for good" in actor.upload(1, key(1, 0, 2)).reason, "a driver that is there asks again itself"
    expire(actor)
    assert "for good" in actor.upload(1, key(1, 0, 2), {}).reason
    eventually(lambda: ended == ["ended"], "its lease is over")


def test_shards_that_wait_for_their_turn_hold_their_slots_and_no_others_do(monkeypatch, tmp_path: Path) -> None:
    """Their step is not pinned any more: its workers write the next ones where nobody holds a slot."""
    vault = SlowVault()
    actor, ended = replica_of(vault, tmp_path, monkeypatch)
    memory = FakeMemory()
    monkeypatch.setattr(actor._node, "memory", memory)
    sent, count = dict[int, bytes](), uploading.AT_ONCE + 2
    data = [memory.seal(key(1, shard, count)) for shard in range(count)]

    def upload(manifest: Any, read: Callable[[int, int], Any]) -> str:
        vault.said.append("sending")
        assert vault.may_send.wait(LONG_S)
        sent[manifest.shard] = bytes(read(0, manifest.nbytes))
        return f"d{manifest.shard}"

    monkeypatch.setattr(vault, "upload", upload)
    orders = [Running(lambda shard=shard: actor.upload(1, key(1, shard, count))) for shard in range(count)]
    eventually(lambda: vault.said == ["sending"] * uploading.AT_ONCE, "as many as may be are sent at once")
    eventually(lambda: len(memory.held()) == 2, "the others wait with their slots")
    written = [shard for shard in range(count) if memory.overwrite(key(1, shard, count))]
    assert len(written) == uploading.AT_ONCE, "what is sent has been copied"
    vault.may_send.set()
    assert [order.result().reason for order in orders] == [""] * count
    assert sent == {shard: bytes(data[shard]) for shard in range(count)}
    assert memory.held() == set()
    expire(actor)
    eventually(lambda: ended == ["ended"], "its lease is over")


def test_what_a_keeper_was_told_before_it_is_closed_is_done(monkeypatch, tmp_path: Path) -> None:
    done: list[str] = []
    busy = threading.Event()
    monkeypatch.setattr("ray.nodes", lambda: [])
    settings = RunSettings(run="night", checkpoint=Checkpoint(memory=str(tmp_path), persistent=str(tmp_path)))
    keeper = Keeper(settings, lambda told: None, lambda error: done.append(repr(error)))
    monkeypatch.setattr(keeper._uploads, "leave", lambda actor_of: done.append("left"))
    keeper.lease(key(1).commit, 1, then=lambda going: busy.wait(LONG_S))
    keeper.hand_over("the run exits")
    closing = Running(lambda: keeper.close(keep=True))
    time.sleep(0.1)
    busy.set()
    closing.result()
    assert done == ["left"] and not keeper._thread.is_alive()


def test_an_upload_is_due_by_the_newest_step_on_any_node_whoever_was_heard_last(monkeypatch, tmp_path: Path) -> None:
    """Else each answer of a node with older slots would look like a step back, after which it is due at once."""
    asked, crashed = list[int | None](), list[str]()
    monkeypatch.setattr("ray.nodes", lambda: [])
    settings = RunSettings(run="night", checkpoint=Checkpoint(memory=str(tmp_path), persistent=str(tmp_path)))
    keeper = Keeper(settings, lambda told: None, lambda error: crashed.append(repr(error)), beat_s=3600.0)

    def act() -> None:
        monkeypatch.setattr(keeper._uploads, "is_due", asked.append)
        keeper._homes = {0: frozenset("ab")}
        for number, (node, steps) in enumerate((("a", (90, 100)), ("b", (40,)))):
            slots = frozenset(key(step) for step in steps)
            held = rungs.Holding(
                life="1", number=number, slots=slots, pinned=frozenset(), copies=frozenset(), disk=frozenset()
            )
            hand = Hand(None, None, time.monotonic(), life="1", is_coming=False)  # type: ignore[arg-type]
            keeper._hear(node, hand, held)
        keeper._beat()

    keeper._inbox.put(act)
    eventually(lambda: asked or crashed, "it has looked whether an upload is due")
    keeper.close(keep=True)
    assert asked == [100] and not crashed
