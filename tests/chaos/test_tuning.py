"""Effect. A run is tuned while it trains, and workers die in the same window: one cut, one rate, each sample once.

The supervisor asks as an outsider would, the moment it is told of a step, or of a death.
"""

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.actors.driver import Observed
from elastic.actors.supervisor import Supervisor
from elastic.callbacks import LinearLR, OverlapCommunication
from elastic.control import events as ev
from elastic.control.batch_size import ConstantBatch
from elastic.control.commands import Command
from elastic.control.data import BatchPlan
from elastic.control.events import TrainFnReturned
from elastic.control.outcome import Ending
from elastic.control.pace import next_pace
from elastic.control.state import RunState
from elastic.control.tuning import NOT_TUNED, Tuning
from elastic.train.runner import with_callbacks
from tests.chaos.group import (
    Story,
    Training,
    assert_no_stable_step_lost,
    assert_promises,
    assert_same_answer,
    assert_survivors_never_restart,
    run,
    thinned,
)
from tests.chaos.saboteur import BATCH, MICRO_BATCH, SAMPLES, Sabotage, train
from tests.effects.solo import Solo

pytestmark = pytest.mark.timeout(120)

STEPS, ASKED_AT, PAUSE_S = 60, 3, 0.01
BASE_RATE, GAMMA = 1e-2, 0.97  # of the saboteur's scheduler
DATA = BatchPlan(samples=SAMPLES, batch_size=ConstantBatch(size=BATCH), micro_batch_size=MICRO_BATCH)
BOTH = Tuning(lr_factor=0.25, batch_size=20)
SMALLER = Tuning(batch_size=9, micro_batch_size=3)


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> None:
    """For the replays, as in workers."""
    torch.set_num_threads(1)


class AtAStep(Supervisor):
    """Asks once step ASKED_AT is known to be stable."""

    wish = BOTH
    has_asked = False

    def observe(self, events: Observed) -> tuple[tuple[Command, ...], RunState]:
        decided = super().observe(events)
        if not self.has_asked and any(self.is_time(event) for _, event in events):
            self.has_asked = True
            assert self.ask(ev.TuneAsked(tuning=self.wish)) == ""
        return decided

    def is_time(self, event: ev.Event) -> bool:
        return isinstance(event, ev.StepStable) and event.report.commit.step >= ASKED_AT


class OtherBuckets(AtAStep):
    wish = Tuning(bucket_bytes=1000)


class AtADeath(AtAStep):
    """Asks in the turn in which it hears of a death: the freeze is decided, and not yet carried out."""

    wish = SMALLER

    def observe(self, events: Observed) -> tuple[tuple[Command, ...], RunState]:
        at_s = [at_s for at_s, event in events if isinstance(event, ev.WorkerDead | ev.WorkerLost)]
        if at_s and not self.has_asked:
            self.has_asked = True
            events = [*events, (at_s[0], ev.TuneAsked(tuning=self.wish))]
        return super().observe(events)

    def is_time(self, event: ev.Event) -> bool:
        return False


STORIES: dict[str, tuple[list[Sabotage], type[AtAStep]]] = {
    "nobody dies": ([], AtAStep),
    "while the tuned generation forms": ([Sabotage(point="forming", rank=1, generation=2)], AtAStep),
    "its leader, while it forms": ([Sabotage(point="forming", rank=0, generation=2)], AtAStep),
    "in its first step": ([Sabotage(point="between-buckets", rank=0, generation=2)], AtAStep),
    "inside its first apply": ([Sabotage(point="in-apply", rank=1, generation=2)], AtAStep),
    "asked when one has died": ([Sabotage(point="reduced", rank=2, step=6)], AtADeath),
    "other buckets": ([Sabotage(point="between-buckets", rank=0, generation=2)], OtherBuckets),
}


def tunings(story: Story) -> list[Tuning]:
    return [report.tuning for report in story.reports]


def assert_consumed_in_order(story: Story) -> list[tuple[int, int]]:
    """P3: each committed step took what follows the one before it, cut as it was tuned; returns (replicas, batch)."""
    stands = {line["step"]: line["generation"] for line in story.of("committed")}
    consumed, sizes = 0, []
    for step, tuning in enumerate(tunings(story)):
        place = (step, stands[step])
        lines = [line for line in story.of("consumed") if (line["step"], line["generation"]) == place]
        facts = {
            (line["replicas"], line["samples"], tuple(line["rates"]))
            for line in story.of("committed")
            if (line["step"], line["generation"]) == place
        }
        ((replicas, samples, _),) = facts
        plan = DATA.tuned(tuning)
        cut = plan.cut(consumed, replicas)
        assert Counter(index for line in lines for index in line["ids"]) == Counter(
            index for one in cut for index in plan.sample_indices(one)
        ), f"step {step}"
        consumed += sum(one.count for one in cut)
        assert samples == sum(one.count for one in cut)
        sizes.append((replicas, plan.global_batch(replicas)))
    return sizes


