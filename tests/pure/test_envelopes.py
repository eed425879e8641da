"""What monitors and relays send as a whole: what can be taken out is, and nothing of it is lost for the rest."""

from dataclasses import replace

import pytest

from elastic.control import events as ev
from elastic.control.envelopes import (
    MESSAGE,
    Beat,
    Heard,
    beat_of,
    findings_of,
    news_of,
    numbered_beat_of,
    relayed,
    text_of,
)
from elastic.control.flight import Flying, Reading

NOTICE = ev.NodeNotice(node="a", reason="preempted")
READING = Reading(
    worker="w0", generation=1, step=5, phase=Flying.COMPUTING, micro_batch=0, commits=5, still_s=0.01, state="R"
)
OTHER = replace(READING, worker="w1")
GARBAGE = replace(READING, phase="COMPUTING")


@pytest.mark.parametrize(
    ("message", "shape"),
    [
        (None, "NoneType"),
        ("beat", "str"),
        ([[], ()], "list(list, tuple)"),
        (([],), "tuple(list)"),
        (([], (), ()), "tuple(list, tuple, tuple)"),
        ((None, ()), "tuple(NoneType, tuple)"),
        (([], READING), "tuple(list, Reading)"),
        (tuple(range(9)), "tuple"),
    ],
    ids=str,
)
def test_what_is_no_beat_was_not_said(message, shape):
    why_not = f"the monitor of a answers with {shape}, which is no beat"
    assert beat_of("a", message) == Beat(is_heard=False, why_not=why_not)


def test_a_beat_holds_news_and_readings():
    assert beat_of("a", ([NOTICE], (READING,))) == Beat(news=(NOTICE,), readings=(READING,))
    assert beat_of("a", ((), [])) == Beat()


def test_a_reading_of_garbage_costs_neither_news_nor_other_readings():
    beat = beat_of("a", ([NOTICE, "garbage"], (READING, GARBAGE, OTHER, None)))
    why_not = "2 of 4 readings of the monitor of a are none"
    assert beat == Beat(news=(NOTICE, "garbage"), readings=(READING, OTHER), why_not=why_not)


def test_news_are_counted_from_those_that_the_asker_has():
    assert numbered_beat_of("a", (4, [NOTICE], (READING,)), 3) == Beat(news=(NOTICE,), readings=(READING,), number=4)
    assert numbered_beat_of("a", (9, [NOTICE], ()), 0).number == 9, "the others were told to somebody else"
    assert numbered_beat_of("a", (3, [], (GARBAGE,)), 3).why_not == "1 of 1 readings of the monitor of a are none"


@pytest.mark.parametrize("number", [3, 2, -1, None, "4", True, 4.0], ids=str)
def test_a_monitor_that_counts_wrongly_is_asked_again_from_where_the_asker_is(number):
    beat = numbered_beat_of("a", (number, [NOTICE], (READING,)), 3)
    why_not = f"the monitor of a counts {number!r} news, though 1 came after 3"
    assert beat == Beat(is_heard=False, why_not=why_not, number=3)


@pytest.mark.parametrize("message", [None, ([], ()), (4, None, ()), (4, [], None)], ids=str)
def test_so_is_one_that_answers_with_no_beat(message):
    beat = numbered_beat_of("a", message, 3)
    assert (beat.is_heard, beat.number, beat.news) == (False, 3, ()) and "which is no beat" in beat.why_not


def heard(**parts):
    return Heard(**{"beat": ev.HostsHeard(nodes=("a", "b"), readings=(READING,)), **parts})


def test_what_a_relay_tells_of_its_hosts_is_taken_as_it_is():
    told = heard(events=[("a", NOTICE), ("a", "garbage")], lost=["b"], numbers={"a": 7})
    assert relayed(told, ("a", "b"), {"a": 5}) == (told, {})
    assert relayed(Heard(), ("a", "b"), {}) == (Heard(), {})


