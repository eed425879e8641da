"""Effect. Replicas of two workers each, killed at each point of a step: shards never part, and nothing is lost."""

import re
import signal
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.control.outcome import Ending
from elastic.control.remediation import Kind
from elastic.control.values import IncidentClass
from elastic.policies import Ladder
from tests.chaos import gangs
from tests.chaos.group import STEPS, Story, Training, assert_exactly_once, assert_no_stable_step_lost, run, thinned
from tests.chaos.saboteur import Sabotage

pytestmark = pytest.mark.timeout(180)

PLAIN = Training(function=gangs.train, width=2)
FSDP = Training(function=gangs.train, width=2, options={"kind": "fsdp"})
MESH = Training(function=gangs.train, width=4, options={"kind": "mesh", "width": 4})
PIPELINE = Training(function=gangs.train, width=3, options={"kind": "pipeline", "width": 3})


def play(folder: Path, *plan: Sabotage, training: Training = PLAIN, **options: Any) -> Story:
    replicas = options.pop("replicas", (1, 2))
    return run(folder, *plan, replicas=replicas, training=training, **{"slots": 4, **options})


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Story:
    story = play(tmp_path_factory.mktemp("clean") / "run")
    assert_gang_promises(story, story)
    assert story.finished.state.world_sizes == (2,)
    return story


def assert_gang_promises(story: Story, clean: Story, *plan: Sabotage, steps: int = STEPS) -> None:
    """P1 to P3, shard by shard, and nobody started twice."""
    assert story.fired == {sabotage.name for sabotage in plan}, "a sabotage did not strike"
    assert len(story.killed) == sum(sabotage.point != "stall" for sabotage in plan)
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    assert_no_stable_step_lost(story, steps)
    assert_exactly_once(story, clean, steps)
    assert max(Counter(line["worker"] for line in story.of("started")).values()) == 1
    for shard in {line["shard"] for line in clean.of("finished")}:
        assert len({line["digest"] for line in story.of("finished") if line["shard"] == shard}) == 1
        ours, theirs = (torch.load(one.folder / f"final-{shard}.pt", weights_only=True) for one in (story, clean))
        difference = sum(float((ours[name] - theirs[name]).double().pow(2).sum()) for name in theirs)
        assert (difference / sum(float(theirs[name].double().pow(2).sum()) for name in theirs)) ** 0.5 <= 1e-9


STORIES = {
    "a worker, in forward, where its replica waits for it": [Sabotage(point="forward", rank=1, step=4)],
    "the leader, in forward": [Sabotage(point="forward", rank=0, step=4)],
    "a whole replica": [Sabotage(point="forward", rank=2, step=4), Sabotage(point="forward", rank=3, step=4)],
    "between the reductions of the shards": [Sabotage(point="reduced", rank=3, step=4)],
    "before it gives its word": [Sabotage(point="preparing", rank=3, step=4)],
    "after all have given their word, before its apply": [Sabotage(point="agreed", rank=1, step=4)],
    "inside apply": [Sabotage(point="in-apply", rank=2, step=4)],
    "inside the last apply": [Sabotage(point="in-apply", rank=1, step=13)],
}


@pytest.mark.parametrize("plan", thinned(STORIES, 2))
def test_killed(plan: list[Sabotage], clean: Story, tmp_path: Path) -> None:
    story = play(tmp_path, *plan)
    assert_gang_promises(story, clean, *plan)
    assert story.finished.state.world_sizes == (2, 1)


HANGS = {
    "in forward, where its mate waits for it": (PLAIN, "forward", 1),
    "in mid-backward, fully sharded": (FSDP, "mid-backward", 2),
    "a stage in the middle": (PIPELINE, "forward", 4),
    "before it gives its word": (PLAIN, "preparing", 3),
}


@pytest.mark.parametrize(("training", "point", "rank"), thinned(HANGS, 4))
def test_who_hangs_is_told_from_its_mates(training: Training, point: str, rank: int, tmp_path: Path) -> None:
    """They wait for it inside the replica, and everybody else for them."""
    plan = [Sabotage(point=point, rank=rank, step=8, signal=signal.SIGSTOP)]
    size = {"replicas": (1, 3), "slots": 9} if training.width == 3 else {}
    clean = play(tmp_path / "clean", training=training, pause_s=0, **size)
    story = play(tmp_path / "story", *plan, training=training, hang_floor_s=0.5, **size)
    assert_gang_promises(story, clean, *plan)
    (hung,) = (line["worker"] for line in story.of("started") if line["pid"] == struck(story, plan[0]))
    fences = [line["worker"] for line in story.journal if line.get("command") == "Fence"]
    assert fences == [hung]
    replicas = clean.finished.state.world_sizes[0]
    assert story.finished.state.world_sizes == (replicas, replicas - 1)


def struck(story: Story, sabotage: Sabotage) -> int:
    return int((story.folder / f"fired-{sabotage.name}").read_text())


