"""Pure. The ladder, one situation at a time; nodes answer what `Nodes` is told to hold."""

from typing import TypeVar

import pytest

from elastic.checkpoint import rungs
from elastic.checkpoint.ladder import Ladder
from elastic.checkpoint.manifest import Fork, ShardKey
from elastic.checkpoint.rungs import Rung
from elastic.checkpoint.standing import TRIES
from elastic.control.values import CommitId

T = TypeVar("T")


def key(step: int, shard: int = 0, shards: int = 1, generation: int = 1) -> ShardKey:
    commit = CommitId(incarnation=1, generation=generation, attempt=0, step=step, lineage=f"l{generation}.{step}")
    return ShardKey(commit=commit, shard=shard, shards=shards)


class Nodes:
    """Nodes and the ladder over them; `orders` is what it said and was not taken yet."""

    def __init__(self, names: str, peers: int = 1, is_persistent: bool = False) -> None:
        self.ladder, self.orders, self._number = Ladder(peers, is_persistent), [], 0
        self.slots: dict[str, set[ShardKey]] = {name: set() for name in names}
        self.pinned: dict[str, set[ShardKey]] = {name: set() for name in names}
        self.copies: dict[str, set[ShardKey]] = {name: set() for name in names}
        for name in names:
            self.tell(rungs.NodeUp(node=name))

    def tell(self, event: rungs.Event) -> None:
        self.orders += self.ladder.heed(event)

    def take(self, kind: type[T]) -> list[T]:
        taken = [order for order in self.orders if isinstance(order, kind)]
        self.orders = [order for order in self.orders if not isinstance(order, kind)]
        return taken

    def hold(self, name: str, life: str = "1") -> None:
        self._number += 1
        holding = rungs.Holding(
            life=life,
            number=self._number,
            slots=frozenset(self.slots[name]),
            pinned=frozenset(self.pinned[name]),
            copies=frozenset(self.copies[name]),
        )
        self.tell(rungs.Held(node=name, holding=holding))

    def stage(self, name: str, *keys: ShardKey) -> None:
        self.slots[name] |= set(keys)
        self.hold(name)

    def pin(self) -> None:
        """All nodes do as they are told."""
        while pins := self.take(rungs.Pin):
            for order in pins:
                self.pinned[order.node] = self.slots[order.node] & order.keys
                self.hold(order.node)

    def pull(self) -> list[rungs.Pull]:
        """All pulls that were ordered succeed."""
        pulls = self.take(rungs.Pull)
        for order in pulls:
            self.copies[order.node].add(order.key)
            self.hold(order.node)
        return pulls

    def replicate(self, name: str, *keys: ShardKey) -> None:
        self.stage(name, *keys)
        self.pin()
        self.pull()
        self.pin()

    def rung(self, step: int) -> Rung | None:
        return self.ladder.rung(key(step).commit, 1)


def test_a_step_comes_down_rung_by_rung():
    nodes = Nodes("ab", is_persistent=True)
    nodes.stage("a", key(1, 0, 2))
    nodes.stage("b", key(1, 1, 2))
    nodes.pin()
    assert {(order.key.shard, order.node, order.sources) for order in nodes.pull()} == {
        (0, "b", ("a",)),
        (1, "a", ("b",)),
    }
    nodes.tell(rungs.UploadDue())
    uploads = nodes.take(rungs.Upload)
    assert {order.key.shard for order in uploads} == {0, 1} and {order.node for order in uploads} == {"a", "b"}
    for order in uploads:
        nodes.tell(rungs.Uploaded(key=order.key, node=order.node, digest=f"digest{order.key.shard}"))
    (commit,) = nodes.take(rungs.Commit)
    assert commit.digests == ("digest0", "digest1")
    nodes.tell(rungs.Committed(commit=commit.commit, shards=2))
    told = [order.rung for order in nodes.take(rungs.CheckpointRung)]
    assert told == [Rung.STAGED, Rung.LOCAL, Rung.REPLICATED, Rung.DURABLE]


