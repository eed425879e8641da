"""Effect. SIGKILL while batches follow the number of replicas: exactly once, one rate for all, and the same answer.

The judge is a replay: one process that takes the batches of the committed steps, one after the other.
"""

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.callbacks import LinearLR, ScaledLR, SquareRootLR, WorkerCallback
from elastic.control.batch_size import FixedMicroBatches, FollowReplicas
from elastic.control.data import BatchPlan
from elastic.control.events import TrainFnReturned
from elastic.control.outcome import Ending
from elastic.control.pace import Resize, next_pace
from elastic.policies import Ladder
from elastic.train.runner import with_callbacks
from tests.chaos.group import (
    STEPS,
    Story,
    Training,
    assert_no_stable_step_lost,
    assert_same_answer,
    assert_survivors_never_restart,
    run,
    thinned,
)
from tests.chaos.saboteur import HARMLESS, MICRO_BATCH, SAMPLES, Replayed, Sabotage, train
from tests.effects.solo import Solo

pytestmark = pytest.mark.timeout(120)

BASE_RATE, GAMMA = 1e-2, 0.97  # of the saboteur's scheduler


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> None:
    """For the replays, as in workers."""
    torch.set_num_threads(1)


def sizes_of(story: Story) -> list[int]:
    """Replicas of each committed step; all workers that committed it agree on its sizes and rates."""
    by_step: dict[int, set[tuple[Any, ...]]] = {}
    stands = {line["step"]: line["generation"] for line in story.of("committed")}
    for line in story.of("committed"):
        if line["generation"] == stands[line["step"]]:
            facts = (line["replicas"], line["samples"], tuple(line["rates"]))
            by_step.setdefault(line["step"], set()).add(facts)
    assert all(len(facts) == 1 for facts in by_step.values()), by_step
    return [next(iter(by_step[step]))[0] for step in sorted(by_step)]


