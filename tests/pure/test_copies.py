"""How many nodes get a copy of each shard, where nobody has said it."""

import pytest

from elastic.checkpoint.copies import Copies, Taker, choose_peers

HOMES = {0: {"a"}, 1: {"b"}}
SIZES = {0: 10 << 20, 1: 10 << 20}


def takers(names: str, budget_mib: int = 1000) -> dict[str, Taker]:
    return {name: Taker(domain="", budget_bytes=budget_mib << 20) for name in names}


def copies(asked: int | None = None) -> Copies:
    found = Copies(asked)
    for shard, nbytes in SIZES.items():
        found.staged(shard, nbytes)
    return found


def test_two_where_three_nodes_have_room():
    chosen = choose_peers(SIZES, HOMES, takers("abc"))
    assert chosen.peers == 2
    assert (
        chosen.reason
        == "of 3 nodes c is the fullest with 2 copies: they take 60 of the 1000 MiB that it may hold for others"
    )


def test_one_where_there_are_too_few_nodes():
    chosen = choose_peers(SIZES, HOMES, takers("ab"))
    assert (chosen.peers, chosen.reason) == (1, "there are 2 nodes, and 2 copies of what a node has need 3")


@pytest.mark.parametrize(("budget_mib", "peers"), [(59, 1), (60, 2)])
def test_one_where_a_node_has_no_room_for_three_generations_of_what_it_would_get(budget_mib: int, peers: int):
    """Node c gets both shards, a and b one each."""
    tight = takers("ab") | takers("c", budget_mib)
    assert choose_peers(SIZES, HOMES, tight).peers == peers


def test_what_nodes_have_of_their_own_takes_no_room():
    everywhere = {0: set("abc")}
    assert choose_peers({0: 1 << 40}, everywhere, takers("abc", 0)).peers == 2


def test_nothing_is_chosen_before_all_sizes_are_known():
    found = Copies(None)
    assert (found.first, found.most) == (1, 2)
    found.staged(0, 10 << 20)
    assert found.news({}, takers("abc")) is None
    assert found.news(HOMES, takers("abc")) is None
    found.staged(1, 10 << 20)
    assert found.news(HOMES, takers("abc")).peers == 2


def test_the_first_choice_waits_for_all_nodes_and_later_ones_do_not():
    found = copies()
    assert found.news(HOMES, takers("ab"), is_complete=False) is None
    assert found.news(HOMES, takers("abc")).peers == 2
    assert found.news(HOMES, takers("ab"), is_complete=False).peers == 1


def test_only_another_number_is_news():
    found = copies()
    assert found.news(HOMES, takers("abc")).peers == 2
    assert found.news(HOMES, takers("abc")) is None, "nothing has changed"
    assert found.news(HOMES, takers("abcd")) is None, "as many as before"
    assert found.news(HOMES, takers("ab")).peers == 1
    found.staged(0, 1 << 40)
    assert found.news(HOMES, takers("abc")) is None
    found.staged(0, 10 << 20)
    assert found.news(HOMES, takers("abc")).peers == 2


def test_what_was_asked_for_is_left_as_it_is():
    found = copies(3)
    assert (found.first, found.most) == (3, 3)
    assert found.news(HOMES, takers("ab")) is None
