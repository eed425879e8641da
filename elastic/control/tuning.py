"""Pure. What may be changed while a run goes on: learning rates, the sizes of steps, and of buckets of gradients.

A tuning travels with a view, so that all members of a generation use the same one from its first step on, and it is
part of the pace of a committed step, so that whoever is healed, or takes the run up again, has it too.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from elastic.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Settings that take the place of those in train_fn; None leaves one as it is.

    Attributes:
        lr_factor: what the learning rates that train_fn sets are multiplied with, beside what follows the batch.
        batch_size: samples of a step. micro_batch_size: samples of one forward.
        bucket_bytes: gradients are summed in buckets of about this size.

    Raises:
        SettingError: a number is out of its range.
    """

    lr_factor: float | None = None
    batch_size: int | None = None
    micro_batch_size: int | None = None
    bucket_bytes: int | None = None

    def __post_init__(self) -> None:
        factor = self.lr_factor
        if factor is not None and not (math.isfinite(factor) and factor > 0):
            raise SettingError(f"lr_factor={factor} must be a positive number; 1 puts the rates of train_fn back")
        for name in ("batch_size", "micro_batch_size", "bucket_bytes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise SettingError(f"{name}={value!r} must be an integer of at least 1")

    def over(self, base: "Tuning") -> "Tuning":
        """What holds when this is asked for where `base` holds."""
        return replace(base, **{name: value for name, value in self._items() if value is not None})

    def is_part_of(self, other: "Tuning") -> bool:
        """Whether nothing changes when this is asked for where `other` holds."""
        return self.over(other) == other

    @property
    def felt(self) -> "Tuning":
        """What of it train_fn can notice: not in which pieces gradients are summed."""
        return replace(self, bucket_bytes=None)

    @property
    def rate_factor(self) -> float:
        return 1.0 if self.lr_factor is None else self.lr_factor

    def _items(self) -> list[tuple[str, Any]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._items() if value is not None) or "nothing"


NOT_TUNED = Tuning()
