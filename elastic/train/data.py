"""Effect. From data and a plan to the micro-batches of one replica in one step; map-style datasets."""

import pickle
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from torch.utils.data import default_collate

from elastic.control.batch_size import FixedMicroBatches, FollowReplicas, batch_sizes
from elastic.control.data import BatchPlan, MicroBatch, Plan, all_hands, deal, hash32
from elastic.control.tuning import Tuning
from elastic.errors import SettingError
from elastic.train.loading import Loading
from elastic.train.prefetch import Dumps, Prefetch

_EXPECTED = 8  # micro-batches ahead


class Source:
    """What `session.steps` takes: how data is cut, who computes what, and how it is loaded.

    Attributes:
        plan: how the next step is cut, at least. fingerprint: what replicas must agree on.
        equal_rounds: see `Session.batches`.
        is_closed: `open` must be called before the next step can be planned.
    """

    plan: Plan
    fingerprint: str
    equal_rounds = False
    is_closed = False

    @property
    def outline(self) -> Plan:
        """How it is cut before anything is tuned, in few words."""
        raise NotImplementedError

    @property
    def order(self) -> Mapping[str, Any]:
        """What the order of samples follows from; empty where it is part of what is `tracked`."""
        return {}

    def tune(self, tuning: Tuning) -> None:
        """From the next step on, steps are cut as train_fn says where this does not say otherwise."""
        raise NotImplementedError

    @property
    def tracked(self) -> dict[str, Any]:
        """What of it is part of a replica's state."""
        return {}

    def start(self) -> None:
        """Before this worker belongs to a generation: what takes long."""

    def open(self) -> None:
        """Once, before the first step of the run."""

    def close(self) -> None:
        """End what was started."""

    def dealt(self, whole: Sequence[MicroBatch], shares: Sequence[int], rank: int) -> list[MicroBatch]:
        """Those of a step's micro-batches that `rank` computes; empty ones have numbers of their own.

        Args:
            shares: by rank, what its part is in proportion to.
        """
        mine = [whole[number] for number in deal(len(whole), shares, rank)]
        rounds = max(map(len, all_hands(len(whole), shares))) if self.equal_rounds else 0
        empty = range(len(mine), rounds)
        return mine + [MicroBatch(len(whole) + turn * len(shares) + rank, whole[0].first, 0) for turn in empty]

    def take(self, micro_batch: MicroBatch, hand: Hashable, forecast: Callable[[], Iterator[MicroBatch]]) -> Any:
        """One micro-batch, loaded; see `Prefetch.take`."""
        raise NotImplementedError

    def offer(self, dealt: Sequence[MicroBatch]) -> bytes | None:
        """What the others must know of what this replica has read, before the step is applied."""
        return None

    def receive(self, step: Sequence[MicroBatch], offers: Sequence[bytes]) -> None:
        """What all replicas have offered, in rank order."""

    def commit(self) -> None:
        """Inside apply: the step has consumed its samples."""


class Batches(Source):
    """A dataset cut into steps; every replica holds one, and they agree by construction.

    Args:
        dataset: map-style: `len(dataset)`, `dataset[i]`, and `dataset.__getitems__(list)` where it has one. It may
            name `block_sizes`, for an order that reads block by block, and have `expect(i)`, which is told of samples
            that are wanted soon; what it names `fingerprint` is compared between replicas.
        plan: how it is cut and ordered.
        collate: list of samples -> micro-batch.
        equal_rounds: hand an empty micro-batch to replicas that are dealt one less than others.
    """

    def __init__(
        self, dataset: Any, plan: BatchPlan, collate: Callable[[list[Any]], Any], equal_rounds: bool = False
    ) -> None:
        self.plan: BatchPlan = plan
        self._untuned = plan
        self.equal_rounds = equal_rounds
        self.fingerprint = f"{hash32(plan, equal_rounds, getattr(dataset, 'fingerprint', '')):08x}"
        self._expect: Callable[[int], None] | None = getattr(dataset, "expect", None)
        self._loading = Loading(dataset, plan, collate)
        self._prefetch: Prefetch | None = None

    @property
    def outline(self) -> BatchPlan:
        return replace(self._untuned, blocks=())

    @property
    def order(self) -> Mapping[str, Any]:
        return self._untuned.order

    def tune(self, tuning: Tuning) -> None:
        self.plan = self._untuned.tuned(tuning)

    def load_ahead(self, workers: int, prefetch: int, dumps: Dumps) -> None:
        """From now on loader processes do it: see `Prefetch`."""
        self._prefetch = Prefetch(self._loading, workers, prefetch, dumps)

    def start(self) -> None:
        """Start loader processes, if there are to be any, and wait until they are ready."""
        if self._prefetch is not None:
            self._prefetch.start()

    def close(self) -> None:
        """End them."""
        if self._prefetch is not None:
            self._prefetch.close()

    def load(self, micro_batch: MicroBatch) -> Any:
        """Fetch and collate the samples of one micro-batch here and now."""
        return self._loading[micro_batch]

    def take(self, micro_batch: MicroBatch, hand: Hashable, forecast: Callable[[], Iterator[MicroBatch]]) -> Any:
        """The same, from a loader process where there is one."""
        if self._expect is not None:
            for later in islice(forecast(), _EXPECTED):
                last = MicroBatch(0, later.first + max(later.count, 1) - 1, 1)
                self._expect(self.plan.sample_indices(last)[0])
        if self._prefetch is None:
            return self.load(micro_batch)
        return self._prefetch.take(micro_batch, hand, forecast)


def make_batches(
    dataset: Any,
    *,
    batch_size: int | FollowReplicas | FixedMicroBatches,
    micro_batch_size: int | None,
    seed: int,
    shuffle: bool,
    collate: Callable[[list[Any]], Any] | None,
    equal_rounds: bool = False,
    workers: int = 0,
    prefetch: int = 2,
    dumps: Dumps = pickle.dumps,
) -> Batches:
    """See `Session.batches`; `dumps` pickles what loader processes are given."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise SettingError(
            f"session.batches needs a map-style dataset (len and [i]), got {type(dataset).__name__}: an iterable one "
            "can be read by several replicas, and taken up again, only as session.streams(...)"
        )
    sizes = batch_sizes(batch_size, micro_batch_size)
    plan = BatchPlan(
        samples=len(dataset),
        batch_size=sizes[0],
        micro_batch_size=sizes[1],
        seed=seed,
        shuffle=shuffle,
        blocks=tuple(getattr(dataset, "block_sizes", ())),
    )
    batches = Batches(dataset, plan, collate or default_collate, equal_rounds)
    if workers < 0 or prefetch < 1:
        raise SettingError(f"session.batches(workers={workers}, prefetch={prefetch}): at least 0 and 1")
    if workers:
        batches.load_ahead(workers, prefetch, dumps)
    return batches
