"""Effect. What people do in a step, with a worker killed in the middle of it: the answer is that of an unbroken run."""

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from elastic.control import events as ev
from elastic.control.outcome import Ending
from elastic.settings import Limits
from tests.chaos.group import (
    Story,
    Training,
    assert_exactly_once,
    assert_no_stable_step_lost,
    assert_same_answer,
    assert_survivors_never_restart,
    read,
    run,
    thinned,
)
from tests.chaos.recipes import RECIPES, train, train_in_code
from tests.chaos.saboteur import BATCH, Sabotage, Samples
from tests.effects.solo import Solo

pytestmark = pytest.mark.timeout(180)
STEPS = 8
IN_MID_STEP = [Sabotage(point="pending", rank=1, step=4, delay_s=0.1)]  # the others wait for it in their reductions

STORIES = {
    **{name: (name, IN_MID_STEP) for name in RECIPES if name not in ("SynchronizedNorm",)},
    "Talking, while others wait in a collective": ("Talking", [Sabotage(point="talking", rank=2, step=4)]),
    "Measured, while others wait in a metric": ("Measured", [Sabotage(point="talking", rank=1, step=4)]),
    "Evaluated, while others wait for its result": ("Evaluated", [Sabotage(point="evaluating", rank=2, step=3)]),
    "Evaluated, after the last step": ("Evaluated", [Sabotage(point="evaluating", rank=1, step=STEPS)]),
    "Adversaries, between the two updates": (
        "Adversaries",
        [Sabotage(point="reduced", rank=2, step=8), Sabotage(point="stall", rank=1, step=8, delay_s=0.5)],
    ),
}


@pytest.mark.parametrize(("recipe", "plan"), thinned(STORIES, 4))
def test_killed_in_mid_step(recipe: str, plan: list[Sabotage], tmp_path: Path) -> None:
    clean = alone(recipe, tmp_path / "clean")
    story = run(tmp_path / "story", *plan, steps=STEPS, training=Training(function=partial(train, recipe=recipe)))
    updates = STEPS * RECIPES[recipe].phases
    assert_struck(story, *plan)
    assert_no_stable_step_lost(story, updates)
    assert_same_answer(story, clean)
    assert_exactly_once(story, clean, updates)
    assert_survivors_never_restart(story)
    (found,) = (line["found"] for line in clean.of("finished"))
    for line in story.of("finished"):
        assert line["found"] == pytest.approx(found, rel=1e-9)


@pytest.mark.timeout(600)  # half a minute of a processor that is somebody's own; the others wait for the same code
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ to make code for processors")
def test_killed_in_mid_step_where_the_model_is_compiled_to_code(tmp_path: Path) -> None:
    """The answer is that of the model whose forward and backward were only traced."""
    clean = alone("Compiled", tmp_path / "clean")
    story = run(tmp_path / "story", *IN_MID_STEP, steps=STEPS, training=Training(function=train_in_code))
    assert_struck(story, *IN_MID_STEP)
    assert list((story.folder / "code").rglob("*.so")), "nothing was compiled"
    assert_no_stable_step_lost(story, STEPS)
    assert_same_answer(story, clean)
    assert_exactly_once(story, clean, STEPS)
    assert_survivors_never_restart(story)


@pytest.mark.parametrize("recipe", thinned({name: name for name in RECIPES}, 6))
def test_nobody_is_taken_for_hung_by_a_detector_as_it_comes(recipe: str, tmp_path: Path) -> None:
    """Limits.hang_floor_s as it is by default, for as long as it takes to learn how long steps take, and more."""
    training = Training(function=partial(train, recipe=recipe))
    story = run(tmp_path, steps=30, hang_floor_s=Limits().hang_floor_s, training=training)
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    assert [incident.evidence for incident in story.finished.state.incidents] == []


@pytest.mark.parametrize("recipe", ["Evaluated", "MovingAverage"])
def test_a_spare_that_takes_over_has_all_of_the_state(recipe: str, tmp_path: Path) -> None:
    """The results of the last evaluation and the averages among it: it never computed them itself."""
    clean = alone(recipe, tmp_path / "clean")
    work = partial(train, recipe=recipe, awaited=4)
    plan = [Sabotage(point="pending", rank=1, step=4, delay_s=0.5)]
    story = run(tmp_path / "story", *plan, steps=STEPS, slots=4, spares=1, training=Training(function=work))
    assert_struck(story, *plan)
    assert story.finished.state.world_sizes == (3, 3)
    assert_same_answer(story, clean)
    assert_exactly_once(story, clean, STEPS)


