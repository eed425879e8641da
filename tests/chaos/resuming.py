"""Effect. The saboteur's training function, which keeps all it has at the end: objects, and its generators."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elastic.train.session import Session
from elastic.train.step import Step
from tests.chaos import saboteur

KEPT = "kept.pt"
SCALE = 2.0**8  # at the beginning; grows in each third step, so the count since counts, too


class Diary:
    """What a user keeps of a run beside tensors: all kinds of JSON, nested, and more of it with each step."""

    def __init__(self) -> None:
        self._told: dict[str, Any] = {"best": None, "is_odd": False, "name": "täglich", "last": {}, "all": []}

    def write(self, step: Any) -> None:
        best = self._told["best"]
        self._told["best"] = step.loss if best is None else min(best, step.loss)
        self._told["is_odd"], self._told["last"] = step.index % 2 == 1, {"step": step.index, "samples": step.samples}
        self._told["all"] = [*self._told["all"], step.loss]

    def state_dict(self) -> dict[str, Any]:
        return self._told

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._told = state


def train(session: Session, *, folder: Path, **usual: Any) -> str:
    """See `saboteur.train`, with a scaler of gradients and a diary; the leader writes `KEPT`."""
    scaler, diary = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=3), Diary()
    session.track(scaler=scaler, diary=diary)
    scale_under(session, scaler, diary)
    digest = saboteur.train(session, folder=folder, **usual)
    if session.is_leader:
        objects = {name: one.state_dict() for name, one in session._replica.tracked._objects.items()}
        drawn = {"torch": torch.rand(8), "numpy": torch.from_numpy(np.random.rand(8))}
        drawn["python"] = torch.tensor([random.random() for _ in range(8)])
        torch.save(objects | {"drawn": drawn}, folder / KEPT)
    return digest


def scale_under(session: Session, scaler: torch.amp.GradScaler, diary: Diary) -> None:
    """Steps scale their losses, unscale before they clip, and write, for as long as this process lives."""
    iterate, backward, apply = Step.__iter__, Step.backward, Step.apply

    def unscaled(self: Step) -> Iterator[Any]:
        yield from iterate(self)
        for optimizer in session._replica.tracked.optimizers:
            scaler.unscale_(optimizer)

    def scaled(self: Step, loss: torch.Tensor) -> None:
        backward(self, loss, scaler)

    def applied(self: Step, *optimizers: torch.optim.Optimizer, scheduler: Any = None) -> None:
        apply(self, *optimizers, scheduler=scheduler, scaler=scaler)
        diary.write(self)

    Step.__iter__, Step.backward, Step.apply = unscaled, scaled, applied  # type: ignore[method-assign, assignment]
