"""Faults as they are written down: what each kind takes, and how one that cannot work is refused."""

import math

import pytest

from elastic.control.draws import chance, draw, log
from elastic.control.faults import Fault, FaultKind, kind_of, options, seconds
from elastic.errors import SettingError

RIGHT = {
    "slow": "3",
    "partition": "eth0,netns=host-1",
    "packets": "eth0,delay=0.05,loss=0.1",
    "disk_full": "/mnt/ssd",
    "bit_flip": "persistent",
    "storage_errors": "0.5",
    "xid": "79,bus=0000:3b:00",
}
WRONG = {
    "kill": ["9"],
    "slow": ["1", "0.5", "fast", "2,3"],
    "partition": ["", "eth0,loss=1", "a device", "eth0,netns=a;b"],
    "packets": ["eth0", "delay=1", "eth0,loss=2", "eth0,delay=soon", "eth0,delay=-1"],
    "disk_full": ["relative/path"],
    "bit_flip": ["disk"],
    "storage_errors": ["0", "1.5", "often"],
    "xid": ["", "seventy-nine", "79,card=1", "79,gpu=x"],
}


def fault(kind: str, **how) -> Fault:
    return Fault(kind=kind_of(kind), **how)


@pytest.mark.parametrize(("kind", "argument"), RIGHT.items())
def test_an_argument_that_can_work_is_taken(kind, argument):
    assert fault(kind, argument=argument).argument == argument


@pytest.mark.parametrize(("kind", "argument"), [(kind, one) for kind, all_ in WRONG.items() for one in all_])
def test_an_argument_that_cannot_work_is_refused_with_what_it_takes(kind, argument):
    with pytest.raises(SettingError, match=f"^{kind} with="):
        fault(kind, argument=argument)


@pytest.mark.parametrize("target", ["any", "leader", "rank:12", "worker:w3", "node:0a1b", "node:host-1.zone"])
def test_targets(target):
    assert fault("kill", target=target).target == target


@pytest.mark.parametrize("target", ["", "rank:", "rank:-1", "rank:one", "node:", "everybody", "node:a b"])
def test_a_target_that_is_none_is_refused(target):
    with pytest.raises(SettingError, match="any, leader, rank:N"):
        fault("kill", target=target)


@pytest.mark.parametrize("time", ["at_s", "duration_s"])
def test_time_does_not_run_backwards(time):
    with pytest.raises(SettingError, match="negative"):
        fault("kill", **{time: -1.0})


def test_a_kind_is_its_name_in_the_journal_and_may_be_written_with_dashes():
    assert all(kind.value == kind.name.lower() for kind in FaultKind)
    assert kind_of("node-down") is kind_of("node_down") is FaultKind.NODE_DOWN
    with pytest.raises(SettingError, match="there is no fault 'boom': name one of kill, stop, "):
        kind_of("boom")


def test_what_ends_by_itself_has_a_duration_and_a_stop_is_for_good():
    assert fault("slow").lasts_s == 30 and fault("slow", duration_s=2.0).lasts_s == 2
    assert fault("stop").lasts_s == 0 and fault("stop", duration_s=2.0).lasts_s == 2


@pytest.mark.parametrize(("text", "value"), [("30", 30), ("1.5", 1.5), ("2m", 120), ("3h", 10800), ("1y", 31536000)])
def test_durations(text, value):
    assert seconds(text, "it ") == value


@pytest.mark.parametrize("text", ["", "0", "-1", "soon", "1w", "1e3", "inf"])
def test_a_duration_that_is_none_is_refused(text):
    with pytest.raises(SettingError, match="^it .* must be a positive number of seconds"):
        seconds(text, "it ")


def test_options_are_a_first_word_and_named_ones():
    assert options("eth0,loss=0.1") == ("eth0", {"loss": "0.1"})
    assert options("loss=0.1") == ("", {"loss": "0.1"})
    assert options("") == ("", {})


def test_draws_depend_on_the_seed_and_on_what_they_are_for():
    assert draw(1, "a", 2) == draw(1, "a", 2)
    assert len({draw(seed, place) for seed in range(10) for place in range(10)}) == 100
    drawn = [chance(0, number) for number in range(1000)]
    assert all(0 < one < 1 for one in drawn) and 0.45 < sum(drawn) / 1000 < 0.55


def test_the_logarithm_has_the_same_bits_everywhere_and_is_one():
    told = ["0x0.0p+0", "0x1.62e42fefa39efp-1", "-0x1.bb9611b80e2fap-2", "0x1.26bb1bbb55515p+1"]
    assert [log(x).hex() for x in (1.0, 2.0, 0.6484375, 10.0)] == told
    drawn = [chance(0, number) for number in range(1000)]
    for x in (*drawn, *(1 / one for one in drawn), *(1 - one * 1e-9 for one in drawn)):
        assert math.isclose(log(x), math.log(x), rel_tol=5e-16, abs_tol=1e-16)


def test_a_fault_tells_itself_as_it_is_written():
    assert str(fault("slow", target="rank:2", duration_s=10.0, argument="3")) == "slow rank:2 for=10 with=3"
    assert str(fault("kill")) == "kill any"
