"""Pure. Who is measured when, which runs do not count, and where a peer's processes are put."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.peers.launch import Host, place
from benchmarks.rows import Fault, medians
from benchmarks.systems import DEFAULT, RAY_TUNED, SHORTER, SYSTEMS, TUNED, System
from benchmarks.turns import TRIES, Turn, misfire, played, storm_plan, turns
from elastic.demo.steplog import StepLog, collect

AT_S = 10.0


def test_in_a_repetition_every_system_has_its_turn_in_every_scenario_and_each_time_another_begins() -> None:
    order = list(turns(["kill", "stop"], [DEFAULT, TUNED], ["a", "b", "c"], repeats=2))
    assert len(order) == len(set(order)) == 2 * 2 * 2 * 3
    assert "".join(turn.system for turn in order[:12]) == "abcbcabcacab"
    assert [(turn.settings, turn.number, turn.scenario) for turn in order[::3]] == [
        *((DEFAULT, 0, "kill"), (DEFAULT, 0, "stop"), (DEFAULT, 1, "kill"), (DEFAULT, 1, "stop")),
        *((TUNED, 0, "kill"), (TUNED, 0, "stop"), (TUNED, 1, "kill"), (TUNED, 1, "stop")),
    ]


def test_of_parts_that_are_played_once_each_begins_with_another() -> None:
    begins = [next(turns(["kill"], [TUNED], ["a", "b", "c"], repeats=1, begin=place)).system for place in range(4)]
    assert begins == ["a", "b", "c", "a"]


def test_the_cluster_changes_as_seldom_as_it_can() -> None:
    """Hosts are made anew when the settings change: that is once."""
    order = [turn.settings for turn in turns(["kill", "stop"], [DEFAULT, TUNED], ["a", "b"], repeats=5)]
    assert sum(a != b for a, b in pairwise(order)) == 1


TURN = Turn(scenario="kill", settings=DEFAULT, system="a", number=0)


@pytest.mark.parametrize(("misfires", "counted", "thrown_away"), [(0, 1, 0), (2, 1, 2), (TRIES, 0, TRIES)])
def test_a_run_whose_fault_did_not_fire_is_discarded_and_repeated(
    misfires: int, counted: int, thrown_away: int
) -> None:
    tries = iter(range(TRIES))

    def play(turn: Turn) -> dict[str, Any]:
        assert turn is TURN
        return {"discarded": "the fault hit nobody" if next(tries) < misfires else "", "t_resume_s": 1.0}

    rows, discarded = played(TURN, play)
    assert (len(rows), len(discarded)) == (counted, thrown_away)
    assert all(row["discarded"] for row in discarded)


def test_discarded_runs_are_counted_where_they_belong() -> None:
    row = {"scenario": "kill", "system": "a", "settings": TUNED}
    tuned, default = medians([row | {"t_resume_s": 1.0}, row | {"settings": DEFAULT}], discarded=[row, row])
    assert (tuned["settings"], tuned["discarded"], tuned["repetitions"], tuned["t_resume_s"]) == (TUNED, 2, 1, 1.0)
    assert (default["settings"], default["discarded"]) == (DEFAULT, 0)


def log(*attempts: tuple[float, str], vain: str = "") -> StepLog:
    """A step log: when an attempt began, and who took part in it and committed it a second later; `vain` in none."""
    lines = []
    for step, (begun_s, pids) in enumerate(attempts):
        place = {"step": step, "generation": 1, "attempt": 1}
        for pid in map(ord, pids + vain):
            lines.append({"event": "consumed", "t": begun_s, "pid": pid, "ids": [], **place})
        for pid in map(ord, pids):
            lines.append({"event": "committed", "t": begun_s + 1.0, "pid": pid, "loss": 0.0, **place})
    return collect(lines)


def fault(kind: str, victims: str = "d") -> Fault:
    members = frozenset(map(ord, "abcd"))
    return Fault(kind=kind, at_s=AT_S, members=members, victims=frozenset(map(ord, victims)))


@pytest.mark.parametrize("kind", ["kill", "stop", "node", "everyone", "shrink"])
def test_who_was_killed_or_stopped_is_silent_from_then_on(kind: str) -> None:
    assert misfire(log((8.0, "abcd"), (11.0, "abc")), fault(kind)) == ""
    assert "trained on" in misfire(log((8.0, "abcd"), (11.0, "abcd")), fault(kind))


def test_who_was_stopped_may_be_woken_by_a_system_that_has_gone_on_without_it() -> None:
    """It then writes a line before it ends: that is the system's answer, and the fault took place."""
    assert misfire(log((8.0, "abcd"), (13.0, "abc"), (13.5, "d")), fault("stop")) == ""
    assert "trained on" in misfire(log((8.0, "abcd"), (11.5, "d"), (13.0, "abc")), fault("stop"))
    assert "trained on" in misfire(log((8.0, "abcd"), (13.0, "abc"), (13.5, "d")), fault("kill"))


def test_a_storm_is_the_same_for_all_and_another_one_with_another_seed() -> None:
    plan = storm_plan(600.0, (15.0, 30.0), seed=0)
    assert plan == storm_plan(600.0, (15.0, 30.0), seed=0) != storm_plan(600.0, (15.0, 30.0), seed=1)
    assert plan[0].at_s == 0.0
    assert all(15.0 <= later.at_s - earlier.at_s <= 30.0 for earlier, later in pairwise(plan))
    assert 570.0 <= plan[-1].at_s < 600.0
    assert {strike.kind for strike in plan} == {"kill", "stop", "notice", "node", "rejoin"}


