"""Seeds of random worlds, in batches: the first ones are played each time, the others are `slow`."""

import pytest


def batches(seeds: int, size: int, quick: int) -> pytest.MarkDecorator:
    """Parametrizes `seeds`, a range of `size` of them; batches from seed `quick` on are slow."""
    cuts = [
        pytest.param(
            range(first, first + size),
            id=f"seeds {first} to {first + size - 1}",
            marks=pytest.mark.slow if first >= quick else (),
        )
        for first in range(0, seeds, size)
    ]
    return pytest.mark.parametrize("seeds", cuts)
