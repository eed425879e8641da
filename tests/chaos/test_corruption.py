"""Effect. One flipped bit, one wrong loss: the replica is named, fenced, replaced; wrong data is the user's."""

import pytest

from elastic.control.outcome import Ending
from elastic.control.values import IncidentClass
from tests.chaos.group import (
    STEPS,
    Story,
    Training,
    assert_exactly_once,
    assert_no_stable_step_lost,
    assert_same_answer,
    assert_survivors_never_restart,
    run,
    thinned,
)
from tests.chaos.saboteur import Sabotage

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The fault-free run."""
    return run(tmp_path_factory.mktemp("clean") / "run")


def culprit_of(story: Story, sabotage: Sabotage) -> str:
    """The worker that the sabotage struck: its process left the mark."""
    assert story.fired == {sabotage.name}
    pid = int((story.folder / f"fired-{sabotage.name}").read_text())
    return next(line["worker"] for line in story.of("started") if line["pid"] == pid)


def assert_fenced(story: Story, culprit: str) -> None:
    """It was named, killed, and gave nothing to anybody afterwards."""
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    (incident,) = story.finished.state.incidents
    assert (incident.kind, incident.culprits) == (IncidentClass.SILENT_CORRUPTION, (culprit,))
    assert culprit in incident.evidence[0]
    assert story.killed == {culprit}
    fences = [line["worker"] for line in story.journal if line.get("command") == "Fence"]
    assert fences == [culprit]


PLANS = {
    "a bit of a weight": Sabotage(point="flip-weight", rank=1, step=4),
    "a bit of a weight, on the leader": Sabotage(point="flip-weight", rank=0, step=4),
    "a bit of a moment": Sabotage(point="flip-moment", rank=2, step=4),
    "a bit, after the last step": Sabotage(point="flip-weight", rank=1, step=STEPS - 1),
    "a loss": Sabotage(point="nan", rank=1, step=4),
    "a loss, on the leader": Sabotage(point="nan", rank=0, step=0),
}


@pytest.mark.parametrize("sabotage", thinned(PLANS, 3))
def test_what_one_replica_gets_wrong_costs_it_its_place_and_nothing_else(sabotage, clean, tmp_path):
    """With a vote before each step nothing wrong is ever summed: the answer is the fault-free run's."""
    story = run(tmp_path, sabotage, training=Training(options={"digest_steps": 1}))
    assert_fenced(story, culprit_of(story, sabotage))
    assert_no_stable_step_lost(story, STEPS)
    assert_same_answer(story, clean)
    assert_exactly_once(story, clean, STEPS)
    assert_survivors_never_restart(story)


def test_a_flipped_bit_is_found_at_the_next_vote(tmp_path):
    """Between the flip and the vote all sum what it has led to: the same everywhere, and not the fault-free run's."""
    sabotage = Sabotage(point="flip-weight", rank=1, step=4)
    story = run(tmp_path, sabotage, training=Training(options={"digest_steps": 4}))
    assert_fenced(story, culprit_of(story, sabotage))
    assert "state after step 7" in story.finished.state.incidents[0].evidence[0]
    assert len({line["digest"] for line in story.of("finished")}) == 1


def test_without_votes_a_flipped_bit_stays(tmp_path):
    sabotage = Sabotage(point="flip-weight", rank=1, step=4)
    story = run(tmp_path, sabotage, training=Training(options={"digest_steps": 0}))
    assert story.finished.state.incidents == ()
    assert len({line["digest"] for line in story.of("finished")}) == 2


@pytest.mark.slow
def test_the_replacement_is_healed_from_the_majority(tmp_path):
    sabotage = Sabotage(point="flip-weight", rank=1, step=4)
    story = run(
        tmp_path, sabotage, slots=4, spares=1, steps=80, pause_s=0.02, training=Training(options={"digest_steps": 1})
    )
    assert_fenced(story, culprit_of(story, sabotage))
    assert story.finished.state.world_sizes[-1] == 3
    finished = story.of("finished")
    assert len(finished) == 3 and len({line["digest"] for line in finished}) == 1


@pytest.mark.slow
def test_donors_that_differ_are_found_before_anybody_is_healed(tmp_path):
    """Long before the next vote: a joiner comes, and the three who would give to it do not hold the same."""
    flip, kill = Sabotage(point="flip-weight", rank=1, step=4), Sabotage(point="forward", rank=3, step=8)
    story = run(tmp_path, flip, kill, slots=6, replicas=(1, 4), steps=150, pause_s=0.012)
    assert story.fired == {flip.name, kill.name}
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    kinds = {incident.kind: incident.culprits for incident in story.finished.state.incidents}
    pid = int((story.folder / f"fired-{flip.name}").read_text())
    culprit = next(line["worker"] for line in story.of("started") if line["pid"] == pid)
    assert kinds[IncidentClass.SILENT_CORRUPTION] == (culprit,)
    assert "after healing, model on ranks [1] differs" in next(
        incident.evidence[0] for incident in story.finished.state.incidents if culprit in incident.culprits
    )
    assert culprit in story.killed and len(story.killed) == 2
    assert len({line["digest"] for line in story.of("finished")}) == 1


def test_two_replicas_cannot_outvote_each_other(tmp_path):
    sabotage = Sabotage(point="flip-weight", rank=1, step=4)
    story = run(tmp_path, sabotage, slots=2, replicas=(1, 2), training=Training(options={"digest_steps": 1}))
    assert story.fired == {sabotage.name}
    outcome = story.finished.outcome
    assert outcome.ending is Ending.DIVERGED
    assert "on w0" in outcome.message and "on w1" in outcome.message and "three replicas" in outcome.message


def test_a_wrong_loss_of_one_of_two_is_told_from_wrong_data(tmp_path):
    """Here the data is the witness."""
    sabotage = Sabotage(point="nan", rank=1, step=4)
    story = run(tmp_path, sabotage, slots=2, replicas=(1, 2))
    assert_fenced(story, culprit_of(story, sabotage))


@pytest.mark.parametrize("slots", [1, 3], ids=["alone", "in a group"])
def test_a_loss_that_is_wrong_everywhere_is_the_users(slots, tmp_path):
    story = run(tmp_path, slots=slots, replicas=(1, slots), training=Training(options={"poison": 100}))
    outcome = story.finished.outcome
    assert outcome.ending is Ending.TRAIN_FN_RAISED
    assert "NonFiniteLossError" in outcome.message and "the model's or the data's" in outcome.message
    assert story.finished.state.incidents == ()
    assert story.killed == set()
