"""Effect. From a micro-batch to its samples, the same in the training thread and in a loader process.

Before each sample, random state is seeded by (seed, epoch, index): augmentation does not depend on who loads it.
"""

import pickle
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from elastic.control.data import BatchPlan, MicroBatch
from elastic.errors import SettingError
from elastic.train import rng


class Loading:
    """Fetches and collates the samples of micro-batches.

    Args:
        dataset: map-style: `dataset[i]`, or `dataset.__getitems__(list)` where it has that.
        collate: list of samples -> micro-batch.
    """

    def __init__(self, dataset: Any, plan: BatchPlan, collate: Callable[[list[Any]], Any]) -> None:
        self.dataset, self._plan, self._collate = dataset, plan, collate

    def __getitem__(self, micro_batch: MicroBatch) -> Any:
        """The micro-batch; an empty one has the shape of others, with no rows."""
        if micro_batch.count == 0:
            return _without_rows(self[replace(micro_batch, count=1)])
        indices = self._plan.sample_indices(micro_batch)
        epoch = self._plan.epoch_of(micro_batch.first)
        fetch = getattr(self.dataset, "__getitems__", None)
        if fetch is None:
            return self._collate([self._sample(epoch, index) for index in indices])
        rng.seed_all(self._plan.seed, epoch, indices[0])
        return self._collate(fetch(indices))

    def _sample(self, epoch: int, index: int) -> Any:
        rng.seed_all(self._plan.seed, epoch, index)
        return self.dataset[index]


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of the dataset, on its way from a loader process to the training thread."""

    error: Exception

    def reraise(self) -> None:
        raise self.error


class Carried:
    """A `Loading` as bytes: unpacked in the loader process, where an error in that is the dataset's too.

    Args:
        data: from a pickler that also carries classes of the user's script.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._loading: Loading | None = None

    def __getitem__(self, micro_batch: MicroBatch) -> "bytes | Failure":
        """The micro-batch, pickled here: where that fails in the queue's own thread, nobody would hear of it."""
        try:
            if self._loading is None:
                self._loading = pickle.loads(self._data)
            return _pickled(self._loading[micro_batch])
        except Exception as error:
            error.add_note(f"In a loader process:\n{traceback.format_exc().rstrip()}")
            return Failure(_portable(error))


def _pickled(batch: Any) -> bytes:
    """Tensors go through shared memory, as torch's own loaders have it.

    Raises:
        SettingError: it cannot go to another process.
    """
    try:
        return bytes(ForkingPickler.dumps(batch))
    except Exception as error:  # each object in its way has its own
        raise SettingError(
            f"session.batches(workers=...): what collate has made cannot go to another process "
            f"({type(error).__name__}: {error}); make it of tensors and plain values, or leave workers=0"
        ) from error


def _portable(error: Exception) -> Exception:
    """The same, or a likeness of it where it does not survive pickling."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:  # a constructor that wants other arguments, an attribute that is a lock, ...
        copy = None
    if type(copy) is type(error):
        return error
    likeness = RuntimeError(f"{type(error).__name__}: {error}")
    for note in error.__notes__:
        likeness.add_note(note)
    return likeness


def _without_rows(batch: Any) -> Any:
    """The batch with every tensor cut to no rows; lists of strings and the like stay as they are."""
    if isinstance(batch, torch.Tensor):
        return batch[:0] if batch.dim() else batch
    if isinstance(batch, Mapping):
        return {key: _without_rows(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(_without_rows, batch))
    return type(batch)(map(_without_rows, batch)) if isinstance(batch, list | tuple) else batch
