"""Effect. Peers of the recovery benchmark: how their processes are kept running, and each of them once."""

import json
import math
import os
import subprocess
import time
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest

from benchmarks import hosts
from benchmarks.peers.launch import Host, Launcher, Part, end_all, marked, read_hosts
from benchmarks.peers.replica import Replica
from benchmarks.rows import recovery
from benchmarks.scenarios import STRIKES
from benchmarks.stage import Stage
from benchmarks.systems import SYSTEMS, TUNED
from benchmarks.training import BATCH, Job
from benchmarks.turns import misfire
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
    launcher = Launcher(folder, [shell(f"if test -e {folder}/tried; then {then}; else {left}; fi")])
    assert launcher.run() == 0
    assert launcher._running["part"].wait(DEADLINE_S) == 0  # it may still be on its way out


def test_a_group_of_fixed_members_that_has_ended_has_failed(folder: Path) -> None:
    part = Part(name="part", command=lambda _: ["false"], slots=0, returns=False)
    assert Launcher(folder, [part]).run() == 1


def test_what_has_no_place_waits_for_one(folder: Path) -> None:
    launcher = Launcher(folder, [Part(name="part", command=lambda _: ["true"])])
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


class ThisMachine:
    """Instead of hosts: what a stage asks them, for a fault that needs none."""

    hosts: ClassVar = {"": hosts.Host("", "127.0.0.1")}
    slots: ClassVar = {"": 8}
    environment: ClassVar = os.environ | {"PYTHONPATH": os.getcwd()}


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["torchrun", "torchft", "nvrx-inprocess"])
def test_a_peer_goes_on_after_a_kill(name: str, tmp_path: Path) -> None:
    """The figures are the benchmark's affair; that there are any is this test's."""
    system = SYSTEMS[name]
    if reason := system.why_not("kill"):
        pytest.skip(reason)
    job = Job(name="j", folder=str(tmp_path), address="127.0.0.1:1", workers=(2, 4), knobs=system.knobs(TUNED))
    late_s = time.monotonic() + 2 * DEADLINE_S
    with Stage(system=system, hosts=ThisMachine(), job=job, size=4, deadline_s=late_s, chance=Random(0)) as stage:
        stage.wait_until_calm()
        stage.allow_s(DEADLINE_S)
        fault = STRIKES["kill"](stage)
        stage.wait_for(lambda: recovery(stage.watch.log(), fault)["t_resume_s"] is not None, "it went on")
        assert stage.finish() == 0
    assert misfire(stage.watch.log(), fault) == ""
    assert set(stage.watch.log().digests) & set(stage.watch.members.values())
    assert not marked(f"{tmp_path}/")
