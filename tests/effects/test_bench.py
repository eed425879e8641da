"""Effect. The bench goes on whatever becomes of one run, and ends cleanly when it is told to."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import link, recovery, suite
from benchmarks.bench import Bench, Settings
from benchmarks.remains import HostsError
from benchmarks.rows import Fault
from benchmarks.scenarios import STRIKES
from benchmarks.stage import LateError, RunEndedError, Stage
from tests.effects.bench_parts import TURN, Hosts, Played, on, strike

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0


@pytest.mark.parametrize("error", [RunEndedError("the run ended with code 1"), KeyError("nobody")])
def test_what_was_measured_before_something_went_wrong_is_kept(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STRIKES, "kill", strike)
    made = on(Hosts(), tmp_path, Played(error), monkeypatch)
    row = made.repetition(TURN)
    assert row["t_resume_s"] == pytest.approx(0.5)
    assert (row["survivors_kept"], row["steps"]) == (3, 4)
    assert row["phases_s"]["stepped"] == pytest.approx(0.1), "from the go to the commit"
    assert "a last word" in row["note"]


def test_a_strike_that_fails_half_way_keeps_what_the_run_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(stage: Any) -> Fault:
        strike(stage)
        raise RunEndedError("the run ended with code 1 before 15 s had passed")

    monkeypatch.setitem(STRIKES, "kill", fails)
    row = on(Hosts(), tmp_path, Played(), monkeypatch).repetition(TURN)
    assert row["t_resume_s"] == pytest.approx(0.5)
    assert "ended with code 1" in row["note"]


def test_a_run_that_is_late_keeps_what_its_strike_has_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A donor is noted before it is said that a fifth one makes the run whole."""

    def notes(stage: Any) -> Fault:
        stage.struck = dataclasses.replace(strike(stage), full_size=3)
        return dataclasses.replace(stage.struck, full_size=5, note="seen")

    monkeypatch.setitem(STRIKES, "kill", notes)
    row = on(Hosts(), tmp_path, Played(LateError("not in time: it was whole")), monkeypatch).repetition(TURN)
    assert (row["t_full_s"], row["seen"], row["timed_out"]) == (None, "seen", True)


@pytest.mark.parametrize("system", ["elastic", "torchrun"])
def test_a_promise_of_ours_that_a_run_breaks_fails_the_bench(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others promise something else: their rows say what they lose."""
    monkeypatch.setitem(STRIKES, "kill", strike)
    made = on(Hosts(), tmp_path, Played(), monkeypatch)
    assert made.repetition(dataclasses.replace(TURN, system=system))["samples_skipped"] == 0 and made.troubles == []
    monkeypatch.setattr("benchmarks.bench.BATCH", 25)  # one more than anybody has consumed
    assert made.repetition(dataclasses.replace(TURN, system=system))["samples_skipped"] == 4
    assert [trouble.endswith(": samples were skipped") for trouble in made.troubles] == [True] * (system == "elastic")


@pytest.mark.parametrize("failures", [1, 9])
def test_hosts_that_cannot_be_removed_end_nothing(failures: int, tmp_path: Path) -> None:
    hosts, made = Hosts(failures), Bench(Settings(), tmp_path)
    made._hosts = hosts  # type: ignore[assignment]
    made.close()
    assert hosts.closed == (failures == 1)
    assert made.troubles and made._hosts is None


def test_hosts_are_removed_by_who_is_told_to_end_while_removing_them(tmp_path: Path) -> None:
    class Interrupted(Hosts):
        def close(self) -> None:
            if self.failures:
                self.failures -= 1
                raise SystemExit(130)
            super().close()

    hosts, made = Interrupted(failures=1), Bench(Settings(), tmp_path)
    made._hosts = hosts  # type: ignore[assignment]
    with pytest.raises(SystemExit):
        made.close()
    made.close()
    assert hosts.closed == 1 and made._hosts is None


def test_a_lost_host_that_cannot_be_removed_takes_the_others_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STRIKES, "kill", strike)
    stage, hosts = Played(), Hosts()
    stage.spoiled.add("h")
    stage.finish = lambda: 0  # type: ignore[method-assign]
    made = on(hosts, tmp_path, stage, monkeypatch)
    assert made.repetition(TURN)["note"] == ""
    assert hosts.closed == 1


def test_patience_begins_when_the_strike_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It went on long ago, but the hosts have only just come back."""
    made, stage = Bench(Settings(patience_s=DEADLINE_S), tmp_path), Played()
    asked: list[bool] = []
    stage.wait_for = lambda is_so, what: asked.append(is_so())  # type: ignore[method-assign]
    fault = Fault(kind="partition", at_s=10.0, members=frozenset({1, 2, 3, 4}), victims=frozenset({4}), full_size=4)
    made._wait_until_whole(stage, fault)  # type: ignore[arg-type]
    assert asked == [False]


def test_after_the_time_that_was_set_no_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "provenance", dict)
    out = tmp_path / "made" / "out.json"
    recovery.measure(Bench(Settings(), tmp_path), [TURN], out, until_s=time.monotonic() - 1.0)
    assert recovery.NO_TIME in out.read_text()
    assert list(out.parent.iterdir()) == [out]


