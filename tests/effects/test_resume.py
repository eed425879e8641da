"""Effect. C11: training that is restored in the middle ends with the same bits; C8: restoring while steps are saved."""

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from elastic.checkpoint.catalog import candidates
from elastic.checkpoint.reader import take_inventory
from elastic.checkpoint.store import MissingError
from elastic.control.batch_size import ConstantBatch
from elastic.control.data import BatchPlan
from elastic.control.pace import Pace
from elastic.errors import RefusedError
from elastic.train import rng, tree
from elastic.train.cursor import Cursor
from elastic.train.restore import restore
from elastic.train.tracked import Tracked
from tests.effects.helpers import LONG_S, Running
from tests.effects.shelves import RUN, Shelf, numbers, of, shard_of

SEED, SAMPLES, BATCH, STEPS = 5, 23, 6, 7


class Notes:
    """A user's own state, in JSON."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {"best": None, "losses": [], "last": {}}

    def write(self, step: int, loss: float) -> None:
        best = self.told["best"]
        losses = [*self.told["losses"], loss]
        self.told = {
            "best": loss if best is None else min(best, loss),
            "losses": losses,
            "last": {"step": step, "is_odd": step % 2 == 1},
        }

    def state_dict(self) -> dict[str, Any]:
        return self.told

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.told = state


class Training:
    """Dropout, BatchNorm, shuffling, Adam, a schedule, an average of the weights, a scaler of gradients, notes in JSON,
    and draws of every generator.
    """

    def __init__(self) -> None:
        torch.manual_seed(random.randrange(1 << 30))  # what it is built with must not matter after a restore
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.average = nn.Linear(4, 8)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 2 * STEPS)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=random.choice([2.0, 8.0, 32.0]), growth_interval=3)
        self.scaler.scale(torch.zeros(()))  # sets it up, as a session does before each step
        self.cursor, self.notes = Cursor(), Notes()
        self.drawn: list[float] = []
        self.seen: list[int] = []
        self.tracked = Tracked()
        self.tracked.add(
            {
                "elastic.cursor": self.cursor,
                "model": self.model,
                "average": self.average,
                "optimizer": self.optimizer,
                "scheduler": self.scheduler,
                "scaler": self.scaler,
                "notes": self.notes,
            }
        )

    def train(self, first: int, steps: int) -> "Training":
        """Steps as a session makes them: order and random state follow from seed, step and cursor."""
        data = numbers(SAMPLES, 4) / 50
        size = ConstantBatch(size=BATCH)
        plan = BatchPlan(samples=SAMPLES, batch_size=size, micro_batch_size=BATCH, seed=SEED, shuffle=True)
        for step in range(first, first + steps):
            rng.seed_all(SEED, step, 0)
            (whole,) = plan.cut(self.cursor.samples, replicas=1)
            indices = plan.sample_indices(whole)
            self.seen += indices
            self.drawn += [random.random(), float(np.random.rand()), float(torch.rand(()))]
            self.optimizer.zero_grad()
            loss = self.model(data[indices]).square().mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.notes.write(step, loss.item())
            with torch.no_grad():
                for mine, other in zip(self.average.parameters(), self.model[0].parameters(), strict=True):
                    mine.lerp_(other, 0.1)
            self.cursor.move(whole.count, Pace(replicas=1, batch=BATCH, reference_batch=BATCH))
        return self

    def shelf(self, step: int) -> Shelf:
        names = {name: thing.state_dict() for name, thing in self.tracked._objects.items()}
        return Shelf([shard_of(names, step=step)])


def test_c11_restored_training_ends_with_the_same_bits():
    random.seed(1)
    torch.manual_seed(1)
    base = Training()
    start = base.shelf(-1)
    through = base.train(0, 2 * STEPS)

    first = Training()
    restore(first.tracked, *of(start))
    first.train(0, STEPS)
    second = Training()
    restore(second.tracked, *of(first.shelf(STEPS - 1)))
    assert second.tracked.digests() == first.tracked.digests()
    second.train(STEPS, STEPS)
    assert second.tracked.digests() == through.tracked.digests()
    assert first.seen + second.seen == through.seen and first.drawn + second.drawn == through.drawn
    for name, value in through.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    assert second.scaler.state_dict() == through.scaler.state_dict() and second.scaler._growth_tracker
    assert second.notes.told == through.notes.told and len(second.notes.told["losses"]) == 2 * STEPS


class Turning(Shelf):
    """Keeps two steps of one shard, and drops the older one for a newer one while others read."""

    def __init__(self) -> None:
        super().__init__([])
        self.lock = threading.Lock()
        self.dropped = 0

    def save(self, step: int) -> None:
        with self.lock:
            self.shards = [*self.shards[-1:], shard_of({"thing": {"x": torch.full((600,), float(step))}}, step=step)]
            self.dropped += step > 1

    def manifests(self, step=None):
        with self.lock:
            return [manifest for manifest, _ in self.shards if step in (None, manifest.commit.step)]

    def read(self, key, begin, end):
        with self.lock:
            kept = [payload for manifest, payload in self.shards if manifest.key.is_same(key)]
        if not kept:
            raise MissingError("dropped meanwhile")
        return kept[0][begin:end]


class Thing:
    def __init__(self) -> None:
        self.state = {"x": torch.zeros(600)}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


@pytest.mark.parametrize("readers", [1, 2])
def test_c08_restoring_while_steps_are_saved_and_dropped(readers):
    """Each reader ends with one whole step, never with parts of two; a step that was dropped meanwhile is refused."""
    shelf, ending = Turning(), threading.Event()
    shelf.save(0)

    def save() -> None:
        step = 1
        while not ending.is_set():
            shelf.save(step)
            step += 1

    def read() -> tuple[int, int]:
        whole = refused = 0
        for _ in range(60):
            thing, things = Thing(), Tracked()
            things.add({"thing": thing})
            (best, *_) = candidates(take_inventory([shelf], LONG_S).holders, RUN)
            try:
                report = restore(things, best)
            except RefusedError:
                refused += 1
                continue
            assert torch.equal(thing.state["x"], torch.full((600,), float(report.commit.step)))
            whole += 1
        return whole, refused

    saving = Running(save)
    results = [reading.result() for reading in [Running(read) for _ in range(readers)]]
    ending.set()
    saving.result()
    assert shelf.dropped > 60
    assert all(whole + refused == 60 for whole, refused in results)


def test_the_state_that_is_packed_is_the_state_that_is_flattened():
    """What the tests save with writes what the tree says."""
    state = {"m": {"w": numbers(3, 2), 5: (1, None, "x", numbers(0))}}
    manifest, _ = shard_of(state)
    assert manifest.skeleton.encode() == tree.flatten(state).skeleton
