"""Pure. Who has been silent for too long; time in which nobody listened does not count, as answers lie unheard then."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Who = TypeVar("Who", bound=Hashable)

_LATE_S = 5.0  # whoever listens looks more often: what is beyond that is its own absence


class Silences(Generic[Who]):
    """Looked at every second or so. Methods may be called from any thread.

    Args:
        now_s: of a clock that never goes back.
    """

    def __init__(self, now_s: float) -> None:
        self._since_s: dict[Who, float] = {}
        self._looked_s = now_s

    def __contains__(self, who: Who) -> bool:
        return who in self._since_s

    def begin(self, who: Who, now_s: float) -> None:
        """It was heard, or asked; from here on it is silent."""
        self._since_s[who] = now_s

    def forget(self, who: Who) -> None:
        self._since_s.pop(who, None)

    def clear(self) -> None:
        self._since_s = {}

    def longest_s(self, now_s: float) -> float:
        """For how long the one that was heard first is silent; 0 where there is nobody."""
        return now_s - min(list(self._since_s.values()), default=now_s)

    def longer_than(self, limit_s: float, now_s: float) -> list[Who]:
        """Those who are silent for more than this."""
        absent_s = max(0.0, now_s - self._looked_s - _LATE_S)
        self._looked_s = now_s
        if absent_s:
            for who, since_s in list(self._since_s.items()):
                self._since_s[who] = since_s + absent_s
        return [who for who, since_s in list(self._since_s.items()) if now_s - since_s > limit_s]
