"""Effect. SIGKILL at each labelled point of a step, and of the forming of a generation: P1 to P4 hold."""

import time
from pathlib import Path

import pytest
import torch

from elastic.actors.driver import Observed
from elastic.actors.supervisor import Supervisor
from elastic.control import events as ev
from elastic.control.commands import Command
from elastic.control.state import RunState
from tests.chaos.group import STEPS, Story, Training, assert_promises, run, thinned
from tests.chaos.saboteur import Sabotage, train_in_rings

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The fault-free run."""
    story = run(tmp_path_factory.mktemp("clean") / "run")
    assert_promises(story, story)
    state = torch.load(story.folder / "final.pt", weights_only=True)
    assert state["norm.num_batches_tracked"] == STEPS
    assert abs(state["norm.running_var"] - 1).max() > 0.01
    return story


STORIES = {
    "in forward": [Sabotage(point="forward", rank=1, step=4)],
    "in forward, the leader": [Sabotage(point="forward", rank=0, step=4)],
    "in the first step": [Sabotage(point="forward", rank=2, step=0)],
    "in the second step": [Sabotage(point="forward", rank=1, step=1)],
    "in the last step": [Sabotage(point="forward", rank=1, step=13)],
    "between two buckets": [Sabotage(point="between-buckets", rank=1, step=4)],
    "between two buckets, the leader": [Sabotage(point="between-buckets", rank=0, step=4)],
    "while others wait in their reductions": [Sabotage(point="pending", rank=2, step=4, delay_s=0.3)],
    "after the last bucket, before its apply": [Sabotage(point="reduced", rank=1, step=4)],
    "inside apply": [Sabotage(point="in-apply", rank=1, step=4)],
    "inside apply, the leader": [Sabotage(point="in-apply", rank=0, step=4)],
    "inside the last apply": [Sabotage(point="in-apply", rank=2, step=13)],
    "two at once": [Sabotage(point="forward", rank=1, step=5), Sabotage(point="forward", rank=2, step=5)],
    "all but one, leader included": [
        Sabotage(point="forward", rank=0, step=5),
        Sabotage(point="in-apply", rank=2, step=4),
    ],
    "two in a row": [Sabotage(point="forward", rank=2, step=3), Sabotage(point="between-buckets", rank=0, step=6)],
    "while the first generation forms": [Sabotage(point="forming", rank=1, generation=1)],
    "while forming after a loss": [
        Sabotage(point="forward", rank=2, step=4),
        Sabotage(point="forming", rank=1, generation=2),
    ],
    "the leader, while forming after a loss": [
        Sabotage(point="forward", rank=2, step=4),
        Sabotage(point="forming", rank=0, generation=2),
    ],
    "one applied, another was stopped before it": [
        Sabotage(point="reduced", rank=2, step=4, delay_s=0.5),
        Sabotage(point="stall", rank=1, step=4, delay_s=5.0),
    ],
    "the only donor, while it heals the one that was behind": [
        Sabotage(point="reduced", rank=2, step=4, delay_s=0.5),
        Sabotage(point="stall", rank=1, step=4, delay_s=5.0),
        Sabotage(point="giving", rank=0, generation=2),
    ],
    "the donor of the first state": [Sabotage(point="giving", rank=0, generation=1)],
}


@pytest.mark.parametrize("plan", thinned(STORIES, 2))
def test_killed(plan: list[Sabotage], clean: Story, tmp_path: Path) -> None:
    assert_promises(run(tmp_path, *plan), clean, *plan)


# How gradients are summed: around rings, and all of them with the tail in one message.
RINGS, WHOLE = Training(function=train_in_rings), Training(options={"bucket_bytes": 1 << 20})
SUMS = {
    "in rings, between two buckets": (RINGS, "between two buckets"),
    "in one message, while others wait": (WHOLE, "while others wait in their reductions"),
    "in rings, while others wait": (RINGS, "while others wait in their reductions"),
    "in one message, the donor": (WHOLE, "the only donor, while it heals the one that was behind"),
    "in rings, the donor": (RINGS, "the only donor, while it heals the one that was behind"),
    "in one message, two at once": (WHOLE, "two at once"),
    "in rings, two in a row": (RINGS, "two in a row"),
    "in one message, inside apply": (WHOLE, "inside apply, the leader"),
}


@pytest.mark.parametrize(("sums", "story"), thinned(SUMS, 2))
def test_killed_where_sums_are_made_in_another_way(sums: Training, story: str, clean: Story, tmp_path: Path) -> None:
    """Parameters are those of the run without faults, whose buckets were small and went in messages of their own."""
    plan = STORIES[story]
    assert_promises(run(tmp_path, *plan, training=sums), clean, *plan)


JOINERS = {
    "a donor, while a joiner is healed": [
        Sabotage(point="forward", rank=2, step=4),
        Sabotage(point="giving", rank=1, generation=3),
    ],
    "a survivor, in the first step after a joiner came": [
        Sabotage(point="forward", rank=2, step=4),
        Sabotage(point="forward", rank=0, generation=3),
    ],
    "the joiner, in its first step": [
        Sabotage(point="forward", rank=2, step=4),
        Sabotage(point="forward", rank=2, generation=3),
    ],
    "the joiner, while it forms": [
        Sabotage(point="forward", rank=2, step=4),
        Sabotage(point="forming", rank=2, generation=3),
    ],
}


@pytest.mark.parametrize("plan", thinned(JOINERS, 4))
def test_killed_around_a_joiner(plan: list[Sabotage], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A replacement is started, parks, and joins at the end of a step; generation 3 is its first."""
    steps, pause_s = 120, 0.01
    story = run(tmp_path, *plan, slots=5, steps=steps, pause_s=pause_s)
    clean = run(tmp_path_factory.mktemp("clean") / "run", steps=steps, pause_s=0)
    assert_promises(story, clean, *plan, steps=steps)
    assert story.finished.state.world_sizes[:2] == (3, 2)


def test_a_spare_is_swapped_in(clean: Story, tmp_path: Path) -> None:
    plan = [Sabotage(point="between-buckets", rank=1, step=4)]
    story = run(tmp_path, *plan, slots=4, spares=1, training=Training(parked=4))
    assert_promises(story, clean, *plan)
    assert story.finished.state.world_sizes == (3, 3)


@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_where_a_replica_is_dealt_nothing(victim: int, tmp_path: Path) -> None:
    """Two micro-batches for three replicas: rank 0 computes none of them."""
    plan = [Sabotage(point="reduced", rank=victim, step=4)]
    clean = run(tmp_path / "clean", micro_batch=6)
    assert_promises(run(tmp_path / "story", *plan, micro_batch=6), clean, *plan)


class LateSupervisor(Supervisor):
    """Stands still for longer than anybody is given to answer, with its decision about a loss made and not told."""

    def observe(self, events: Observed) -> tuple[tuple[Command, ...], RunState]:
        decided = super().observe(events)
        if any(isinstance(event, ev.WorkerLost) for _, event in events):
            time.sleep(2.5)
        return decided


def test_a_late_supervisor_kills_nobody(clean: Story, tmp_path: Path) -> None:
    plan = [Sabotage(point="forward", rank=1, step=4)]
    story = run(tmp_path, *plan, supervisor=LateSupervisor, freeze_timeout_s=1.0, doubt_after_s=0.5)
    assert_promises(story, clean, *plan)
    gaps_s = [after["t"] - before["t"] for before, after in zip(story.journal, story.journal[1:], strict=False)]
    assert max(gaps_s) > 2.0, "it was not late"
    assert [line for line in story.journal if line.get("command") == "Fence"] == []