def test_nodes_whose_workers_stage_the_same_shard_need_no_copy():
    nodes = Nodes("abc")
    nodes.tell(rungs.Homes(by_shard={0: ["a", "b"]}))
    nodes.stage("a", key(1))
    nodes.pin()
    assert nodes.pull() == [], "the other home was about to stage it"
    nodes.stage("b", key(1))
    nodes.pin()
    assert nodes.pull() == [] and nodes.rung(1) is Rung.REPLICATED


def test_a_home_that_does_not_stage_is_not_waited_for_long():
    nodes = Nodes("abc")
    nodes.tell(rungs.Homes(by_shard={0: ["a", "b"]}))
    nodes.stage("a", key(1))
    nodes.tell(rungs.Beat())
    assert nodes.take(rungs.Pull) == []
    nodes.tell(rungs.Beat())
    (pull,) = nodes.take(rungs.Pull)
    assert pull.node in "bc"


def test_a_slot_that_is_not_pinned_is_no_copy():
    nodes = Nodes("ab")
    nodes.stage("a", key(1))
    nodes.stage("b", key(1))
    assert nodes.rung(1) is Rung.LOCAL
    nodes.pin()
    assert nodes.rung(1) is Rung.REPLICATED


def test_fewer_nodes_than_copies_is_said_once_and_taken_back():
    nodes = Nodes("a", peers=2)
    for step in (1, 2, 3):
        nodes.replicate("a", key(step))
        assert nodes.rung(step) is Rung.REPLICATED
    assert [order.reason for order in nodes.take(rungs.Degraded)] == ["1 nodes for 3 copies"]
    nodes.slots |= {name: set() for name in "bc"}
    nodes.pinned |= {name: set() for name in "bc"}
    nodes.copies |= {name: set() for name in "bc"}
    nodes.tell(rungs.NodeUp(node="b"))
    nodes.tell(rungs.NodeUp(node="c"))
    nodes.pull()
    assert [order.reason for order in nodes.take(rungs.Degraded)] == [""]


@pytest.mark.parametrize(
    "end", [rungs.NodeUp(node="b"), rungs.NodeLost(node="b", reason="late")], ids=["up", "not up in time"]
)
def test_nothing_is_said_to_be_degraded_while_nodes_are_on_their_way(end):
    """A run begins on all its nodes, and their actors come up one after the other."""
    nodes = Nodes("a", peers=1)
    nodes.tell(rungs.NodeComing(node="b"))
    nodes.stage("a", key(1))
    nodes.pin()
    assert nodes.take(rungs.Degraded) == []
    nodes.tell(end)
    assert [order.reason for order in nodes.take(rungs.Degraded)] == (
        ["1 nodes for 2 copies"] if isinstance(end, rungs.NodeLost) else []
    )


def test_a_lost_node_is_made_good_and_told():
    nodes = Nodes("abc")
    nodes.replicate("a", key(1))
    (holder,) = [name for name in "bc" if nodes.copies[name]]
    nodes.take(rungs.CheckpointRung)
    nodes.tell(rungs.NodeLost(node=holder, reason="cut off"))
    (told,) = nodes.take(rungs.CheckpointRung)
    assert (told.rung, told.reason) == (Rung.LOCAL, "what held it was lost")
    (pull,) = nodes.pull()
    assert pull.node == ({"b", "c"} - {holder}).pop() and nodes.rung(1) is Rung.REPLICATED


def test_a_step_whose_only_holder_is_lost_is_told_to_be_lost_once():
    nodes = Nodes("ab")
    nodes.stage("a", key(1))
    nodes.take(rungs.CheckpointRung)
    nodes.tell(rungs.NodeLost(node="a", reason="cut off"))
    nodes.tell(rungs.Beat())
    assert [(told.commit.step, told.reason) for told in nodes.take(rungs.StepLost)] == [(1, "what held it was lost")]
    assert nodes.take(rungs.CheckpointRung) == []


