"""Effect. Parts of the fleet on Ray, without Ray: reservations, answers of calls, drains."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray.exceptions import RaySystemError

from elastic.actors import draining, ray_fleet, slots
from elastic.actors.answers import Answers
from elastic.actors.draining import Drains
from elastic.actors.hands import Hand
from elastic.actors.ray_fleet import RayFleet
from elastic.actors.slots import Slots
from elastic.control import events as ev
from elastic.settings import Scaling

LONG_S = 20.0


class FakeRay:
    """Placement groups by name; asking for those in `hangs` takes until the gate opens."""

    def __init__(self, hangs: str = "") -> None:
        self.gate, self.hangs = threading.Event(), hangs
        self.asked: list[str] = []
        self.removed: list[Any] = []

    def placement_group(self, bundles: list[dict[str, float]], **options: Any) -> Any:
        self.asked.append(options["name"])
        if options["name"] == self.hangs:
            assert self.gate.wait(LONG_S)
        return SimpleNamespace(bundles=bundles, **options)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    fake = FakeRay(hangs="r-gang1x2")
    monkeypatch.setattr(slots, "placement_group", fake.placement_group)
    monkeypatch.setattr(slots, "remove_placement_group", fake.removed.append)
    yield fake
    fake.gate.set()


def test_a_reservation_that_hangs_holds_up_its_own_replica_alone(fake: FakeRay) -> None:
    mine = Slots(Scaling(workers_per_replica=2), "r-")
    found: list[Any] = []
    two = [threading.Thread(target=lambda: found.append(mine.reserve(1, {}))) for _ in range(2)]
    for thread in two:
        thread.start()
    other = mine.reserve(2, {"pool": "b"})
    assert other.bundle_label_selector == [{"pool": "b"}] and other.lifetime == "detached"
    assert found == []
    fake.gate.set()
    for thread in two:
        thread.join(LONG_S)
    assert found[0] is found[1] and sorted(fake.asked) == ["r-gang1x2", "r-gang2x2"], "asked for once each"


def test_workers_of_a_replica_fill_its_nodes_in_the_order_of_their_shards(fake: FakeRay) -> None:
    mine = Slots(Scaling(workers_per_replica=4, num_nodes_per_dp=2, use_gpu=True), "elastic-r@1-")
    group = mine.reserve(7, {})
    assert (group.bundles, group.strategy) == ([{"GPU": 2.0}] * 2, "STRICT_SPREAD")
    assert [mine.bundle_of(shard) for shard in range(4)] == [0, 0, 1, 1]
    assert slots.gang_of(group.name, "r") == (7, 2) and slots.gang_of(group.name, "other") is None


def test_what_is_released_is_removed_and_asked_for_anew(fake: FakeRay) -> None:
    mine = Slots(Scaling(), "r-")
    first = mine.reserve(0, {})
    assert mine.reserve(0, {}) is first and first.bundle_label_selector is None
    mine.release(0, first)
    assert fake.removed == []
    mine.remove_released()
    assert fake.removed == [first] and mine.reserve(0, {}) is not first


ON_A = {"ray.io/node-id": "in(a)"}


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that slots see."""
    now = [100.0]
    monkeypatch.setattr(slots.time, "monotonic", lambda: now[0])
    return now


def test_a_replica_that_finds_no_place_where_it_would_be_best_is_placed_anywhere(
    fake: FakeRay, now_s: list[float]
) -> None:
    mine = Slots(Scaling(), "r-")
    first = mine.reserve(0, {"pool": "b"}, ON_A)
    assert first.bundle_label_selector == [ON_A]
    assert mine.settle(0, is_placed=False) is first
    now_s[0] += 2
    second = mine.settle(0, is_placed=False)
    assert second is not None and second.bundle_label_selector == [{"pool": "b"}] and fake.removed == [first]
    assert mine.settle(0, is_placed=False) is second and mine.reserve(0, {}) is second
    mine.release(0, first)
    mine.remove_released()
    assert fake.removed == [first, second], "whatever group its last worker knew"


