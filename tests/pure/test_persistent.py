"""A mapping of which each version stays what it was."""

import pickle
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.control.copies import changed
from elastic.control.persistent import PersistentMap, persistent

KEYS = st.integers(0, 200).map(str)
CHANGES = st.lists(st.tuples(st.booleans(), st.dictionaries(KEYS, st.integers(), max_size=90)), max_size=12)


def play(changes: list[tuple[bool, dict[str, int]]]) -> list[tuple[PersistentMap[int], dict[str, int]]]:
    """Each version, and what a dict would hold."""
    versions = [(PersistentMap[int](), dict[str, int]())]
    for is_update, entries in changes:
        made, model = versions[-1][0], dict(versions[-1][1])
        if is_update:
            made, model = made.updated(entries), {**model, **entries}
        else:
            made, model = made.without(entries), {key: one for key, one in model.items() if key not in entries}
        versions.append((made, model))
    return versions


@given(CHANGES)
def test_every_version_holds_what_a_dict_would_whatever_came_after_it(changes):
    for made, model in play(changes):
        assert made == model and len(made) == len(model)
        assert dict(made.items()) == model == {key: made[key] for key in made}
        assert sorted(made.values()) == sorted(model.values())
        assert all((key in made) == (key in model) for key in map(str, range(201)))
        assert made.many(model) == list(model.values())


@given(CHANGES, st.dictionaries(KEYS, st.integers(), max_size=90))
def test_two_versions_go_on_differently_from_a_third(changes, other):
    versions = play(changes)
    forks = [(made.updated(other), {**model, **other}) for made, model in versions]
    assert all(made == model for made, model in (*versions, *forks))


@given(CHANGES)
def test_what_has_changed_since_makes_the_new_version_of_the_old_one(changes):
    versions = play(changes)
    for old, _ in versions:
        new, model = versions[-1]
        changed_entries, gone = new.changes_since(old)
        assert old.without(gone).updated(changed_entries) == model
    same, gone = versions[-1][0].changes_since(versions[-1][0])
    assert (same, gone) == ({}, ())


def test_only_what_has_changed_is_found_to_have():
    old = PersistentMap({str(number): [number] for number in range(5000)})
    new = old.updated({"17": [1], "4999": [2], "new": [3]}).without(["40", "gone before"])
    assert new.changes_since(old) == ({"17": [1], "4999": [2], "new": [3]}, ("40",))


@pytest.mark.parametrize("size", [0, 1, 64, 65, 4096, 4097])
def test_keys_come_in_the_order_in_which_they_were_added(size):
    grown = PersistentMap[int]()
    for number in range(size):
        grown = grown.updated({str(number): number})
    assert list(grown) == [str(number) for number in range(size)]
    assert list(PersistentMap({str(number): number for number in range(size)})) == list(grown)
    assert [grown.number(key) for key in grown] == list(range(size))


def test_it_is_sent_without_what_it_shares():
    made = PersistentMap({"a": 1, "b": 2}).updated({"a": 3})
    assert pickle.loads(pickle.dumps(made)) == {"a": 3, "b": 2}
    assert persistent(made) is made and persistent({"a": 1}) == {"a": 1}


def test_mostly_holes_are_closed():
    made = PersistentMap({str(number): number for number in range(1000)}).without(map(str, range(990)))
    assert list(made) == [str(number) for number in range(990, 1000)] and made.number("990") == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    one: int = 1
    other: str = "a"


def test_a_changed_copy_is_a_replaced_one():
    value = Value(one=2)
    assert changed(value, other="b") == replace(value, other="b") and value == Value(one=2)
    assert changed(value) == value and changed(value) is not value
    with pytest.raises(FrozenInstanceError):
        changed(value).one = 3
    with pytest.raises(AttributeError):
        changed(value, third=3)


def test_versions_that_share_nothing_are_compared_all_the_same():
    old, new = PersistentMap({"a": 1, "b": 2, "c": 3}), PersistentMap({"b": 2, "a": 4, "d": 5})
    assert new.changes_since(old) == ({"a": 4, "d": 5}, ("c",))


def test_what_has_changed_is_found_where_the_tree_has_grown():
    old = PersistentMap({str(number): number for number in range(60)})
    more = {str(number): number for number in range(60, 70)}
    new = old.updated(more).without(["3"])
    assert new.changes_since(old) == (more, ("3",))


@pytest.mark.parametrize("size", [10, 100, 5000, 64**3 + 1])
def test_some_are_read_at_once(size):
    made = PersistentMap({str(number): number for number in range(size)})
    some = [0, 1, size // 2, size - 1]
    assert made.many(map(str, some)) == some == [made[str(number)] for number in some]


def test_it_says_what_it_holds_and_what_it_does_not():
    made = PersistentMap({"a": 1})
    assert repr(made) == "PersistentMap({'a': 1})"
    assert made == made and made != PersistentMap({"a": 2})
    with pytest.raises(KeyError, match="b"):
        made["b"]
