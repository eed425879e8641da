"""Effect. Which runs of the bench count: those in which something was struck, whatever became of the system then."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench, recovery, scenarios, storm
from benchmarks.bench import Bench, Settings
from benchmarks.remains import HostsError
from benchmarks.rows import Fault
from benchmarks.scenarios import STRIKES
from benchmarks.stage import LateError, RunEndedError, ScenarioError
from benchmarks.systems import TUNED
from benchmarks.turns import Strike, Turn
from tests.effects.bench_parts import TURN, Hosts, Late, Played, on, strike


@pytest.mark.parametrize("error", [HostsError("a raylet did not start"), ZeroDivisionError("float"), KeyError(0)])
def test_a_run_that_cannot_begin_does_not_count_and_the_hosts_are_made_anew(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts()
    made = on(hosts, tmp_path, error, monkeypatch)
    row = made.repetition(TURN)
    assert str(error) in row["note"] and str(error) in row["discarded"]
    assert hosts.closed == 1 and made._hosts is None
    assert len(made.troubles) == 1


def test_a_system_that_never_begins_has_an_empty_row_and_those_that_were_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "provenance", dict)
    made, late = on(Hosts(), tmp_path, Late(), monkeypatch), "not in time: all workers were there"
    recovery.measure(made, [TURN], tmp_path / "out.json")
    result = json.loads((tmp_path / "out.json").read_text())
    assert [row["unavailable"] for row in result["rows"]] == ["in none of 3 tries did its fault fire"]
    assert [row["discarded"] for row in result["discarded"]] == [late] * 3
    assert result["medians"][0]["discarded"] == 3
    assert made.troubles == []


def test_a_bench_that_fails_before_the_strike_is_no_failure_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(stage: Any) -> Fault:
        raise HostsError("ip link set: no such device")

    monkeypatch.setitem(STRIKES, "kill", fails)
    row = on(Hosts(), tmp_path, Played(), monkeypatch).repetition(TURN)
    assert row["discarded"] == "ip link set: no such device"


def test_hosts_that_fail_after_the_strike_are_no_failure_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(stage: Any) -> Fault:
        strike(stage)
        raise HostsError("a raylet did not start")

    monkeypatch.setitem(STRIKES, "kill", fails)
    hosts = Hosts()
    made = on(hosts, tmp_path, Played(), monkeypatch)
    assert made.repetition(TURN)["discarded"] == "a raylet did not start"
    assert hosts.closed == 1 and len(made.troubles) == 1
    assert storm_of(Played(), fails, tmp_path, monkeypatch)["discarded"] == "a raylet did not start"


def test_a_joiner_that_was_to_be_killed_and_never_came_was_not_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(stage: Any) -> Fault:
        stage.fault("join", set())
        raise LateError("not in time: a worker on the new slot had started")

    for scenario in ("join", "donor"):
        monkeypatch.setitem(STRIKES, scenario, waits)
        turn = Turn(scenario=scenario, settings=TUNED, system="elastic", number=0)
        row = on(Hosts(), tmp_path, Played(), monkeypatch).repetition(turn)
        assert row["timed_out"]
        assert bool(row["discarded"]) == (scenario == "donor")


def test_a_kill_beside_a_spare_counts_where_the_run_is_late_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = Turn(scenario="swap", settings=TUNED, system="elastic", number=0)
    row = on(Hosts(), tmp_path, Played(LateError("not in time: it was whole")), monkeypatch).repetition(turn)
    assert row["discarded"] == "" and row["timed_out"]
    assert row["t_resume_s"] == pytest.approx(0.5)


@pytest.mark.parametrize("falls_over", [False, True])
def test_where_nothing_is_what_is_done_the_run_counts(
    falls_over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Played()
    stage.finish = lambda: 0  # type: ignore[method-assign]

    def wait_s(seconds: float) -> None:
        if falls_over and seconds == scenarios.CLEAN_S:
            raise RunEndedError("the run ended with code 1 before 20 s had passed")

    stage.wait_s = wait_s  # type: ignore[method-assign]
    turn = Turn(scenario="clean", settings=TUNED, system="torchrun", number=0)
    row = on(Hosts(), tmp_path, stage, monkeypatch).repetition(turn)
    assert row["discarded"] == ""
    assert bool(row["note"]) == falls_over
    assert ("mean_step_s" in row) == (not falls_over)


STORMY = Turn(scenario="storm", settings=TUNED, system="torchrun", number=0)


def storm_of(stage: Played, strike: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The row of a storm of one strike."""
    monkeypatch.setattr(bench, "storm_plan", lambda *_: [Strike(kind="kill", at_s=0.0, seed=0)])
    monkeypatch.setitem(storm._STRIKES, "kill", strike)
    stage.finish = lambda: 0  # type: ignore[method-assign]
    return on(Hosts(), tmp_path, stage, monkeypatch).repetition(STORMY)


def test_a_storm_that_found_nobody_to_hit_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def skips(stage: Any) -> Fault:
        raise ScenarioError("2 trained, of whom 1 would have been hit")

    row = storm_of(Played(), skips, tmp_path, monkeypatch)
    assert row["discarded"] and row["strikes_skipped"]


@pytest.mark.parametrize(("victims", "counts"), [({1}, False), ({1, 4}, False), ({4}, True)])
def test_a_storm_counts_if_one_of_its_strikes_shows(
    victims: set[int], counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of these only the fourth is silent after it."""
    row = storm_of(Played(), lambda stage: stage.fault("kill", victims), tmp_path, monkeypatch)
    assert (row["discarded"] == "") == counts
    assert row["misfires"] == (0 if counts else 1)


def test_a_run_that_is_over_before_its_storm_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(seconds: float) -> None:
        raise RunEndedError("the run ended with code 1 before 15 s had passed")

    stage = Played()
    stage.wait_s = ends  # type: ignore[method-assign]
    row = storm_of(stage, strike, tmp_path, monkeypatch)
    assert row["discarded"] == "the run ended with code 1 before 15 s had passed"


def test_a_run_that_ends_during_the_first_strike_of_a_storm_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(stage: Any) -> Fault:
        strike(stage)
        raise RunEndedError("the run ended with code 1 before 5 s had passed")

    row = storm_of(Played(), ends, tmp_path, monkeypatch)
    assert row["discarded"] == "" and "ended with code 1" in row["note"]
    assert [fault["kind"] for fault in row["faults"]] == ["kill"]
    assert (row["survivors"], row["misfires"]) == (3, 0)


def test_a_bench_that_is_broken_off_leaves_an_older_result_and_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "provenance", dict)
    made, out, played = Bench(Settings(), tmp_path), tmp_path / "out.json", list[Turn]()

    def repetition(turn: Turn) -> dict[str, Any]:
        if played:
            raise KeyboardInterrupt
        played.append(turn)
        return bench.blank(turn)

    monkeypatch.setattr(made, "repetition", repetition)
    out.write_text("an older one")
    with pytest.raises(KeyboardInterrupt):
        recovery.measure(made, [TURN, TURN], out)
    assert out.read_text() == "an older one"
    assert len(json.loads((tmp_path / "out.partial").read_text())["rows"]) == 1


def test_a_fault_that_never_fires_has_a_row_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "provenance", dict)
    made = Bench(Settings(), tmp_path)
    monkeypatch.setattr(made, "repetition", lambda turn: bench.blank(turn) | {"discarded": "the fault hit nobody"})
    recovery.measure(made, [TURN], tmp_path / "out.json")
    assert "in none of 3 tries" in (tmp_path / "out.json").read_text()
