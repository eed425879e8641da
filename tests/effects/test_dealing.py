"""Effect. A replica finds its own micro-batches without a look at what all others do, but for equal rounds."""

from collections.abc import Iterator

import pytest

from elastic.control.data import MicroBatch
from elastic.train.data import Source

REPLICAS = 1000
STEP = [MicroBatch(number, 2 * number, 2) for number in range(1500)]


class Counted(tuple[int, ...]):
    """Counts how many shares are looked at."""

    looks = 0

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        found = super().__getitem__(key)
        self.looks += len(found) if isinstance(key, slice) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        self.looks += len(self)
        return super().__iter__()


@pytest.mark.parametrize("equal_rounds", [False, True])
def test_each_share_is_looked_at_a_few_times(equal_rounds: bool) -> None:
    source, shares = Source(), Counted([1] * REPLICAS)
    source.equal_rounds = equal_rounds
    dealt = source.dealt(STEP, shares, 2)
    assert shares.looks <= 5 * REPLICAS
    assert dealt[0] == STEP[3] and sum(one.count > 0 for one in dealt) == 1
    assert len(dealt) == (2 if equal_rounds else 1)
