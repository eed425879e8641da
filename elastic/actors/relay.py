"""Effect. A relay: hears the host monitors of some nodes, and tells the driver at once what is new, and else in brief.

One actor for 16 hosts and more, on one of them. It asks each monitor as the driver would; the driver asks the relay,
once a period, and is told which hosts are heard, and of their workers what is not as it was told before.

A monitor keeps its news until the driver has them: a relay may die with what it was told, and then the next one asks
for it again.
"""

import asyncio
import contextlib
from typing import Any

from ray.exceptions import RayError

from elastic.actors.priority import take_usual_priority
from elastic.control import events as ev
from elastic.control.digest import Digest
from elastic.control.envelopes import Beat, Heard, numbered_beat_of
from elastic.control.flight import Reading
from elastic.control.suspicion import presses


class Relay:
    """See the module.

    Args:
        period_s: how often each monitor is asked.
        hang_floor_s, stopped_timeout_s: see `Limits`.
        has_own_process: an actor, which may set its priority.
    """

    def __init__(
        self, period_s: float, hang_floor_s: float, stopped_timeout_s: float, has_own_process: bool = False
    ) -> None:
        if has_own_process:
            take_usual_priority()
        self._period_s, self._hang_floor_s, self._stopped_timeout_s = period_s, hang_floor_s, stopped_timeout_s
        self._listeners: dict[str, asyncio.Task[None]] = {}
        self._digests: dict[str, Digest] = {}
        self._nodes: dict[str, None] = {}
        self._readings: dict[str, Reading] = {}
        self._told = Heard()
        self._telling: dict[str, int] = {}  # node -> how many of its news are on their way to the driver
        self._passed: dict[str, int] = {}  # the same, of those that are there
        self._has_news = asyncio.Event()

    async def add(self, node: str, monitor: Any, had: int) -> None:
        """Listen to the monitor of a node; so many of its news are with the driver."""
        if (old := self._listeners.pop(node, None)) is not None:
            old.cancel()
        self._digests[node] = Digest(self._hang_floor_s, self._stopped_timeout_s)
        for numbers in (self._told.numbers, self._telling):
            numbers.pop(node, None)  # of a monitor that was lost
        self._passed[node] = had
        self._listeners[node] = asyncio.create_task(self._listen(node, monitor, had))

    async def beat(self, timeout_s: float) -> Heard:
        """What there is to tell: at once if it is news, else after the timeout. Who asks has what was told before."""
        self._passed |= self._telling
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_news.wait(), timeout_s)
        self._has_news.clear()
        told, self._told = self._told, Heard()
        self._telling = dict(told.numbers)
        told.beat = ev.HostsHeard(nodes=tuple(self._nodes), readings=tuple(self._readings.values()))
        self._nodes, self._readings = {}, {}
        return told

    async def _listen(self, node: str, monitor: Any, had: int) -> None:
        try:
            while True:
                tell = monitor.tell.options(concurrency_group="events")
                answer = await tell.remote(self._period_s, had, self._passed[node])
                beat = numbered_beat_of(node, answer, had)
                had = beat.number
                if beat.why_not:
                    self._told.refused[node] = beat.why_not
                if beat.is_heard:
                    self._take(node, beat)
                else:
                    await asyncio.sleep(self._period_s)  # garbage may come at once
        except RayError:
            self._listeners.pop(node, None)
            self._told.lost.append(node)
            self._has_news.set()

    def _take(self, node: str, beat: Beat) -> None:
        self._nodes[node] = None
        self._readings |= {reading.worker: reading for reading in self._digests[node].news(beat.readings)}
        self._told.events += [(node, event) for event in beat.news]
        if beat.news:
            self._told.numbers[node] = beat.number
        if beat.news or presses(beat.readings, self._stopped_timeout_s):
            self._has_news.set()
