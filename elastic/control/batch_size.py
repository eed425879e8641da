"""Pure. How many samples a step takes: a constant number, or one that follows the number of replicas."""

from dataclasses import dataclass
from typing import Protocol

from elastic.control.tuning import Tuning
from elastic.errors import SettingError


class BatchSize(Protocol):
    """The global batch as a function of the number of replicas."""

    def samples(self, replicas: int, micro_batch_size: int) -> int:
        """Samples of a whole global batch; the last one of an epoch is as short as what is left."""
        ...

    @property
    def default_micro_batch_size(self) -> int | None:
        """Samples of one forward where nothing else is said; None where it must be said."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantBatch:
    """The same global batch for any number of replicas; what an integer `batch_size` means.

    Raises:
        SettingError: `size` is not at least 1.
    """

    size: int

    def __post_init__(self) -> None:
        _at_least_one("batch_size", self.size)

    def samples(self, replicas: int, micro_batch_size: int) -> int:
        return self.size

    @property
    def default_micro_batch_size(self) -> int:
        return self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowReplicas:
    """A global batch of `per_replica` samples for each replica, so that a step lasts as long whatever their number.

    Raises:
        SettingError: `per_replica` is not at least 1.
    """

    per_replica: int

    def __post_init__(self) -> None:
        _at_least_one("FollowReplicas.per_replica", self.per_replica)

    def samples(self, replicas: int, micro_batch_size: int) -> int:
        return self.per_replica * replicas

    @property
    def default_micro_batch_size(self) -> int:
        return self.per_replica


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedMicroBatches:
    """Exactly `per_replica` micro-batches for each replica in each step, but for what is left at an epoch's end.

    Raises:
        SettingError: `per_replica` is not at least 1.
    """

    per_replica: int

    def __post_init__(self) -> None:
        _at_least_one("FixedMicroBatches.per_replica", self.per_replica)

    def samples(self, replicas: int, micro_batch_size: int) -> int:
        return self.per_replica * micro_batch_size * replicas

    @property
    def default_micro_batch_size(self) -> None:
        return None


def batch_sizes(batch_size: object, micro_batch_size: int | None) -> tuple[BatchSize, int]:
    """What `session.batches` was given, as a batch size and the samples of a micro-batch.

    Raises:
        SettingError: `batch_size` is neither an integer nor one of the values above, or a size is missing.
    """
    if isinstance(batch_size, int):
        batch_size = ConstantBatch(size=batch_size)
    if not isinstance(batch_size, ConstantBatch | FollowReplicas | FixedMicroBatches):
        raise SettingError(
            f"batch_size={batch_size!r} must be an integer, elastic.FollowReplicas(per_replica=...) or "
            "elastic.FixedMicroBatches(per_replica=...)"
        )
    if micro_batch_size is None:
        micro_batch_size = batch_size.default_micro_batch_size
    if micro_batch_size is None:
        raise SettingError(f"batch_size={batch_size} counts micro-batches: give micro_batch_size too")
    return batch_size, micro_batch_size


def tuned_sizes(batch_size: BatchSize, micro_batch_size: int, tuning: Tuning) -> tuple[BatchSize, int]:
    """The sizes of a step and of a micro-batch once they are tuned.

    Raises:
        SettingError: the batch follows the number of replicas, or is smaller than a micro-batch.
    """
    if tuning.batch_size is None and tuning.micro_batch_size is None:
        return batch_size, micro_batch_size
    if tuning.batch_size is not None:
        if not isinstance(batch_size, ConstantBatch):
            raise SettingError(
                f"the batch follows the number of replicas, batch_size={batch_size}: only a constant one can be tuned"
            )
        batch_size = ConstantBatch(size=tuning.batch_size)
    micro_batch_size = tuning.micro_batch_size or micro_batch_size
    if isinstance(batch_size, ConstantBatch) and batch_size.size < micro_batch_size:
        raise SettingError(
            f"a batch of {batch_size.size} samples is smaller than one micro-batch of {micro_batch_size}: lower "
            "micro_batch_size too"
        )
    return batch_size, micro_batch_size


def _at_least_one(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SettingError(f"{name}={value!r} must be an integer of at least 1")