def test_when_a_step_falls_the_one_that_is_the_newest_now_is_told_again():
    nodes = Nodes("abc")
    nodes.replicate("a", key(1, 0, 2), key(1, 1, 2))
    nodes.stage("b", key(2, 0, 2))
    nodes.stage("c", key(2, 1, 2))
    nodes.take(rungs.CheckpointRung)
    nodes.tell(rungs.NodeLost(node="c", reason="cut off"))
    told = [(one.commit.step, one.rung) for one in nodes.take(rungs.CheckpointRung)]
    assert told[0] == (2, Rung.STAGED) and told[1] in {(1, Rung.REPLICATED), (1, Rung.LOCAL)}
    nodes.tell(rungs.NodeLost(node="b", reason="cut off"))
    assert [one.commit.step for one in nodes.take(rungs.StepLost)] == [2]


def test_an_older_step_that_goes_is_no_news():
    nodes = Nodes("ab", peers=0)
    nodes.stage("a", key(1))
    nodes.stage("b", key(2))
    nodes.take(rungs.CheckpointRung)
    nodes.slots["a"].clear()
    nodes.hold("a")
    assert nodes.take(rungs.StepLost) == nodes.take(rungs.CheckpointRung) == []


def test_more_copies_are_made_when_more_are_chosen_and_nothing_is_said_to_be_lost():
    nodes = Nodes("abc")
    nodes.replicate("a", key(1))
    assert len(nodes.copies["b"] | nodes.copies["c"]) == 1
    nodes.take(rungs.CheckpointRung)
    nodes.tell(rungs.PeersChosen(peers=2, reason="there is room"))
    (told,) = nodes.take(rungs.CheckpointRung)
    assert (told.rung, told.reason) == (Rung.LOCAL, "2 of 3 nodes keep each shard")
    nodes.pull()
    assert nodes.copies["b"] == nodes.copies["c"] == {key(1)} and nodes.rung(1) is Rung.REPLICATED


def test_when_fewer_copies_are_chosen_older_steps_with_more_of_them_go_all_the_same():
    nodes = Nodes("abc", peers=2)
    nodes.replicate("a", key(1))
    nodes.tell(rungs.PeersChosen(peers=1, reason="no room"))
    for step in (2, 3):
        nodes.replicate("a", key(step))
        assert nodes.rung(step) is Rung.REPLICATED
    assert {order.key for order in nodes.take(rungs.Drop)} == {key(1)}


def test_what_is_durable_is_not_told_anew_when_other_copies_are_chosen():
    nodes = Nodes("abc", is_persistent=True)
    nodes.replicate("a", key(1))
    nodes.tell(rungs.UploadDue())
    (upload,) = nodes.take(rungs.Upload)
    nodes.tell(rungs.Uploaded(key=key(1), node=upload.node, digest="d", reason=""))
    nodes.tell(rungs.Committed(commit=key(1).commit, shards=1, reason=""))
    nodes.take(rungs.CheckpointRung)
    nodes.tell(rungs.PeersChosen(peers=2, reason="there is room"))
    assert nodes.take(rungs.CheckpointRung) == []


def test_a_restarted_actor_is_filled_again():
    nodes = Nodes("ab")
    nodes.replicate("a", key(1))
    nodes.copies["b"].clear()
    nodes.hold("b", life="2")
    assert nodes.rung(1) is Rung.LOCAL
    (pull,) = nodes.take(rungs.Pull)
    assert (pull.node, pull.sources) == ("b", ("a",))


def test_an_answer_that_comes_late_changes_nothing():
    nodes = Nodes("ab")
    nodes.replicate("a", key(1))
    late = rungs.Holding(life="1", number=0)
    nodes.tell(rungs.Held(node="b", holding=late))
    assert nodes.rung(1) is Rung.REPLICATED


