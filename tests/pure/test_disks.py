"""Which step goes to the disks, one situation at a time; nodes answer what `Nodes` is told to hold."""

from elastic.checkpoint import rungs
from elastic.checkpoint.disks import Disks, surplus
from elastic.checkpoint.manifest import ShardKey
from elastic.control.values import Fork
from tests.pure.test_ladder import key
from tests.pure.test_tally import calls


class Nodes:
    """Nodes that do as they are told, when `write` is called."""

    def __init__(self, names: str) -> None:
        self.disks, self.told, self._number = Disks(), list[rungs.DiskStep](), 0
        self.troubles = list[str]()
        self.pinned: dict[str, set[ShardKey]] = {name: set() for name in names}
        self.disk: dict[str, set[ShardKey]] = {name: set() for name in names}
        self.orders: list[rungs.ToDisk] = []
        self.dropped: list[tuple[int, str]] = []

    def tell(self, event: rungs.Event | rungs.OnDisk) -> None:
        for order in self.disks.heed(event):
            if isinstance(order, rungs.ToDisk):
                self.orders.append(order)
            elif isinstance(order, rungs.OffDisk):
                self.disk[order.node].discard(order.key)
                self.dropped.append((order.key.commit.step, order.node))
            elif isinstance(order, rungs.Degraded):
                assert order.rung == "disk"
                self.troubles.append(order.reason)
            else:
                self.told.append(order)

    def hold(self, name: str, life: str = "1") -> None:
        self._number += 1
        pinned, disk = frozenset(self.pinned[name]), frozenset(self.disk[name])
        holding = rungs.Holding(life=life, number=self._number, slots=pinned, pinned=pinned, disk=disk)
        self.tell(rungs.Held(node=name, holding=holding))

    def pin(self, **keys: ShardKey) -> None:
        for name, one in keys.items():
            self.pinned[name] = {one}
            self.hold(name)

    def write(self, *names: str, reason: str = "", is_full: bool = False) -> list[tuple[int, int, str]]:
        """The orders for these nodes, or all, are done; returns them as (step, shard, node)."""
        mine = [order for order in self.orders if not names or order.node in names]
        self.orders = [order for order in self.orders if order not in mine]
        for order in mine:
            if not reason:
                self.disk[order.node].add(order.key)
            self.tell(rungs.OnDisk(key=order.key, node=order.node, reason=reason, is_full=is_full))
        return [(order.key.commit.step, order.key.shard, order.node) for order in mine]


def test_every_node_writes_what_it_has_of_the_newest_step_that_all_shards_are_pinned_of():
    nodes = Nodes("abc")
    nodes.pin(a=key(1, 0, 2), b=key(1, 0, 2))
    assert nodes.orders == [], "nobody has the other shard"
    nodes.pin(c=key(1, 1, 2))
    assert sorted(nodes.write()) == [(1, 0, "a"), (1, 0, "b"), (1, 1, "c")]
    (told,) = nodes.told
    assert (told.commit.step, told.shards, set(told.nodes)) == (1, 2, {"a", "b", "c"})
    nodes.hold("a")
    assert nodes.orders == [] and len(nodes.told) == 1


def test_the_next_step_begins_when_all_have_written_the_last_one_and_is_the_newest_then():
    nodes = Nodes("ab")
    nodes.pin(a=key(1, 0, 2), b=key(1, 1, 2))
    nodes.write("a")
    nodes.pin(a=key(2, 0, 2), b=key(2, 1, 2))
    nodes.pin(a=key(3, 0, 2), b=key(3, 1, 2))
    assert [order.key.commit.step for order in nodes.orders] == [1], "node b has step 1 in hand yet"
    nodes.write("b")
    assert sorted(nodes.write()) == [(3, 0, "a"), (3, 1, "b")]


def test_what_all_have_newer_steps_of_goes():
    nodes = Nodes("ab")
    for step in (1, 2, 3):
        nodes.pin(a=key(step, 0, 2), b=key(step, 1, 2))
        nodes.write("a")
        assert nodes.dropped == [], "step 3 is not whole on the disks before b has its part"
        nodes.write("b")
    assert sorted(nodes.dropped) == [(1, "a"), (1, "b")]


def test_a_slow_node_is_not_left_alone_with_a_step_that_the_others_have_dropped():
    nodes = Nodes("ab")
    for step in range(1, 6):
        nodes.pin(a=key(step, 0, 2), b=key(step, 1, 2))
        nodes.write("a", "b") if step < 3 else nodes.write("a")
        common = {one.commit.step for one in nodes.disk["a"]} & {one.commit.step for one in nodes.disk["b"]}
        assert common, f"after step {step} no step is whole on the disks"


