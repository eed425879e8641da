"""Pure. What host monitors have told, sorted by what a tick asks: who is silent, who stands still, who waits.

So a tick looks at those alone, not at everybody. Like the tally that it belongs to, it is no part of the state's value.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from elastic.control.flight import Reading
from elastic.control.persistent import persistent
from elastic.control.state import RunState
from elastic.control.suspicion import WAITING, shortest_limit_s, stall_limit_s

_RAY_NOTICES_S = 120.0  # it asks a node some times, for some seconds each, before it places no more there
_MARGIN = 0.8  # who has stood still for this part of the limit is listed: the limit moves a little with each step

Names = dict[str, None]


class Lookout:
    """See the module.

    Attributes:
        still: workers that stand still, where they wait for nobody, for about as long as they may, or longer.
        waiting: workers that wait for others. waiting_long: and have for about as long as they may, or longer.
    """

    __slots__ = ("_heard", "_heard_s", "_limits", "_listed_s", "_readings", "still", "waiting", "waiting_long")

    def __init__(self, state: RunState) -> None:
        self._heard_s, self._readings, self._limits = state.heard_s, state.readings, state.settings.limits
        # By node, the longest silence first.
        self._heard = dict(sorted(state.heard_s.items(), key=lambda heard: heard[1]))
        self._list(stall_limit_s(state.steps_s, self._limits))

    def describes(self, state: RunState) -> bool:
        return state.heard_s is self._heard_s and state.readings is self._readings

    def hear(self, nodes: Iterable[str], now_s: float) -> Mapping[str, float]:
        """These are heard; returns when each was heard last."""
        at_s = dict.fromkeys(nodes, now_s)
        for node in at_s:
            self._heard.pop(node, None)
        self._heard |= at_s
        self._heard_s = persistent(self._heard_s).updated(at_s)
        return self._heard_s

    def shift(self, absent_s: float) -> Mapping[str, float]:
        """Nobody looked for so long; returns when each was heard last, as if that had not been."""
        self._heard = {node: heard_s + absent_s for node, heard_s in self._heard.items()}
        self._heard_s = persistent(self._heard_s).updated(self._heard)
        return self._heard_s

    def read(self, readings: Mapping[str, Reading]) -> Mapping[str, Reading]:
        """This is seen of some workers; returns what is known of all."""
        for reading in readings.values():
            self._sort(reading)
        self._readings = persistent(self._readings).updated(readings)
        return self._readings

    def forget(self, workers: Iterable[str], nodes: Iterable[str]) -> tuple[Mapping[str, float], Mapping[str, Reading]]:
        """They are gone for good; returns what is left of `heard_s` and `readings`."""
        workers, nodes = list(workers), list(nodes)
        for names, gone in ((self.still, workers), (self.waiting, workers), (self.waiting_long, workers)):
            for name in gone:
                names.pop(name, None)
        for node in nodes:
            self._heard.pop(node, None)
        self._heard_s = persistent(self._heard_s).without(nodes)
        self._readings = persistent(self._readings).without(workers)
        return self._heard_s, self._readings

    def silent_for(self, limit_s: float, now_s: float) -> Iterator[str]:
        """Nodes that were heard, and were not for longer than this; the longest silence first."""
        for node, heard_s in self._heard.items():
            if now_s - heard_s <= limit_s:
                return
            yield node

    def heard_within(self, limit_s: float, now_s: float) -> Iterator[str]:
        """Nodes that were heard since then, the last one first."""
        for node, heard_s in reversed(self._heard.items()):
            if now_s - heard_s > limit_s:
                return
            yield node

    def silent(self, now_s: float) -> list[str]:
        """Nodes that were heard, and are not any more."""
        return list(self.silent_for(self._limits.heartbeat_timeout_s, now_s))

    def lately_silent(self, now_s: float, unreached: AbstractSet[str]) -> list[str]:
        """Those of them, and of these, that Ray may still place workers on."""
        silent = [*unreached, *self.silent(now_s)]
        return [node for node in silent if now_s - self._heard.get(node, now_s) <= _RAY_NOTICES_S]

    def expect(self, stall_s: float) -> None:
        """How long a phase of a step may last now: the lists are made anew if that has become something else."""
        if not self._listed_s <= stall_s <= self._listed_s / _MARGIN**3:
            self._list(stall_s)

    def _list(self, stall_s: float) -> None:
        self._listed_s = _MARGIN * stall_s
        self.still: Names = {}
        self.waiting: Names = {}
        self.waiting_long: Names = {}
        for reading in self._readings.values():
            self._sort(reading)

    def _sort(self, reading: Reading) -> None:
        name, is_waiting = reading.worker, reading.phase in WAITING
        limit_s = shortest_limit_s(reading, self._listed_s, self._limits)
        _keep(self.still, name, limit_s is not None and reading.still_s >= limit_s)
        _keep(self.waiting, name, is_waiting)
        _keep(self.waiting_long, name, is_waiting and reading.still_s >= self._listed_s)


def _keep(names: Names, name: str, is_one: bool) -> None:
    if is_one:
        names[name] = None
    else:
        names.pop(name, None)
