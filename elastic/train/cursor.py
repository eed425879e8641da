"""Effect. Where a replica stands: what its committed steps have consumed, and at which pace; and the pace in effect.

It is part of what is tracked: joiners receive it, and replicas compare it. It changes inside `apply` alone.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch

from elastic.control.pace import Pace
from elastic.control.tuning import NOT_TUNED, Tuning
from elastic.errors import StepMisuseError


class Cursor:
    """Of the last committed step.

    Attributes:
        samples: consumed by all committed steps since the start of the run.
        pace: of the last one, None before the first.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.pace: Pace | None = None

    def move(self, samples: int, pace: Pace) -> None:
        """A step of so many samples is committed."""
        self.samples += samples
        self.pace = pace

    def state_dict(self) -> dict[str, Any]:
        return {"samples": self.samples, "pace": asdict(self.pace) if self.pace is not None else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.samples = state["samples"]
        told = state["pace"]
        self.pace = Pace(**{**told, "tuning": Tuning(**told["tuning"])}) if told is not None else None

    @property
    def tuning(self) -> Tuning:
        """What the last committed step was computed at."""
        return self.pace.tuning if self.pace is not None else NOT_TUNED


def rates(optimizers: Iterable[torch.optim.Optimizer]) -> tuple[float, ...]:
    """Learning rates as the user has set them, by parameter group.

    Raises:
        StepMisuseError: a group has none.
    """
    return tuple(float(_rate(optimizer, group)) for optimizer in optimizers for group in optimizer.param_groups)


@contextmanager
def scaled_rates(optimizers: Iterable[torch.optim.Optimizer], factor: float) -> Iterator[None]:
    """Learning rates times `factor` inside, and the very same objects as before afterwards.

    So a scheduler goes on from its own rates, whether it computes them afresh or from the last ones.

    Raises:
        StepMisuseError: a group has no rate that could be scaled.
    """
    if factor == 1.0:
        yield
        return
    groups = [(group, _rate(optimizer, group)) for optimizer in optimizers for group in optimizer.param_groups]
    try:
        for group, rate in groups:
            group["lr"] = rate * factor
        yield
    finally:
        for group, rate in groups:
            group["lr"] = rate


def _rate(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> Any:
    if "lr" not in group:
        raise StepMisuseError(
            f"a parameter group of {type(optimizer).__name__} has no learning rate (lr) that could follow the batch: "
            "take the learning-rate callback out of fit(callbacks=...)"
        )
    return group["lr"]
