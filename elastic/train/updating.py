"""Effect. One update of the parameters: what the user hands to `step.apply`, in its order."""

from collections.abc import Sequence
from typing import Any

import torch

from elastic.train.cursor import scaled_rates


def listed(given: Any) -> list[Any]:
    """One thing, several, or none."""
    return [one for one in (given if isinstance(given, list | tuple) else [given]) if one is not None]


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
