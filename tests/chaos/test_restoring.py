"""Effect. State from the memory tier: all workers die, the run is started again, or is sent back while it trains."""

import contextlib
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elastic.actors.process_fleet import ProcessFleet
from elastic.actors.supervisor import Supervisor
from elastic.checkpoint.memory import MemorySource
from elastic.checkpoint.store import StoreError
from elastic.checkpoint.vault import open_vault
from elastic.control import events as ev
from elastic.control.commands import Command
from elastic.control.outcome import Ending
from elastic.control.state import RunState
from elastic.control.values import IncidentClass
from elastic.settings import Checkpoint, Interval
from tests.chaos import gangs
from tests.chaos.group import STEPS, Story, Training, assert_same_answer, committed_samples, run
from tests.chaos.saboteur import BATCH, Sabotage

pytestmark = pytest.mark.timeout(120)


def training(folder: Path, keep: bool = False, persistent: str | None = None, **options: Any) -> Training:
    memory = folder / "memory"
    memory.mkdir(parents=True, exist_ok=True)
    checkpoint = Checkpoint(local_interval=Interval(steps=1), memory=str(memory), persistent=persistent)
    return Training(checkpoint=checkpoint, at_end=(lambda run: None) if keep else None, **options)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return run(tmp_path_factory.mktemp("clean"))


def events(story: Story, kind: str) -> list[dict[str, Any]]:
    return [line for line in story.journal if line.get("event") == kind]


def assert_whole(story: Story, clean: Story) -> None:
    """The answer of the fault-free run, each sample once in the steps that stand."""
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    assert_same_answer(story, clean)
    assert committed_samples(story) == committed_samples(clean)
    assert sum(committed_samples(story).values()) == STEPS * BATCH


def test_all_workers_die_and_the_run_goes_on_from_their_memory(tmp_path: Path, clean: Story) -> None:
    plan = [Sabotage(point="forward", rank=rank, step=7) for rank in range(3)]
    story = run(tmp_path, *plan, slots=6, training=training(tmp_path))
    assert story.fired == {sabotage.name for sabotage in plan}
    assert_whole(story, clean)
    (fork,) = story.finished.state.forks
    assert 0 <= fork.step <= 6
    restored = events(story, "Restored")
    assert restored and all(line["commit"]["step"] == fork.step and line["nbytes"] > 0 for line in restored)
    assert all(place.startswith("memory ") for line in restored for place in line["places"])


@pytest.mark.slow
def test_both_shards_die_in_different_replicas(tmp_path: Path) -> None:
    """Whoever is left of the two replicas keeps its process, and goes back to the step that is whole."""
    plan = [Sabotage(point="forward", rank=rank, step=6) for rank in (0, 2)]
    options = {"function": gangs.train, "width": 2}
    story = run(tmp_path, *plan, replicas=(1, 2), slots=6, training=training(tmp_path, **options))
    clean = run(tmp_path / "clean", replicas=(1, 2), slots=4, training=Training(**options))
    assert story.fired == {sabotage.name for sabotage in plan}
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    assert len(story.finished.state.forks) == 1
    assert committed_samples(story) == committed_samples(clean)


def test_a_second_life_goes_on_where_the_first_one_ended(tmp_path: Path, clean: Story) -> None:
    first = run(tmp_path, steps=6, training=training(tmp_path, keep=True))
    assert first.finished.state.published == 5
    for lines in tmp_path.glob("*.jsonl"):
        lines.unlink()
    second = run(tmp_path, training=training(tmp_path))
    state = second.finished.state
    assert state.settings.incarnation == 2
    assert [fork.step for fork in state.forks] == [5]
    assert [report.commit.step for report in second.reports] == list(range(6, STEPS))
    assert_same_answer(second, clean)


class Rewinding(Supervisor):
    """Hears somebody ask for step 4 once step 6 is told."""

    skip = (0, 0)

    def observe(self, events: list[tuple[float, ev.Event]]) -> tuple[tuple[Command, ...], RunState]:
        if self._state.published >= 6 and not self._state.forks and self._state.restore is None:
            events = [*events, (events[-1][0], ev.RewindAsked(to_step=4, skip=self.skip))]
        return super().observe(events)


