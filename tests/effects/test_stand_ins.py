"""Effect. Stand-ins: how many are kept and where, and the process that stands by. No Ray."""

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
import torch
from ray.exceptions import RayActorError, RaySystemError

from elastic.actors import stand_ins, worker_actor
from elastic.actors.hands import Hand, Hands
from elastic.actors.priority import RAY_NICENESS
from elastic.actors.stand_ins import StandIns
from elastic.actors.worker_actor import WorkerActor, born_of, stand_in_name
from elastic.settings import Limits, RunSettings, Scaling
from elastic.train.rehearsal import check_sight, rehearse

pytestmark = pytest.mark.timeout(600)

A, B, C, *MORE = (f"{number:056x}" for number in range(20))  # nodes, named as Ray names them


class Actor:
    """Stands for a handle: calls are references to themselves."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.stand_by = self

    def options(self, **_: Any) -> "Actor":
        return self

    def remote(self) -> "Actor":
        return self


def hands_on(nodes: Collection[str], loading: Collection[str] = ()) -> Hands:
    """A worker for each of these nodes; those on the nodes of `loading` have yet to come to their first step."""
    hands = Hands()
    for number, node in enumerate(nodes):
        hands.add(f"w{number}", Hand(None, None, node=node, address=None if node in loading else ("host", 1)))
    return hands


class World:
    """A `StandIns` with a clock of its own, and actors that answer when they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, per_node: int = 1) -> None:
        self.now_s, self.started, self.killed = 100.0, list[Actor](), list[Actor]()
        self.calls: list[tuple[Actor, Callable[[Any], Any], Callable[[Exception], Any]]] = []
        self.error: Exception | None = None
        monkeypatch.setattr(stand_ins, "start_worker_actor", self._start)
        monkeypatch.setattr(stand_ins.ray, "kill", self.killed.append)
        monkeypatch.setattr(stand_ins.ray, "nodes", lambda: self.nodes)
        self.nodes: list[dict[str, Any]] = []
        settings = RunSettings(run="r", scaling=Scaling(stand_ins=per_node), limits=Limits(orphan_lease_s=40))
        self.kept = StandIns(settings, b"", lambda *call: self.calls.append(call), lambda: self.now_s)

    def keep(self, nodes: list[str], after_s: float = 1.0, loading: Collection[str] = ()) -> None:
        self.now_s += after_s
        self.kept.keep(hands_on(nodes, loading))

    def _start(self, *, strategy: Any, **_: Any) -> Actor:
        if self.error is not None:
            raise self.error
        self.started.append(Actor(strategy.node_id))
        return self.started[-1]

    def answer(self, error: Exception | None = None) -> None:
        calls, self.calls = self.calls, []
        for _, ready, failed in calls:
            ready(1) if error is None else failed(error)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_each_node_has_one_and_a_few_are_started_at_a_time(world: World) -> None:
    nodes = [A, B, *MORE]
    world.keep(nodes)
    assert len(world.started) == 16
    world.keep(nodes)
    world.keep(nodes)
    assert sorted(one.node for one in world.started) == nodes


def test_as_many_as_are_set_and_none_where_none_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for per_node in (0, 2):
        world = World(monkeypatch, per_node)
        world.keep([A])
        world.keep([A])
        assert len(world.started) == per_node


def test_each_is_taken_once_and_another_one_comes(world: World) -> None:
    assert not world.kept.has_any and world.kept.take(A) is None
    world.keep([A])
    world.answer()
    assert world.kept.has_any and world.kept.take(B) is None
    found = world.kept.take(A)
    assert found is not None and found.actor is world.started[0] and found.is_ready and world.kept.take(A) is None
    world.keep([A], after_s=2.0)
    assert len(world.started) == 1, "the cores belong to those who form"
    world.keep([A])
    assert len(world.started) == 2
    world.kept.end()
    assert world.killed == [world.started[1]], "who was taken is a worker's process now"


def test_one_that_still_imports_is_taken_where_none_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, per_node=2)
    world.keep([A])
    world.keep([A])
    slow, quick = world.started
    world.calls = [call for call in world.calls if call[0] is quick]
    world.answer()
    taken = [one for one in (world.kept.take(A) for _ in range(3)) if one is not None]
    assert [(one.actor, one.is_ready) for one in taken] == [(quick, True), (slow, False)]
    world.kept.end()
    assert world.killed == []