def test_a_node_that_could_not_is_not_asked_for_this_step_again():
    nodes = Nodes("ab")
    nodes.pin(a=key(1, 0, 2), b=key(1, 1, 2))
    nodes.write("b")
    nodes.write("a", reason="its slot is gone")
    nodes.hold("a")
    assert nodes.orders == [] and nodes.told == []
    nodes.pin(a=key(2, 0, 2), b=key(2, 1, 2))
    assert sorted(nodes.write()) == [(2, 0, "a"), (2, 1, "b")]


def test_a_full_node_gives_an_old_step_up_and_is_asked_once_more():
    nodes = Nodes("a")
    for step in (1, 2):
        nodes.pin(a=key(step))
        nodes.write()
    nodes.pin(a=key(3))
    nodes.write(reason="no room", is_full=True)
    assert nodes.dropped == [(1, "a")]
    assert nodes.write() == [(3, 0, "a")]
    assert {one.commit.step for one in nodes.disk["a"]} == {2, 3}


def test_the_last_whole_step_never_goes():
    nodes = Nodes("a")
    nodes.pin(a=key(1))
    nodes.write()
    nodes.pin(a=key(2))
    for _ in range(3):
        nodes.write(reason="no room", is_full=True)
        nodes.hold("a")
    assert nodes.dropped == [] and {one.commit.step for one in nodes.disk["a"]} == {1}


def test_where_there_is_no_room_what_history_has_left_behind_goes():
    """After a rewind, or a power cut in mid-write, nothing newer comes to be whole before it has gone."""
    nodes = Nodes("a")
    for step in (100, 110):
        nodes.pin(a=key(step))
        nodes.write()
    nodes.tell(rungs.Forked(forks=(Fork(incarnation=1, generation=2, step=100),)))
    nodes.pin(a=key(105, generation=2))
    nodes.write(reason="no room", is_full=True)
    assert nodes.dropped == [(110, "a")]
    assert nodes.write() == [(105, 0, "a")]
    assert {one.commit.step for one in nodes.disk["a"]} == {100, 105}


def test_what_history_has_left_behind_stays_where_there_is_room():
    nodes = Nodes("a")
    nodes.pin(a=key(110))
    nodes.write()
    nodes.tell(rungs.Forked(forks=(Fork(incarnation=1, generation=2, step=100),)))
    nodes.pin(a=key(105, generation=2))
    nodes.write()
    assert nodes.dropped == []


def test_one_disk_that_fails_does_not_fill_the_others():
    """Parts of steps that no restore can put together go; the last whole step stays."""
    nodes = Nodes("ab")
    nodes.pin(a=key(1, 0, 2), b=key(1, 1, 2))
    nodes.write()
    for step in range(2, 9):
        nodes.pinned = {"a": {key(step, 0, 2)}, "b": {key(step, 1, 2)}}
        nodes.hold("a")
        nodes.hold("b")
        nodes.write("a")
        nodes.write("b", reason="input/output error")
    assert {one.commit.step for one in nodes.disk["a"]} <= {1, 7, 8}
    assert nodes.dropped[:5] == [(step, "a") for step in range(2, 7)]
    assert {one.commit.step for one in nodes.disk["b"]} == {1}


def test_what_somebody_reads_stays_until_they_have_done():
    nodes, read = Nodes("a"), {"commit": key(1).commit, "shards": key(1).shards}
    nodes.tell(rungs.Leased(**read))
    for step in (1, 2, 3):
        nodes.pin(a=key(step))
        nodes.write()
    assert nodes.dropped == []
    nodes.tell(rungs.Leased(**read, is_over=True))
    assert nodes.dropped == [(1, "a")]


def test_after_a_way_back_the_new_line_counts_as_newer():
    nodes = Nodes("a")
    for step in (7, 8):
        nodes.pin(a=key(step))
        nodes.write()
    for step in (3, 4):
        nodes.pin(a=key(step, generation=2))
        assert nodes.write() == [(step, 0, "a")]
    assert sorted(nodes.dropped) == [(7, "a"), (8, "a")]


def test_what_an_actor_was_asked_for_dies_with_it():
    nodes = Nodes("ab")
    nodes.pin(a=key(1, 0, 2), b=key(1, 1, 2))
    nodes.write("b")
    nodes.orders.clear()
    nodes.hold("a", life="2")
    assert nodes.write() == [(1, 0, "a")], "its next life is asked again"
    nodes.pin(a=key(2, 0, 2), b=key(2, 1, 2))
    nodes.orders.clear()
    nodes.tell(rungs.NodeLost(node="a", reason="gone"))
    nodes.tell(rungs.NodeLost(node="b", reason="gone"))
    nodes.hold("a", life="3")
    nodes.hold("b", life="3")
    assert sorted(nodes.write()) == [(2, 0, "a"), (2, 1, "b")]


