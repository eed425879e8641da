"""Pure. Who gets which shard of a step that is restored, and from whom: each leaves the persistent tier once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.checkpoint.placement import ranked
from elastic.checkpoint.spreading import Errand, Wanted, above, errands, wanted

few = settings(deadline=None, max_examples=50)
NAMES = st.integers(0, 40).map(lambda number: f"node{number}")
ROOM = 100


def test_the_worker_of_a_number_needs_the_shard_of_its_number():
    found = wanted(2, 2, {"a": {0, 1}, "b": {1}, "c": {0}})
    assert {shard: set(want.nodes) for shard, want in found.items()} == {0: {"a", "c"}, 1: {"a", "b"}}
    assert not any(want.is_once for want in found.values())
    assert found[0].nodes == tuple(ranked("shard 0", ["a", "c"]))


def test_with_another_number_of_workers_each_shard_goes_to_one_node_in_turns():
    found = wanted(6, 2, {"a": {0, 1}, "b": {0, 1}, "c": {0}})
    assert all(want.is_once and set(want.nodes) == set("abc") for want in found.values())
    assert sorted(want.nodes[0] for want in found.values()) == list("aabbcc")


@pytest.mark.parametrize(
    ("number", "expected"), [(0, ""), (1, "a"), (2, "a"), (3, "ba"), (4, "ba"), (5, "ca"), (6, "ca"), (7, "dba")]
)
def test_a_node_takes_from_above_and_from_further_above_if_that_one_fails(number, expected):
    assert above("abcdefgh", number) == tuple(expected)


def sent(nodes, tree=(), room=None, nbytes=10, durable=(0,), is_once=False):
    """(node, its sources) of one shard."""
    room = dict.fromkeys(nodes, ROOM) if room is None else room
    want = {0: Wanted(nodes=tuple(nodes), is_once=is_once)}
    found = errands(want, {0: list(tree)}, room, {0: nbytes}, set(durable))
    return [(errand.node, "".join(errand.sources)) for errand in found]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({"nodes": "abcd"}, [("a", ""), ("b", "a"), ("c", "a"), ("d", "ba")]),
        ({"nodes": "abcd", "tree": "x"}, [("a", "x"), ("b", "x"), ("c", "ax"), ("d", "ax")]),
        ({"nodes": "abcd", "tree": "xyb"}, [("a", "yx"), ("c", "yx"), ("d", "bx")]),
        ({"nodes": "abc", "tree": "abc"}, []),
        ({"nodes": "abc", "durable": ()}, []),
        ({"nodes": "abc", "durable": (), "tree": "x"}, [("a", "x"), ("b", "x"), ("c", "ax")]),
        ({"nodes": "abc", "room": {"b": ROOM}}, [("b", "")]),
        ({"nodes": "abc", "room": {"a": 9, "b": 10, "c": ROOM}}, [("b", ""), ("c", "b")]),
        ({"nodes": "abc", "is_once": True}, [("a", "")]),
        ({"nodes": "abc", "is_once": True, "tree": "x"}, []),
        ({"nodes": "abc", "is_once": True, "room": {"a": 9, "b": 10}}, [("b", "")]),
        ({"nodes": "abc", "is_once": True, "room": {"b": ROOM}}, []),
        ({"nodes": "", "is_once": True}, []),
    ],
    ids=[
        "a binary tree, whose root takes from the tier",
        "who has it is above those who do not",
        "latecomers are leaves",
        "nothing left to do",
        "nobody has it yet",
        "in memory alone",
        "those that can be asked",
        "who has no room is left out",
        "by one",
        "by nobody, if somebody has it",
        "by the next, if the first has no room",
        "the first is about to come",
        "nobody is there",
    ],
)
def test_errands(case, expected):
    assert sent(**case) == expected


def test_room_is_taken_once():
    want = {shard: Wanted(nodes=("a",)) for shard in range(3)}
    found = errands(want, {}, {"a": 25}, dict.fromkeys(range(3), 10), {0, 1, 2})
    assert found == [Errand(node="a", shard=shard, sources=()) for shard in (0, 1)]


@few
@given(st.lists(st.sets(NAMES, min_size=1, max_size=5), min_size=1, max_size=5), st.sets(NAMES, max_size=3))
def test_whoever_comes_when_each_shard_leaves_the_tier_once_and_nobody_gives_more_than_two(waves, holders):
    tree = ranked("holder", holders)
    come, from_tier, given_by = set(), 0, dict.fromkeys(tree, 0)
    for wave in waves:
        come |= wave
        want = wanted(1, 1, {node: {0} for node in come})
        for errand in errands(want, {0: tree}, dict.fromkeys(come, ROOM), {0: 1}, {0}):
            assert errand.sources == above(tree, len(tree)) and set(errand.sources) <= set(tree)
            from_tier += not errand.sources
            if errand.sources:
                given_by[errand.sources[0]] += 1
            tree.append(errand.node)
            given_by[errand.node] = 0
    assert come <= set(tree) and len(set(tree)) == len(tree)
    assert from_tier == (not holders)
    assert all(count <= 2 for count in given_by.values())


@few
@given(st.integers(1, 20), st.integers(1, 20), st.sets(NAMES, min_size=1, max_size=8))
def test_nodes_share_the_shards_evenly_where_workers_are_others(saved, width, nodes):
    if saved == width:
        return
    want = wanted(saved, width, {node: {0} for node in nodes})
    found = errands(want, {}, dict.fromkeys(nodes, ROOM), dict.fromkeys(range(saved), 1), set(range(saved)))
    assert sorted(errand.shard for errand in found) == list(range(saved))
    counts = [sum(errand.node == node for errand in found) for node in nodes]
    assert max(counts) - min(counts) <= 1
