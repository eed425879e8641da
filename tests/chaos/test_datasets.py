"""Effect. SIGKILL with data in flight, prefetched or streamed: samples once, epochs exact, the same answer."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from elastic.control.outcome import Ending
from elastic.train.data import Source
from elastic.train.session import Session
from tests.chaos.group import (
    Story,
    Training,
    assert_no_stable_step_lost,
    assert_same_answer,
    assert_survivors_never_restart,
    committed_samples,
    run,
    thinned,
)
from tests.chaos.saboteur import SAMPLES, Sabotage, Samples
from tests.effects.helpers import eventually

pytestmark = pytest.mark.timeout(180)
BATCH, MICRO_BATCH = 28, 4  # 8 steps of 28 and one of 16 make an epoch of 240
STEPS = 20


class Noting(Samples):
    """Writes down who has loaded what: the training process that the loader process belongs to, and the sample."""

    def __init__(self, folder: Path) -> None:
        self._log, self._owner = folder / "loaded", os.getpid()

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(log, f"{self._owner} {os.getpid()} {index}\n".encode())
        os.close(log)
        drawn, (index, x) = torch.rand(6, dtype=torch.float64), super().__getitem__(index)
        return index, x + drawn  # augmentation


def prefetched(session: Session, folder: Path, micro_batch: int) -> Source:
    return session.batches(Noting(folder), batch_size=BATCH, micro_batch_size=micro_batch, workers=1, prefetch=6)


class Part:
    """Every so-manieth sample, with its place as state."""

    def __init__(self, index: int, count: int) -> None:
        self._indices, self._place = range(index, SAMPLES, count), 0

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor]]:
        while self._place < len(self._indices):
            index = self._indices[self._place]
            self._place += 1
            yield index, Samples()[index][1] + torch.rand(6, dtype=torch.float64)

    def state_dict(self) -> dict[str, int]:
        return {"place": self._place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._place = state["place"]


class Parts:
    def stream(self, index: int, count: int, epoch: int) -> Part:
        return Part(index, count)


def streamed(session: Session, folder: Path, micro_batch: int) -> Source:
    """21 streams, 7 of them in a step: 9 of 12 samples and 12 of 11, so an epoch ends with short micro-batches."""
    return session.streams(Parts(), streams=21, batch_size=BATCH, micro_batch_size=micro_batch)


KINDS = {"prefetched": prefetched, "streamed": streamed}


def training_of(kind: str) -> Training:
    return Training(options={"batch_size": KINDS[kind]})


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Story]:
    """The fault-free runs, by one replica."""
    return {
        kind: run(
            tmp_path_factory.mktemp(kind),
            replicas=(1, 1),
            slots=1,
            steps=STEPS,
            micro_batch=MICRO_BATCH,
            training=training_of(kind),
        )
        for kind in KINDS
    }


def assert_epochs(story: Story) -> None:
    """Steps that end an epoch are short, and a whole epoch has each sample once."""
    sizes = {line["step"]: line["samples"] for line in story.of("committed")}
    by_step = committed_samples(story)
    consumed, taken = 0, Counter[int]()
    for step in range(len(sizes)):
        mine = Counter({sample: n for (at, sample), n in by_step.items() if at == step})
        assert sum(mine.values()) == sizes[step], f"step {step}"
        taken += mine
        consumed += sizes[step]
        assert consumed % SAMPLES + 1 > sizes[step] or consumed % SAMPLES == 0, "a step crosses the end of an epoch"
        if consumed % SAMPLES == 0:
            assert taken == Counter(range(SAMPLES)), f"the epoch that ends with step {step}"
            taken.clear()
    assert consumed > SAMPLES and min(sizes.values()) < BATCH, "no epoch has ended"


def assert_holds(story: Story, clean: Story, *plan: Sabotage, killed: int = 1, steps: int = STEPS) -> None:
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    assert story.fired == {sabotage.name for sabotage in plan}, "a sabotage did not strike"
    assert len(story.killed) == killed
    assert_no_stable_step_lost(story, steps)
    assert_epochs(story)
    assert committed_samples(story) == committed_samples(clean)
    assert_same_answer(story, clean)
    assert_survivors_never_restart(story)


STORIES = {
    "in mid-step": [Sabotage(point="forward", rank=1, step=4)],
    "while others wait": [Sabotage(point="pending", rank=0, step=4, delay_s=0.3)],
    "inside apply": [Sabotage(point="in-apply", rank=1, step=4)],
    "in the short last step of an epoch": [Sabotage(point="pending", rank=2, step=8, delay_s=0.3)],
    "before the first commit": [Sabotage(point="forward", rank=2, step=0)],
    "one applied, another was stopped before it": [
        Sabotage(point="reduced", rank=2, step=4),
        Sabotage(point="stall", rank=1, step=4, delay_s=1.0),
    ],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", thinned(STORIES, 6))
def test_killed_with_data_in_flight(plan: list[Sabotage], kind: str, clean: dict[str, Story], tmp_path: Path) -> None:
    story = run(tmp_path, *plan, steps=STEPS, micro_batch=MICRO_BATCH, training=training_of(kind))
    assert_holds(story, clean[kind], *plan)
    if kind == "prefetched":
        assert_was_in_flight(story)
        assert_no_loader_is_left(story)


def assert_was_in_flight(story: Story) -> None:
    """The dead worker's loader processes had loaded what it never consumed."""
    (victim,) = story.killed
    (pid,) = (line["pid"] for line in story.of("started") if line["worker"] == victim)
    loaded = {index for owner, _, index in loads(story) if owner == pid}
    consumed = {index for line in story.of("consumed") if line["worker"] == victim for index in line["ids"]}
    assert loaded - consumed, "nothing was in flight"


def assert_no_loader_is_left(story: Story) -> None:
    pids = {pid for owner, pid, _ in loads(story) if owner != pid}
    assert len(pids) >= 3
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the loader processes have ended")


def loads(story: Story) -> list[tuple[int, int, int]]:
    lines = (story.folder / "loaded").read_text().splitlines()
    return [(int(owner), int(pid), int(index)) for owner, pid, index in map(str.split, lines)]


@pytest.mark.parametrize("kind", thinned({kind: kind for kind in KINDS}, len(KINDS)))
def test_a_spare_takes_over_what_the_dead_one_had_in_flight(kind: str, clean: dict[str, Story], tmp_path: Path) -> None:
    plan = [Sabotage(point="pending", rank=1, step=4, delay_s=0.5)]
    story = run(
        tmp_path,
        *plan,
        slots=4,
        spares=1,
        steps=STEPS,
        pause_s=0.01,
        micro_batch=MICRO_BATCH,
        training=training_of(kind),
    )
    assert_holds(story, clean[kind], *plan)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_joiner_is_dealt_its_part(kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A replacement is started after a loss, and joins at the end of a step."""
    steps, plan = 160, [Sabotage(point="forward", rank=2, step=4)]
    story = run(
        tmp_path, *plan, slots=4, steps=steps, pause_s=0.01, micro_batch=MICRO_BATCH, training=training_of(kind)
    )
    alone = tmp_path_factory.mktemp("alone")
    whole = run(
        alone, replicas=(1, 1), slots=1, steps=steps, pause_s=0, micro_batch=MICRO_BATCH, training=training_of(kind)
    )
    assert_holds(story, whole, *plan, steps=steps)
    assert story.finished.state.world_sizes == (3, 2, 3)