def test_two_generations_stay_and_the_third_goes():
    nodes = Nodes("ab")
    for step in (1, 2):
        nodes.replicate("a", key(step))
        assert nodes.take(rungs.Drop) == []
    nodes.replicate("a", key(3))
    (drop,) = nodes.take(rungs.Drop)
    assert (drop.key, drop.node) == (key(1), "b")


def test_nothing_goes_for_a_step_that_is_not_replicated_in_full():
    """C7."""
    nodes = Nodes("ab")
    nodes.replicate("a", key(1))
    nodes.replicate("a", key(2))
    for step in (3, 4, 5):
        nodes.stage("a", key(step))
        nodes.pin()
    assert nodes.take(rungs.Drop) == []


def test_nothing_goes_while_a_node_that_has_come_up_lacks_the_newer_ones():
    """Nodes that were out of reach come back one by one: the first seems to be the only one with what two have."""
    nodes = Nodes("ab")
    nodes.tell(rungs.NodeLost(node="b", reason="silent"))
    nodes.replicate("a", key(2), key(3))
    nodes.stage("a", key(4))
    nodes.pinned["a"] = {key(3), key(4)}
    nodes.hold("a")
    nodes.copies["b"] = {key(1)}  # as another does, which is still out of reach
    nodes.tell(rungs.NodeUp(node="b"))
    nodes.hold("b")
    assert nodes.take(rungs.Drop) == [] and nodes.ladder.rung(key(4).commit, 1) is Rung.LOCAL
    nodes.pull()
    assert {order.key.commit.step for order in nodes.take(rungs.Drop)} == {1}, "a newer one is on two nodes"


def test_a_leased_step_stays_until_its_reader_is_done():
    nodes = Nodes("ab")
    nodes.replicate("a", key(1))
    nodes.tell(rungs.Leased(commit=key(1).commit, shards=1))
    for step in (2, 3, 4):
        nodes.replicate("a", key(step))
    assert {order.key for order in nodes.take(rungs.Drop)} == {key(2)}
    assert key(1) in nodes.pinned["a"], "its worker may not overwrite it"
    nodes.tell(rungs.Leased(commit=key(1).commit, shards=1, is_over=True))
    nodes.pin()
    assert key(1) not in nodes.pinned["a"]
    assert {order.key for order in nodes.take(rungs.Drop)} == {key(1)}


def refuse(nodes: Nodes, step: int) -> None:
    (pull,) = nodes.take(rungs.Pull)
    assert pull.key == key(step)
    nodes.tell(rungs.Refused(key=pull.key, node=pull.node, reason="no room", is_full=True))


def test_a_full_node_gives_the_older_generation_up_and_is_asked_again():
    nodes = Nodes("ab")
    nodes.replicate("a", key(1))
    nodes.replicate("a", key(2))
    nodes.stage("a", key(3))
    nodes.pin()
    refuse(nodes, 3)
    (drop,) = nodes.take(rungs.Drop)
    assert drop.key == key(1)
    assert nodes.take(rungs.Pull) == []
    nodes.tell(rungs.Beat())
    assert [order.key for order in nodes.pull()] == [key(3)] and nodes.rung(3) is Rung.REPLICATED


def test_a_node_with_room_for_one_keeps_the_last_good_one_and_says_so():
    nodes = Nodes("ab")
    nodes.replicate("a", key(1))
    nodes.stage("a", key(2))
    nodes.pin()
    for _ in range(3):
        refuse(nodes, 2)
        nodes.tell(rungs.Beat())
    assert nodes.take(rungs.Pull) == [] and nodes.take(rungs.Drop) == []
    (told,) = nodes.take(rungs.Degraded)
    assert told.reason == "node b refused: no room"
    assert key(1) in nodes.ladder.pins("a"), "the only step on two nodes may be overwritten"