def test_a_gradient_scaler_where_a_replica_is_dealt_nothing(tmp_path: Path) -> None:
    """Two micro-batches for three replicas: one of them scales no loss, and must step like the others."""
    training = Training(function=partial(train, recipe="MixedPrecision"))
    story = run(tmp_path, steps=STEPS, micro_batch=BATCH // 2, training=training)
    assert_struck(story)
    assert len({line["digest"] for line in story.of("finished")}) == 1


def assert_struck(story: Story, *plan: Sabotage) -> None:
    assert story.fired == {sabotage.name for sabotage in plan}, "a sabotage did not strike"
    assert len(story.killed) == sum(sabotage.point != "stall" for sabotage in plan)
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome


def alone(recipe: str, folder: Path) -> Story:
    """The same training by one replica, in this process."""
    folder.mkdir()
    work = partial(train, recipe=recipe, folder=folder, plan=(), steps=STEPS, micro_batch=2, pause_s=0)
    ended = Solo(folder, seed=0).run(work)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    return Story(finished=None, folder=folder, reports=[], lines=read(folder.glob("*.jsonl")), journal=[])


def test_evaluations_are_reported_with_their_step(tmp_path: Path) -> None:
    """Once each, though the one after step 2 was tried twice."""
    plan = [Sabotage(point="evaluating", rank=2, step=3)]
    story = run(tmp_path, *plan, steps=STEPS, training=Training(function=partial(train, recipe="Evaluated")))
    assert_struck(story, *plan)
    told = {report.commit.step: report.metrics for report in story.reports}
    assert [step for step, metrics in told.items() if "evaluation/loss" in metrics] == [2, 5, STEPS - 1]
    assert {line["found"]["loss"] for line in story.of("finished")} == {told[STEPS - 1]["evaluation/loss"]}


def test_synchronized_norm_normalizes_over_what_is_computed_at_once(tmp_path: Path) -> None:
    """Six micro-batches of two on three replicas, then on two; four of three would leave one replica with none."""
    plan = [Sabotage(point="pending", rank=1, step=4, delay_s=0.1)]
    training = Training(function=partial(train, recipe="SynchronizedNorm"))
    story = run(tmp_path, *plan, steps=STEPS, micro_batch=3, training=training)
    assert_struck(story, *plan)
    assert len({line["digest"] for line in story.of("finished")}) == 1
    sizes = {line["step"]: line["replicas"] for line in story.of("committed")}
    assert [sizes[step] for step in range(STEPS)] == [3] * 4 + [2] * 4
    final = torch.load(story.folder / "final.pt", weights_only=True)
    for name, wanted in _normalized_in_one_process(story, sizes).items():
        torch.testing.assert_close(final[f"/model/{name}"], wanted, rtol=1e-9, atol=1e-12)


def _normalized_in_one_process(story: Story, sizes: dict[int, int]) -> dict[str, torch.Tensor]:
    """The same training with a plain BatchNorm over the concatenation of what ran at once."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(6, 10, bias=False), torch.nn.BatchNorm1d(10), torch.nn.Tanh(), torch.nn.Linear(10, 6))
    model = torch.nn.Sequential(*layers).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    norm, data, stands = model[1], Samples(), {line["step"]: line["generation"] for line in story.of("committed")}
    for step, replicas in sizes.items():
        optimizer.zero_grad()
        kept = {name: buffer.clone() for name, buffer in norm.named_buffers()}
        change = {name: torch.zeros_like(buffer) for name, buffer in kept.items()}
        for rows in _rounds(story, step, stands[step], replicas):
            x = torch.stack([data[index][1] for index in rows])
            ((model(x) - x).square().mean() * len(rows) / BATCH).backward()
            with torch.no_grad():
                for name, buffer in norm.named_buffers():
                    part = (buffer - kept[name]) * len(rows) / BATCH
                    change[name] += part.to(buffer.dtype)
                    buffer.copy_(kept[name])
        optimizer.step()
        with torch.no_grad():
            for name, buffer in norm.named_buffers():
                if buffer.is_floating_point():
                    buffer.add_(change[name])
    return {name: value for name, value in model.state_dict().items() if value.is_floating_point()}


def _rounds(story: Story, step: int, generation: int, replicas: int) -> list[list[int]]:
    """Samples that were computed at once, by round, from what the workers wrote down."""
    by_worker: dict[str, list[list[int]]] = {}
    for line in story.of("consumed"):
        if (line["step"], line["generation"]) == (step, generation):
            by_worker.setdefault(line["worker"], []).append(line["ids"])
    assert len(by_worker) == replicas
    rounds = max(map(len, by_worker.values()))
    assert {len(parts) for parts in by_worker.values()} == {rounds}, "replicas had unequal numbers of micro-batches"
    return [[index for parts in by_worker.values() for index in parts[number]] for number in range(rounds)]
