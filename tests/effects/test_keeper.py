"""Effect. The keeper of checkpoints where nodes have no say: which of many wishes it follows. No Ray."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elastic.actors import keeper as module
from elastic.actors.keeper import Hand, Keeper
from elastic.actors.prefetcher import Aim
from elastic.checkpoint import rungs
from elastic.checkpoint.catalog import Candidate
from elastic.checkpoint.manifest import ShardKey
from elastic.control.values import CommitId
from elastic.settings import Checkpoint, RunSettings

_DEADLINE_S = 60.0
COMMIT = CommitId(1, 1, 0, 7, "")


class Followed:
    """Stands for the prefetcher: notes what is aimed at, and tells at once."""

    homes: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.aims: list[Aim | None] = []

    def aim(self, aim: Aim | None, then: Callable[[], None]) -> None:
        self.aims.append(aim)
        then()


@pytest.fixture
def followed() -> Followed:
    return Followed()


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch, followed: Followed) -> Iterator[Keeper]:
    crashes: list[Exception] = []
    monkeypatch.setattr(module.ray, "nodes", lambda: list[dict[str, Any]]())
    monkeypatch.setattr(module, "Prefetcher", lambda *_: followed)
    settings = RunSettings(run="night", incarnation=1, checkpoint=Checkpoint())
    made = Keeper(settings, lambda told: None, crashes.append, beat_s=3600)
    yield made
    made.close(keep=True)
    assert crashes == []


def aim_at(nodes: int) -> Aim:
    candidate = Candidate(commit=COMMIT, shards=())
    return Aim(candidate=candidate, width=1, homes={f"n{number}": {0} for number in range(nodes)})


def test_of_wishes_that_wait_the_last_is_followed_and_all_who_wished_are_told(
    keeper: Keeper, followed: Followed
) -> None:
    """A thousand nodes are placed one by one while the keeper looks at all of them for the first."""
    is_busy, is_free, is_done = threading.Event(), threading.Event(), threading.Event()
    told: list[int] = []

    def hold(_: Any) -> None:
        is_busy.set()
        is_free.wait(_DEADLINE_S)

    keeper.lease(COMMIT, 1, then=hold)
    assert is_busy.wait(_DEADLINE_S)
    wishes = [aim_at(nodes) for nodes in (1, 2, 3)]
    for wish in wishes:
        keeper.prefetch(wish, partial(told.append, len(wish.homes)))
    keeper.lease(COMMIT, 1, is_over=True, then=lambda _: is_done.set())
    is_free.set()
    assert is_done.wait(_DEADLINE_S)
    assert followed.aims == wishes[2:] and sorted(told) == [1, 2, 3]
    is_done.clear()
    keeper.prefetch(None, is_done.set)
    assert is_done.wait(_DEADLINE_S) and followed.aims == [wishes[2], None]


def test_an_actor_that_could_not_be_told_how_it_is_equipped_is_told_again_with_its_next_beat(
    keeper: Keeper, followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lives on, as an earlier driver has left it, and nobody else would tell it."""
    told: list[str] = []

    def then(ask: Callable[[], str], _: float, done: Callable[[Any], None], failed: Callable[[str], None]) -> None:
        told.append(ask())
        failed("the connection broke") if len(told) == 1 else done(None)

    monkeypatch.setattr(keeper, "_then", then)
    monkeypatch.setattr(keeper, "_heed", lambda event: None)
    monkeypatch.setattr(followed, "heard", lambda *_: None, raising=False)
    equip = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda equipment: equipment))
    hand = Hand(actor=SimpleNamespace(equip=equip), equipment=cast(Any, "as now"), heard_s=0.0, is_up=True)
    for life in ("a", "a", "a", "b"):
        keeper._hear("n0", hand, cast(Any, SimpleNamespace(life=life, slots=())))
    assert told == ["as now"] * 3


def test_an_order_that_ray_does_not_take_has_failed_and_the_others_are_carried_out(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, asked, is_done = ShardKey(commit=COMMIT, shard=0, shards=1), list[str](), threading.Event()
    refused, is_beaten = list[rungs.Refused](), threading.Event()

    def refuse(*_: Any) -> Any:
        raise OSError("no room")

    def take(*_: Any) -> Any:
        asked.append("b")
        return SimpleNamespace(future=Future)

    def heed(event: rungs.Event) -> tuple[rungs.Pull, ...]:
        if isinstance(event, rungs.Refused):
            refused.append(event)
            is_done.set()
        pulls = tuple(rungs.Pull(key=key, node=node, sources=(), reason="") for node in "ab")
        return pulls if isinstance(event, rungs.RedundancyLost) else ()

    def hand(remote: Callable[..., Any]) -> Hand:
        pull = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=remote))
        return Hand(actor=SimpleNamespace(pull=pull), equipment=cast(Any, None), heard_s=0.0)

    keeper.lease(COMMIT, 1, then=lambda _: is_beaten.set())
    assert is_beaten.wait(_DEADLINE_S), "the first beat is over"
    monkeypatch.setattr(keeper._ladder, "heed", heed)
    monkeypatch.setattr(keeper, "_hands", {"a": hand(refuse), "b": hand(take)})
    keeper.redundancy_lost("last")
    assert is_done.wait(_DEADLINE_S) and asked == ["b"]
    assert [(one.node, one.reason) for one in refused] == [("a", "OSError: no room")]
    monkeypatch.undo()
