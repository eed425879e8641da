"""Effect. Whom the keeper sends for what is restored, and when; actors are stand-ins, and no cluster is started."""

from collections.abc import Callable
from typing import Any

import pytest

from elastic.actors.peer_source import PeerSource
from elastic.actors.prefetcher import Aim, Prefetcher
from elastic.checkpoint.catalog import Candidate, Holder
from elastic.checkpoint.manifest import ShardKey
from elastic.checkpoint.rungs import CheckpointRung, Holding, Prefetch, Rung
from elastic.checkpoint.source import Tier
from elastic.control.values import CommitId
from tests.effects import shards
from tests.effects.shelves import Shelf
from tests.pure.test_tally import calls

NBYTES = 1 << 10
ROOM = 10 * NBYTES


def key(step: int, shard: int = 0, count: int = 1, generation: int = 1, incarnation: int = 1) -> ShardKey:
    commit = CommitId(incarnation=incarnation, generation=generation, attempt=0, step=step, lineage=f"l{step}")
    return ShardKey(commit=commit, shard=shard, shards=count)


class Method:
    def __init__(self, name: str, said: list[Any]) -> None:
        self._name, self._said = name, said

    def options(self, concurrency_group: str) -> "Method":
        return self

    def remote(self, incarnation: int, *arguments: Any) -> Any:
        call = (self._name, *arguments)
        self._said.append(call)
        return call


class Actor:
    def __init__(self) -> None:
        self.said: list[Any] = []
        self.expect, self.prefetch = Method("expect", self.said), Method("prefetch", self.said)

    def expected(self) -> list[list[int]]:
        return [[one.commit.step for one in call[1]] for call in self.said if call[0] == "expect"]

    def taken(self) -> list[tuple[int, str, bool]]:
        """(shard, whom from, whether the persistent tier comes last) of all it was sent for."""
        coming = [one for call in self.said if call[0] == "prefetch" for one in call[1]]
        return [(one.key.shard, "".join(peer.node for peer in one.peers), one.is_durable) for one in coming]


class Nodes:
    """Nodes a, b, ...; calls to their actors are answered by `answer`."""

    def __init__(self) -> None:
        self.told: list[Prefetch] = []
        self.pending: list[Callable[[Any], Any]] = []
        self.actors: dict[str, Actor] = {}
        self.prefetcher = Prefetcher(2, self.told.append, self._then)

    def _then(
        self, ask: Callable[[], Any], within_s: float, then: Callable[[Any], Any], failed: Callable[[str], Any]
    ) -> None:
        ask()
        self.pending.append(then)

    def up(self, names: str, room: int = ROOM, life: str = "1", **holding: Any) -> None:
        for name in names:
            actor = self.actors.setdefault(name, Actor())
            self.prefetcher.heard(name, actor, Holding(life=life, number=1, budget_bytes=room, **holding))

    def aim(
        self, homes: dict[str, set[int]], step: int = 7, shards_saved: int = 1, peers: str = "", **more: Any
    ) -> None:
        candidate = candidate_of(step, shards_saved, peers, **more)
        self.prefetcher.aim(Aim(candidate=candidate, width=1, homes=homes))

    def answer(self) -> None:
        pending, self.pending = self.pending, []
        for then in pending:
            then(None)

    def sources(self) -> dict[str, str]:
        return {one.node: "".join(one.sources[0]) for one in self.told}


def candidate_of(step: int, count: int, peers: str, is_durable: bool = True, run: str = "night") -> Candidate:
    rows = []
    for shard in range(count):
        of = key(step, shard, count)
        manifest = shards.manifest(of, shards.payload(of, NBYTES), run=run)
        holders = [Holder(source=PeerSource(Actor(), node), manifest=manifest) for node in peers]
        other = Holder(source=Shelf([], Tier.PERSISTENT if is_durable else Tier.MEMORY), manifest=manifest)
        rows.append((*holders, other))
    return Candidate(commit=key(step).commit, shards=tuple(rows))


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def test_a_node_sets_out_when_those_above_it_expect_what_it_will_ask_them_for(nodes: Nodes) -> None:
    nodes.aim({"a": {0}, "b": {0}})
    assert nodes.prefetcher.homes == {"a", "b"}
    nodes.up("a")
    assert nodes.actors["a"].expected() == [[7]] and nodes.actors["a"].taken() == []
    nodes.up("b")
    assert nodes.sources() == {"a": "", "b": "a"} and nodes.actors["b"].taken() == []
    first, second = nodes.pending
    second(None)
    assert nodes.actors["b"].taken() == [], "its own answer is there, and that of a is not"
    first(None)
    assert nodes.actors["a"].taken() == [(0, "", True)] and nodes.actors["b"].taken() == [(0, "a", True)]


def test_a_node_that_is_lost_before_it_has_answered_holds_up_nobody(nodes: Nodes) -> None:
    nodes.up("ab")
    nodes.aim({"a": {0}, "b": {0}})
    first, second = nodes.pending
    second(None)
    assert nodes.sources() == {"a": "", "b": "a"} and nodes.actors["b"].taken() == []
    nodes.prefetcher.lost("a")
    assert nodes.actors["b"].taken() == [(0, "a", True)], "it is told to begin: after a it asks the persistent tier"
    first(None)
    nodes.up("a", life="2")
    assert nodes.actors["a"].expected() == [[7], [7]] and len(nodes.actors["a"].taken()) == 1
    nodes.answer()
    assert len(nodes.actors["a"].taken()) == 2, "its new life has answered"


def test_who_has_it_is_asked_before_the_persistent_tier(nodes: Nodes) -> None:
    nodes.up("a", slots=frozenset({key(7)}))
    nodes.up("b")
    nodes.aim({"a": {0}, "b": {0}}, peers="x")
    nodes.answer()
    assert nodes.actors["a"].said == [], "it has what it needs"
    assert nodes.actors["b"].taken() == [(0, "x", True)]


