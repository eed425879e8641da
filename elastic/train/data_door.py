"""Effect. The part of a session through which data comes."""

from collections.abc import Callable
from typing import Any

from elastic.control.batch_size import FixedMicroBatches, FollowReplicas
from elastic.errors import SettingError
from elastic.train.data import Batches, make_batches
from elastic.train.streams import Streams, make_streams
from elastic.train.surroundings import Surroundings


class DataDoor:
    """What a session does with datasets; `Session` derives from it."""

    _around: Surroundings

    def batches(
        self,
        dataset: Any,
        *,
        batch_size: int | FollowReplicas | FixedMicroBatches,
        micro_batch_size: int | None = None,
        seed: int | None = None,
        shuffle: bool = True,
        collate: Callable[[list[Any]], Any] | None = None,
        equal_rounds: bool = False,
        workers: int = 0,
        prefetch: int = 2,
    ) -> Batches:
        """Cut a map-style dataset into steps, in an order fixed by the seed.

        Args:
            dataset: `len(dataset)` and `dataset[i]`.
            batch_size: samples of a step over all replicas, whatever their number; or a batch that follows it:
                `elastic.FollowReplicas(per_replica=samples)`, `elastic.FixedMicroBatches(per_replica=micro_batches)`.
            micro_batch_size: samples of one forward; default: batch_size, or a replica's share of it.
            seed: of the order, and of what the dataset draws; default: the run's.
            shuffle: a new permutation each epoch; False keeps the dataset's order.
            collate: list of samples -> micro-batch; default: torch's default_collate.
            equal_rounds: hand every replica equally many micro-batches, empty ones (tensors with no rows) where none
                is left; needed where replicas talk during forward or backward, as SyncBatchNorm does.
            workers: loader processes of each worker; 0 loads in the training thread.
            prefetch: micro-batches that each loader process has ready ahead of time.

        Raises:
            DatasetTooSmallError: fewer samples than one batch (of one replica, where it follows their number).
            SettingError: not map-style, or a size is not positive, or missing; or it cannot go to other processes.
        """
        return make_batches(
            dataset,
            batch_size=batch_size,
            micro_batch_size=micro_batch_size,
            seed=self._around.seed if seed is None else seed,
            shuffle=shuffle,
            collate=collate,
            equal_rounds=equal_rounds,
            workers=workers,
            prefetch=prefetch,
            dumps=self._around.dumps,
        )

    def ray_dataset(self, dataset: Any) -> Any:
        """A materialized Ray dataset as a map-style one, for `batches`: samples are `{column: value}`.

        Its blocks have a fixed order, and are read one by one by whoever needs them.

        Args:
            dataset: what `ds.materialize()` returned, outside of train_fn.

        Raises:
            SettingError: it is not materialized, or this worker does not run on Ray.
        """
        if self._around.ray_blocks is None:
            raise SettingError("session.ray_dataset: this worker does not run on Ray, so it cannot read Ray's objects")
        return self._around.ray_blocks(dataset, self._around.limits.fetch_timeout_s)

    def streams(
        self,
        dataset: Any,
        *,
        batch_size: int | FollowReplicas | FixedMicroBatches,
        micro_batch_size: int | None = None,
        streams: int | None = None,
        seed: int | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Streams:
        """Cut an iterable dataset into steps: each takes one micro-batch from each of some streams.

        Every stream's samples come in its order, each once an epoch as committed, whoever reads them.

        Args:
            dataset: `dataset.stream(index, count, epoch)` gives the `index`-th of `count` parts of the data, at its
                beginning: iterable, with state_dict() and load_state_dict(), and the same on every worker. Or an
                iterable dataset as Hugging Face's are: with shard(num_shards, index), and maybe set_epoch(epoch).
            batch_size: see `batches`; a multiple of micro_batch_size.
            micro_batch_size: samples of one forward; the last of a stream is as short as what is left.
            streams: how many parts; the same for the whole run, later lives too, and no fewer than a step has
                micro-batches. Best a multiple of these; their number is the default.
            seed: of what streams draw; default: the run's.
            collate: list of samples -> micro-batch; default: torch's default_collate.

        Raises:
            SettingError: it can not be divided, or sizes do not fit.
        """
        return make_streams(
            dataset,
            batch_size=batch_size,
            micro_batch_size=micro_batch_size,
            streams=streams,
            seed=self._around.seed if seed is None else seed,
            collate=collate,
        )
