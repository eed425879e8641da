"""Pure. Series that keep their shape in a bounded number of points, however long a run is."""

from collections import deque
from dataclasses import dataclass

from elastic.report.content.model import Series

_MS_DIGITS = 3
_LATELY_S = 5.0


def _short(value: float) -> float:
    """Six digits tell enough of what is measured; what is counted, as steps are, stays as it is."""
    whole = float(value)
    return whole if whole.is_integer() else float(f"{value:.6g}")


@dataclass(slots=True)
class _Stretch:
    """The lowest, highest and last of the values of a stretch of time, each with its moment."""

    low: tuple[float, float]
    high: tuple[float, float]
    last: tuple[float, float]

    def take(self, other: "_Stretch") -> None:
        """The other one follows."""
        if other.low[1] < self.low[1]:
            self.low = other.low
        if other.high[1] > self.high[1]:
            self.high = other.high
        self.last = other.last

    @property
    def points(self) -> list[tuple[float, float]]:
        return sorted({self.low, self.high, self.last})


class Curve:
    """A series that is thinned while it grows: peaks and dips stay, in at most three points for each stretch.

    Args:
        limit: of stretches; when there are more, they become twice as long.
    """

    def __init__(self, name: str, limit: int = 400) -> None:
        self._name, self._limit = name, limit
        self._stretches: dict[int, _Stretch] = {}
        self._length_s = 0.0  # each value is a stretch of its own
        self._newest_s = float("-inf")

    def put(self, at_s: float, value: float) -> None:
        """A value; moments that go back a little, since they come from several clocks, are moved up."""
        at_s = self._newest_s = max(at_s, self._newest_s)
        point = (at_s, value)
        self._put(_Stretch(point, point, point))
        while len(self._stretches) > self._limit:
            self._thin()

    def series(self, began_s: float) -> Series:
        """With moments since then."""
        points = [point for stretch in self._stretches.values() for point in stretch.points]
        return Series(
            name=self._name,
            at_s=tuple(round(at_s - began_s, _MS_DIGITS) for at_s, _ in points),
            values=tuple(_short(value) for _, value in points),
        )

    def _put(self, stretch: _Stretch) -> None:
        key = int(stretch.last[0] / self._length_s) if self._length_s else len(self._stretches)
        there = self._stretches.get(key)
        if there is None:
            self._stretches[key] = stretch
        else:
            there.take(stretch)

    def _thin(self) -> None:
        stretches = list(self._stretches.values())
        span_s = stretches[-1].last[0] - stretches[0].last[0]
        self._length_s = max(2 * self._length_s, 2 * span_s / self._limit, 1e-6)
        self._stretches = {}
        for stretch in stretches:
            self._put(stretch)


class Rate:
    """Amounts over time, as amounts a second, in a bounded number of bins.

    Args:
        limit: of bins; when the time does not fit into them, they become twice as long.
    """

    def __init__(self, name: str, limit: int = 400, bin_s: float = 1.0) -> None:
        self._name, self._limit, self._bin_s = name, limit, bin_s
        self._sums: dict[int, float] = {}
        self._begin_s = self._end_s = 0.0
        self._newest: deque[tuple[float, float, float]] = deque()

    def add(self, begin_s: float, end_s: float, amount: float) -> None:
        """Something that took from `begin_s` to `end_s`; it counts evenly over that time."""
        end_s = max(begin_s, end_s)
        if not self._sums:
            self._begin_s = begin_s
        begin_s = max(begin_s, self._begin_s)
        end_s = max(end_s, begin_s)
        self._end_s = max(self._end_s, end_s)
        self._newest.append((begin_s, end_s, amount))
        while len(self._newest) > 1 and self._newest[0][1] < self._end_s - _LATELY_S:
            self._newest.popleft()
        while self._end_s - self._begin_s > self._limit * self._bin_s:
            self._widen()
        first, last = self._bin(begin_s), self._bin(end_s)
        if first == last:
            self._sums[first] = self._sums.get(first, 0.0) + amount
            return
        share = amount / (end_s - begin_s)
        for number in range(first, last + 1):
            inside_s = min(end_s, self._start(number + 1)) - max(begin_s, self._start(number))
            self._sums[number] = self._sums.get(number, 0.0) + share * max(0.0, inside_s)

    @property
    def lately(self) -> float:
        """Of the last seconds, or of the last amount, where that took longer; 0 if nothing was there."""
        since_s = min((begin_s for begin_s, _, _ in self._newest), default=self._end_s)
        amount = sum(amount for _, _, amount in self._newest)
        return amount / (self._end_s - since_s) if self._end_s > since_s else 0.0

    def series(self, began_s: float) -> Series:
        """One value for each bin, at its middle, zeros included."""
        if not self._sums:
            return Series(name=self._name)
        numbers = range(max(self._sums) + 1)
        ends = [min(self._end_s, self._start(number + 1)) for number in numbers]
        lengths = [end_s - self._start(number) for number, end_s in zip(numbers, ends, strict=True)]
        kept = [number for number in numbers if lengths[number] > self._bin_s / 10]  # a sliver tells nothing
        return Series(
            name=self._name,
            at_s=tuple(round((self._start(n) + ends[n]) / 2 - began_s, _MS_DIGITS) for n in kept),
            values=tuple(_short(self._sums.get(n, 0.0) / lengths[n]) for n in kept),
        )

    def _bin(self, at_s: float) -> int:
        return int((at_s - self._begin_s) / self._bin_s)

    def _start(self, number: int) -> float:
        return self._begin_s + number * self._bin_s

    def _widen(self) -> None:
        self._bin_s *= 2
        sums: dict[int, float] = {}
        for number, amount in self._sums.items():
            sums[number // 2] = sums.get(number // 2, 0.0) + amount
        self._sums = sums
