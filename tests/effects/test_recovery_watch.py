"""Effect. What the observer of the recovery benchmark reads, and what the run is told."""

import json
import os
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.stage import QUIET_S, Stage, is_called
from benchmarks.training import BATCH, MICRO_BATCHES, MODEL, Ballast, Job, Rises, new_model
from benchmarks.watch import Watch
from examples.bytes_gpt import loss_fn


def line(event: str, pid: int, **facts: object) -> str:
    return json.dumps({"event": event, "t": 1.0, "pid": pid, **facts}) + "\n"


def committed(pid: int, rank: int, step: int, generation: int = 1) -> str:
    return line("committed", pid, rank=rank, step=step, generation=generation, attempt=1, loss=0.0)


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    watch, path = Watch(tmp_path), tmp_path / "w0.jsonl"
    whole, half = committed(7, 0, 1), committed(7, 0, 2)
    path.write_text(whole + half[:20])
    watch.look()
    assert watch.step == 1
    path.write_text(whole + half)
    watch.look()
    assert watch.step == 2
    assert len(watch.lines) == 2


def test_what_is_written_later_and_by_those_who_come_later_is_seen(tmp_path: Path) -> None:
    watch, first, second = Watch(tmp_path), tmp_path / "w0.jsonl", tmp_path / "w1.jsonl"
    for step in range(3):
        for path in (first, second)[: step + 1]:
            with path.open("a") as file:
                file.write(committed(7, 0, step))
        watch.look()
        watch.look()
    assert [one["step"] for one in watch.lines] == [0, 1, 1, 2, 2]
    watch.close()


@pytest.mark.parametrize(
    ("command_line", "title", "is_so"),
    [
        ("ray::Guard\0", "ray::Guard", True),
        ("ray::Guard.run\0", "ray::Guard", True),
        ("ray::GuardDog\0", "ray::Guard", False),
        ("ray::Worker.stand_by\0", "ray::Worker.stand_by", True),
        ("ray::Worker\0", "ray::Worker.stand_by", False),
        ("ray::Worker.do\0", "ray::Worker.stand_by", False),
        ("/v/bin/python\0/v/bin/torchft_lighthouse\0--bind=[::]:1\0", "torchft_lighthouse", True),
        ("python\0-m\0torch.distributed.run\0--nnodes=1:2\0", "torch.distributed.run", True),
        ("raylet\0--store_socket_name=/tmp/s\0", "--store", False),
    ],
)
def test_a_process_is_known_by_its_title_or_a_whole_argument(command_line: str, title: str, is_so: bool) -> None:
    assert is_called(command_line, title) == is_so


def test_members_are_those_of_the_newest_generation(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    assert (watch.step, watch.members) == (-1, {})
    (tmp_path / "w.jsonl").write_text("".join(committed(pid, rank, 9) for rank, pid in enumerate((11, 12, 13))))
    watch.look()
    assert watch.members == {0: 11, 1: 12, 2: 13}
    with (tmp_path / "w.jsonl").open("a") as file:
        file.write(committed(12, 0, 4, generation=2) + committed(13, 1, 4, generation=2))  # back to a checkpoint
    watch.look()
    assert watch.members == {0: 12, 1: 13}
    assert watch.step == 4


def test_only_processes_that_are_there_live(tmp_path: Path) -> None:
    ids = {"model_id": 1, "optimizer_id": 2}
    (tmp_path / "w.jsonl").write_text(line("started", os.getpid(), **ids) + line("started", 1 << 30, **ids))
    watch = Watch(tmp_path)
    watch.look()
    assert watch.living == {os.getpid()}


def test_a_job_is_the_same_after_its_file(tmp_path: Path) -> None:
    job = Job(name="j", folder=str(tmp_path), address="a:1", workers=(2, 4), state_bytes=5)
    assert Job.read(str(job.write())) == job


def test_a_run_ends_at_the_step_it_was_told(tmp_path: Path) -> None:
    job = Job(name="j", folder=str(tmp_path), address="a:1", workers=(2, 4))
    assert not job.is_over(10**9)
    job.stop_at(12)
    assert not job.is_over(11)
    assert job.is_over(12)


def test_what_is_trained_fits_together() -> None:
    """A step is cut into whole micro-batches, and a state that was handed over is the state."""
    assert BATCH % MICRO_BATCHES == 0
    index, x, y = Rises()[3]
    assert index == 3
    assert loss_fn(new_model(0), x[None], y[None]).item() > 0
    assert f" {sum(one.numel() for one in new_model(0).parameters()):,} parameters" in MODEL
    size = (16 << 20) + 3
    ours, theirs = Ballast(size), Ballast(size)
    assert sum(tensor.numel() for tensor in ours.state_dict().values()) == size
    theirs.state_dict()["layer1"].fill_(9)
    ours.load_state_dict(theirs.state_dict())
    assert ours.state_dict()["layer1"].tolist() == [9, 9, 9]


@pytest.mark.parametrize(
    ("is_prepared", "within_s", "looks"),
    [(True, 100.0, 4 + QUIET_S), (False, 100.0, 0), (True, 4.0, 0)],
    ids=["until nobody prepares itself", "at once", "not so long that the run would be late"],
)
def test_a_run_is_broken_once_its_system_is_prepared(
    is_prepared: bool, within_s: float, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def titled(_: Stage, title: str) -> list[int]:
        """The second and the fourth look find somebody: who comes next begins once that one is done."""
        asked.append(title)
        return [7] * (len(asked) in (2, 4))

    monkeypatch.setattr(Stage, "wait_for", lambda self, is_so, what: None)
    monkeypatch.setattr(Stage, "titled", titled)
    parts: dict[str, Any] = {"hosts": None, "job": SimpleNamespace(spares=0), "chance": random.Random(0)}
    system: Any = SimpleNamespace(preparing="ray::Worker.stand_by")
    stage = Stage(system=system, size=1, deadline_s=time.monotonic() + within_s, **parts)
    watch: Any = SimpleNamespace(step=0, members={}, living=set())
    stage.watch = watch
    stage.wait_until_calm(0.0, is_prepared)
    assert asked == [system.preparing] * looks