def test_one_step_at_a_time_and_then_the_newest():
    nodes = Nodes("ab")
    nodes.stage("a", key(1))
    nodes.pin()
    nodes.stage("a", key(2))
    nodes.stage("a", key(3))
    nodes.pin()
    assert [order.key for order in nodes.pull()] == [key(1)]
    assert [order.key for order in nodes.pull()] == [key(3)]
    nodes.pin()
    assert nodes.pull() == []


def test_no_more_than_two_slots_of_a_worker_are_pinned():
    nodes = Nodes("ab")
    nodes.replicate("a", key(1))
    for step in (2, 3, 4):
        nodes.stage("a", key(step))
        nodes.pin()
        assert nodes.pinned["a"] == {key(1), key(2)}


def test_a_notice_brings_the_newest_step_down_at_once():
    nodes = Nodes("abc", is_persistent=True)
    nodes.stage("a", key(1))
    nodes.pin()
    nodes.stage("a", key(2))
    nodes.take(rungs.Pull)
    nodes.tell(rungs.Notice(node="a", reason="preempted"))
    pulls = nodes.pull()
    assert {order.key for order in pulls} == {key(2)} and {order.node for order in pulls} == {"b", "c"}, "a is no home"
    (upload,) = nodes.take(rungs.Upload)
    assert upload.key == key(2)


def test_lost_redundancy_uploads_without_an_interval():
    nodes = Nodes("ab", is_persistent=True)
    nodes.tell(rungs.RedundancyLost(reason="one replica is left"))
    assert nodes.take(rungs.Upload) == []
    nodes.stage("a", key(1))
    assert [order.key for order in nodes.take(rungs.Upload)] == [key(1)], "it was forgotten"
    nodes.stage("a", key(2))
    assert nodes.take(rungs.Upload) == []


def test_an_upload_that_fails_is_tried_again_and_then_left_to_the_next_interval():
    nodes = Nodes("ab", is_persistent=True)
    nodes.replicate("a", key(1))
    nodes.tell(rungs.UploadDue())
    for _ in range(3):
        (upload,) = nodes.take(rungs.Upload)
        nodes.tell(rungs.Uploaded(key=upload.key, node=upload.node, reason="503"))
    assert nodes.take(rungs.Upload) == []
    nodes.tell(rungs.UploadDue())
    assert len(nodes.take(rungs.Upload)) == 1


def test_shards_that_fail_once_each_do_not_use_up_the_tries_of_a_step():
    """Of hundreds of shards a few fail in each upload."""
    nodes = Nodes("a", is_persistent=True, peers=0)
    nodes.stage("a", *(key(1, shard, 8) for shard in range(8)))
    nodes.pin()
    nodes.tell(rungs.UploadDue())
    first = nodes.take(rungs.Upload)
    assert len(first) == 8
    for upload in first:
        nodes.tell(rungs.Uploaded(key=upload.key, node="a", reason="503"))
    again = nodes.take(rungs.Upload)
    assert [upload.reason for upload in again] == ["try 2"] * 8
    for upload in again:
        nodes.tell(rungs.Uploaded(key=upload.key, node="a", digest="d"))
    (commit,) = nodes.take(rungs.Commit)
    assert len(commit.digests) == 8


def test_a_node_that_dies_while_it_uploads_is_replaced():
    nodes = Nodes("abc", is_persistent=True)
    nodes.replicate("a", key(1))
    nodes.tell(rungs.UploadDue())
    (first,) = nodes.take(rungs.Upload)
    nodes.tell(rungs.NodeLost(node=first.node, reason="cut off"))
    (second,) = nodes.take(rungs.Upload)
    assert second.node != first.node


def test_one_upload_at_a_time_and_each_step_once():
    nodes = Nodes("ab", is_persistent=True)
    nodes.replicate("a", key(1))
    nodes.tell(rungs.UploadDue())
    (upload,) = nodes.take(rungs.Upload)
    nodes.replicate("a", key(2))
    nodes.tell(rungs.UploadDue())
    assert nodes.take(rungs.Upload) == []
    nodes.tell(rungs.Uploaded(key=upload.key, node=upload.node))
    nodes.tell(rungs.Committed(commit=key(1).commit, shards=1))
    assert [order.key for order in nodes.take(rungs.Upload)] == [key(2)], "it was due meanwhile"


