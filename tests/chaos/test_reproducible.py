"""Effect. In reproducible mode no fault, no size and no deal changes a bit: `torch.equal` in float32, after a storm."""

import pytest
import torch

from tests.chaos.group import Story, Training, assert_exactly_once, assert_survivors_never_restart, run
from tests.chaos.saboteur import Sabotage

pytestmark = pytest.mark.timeout(180)

FLOAT32 = {"dtype": torch.float32}
IN_ORDER = FLOAT32 | {"reproducible": True}
STEPS = 120
STORM = (
    Sabotage(point="in-apply", rank=2, step=2),
    Sabotage(point="forward", rank=1, step=6),
    Sabotage(point="between-buckets", rank=0, generation=4),  # the first one with a joiner
)


def final(story: Story) -> dict[str, torch.Tensor]:
    """Parameters and running statistics at the end."""
    assert len({line["digest"] for line in story.of("finished")}) == 1
    return torch.load(story.folder / "final.pt", weights_only=True)


def is_equal(one: Story, other: Story) -> bool:
    ours, theirs = final(one), final(other)
    assert ours.keys() == theirs.keys()
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


def losses(story: Story) -> dict[int, float]:
    """By step; a report that died with the only worker who could tell it is missing."""
    return {report.commit.step: report.metrics["loss"] for report in story.reports}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The fault-free run of three."""
    story = run(tmp_path_factory.mktemp("clean") / "run", steps=STEPS, pause_s=0, training=Training(options=IN_ORDER))
    assert story.finished.state.world_sizes == (3,)
    return story


def test_a_smaller_group_ends_with_the_same_bits(clean, tmp_path):
    story = run(tmp_path, steps=STEPS, slots=2, replicas=(1, 2), pause_s=0, training=Training(options=IN_ORDER))
    assert story.finished.state.world_sizes == (2,)
    assert is_equal(story, clean)
    assert losses(story) == losses(clean)


def test_a_storm_ends_with_the_same_bits(clean, tmp_path):
    """Killed inside an optimizer, in a forward, between two buckets with a joiner; groups of three, two and one."""
    story = run(tmp_path, *STORM, steps=STEPS, slots=5, pause_s=0.012, training=Training(options=IN_ORDER))
    assert story.fired == {sabotage.name for sabotage in STORM}
    assert len(story.killed) == len(STORM)
    sizes = story.finished.state.world_sizes
    assert sizes[:3] == (3, 2, 1) and sizes[3] > 1, sizes
    assert is_equal(story, clean)
    assert losses(story).items() <= losses(clean).items()
    assert_exactly_once(story, clean, STEPS)
    assert_survivors_never_restart(story)


def test_without_it_another_size_ends_with_other_bits(clean, tmp_path):
    """So that the tests above can fail."""
    story = run(tmp_path, steps=STEPS, slots=2, replicas=(1, 2), pause_s=0, training=Training(options=FLOAT32))
    assert not is_equal(story, clean)
