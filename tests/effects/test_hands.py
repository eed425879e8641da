"""Effect. What the driver holds of workers: who is the last of a replica, who is where, who is on the way. No Ray."""

from elastic.actors.hands import Hand, Hands

A, B = "node a", "node b"


def test_who_ends_is_known_by_name_and_counts_no_more() -> None:
    hands = Hands()
    hands.add("w1", Hand(None, None, node=A))
    hands.add("w2", Hand(None, None, node=B))
    assert hands.by_node() == {A: 1, B: 1}
    hand = hands["w1"]
    assert hands.end("w1") == (hand, False) and hand.is_over
    assert hands.by_node() == {B: 1} and [name for name, _ in hands.there()] == ["w2"]
    assert "w1" in hands and hands.get("w1") is hand, "an answer of it may come yet"
    assert hands.end("w1") is None and hands.end("nobody") is None and hands.get("nobody") is None


def test_the_last_of_a_replica_is_told_once_and_a_gang_may_begin_anew() -> None:
    hands = Hands()
    for worker, gang in (("w1", 0), ("w2", 0), ("w3", 1)):
        hands.add(worker, Hand(None, None, gang))

    def is_last(worker: str) -> bool:
        ended = hands.end(worker)
        assert ended is not None
        return ended[1]

    assert [is_last(one) for one in ("w1", "w3", "w2")] == [False, True, True]
    hands.add("w4", Hand(None, None, gang=0))
    assert is_last("w4")


def test_of_who_is_adopted_the_second_hand_counts() -> None:
    """Of a member that an earlier driver left, first its address is known, and then its replica, if it answers."""
    hands = Hands()
    hands.add("w1", Hand(None, None, gang=-1))
    hands.add("w2", Hand(None, None, gang=-1))
    hands.add("w1", Hand(None, None, gang=3, node=A))
    hands.add("w3", Hand(None, None, gang=3, node=A))
    assert hands.by_node() == {A: 2}
    assert hands.end("w2") == (hands["w2"], True), "the last of those that were not found"
    assert hands.end("w1") == (hands["w1"], False)
    assert hands.end("w3") == (hands["w3"], True)


def test_who_is_well_on_the_way_or_nowhere() -> None:
    hands = Hands()
    heard = Hand(None, None, node=A, pid=1, address=("a", 1), is_heard=True)
    fenced = Hand(None, None, node=A, pid=2, address=("a", 2), is_heard=True, is_fenced=True)
    lost = Hand(None, None, node=A, pid=3, address=("a", 3))
    starting = Hand(None, None, node=B)
    unplaced = Hand(None, None)
    for number, hand in enumerate((heard, fenced, lost, starting, unplaced)):
        hands.add(f"w{number}", hand)
    assert hands.by_node() == {A: 3, B: 1}
    assert hands.by_node(are_well=True) == {A: 1, B: 1}
    assert hands.loading() == {B}
    assert hands.nowhere() == [("w4", unplaced)]