def test_copies_of_a_step_that_is_uploaded_stay_until_it_is_durable():
    nodes = Nodes("ab", is_persistent=True)
    nodes.replicate("a", key(1))
    nodes.tell(rungs.UploadDue())
    (upload,) = nodes.take(rungs.Upload)
    for step in (2, 3, 4):
        nodes.replicate("a", key(step))
    assert {order.key.commit.step for order in nodes.take(rungs.Drop)} == {2}, "two newer ones are replicated"
    nodes.tell(rungs.Uploaded(key=upload.key, node=upload.node, digest="d"))
    assert nodes.take(rungs.Drop) == []
    nodes.tell(rungs.Committed(commit=key(1).commit, shards=1))
    assert {order.key.commit.step for order in nodes.take(rungs.Drop)} == {1}


def overtaken() -> tuple[Nodes, list[rungs.Upload]]:
    """A slow upload of step 1, whose slots have been overwritten meanwhile: whoever uploads has copied them."""
    nodes = Nodes("a", peers=0, is_persistent=True)
    nodes.replicate("a", key(1, 0, 2), key(1, 1, 2))
    nodes.tell(rungs.UploadDue())
    uploads = nodes.take(rungs.Upload)
    nodes.replicate("a", key(2, 0, 2), key(2, 1, 2))
    nodes.slots["a"] = {key(2, 0, 2), key(2, 1, 2)}
    nodes.hold("a")
    return nodes, uploads


def test_a_step_whose_slots_go_while_it_is_uploaded_becomes_durable():
    nodes, uploads = overtaken()
    for upload in uploads:
        nodes.tell(rungs.Uploaded(key=upload.key, node="a", digest="d"))
    assert [order.commit.step for order in nodes.take(rungs.Commit)] == [1]


def test_a_step_whose_slots_go_and_whose_upload_fails_gives_way_to_the_next():
    nodes, uploads = overtaken()
    nodes.tell(rungs.Uploaded(key=uploads[0].key, node="a", digest="d"))
    nodes.tell(rungs.Uploaded(key=uploads[1].key, node="a", reason="503"))
    nodes.tell(rungs.UploadDue())
    assert {order.key.commit.step for order in nodes.take(rungs.Upload)} == {2}


def test_a_newer_line_of_history_counts_more_than_a_higher_step():
    nodes = Nodes("ab", is_persistent=True)
    nodes.stage("a", key(9), key(5, generation=2))
    nodes.pin()
    assert [order.key for order in nodes.pull()] == [key(5, generation=2)]


def test_no_peers_no_pulls():
    nodes = Nodes("ab", peers=0)
    nodes.replicate("a", key(1))
    assert nodes.copies == {"a": set(), "b": set()} and nodes.rung(1) is Rung.REPLICATED
    assert nodes.take(rungs.Degraded) == []


def test_a_step_that_becomes_durable_late_is_told_of():
    nodes = Nodes("ab", is_persistent=True)
    nodes.replicate("a", key(1))
    nodes.tell(rungs.UploadDue())
    (upload,) = nodes.take(rungs.Upload)
    nodes.replicate("a", key(2))
    nodes.take(rungs.CheckpointRung)
    nodes.tell(rungs.Uploaded(key=upload.key, node=upload.node))
    nodes.tell(rungs.Committed(commit=key(1).commit, shards=1))
    assert [(told.commit.step, told.rung) for told in nodes.take(rungs.CheckpointRung)] == [(1, Rung.DURABLE)]


def test_a_notice_of_a_node_that_nobody_knows_is_urgent_all_the_same():
    nodes = Nodes("ab", is_persistent=True)
    nodes.stage("a", key(1))
    nodes.tell(rungs.Notice(node="z", reason="preempted"))
    assert [order.key for order in nodes.take(rungs.Upload)] == [key(1)]


