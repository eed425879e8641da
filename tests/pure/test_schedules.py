"""Schedules: what may be written, and that a seed decides everything, whoever looks how often."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.control import schedules
from elastic.control.draws import chance, log
from elastic.control.faults import FaultKind, kind_of
from elastic.control.schedules import Course, Entry, Schedule, parse, parse_sim_fault, schedule_of
from elastic.errors import SettingError
from elastic.settings import Chaos

UNTIL_S = 3000.0
seeds = st.integers(min_value=0, max_value=2**32)
kinds = st.lists(st.sampled_from(["kill", "stop", "slow", "node_down"]), min_size=1, max_size=3, unique=True).map(
    ",".join
)
spans = st.integers(min_value=5, max_value=900).map(str)
lines = st.one_of(
    st.builds("{} {}".format, spans, kinds),
    st.builds("every {} {}".format, spans, kinds),
    st.builds("poisson mtbf={} {}".format, spans, kinds),
    st.builds("random,{}".format, spans),
)
moments = st.one_of(st.floats(min_value=0, max_value=UNTIL_S), spans.map(float))  # some of them those of faults
texts = st.lists(lines, max_size=4).map("; ".join)
nodes = st.lists(st.sampled_from([f"node{number}" for number in range(6)]), unique=True)


@given(texts, seeds, nodes)
def test_the_same_seed_gives_the_same_plan(text, seed, there):
    assert parse(text).plan(seed, UNTIL_S, there) == parse(text).plan(seed, UNTIL_S, reversed(there))


@given(texts, seeds, nodes, st.lists(moments, max_size=8))
def test_however_time_is_cut_into_windows_the_plan_is_the_same(text, seed, there, cuts):
    schedule = parse(text)
    course = Course(schedule, seed)
    pieces = [course.due(until_s, there) for until_s in [*sorted(cuts), UNTIL_S]]
    assert tuple(fault for piece in pieces for fault in piece) == schedule.plan(seed, UNTIL_S, there)


def from_the_beginning(schedule, seed, since_s, until_s, there):
    """The faults of a window by the definition: all of the past is drawn, and left out."""
    found = []
    for number, entry in enumerate(schedule.entries):
        if entry.at_s is not None:
            found += [entry.fault(entry.at_s, seed, number)] if entry.at_s <= until_s else []
        elif entry.every_s is not None:
            counts = range(1, math.floor(until_s / entry.every_s) + 1)
            found += [entry.fault(count * entry.every_s, seed, number, count) for count in counts]
        else:
            for node in there:
                at_s, count = -entry.mtbf_s * log(chance(seed, number, node, 0, "interval")), 0
                while at_s <= until_s:
                    found.append(entry.fault(at_s, seed, number, node, count))
                    count += 1
                    at_s -= entry.mtbf_s * log(chance(seed, number, node, count, "interval"))
    new = [fault for fault in found if since_s < fault.at_s]
    return tuple(sorted(new, key=lambda fault: (fault.at_s, fault.name)))


@given(texts, seeds, st.lists(st.tuples(moments, nodes), max_size=8))
def test_whoever_goes_forward_draws_what_the_definition_says_as_nodes_come_and_go(text, seed, looks):
    schedule = parse(text)
    course, since_s = Course(schedule, seed), -1.0
    for until_s, there in sorted(looks):
        assert course.due(until_s, there) == from_the_beginning(schedule, seed, since_s, until_s, there)
        since_s = until_s


def test_nothing_is_drawn_twice(monkeypatch):
    """A look after a day is as cheap as the first one."""
    drawn = []
    monkeypatch.setattr(schedules, "chance", lambda *place: drawn.append(place) or chance(*place))
    course, there = Course(parse("poisson mtbf=1h kill; every 30 kill"), 0), [f"node{number}" for number in range(50)]
    course.due(86400.0, there)
    past = len(drawn)
    for look in range(100):
        course.due(86400.0 + look / 20, there)
    assert len(drawn) == len(set(drawn)) < past + 20


@given(texts, seeds, nodes)
def test_faults_come_in_order_have_names_of_their_own_and_are_of_a_kind_that_was_named(text, seed, there):
    plan = parse(text).plan(seed, UNTIL_S, there)
    assert list(plan) == sorted(plan, key=lambda fault: fault.at_s)
    assert all(0 <= fault.at_s <= UNTIL_S for fault in plan)
    assert len({fault.name for fault in plan}) == len(plan)
    named = set(text.replace(";", " ").replace(",", " ").split()) | {"kill", "stop"}
    assert {fault.kind.value for fault in plan} <= named


@given(seeds, nodes, st.sampled_from([f"node{number}" for number in range(6)]))
def test_a_node_has_its_own_luck_whoever_else_is_there(seed, there, node):
    schedule = parse("poisson mtbf=200 kill")
    mine = [fault for fault in schedule.plan(seed, UNTIL_S, {*there, node}) if fault.target == f"node:{node}"]
    assert tuple(mine) == schedule.plan(seed, UNTIL_S, [node])


def test_nodes_do_not_fail_together():
    """The generator of one seed on every node would have all of them fail at the same moment."""
    plan = parse("poisson mtbf=100 node_down").plan(3, 2000.0, ["a", "b", "c", "d"])
    times = {node: [fault.at_s for fault in plan if fault.target == f"node:{node}"] for node in "abcd"}
    assert all(times.values())
    assert len({moment for all_ in times.values() for moment in all_}) == len(plan)


def test_the_mean_time_between_failures_is_what_was_asked_for():
    plan = parse("poisson mtbf=50 kill").plan(1, 1e4, [f"node{number}" for number in range(20)])
    assert len(plan) == pytest.approx(20 * 1e4 / 50, rel=0.05)


def test_all_kinds_that_are_named_come():
    plan = parse("every 10 kill,stop,slow").plan(0, 1000.0)
    assert {fault.kind for fault in plan} == {FaultKind.KILL, FaultKind.STOP, FaultKind.SLOW}
    assert [fault.at_s for fault in plan] == [10.0 * number for number in range(1, 101)]
    assert len({fault.draw for fault in plan}) == 100


def test_an_explicit_list_may_be_written_as_yaml_has_it():
    text = """
    # before the checkpoint
    - 12.5 kill rank:1
    - 30 slow rank:2 for=10 with=3   # a slow one
    0 partition node:ab for=20 with=eth0; 60 kill
    """
    told = [(fault.at_s, str(fault)) for fault in parse(text).plan(0, 100.0)]
    assert told == [
        (0.0, "partition node:ab for=20 with=eth0"),
        (12.5, "kill rank:1"),
        (30.0, "slow rank:2 for=10 with=3"),
        (60.0, "kill any"),
    ]


def test_what_is_left_out_is_any_worker_killed_or_stopped():
    for text in ("every 5", "every 5 random", "every 5 random any"):
        (entry,) = parse(text).entries
        assert (entry.kinds, entry.target) == ((FaultKind.KILL, FaultKind.STOP), "any")
    (entry,) = parse("every 5 rank:1").entries
    assert entry.target == "rank:1"


@pytest.mark.parametrize(
    ("text", "kinds_", "target", "at_s"),
    [
        ("random,120", ("kill", "stop"), "any", 120.0),
        ("rank_killed, 60.5", ("kill",), "any", 60.5),
        ("rank_hung,1", ("stop",), "any", 1.0),
        ("slow,60", ("slow",), "any", 60.0),
        ("random,2m", ("kill", "stop"), "any", 120.0),
        ("stop, 1.5h", ("stop",), "any", 5400.0),
    ],
)
def test_the_form_of_the_seeds(text, kinds_, target, at_s):
    """The same wherever it is written."""
    for schedule in (parse(text), schedule_of(Chaos(enable_fault_injection=True, sim_fault_desc=text))):
        (entry,) = schedule.entries
        assert entry == parse_sim_fault(text)
        assert (entry.at_s, entry.kinds, entry.target) == (at_s, tuple(map(kind_of, kinds_)), target)


@pytest.mark.parametrize("text", ["random", "random,", "random,soon", "gpu_error,5", "rank_killed;1;5", "random,1,2,3"])
def test_another_form_is_refused(text):
    with pytest.raises(SettingError, match="delay|there is no fault"):
        parse_sim_fault(text)


@pytest.mark.parametrize(
    "text",
    [
        "kill rank:1",
        "12.5",
        "-3 kill",
        "inf kill",
        "nan kill",
        "every",
        "every 0 kill",
        "every soon kill",
        "poisson 3600",
        "poisson mtbf=0 kill",
        "5 kill rank:1 rank:2",
        "5 kill for=1 for=2",
        "5 kill mtbf=3",
        "5 boom",
        "5 slow with=0.5",
        "5 kill rank:x",
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(text):
    with pytest.raises(SettingError):
        parse(text)


def test_an_end_is_known_where_there_is_one():
    assert parse("5 kill; 30 stop").end_s == 30
    assert parse("").end_s == 0
    assert parse("5 kill; every 30").end_s == parse("poisson mtbf=9").end_s == math.inf
    assert parse("poisson mtbf=9").is_per_node and not parse("every 9; 5 kill").is_per_node


def test_the_settings_of_a_run_add_up_to_one_schedule():
    chaos = Chaos(
        enable_fault_injection=True,
        fault_injection_period_s=30.0,
        sim_fault_desc="rank_killed,120",
        schedule="5 slow leader",
    )
    assert schedule_of(chaos) == Schedule(
        entries=(
            Entry(every_s=30.0),
            Entry(at_s=120.0, kinds=(FaultKind.KILL,)),
            Entry(at_s=5.0, kinds=(FaultKind.SLOW,), target="leader"),
        )
    )
    assert schedule_of(None) == schedule_of(Chaos()) == Schedule()


@pytest.mark.parametrize(("field", "text"), [("sim_fault_desc", "boom,3"), ("schedule", "boom")])
def test_a_setting_that_cannot_be_understood_is_named(field, text):
    with pytest.raises(SettingError, match=f"^Chaos.{field}: "):
        schedule_of(Chaos(enable_fault_injection=True, **{field: text}))


def test_faults_without_the_switch_are_a_mistake():
    with pytest.raises(SettingError, match="Chaos.enable_fault_injection"):
        Chaos(schedule="5 kill")
    with pytest.raises(SettingError, match="^Chaos.fault_injection_period_s=-1"):
        Chaos(enable_fault_injection=True, fault_injection_period_s=-1)
