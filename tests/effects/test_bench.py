"""Effect. The bench goes on whatever becomes of one run, and ends cleanly when it is told to."""

import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import bench, link, recovery, suite
from benchmarks.bench import Bench, Settings
from benchmarks.remains import HostsError
from benchmarks.rows import Fault
from benchmarks.scenarios import STRIKES
from benchmarks.stage import LateError, RunEndedError, Stage
from benchmarks.systems import TUNED
from benchmarks.turns import Turn
from elastic.demo.steplog import StepLog, collect

ROOT = Path(__file__).resolve().parents[2]
TURN = Turn(scenario="kill", settings=TUNED, system="elastic", number=0)
DEADLINE_S = 60.0


class Hosts:
    """Cannot be closed so many times."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.closed = failures, 0
        self.slots = {"h": 2}

    def close(self) -> None:
        if self.failures:
            self.failures -= 1
            raise HostsError("would not die")
        self.closed += 1

    def lose(self, name: str) -> None:
        raise HostsError(f"{name} cannot be removed")


def line(event: str, at_s: float, pid: int, step: int, **facts: Any) -> dict[str, Any]:
    return {"event": event, "t": at_s, "pid": pid, "step": step, "generation": 1, "attempt": 1, **facts}


class Played:
    """Stands for a stage: a run of four that trains until 10.0, and of which one is killed then."""

    def __init__(self, last: Exception | None = None) -> None:
        self.system = SimpleNamespace(why_small=lambda kind: "", on_ray=True)
        self.job = SimpleNamespace(step_s=0.0, state_bytes=0, seed=0)
        self.chance, self.spoiled, self.last_word = random.Random(0), set[str](), "a last word"
        self.struck: Fault | None = None
        self.watch = SimpleNamespace(log=self.log, look=lambda: None)
        self._last = last

    def log(self, until_s: float = math.inf) -> StepLog:
        lines = [
            line(event, at_s, pid, step, ids=[], loss=0.0)
            for step, at_s in enumerate((8.0, 9.0, 10.5, 11.5))
            for pid in ((1, 2, 3, 4) if at_s < 10.0 else (1, 2, 3))
            for event in ("consumed", "committed")
        ]
        return collect(one for one in lines if one["t"] < until_s)

    def __enter__(self) -> "Played":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def wait_until_calm(self, calm_s: float) -> None:
        pass

    def allow_s(self, seconds: float) -> None:
        pass

    def wait_s(self, seconds: float) -> None:
        pass

    def wait_for(self, is_so: Any, what: str) -> None:
        if self._last is not None:
            raise self._last

    def finish(self) -> int:
        raise LateError("not in time: the end of the run")


def strike(stage: Any) -> Fault:
    members = frozenset({1, 2, 3, 4})
    stage.struck = Fault(kind="kill", at_s=10.0, members=members, victims=frozenset({4}), full_size=4)
    return stage.struck


def on(hosts: Any, tmp_path: Path, stage: Any, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(Settings(), tmp_path)
    made._hosts = hosts

    def stage_of(*_: Any, **__: Any) -> Any:
        if isinstance(stage, Exception):
            raise stage
        return stage

    monkeypatch.setattr(made, "_stage", stage_of)
    return made


@pytest.mark.parametrize("error", [HostsError("a raylet did not start"), ZeroDivisionError("float"), KeyError(0)])
def test_a_run_that_cannot_begin_has_a_row_and_the_hosts_are_made_anew(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts()
    made = on(hosts, tmp_path, error, monkeypatch)
    row = made.repetition(TURN)
    assert str(error) in row["note"] and not row["discarded"]
    assert hosts.closed == 1 and made._hosts is None
    assert len(made.troubles) == 1


@pytest.mark.parametrize("error", [RunEndedError("the run ended with code 1"), KeyError("nobody")])
def test_what_was_measured_before_something_went_wrong_is_kept(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STRIKES, "kill", strike)
    made = on(Hosts(), tmp_path, Played(error), monkeypatch)
    row = made.repetition(TURN)
    assert row["t_resume_s"] == pytest.approx(0.5)
    assert (row["survivors_kept"], row["steps"]) == (3, 4)
    assert "a last word" in row["note"]


def test_a_strike_that_fails_half_way_keeps_what_the_run_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(stage: Any) -> Fault:
        strike(stage)
        raise RunEndedError("the run ended with code 1 before 15 s had passed")

    monkeypatch.setitem(STRIKES, "kill", fails)
    row = on(Hosts(), tmp_path, Played(), monkeypatch).repetition(TURN)
    assert row["t_resume_s"] == pytest.approx(0.5)
    assert "ended with code 1" in row["note"]


@pytest.mark.parametrize("failures", [1, 9])
def test_hosts_that_cannot_be_removed_end_nothing(failures: int, tmp_path: Path) -> None:
    hosts, made = Hosts(failures), Bench(Settings(), tmp_path)
    made._hosts = hosts  # type: ignore[assignment]
    made.close()
    assert hosts.closed == (failures == 1)
    assert made.troubles and made._hosts is None


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


def test_a_fault_that_never_fires_has_a_row_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "provenance", dict)
    made = Bench(Settings(), tmp_path)
    monkeypatch.setattr(made, "repetition", lambda turn: bench.blank(turn) | {"discarded": "the fault hit nobody"})
    recovery.measure(made, [TURN], tmp_path / "out.json")
    assert "in none of 3 tries" in (tmp_path / "out.json").read_text()


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
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
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
    ("verb", "wanted"), [("bench", []), ("bench-quick", ["--plan", "quick"]), ("bench-full", ["--storm-s", "600"])]
)
def test_each_verb_removes_what_a_killed_bench_has_left_and_plays_its_plan(verb: str, wanted: list[str]) -> None:
    old = [f"-o{file}" for file in (".venv/.ready", ".bench/torchft/.ready", ".bench/nvrx/.ready")]
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    made = subprocess.run(["make", "-n", *old, verb], cwd=ROOT, env=outside, capture_output=True, text=True, check=True)
    said = made.stdout  # of a make of its own, though a make runs this test
    first, last = said.splitlines()[-2:]
    assert first.endswith("-m benchmarks.hosts --clean")
    words = last.split()
    assert "benchmarks.suite" in words and all(word in words for word in wanted)


def test_no_scenario_is_played_twice_with_the_same_settings() -> None:
    for plan in suite.PLANS.values():
        keys = [(scenario, part.settings) for part in plan for scenario in part.scenarios]
        assert len(keys) == len(set(keys))
        assert len({part.name for part in plan}) == len(plan)