def test_a_commit_that_fails_is_tried_again():
    nodes = Nodes("a", peers=0, is_persistent=True)
    nodes.replicate("a", key(1))
    nodes.tell(rungs.UploadDue())
    (upload,) = nodes.take(rungs.Upload)
    nodes.tell(rungs.Uploaded(key=upload.key, node=upload.node, digest="d"))
    for _ in range(2):
        (commit,) = nodes.take(rungs.Commit)
        nodes.tell(rungs.Committed(commit=commit.commit, shards=1, reason="503"))
    assert nodes.rung(1) is not Rung.DURABLE
    nodes.tell(rungs.Committed(commit=key(1).commit, shards=1))
    assert nodes.rung(1) is Rung.DURABLE


@pytest.mark.parametrize("who_fails", ["an upload", "the commit"])
def test_what_was_uploaded_in_vain_is_uploaded_again_since_it_may_have_been_swept(who_fails: str):
    nodes = Nodes("a", peers=0, is_persistent=True)
    nodes.replicate("a", key(1, 0, 2), key(1, 1, 2))
    nodes.tell(rungs.UploadDue())
    first, second = nodes.take(rungs.Upload)
    nodes.tell(rungs.Uploaded(key=first.key, node="a", digest="d"))
    if who_fails == "the commit":
        nodes.tell(rungs.Uploaded(key=second.key, node="a", digest="d"))
        for _ in range(TRIES):
            (commit,) = nodes.take(rungs.Commit)
            nodes.tell(rungs.Committed(commit=commit.commit, shards=2, reason="not there in full"))
    else:
        for _ in range(TRIES):
            nodes.tell(rungs.Uploaded(key=second.key, node="a", reason="503"))
            nodes.take(rungs.Upload)
    assert not nodes.ladder.is_uploading and nodes.take(rungs.Commit) == []
    nodes.tell(rungs.UploadDue())
    uploads = nodes.take(rungs.Upload)
    assert {order.key.shard for order in uploads} == {0, 1}
    for order in uploads:
        nodes.tell(rungs.Uploaded(key=order.key, node="a", digest="d"))
    (commit,) = nodes.take(rungs.Commit)
    nodes.tell(rungs.Committed(commit=commit.commit, shards=2))
    assert nodes.ladder.rung(key(1, 0, 2).commit, 2) is Rung.DURABLE


def test_a_step_that_history_went_back_to_is_made_durable_though_a_later_one_was():
    nodes = Nodes("a", peers=0, is_persistent=True)
    nodes.replicate("a", key(5))
    nodes.replicate("a", key(9))
    nodes.tell(rungs.UploadDue())
    (upload,) = nodes.take(rungs.Upload)
    nodes.tell(rungs.Uploaded(key=upload.key, node="a", digest="d"))
    nodes.tell(rungs.Committed(commit=key(9).commit, shards=1))
    assert upload.key == key(9) and nodes.rung(9) is Rung.DURABLE
    nodes.tell(rungs.Forked(forks=(Fork(incarnation=1, generation=2, step=5),)))
    nodes.tell(rungs.UploadDue())
    assert [order.key for order in nodes.take(rungs.Upload)] == [key(5)]


def test_a_full_node_gives_up_what_can_never_be_whole_again():
    nodes = Nodes("abc")
    nodes.stage("a", key(1, 0, 2))
    nodes.stage("b", key(1, 1, 2))
    nodes.pin()
    orders = nodes.take(rungs.Pull)
    nodes.copies["c"].add(key(1, 0, 2))
    nodes.hold("c")
    nodes.slots["a"], nodes.slots["b"] = {key(2, 0, 2)}, {key(2, 1, 2)}
    nodes.pinned["a"] = nodes.pinned["b"] = set()
    nodes.hold("a")
    nodes.hold("b")
    for order in orders:
        nodes.tell(rungs.Refused(key=order.key, node=order.node, reason="gone"))
    nodes.pin()
    assert nodes.take(rungs.Drop) == [], "there may be room for both"
    for order in nodes.take(rungs.Pull):
        nodes.tell(rungs.Refused(key=order.key, node=order.node, reason="no room", is_full=True))
    (drop,) = nodes.take(rungs.Drop)
    assert (drop.key, drop.node) == (key(1, 0, 2), "c") and "a part of it is nowhere now" in drop.reason


