"""Slots of a run of one worker, and what was the state after each of its steps."""

from pathlib import Path
from typing import Any

from elastic.checkpoint import memory
from elastic.checkpoint.manifest import Manifest
from elastic.control import events as ev
from elastic.settings import Checkpoint, Interval
from elastic.train import tree
from tests.effects.helpers import eventually
from tests.effects.idiom import Training
from tests.effects.sealed import digest_of
from tests.effects.solo import Solo

RUN = "solo"
EVERY = Interval(steps=1)


class Book:
    """A directory for slots, and what was the state after each step."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.digests: dict[int, int] = {}
        self.source = memory.MemorySource(directory, RUN)

    def solo(self, interval: Interval = EVERY, peers: int = 0) -> Solo:
        checkpoint = Checkpoint(local_interval=interval, memory=str(self.directory), peers=peers)
        return Solo(self.directory, checkpoint=checkpoint, blame_grace_s=0.05)

    def note(self, step: Any, training: Training, place: str) -> None:
        """A hook for `trained`."""
        if place == "start":
            wait_for_slots(training.session)
        if place == "after":
            self.digests[step.index] = tree.digest(training.session._replica.tracked.flatten())

    @property
    def sealed(self) -> list[Manifest]:
        return list(self.source.manifests())

    def assert_sealed(self, *steps: int) -> None:
        assert [one.commit.step for one in self.sealed] == list(steps)
        for one in self.sealed:
            assert digest_of(self.source, one) == self.digests[one.commit.step], f"step {one.commit.step}"


def wait_for_slots(session: Any) -> None:
    """So that each step is staged, from the first one on: these steps are shorter than their sums take."""
    snapshots = session._replica.snapshots
    eventually(lambda: snapshots._is_ready, "the slots are reserved")
    snapshots.flush()


def staged(ended: Any) -> list[int]:
    return [event.commit.step for event in ended.events if isinstance(event, ev.ShardStaged)]
