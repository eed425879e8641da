"""Pure. Where copies go: never home, apart, evenly, and with little movement when nodes come and go."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.checkpoint.placement import sites, targets

few = settings(deadline=None, max_examples=40)
NAMES = st.integers(0, 40).map(lambda number: f"node{number}")
CLUSTERS = st.dictionaries(NAMES, st.sampled_from(["", "zone-a", "zone-b", "zone-c"]), max_size=12)


@few
@given(CLUSTERS, st.sets(NAMES, max_size=3), st.integers(0, 99), st.integers(1, 5))
def test_as_many_nodes_as_missing_or_as_there_are_and_never_a_holder(domains, holders, shard, copies):
    chosen = targets(shard, holders, domains, copies)
    free = set(domains) - holders
    assert len(set(chosen)) == len(chosen) == min(max(0, copies - len(holders)), len(free))
    assert set(chosen) <= free
    assert chosen == targets(shard, sorted(holders), dict(reversed(domains.items())), copies)


@few
@given(CLUSTERS, st.sets(NAMES, max_size=3), st.integers(0, 99), st.integers(1, 5))
def test_domains_without_a_copy_come_first(domains, holders, shard, copies):
    def domain(node):
        return domains.get(node) or node

    chosen = targets(shard, holders, domains, copies)
    held = {domain(node) for node in holders}
    free = {domain(node) for node in domains} - held - set(holders)
    reached = {domain(node) for node in chosen} - held
    assert len(reached) == min(len(free), len(chosen))


@few
@given(CLUSTERS, st.integers(0, 99), st.integers(1, 5), st.data())
def test_a_node_that_leaves_moves_only_what_it_held(domains, shard, copies, data):
    if not domains:
        return
    gone = data.draw(st.sampled_from(sorted(domains)))
    before = targets(shard, (), domains, copies)
    after = targets(shard, (), {node: domain for node, domain in domains.items() if node != gone}, copies)
    assert len(set(before) - set(after)) <= 1
    if gone not in before:
        assert set(after) == set(before)
    else:
        assert set(before) - set(after) == {gone}


@few
@given(CLUSTERS, NAMES, st.integers(0, 99), st.integers(1, 5))
def test_a_node_that_comes_takes_at_most_one_copy_away(domains, newcomer, shard, copies):
    domains = {node: domain for node, domain in domains.items() if node != newcomer}
    before = targets(shard, (), domains, copies)
    after = targets(shard, (), {**domains, newcomer: ""}, copies)
    assert set(after) - set(before) <= {newcomer}
    assert len(set(before) - set(after)) <= 1


def test_shards_spread_over_all_nodes():
    domains = {f"node{number}": "" for number in range(5)}
    held = Counter(node for shard in range(500) for node in targets(shard, ("home",), domains, 2))
    assert min(held.values()) > 60 and max(held.values()) < 140


def test_an_odd_number_of_nodes_and_a_lone_one():
    assert len(targets(0, {"a"}, dict.fromkeys("abc", ""), 3)) == 2
    assert targets(0, {"a"}, {"a": ""}, 2) == ()


@few
@given(st.sets(NAMES, max_size=5), st.sets(NAMES, max_size=8), st.integers(1, 4))
def test_actors_stand_where_workers_are_and_elsewhere_only_if_copies_need_them(workers, others, copies):
    chosen = sites(workers, dict.fromkeys(workers | others, ""), copies, "night")
    assert set(workers) <= set(chosen) <= workers | others
    assert len(chosen) == len(set(chosen)) == max(len(workers), min(copies, len(workers | others)))


@few
@given(st.integers(0, 99))
def test_actors_that_copies_need_stand_in_another_domain_than_the_workers(number):
    domains = {"home": "east", **{f"east{one}": "east" for one in range(8)}, "far": "west"}
    assert set(sites(["home"], domains, 2, f"run{number}")) == {"home", "far"}