def test_who_has_given_its_word_applies_when_it_learns_that_others_have(clean: Story, tmp_path: Path) -> None:
    """One applies late; meanwhile all others have applied, and one of them dies in the next step."""
    plan = [
        Sabotage(point="stall", rank=3, step=4, delay_s=5.0),
        Sabotage(point="forward", rank=1, step=5, delay_s=0.5),
    ]
    story = play(tmp_path, *plan)
    assert_gang_promises(story, clean, *plan)
    answers = [line for line in story.journal if line.get("event") == "FreezeAnswered"]
    assert [answer["prepared"]["step"] for answer in answers if answer["prepared"]] == [4]
    (form,) = (line for line in story.journal if line.get("command") == "Form" and line["view"]["generation"] == 2)
    assert form["view"]["resume"]["step"] == 4 and form["view"]["behind"] == []


@pytest.mark.slow
def test_a_broken_replica_is_made_whole_and_joins_again(tmp_path: Path) -> None:
    """The worker that was left keeps its process and its model, and is healed like the one that comes."""
    plan, steps = [Sabotage(point="forward", rank=1, step=4)], 120
    story = play(tmp_path / "story", *plan, slots=5, steps=steps, pause_s=0.01)
    clean = play(tmp_path / "clean", steps=steps, pause_s=0)
    assert_gang_promises(story, clean, *plan, steps=steps)
    assert story.finished.state.world_sizes == (2, 1, 2)
    last = {line["worker"] for line in story.of("committed") if line["generation"] == 3}
    assert last == {"w0", "w2", "w3", "w4"}


def test_a_spare_replica_is_swapped_in_at_once(clean: Story, tmp_path: Path) -> None:
    plan = [Sabotage(point="forward", rank=2, step=4)]
    story = play(tmp_path, *plan, slots=6, spares=1, training=replace(PLAIN, parked=6))
    assert_gang_promises(story, clean, *plan)
    assert story.finished.state.world_sizes == (2, 2)


@pytest.mark.slow
def test_fully_sharded_a_worker_then_what_was_made_of_its_replica(tmp_path: Path) -> None:
    """FSDP2 and clipping over the replica's workers; models and their shards live through it."""
    plan = [Sabotage(point="mid-backward", rank=1, step=4), Sabotage(point="in-apply", rank=2, generation=3)]
    steps = 60
    clean = play(tmp_path / "clean", training=FSDP, steps=steps, pause_s=0)
    story = play(tmp_path / "story", *plan, training=FSDP, slots=6, steps=steps, pause_s=0.02)
    assert_gang_promises(story, clean, *plan, steps=steps)
    assert story.finished.state.world_sizes[:3] == (2, 1, 2)


def test_on_a_mesh_of_two_dimensions_a_worker_is_lost_in_mid_backward(tmp_path: Path) -> None:
    """Tensor parallelism and FSDP2: groups of some workers of a replica live as long as it does."""
    plan = [Sabotage(point="mid-backward", rank=5, step=4)]
    size: dict[str, Any] = {"replicas": (1, 2), "slots": 8}
    clean = play(tmp_path / "clean", training=MESH, pause_s=0, **size)
    story = play(tmp_path / "story", *plan, training=MESH, **size)
    assert_gang_promises(story, clean, *plan)
    assert story.finished.state.world_sizes == (2, 1)


@pytest.mark.slow
def test_one_of_three_pipelines_of_three_stages_loses_a_stage(tmp_path: Path) -> None:
    """Three-way data by three-way pipeline: the other two replicas go on."""
    plan = [Sabotage(point="forward", rank=4, step=4)]
    clean = play(tmp_path / "clean", training=PIPELINE, replicas=(1, 3), slots=9, pause_s=0)
    story = play(tmp_path / "story", *plan, training=PIPELINE, replicas=(1, 3), slots=9)
    assert_gang_promises(story, clean, *plan)
    assert story.finished.state.world_sizes == (3, 2)


def test_when_states_are_compared_is_known_to_all_shards(tmp_path: Path) -> None:
    """The leader's clock says so, unless the user does; who flips a bit is no worker of its shard."""
    flip = Sabotage(point="flip-weight", rank=3, step=90)
    story = play(tmp_path, flip, replicas=(1, 3), slots=6, steps=110)
    assert story.fired == {flip.name}
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    (incident,) = story.finished.state.incidents
    pid = int((story.folder / f"fired-{flip.name}").read_text())
    culprit = next(line["worker"] for line in story.of("started") if line["pid"] == pid)
    assert (incident.kind, incident.culprits) == (IncidentClass.SILENT_CORRUPTION, (culprit,))
    assert "outvoted on the state after step 99" in incident.evidence[0]


