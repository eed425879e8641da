"""Effect. Where a replica stands: what its committed steps have consumed, and at which pace; and the pace in effect.

It is part of what is tracked: joiners receive it, and replicas compare it. It changes inside `apply` alone.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from math import nan
from typing import Any

import torch

from elastic.control.pace import Pace
from elastic.control.tuning import NOT_TUNED, Tuning
from elastic.errors import StepMisuseError

log = logging.getLogger("elastic")


class Cursor:
    """Of the last committed step.

    Attributes:
        samples: consumed by all committed steps since the start of the run.
        pace: of the last one, None before the first.
        is_compared: replicas compare their state before the next one.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.pace: Pace | None = None
        self.is_compared = False
        self._order: Mapping[str, Any] = {}
        self._order_here: Mapping[str, Any] = {}

    def read_in(self, order: Mapping[str, Any]) -> None:
        """What the order of samples follows from, from the next step on."""
        self._order_here = order

    def move(self, samples: int, pace: Pace, is_compared: bool = False) -> None:
        """A step of so many samples is committed."""
        self.samples += samples
        self.is_compared = is_compared
        self.pace, self._order = pace, self._order_here

    def state_dict(self) -> dict[str, Any]:
        state = {"samples": self.samples, "pace": asdict(self.pace) if self.pace is not None else None}
        state |= {"order": dict(self._order)} if self._order else {}  # older releases kept neither
        return state | ({"is_compared": True} if self.is_compared else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.samples, self.is_compared = state["samples"], state.get("is_compared", False)
        told = state["pace"]
        self.pace = Pace(**{**told, "tuning": Tuning(**told["tuning"])}) if told is not None else None
        self._order = state.get("order", {})
        self._tell_of_other_data()

    def _tell_of_other_data(self) -> None:
        """Another life of a run may have found other data, or another seed."""
        was, here = self._order, self._order_here
        changed = [f"{name} {was[name]}, now {value}" for name, value in here.items() if was.get(name, value) != value]
        if changed:
            log.warning(
                "the data is not what this state was trained on (%s): after its %d samples training goes on in another "
                "order, so that some samples of this epoch may come again, and some not at all",
                "; ".join(changed),
                self.samples,
            )

    @property
    def tuning(self) -> Tuning:
        """What the last committed step was computed at."""
        return self.pace.tuning if self.pace is not None else NOT_TUNED


def rates(optimizers: Iterable[torch.optim.Optimizer]) -> tuple[float, ...]:
    """Learning rates as the user has set them, by parameter group; nan where a group has none."""
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return tuple(nan if (rate := group.get("lr")) is None else float(rate) for group in groups)


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
    if group.get("lr") is None:
        raise StepMisuseError(
            f"a parameter group of {type(optimizer).__name__} has no learning rate (lr) that could follow the batch: "
            "take the learning-rate callback out of fit(callbacks=...)"
        )
    return group["lr"]
