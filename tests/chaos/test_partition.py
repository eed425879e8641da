"""Effect. Networks of a real cluster that part, in every shape, with no reset for anybody, and heal: in namespaces."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import scenarios
from benchmarks.hosts import why_not
from benchmarks.recovery import Bench, Settings
from benchmarks.remains import leftovers
from benchmarks.systems import DEFAULT
from benchmarks.turns import Turn
from tests.lines import whole_lines

Line = dict[str, Any]
pytestmark = [pytest.mark.host, pytest.mark.timeout(300), pytest.mark.skipif(bool(why_not()), reason=why_not())]


def play(
    shape: str, folder: Path, cut_s: float, patch: pytest.MonkeyPatch, whole_s: float = 120.0
) -> tuple[dict[str, Any], list[Line]]:
    """The row of one repetition, and the run's journal; `whole_s`: how long the run has to be whole again."""
    patch.setattr(scenarios, "CUT_S", cut_s)
    bench = Bench(Settings(repeats=1, deadline_s=whole_s), folder)
    try:
        row = bench.repetition(Turn(scenario=shape, settings=DEFAULT, system="elastic", number=0))
    finally:
        bench.close()
    assert row["note"].partition(";")[0] in ("", "not in time: the run was whole again")
    (path,) = folder.rglob("journal.jsonl")
    return row, whole_lines(path)


def freezes(journal: list[Line]) -> list[str]:
    return [line["reason"] for line in journal if line.get("command") == "Freeze"]


def assert_one_line_of_training(row: dict[str, Any], is_whole: bool = True) -> None:
    """Two lines of training would take the same samples twice, or end with different parameters."""
    assert (row["note"] == "") == is_whole
    assert (row["steps_lost"], row["samples_repeated"], row["samples_skipped"]) == (0, 0, 0)
    assert row["digests_equal"]
    assert leftovers() == []


def assert_fenced_on_return(journal: list[Line]) -> set[str]:
    """Whoever was cut off is ended when its host is back, and no later generation has it; returns the hosts."""
    opened = [line["incident"] for line in journal if line.get("moment") == "IncidentOpened"]
    away = {name for incident in opened if incident["kind"] == "host_silent" for name in incident["culprits"]}
    proofs = {line["worker"] for line in journal if line.get("event") == "WorkerDead"}
    assert away and away <= proofs, "nobody was cut off, or not all of them were fenced"
    members = [{one["worker"] for one in line["view"]["members"]} for line in forms(journal)]
    without = next(number for number, names in enumerate(members) if number and not names & away)
    assert not any(names & away for names in members[without:])
    return {line["node"] for line in placed(journal) if line["worker"] in away}


def forms(journal: list[Line]) -> list[Line]:
    return [line for line in journal if line.get("command") == "Form"]


def placed(journal: list[Line]) -> list[Line]:
    return [line for line in journal if line.get("event") == "WorkerPlaced"]


def test_a_host_that_is_cut_off_holds_nobody_up_and_its_workers_are_fenced_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, journal = play("partition", tmp_path, 6.0, monkeypatch)
    assert any("Limits.knock_timeout_s" in reason for reason in freezes(journal)), "the cut was not felt"
    assert row["t_resume_s"] < 30, "somebody waited for a lease"
    assert row["survivors_kept"] >= 2
    assert_one_line_of_training(row)
    assert_fenced_on_return(journal)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["split", "mute", "deaf"])
def test_those_who_are_out_of_reach_are_left_behind(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, journal = play(shape, tmp_path, 6.0, monkeypatch)
    assert any("Limits.knock_timeout_s" in reason for reason in freezes(journal)), "the cut was not felt"
    assert row["t_resume_s"] < 30, "somebody waited for a lease"
    assert row["survivors_kept"] >= 2
    assert_one_line_of_training(row)
    if shape == "split":  # there is room for four workers on these hosts only: those who come back are joiners
        hosts = assert_fenced_on_return(journal)
        last = {one["worker"] for one in forms(journal)[-1]["view"]["members"]}
        assert hosts <= {line["node"] for line in placed(journal) if line["worker"] in last}


@pytest.mark.slow
def test_workers_go_on_while_the_head_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, _ = play("headless", tmp_path, 6.0, monkeypatch)
    assert row["longest_gap_s"] < 6.0, "training waited for the head"
    assert row["survivors_kept"] == 4
    assert_one_line_of_training(row)


@pytest.mark.slow
def test_halves_that_hear_only_the_head_are_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, journal = play("halves", tmp_path, 8.0, monkeypatch)
    assert any("have waited in the reduction" in reason for reason in freezes(journal)), "the cut was not felt"
    assert_one_line_of_training(row)


@pytest.mark.slow
def test_one_half_goes_on_alone_where_the_halves_can_not_reach_each_other_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, journal = play("halves", tmp_path, 40.0, monkeypatch, whole_s=60.0)
    assert any("Limits.forming_timeout_s" in reason for reason in freezes(journal)), "the cut was not felt"
    assert_left(2, row, journal, before_s=40.0)


def assert_left(count: int, row: dict[str, Any], journal: list[Line], before_s: float) -> None:
    """Of four workers so many left, and the others went on before the network was whole again."""
    left = [line for line in journal if "did not reach each other" in line.get("reason", "")]
    assert len(left) == count and {line["command"] for line in left} == {"Dismiss"}
    assert row["t_resume_s"] < before_s, "it went on before the network was whole again"
    assert row["survivors_kept"] == row["survivors"] == 4 - count
    assert_one_line_of_training(row, is_whole=False)  # nodes of those who left stay away for Limits.quarantine_s


@pytest.mark.slow
def test_who_reaches_the_leader_and_nobody_else_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, journal = play("link", tmp_path, 60.0, monkeypatch, whole_s=80.0)
    assert any("Limits.forming_timeout_s" in reason for reason in freezes(journal)), "the cut was not felt"
    assert_left(1, row, journal, before_s=60.0)