@pytest.mark.slow
def test_a_step_that_one_shard_drops_is_dropped_by_all_of_them(tmp_path: Path) -> None:
    """Else its shard would stay where the others go on."""
    stories = []
    for name, shards in {"all": (0, 1), "one": (1,)}.items():
        training = Training(function=gangs.train, width=2, options={"skipping": shards})
        stories.append(play(tmp_path / name, training=training))
    assert_gang_promises(stories[1], stories[0])
    for story in stories:
        assert [report.commit.step for report in story.reports if report.skipped] == [4]


@pytest.mark.parametrize("training", thinned({"by hand": PLAIN, "fully sharded": FSDP}, 2))
def test_an_infinity_in_one_shards_gradients_drops_the_step_for_all(training: Training, tmp_path: Path) -> None:
    """A scaler finds it in one worker's part only; the others would apply theirs, and a killed one is no excuse."""
    dropped = replace(training, options={**training.options, "skipping": (0, 1)})
    clean = play(tmp_path / "clean", training=dropped)
    plan = [Sabotage(point="reduced", rank=3, step=4)]
    odd = replace(training, options={**training.options, "overflowing": (1,)})
    story = play(tmp_path / "story", *plan, training=odd)
    assert_gang_promises(story, clean, *plan)


def test_a_slow_worker_has_its_whole_replica_dealt_less(tmp_path: Path) -> None:
    """Its mates are as fast as ever, and must compute the same micro-batches."""
    policy = Ladder(straggler=Kind.REDEAL)
    training = replace(PLAIN, options={"slow": ("w3", 0.05)}, policy=policy)
    story = play(tmp_path, training=training, replicas=(1, 3), slots=6, steps=60, pause_s=0.002, slow_steps=5)
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    first = story.finished.state.incidents[0]
    assert (first.kind, first.culprits) == (IncidentClass.STRAGGLER, ("w3",))
    dealt: dict[str, dict[tuple[int, int], list[list[int]]]] = {"consumed": {}, "consumed with it": {}}
    for what, by_place in dealt.items():
        for line in story.of(what):
            by_place.setdefault((line["step"], line["rank"]), []).append(line["ids"])
    assert dealt["consumed"] == dealt["consumed with it"]
    assert [len(dealt["consumed"][3, rank]) for rank in range(3)] == [2, 2, 2]
    assert [len(dealt["consumed"][59, rank]) for rank in range(3)] in ([3, 1, 2], [2, 1, 3])


PARTED = {
    "and is told so where shards meet": (
        "apart",
        Ending.TRAIN_FN_RAISED,
        "ConservationError: the workers of a replica",
    ),
    "and is waited for where shards talk": (
        "columns",
        Ending.NO_PROGRESS,
        r"the reduction of step .*, but for w\d, w\d,",
    ),
}


@pytest.mark.parametrize(("kind", "ending", "sentence"), thinned(PARTED, 1))
def test_a_shard_leaves_the_loop_before_its_mates(kind: str, ending: Ending, sentence: str, tmp_path: Path) -> None:
    """A mate that waits for it inside the model meets nobody, so all are seen waiting, again and again."""
    training = Training(function=gangs.train, width=2, options={"kind": kind, "leaving": (0,)})
    story = play(tmp_path, training=training, hang_floor_s=0.5, max_in_job_restarts=1)
    outcome = story.finished.outcome
    assert outcome is not None and outcome.ending is ending, outcome
    told = [outcome.message, *(why for one in story.finished.state.incidents for why in one.evidence)]
    assert any(re.search(sentence, why) for why in told), told


def test_the_tiny_llama_learns(tmp_path: Path) -> None:
    story = play(tmp_path, training=Training(function=gangs.train_llama, width=2), steps=30)
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    assert len({path.read_text() for path in tmp_path.glob("loss-*")}) == 1
    losses = [report.metrics["loss"] for report in story.reports]
    assert losses[-1] < losses[0] - 1.0


def test_an_evaluation_may_talk_inside_its_replica_and_is_made_again_where_it_breaks(tmp_path: Path) -> None:
    story = play(tmp_path, training=Training(function=gangs.train_and_evaluate, width=2))
    assert (tmp_path / "fired").exists()
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    told = [line["report"]["metrics"] for line in story.journal if line.get("event") == "StepStable"]
    assert sum("evaluation/error" in one for one in told) >= STEPS / 2 - 1
    assert story.finished.state.incidents


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_all_workers_of_a_replica_have_to_give_a_micro_batch_one_weight(
    apart: float, reproducible: bool, tmp_path: Path
) -> None:
    """Each shard divides by the sum of its own, so that the parts of one gradient would not fit."""
    work = partial(gangs.train_weighted, apart=apart, reproducible=reproducible)
    story = play(tmp_path, training=Training(function=work, width=2))
    if not apart:
        assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
        return
    assert story.finished.outcome.ending is Ending.TRAIN_FN_RAISED
    assert "the weight of the whole micro-batch" in story.finished.outcome.message