def test_a_relay_that_speaks_for_hosts_that_it_does_not_hear_is_believed_about_its_own_alone():
    told = heard(
        events=[("c", NOTICE), ("a", NOTICE)],
        beat=ev.HostsHeard(nodes=("a", "c"), readings=(READING,)),
        lost=["c", "b"],
        numbers={"a": 1, "c": 1},
        refused={"b": "garbage", "c": "garbage"},
    )
    own, why_not = relayed(told, ("a", "b"), {"a": 0, "b": 0, "c": 0})
    assert own == Heard(
        events=[("a", NOTICE)],
        beat=ev.HostsHeard(nodes=("a",), readings=(READING,)),
        lost=["b"],
        numbers={"a": 1},
    )
    beginning = "a relay tells {} that are none, or of a host that it does not hear: "
    assert why_not == {
        "beat of b": "garbage",
        "news": beginning.format("news") + repr(("c", NOTICE))[:80],
        "hosts": beginning.format("hosts") + "'c'",
        "losses": beginning.format("losses") + "'c'",
        "numbers": beginning.format("numbers") + "('c', 1)",
        "refusals": beginning.format("refusals") + "('c', 'garbage')",
    }


@pytest.mark.parametrize(
    ("parts", "odd"),
    [
        ({"events": ["garbage", ("a",), (7, NOTICE), ([], NOTICE)]}, {"news"}),
        ({"beat": ev.HostsHeard(nodes=(7, None, []))}, {"hosts"}),
        ({"beat": ev.HostsHeard(nodes=(), readings=(GARBAGE,))}, {"readings"}),
        ({"lost": [None, ["a"]]}, {"losses"}),
        ({"refused": {"a": 7}}, {"refusals"}),
        ({"numbers": {None: 1, "a": "1"}}, {"numbers"}),
    ],
    ids=str,
)
def test_a_part_of_garbage_costs_no_other_part(parts, odd):
    told = heard(**{"events": [], "lost": ["b"], **parts})
    told.events.append(("a", NOTICE))
    own, why_not = relayed(told, ("a", "b"), {"a": 2})
    assert set(why_not) == odd
    assert own.events == [("a", NOTICE)] and own.numbers == {"a": 3}
    assert own.lost == ([] if "lost" in parts else ["b"])
    assert own.beat == (ev.HostsHeard(nodes=()) if "beat" in parts else told.beat)


@pytest.mark.parametrize("number", [0, 5, 6, -1, None, True, 6.5], ids=str)
def test_a_relay_that_counts_less_than_has_come_makes_nobody_tell_it_twice(number):
    told = heard(events=[("a", NOTICE), ("a", NOTICE)], numbers={"a": number})
    own, why_not = relayed(told, ("a", "b"), {"a": 5})
    assert own.numbers == {"a": 7} and set(why_not) == {"numbers"}


@pytest.mark.parametrize(
    "message",
    [
        None,
        ([], ()),
        heard(events=None),
        heard(beat=None),
        heard(beat=ev.HostsHeard(nodes=None)),
        heard(beat=ev.HostsHeard(nodes=(), readings=None)),
        heard(lost=None),
        heard(numbers=None),
        heard(refused=None),
    ],
    ids=str,
)
def test_what_no_relay_says_is_no_message(message):
    own, why_not = relayed(message, ("a",), {})
    assert own is None and set(why_not) == {MESSAGE}
    assert why_not[MESSAGE].startswith("a relay answers with ") and "not what relays tell" in why_not[MESSAGE]


def test_a_worker_tells_how_many_messages_there_have_been_and_news():
    assert news_of("w0", (3, [NOTICE, "garbage"]), 2) == (3, [NOTICE, "garbage"], "")
    assert news_of("w0", (2, []), 2) == (2, [], "")


@pytest.mark.parametrize("message", [None, (1, []), ("3", []), (3, None), (3, [], [])], ids=str)
def test_what_no_worker_tells_is_no_message(message):
    number, events, why_not = news_of("w0", message, 2)
    assert (number, events) == (2, [])
    assert why_not.startswith("w0 answers with ") and why_not.endswith(", which is not what workers tell")


def test_what_is_no_text_says_nothing():
    assert text_of("a", "pid 7 is gone") == ("pid 7 is gone", "")
    assert text_of("a", "") == ("", "")
    assert text_of("a", True) == ("", "the monitor of a answers with bool, which is no text")


@pytest.mark.parametrize(("found", "shape"), [(None, "NoneType"), ("cold", "str"), ([None], "list(NoneType)")])
def test_a_check_that_answers_with_garbage_has_found_something_amiss(found, shape):
    amiss = f"it could not be checked: its monitor answers with {shape}, which are no sentences"
    assert findings_of(found) == [amiss]


def test_a_check_finds_what_its_sentences_say():
    assert findings_of([]) == []
    assert findings_of(["the disk is full"]) == ["the disk is full"]