def test_an_answer_that_comes_late_changes_nothing():
    nodes = Nodes("a")
    early = frozenset({key(1)})
    late = rungs.Held(node="a", holding=rungs.Holding(life="1", number=0, slots=early, pinned=early))
    nodes.pin(a=key(1))
    nodes.write()
    nodes.hold("a")
    nodes.tell(late)
    assert nodes.orders == []


def test_what_disks_hold_from_before_is_known_and_not_written_again():
    nodes = Nodes("ab")
    nodes.disk = {"a": {key(1, 0, 2)}, "b": {key(1, 1, 2)}}
    nodes.hold("a")
    nodes.hold("b")
    assert [told.commit.step for told in nodes.told] == [1]
    nodes.pin(a=key(1, 0, 2), b=key(1, 1, 2))
    assert nodes.orders == []


def test_what_is_older_than_what_the_disks_have_is_not_written():
    nodes = Nodes("a")
    nodes.disk["a"] = {key(5)}
    nodes.hold("a")
    nodes.pin(a=key(3))
    assert nodes.orders == []


def test_what_one_disk_holds_beyond_the_newest_of_each_shard_is_surplus():
    held = [key(step, shard, 2) for step in (1, 2, 3) for shard in (0, 1)] + [key(9), key(2, generation=2)]
    assert set(surplus(held, 1)) == {*(key(step, shard, 2) for step in (1, 2) for shard in (0, 1)), key(9)}
    assert set(surplus(held, 2)) == {key(1, 0, 2), key(1, 1, 2)}


def test_what_is_no_concern_of_disks_changes_nothing():
    nodes = Nodes("a")
    nodes.pin(a=key(1))
    nodes.tell(rungs.UploadDue())
    assert nodes.write() == [(1, 0, "a")], "asked once"


def test_what_a_node_wrote_before_it_was_lost_is_gone_with_it():
    nodes = Nodes("ab")
    nodes.pin(a=key(1))
    nodes.tell(rungs.NodeLost(node="a", reason="silent"))
    nodes.write()
    assert nodes.told == []
    nodes.pin(b=key(1))
    assert nodes.write() == [(1, 0, "b")]


def test_a_disk_that_fails_is_told_of_once_and_when_it_writes_again():
    nodes = Nodes("ab")
    for step in (1, 2):
        nodes.pin(a=key(step, 0, 2), b=key(step, 1, 2))
        nodes.write("a", reason="node a: I/O error")
        nodes.write("b", reason="node b: I/O error")
    assert nodes.troubles == ["node a: I/O error"]
    nodes.pin(a=key(3, 0, 2), b=key(3, 1, 2))
    nodes.write("a")
    assert len(nodes.troubles) == 1, "the other one fails still"
    nodes.write("b")
    assert nodes.troubles == ["node a: I/O error", ""]


def test_a_failing_disk_that_goes_with_its_node_is_told_of_no_more():
    nodes = Nodes("ab")
    nodes.pin(a=key(1))
    nodes.write(reason="node a: I/O error")
    nodes.tell(rungs.NodeLost(node="a", reason="gone"))
    assert nodes.troubles == ["node a: I/O error", ""]


def test_a_disk_on_which_room_is_made_is_not_degraded():
    nodes = Nodes("a")
    for step in (1, 2):
        nodes.pin(a=key(step))
        nodes.write()
    nodes.pin(a=key(3))
    nodes.write(reason="no room", is_full=True)
    assert nodes.dropped == [(1, "a")] and nodes.troubles == []
    nodes.write()
    assert nodes.told[-1].commit.step == 3 and nodes.troubles == []


def test_a_disk_without_room_for_one_step_is_degraded():
    nodes = Nodes("a")
    nodes.pin(a=key(1))
    nodes.write(reason="no room", is_full=True)
    assert nodes.troubles == ["no room"]


def test_what_a_node_says_again_costs_the_same_however_many_others_there_are():
    """Each says every second what it holds."""

    def said_again(count: int) -> int:
        names = "".join(map(chr, range(0x4E00, 0x4E00 + count)))
        nodes = Nodes(names)
        nodes.pin(**{name: key(1, 0, 1) for name in names})
        assert len(nodes.write()) == count
        for _ in range(3):  # until nothing follows any more
            nodes.hold(names[0])
        return calls(lambda: nodes.hold(names[0]))

    assert said_again(16) == said_again(128)
