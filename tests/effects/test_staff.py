"""Effect. Which process a worker is: a new one in its slot, or a stand-in; and that none is left over. No Ray."""

from collections.abc import Callable
from typing import Any

import pytest
from ray.exceptions import RayActorError

from elastic.actors import staff
from elastic.actors.hands import Hand
from elastic.actors.staff import Staff
from elastic.actors.stand_ins import StandIn
from elastic.settings import RunSettings, Scaling

NODE = f"{1:056x}"


class Actor:
    """Stands for a handle: what is called is noted, and is its own reference."""

    def __init__(self, name: str) -> None:
        self.name, self.calls = name, list[str]()

    def __getattr__(self, method: str) -> "Actor":
        self.calls.append(method)
        return self

    def options(self, **_: Any) -> "Actor":
        return self

    def remote(self, *_: Any) -> "Actor":
        return self


class World:
    """A `Staff` whose calls are answered by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **scaling: Any) -> None:
        self.started, self.killed = list[Actor](), list[Any]()
        self.begun: list[tuple[Actor, dict[str, str]]] = []
        self.pending: list[tuple[Callable[[Any], Any], Callable[[Exception], Any]]] = []
        self.up: list[tuple[str, int]] = []
        self.lost: list[tuple[str, Exception]] = []
        monkeypatch.setattr(staff, "start_worker_actor", self._start)
        monkeypatch.setattr(staff, "begin", self._begin)
        monkeypatch.setattr(staff.ray, "kill", self.killed.append)
        monkeypatch.setattr(staff, "PlacementGroupSchedulingStrategy", lambda group, bundle: (group, bundle))
        settings = RunSettings(run="r", scaling=Scaling(**scaling))
        self.staff = Staff(
            settings, Slots(), (0, print, ""), self._then, self._came_up, lambda *told: self.lost.append(told)
        )
        self.standing = [StandIn(NODE, Actor("stand-in"), is_ready=True)]
        monkeypatch.setattr(self.staff.stand_ins, "take", lambda node: self.standing.pop() if self.standing else None)
        self.on_start: Callable[[], None] = lambda: None

    def hand(self) -> Hand:
        hand = Hand("group", None, is_manned=False)  # type: ignore[arg-type]
        hand.node = NODE
        return hand

    def answer(self, what: Any) -> None:
        then, failed = self.pending.pop(0)
        failed(what) if isinstance(what, Exception) else then(what)

    def _start(self, *, name: str, **_: Any) -> Actor:
        self.started.append(Actor(name))
        self.on_start()
        return self.started[-1]

    def _begin(self, actor: Actor, surroundings: dict[str, str], *_: Any) -> Actor:
        self.begun.append((actor, surroundings))
        return actor

    def _then(self, _: Any, then: Callable[[Any], Any], failed: Callable[[Exception], Any]) -> None:
        self.pending.append((then, failed))

    def _came_up(self, worker: str, pid: int) -> None:
        self.up.append((worker, pid))


class Slots:
    def bundle_of(self, shard: int) -> int:
        return shard


def test_a_stand_in_is_the_worker_and_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    hand = world.hand()
    world.staff.man("w1", hand)
    world.staff.man("w1", hand)  # by whoever looks once more
    world.answer(77)
    assert [(actor.name, given) for actor, given in world.begun] == [("stand-in", {})]
    assert world.started == [] and world.up == [("w1", 77)] and not hand.is_in_slot
    hand.kill()
    assert [actor.name for actor in world.killed] == ["stand-in"], "it does not go with its slot"


def test_one_that_still_imports_is_hurried_and_begun_when_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    for scaling in ({}, {"use_gpu": True}):
        world = World(monkeypatch, **scaling)
        world.standing[0].is_ready = False
        actor = world.standing[0].actor
        world.staff.man("w1", hand := world.hand())
        assert actor.calls == ["hurry"] and world.begun == [] and world.started == [] and not hand.is_in_slot
        world.answer(None)
        if scaling:
            world.answer({"CUDA_VISIBLE_DEVICES": "3"})
        assert [one for one, _ in world.begun] == [actor]


def test_one_that_can_not_be_hurried_gives_way_to_a_process_in_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.standing[0].is_ready = False
    world.staff.man("w1", hand := world.hand())
    world.answer(RuntimeError("its imports may not be hurried"))
    assert [actor.name for actor in world.killed] == ["stand-in"]
    assert hand.is_in_slot and [actor.name for actor in world.started] == ["elastic-r@1-w1"]
    assert [actor.name for actor, _ in world.begun] == ["elastic-r@1-w1"]


def test_one_that_is_released_while_it_hurries_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.standing[0].is_ready = False
    world.staff.man("w1", hand := world.hand())
    hand.is_over = True
    world.answer(None)
    assert world.begun == [] and [actor.name for actor in world.killed] == ["stand-in"]


def test_where_there_is_none_a_process_is_started_in_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.standing.clear()
    world.staff.man("w1", hand := world.hand())
    assert [actor.name for actor in world.started] == ["elastic-r@1-w1"] and hand.is_in_slot


def test_one_that_can_not_begin_gives_way_to_a_process_in_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (RayActorError(), RuntimeError("it sees no GPU")):
        world = World(monkeypatch)
        world.staff.man("w1", hand := world.hand())
        world.answer(error)
        assert [actor.name for actor in world.killed] == ["stand-in"]
        world.answer(78)
        assert hand.is_in_slot and hand.actor.name == "elastic-r@1-w1"
        assert world.up == [("w1", 78)] and world.lost == []


def test_a_process_in_the_slot_that_can_not_begin_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.standing.clear()
    world.staff.man("w1", world.hand())
    world.answer(error := RayActorError())
    assert world.lost == [("w1", error)]


def test_accelerators_are_held_in_the_slot_and_told_to_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, use_gpu=True)
    world.staff.man("w1", hand := world.hand())
    (holder,) = world.started
    assert holder.name == "elastic-r@1-slot-w1" and "surroundings" in holder.calls and world.begun == []
    world.answer({"CUDA_VISIBLE_DEVICES": "3"})
    assert world.begun == [(hand.actor, {"CUDA_VISIBLE_DEVICES": "3"})]
    hand.kill()
    assert world.killed == [hand.actor, holder]


def test_a_worker_that_is_released_while_it_is_started_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for scaling in ({}, {"use_gpu": True}):
        world = World(monkeypatch, **scaling)
        if not scaling:
            world.standing.clear()
        hand = world.hand()

        def release(hand: Hand = hand) -> None:
            hand.is_over = True  # as `_release` does, which kills who is known by then
            hand.kill()

        world.on_start = release
        world.staff.man("w1", hand)
        assert set(world.started) <= set(world.killed)
        assert scaling == {} or any(actor.name == "stand-in" for actor in world.killed)
        assert world.begun == []


def test_what_ray_refuses_is_a_lost_worker_and_not_the_end_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ValueError("the name is taken")

    world = World(monkeypatch)
    world.standing.clear()
    world.on_start = refuse
    world.staff.man("w1", world.hand())
    assert [(worker, str(error)) for worker, error in world.lost] == [("w1", "the name is taken")]

    world = World(monkeypatch)
    world.staff.man("w2", world.hand())
    world.on_start = refuse
    world.answer(RayActorError())
    assert [(worker, str(error)) for worker, error in world.lost] == [("w2", "the name is taken")]
