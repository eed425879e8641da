"""Effect. Snapshots of every step, of runs that lose workers: what is sealed is what was committed, and stable."""

import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elastic.actors.process_fleet import ProcessFleet
from elastic.callbacks import WorkerCallback
from elastic.checkpoint import memory
from elastic.checkpoint.manifest import Manifest
from elastic.control.outcome import Ending
from elastic.control.values import CommitId
from elastic.settings import Checkpoint, Interval
from tests.chaos import gangs
from tests.chaos.group import STEPS, Story, Training, run, thinned
from tests.chaos.saboteur import Sabotage, train
from tests.effects.book import wait_for_slots
from tests.effects.sealed import digest_of

pytestmark = pytest.mark.timeout(120)
EVERY_STEP = Interval(steps=1)
SELDOM = Interval(steps=1000)
STEADY_S = 0.05  # for each micro-batch: a step takes longer than its sums do, on a busy machine, too


class WithSlots(WorkerCallback):
    """No step is begun before there is room for snapshots."""

    def on_begin(self, session: Any) -> None:
        self._session = session

    def on_step_begin(self, step: Any) -> None:
        if step.index == 0 and self._session._replica.snapshots._is_stager:
            wait_for_slots(self._session)


@dataclass
class Found:
    """What a run has left in the memory tier: manifests, and digests of the states that they describe."""

    directory: Path
    digests: dict[tuple[int, str, int], int] = field(default_factory=dict)
    manifests: list[Manifest] = field(default_factory=list)

    def collect(self, run: str) -> None:
        """Read all that is sealed, then take it away."""
        source = memory.MemorySource(self.directory, run)
        self.manifests = list(source.manifests())
        for manifest in self.manifests:
            commit = manifest.commit
            self.digests[commit.step, commit.lineage, manifest.shard] = digest_of(source, manifest)
        memory.remove(self.directory, run)

    @property
    def newest(self) -> Manifest:
        return self.manifests[0]


def staged(story: Story) -> list[dict[str, Any]]:
    return [line for line in story.journal if line.get("event") == "ShardStaged"]


def play(
    folder: Path,
    *plan: Sabotage,
    interval: Interval = EVERY_STEP,
    function: Any = train,
    width: int = 1,
    callbacks: tuple[WorkerCallback, ...] = (),
    **options: Any,
) -> tuple[Story, Found]:
    """Run with an own directory for memory, so that nobody else's tests look at it."""
    found = Found(folder / "memory")
    found.directory.mkdir()
    checkpoint = Checkpoint(local_interval=interval, memory=str(found.directory))
    training = Training(
        function=function, width=width, callbacks=callbacks, checkpoint=checkpoint, at_end=found.collect
    )
    story = run(folder, *plan, training=training, **options)
    assert list(found.directory.iterdir()) == []
    assert story.fired == {sabotage.name for sabotage in plan}, "a sabotage did not strike"
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    return story, found


def assert_sealed_is_stable(story: Story, found: Found, steps: int = STEPS) -> None:
    """All that was ever sealed is a step as it was told; what lies there in the end is what workers held then."""
    told = {report.commit.step: report.commit for report in story.reports}
    assert sorted(told) == list(range(steps))
    for line in staged(story):
        assert CommitId(**line["commit"]).same_state(told[line["commit"]["step"]])
    held = {line["step"]: line["state"] for line in story.of("committed")}
    assert found.digests
    for (step, lineage, _), digest in found.digests.items():
        assert lineage == told[step].lineage
        assert digest == held[step]
    assert found.newest.commit == told[steps - 1]


def test_every_step_of_an_undisturbed_run_is_sealed_once(tmp_path: Path) -> None:
    story, found = play(tmp_path, callbacks=(WithSlots(),), pause_s=STEADY_S)
    assert_sealed_is_stable(story, found)
    steps = [line["commit"]["step"] for line in staged(story)]
    assert steps == sorted(steps)
    assert len(steps) > STEPS / 2  # a sum that is not done yet when the next step ends leaves that one out
    assert len({line["worker"] for line in staged(story)}) == 1, "workers of one host staged the same shard"
    assert found.newest.replicas == 3


STORIES = {
    "a replica that stages nothing": [Sabotage(point="forward", rank=1, step=4)],
    "the one that stages": [Sabotage(point="forward", rank=0, step=4)],
    "the one that stages, inside apply": [Sabotage(point="in-apply", rank=0, step=6)],
    "in the last step": [Sabotage(point="forward", rank=0, step=STEPS - 1)],
    "the only one that had applied a step, and staged it": [
        Sabotage(point="reduced", rank=2, step=4, delay_s=0.5),
        Sabotage(point="stall", rank=1, step=4, delay_s=5.0),
        Sabotage(point="giving", rank=0, generation=2),
    ],
}


