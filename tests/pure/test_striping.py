"""Who gives what of a state, and who sees that it is right."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.control.striping import arriving, is_agreed, parts, pieces, summed_by, told

few = settings(deadline=None, max_examples=80)


@pytest.mark.parametrize(
    ("sizes", "donors", "cut"),
    [
        ([4, 4], 1, [(0, 0, 4, 0), (1, 0, 4, 0)]),
        ([4, 4], 2, [(0, 0, 4, 0), (1, 0, 4, 1)]),
        ([12], 3, [(0, 0, 4, 0), (0, 4, 8, 1), (0, 8, 12, 2)]),
        ([5, 0, 2], 2, [(0, 0, 3, 0), (0, 3, 5, 1), (2, 0, 2, 1)]),
        ([1], 3, [(0, 0, 1, 2)]),
        ([], 2, []),
    ],
    ids=["one donor", "a tensor each", "one large tensor", "over a border", "less than donors", "nothing"],
)
def test_every_byte_is_given_once_and_every_donor_gives_as_much(sizes, donors, cut):
    assert [(one.tensor, one.begin, one.end, one.donor) for one in pieces(sizes, donors)] == cut


def test_no_piece_is_so_large_that_nothing_shows_while_it_is_on_its_way():
    runs = [(one.tensor, one.begin, one.end, one.donor) for one in pieces([10, 2], 2, most_bytes=4)]
    assert runs == [(0, 0, 4, 0), (0, 4, 6, 0), (0, 6, 10, 1), (1, 0, 2, 1)]


def test_pieces_are_waited_for_as_they_come_of_each_donor_in_its_order():
    cut = pieces([3, 3, 6, 6], 3)
    order = arriving(cut)
    assert sorted(order) == list(range(len(cut)))
    assert [cut[at].donor for at in order] == [0, 1, 2, 0]
    assert [at for at in order if cut[at].donor == 0] == [0, 1]


def test_a_part_is_every_tensor_of_which_a_donor_gives_some():
    assert parts(pieces([5, 0, 2], 2), 2) == [[0], [0, 2]]
    assert parts(pieces([1], 3), 3) == [[], [], [0]]


@few
@given(donors=st.integers(1, 9))
def test_each_part_is_summed_by_who_gives_it_the_donor_after_it_and_who_receives_it(donors):
    by = [summed_by(donor, donors) for donor in range(donors)]
    for part in range(donors):
        assert {donor for donor in range(donors) if part in by[donor]} == {part, (part + 1) % donors}
    assert summed_by(None, donors) == tuple(range(donors))


def rows(donors, receivers, wrong=None):
    """What all tell where the donors hold the same; `wrong`: (rank, part) that a rank has seen otherwise."""
    told_by = []
    for rank in range(donors + receivers):
        donor = rank if rank < donors else None
        sums = [100 + part + ((rank, part) == wrong) for part in summed_by(donor, donors)]
        told_by.append(told(7, sums, donor is not None))
    return told_by


@few
@given(donors=st.integers(1, 6), receivers=st.integers(1, 3), data=st.data())
def test_who_has_seen_something_else_is_enough_whoever_it_is(donors, receivers, data):
    assert is_agreed(rows(donors, receivers), range(donors))
    rank = data.draw(st.integers(0, donors + receivers - 1))
    part = data.draw(st.sampled_from(summed_by(rank if rank < donors else None, donors)))
    assert not is_agreed(rows(donors, receivers, (rank, part)), range(donors))


@few
@given(donors=st.integers(1, 6), data=st.data())
def test_another_skeleton_is_found(donors, data):
    told_by = rows(donors, 1)
    told_by[data.draw(st.integers(0, donors))][0] += 1
    assert not is_agreed(told_by, range(donors))


def test_donors_need_not_be_the_first_ranks():
    receiver, *rest = reversed(rows(2, 1))
    assert is_agreed([receiver, *reversed(rest)], (1, 2))