def make_durable(fleet: ProcessFleet, folder: Path) -> None:
    """As node actors do: every step that is sealed in memory goes to the store, until the memory is taken away."""
    name = fleet.settings.run
    memory, vault = MemorySource(folder / "memory", name), open_vault(str(folder / "store"), name, incarnation=1)
    done: set[int] = set()
    deadline_s = time.monotonic() + 60.0
    while not (done and not list((folder / "memory").iterdir())) and time.monotonic() < deadline_s:
        for manifest in memory.manifests():
            if manifest.commit.step not in done:
                with contextlib.suppress(StoreError):  # the slot was overwritten meanwhile
                    vault.commit(manifest.commit, [vault.upload(manifest, partial(memory.read, manifest.key))])
                    done.add(manifest.commit.step)


def test_a_run_is_sent_back_while_it_trains(tmp_path: Path, clean: Story) -> None:
    """Same processes, same objects, an older step; nobody is lost, and no incident is opened."""
    durable = training(tmp_path, persistent=str(tmp_path / "store"))
    story = run(tmp_path, supervisor=Rewinding, pause_s=0.1, during=make_durable, training=durable)
    assert_whole(story, clean)
    (fork,) = story.finished.state.forks
    assert fork.step <= 4
    told = [report.commit.step for report in story.reports]
    turn = told.index(fork.step + 1, told.index(6))
    assert told[turn:] == list(range(fork.step + 1, STEPS))
    assert story.finished.state.incidents == ()
    started = story.of("started")
    assert len(started) == 3 and len(story.of("finished")) == 3
    for end in story.of("finished"):
        (begin,) = (line for line in started if line["worker"] == end["worker"])
        assert (begin["pid"], begin["objects"]) == (end["pid"], end["objects"])


class LeavingOut(Rewinding):
    """And wants none of steps 7 and 8."""

    skip = (7, 9)


def test_batches_are_left_out_after_a_rewind(tmp_path: Path) -> None:
    durable = training(tmp_path, persistent=str(tmp_path / "store"))
    story = run(tmp_path, supervisor=LeavingOut, pause_s=0.1, during=make_durable, training=durable)
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    last_try = {report.commit.step: report for report in story.reports}
    assert sorted(last_try) == list(range(STEPS))
    assert [step for step, report in sorted(last_try.items()) if report.skipped] == [7, 8]
    (fork,) = story.finished.state.forks
    again = {line["step"] for line in story.of("consumed") if line["generation"] >= fork.generation}
    assert again == set(range(fork.step + 1, STEPS)) - {7, 8}


def differing(folder: Path, digest_steps: int) -> tuple[Story, str]:
    """Two replicas, one of which flips a bit; and the name of that one."""
    flip = Sabotage(point="flip-weight", rank=1, step=6)
    durable = training(folder, persistent=str(folder / "store"), options={"digest_steps": digest_steps})
    story = run(folder, flip, slots=2, replicas=(1, 2), pause_s=0.1, during=make_durable, training=durable)
    assert story.fired == {flip.name}
    assert len(story.finished.state.forks) == 1
    pid = int((story.folder / f"fired-{flip.name}").read_text())
    return story, next(line["worker"] for line in story.of("started") if line["pid"] == pid)


@pytest.mark.slow
def test_two_replicas_that_differ_go_back_to_what_they_had_agreed_on(tmp_path: Path, clean: Story) -> None:
    """Until the vote all have summed what the bit led to: nobody is right, and nobody is blamed."""
    story, _ = differing(tmp_path, digest_steps=2)
    assert_whole(story, clean)
    (tie,) = story.finished.state.incidents
    assert (tie.kind, tie.culprits) == (IncidentClass.SILENT_CORRUPTION, ())
    assert "no more than half agree" in tie.evidence[0]
    assert story.killed == set()


@pytest.mark.slow
def test_two_replicas_that_differ_find_out_who_was_wrong(tmp_path: Path, clean: Story) -> None:
    """The vote comes before anything was made of the bit: the steps done again show who was right."""
    story, culprit = differing(tmp_path, digest_steps=1)
    assert_whole(story, clean)
    tie, verdict = story.finished.state.incidents
    assert {tie.kind, verdict.kind} == {IncidentClass.SILENT_CORRUPTION}
    assert (tie.culprits, verdict.culprits) == ((), (culprit,))
    assert "done again" in verdict.evidence[0]
    assert story.killed == {culprit}
