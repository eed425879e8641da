"""Effect. From a map-style dataset and a plan to the micro-batches of one replica in one step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import default_collate

from elastic.control.batch_size import FixedMicroBatches, FollowReplicas, batch_sizes
from elastic.control.data import BatchPlan, MicroBatch, deal, hash32
from elastic.errors import SettingError


class Batches:
    """A dataset cut into steps; every replica holds one, and they agree by construction.

    Args:
        dataset: map-style: `len(dataset)`, `dataset[i]`, and `dataset.__getitems__(list)` where it has one.
        plan: how it is cut and ordered.
        collate: list of samples -> micro-batch.
        equal_rounds: hand an empty micro-batch to replicas that are dealt one less than others.
    """

    def __init__(
        self, dataset: Any, plan: BatchPlan, collate: Callable[[list[Any]], Any], equal_rounds: bool = False
    ) -> None:
        self.plan = plan
        self.equal_rounds = equal_rounds
        self.fingerprint = f"{hash32(plan, equal_rounds):08x}"
        self._dataset = dataset
        self._collate = collate

    def dealt(self, whole: Sequence[MicroBatch], shares: Sequence[int], rank: int) -> list[MicroBatch]:
        """Those of a step's micro-batches that `rank` computes; empty ones have numbers of their own.

        Args:
            shares: by rank, what its part is in proportion to.
        """
        hands = [deal(len(whole), shares, other) for other in range(len(shares))]
        mine = [whole[number] for number in hands[rank]]
        rounds = max(map(len, hands)) if self.equal_rounds else 0
        empty = range(len(mine), rounds)
        return mine + [MicroBatch(len(whole) + turn * len(shares) + rank, whole[0].first, 0) for turn in empty]

    def load(self, micro_batch: MicroBatch) -> Any:
        """Fetch and collate the samples of one micro-batch; an empty one has the shape of others, with no rows."""
        if micro_batch.count == 0:
            return _without_rows(self.load(replace(micro_batch, count=1)))
        indices = self.plan.sample_indices(micro_batch)
        fetch = getattr(self._dataset, "__getitems__", None)
        return self._collate(fetch(indices) if fetch else [self._dataset[i] for i in indices])


def make_batches(
    dataset: Any,
    *,
    batch_size: int | FollowReplicas | FixedMicroBatches,
    micro_batch_size: int | None,
    seed: int,
    shuffle: bool,
    collate: Callable[[list[Any]], Any] | None,
    equal_rounds: bool = False,
) -> Batches:
    """See `Session.batches`."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise SettingError(f"session.batches needs a map-style dataset (len and [i]), got {type(dataset).__name__}")
    sizes = batch_sizes(batch_size, micro_batch_size)
    plan = BatchPlan(samples=len(dataset), batch_size=sizes[0], micro_batch_size=sizes[1], seed=seed, shuffle=shuffle)
    return Batches(dataset, plan, collate or default_collate, equal_rounds)


def _without_rows(batch: Any) -> Any:
    """The batch with every tensor cut to no rows; lists of strings and the like stay as they are."""
    if isinstance(batch, torch.Tensor):
        return batch[:0] if batch.dim() else batch
    if isinstance(batch, Mapping):
        return {key: _without_rows(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(_without_rows, batch))
    return type(batch)(map(_without_rows, batch)) if isinstance(batch, list | tuple) else batch
