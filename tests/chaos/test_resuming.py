"""Effect. C11: N steps, nobody is left, N more in another life: the bits of 2 N steps at once."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.control.outcome import Ending
from elastic.settings import Checkpoint, Interval
from tests.chaos import resuming
from tests.chaos.group import Story, Training, run
from tests.chaos.saboteur import BATCH, SAMPLES, Sabotage
from tests.chaos.test_crashes import DRIVER, first_life

pytestmark = pytest.mark.timeout(180)

HALF = 14
STEPS = 2 * HALF
FLOAT32 = {"dtype": torch.float32}
REPLICAS = "/elastic.cursor/pace/replicas"
EPOCH = SAMPLES // BATCH  # in steps; lies in the second life


def training(folder: Path, options: dict[str, Any], keep: bool = False) -> Training:
    memory = folder / "memory"
    memory.mkdir(parents=True, exist_ok=True)
    checkpoint = Checkpoint(local_interval=Interval(steps=1), memory=str(memory))
    at_end = (lambda name: None) if keep else None
    return Training(function=resuming.train, options=options, checkpoint=checkpoint, at_end=at_end)


def tensors(tree: Any, path: str = "") -> dict[str, Any]:
    """Every leaf by its path."""
    if isinstance(tree, dict):
        return {key: leaf for name, one in tree.items() for key, leaf in tensors(one, f"{path}/{name}").items()}
    if isinstance(tree, list | tuple):
        return {key: leaf for n, one in enumerate(tree) for key, leaf in tensors(one, f"{path}/{n}").items()}
    return {path: tree}


def kept(story: Story) -> dict[str, Any]:
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    assert len({line["digest"] for line in story.of("finished")}) == 1
    return tensors(torch.load(story.folder / resuming.KEPT, weights_only=True))


def assert_equal_to_the_bit(one: Story, other: Story) -> None:
    """Parameters, moments, scheduler, scaler, the user's own state, cursor, and what every generator draws next."""
    ours, theirs = kept(one), kept(other)
    assert ours.keys() == theirs.keys()
    assert any("exp_avg_sq" in path for path in ours) and any("scheduler" in path for path in ours)
    assert theirs["/scaler/scale"] > resuming.SCALE and theirs["/scaler/_growth_tracker"] > 0
    assert len([path for path in theirs if path.startswith("/diary/all/")]) == STEPS
    ours[REPLICAS] = theirs[REPLICAS]  # the only thing that may differ
    for path, value in theirs.items():
        same = torch.equal(ours[path], value) if isinstance(value, torch.Tensor) else ours[path] == value
        assert same, path


@pytest.mark.parametrize(
    ("options", "replicas"),
    [
        pytest.param({}, 2, id="as many replicas"),
        pytest.param({"reproducible": True}, 3, id="one replica more", marks=pytest.mark.slow),
        pytest.param({"reproducible": True}, 1, id="one replica less", marks=pytest.mark.slow),
    ],
)
def test_c11_two_halves_are_the_whole_to_the_bit(options: dict[str, Any], replicas: int, tmp_path: Path) -> None:
    options = {**FLOAT32, **options}
    usual: dict[str, Any] = {"steps": STEPS, "pause_s": 0.0}
    whole = run(
        tmp_path / "whole", replicas=(2, 2), training=Training(function=resuming.train, options=options), **usual
    )
    first = tmp_path / "life"
    run(first, replicas=(2, 2), training=training(first, options, keep=True), **usual | {"steps": HALF})
    for lines in first.glob("*.jsonl"):
        lines.unlink()
    second = run(first, replicas=(replicas, replicas), training=training(first, options), **usual)
    (fork,) = second.finished.state.forks
    assert fork.step == HALF - 1 < EPOCH < STEPS and second.finished.state.world_sizes == (replicas,)
    assert_equal_to_the_bit(second, whole)
    steps = range(fork.step + 1, STEPS)
    assert samples(second, steps) == samples(whole, steps)


def drive(pipe: Any, folder: Path, plan: list[Sabotage]) -> None:
    (folder / f"{DRIVER}.pid").write_text(str(os.getpid()))
    run(folder, *plan, replicas=(2, 2), training=training(folder, FLOAT32, keep=True), steps=STEPS, pause_s=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["forward", "in-apply"])
def test_c11_all_are_killed_in_a_step_and_the_end_is_the_same_to_the_bit(point: str, tmp_path: Path) -> None:
    usual: dict[str, Any] = {"replicas": (2, 2), "steps": STEPS, "pause_s": 0.0}
    whole = run(tmp_path / "whole", training=Training(function=resuming.train, options=FLOAT32), **usual)
    life, plan = tmp_path / "life", [Sabotage(point=point, rank=0, step=HALF, victim=DRIVER)]
    life.mkdir()
    first_life(life, plan, drive)
    second = run(life, training=training(life, FLOAT32), **usual)
    assert second.fired == {sabotage.name for sabotage in plan}
    (fork,) = second.finished.state.forks
    assert 0 <= fork.step < HALF and second.finished.state.world_sizes == (2,)
    assert_equal_to_the_bit(second, whole)


def samples(story: Story, steps: range) -> Counter[tuple[int, int]]:
    """(step, sample) -> times."""
    lines = (line for line in story.of("consumed") if line["step"] in steps)
    return Counter((line["step"], sample) for line in lines for sample in line["ids"])