def test_a_step_in_memory_alone_is_taken_from_there_or_not_at_all(nodes: Nodes) -> None:
    nodes.up("b")
    nodes.aim({"b": {0}}, is_durable=False)
    assert nodes.pending == []
    nodes.up("a", copies=frozenset({key(7)}))
    nodes.answer()
    assert nodes.actors["b"].taken() == [(0, "a", False)]


def test_another_step_to_restore_takes_its_place(nodes: Nodes) -> None:
    nodes.up("ab")
    nodes.aim({"a": {0}, "b": {0}}, step=7)
    nodes.aim({"a": {0}, "b": {0}}, step=5)
    nodes.answer()
    assert all(actor.expected() == [[7], [], [5]] for actor in nodes.actors.values())
    assert [one.commit.step for one in nodes.told] == [7, 7, 5, 5]
    steps = {one.key.commit.step for actor in nodes.actors.values() for call in actor.said[3:] for one in call[1]}
    assert steps == {5}, "what was not under way yet is not begun"


def test_a_latecomer_and_a_restarted_actor_are_sent_too(nodes: Nodes) -> None:
    nodes.up("ab")
    nodes.aim({"a": {0}, "b": {0}})
    nodes.up("c")
    nodes.aim({"a": {0}, "b": {0}, "c": {0}})
    root = next(node for node, source in nodes.sources().items() if not source)
    assert nodes.sources()["c"] == root and len(nodes.told) == 3
    nodes.up(root, life="2")
    assert len(nodes.told) == 4 and nodes.told[-1].node == root and nodes.told[-1].sources[0] != ()


def test_with_another_number_of_workers_each_shard_goes_to_one_node_with_room(nodes: Nodes) -> None:
    nodes.up("a", room=NBYTES)
    nodes.up("b")
    nodes.aim({"a": {0}, "b": {0}}, shards_saved=4)
    assert {one.node: len(one.shards) for one in nodes.told} == {"a": 1, "b": 3}
    nodes.up("ab")
    assert len(nodes.told) == 2


@pytest.mark.parametrize(
    ("rung", "generation", "incarnation", "is_gone"),
    [
        (Rung.REPLICATED, 3, 2, True),
        (Rung.DURABLE, 4, 2, True),
        (Rung.LOCAL, 3, 2, False),
        (Rung.REPLICATED, 2, 2, False),
        (Rung.REPLICATED, 3, 1, False),
    ],
)
def test_copies_go_once_the_restored_run_has_something_better(
    nodes: Nodes, rung: Rung, generation: int, incarnation: int, is_gone: bool
) -> None:
    commit = key(8, generation=generation, incarnation=incarnation).commit
    rose = CheckpointRung(commit=commit, shards=1, rung=rung, copies=2, degraded="", reason="")
    nodes.up("a")
    nodes.aim({"a": {0}})
    nodes.prefetcher.came_to(rose)
    assert nodes.actors["a"].expected() == [[7]], "nobody has restored it yet"
    nodes.prefetcher.restored(generation=3)
    nodes.prefetcher.came_to(rose)
    assert nodes.actors["a"].expected() == [[7], []][: 1 + is_gone] and nodes.prefetcher.homes == set()


def test_it_is_told_when_all_who_are_sent_know_what_will_come(nodes: Nodes) -> None:
    told: list[str] = []
    nodes.up("ab")
    aim = Aim(candidate=candidate_of(7, 1, ""), width=1, homes={"a": {0}, "b": {0}})
    nodes.prefetcher.aim(aim, lambda: told.append("known"))
    first, second = nodes.pending
    first(None)
    assert told == [], "one of two has answered"
    second(None)
    assert told == ["known"]
    nodes.prefetcher.aim(aim, lambda: told.append("again"))
    assert told == ["known", "again"], "nobody is sent for anything more"


def test_what_is_announced_and_not_wanted_after_all_goes(nodes: Nodes) -> None:
    nodes.up("a")
    nodes.aim({"a": {0}})
    nodes.answer()
    told: list[str] = []
    nodes.prefetcher.aim(None, lambda: told.append("nothing is to be known"))
    assert told and nodes.actors["a"].expected() == [[7], []] and nodes.prefetcher.homes == frozenset()
    nodes.prefetcher.aim(None)
    assert nodes.actors["a"].expected() == [[7], []]


def test_a_node_that_has_it_on_its_disk_is_sent_for_nothing_and_passes_it_on(nodes: Nodes) -> None:
    nodes.up("a", disk=frozenset({key(7)}))
    nodes.up("b")
    nodes.aim({"a": {0}, "b": {0}})
    assert nodes.sources() == {"b": "a"}


def test_what_a_node_says_again_costs_the_same_however_many_others_there_are() -> None:
    """Each says every second what it holds, in the minutes of a restore, too."""

    def said_again(count: int) -> int:
        names = "".join(map(chr, range(0x4E00, 0x4E00 + count)))
        nodes = Nodes()
        nodes.aim({name: {0} for name in names})
        nodes.up(names)
        assert len(nodes.told) == count
        return calls(lambda: nodes.up(names[0]))

    assert said_again(16) == said_again(128)


def test_what_a_lost_node_would_have_given_is_fetched_though_nobody_says_anything_new(nodes: Nodes) -> None:
    """Another number of workers a replica has saved it: each shard goes to one node, unless one has it."""
    nodes.up("a")
    nodes.aim({"a": {0}}, shards_saved=2, peers="x")
    assert nodes.told == []
    nodes.prefetcher.lost("x")
    nodes.up("a")
    assert [one.shards for one in nodes.told] == [(0, 1)]
