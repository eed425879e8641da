"""Effect. Ray Data as a map-style dataset: a ledger of blocks in a fixed order, read one by one from any worker.

Ray's streaming split deals blocks to a fixed number of readers and keeps no record of what they committed. Here the
blocks of a materialized dataset, which are objects in Ray's store, are numbered once; the plan of steps does the rest.

This is the one module that touches Ray Data's developer interface (`iter_internal_ref_bundles`, `BlockAccessor`).
"""

from collections import OrderedDict
from itertools import accumulate
from typing import Any, NoReturn

import numpy as np
import ray
from ray.exceptions import GetTimeoutError

from elastic.control.data import hash32, row_of
from elastic.errors import SettingError

_CACHED_BLOCKS = 2  # one is being read to its end, the next one has begun


class RayBlocks:
    """Rows of a materialized Ray dataset by number: `{column: value}`, like `ds.take()` gives them.

    Args:
        dataset: a `ray.data.MaterializedDataset`.
        timeout_s: how long a block may take to arrive.

    Attributes:
        block_sizes: rows of each block; what makes `session.batches` read block by block.
        fingerprint: stands for the blocks and their order.

    Raises:
        SettingError: the dataset is not materialized.
    """

    def __init__(self, dataset: Any, timeout_s: float) -> None:
        from ray.data.dataset import MaterializedDataset

        if not isinstance(dataset, MaterializedDataset):
            raise SettingError(
                f"session.ray_dataset got a {type(dataset).__name__}: call ds.materialize() before elastic.fit, or "
                "every worker would run the whole pipeline for itself, and its blocks would have no fixed order"
            )
        entries = [entry for bundle in dataset.iter_internal_ref_bundles() for entry in bundle.blocks]
        entries = [entry for entry in entries if entry.metadata.num_rows]
        self._refs = [entry.ref for entry in entries]
        self.block_sizes = tuple(int(entry.metadata.num_rows) for entry in entries)
        self.fingerprint = f"{hash32(*[ref.hex() for ref in self._refs]):08x}"
        self._ends = list(accumulate(self.block_sizes))
        self._timeout_s = timeout_s
        self._cache: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = row_of(self._ends, index)
        columns = self._columns(row.block)
        return {name: _own(column[row.row]) for name, column in columns.items()}

    def __reduce__(self) -> NoReturn:
        raise SettingError("a Ray dataset is read in the training thread; Ray brings its blocks to this node")

    def expect(self, index: int) -> None:
        """Have Ray bring the block of a row to this node, without waiting for it."""
        row = row_of(self._ends, index)
        if row.block not in self._cache:
            ray.wait([self._refs[row.block]], timeout=0, fetch_local=True)

    def _columns(self, block: int) -> dict[str, Any]:
        """(rows, ...) arrays by name, views into Ray's store where they can be."""
        if block not in self._cache:
            self._cache[block] = self._fetch(block)
            if len(self._cache) > _CACHED_BLOCKS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(block)
        return self._cache[block]

    def _fetch(self, block: int) -> dict[str, Any]:
        from ray.data.block import BlockAccessor

        try:
            data = ray.get(self._refs[block], timeout=self._timeout_s)
        except GetTimeoutError as error:
            raise TimeoutError(
                f"block {block} of {len(self._refs)} of a Ray dataset did not arrive in {self._timeout_s} s "
                "(Limits.fetch_timeout_s)"
            ) from error
        columns = BlockAccessor.for_block(data).to_numpy()
        assert isinstance(columns, dict)  # since no column was asked for
        return columns


def _own(value: Any) -> Any:
    """A row's value that may be written to: Ray's store may not."""
    return np.array(value) if isinstance(value, np.ndarray) else value
