"""Effect. Peers of the recovery benchmark: how their processes are kept running, and each of them once."""

import json
import math
import os
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks import hosts
from benchmarks.peers.launch import Host, Launcher, Part, end_all, marked, read_hosts
from benchmarks.peers.replica import Replica
from benchmarks.recovery import Bench, Settings
from benchmarks.systems import SYSTEMS, TUNED
from benchmarks.training import BATCH, Job
from benchmarks.turns import Turn
from benchmarks.watch import Watch

DEADLINE_S = 60.0


def job_in(folder: Path, **knobs: object) -> Job:
    job = Job(name="j", folder=str(folder), address="a:1", workers=(2, 4), step_s=0.0, knobs=knobs)
    job.log_folder.mkdir(parents=True, exist_ok=True)
    return job


def shell(text: str) -> Part:
    return Part(name="part", command=lambda _: ["sh", "-c", text], slots=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hosts.json").write_text("{}")
    return tmp_path


def test_what_ends_with_an_error_is_started_again_with_nothing_left_of_it(folder: Path) -> None:
    """The first time it leaves a child behind, which must be gone the second time."""
    left = f"sleep 600 & echo $! > {folder}/child; touch {folder}/tried; exit 1"
    then = f"! test -d /proc/$(cat {folder}/child) && touch {folder}/final.pt"
    launcher = Launcher(folder, [shell(f"if test -e {folder}/tried; then {then}; else {left}; fi")], {})
    assert launcher.run() == 0


def test_a_group_of_fixed_members_that_has_ended_has_failed(folder: Path) -> None:
    part = Part(name="part", command=lambda _: ["false"], slots=0, returns=False)
    assert Launcher(folder, [part], {}).run() == 1


def test_what_has_no_place_waits_for_one(folder: Path) -> None:
    launcher = Launcher(folder, [Part(name="part", command=lambda _: ["true"])], {})
    launcher._look()
    assert not launcher._running
    assert read_hosts(folder / "hosts.json") == []
    (folder / "hosts.json").write_text(json.dumps({"h": {"address": "10.0.0.1", "slots": 2}}))
    assert read_hosts(folder / "hosts.json") == [Host(name="h", address="10.0.0.1", slots=2)]


def test_processes_of_a_run_are_found_by_their_mark_and_ended(tmp_path: Path) -> None:
    mark = f"{tmp_path}/"
    child = subprocess.Popen(["sleep", "600"], env=os.environ | {"ELASTIC_BENCH_JOB": f"{mark}part/"})
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while child.pid not in marked(mark) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert marked(mark) == {child.pid}
        end_all(mark)
        assert child.wait(DEADLINE_S) == -9
    finally:
        child.kill()
        child.wait()


def test_all_workers_together_take_each_sample_of_a_step_once_and_those_of_the_next_later(tmp_path: Path) -> None:
    replica = Replica(job_in(tmp_path, checkpoint_steps=1), "w")
    for workers in (4, 3):
        for part in range(workers):
            loss = replica.backward(replica.model, part, part, workers)
            assert math.isfinite(loss)
        replica.committed(0, 0.0)
    watch = Watch(tmp_path / "steps")
    watch.look()
    consumed = watch.log().consumed
    ids = [set(consumed[step, 0, 1]) for step in (0, 1)]
    assert len(ids[0]) == len(ids[1]) == len(ids[0] | ids[1]) / 2 == BATCH


def test_a_checkpoint_is_the_state(tmp_path: Path) -> None:
    ours, theirs = (Replica(job_in(tmp_path, checkpoint_steps=2), name) for name in "ab")
    ours.backward(ours.model, 0, 0, 1)
    ours.optimizer.step()
    assert ours.is_due()
    ours.committed(0, 0.0)
    assert not ours.is_due()
    ours.save(tmp_path / "state.pt")
    assert theirs.load(tmp_path / "state.pt")
    assert theirs.step == 1
    assert all((a == b).all() for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True))
    assert not theirs.load(tmp_path / "nothing.pt")


@pytest.mark.slow
@pytest.mark.skipif(bool(hosts.why_not()), reason=hosts.why_not())
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["torchrun", "ray-train", "torchft", "nvrx-inprocess"])
def test_a_peer_goes_on_after_a_kill(name: str, tmp_path: Path) -> None:
    """One repetition, tuned; the figures are the benchmark's affair, that there are any is this test's."""
    if reason := SYSTEMS[name].why_not("kill"):
        pytest.skip(reason)
    bench = Bench(Settings(deadline_s=120.0, patience_s=20.0), tmp_path)
    try:
        row = bench.repetition(Turn(scenario="kill", settings=TUNED, system=name, number=0))
    finally:
        bench.close()
    assert (row["note"], row["discarded"]) == ("", "")
    assert row["t_resume_s"] > 0
    assert row["hit"] == 1
