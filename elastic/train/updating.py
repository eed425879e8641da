"""Effect. One update of the parameters: what the user hands to `step.apply`, in its order."""

from collections.abc import Sequence
from typing import Any

import torch

from elastic.train.cursor import scaled_rates


def listed(given: Any) -> list[Any]:
    """One thing, several, or none."""
    return [one for one in (given if isinstance(given, list | tuple) else [given]) if one is not None]


class GroupValues:
    """What optimizers' groups say beside their parameters, at the door of a step: rates that are set by hand, say.

    An attempt that failed leaves them as they were, like all else; members differ in how far each had come.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._kept = [
            (group, name, value, value.clone() if isinstance(value, torch.Tensor) else None)
            for group in groups
            for name, value in group.items()
            if name != "params"
        ]

    def restore(self) -> None:
        for group, name, value, content in self._kept:
            if content is not None:
                value.copy_(content)
            group[name] = value


def update(
    optimizers: Sequence[torch.optim.Optimizer], schedulers: Sequence[Any], scaler: Any, rate_factor: float
) -> None:
    """Optimizers, at the step's rate; then a gradient scaler, if there is one; then schedulers."""
    with scaled_rates(optimizers, rate_factor):
        for optimizer in optimizers:
            scaler.step(optimizer) if scaler is not None else optimizer.step()
    if scaler is not None:
        scaler.update()
    for one in schedulers:
        one.step()