def test_one_that_has_found_its_place_keeps_it(fake: FakeRay, now_s: list[float]) -> None:
    mine = Slots(Scaling(), "r-")
    first = mine.reserve(0, {}, ON_A)
    assert mine.settle(0, is_placed=True) is first
    now_s[0] += 2
    assert mine.settle(0, is_placed=False) is first and fake.removed == []
    assert mine.settle(1, is_placed=False) is None, "nobody has asked for it"


def test_one_that_is_released_while_it_is_asked_for_again_leaves_nothing(
    fake: FakeRay, now_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Slots(Scaling(), "r-")
    first = mine.reserve(0, {}, ON_A)
    now_s[0] += 2

    def removed(group: Any) -> None:
        fake.removed.append(group)
        if group is first and len(fake.removed) == 1:
            mine.release(0, first)

    monkeypatch.setattr(slots, "remove_placement_group", removed)
    assert mine.settle(0, is_placed=False) is None
    mine.remove_released()
    assert len(fake.asked) == 2 and len({id(group) for group in fake.removed}) == 2


def test_while_ray_does_not_answer_a_replica_waits_where_it_is(
    fake: FakeRay, now_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Slots(Scaling(), "r-")
    first = mine.reserve(0, {}, ON_A)
    now_s[0] += 2

    def away(group: Any) -> None:
        raise RaySystemError("no answer")

    monkeypatch.setattr(slots, "remove_placement_group", away)
    assert mine.settle(0, is_placed=False) is first
    monkeypatch.setattr(slots, "remove_placement_group", fake.removed.append)
    assert mine.settle(0, is_placed=False) is not first and fake.removed == [first]


def test_slots_that_ray_can_not_free_now_are_freed_later(fake: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Slots(Scaling(), "r-")
    mine.release(0, mine.reserve(0, {}))

    def away(group: Any) -> None:
        raise RaySystemError("no answer")

    monkeypatch.setattr(slots, "remove_placement_group", away)
    assert not mine.remove_released()
    monkeypatch.setattr(slots, "remove_placement_group", fake.removed.append)
    assert mine.remove_released() and mine.remove_released()
    assert len(fake.removed) == 1


@pytest.mark.parametrize(
    ("state", "place"), [("PENDING", ""), ("CREATED", "n"), ("RESCHEDULING", ""), ("REMOVED", None)]
)
def test_a_place_is_known_once_there_is_one_and_so_is_that_there_will_be_none(
    state: str, place: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "placement_group_table", lambda group: {"state": state, "bundles_to_node_id": {0: "n"}})
    assert slots.place_of(cast(Any, "group"), 0) == place


def test_who_waits_for_slots_that_were_given_up_is_lost(
    fake: FakeRay, now_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not who has other ones by now, since nothing was found for the first."""
    mine, lost = Slots(Scaling(), "r-"), list[str]()
    group = mine.reserve(0, {}, ON_A)
    fleet = cast(RayFleet, SimpleNamespace(_slots=mine, _lost=lambda worker, error: lost.append(worker)))
    mates = {"w0": Hand(group, None), "w1": Hand(group, None)}

    def table(group: Any) -> dict[str, str]:
        return {"state": "REMOVED" if any(one is group for one in fake.removed) else "PENDING"}

    def look() -> list[str]:
        for worker, hand in mates.items():
            RayFleet._look_for(fleet, worker, hand)
        return lost

    monkeypatch.setattr(slots, "placement_group_table", table)
    assert look() == []
    now_s[0] += 2
    assert look() == look() == [] and fake.removed == [group]
    other = mates["w0"].group
    assert other is mates["w1"].group is not group
    fake.removed.append(other)  # by an orphan
    assert look() == look() == ["w0", "w1"]
    assert mine.reserve(0, {}) is not other, "who comes next in its place waits for slots of its own"


def test_a_host_at_the_drivers_address_is_knocked_at_as_others_are_and_vouches_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_fleet, "get_node_ip_address", lambda: "127.0.0.1")
    told: list[ev.Event] = []
    is_told = threading.Event()

    def emit(event: ev.Event) -> None:
        told.append(event)
        is_told.set()

    with socket.create_server(("127.0.0.1", 0)) as server:
        here, nowhere = SimpleNamespace(address=server.getsockname()), SimpleNamespace(address=("255.255.255.255", 9))
        hands = {"w0": here, "w1": here, "w2": nowhere}
        settings = SimpleNamespace(limits=SimpleNamespace(knock_timeout_s=0.3))
        fleet = SimpleNamespace(_hands=hands, _settings=settings, _emit=emit, _is_down=threading.Event())
        RayFleet.knock(cast(RayFleet, fleet), ("w0", "w2"), ("w1",))
        assert is_told.wait(LONG_S)
    assert told == [ev.Knocked(workers=("w0", "w2"), unreached=(), answered=("w0",))]


def test_whom_a_new_driver_did_not_find_and_who_answers_after_all_is_watched() -> None:
    hand, asked, done = Hand(None, object()), list[Any](), list[Any]()
    fleet = SimpleNamespace(
        _hands={"w1": hand},
        _monitors=SimpleNamespace(need=done.append),
        _put_under_watch=done.append,
        _emit=done.append,
        _call=lambda worker, method, group, then: asked.append((method, then)),
    )
    for _ in range(2):  # it answers more than once before it has introduced itself
        RayFleet._acquaint(cast(RayFleet, fleet), "w1")
    for method, then in asked:
        assert method == "introduce"
        then(SimpleNamespace(node="n1", pid=7))
    RayFleet._acquaint(cast(RayFleet, fleet), "w1")
    assert len(asked) == 2 and (hand.node, hand.pid) == ("n1", 7)
    assert done == ["n1", "w1", ev.WorkerPlaced(worker="w1", node="n1")]


def call() -> tuple[Any, Future[Any]]:
    """A reference to the answer of a call, and the answer."""
    future: Future[Any] = Future()
    return SimpleNamespace(future=lambda: future), future


def test_answers_go_on_in_one_thread_in_the_order_in_which_they_come() -> None:
    seen: list[Any] = []
    all_seen = threading.Event()
    answers = Answers(lambda error: pytest.fail(str(error)))

    def see(what: Any) -> None:
        seen.append((str(what), threading.current_thread().name))
        if len(seen) == 3:
            all_seen.set()

    (one, first), (two, second), (three, third) = call(), call(), call()
    for reference in (one, two, three):
        answers.then(reference, see, see)
    second.set_result("b")
    first.set_exception(OSError("a"))
    third.set_result("c")
    assert all_seen.wait(LONG_S)
    answers.close(LONG_S)
    assert seen == [("b", "elastic-answers"), ("a", "elastic-answers"), ("c", "elastic-answers")]


def test_an_error_in_what_follows_an_answer_is_not_swallowed() -> None:
    told: list[Exception] = []
    is_told = threading.Event()

    def crash(error: Exception) -> None:
        told.append(error)
        is_told.set()

    def fail(_: Any) -> None:
        raise RuntimeError("a mistake")

    answers = Answers(crash)
    reference, future = call()
    answers.then(reference, fail, fail)
    future.set_result(1)
    assert is_told.wait(LONG_S) and [str(error) for error in told] == ["a mistake"]
    answers.close(LONG_S)


def test_each_drain_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"a": "it is drained"}
    clock = [10.0]
    monkeypatch.setattr(draining, "draining_nodes", lambda: now)
    monkeypatch.setattr(draining, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    told: list[ev.Event] = []
    drains = Drains(told.append, lambda node: node != "another job's")
    drains.look_now_and_then()
    now |= {"b": "it is drained, too", "another job's": "it is idle"}
    drains.look_now_and_then()
    assert [event.node for event in told if isinstance(event, ev.NodeNotice)] == ["a"], "not again so soon"
    clock[0] += 1.0
    drains.look_now_and_then()
    assert [event.node for event in told if isinstance(event, ev.NodeNotice)] == ["a", "b"]
