"""Effect. A worker that is to load a checkpoint: what it held is void once there is something else, and not before."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from elastic.checkpoint import parallel, reach
from elastic.checkpoint.reader import take_inventory
from elastic.checkpoint.store import StoreError
from elastic.control.events import RestoreRefused
from elastic.control.values import CommitId
from elastic.control.worker_protocol import WorkerState
from elastic.errors import RefusedError
from elastic.settings import Checkpoint
from elastic.train import reviving
from tests.effects.helpers import ENDLESS_S
from tests.effects.shelves import RUN, Shelf, numbers, shard_of

HELD, WANTED = (CommitId(incarnation=1, generation=1, attempt=1, step=step, lineage=f"l{step}") for step in (9, 3))


def revived(monkeypatch: pytest.MonkeyPatch, fetched: Any, is_spoilt: bool = False, is_void: bool = False) -> list[Any]:
    """What was done, in order; is_void: a newer driver was told what it holds."""
    done: list[Any] = []

    def restored(commit: CommitId, install: Callable[[], object], report: Any) -> None:
        if not is_void:
            install()
            done.append(commit)

    link = SimpleNamespace(
        state=WorkerState(commit=HELD, healed=not is_spoilt),
        is_spoilt=is_spoilt,
        answer_restore=done.append,
        restored=restored,
    )
    replica = SimpleNamespace(
        forget=lambda: done.append("forget"),
        page=SimpleNamespace(during=lambda *what: nullcontext()),
        snapshots=SimpleNamespace(fence=lambda: done.append("fence")),
    )
    monkeypatch.setattr(reviving, "_fetched", fetched)
    monkeypatch.setattr(reviving, "_told", lambda worker, report: report)
    reviving.revive(replica, SimpleNamespace(link=link, worker="w0"), WANTED)
    return done


def test_what_it_held_is_void_once_it_has_something_else(monkeypatch):
    fetched = SimpleNamespace(install=lambda: None, report=SimpleNamespace(missing=(), commit=WANTED))
    assert revived(monkeypatch, lambda *about: fetched) == ["fence", "forget", WANTED]


def test_what_a_newer_driver_was_told_that_it_holds_it_holds_yet(monkeypatch):
    """And has yet to tell of: nobody else may know."""
    fetched = SimpleNamespace(install=lambda: None, report=SimpleNamespace(missing=(), commit=WANTED))
    assert revived(monkeypatch, lambda *about: fetched, is_void=True) == ["fence"]


def test_an_import_is_no_way_back_for_who_has_trained_since(monkeypatch):
    """It would set back the weights, and leave moments and the place in the data as they are."""
    report = SimpleNamespace(missing=("optimizer", "elastic.cursor"), commit=WANTED, shard=0)
    fetched = SimpleNamespace(install=lambda: pytest.fail("installed"), report=report)
    (refused,) = revived(monkeypatch, lambda *about: fetched)
    assert isinstance(refused, RestoreRefused) and (refused.kept, refused.is_bad) == (HELD, False)
    assert "nothing for optimizer, elastic.cursor" in refused.reason and "another name" in refused.reason


def test_an_import_is_no_beginning_for_who_holds_a_part_of_another_state(monkeypatch):
    """What it lacks would be what a heal has left that broke off in the middle."""
    report = SimpleNamespace(missing=("ema",), commit=WANTED, shard=0)
    fetched = SimpleNamespace(install=lambda: pytest.fail("installed"), report=report)
    (refused,) = revived(monkeypatch, lambda *about: fetched, is_spoilt=True)
    assert isinstance(refused, RestoreRefused) and (refused.kept, refused.is_bad) == (None, False)
    assert "nothing for ema" in refused.reason and "a part of another state" in refused.reason


def test_who_has_not_trained_begins_with_an_import(monkeypatch):
    report = SimpleNamespace(missing=("optimizer",), commit=HELD, shard=0)
    fetched = SimpleNamespace(install=lambda: None, report=report)
    assert revived(monkeypatch, lambda *about: fetched) == ["fence", "forget", WANTED]


class Silent(Shelf):
    """Says for long nothing of what it has; `opened`: until then."""

    def __init__(self, *about: Any, **more: Any) -> None:
        super().__init__(*about, **more)
        self.opened = threading.Event()

    def manifests(self, step: int | None = None) -> Any:
        assert self.opened.wait(ENDLESS_S)
        return super().manifests(step)


@pytest.mark.parametrize("is_bad", [False, True])
def test_a_node_that_does_not_answer_is_waited_for_only_if_what_the_others_have_is_bad(monkeypatch, is_bad):
    """The deadline is generous: whoever waits for the silent one waits for all of it."""
    monkeypatch.setattr(parallel, "QUIET_S", 0.05)
    given = shard_of({"a": numbers(9)}, step=WANTED.step, lineage=WANTED.lineage)
    silent = Silent([given], where="n1")

    def fetch(tracked: Any, candidate: Any, *about: Any) -> list[str]:
        there = [holder.source.where for holder in candidate.shards[0]]
        if is_bad and there == ["n0"]:
            silent.opened.set()
            raise RefusedError("bad bytes", shard=0)
        return there

    monkeypatch.setattr(reviving, "fetch", fetch)
    around = SimpleNamespace(
        sources=lambda: [silent, Shelf([given], where="n0")],
        run=RUN,
        limits=SimpleNamespace(restore_timeout_s=ENDLESS_S),
    )
    replica = SimpleNamespace(tracked=None, shard=0, width=1, landing=None)
    found = reviving._fetched(replica, around, given[0].commit)
    silent.opened.set()
    assert sorted(found) == (["n0", "n1"] if is_bad else ["n0"])


def test_where_nothing_can_be_had_its_steps_are_told_yet(monkeypatch):
    def refuses(*about: Any) -> Any:
        raise RefusedError("nobody has it", shard=None)

    (answer,) = revived(monkeypatch, refuses)
    assert isinstance(answer, RestoreRefused) and answer.kept == HELD and "nobody has it" in answer.reason


def test_a_persistent_tier_that_cannot_be_opened_hides_nothing_that_others_hold(monkeypatch, tmp_path):
    """Such as on a new node, which has no credentials yet."""

    def refuses(*_: Any, **__: Any) -> None:
        raise StoreError("no credentials")

    monkeypatch.setattr(reach, "open_vault", refuses)
    held = Shelf([shard_of({"w": numbers(20)})])
    there = reach.Reach(RUN, Checkpoint(persistent="gs://bucket/x", memory=str(tmp_path)), lambda: [held])
    inventory = take_inventory(there.sources())
    assert len(inventory.holders) == 1 and inventory.silent == ("gs://bucket/x: no credentials",)
    with pytest.raises(StoreError, match="no credentials"):
        _ = there.vault
