"""Segments of a journal that become few: what is read, merged and deleted, and that no line is ever missing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.checkpoint import merging
from elastic.checkpoint.merging import KEPT_S, MOST, MOST_BYTES, Span, batches, due, last_of, span_of, unread
from elastic.checkpoint.records import Keys

KEYS = Keys("night-1")


def alone(incarnation, *numbers):
    return [Span(incarnation, number, number) for number in numbers]


def row(incarnation, count, size=100):
    return dict.fromkeys(alone(incarnation, *range(count)), size)


def merged_in(there, incarnation):
    return [(one[0].incarnation, one[0].first, one[-1].last) for one in batches(there, incarnation)]


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_span_is_its_key(incarnation, first, more):
    assert span_of(KEYS.journal(incarnation, first)) == Span(incarnation, first, first)
    assert span_of(KEYS.journal(incarnation, first, first + more)) == Span(incarnation, first, first + more)


@pytest.mark.parametrize("key", ["a/journal/x", "a/journal/1-2", KEYS.journal(1, 5, 4), KEYS.log(1, "w0", 2)])
def test_what_is_no_segment_is_nobodys(key):
    assert span_of(key) is None


def test_keys_are_in_the_order_of_their_segments():
    """Who knows nothing of merging takes what has been merged in its place, once the segments are gone."""
    keys = [KEYS.journal(1, 0, 255), KEYS.journal(1, 256), KEYS.journal(1, 257, 300), KEYS.journal(2, 0)]
    assert keys == sorted(keys)


def test_enough_in_a_row_are_merged_and_the_last_ones_wait():
    assert merged_in(row(1, MOST), 1) == [], "the last one may be written again"
    assert merged_in(row(1, MOST + 1), 1) == [(1, 0, MOST - 1)]
    assert merged_in(row(1, 2 * MOST), 1) == [(1, 0, MOST - 1)]


def test_of_lives_that_are_over_few_are_merged_too_but_for_the_last():
    assert merged_in(row(1, 5) | row(2, 2) | row(3, 3), 3) == [(1, 0, 3)]
    assert merged_in(row(1, 5) | row(2, 9), 1) == [(1, 0, 3)], "another driver has taken over, and writes"


def test_what_is_merged_has_a_bounded_size():
    assert merged_in(row(1, 12, MOST_BYTES // 4), 2) == [(1, 0, 3), (1, 4, 7), (1, 8, 10)]
    assert merged_in(row(1, 5, MOST_BYTES), 2) == merged_in({}, 2) == []


def test_what_is_merged_already_or_does_not_follow_is_not_merged_with_others():
    there = row(1, 8) | {Span(1, 2, 4): 300}
    assert merged_in(there, 2) == [(1, 0, 1), (1, 5, 6)]
    gap = dict.fromkeys(alone(1, 0, 1, 3, 4, 5), 100)
    assert merged_in(gap, 2) == [(1, 0, 1), (1, 3, 4)]


def test_segments_go_long_after_what_holds_them_is_there():
    there = dict.fromkeys(alone(1, 0, 1, 2, 3), 100.0) | dict.fromkeys(alone(2, 0, 1), 100.0)
    there |= {Span(1, 0, 1): 200.0, Span(1, 0, 2): 210.0, Span(1, 1, 1): 100.0}
    assert due(there) == {}
    later = there | {Span(2, 2, 2): 210.0 + KEPT_S}
    assert due(later) == {Span(1, 0, 2): alone(1, 0, 1, 2)}
    assert due({}) == {}


def test_each_segment_is_read_once_and_from_where_it_is_whole():
    """What was merged just now may be half written; what was a while ago stays, and its segments may go."""
    now_s = 1000.0
    there = dict.fromkeys(alone(1, 0, 1, 2, 3, 4, 5), now_s)
    there |= {Span(1, 0, 1): now_s - 100.0, Span(1, 2, 4): now_s - 10.0}
    assert unread(there, set()) == {
        Span(1, 0, 1): [(1, 0), (1, 1)],
        **{one: [(1, one.first)] for one in alone(1, 2, 3, 4, 5)},
    }
    del there[Span(1, 3, 3)]
    assert unread(there, {(1, 0), (1, 1), (1, 2), (1, 4), (1, 5)}) == {Span(1, 2, 4): [(1, 3)]}
    assert unread({}, set()) == {}


def test_the_newest_segment_is_found_in_what_there_is():
    assert last_of([]) is None
    assert last_of([*alone(1, 9), Span(2, 0, 3), *alone(2, 3)]) == Span(2, 3, 3)
    assert last_of([*alone(2, 2), Span(2, 0, 3)]) == Span(2, 0, 3)


class Shelf:
    """A store with a clock: what is there, and when it was written."""

    def __init__(self):
        self.there, self.now_s = {}, 0.0

    def numbers(self):
        return {number for span in self.there for number in span.numbers}

    def steps(self, incarnation):
        """What a driver does when it merges, one object after the other; it may be killed in between."""
        seen = dict(self.there)
        for held in due(seen).values():
            for span in held:
                yield lambda span=span: self.there.pop(span, None)
        for batch in batches(dict.fromkeys(seen, 1), incarnation):
            made = Span(batch[0].incarnation, batch[0].first, batch[-1].last)
            yield lambda made=made: self.there.setdefault(made, self.now_s)


class Reader:
    """Reads what it lists, and tells what is new."""

    def __init__(self):
        self.told = []

    def look(self, there):
        for numbers in unread(there, set(self.told)).values():
            self.told += numbers


@given(st.lists(st.sampled_from("wwwwwwsmmklr"), min_size=20, max_size=120), st.randoms(use_true_random=False))
def test_at_no_moment_a_segment_is_missing_and_nobody_is_told_one_twice(story, chance):
    """w: a segment is written. s: time passes. m: one of what is to be done is done. k: its driver is killed, and
    another life begins. l: a long-time reader looks. r: one that begins now does."""
    before, merging.MOST = merging.MOST, 4
    try:
        shelf, follower, written = Shelf(), Reader(), []
        incarnation, number, doing = 1, 0, iter(())
        for what in story:
            shelf.now_s += 1.0
            if what == "w":
                shelf.there[Span(incarnation, number, number)] = shelf.now_s
                written.append((incarnation, number))
                number += 1
            elif what == "s":
                shelf.now_s += chance.choice([10.0, 100.0, KEPT_S])
            elif what == "m":
                act = next(doing, None)
                if act is None:
                    doing = shelf.steps(incarnation)
                    act = next(doing, None)
                if act is not None:
                    act()
            elif what == "k":
                incarnation, number, doing = incarnation + 1, 0, iter(())
            elif what == "l":
                follower.look(shelf.there)
            else:
                fresh = Reader()
                fresh.look(shelf.there)
                assert sorted(fresh.told) == written
            assert shelf.numbers() == set(written)
        follower.look(shelf.there)
        assert sorted(follower.told) == written
    finally:
        merging.MOST = before
