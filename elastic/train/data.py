"""Effect. From a map-style dataset and a plan to the micro-batches of one replica in one step."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import default_collate

from elastic.control.data import BatchPlan, MicroBatch, deal, hash32
from elastic.errors import SettingError


class Batches:
    """A dataset cut into steps; every replica holds one, and they agree by construction.

    Args:
        dataset: map-style: `len(dataset)`, `dataset[i]`, and `dataset.__getitems__(list)` where it has one.
        plan: how it is cut and ordered.
        collate: list of samples -> micro-batch.
    """

    def __init__(self, dataset: Any, plan: BatchPlan, collate: Callable[[list[Any]], Any]) -> None:
        self.plan = plan
        self.fingerprint = f"{hash32(plan):08x}"
        self._dataset = dataset
        self._collate = collate

    def dealt(self, step: int, shares: Sequence[int], rank: int) -> list[MicroBatch]:
        """The micro-batches that `rank` computes in a step."""
        whole = self.plan.micro_batches(step)
        return [whole[number] for number in deal(len(whole), shares, rank)]

    def load(self, step: int, micro_batch: MicroBatch) -> Any:
        """Fetch and collate the samples of one micro-batch."""
        indices = self.plan.sample_indices(step, micro_batch)
        fetch = getattr(self._dataset, "__getitems__", None)
        return self._collate(fetch(indices) if fetch else [self._dataset[i] for i in indices])


def make_batches(
    dataset: Any,
    *,
    batch_size: int,
    micro_batch_size: int | None,
    seed: int,
    shuffle: bool,
    collate: Callable[[list[Any]], Any] | None,
) -> Batches:
    """See `Session.batches`."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise SettingError(f"session.batches needs a map-style dataset (len and [i]), got {type(dataset).__name__}")
    plan = BatchPlan(
        samples=len(dataset),
        batch_size=batch_size,
        micro_batch_size=micro_batch_size or batch_size,
        seed=seed,
        shuffle=shuffle,
    )
    return Batches(dataset, plan, collate or default_collate)
