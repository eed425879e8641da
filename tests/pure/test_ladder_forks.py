"""After a step back: what history has left behind makes nothing older superfluous, in memory and on disks."""

from elastic.checkpoint import rungs
from elastic.checkpoint.rungs import Rung
from elastic.control.values import Fork
from tests.pure.test_disks import Nodes as DiskNodes
from tests.pure.test_ladder import Nodes, key

FORK = rungs.Forked(forks=(Fork(incarnation=1, generation=2, step=1),))


def test_the_step_that_was_gone_back_to_stays_until_newer_ones_are_replicated():
    nodes = Nodes("ab")
    for step in (1, 2):
        nodes.replicate("a", key(step))
    nodes.tell(FORK)
    nodes.pin()
    assert key(1) in nodes.pinned["a"], "it is what the run falls back to now"
    nodes.replicate("a", key(3))
    assert nodes.take(rungs.Drop) == [], "steps 2 and 3 of the old line count for nothing"
    for step in (2, 3):
        nodes.replicate("a", key(step, generation=2))
    nodes.replicate("a", key(4, generation=2))
    assert key(1) in {order.key for order in nodes.take(rungs.Drop)}
    assert nodes.ladder.rung(key(4, generation=2).commit, 1) is Rung.REPLICATED


def test_disks_keep_it_too():
    for is_told, dropped in ((True, []), (False, [(1, "a")])):
        nodes = DiskNodes("a")
        if is_told:
            nodes.tell(FORK)
        nodes.disk["a"] = {key(step) for step in (1, 2, 3)}
        nodes.hold("a")
        assert nodes.dropped == dropped


def test_what_is_being_dropped_is_told_until_its_node_shows_it_no_more():
    nodes = Nodes("ab")
    for step in (1, 2):
        nodes.replicate("a", key(step))
    assert nodes.ladder.going(key(1).commit, 1) == frozenset()
    nodes.replicate("a", key(3))
    (drop,) = nodes.take(rungs.Drop)
    gone = frozenset({("b", 0)})
    assert (drop.key, drop.node) == (key(1), "b") and nodes.ladder.going(key(1).commit, 1) == gone
    nodes.tell(rungs.Leased(commit=key(1).commit, shards=1))
    nodes.hold("b")
    assert nodes.ladder.going(key(1).commit, 1) == gone, "that was how it was before"
    assert nodes.ladder.going(key(2).commit, 1) == frozenset()
    nodes.copies["b"].discard(key(1))
    nodes.hold("b")
    assert nodes.ladder.going(key(1).commit, 1) == frozenset()