def test_who_can_never_play_a_scenario_says_so_also_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "provenance", dict)
    turn = dataclasses.replace(TURN, scenario="straggler", system="torchrun")
    recovery.measure(Bench(Settings(), tmp_path), [turn], tmp_path / "out.json", until_s=time.monotonic() - 1.0)
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert row["unavailable"] == row["note"] == "does nothing about slow workers"


ENDING = """
import os, signal, sys, time
from benchmarks.recovery import clean_up_when_told_to_end
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)  # whoever runs the tests may ignore it
signal.signal(signal.SIGINT, signal.default_int_handler)
clean_up_when_told_to_end()
try:
    os.kill(os.getpid(), signal.{first})
    time.sleep(60)
finally:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(os.getpid(), number)
    print("cleaned up", flush=True)
"""


@pytest.mark.parametrize("first", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_second_signal_does_not_break_the_clean_up(first: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING.format(first=first)], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 128 + getattr(signal, first), done.stderr
    assert done.stdout == "cleaned up\n"


def test_files_of_a_bench_that_was_killed_are_removed_and_those_of_a_live_one_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_MEMORY", tmp_path)
    dead, alive = tmp_path / f"recovery-{1 << 30}-x", tmp_path / f"recovery-{os.getppid()}-x"
    for folder in (dead, alive):
        folder.mkdir()
    with recovery.opened(Settings(), None):
        assert len(list(tmp_path.iterdir())) == 2
    assert list(tmp_path.iterdir()) == [alive]


def test_a_link_whose_sender_fails_is_an_error_and_leaves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[subprocess.Popen[str]] = []
    start = link._start

    def noted(*arguments: Any) -> subprocess.Popen[str]:
        made.append(start(*arguments))
        return made[-1]

    def on_this_machine(host: str, code: str, *arguments: object) -> list[str]:
        code = "raise SystemExit(1)" if code == link._SEND else code
        return [sys.executable, "-c", code, *map(str, arguments)]

    monkeypatch.setattr(link, "_on", on_this_machine)
    monkeypatch.setattr(link, "_start", noted)
    here = SimpleNamespace(name="", address="127.0.0.1")
    hosts: Any = SimpleNamespace(hosts={"a": here, "b": here})
    with pytest.raises(HostsError, match="could not be measured"):
        link.bytes_per_s(hosts, 1 << 20, timeout_s=3.0)
    assert len(made) == 2 and all(process.returncode is not None for process in made)


def test_nobody_who_trains_is_no_member(tmp_path: Path) -> None:
    stage: Any = SimpleNamespace(watch=SimpleNamespace(members={}))
    with pytest.raises(RuntimeError, match="nobody trains"):
        Stage.leader.fget(stage)  # type: ignore[attr-defined]
    stage.watch.members = {2: 7, 1: 5}
    assert Stage.leader.fget(stage) == 5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("verb", "wanted"),
    [
        ("bench", ["benchmarks.suite"]),
        ("bench-quick", ["benchmarks.suite", "--plan", "quick"]),
        ("bench-full", ["benchmarks.suite", "--storm-s", "600"]),
        ("bench-recovery", ["benchmarks.recovery", "--scenario", "all"]),
    ],
)
def test_each_verb_removes_what_a_killed_bench_has_left_and_plays_its_plan(verb: str, wanted: list[str]) -> None:
    old = [f"-o{file}" for file in (".venv/.ready", ".bench/torchft/.ready", ".bench/nvrx/.ready")]
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    made = subprocess.run(["make", "-n", *old, verb], cwd=ROOT, env=outside, capture_output=True, text=True, check=True)
    said = made.stdout  # of a make of its own, though a make runs this test
    first, last = said.splitlines()[-2:]
    assert first.endswith("-m benchmarks.hosts --clean")
    assert all(word in last.split() for word in wanted)


def test_no_scenario_is_played_twice_with_the_same_settings() -> None:
    for plan in suite.PLANS.values():
        keys = [(scenario, part.settings) for part in plan for scenario in part.scenarios]
        assert len(keys) == len(set(keys))
        assert len({part.name for part in plan}) == len(plan)