@pytest.mark.parametrize("plan", thinned(STORIES, 4))
def test_killed(plan: list[Sabotage], tmp_path: Path) -> None:
    story, found = play(tmp_path, *plan)
    assert_sealed_is_stable(story, found)
    alive = {line["commit"]["step"] for line in staged(story) if line["worker"] not in story.killed}
    assert STEPS - 1 in alive


@pytest.mark.slow
def test_all_stop_for_a_joiner_and_the_step_they_stop_at_is_sealed(tmp_path: Path) -> None:
    """Else hardly any is staged: the first one, and the last."""
    steps = 120
    plan = [Sabotage(point="forward", rank=2, step=4)]
    story, found = play(tmp_path, *plan, interval=SELDOM, slots=4, steps=steps, pause_s=0.01)
    assert story.finished.state.world_sizes[:3] == (3, 2, 3)
    assert_sealed_is_stable(story, found, steps)
    answered = [line["commit"]["step"] for line in story.journal if line.get("event") == "FreezeAnswered"]
    assert {line["commit"]["step"] for line in staged(story)} >= {max(answered), steps - 1}
    assert len(staged(story)) < 8


def test_each_shard_of_a_gang_stages_the_same_steps(tmp_path: Path) -> None:
    plan = [Sabotage(point="mid-backward", rank=2, step=4)]
    fsdp = partial(gangs.train, kind="fsdp")
    steady: dict[str, Any] = {"callbacks": (WithSlots(),), "pause_s": STEADY_S}
    story, found = play(tmp_path, *plan, function=fsdp, width=2, slots=4, replicas=(1, 2), **steady)
    told = {report.commit.step: report.commit for report in story.reports}
    by_shard = [{line["commit"]["step"] for line in staged(story) if line["shard"] == shard} for shard in (0, 1)]
    assert len(by_shard[0] & by_shard[1]) > STEPS / 2
    assert {(one.commit.same_state(told[one.commit.step]), one.shards) for one in found.manifests} == {(True, 2)}
    newest = [one for one in found.manifests if one.commit.step == STEPS - 1]
    assert [one.shard for one in newest] == [0, 1]
    uneven = [next(entry for entry in one.entries if entry.path == "/model/0.weight") for one in newest]
    assert [(entry.whole, entry.at, entry.shape) for entry in uneven] == [
        ((9, 6), (0, 0), (5, 6)),
        ((9, 6), (5, 0), (4, 6)),
    ]


@pytest.mark.parametrize("killed", thinned({"the one that stages": 0, "another": 1}, 2))
def test_survivors_that_wait_in_vain_have_saved_their_newest_step(killed: int, tmp_path: Path) -> None:
    """Two of two are needed, one dies, nobody comes: the next life begins where the survivor was."""
    memory = tmp_path / "memory"
    memory.mkdir()
    checkpoint = Checkpoint(local_interval=SELDOM, memory=str(memory))
    training = Training(checkpoint=checkpoint, at_end=lambda name: None)
    plan = Sabotage(point="forward", rank=killed, step=7)
    first = run(tmp_path, plan, replicas=(2, 2), slots=2, training=training, jobset_downtime_threshold_s=2.0)
    assert first.fired == {plan.name} and len(first.killed) == 1
    assert first.finished.outcome.ending is Ending.NOT_ENOUGH_SLOTS, first.finished.outcome
    assert [line["step"] for line in first.of("committed")].count(6) == 2
    assert staged(first)[-1]["commit"]["step"] == 6
    second = run(tmp_path, replicas=(2, 2), slots=2, training=replace(training, at_end=None))
    assert second.finished.outcome.ending is Ending.SUCCEEDED, second.finished.outcome
    assert {line["commit"]["step"] for line in second.journal if line.get("event") == "Restored"} == {6}
    assert [report.commit.step for report in second.reports] == list(range(7, STEPS))


def test_a_run_that_ended_leaves_nothing_in_shared_memory(tmp_path: Path) -> None:
    """The fixture against leaks looks at it; here, that there was something."""
    seen: set[str] = set()

    def look(fleet: ProcessFleet, folder: Path) -> None:
        deadline_s = time.monotonic() + 30
        while not seen and time.monotonic() < deadline_s:
            seen.update(path.name for path in Path("/dev/shm").glob("elastic-chaos-*.slot"))

    story = run(tmp_path, during=look, training=Training(checkpoint=Checkpoint(local_interval=EVERY_STEP)))
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    assert seen