@pytest.mark.parametrize("seed", range(20))
def test_in_a_storm_a_host_is_lost_only_if_all_are_there(seed: int) -> None:
    kinds = [strike.kind for strike in storm_plan(600.0, (15.0, 30.0), seed) if strike.kind in ("node", "rejoin")]
    assert kinds[:1] in ([], ["node"])
    assert all(earlier != later for earlier, later in pairwise(kinds))


def test_a_line_that_was_being_written_is_forgiven() -> None:
    assert misfire(log((8.0, "abcd"), (9.25, "abcd"), (12.0, "abc")), fault("kill")) == ""


def test_a_victim_that_had_not_trained_proves_nothing() -> None:
    assert "had not trained" in misfire(log((8.0, "abc"), (11.0, "abc")), fault("kill"))
    assert "hit nobody" in misfire(log((8.0, "abc")), fault("kill", victims=""))


def test_a_notice_has_run_out_some_seconds_later() -> None:
    assert misfire(log((8.0, "abcd"), (14.0, "abcd"), (17.0, "abc")), fault("notice")) == ""
    assert "trained on" in misfire(log((8.0, "abcd"), (17.0, "abcd")), fault("notice"))


def test_who_was_cut_off_may_train_but_not_with_the_others() -> None:
    assert misfire(log((8.0, "abcd"), (13.0, "abc"), (13.0, "d")), fault("partition")) == ""
    assert misfire(log((8.0, "abcd"), (10.5, "abcd")), fault("partition")) == ""  # packets were under way
    assert misfire(log((8.0, "abcd"), (45.0, "abcd")), fault("partition")) == ""  # the cut is over
    assert "with the others" in misfire(log((8.0, "abcd"), (13.0, "abcd")), fault("partition"))
    assert misfire(log((13.0, "abc"), vain="d"), fault("partition")) == "", "it computed in vain"


@pytest.mark.parametrize("kind", ["partition", "split", "halves", "mute", "deaf"])
def test_who_was_parted_commits_nothing_together_until_it_is_mended(kind: str) -> None:
    assert misfire(log((8.0, "abcd"), (13.0, "ab"), (14.0, "cd")), fault(kind, victims="cd")) == ""
    assert "with the others" in misfire(log((8.0, "abcd"), (13.0, "abcd")), fault(kind, victims="cd"))
    assert misfire(log((8.0, "abcd"), (19.5, "abcd")), fault(kind, victims="cd")) == ""  # it was committed at 20.5
    assert "hit nobody" in misfire(log((8.0, "abcd"), (13.0, "abcd")), fault(kind, victims=""))


def test_where_nothing_is_broken_there_is_nothing_to_show() -> None:
    for kind in ("clean", "join", "busy"):
        assert misfire(log((8.0, "abcd"), (11.0, "abcd")), fault(kind, victims="")) == ""


@pytest.mark.parametrize("kind", ["coordinator", "driver", "headless"])
def test_what_hits_nobody_who_trains_was_seen_by_the_observer(kind: str) -> None:
    struck = replace(fault(kind, victims=""), note="another one was started 5 s later")
    assert "nobody saw" in misfire(log((8.0, "abcd"), (11.0, "abcd")), struck)
    assert misfire(log((8.0, "abcd"), (11.0, "abcd")), replace(struck, proof="the driver was killed")) == ""


def test_each_system_says_what_it_cannot_do() -> None:
    assert SYSTEMS["ddp"].why_not("kill") == "plain DDP survives nothing"
    assert SYSTEMS["ddp"].why_not("clean") == ""
    assert "admits nobody" in SYSTEMS["nvrx-inprocess"].why_not("storm")
    assert all(not SYSTEMS["elastic"].why_not(scenario) for scenario in ("kill", "storm", "everyone", "clean"))


def test_an_environment_that_was_not_built_is_a_reason() -> None:
    assert "make bench-env" in System(module="m", environment="nobody").why_not("kill")


@pytest.mark.parametrize("name", SYSTEMS)
def test_tuning_changes_settings_and_adds_only_variables(name: str) -> None:
    """A knob that only the tuned settings have would be a default that nobody has written down."""
    system = SYSTEMS[name]
    added = set(system.tuned) - set(system.default)
    assert all(knob.isupper() or knob in RAY_TUNED for knob in added)
    assert system.knobs(DEFAULT) == dict(system.default)
    assert system.knobs(TUNED) == {**system.default, **system.tuned}
    assert system.knobs(SHORTER) == {**system.default, **system.tuned, **system.shorter}
    assert all(float(value) < float(system.tuned[knob]) for knob, value in system.shorter.items())


def test_who_has_nothing_to_shorten_is_not_tried_shorter() -> None:
    assert "no timeout" in SYSTEMS["elastic"].why_not("busy", SHORTER)
    assert SYSTEMS["ray-train"].why_not("busy", SHORTER) == SYSTEMS["elastic"].why_not("busy", TUNED) == ""


def test_parts_fill_the_hosts_in_order() -> None:
    hosts = [Host(name=name, address="", slots=2) for name in "xyz"]
    assert place(1, hosts, {}) == hosts[0]
    assert place(1, hosts, {"x": 2, "y": 1}) == hosts[1]
    assert place(2, hosts, {"x": 1, "y": 1}) == hosts[2]
    assert place(2, hosts, {"x": 1, "y": 1, "z": 1}) is None
    assert place(1, [], {}) is None


def test_who_never_is_whole_again_says_why() -> None:
    assert "admits nobody" in SYSTEMS["nvrx-inprocess"].why_small("kill")
    assert "stopped" in SYSTEMS["torchft"].why_small("stop")
    assert SYSTEMS["torchft"].why_small("kill") == SYSTEMS["elastic"].why_small("stop") == ""
