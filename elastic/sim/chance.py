"""Pure. Chance that repeats itself: the same seed gives the same draws on every machine and Python version."""

import math
from collections.abc import Sequence
from typing import TypeVar

from elastic.control.draws import draw, log

T = TypeVar("T")
_MASK = (1 << 64) - 1


class Chance:
    """SplitMix64: G. L. Steele, D. Lea and C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.

    Integers of 64 bits only, so no platform can differ.

    Args:
        seed: any values; what is drawn depends on all of them.
    """

    def __init__(self, *seed: object) -> None:
        self._state = draw(0, *seed)

    def bits(self) -> int:
        """64 bits."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)

    def random(self) -> float:
        """In [0, 1)."""
        # `bits` once more: worlds draw all the time, and a call would take as long as the draw.
        self._state = mixed = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) * 2.0**-53

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.random()

    def randint(self, low: int, high: int) -> int:
        """Both ends included."""
        return low + self.bits() % (high - low + 1)

    def choice(self, among: Sequence[T]) -> T:
        return among[self.bits() % len(among)]

    def exponential(self, mean: float) -> float:
        """Greater than 0, of this mean."""
        return -mean * log(1.0 - self.random()) if mean < math.inf else math.inf
