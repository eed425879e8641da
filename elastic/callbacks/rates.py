"""Pure. Learning rates that follow the global batch."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from elastic.callbacks.worker import WorkerCallback
from elastic.errors import SettingError


def linear(batch: int, reference_batch: int) -> float:
    """Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017."""
    return batch / reference_batch


def square_root(batch: int, reference_batch: int) -> float:
    """For Adam and its kin: Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", 2022."""
    return math.sqrt(batch / reference_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledLR(WorkerCallback):
    """Learning rates follow the global batch, by a rule of your own.

    The factor acts inside the optimizer's step alone: schedulers, and the rates in `param_groups`, never see it.

    Cost: one multiplication for each parameter group and step.

    Attributes:
        rule: (global batch, reference batch) -> factor; it must give the same number on every worker.
        warmup_steps: steps over which a factor rises after a resize; it falls at once.
        reference_batch: global batch at which your rates hold as they are; None: that of the first committed step.

    Raises:
        SettingError: a number is out of its range.
    """

    rule: Callable[[int, int], float]
    warmup_steps: int = 0
    reference_batch: int | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.warmup_steps < 0:
            raise SettingError(f"{name}.warmup_steps={self.warmup_steps} must not be negative")
        if self.reference_batch is not None and self.reference_batch < 1:
            raise SettingError(f"{name}.reference_batch={self.reference_batch} must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLR(ScaledLR):
    """Learning rates in proportion to the global batch. Cost: as of `ScaledLR`."""

    rule: Callable[[int, int], float] = linear


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareRootLR(ScaledLR):
    """Learning rates in proportion to the square root of the global batch. Cost: as of `ScaledLR`."""

    rule: Callable[[int, int], float] = square_root
