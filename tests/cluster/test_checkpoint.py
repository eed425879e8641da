"""Effect. Checkpoints of real runs: on disk and at peers; a next life, a lost cluster's memory, and a rewind."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.checkpoint.vault import open_vault
from elastic.control.state import RunState
from tests.cluster.test_fit import committed_samples
from tests.cluster.training import At, read_lines, regression
from tests.lines import whole_lines

pytestmark = pytest.mark.timeout(300)

STEPS = 40
SLOW_STEPS = 400  # there is more than a minute in which something can be done to them
CLI = "from elastic.cli import main\nmain()\n"
EVERY = elastic.Interval(steps=1)


def checkpoint(folder: Path, **settings: Any) -> elastic.Checkpoint:
    store = {"persistent": str(folder / "store"), "persistent_interval": EVERY}
    return elastic.Checkpoint(**{"local_interval": EVERY, **store, **settings})


def fit(
    folder: Path, name: str, kept: elastic.Checkpoint, steps: int = STEPS, train_fn: Any = None, **options: Any
) -> Any:
    folder.mkdir(exist_ok=True)
    scaling = elastic.Scaling(num_dp_replicas=(1, 2), resources_per_worker={"CPU": 1})
    limits = elastic.Limits(start_timeout_s=120, hang_floor_s=30)
    settings = {"scaling": scaling, "limits": limits, "name": name, "checkpoint": kept, "run_dir": folder / "run"}
    return elastic.fit(train_fn or regression(folder, steps=steps), **{**settings, **options})


def rungs(folder: Path) -> list[dict[str, Any]]:
    journal = folder / "run" / "journal.jsonl"
    whole = whole_lines(journal) if journal.exists() else []
    return [line for line in whole if line.get("checkpoint") == "CheckpointRung"]


def replicated(folder: Path) -> list[int]:
    """Steps that two nodes have kept, as far as the journal is written."""
    return [line["commit"]["step"] for line in rungs(folder) if line["rung"] == "replicated"]


def test_the_last_step_is_durable_and_the_next_life_goes_on_from_it(hosts: Any, tmp_path: Path) -> None:
    """Twice half of the steps is once all of them; to the bit: test_c11_two_halves_are_the_whole_to_the_bit."""
    half = fit(tmp_path / "half", "half", checkpoint(tmp_path / "half"), steps=STEPS // 2)
    durable = open_vault(str(tmp_path / "half" / "store"), "half").commits()
    assert (half.steps, durable[0].commit.step) == (STEPS // 2, STEPS // 2 - 1)
    assert {line["rung"] for line in rungs(tmp_path / "half")} >= {"local", "durable"}
    rest = fit(tmp_path / "half", "half", checkpoint(tmp_path / "half"))
    assert rest.steps == STEPS
    assert set(committed_samples(tmp_path / "half").values()) == {1}


def test_all_workers_are_killed_and_their_memory_is_enough(hosts: Any, tmp_path: Path) -> None:
    """Once it was told that two nodes keep a step: replicas of a busy host begin long after its workers."""
    killed = tmp_path / "killed"

    def kill(state: RunState) -> None:
        for member in state.members:
            os.kill(member.pid, signal.SIGKILL)
        killed.touch()

    saboteur = At(10, kill, is_time=lambda: replicated(tmp_path))
    train_fn = regression(tmp_path, steps=SLOW_STEPS, pause_s=0.05, until=killed)
    kept = checkpoint(tmp_path, persistent=None)
    result = fit(tmp_path, "mass", kept, train_fn=train_fn, callbacks=[saboteur])
    assert saboteur.fired_s is not None
    assert result.steps == SLOW_STEPS
    assert len([line for line in read_lines(tmp_path) if line["event"] == "started"]) >= 3
    journal = whole_lines(tmp_path / "run" / "journal.jsonl")
    restored = [line for line in journal if line.get("event") == "Restored"]
    told = [line for line in rungs(tmp_path) if line["rung"] == "replicated" and line["t"] < restored[0]["t"]]
    assert all(line["commit"]["step"] >= max(one["commit"]["step"] for one in told) for line in restored)


@pytest.mark.slow
def test_what_the_last_holder_has_is_saved_at_once_when_it_is_told_to_go(hosts: Any, tmp_path: Path) -> None:
    """No interval is due: the step for which it stops is durable before it is killed."""
    never = elastic.Interval(seconds=1000)
    kept = checkpoint(tmp_path, local_interval=never, persistent_interval=never, peers=0)
    told: dict[str, int] = {}

    def end(pid: int, after: int) -> None:
        store, deadline_s = open_vault(str(tmp_path / "store"), "alone"), time.monotonic() + 120
        while not any(one.commit.step >= after for one in store.commits()):
            assert time.monotonic() < deadline_s, "nothing was saved"
            time.sleep(0.05)
        told["durable"] = max(one.commit.step for one in store.commits())
        os.kill(pid, signal.SIGKILL)

    def notice(state: RunState) -> None:
        (member,) = state.members
        os.kill(member.pid, signal.SIGTERM)
        told["noticed"] = state.published
        ending.submit(end, member.pid, state.published)

    saboteur = At(20, notice)
    with ThreadPoolExecutor(1) as ending:
        scaling = elastic.Scaling(num_dp_replicas=1, resources_per_worker={"CPU": 1})
        result = fit(tmp_path, "alone", kept, steps=600, scaling=scaling, callbacks=[saboteur])
    assert result.steps == 600 and 20 <= told["noticed"] <= told["durable"]
    journal = whole_lines(tmp_path / "run" / "journal.jsonl")
    restored = [line["commit"]["step"] for line in journal if line.get("event") == "Restored"]
    assert restored and all(step >= told["durable"] for step in restored)


DRIVER = """
import sys
from pathlib import Path
import ray
from ray import cloudpickle
from tests.cluster import test_checkpoint, training
cloudpickle.register_pickle_by_value(training)
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
folder = Path(sys.argv[2])
test_checkpoint.fit(folder, "lost", test_checkpoint.checkpoint(folder, persistent=None), steps=4000)
"""


@pytest.mark.slow
def test_the_driver_is_killed_and_its_run_goes_on_from_the_memory_of_nodes(hosts: Any, tmp_path: Path) -> None:
    """Workers of the first life wait for a driver; the next one ends them, and takes up what is kept of their steps."""
    command = [sys.executable, "-c", DRIVER, hosts.address, str(tmp_path)]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 120
        while not (any(line.get("step", -1) > 20 for line in read_lines(tmp_path)) and replicated(tmp_path)):
            assert time.monotonic() < deadline_s and driver.poll() is None
            time.sleep(0.1)
    finally:
        driver.kill()
        driver.wait()
    before = max(line["step"] for line in read_lines(tmp_path) if line["event"] == "committed")
    promised = max(replicated(tmp_path))
    result = fit(tmp_path, "lost", checkpoint(tmp_path, persistent=None), steps=before + 200)
    assert result.steps == before + 200
    journal = whole_lines(tmp_path / "run" / "journal.jsonl")
    restored = [line for line in journal if line.get("event") == "Restored"]
    lines = [line for line in read_lines(tmp_path) if line["event"] == "committed"]
    held = max(line["step"] for line in lines if line["t"] < restored[0]["t"])  # they trained on without a driver
    assert restored and all(promised <= line["commit"]["step"] <= held for line in restored)


@pytest.mark.slow
def test_a_run_is_sent_back_from_the_command_line(hosts: Any, tmp_path: Path) -> None:
    """To the oldest step that is durable by then."""
    store, told = open_vault(str(tmp_path / "store"), "back"), list[tuple[int, subprocess.CompletedProcess[str]]]()

    def ask() -> None:
        deadline_s = time.monotonic() + 60
        while not (durable := store.commits()):
            assert time.monotonic() < deadline_s, "nothing became durable"
            time.sleep(0.1)
        step = durable[-1].commit.step
        command = [sys.executable, "-c", CLI, "rewind", "back", "--to-step", str(step), "--skip-batches", "300:302"]
        command += ["--address", hosts.address]
        told.append((step, subprocess.run(command, capture_output=True, text=True, timeout=120)))

    asking = threading.Thread(target=ask)
    saboteur = At(60, lambda state: asking.start())
    kept = checkpoint(tmp_path, keep=elastic.Keep(last=50))
    result = fit(tmp_path, "back", kept, steps=600, callbacks=[saboteur])
    asking.join()
    ((step, asked),) = told
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout == f"back goes on after step {step}\n"
    assert result.steps == 600
    steps = [report.commit.step for report in saboteur.reports]
    turn = next(place for place, (one, then) in enumerate(zip(steps, steps[1:], strict=False)) if then <= one) + 1
    assert steps[turn] == step + 1
    assert [report.commit.step for report in saboteur.reports[turn:] if report.skipped] == [300, 301]
    started = [line for line in read_lines(tmp_path) if line["event"] == "started"]
    assert len(started) == 2, "nobody starts anew"


@pytest.mark.slow
def test_c23_sigterm_in_the_middle_of_an_upload(hosts: Any, tmp_path: Path) -> None:
    """A worker is told to go while its step is on its way up: it leaves between two steps, and the upload arrives."""
    store, caught = open_vault(str(tmp_path / "store"), "told"), list[str]()

    def begun() -> set[str]:
        names = {path.name for path in (tmp_path / "store" / "told" / "leases").glob("*")}
        return names - {one.name for one in store.commits(also_void=True)}

    def tell(state: RunState) -> None:
        deadline_s = time.monotonic() + 60
        while not (half := begun()):
            assert time.monotonic() < deadline_s, "nothing is being uploaded"
            time.sleep(0.01)
        caught.extend(half)
        os.kill(state.members[0].pid, signal.SIGTERM)

    saboteur = At(10, tell)
    kept = checkpoint(tmp_path, upload_bytes_per_s=2000, keep=elastic.Keep(last=1000))  # seconds for each
    result = fit(tmp_path, "told", kept, steps=200, callbacks=[saboteur])
    assert saboteur.fired_s is not None and result.steps == 200
    journal = whole_lines(tmp_path / "run" / "journal.jsonl")
    assert [line["reason"] for line in journal if line.get("event") == "WorkerNotice"] == ["SIGTERM"]
    assert not [line for line in journal if line.get("event") in ("CollectiveBroken", "Restored")]
    durable = store.commits()
    assert set(caught) <= {one.name for one in durable}, "an upload was broken off"
    assert durable[0].commit.step == 199
    assert set(committed_samples(tmp_path).values()) == {1}


@pytest.mark.slow
def test_a_run_goes_on_from_the_disks_of_its_nodes(hosts: Any, tmp_path: Path) -> None:
    """When it ended, its slots were removed and its actors ended, as if all nodes had been switched off."""
    kept = checkpoint(tmp_path, persistent=None, disk=str(tmp_path / "disk"), peers=0)
    fit(tmp_path, "disks", kept, steps=STEPS // 2)
    assert not list(Path("/dev/shm").glob("elastic-disks@*"))
    rest = fit(tmp_path, "disks", kept)
    assert rest.steps == STEPS
    journal = whole_lines(tmp_path / "run" / "journal.jsonl")
    restored = [line for line in journal if line.get("event") == "Restored"]
    assert restored and {line["commit"]["step"] for line in restored} == {STEPS // 2 - 1}
    assert all(place.startswith("disk ") for line in restored for place in line["places"]), restored
    assert {line["commit"]["step"] for line in journal if line.get("checkpoint") == "DiskStep"} >= {STEPS - 1}
    assert set(committed_samples(tmp_path).values()) == {1}
