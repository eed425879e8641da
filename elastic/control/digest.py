"""Pure. What a relay has to tell of the workers on its hosts, since most of them do what they did before: move.

Who stands still is told, and told again when it stands elsewhere, or has stood still for a quarter longer; who moves is
told once. So one that moves is known by its generation alone, and counts as one that waits for nobody.
"""

from collections.abc import Iterable

from elastic.control.copies import changed
from elastic.control.flight import STOPPED, Flying, Reading

_LONGER = 1.25
_EARLY = 0.8  # of the limit, by which somebody may become a suspect


class Digest:
    """What was told last of the workers on one host.

    Args:
        hang_floor_s, stopped_timeout_s: see `Limits`.
    """

    def __init__(self, hang_floor_s: float, stopped_timeout_s: float) -> None:
        self._still_s, self._stopped_s = _EARLY * hang_floor_s, _EARLY * stopped_timeout_s
        self._told: dict[str, Reading] = {}

    def news(self, readings: Iterable[Reading]) -> list[Reading]:
        """Those of them that are to be told; they have been, from now on."""
        before, self._told = self._told, {}
        found = []
        for reading in readings:
            told = before.get(reading.worker)
            is_still = reading.still_s >= (self._stopped_s if reading.state == STOPPED else self._still_s)
            if told is None or told.generation != reading.generation or self._differs(reading, told, is_still):
                told = reading if is_still else changed(reading, phase=Flying.IN_BODY, still_s=0.0)
                found.append(told)
            self._told[reading.worker] = told
        return found

    def _differs(self, reading: Reading, told: Reading, is_still: bool) -> bool:
        if not is_still:
            return told.still_s > 0.0
        is_same_place = _place(reading) == _place(told)
        return not is_same_place or not told.still_s <= reading.still_s < _LONGER * told.still_s


def _place(reading: Reading) -> tuple[object, ...]:
    return reading.phase, reading.step, reading.micro_batch, reading.state, reading.remark