def test_a_persistent_tier_that_fails_is_told_of_once_and_when_a_step_is_durable_again():
    nodes = Nodes("ab", is_persistent=True)
    for step in (1, 2):
        nodes.replicate("a", key(step))
        nodes.tell(rungs.UploadDue())
        for _ in range(TRIES):
            (upload,) = nodes.take(rungs.Upload)
            assert upload.key == key(step)
            nodes.tell(rungs.Uploaded(key=upload.key, node=upload.node, reason="503"))
    assert [(told.rung, told.reason) for told in nodes.take(rungs.Degraded)] == [("durable", "503")]
    nodes.replicate("a", key(3))
    nodes.tell(rungs.UploadDue())
    (upload,) = nodes.take(rungs.Upload)
    nodes.tell(rungs.Uploaded(key=upload.key, node=upload.node, digest="d"))
    assert nodes.take(rungs.Degraded) == [], "its COMMIT may fail yet"
    nodes.tell(rungs.Committed(commit=key(3).commit, shards=1))
    assert [(told.rung, told.reason) for told in nodes.take(rungs.Degraded)] == [("durable", "")]


def test_a_slot_that_was_written_anew_before_its_upload_is_no_fault_of_the_persistent_tier():
    nodes = Nodes("ab", is_persistent=True)
    nodes.replicate("a", key(1))
    nodes.tell(rungs.UploadDue())
    for _ in range(TRIES):
        (upload,) = nodes.take(rungs.Upload)
        nodes.tell(rungs.Uploaded(key=upload.key, node=upload.node, reason="no such slot", is_gone=True))
    assert nodes.take(rungs.Upload) == nodes.take(rungs.Degraded) == []
    nodes.replicate("a", key(2))
    nodes.tell(rungs.UploadDue())
    assert [upload.key for upload in nodes.take(rungs.Upload)] == [key(2)]


def test_where_a_slot_was_written_anew_another_one_is_uploaded_or_the_next_step_is_as_soon_as_it_is_safe():
    nodes = Nodes("ab", is_persistent=True)
    nodes.stage("a", key(1))
    nodes.stage("b", key(1))
    nodes.tell(rungs.RedundancyLost(reason="alone"))
    asked = []
    for _ in "ab":
        (upload,) = nodes.take(rungs.Upload)
        asked.append(upload.node)
        nodes.tell(rungs.Uploaded(key=upload.key, node=upload.node, reason="no such slot", is_gone=True))
    assert sorted(asked) == ["a", "b"] and nodes.take(rungs.Upload) == []
    nodes.slots["a"].clear()
    nodes.slots["b"].clear()
    nodes.replicate("a", key(2))
    assert [upload.key for upload in nodes.take(rungs.Upload)] == [key(2)], "no interval has to be over before"


def test_the_newest_step_is_the_newest_on_any_node_whoever_was_heard_last():
    nodes = Nodes("ab")
    assert nodes.ladder.newest is None
    nodes.stage("a", key(40), key(100))
    nodes.stage("b", key(40))
    assert nodes.ladder.newest == 100
    nodes.tell(rungs.Forked(forks=(Fork(incarnation=1, generation=2, step=40),)))
    assert nodes.ladder.newest == 40, "history went back"
    nodes.stage("a", key(41, generation=2))
    nodes.hold("b")
    assert nodes.ladder.newest == 41