def test_none_starts_beside_a_worker_on_its_way_or_while_somebody_joins(world: World) -> None:
    world.keep([A, B], loading={B})
    assert [one.node for one in world.started] == [A]
    world.kept.hold()  # who was on the way to B joins
    world.keep([A, B], after_s=2.0)
    assert [one.node for one in world.started] == [A]
    world.keep([A, B])
    assert [one.node for one in world.started] == [A, B]


def test_it_is_asked_again_before_it_takes_its_driver_for_dead(world: World) -> None:
    world.keep([A])
    world.answer()
    world.keep([A], after_s=9)
    assert world.calls == []
    world.keep([A])
    assert len(world.calls) == 1, "a quarter of the orphan lease is over"
    world.keep([A], after_s=100)
    assert len(world.calls) == 1, "who has yet to answer is not asked once more"


def test_one_whose_node_has_lost_its_last_worker_is_kept_for_who_comes(world: World) -> None:
    world.keep([A])
    world.answer()
    world.keep([], after_s=50)
    assert world.kept.has_any
    world.keep([], after_s=11)
    assert not world.kept.has_any and world.killed == world.started


def test_one_that_dies_is_replaced_after_a_while(world: World) -> None:
    world.keep([A])
    world.answer(RayActorError())
    world.keep([A])
    assert len(world.started) == 1 and world.killed == world.started
    world.keep([A], after_s=31)
    assert len(world.started) == 2


def test_what_ray_refuses_ends_no_run(world: World) -> None:
    world.error = ValueError("the name is taken")
    world.keep([A])
    world.error = None
    world.keep([A])
    assert world.started == []
    world.keep([A], after_s=31)
    assert len(world.started) == 1


def test_a_node_without_workers_has_some_too_and_replacements_go_where_they_are(world: World) -> None:
    world.nodes = [{"NodeID": node, "Alive": node != C, "Resources": {"CPU": 2.0}, "Labels": {}} for node in (A, B, C)]

    def keep() -> list[str]:
        world.now_s += 1
        world.kept.keep(hands_on([A, A]))
        return [one.node for one in world.started]

    assert keep() == keep() == [A], "beside workers first"
    assert world.kept.places({A: 1}) == ()
    world.answer()
    assert keep() == keep() == [A, B], "and one at a time"
    world.answer()
    assert keep() == [A, B, B], "as many as may come from there, where Ray has room"
    world.answer()
    assert keep() == [A, B, B]
    assert world.kept.places({A: 2}) == (B,)
    assert world.kept.places({A: 1}) == (A, B), "one was lost there"


def test_ray_that_can_list_no_nodes_ends_no_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> list[Any]:
        raise RaySystemError("no answer")

    monkeypatch.setattr(stand_ins.ray, "nodes", away)
    world.keep([A])
    world.answer()
    assert world.kept.has_any and world.kept.places({}) == ()


def test_names_tell_who_has_started_it() -> None:
    assert born_of(stand_in_name("my-run@2", 7, 3)) == 7


def test_who_looks_ten_times_a_second_keeps_nobody_busy(world: World) -> None:
    world.keep([A])
    world.keep([A, B], after_s=0.1)
    assert len(world.started) == 1
    world.keep([A, B])
    assert len(world.started) == 2


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], WorkerActor]]:
    """Makes one in this process, for what it is to run."""
    made: list[WorkerActor] = []
    monkeypatch.setattr(worker_actor, "heed_sigterm", lambda notice: None)  # it is this process's

    def make(train_fn: bytes) -> WorkerActor:
        made.append(WorkerActor(60.0, train_fn))
        return made[-1]

    yield make
    for one in made:
        one._worker = "w0"  # ends its watch