def assert_consumed_in_order(story: Story, plan: BatchPlan, sizes: list[int]) -> None:
    """P3: each committed step took what follows the one before it; each sample comes once in each whole epoch."""
    stands = {line["step"]: line["generation"] for line in story.of("committed")}
    consumed, by_epoch = 0, dict[int, Counter[int]]()
    for step, replicas in enumerate(sizes):
        lines = [line for line in story.of("consumed") if (line["step"], line["generation"]) == (step, stands[step])]
        taken = Counter(index for line in lines for index in line["ids"])
        cut = plan.cut(consumed, replicas)
        assert taken == Counter(index for one in cut for index in plan.sample_indices(one)), f"step {step}"
        by_epoch.setdefault(plan.epoch_of(consumed), Counter()).update(taken)
        consumed += sum(one.count for one in cut)
    for epoch in range(consumed // SAMPLES):
        assert by_epoch[epoch] == Counter(range(SAMPLES)), f"epoch {epoch}"


def assert_rates(story: Story, plan: BatchPlan, sizes: list[int], rule: Any) -> None:
    """Every worker stepped its optimizer with what the rule makes of the scheduler's rate."""
    pace = None
    used = {line["step"]: line["rates"] for line in story.of("committed")}
    for step, replicas in enumerate(sizes):
        pace = next_pace(pace, step, replicas, plan.global_batch(replicas), rule)
        assert used[step] == pytest.approx([BASE_RATE * GAMMA**step * pace.factor(step)] * 2, rel=1e-12), f"step {step}"


def assert_resizes(story: Story, sizes: list[int]) -> None:
    """Every worker that committed a step of a new size was told of it once, and all were told the same."""
    changed = [step for step in range(1, len(sizes)) if sizes[step] != sizes[step - 1]]
    for step in changed:
        told = [line for line in story.of("resized") if line["step"] == step]
        committed = {line["worker"] for line in story.of("committed") if line["step"] == step}
        assert committed <= {line["worker"] for line in told} and len(told) == len({line["worker"] for line in told})
        assert {(line["replicas_before"], line["replicas"]) for line in told} == {(sizes[step - 1], sizes[step])}
        assert len({tuple(line["rates"]) for line in told}) == 1
    assert {line["step"] for line in story.of("resized")} == set(changed)


def assert_follows(
    story: Story, training: Training, *plan: Sabotage, micro_batch: int = MICRO_BATCH, steps: int = STEPS
) -> list[int]:
    """All that holds of a run whose batch follows; returns the sizes of its steps."""
    assert story.fired == {sabotage.name for sabotage in plan}, "a sabotage did not strike"
    assert len(story.killed) == len([sabotage for sabotage in plan if sabotage.point not in HARMLESS])
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    assert_no_stable_step_lost(story, steps)
    assert_survivors_never_restart(story)
    sizes = sizes_of(story)
    cut = BatchPlan(samples=SAMPLES, batch_size=training.options["batch_size"], micro_batch_size=micro_batch)
    assert_consumed_in_order(story, cut, sizes)
    assert_rates(story, cut, sizes, next(iter(training.callbacks), None))
    assert_resizes(story, sizes)
    assert_answer_of_one_process(story, training, sizes, micro_batch)
    return sizes


def assert_answer_of_one_process(story: Story, training: Training, sizes: list[int], micro_batch: int) -> None:
    """P2: one process that takes the same batches, each as if so many replicas computed it, ends with the same."""
    folder = story.folder / "replay"
    folder.mkdir()
    replayed = Replayed(training.options["batch_size"], tuple(sizes))
    cut = {"steps": len(sizes), "micro_batch": micro_batch, "batch_size": replayed}
    work = partial(train, folder=folder, plan=(), pause_s=0, **cut)
    ended = Solo(folder, seed=0).run(with_callbacks(work, training.callbacks))
    assert isinstance(ended.last, TrainFnReturned), ended.last
    assert_same_answer(story, replace(story, folder=folder))


def cube_root(batch: int, reference: int) -> float:
    """A rule of the user's own."""
    return float((batch / reference) ** (1 / 3))


KINDS = {
    "follow": Training(options={"batch_size": FollowReplicas(per_replica=14)}, callbacks=(LinearLR(),)),
    "fixed micro-batches": Training(
        options={"batch_size": FixedMicroBatches(per_replica=9)}, callbacks=(SquareRootLR(warmup_steps=3),)
    ),
    "a rule of one's own": Training(
        options={"batch_size": FollowReplicas(per_replica=10)}, callbacks=(ScaledLR(rule=cube_root, warmup_steps=2),)
    ),
}
STORIES = {
    "in mid-step": [Sabotage(point="forward", rank=1, step=4)],
    "between two buckets, the leader": [Sabotage(point="between-buckets", rank=0, step=4)],
    "inside apply": [Sabotage(point="in-apply", rank=1, step=4)],
    "one applied, another was stopped before it": [
        Sabotage(point="reduced", rank=2, step=4),
        Sabotage(point="stall", rank=1, step=4, delay_s=1.0),
    ],
    "in the short last step of an epoch": [Sabotage(point="pending", rank=2, step=5, delay_s=0.3)],
    "two in a row": [Sabotage(point="forward", rank=2, step=3), Sabotage(point="between-buckets", rank=0, step=6)],
}


@pytest.mark.parametrize("training", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("plan", thinned(STORIES, 6))
def test_killed_while_the_batch_follows(plan: list[Sabotage], training: Training, tmp_path: Path) -> None:
    steps = 20
    story = run(tmp_path, *plan, steps=steps, training=training)
    sizes = assert_follows(story, training, *plan, steps=steps)
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 3 and sizes[-1] == 3 - len(story.killed)


@pytest.mark.slow
@pytest.mark.parametrize("training", thinned(KINDS, 2))
def test_a_joiner_comes_to_the_rate_of_the_others(training: Training, tmp_path: Path) -> None:
    """It receives cursor and pace with the state, and is told of the resize that it is part of."""
    plan, steps = [Sabotage(point="forward", rank=1, step=4)], 40
    later = replace(training, policy=Ladder(swap=False))  # the spare joins at the end of a later step, not at once
    story = run(tmp_path, *plan, slots=4, spares=1, steps=steps, pause_s=0.02, training=later)
    sizes = assert_follows(story, training, *plan, steps=steps)
    assert story.finished.state.world_sizes == (3, 2, 3)
    assert sizes[0] == sizes[-1] == 3 and 2 in sizes
    grown = max(step for step in range(steps) if sizes[step] == 2) + 1
    told = {line["worker"] for line in story.of("resized") if line["step"] == grown}
    joiner = {line["worker"] for line in story.of("committed") if line["step"] == steps - 1} - {
        line["worker"] for line in story.of("committed") if line["step"] == 0
    }
    assert len(told) == 3 and len(joiner) == 1 and joiner < told


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_killed_where_a_replica_is_dealt_nothing(victim: int, tmp_path: Path) -> None:
    """Two micro-batches are left for three replicas in the last step of the epoch: rank 0 computes none of them."""
    training = Training(options={"batch_size": FixedMicroBatches(per_replica=1)}, callbacks=(LinearLR(),))
    plan = [Sabotage(point="reduced", rank=victim, step=3)]
    story = run(tmp_path, *plan, micro_batch=22, training=training)
    sizes = assert_follows(story, training, *plan, micro_batch=22)
    assert sizes[:4] in ([3, 3, 3, 2], [3, 3, 3, 3])
    first = [line for line in story.of("consumed") if (line["step"], line["generation"]) == (3, 1)]
    assert sorted(len(line["ids"]) for line in first) == [20, 22]


class Refusing(WorkerCallback):
    """Has a bug."""

    def on_resize(self, resize: Resize) -> None:
        raise ValueError(f"nothing is known of {resize.replicas} replicas")


def test_an_exception_in_on_resize_ends_the_run_once_with_its_story(tmp_path: Path) -> None:
    training = Training(options={"batch_size": FollowReplicas(per_replica=4)}, callbacks=(Refusing(),))
    story = run(tmp_path, Sabotage(point="forward", rank=1, step=4), training=training)
    outcome = story.finished.outcome
    assert story.fired and outcome.ending is Ending.TRAIN_FN_RAISED
    assert "ValueError: nothing is known of 2 replicas" in outcome.message
    assert "in on_resize" in outcome.details["traceback"]
    assert outcome.details["traceback"].count("Traceback") == 1
    assert {line["step"] for line in story.of("committed")} == set(range(4))


def unlike(batch: int, reference_batch: int) -> float:
    """A rule that is not the same on all workers."""
    import os

    return 1.0 + os.getpid() % 10**6


def test_workers_whose_rules_differ_never_step(tmp_path: Path) -> None:
    """They would drift apart: the rate is part of what the reduction must agree on."""
    story = run(tmp_path, training=Training(callbacks=(ScaledLR(rule=unlike),)))
    assert story.finished.outcome.ending is Ending.TRAIN_FN_RAISED
    assert "ConservationError" in story.finished.outcome.message
    assert "learning-rate rule" in story.finished.outcome.message
    assert story.of("committed") == []
