"""How many events a second the pure controller takes in, one after the other, on one core."""

import time
from collections import deque

from benchmarks.crowd import Crowd, Size, node
from elastic.control import events as ev
from elastic.control.controller import step
from elastic.control.flight import Flying, Reading
from elastic.control.state import RunState
from elastic.policies import Ladder


class Stopwatch:
    """A controller that is timed.

    Attributes:
        spent_s, count: by kind of event.
    """

    def __init__(self, crowd: Crowd) -> None:
        self.crowd, self._policy = crowd, Ladder()
        self._state = RunState(settings=crowd.size.settings)
        self.spent_s: dict[str, float] = {}
        self.count: dict[str, int] = {}

    def take(self, now_s: float, *events: ev.Event) -> None:
        """These, and whatever the crowd answers."""
        pending = deque(events)
        while pending:
            event = pending.popleft()
            before_s = time.perf_counter()
            decision = step(self._state, event, now_s, self._policy)
            took_s = time.perf_counter() - before_s
            kind = type(event).__name__
            self.spent_s[kind] = self.spent_s.get(kind, 0.0) + took_s
            self.count[kind] = self.count.get(kind, 0) + 1
            self._state = decision.state
            for command in decision.commands:
                self.crowd.heed(command)
            pending.extend(self.crowd.answers())


def controller_rates(workers: int = 1024, per_host: int = 8, seconds: int = 60) -> dict[str, float]:
    """Events a second of `controller.step`, of each kind, and of a mixture as a run has it: an incident a minute."""
    crowd = Crowd(Size(hosts=workers // per_host, workers_per_host=per_host))
    watch = Stopwatch(crowd)
    watch.take(0.0, ev.RunStarted())
    watch.spent_s.clear()
    watch.count.clear()
    for second in range(seconds):
        for part in range(4):
            beats = [_beat(crowd, host) for host in range(part, crowd.size.hosts, 4)]
            watch.take(second + part / 4, *beats, ev.Tick())
        if second == seconds // 2:
            watch.take(second + 0.75, *crowd.fail())
        watch.take(second + 0.75, crowd.stable(second + 0.75))
    rates = {kind: watch.count[kind] / watch.spent_s[kind] for kind in watch.count}
    return {"all": sum(watch.count.values()) / sum(watch.spent_s.values())} | rates


def _beat(crowd: Crowd, host: int) -> ev.HostBeat:
    """As a host monitor tells it that no relay stands before: all its workers."""
    width = crowd.size.workers_per_host
    generation = crowd.view.generation if crowd.view is not None else 0
    readings = tuple(
        Reading(
            worker=f"w{host * width + shard}",
            generation=generation,
            step=1,
            phase=Flying.COMPUTING,
            micro_batch=0,
            commits=100,
            still_s=0.05,
            state="R",
        )
        for shard in range(width)
    )
    return ev.HostBeat(node=node(host), readings=readings)