def test_its_imports_are_done_by_a_thread_that_hangs_back_and_ends(
    stand_in: Callable[[bytes], WorkerActor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RAY_NICENESS, raising=False)
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    Noted.seen.clear()
    actor = stand_in(pickle.dumps(Noted()))
    assert actor.stand_by() == os.getpid()
    assert actor.stands_for() == ""
    assert Noted.seen == [10], "the same thread has unpickled what it is to run"
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine


def test_one_whose_imports_fail_does_not_call_itself_ready(stand_in: Callable[[bytes], WorkerActor]) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        stand_in(b"cno_such_module\nanything\n.").stand_by()


def test_one_that_is_wanted_while_it_imports_hurries_and_answers_when_it_is_ready(
    stand_in: Callable[[bytes], WorkerActor], monkeypatch: pytest.MonkeyPatch
) -> None:
    Slow.begun.clear()
    Slow.may_end.clear()
    hurried = list[str]()

    def catch_up(thread: threading.Thread) -> bool:
        hurried.append(thread.name)
        Slow.may_end.set()
        return True

    monkeypatch.setattr(worker_actor, "catch_up", catch_up)
    actor = stand_in(pickle.dumps(Slow()))
    assert Slow.begun.wait(60)
    actor.hurry()
    assert hurried == ["elastic-importing"] and Slow.has_ended and actor.stand_by() == os.getpid()
    actor.hurry()
    assert len(hurried) == 1, "a thread that has ended is not touched: its number may be another's now"


def test_one_that_may_not_be_hurried_leaves_its_place_to_a_new_process(
    stand_in: Callable[[bytes], WorkerActor], monkeypatch: pytest.MonkeyPatch
) -> None:
    Slow.begun.clear()
    Slow.may_end.clear()
    monkeypatch.setattr(worker_actor, "catch_up", lambda thread: False)
    actor = stand_in(pickle.dumps(Slow()))
    assert Slow.begun.wait(60)
    with pytest.raises(RuntimeError, match="may not be hurried"):
        actor.hurry()
    Slow.may_end.set()
    actor.stand_by()


class Slow:
    """Takes as long to be unpickled as it is told to."""

    begun, may_end = threading.Event(), threading.Event()
    has_ended = False

    def __reduce__(self) -> Any:
        return _take_long, ()


def _take_long() -> None:
    Slow.begun.set()
    Slow.has_ended = Slow.may_end.wait(60)


class Noted:
    """Notes the niceness of the thread that unpickles it."""

    seen: list[int] = []

    def __reduce__(self) -> Any:
        return _note, ()


def _note() -> None:
    Noted.seen.append(os.getpriority(os.PRIO_PROCESS, 0))


# On a busy machine their turn may not come for minutes, so these do not hang back.
STANDS_BY = """
import gc
import os
import sys
from elastic.actors import worker_actor
from elastic.actors.worker_actor import WorkerActor
worker_actor.hang_back = lambda: None
assert "torch" not in sys.modules, "the actor's own module is light"
actor = WorkerActor(float(sys.argv[1]))
actor.stand_by()
assert "torch._dynamo" in sys.modules
assert gc.get_freeze_count() > 10_000, "what was imported is not looked at in the steps"
print("ready", flush=True)
actor._has_begun.wait(60)
"""


def stands_by(seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", STANDS_BY, str(seconds)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if (said := process.stdout.readline()) != "ready\n":
        process.kill()
        process.wait(30)
        pytest.fail(f"it said {said!r} and ended with {process.returncode}")
    return process


def test_one_that_nobody_asks_any_more_ends_by_itself() -> None:
    with stands_by(1.0) as process:
        assert process.wait(30) == 0


def test_a_notice_ends_one_that_is_nobody() -> None:
    with stands_by(600.0) as process:
        process.terminate()
        assert process.wait(30) == 0


def test_one_that_is_to_have_gpus_sees_none_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_actor, "heed_sigterm", lambda notice: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    WorkerActor(0.0, b"", True)._is_called.set()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_a_method_is_not_waited_for_for_ever_by_who_asks_a_process_that_is_no_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_actor, "heed_sigterm", lambda notice: None)
    monkeypatch.setattr(worker_actor, "_BEGIN_S", 0.05)
    actor, began_s = WorkerActor(), time.monotonic()
    actor._is_called.set()  # ends its watch
    with pytest.raises(RuntimeError, match="freeze was asked of a process that is no worker"):
        actor.do("freeze")
    monkeypatch.setattr(worker_actor, "_BEGIN_S", 600.0)
    with pytest.raises(RuntimeError, match="introduce was asked of a process that is no worker"):
        actor.do("introduce")
    assert time.monotonic() - began_s < 30


def test_one_that_does_not_see_the_gpus_of_its_slot_does_not_train_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="does not see GPU 3 of the slot"):
        check_sight("3")
    check_sight("")  # it was given none
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_sight("3")


def test_looking_for_gpus_while_it_stands_by_is_done_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA counts them once: who has asked it before the process had any sees none later."""
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    asked = list[str | None]()
    adamw = torch.optim.AdamW

    def noting(*arguments: Any) -> Any:
        asked.append(os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
        return adamw(*arguments)

    monkeypatch.setattr(torch.optim, "AdamW", noting)
    rehearse()
    assert asked == ["1"] and "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ
    assert not torch.cuda.is_initialized()