def assert_rates(story: Story, sizes: list[tuple[int, int]], rule: Any) -> None:
    """Every worker used the scheduler's rate, times what follows from the batch, times what was asked."""
    pace = None
    used = {line["step"]: line["rates"] for line in story.of("committed")}
    for step, (tuning, (replicas, batch)) in enumerate(zip(tunings(story), sizes, strict=True)):
        pace = next_pace(pace, step, replicas, batch, rule, tuning)
        assert used[step] == pytest.approx([BASE_RATE * GAMMA**step * pace.factor(step)] * 2, rel=1e-12), f"step {step}"


@pytest.mark.parametrize(("plan", "supervisor"), thinned(STORIES, 6))
def test_tuned_in_mid_run(plan: list[Sabotage], supervisor: type[AtAStep], tmp_path: Path) -> None:
    rule = LinearLR()
    training = Training(callbacks=(rule,))
    story = run(tmp_path, *plan, steps=STEPS, pause_s=PAUSE_S, supervisor=supervisor, training=training)
    assert story.fired == {sabotage.name for sabotage in plan} and len(story.killed) == len(plan)
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    assert_no_stable_step_lost(story, STEPS)
    assert_survivors_never_restart(story)
    told = tunings(story)
    first = told.index(supervisor.wish)
    assert told == [NOT_TUNED] * first + [supervisor.wish] * (STEPS - first) and 0 < first < STEPS - 5
    assert (story.finished.state.tuned, story.finished.state.tuned_from) == (supervisor.wish, first)
    assert_rates(story, assert_consumed_in_order(story), rule)
    assert supervisor is AtADeath or any(line.get("event") == "TuneAsked" for line in story.journal)
    if not plan:
        assert story.finished.state.incidents == () and story.finished.state.world_sizes == (3, 3)


class ByStep:
    """A batch size for each step, for a replay; told by the samples that were consumed before."""

    def __init__(self, cursor: Any, sizes: list[int]) -> None:
        self._ends = [sum(sizes[: step + 1]) for step in range(len(sizes))]
        self._cursor, self._sizes = cursor, sizes

    def samples(self, replicas: int, micro_batch_size: int) -> int:
        step = sum(end <= self._cursor.samples for end in self._ends)
        return self._sizes[min(step, len(self._sizes) - 1)]


def test_the_answer_is_that_of_one_process_that_takes_the_same_batches(tmp_path: Path) -> None:
    class Larger(AtAStep):
        wish = Tuning(batch_size=20)

    plan = [Sabotage(point="in-apply", rank=1, generation=2)]
    story = run(tmp_path, *plan, steps=STEPS, pause_s=PAUSE_S, supervisor=Larger)
    assert story.fired and Larger.wish in tunings(story)
    sizes = [int(line.samples) for line in story.reports]
    folder = tmp_path / "replay"
    folder.mkdir()

    def batches(session: Any, folder: Path, micro_batch: int) -> Any:
        from tests.chaos.saboteur import Samples

        made = session.batches(Samples(), batch_size=BATCH, micro_batch_size=micro_batch)
        made.plan = replace(made.plan, batch_size=ByStep(session._replica.cursor, sizes))
        return made

    work = partial(train, folder=folder, plan=(), pause_s=0, steps=STEPS, micro_batch=MICRO_BATCH, batch_size=batches)
    ended = Solo(folder, seed=0).run(with_callbacks(work, ()))
    assert isinstance(ended.last, TrainFnReturned), ended.last
    assert_same_answer(story, replace(story, folder=folder))


@pytest.mark.slow
def test_sizes_of_buckets_are_tried_while_a_worker_dies_and_another_joins(tmp_path: Path) -> None:
    """The victim dies between two buckets of a size that is being tried; the joiner has prepared the first size."""
    overlap = OverlapCommunication(start_bytes=300, least_bytes=75, most_bytes=4800, steps=5, settle_steps=1)
    plan = [Sabotage(point="between-buckets", rank=1, generation=3)]
    steps = 2 * STEPS
    clean = run(tmp_path / "clean", steps=steps)
    story = run(
        tmp_path / "tuned",
        *plan,
        steps=steps,
        pause_s=PAUSE_S,
        slots=4,
        spares=1,
        training=Training(watching=(overlap,), parked=4),
    )
    assert_promises(story, clean, *plan, steps=steps)
    told = [tuning.bucket_bytes for tuning in tunings(story)]
    assert len(set(told)) >= 3 and told[0] is None
    assert overlap.chosen_bytes == (told[-1] or 300)
    (joined,) = {line["worker"] for line in story.of("started")} - {
        line["worker"] for line in story.of("committed") if line["generation"] == 1
    }
    assert any(line["worker"] == joined for line in story.of("committed")), "nobody joined while sizes were tried"
    stops = [line["reason"] for line in story.journal if line.get("command") == "Pause"]
    assert any(reason.startswith("tuned: bucket_bytes=") for reason in stops)
