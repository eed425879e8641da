"""Effect. The host monitors of a run as the driver sees them: one for each node that has workers, replaced if lost."""

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elastic.actors.fleet import Emit
from elastic.actors.monitor import HostMonitor
from elastic.actors.relays import Relays
from elastic.control import events as ev
from elastic.control.flight import Reading
from elastic.settings import Limits

log = logging.getLogger("elastic")

_REPLACE_S = 1.0  # until a lost monitor is replaced; on a node that is gone, its workers are proven dead by then
_END_S = 10.0

Then = Callable[[Any, Callable[[Any], Any], Callable[[Exception], Any]], None]


def _ignore(_: Any) -> None:
    """Nothing follows."""


class HostMonitors:
    """See the module.

    Args:
        emit: takes what the monitors tell.
        then: goes on with an answer, or an error, of a call to Ray, in a thread that may call Ray.
        on_new: called with a node whose monitor is new and knows of no worker.
        limits: how often each is asked, and from how many on they are heard through relays.
    """

    def __init__(self, emit: Emit, then: Then, on_new: Callable[[str], None], limits: Limits) -> None:
        self._emit, self._then, self._on_new = emit, then, on_new
        self._period_s = limits.heartbeat_polling_period_s
        self._relay_above_hosts = limits.relay_above_hosts
        self._monitors: dict[str, Any] = {}
        self._replacements: dict[str, float] = {}
        self._relays = Relays(emit, then, self._lost, limits)

    def need(self, node: str) -> None:
        """Have a monitor on this node."""
        if node in self._monitors:
            return
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        options: dict[str, Any] = {"num_cpus": 0, "concurrency_groups": {"events": 1, "control": 2}}
        actor_class = ray.remote(**options)(HostMonitor).options(scheduling_strategy=strategy)
        self._monitors[node] = actor_class.remote(node, True)
        self._listen(node)
        self._on_new(node)

    def replace(self, is_needed: Callable[[str], bool]) -> None:
        """A monitor may die alone; as long as its node has workers, it gets another one."""
        for node, due_s in list(self._replacements.items()):
            if time.monotonic() >= due_s:
                del self._replacements[node]
                if is_needed(node):
                    self.need(node)

    def watch(self, node: str, worker: str, pid: int, page: Path) -> None:
        if node in self._monitors:
            self._then(self._monitors[node].watch.remote(worker, pid, page), _ignore, _ignore)

    def forget(self, node: str, worker: str) -> None:
        if node in self._monitors:
            self._then(self._monitors[node].forget.remote(worker), _ignore, _ignore)

    def inspect(self, node: str, worker: str) -> None:
        """Have its stacks dumped; they come as an event."""

        def tell(stack: str) -> None:
            self._emit(ev.StackDumped(worker=worker, stack=stack))

        if node in self._monitors:
            self._then(self._monitors[node].inspect.remote(worker), tell, _ignore)

    def fence(self, node: str, worker: str, done: Callable[[str], None]) -> None:
        """Kill a worker; `done` gets the proof of its end, empty if there is none."""
        if node in self._monitors:
            self._then(self._monitors[node].fence.remote(worker), done, lambda _: done(""))
        else:
            done("")

    def end_all(self, pages: str, arenas: tuple[str, str] | None = None) -> None:
        """End the workers on all nodes, take their flight pages away, and end the monitors.

        Args:
            arenas: (directory, run) of slots that go too.
        """
        for ending in [monitor.end_all.remote(pages, arenas) for monitor in self._monitors.values()]:
            with contextlib.suppress(RayError, GetTimeoutError):
                alive = ray.get(ending, timeout=_END_S)
                if alive:
                    log.warning("processes that could not be ended: %s", alive)

    def kill(self) -> None:
        self._relays.kill()
        for monitor in self._monitors.values():
            ray.kill(monitor)

    def _lost(self, node: str) -> None:
        self._monitors.pop(node, None)
        self._replacements[node] = time.monotonic() + _REPLACE_S
        self._emit(ev.MonitorLost(node=node))

    def _listen(self, node: str) -> None:
        """Ask it for its next news; where there are many, a relay does."""
        monitor = self._monitors.get(node)
        if monitor is not None and len(self._monitors) > self._relay_above_hosts:
            self._relays.add(node, monitor)
            return

        def heard(beat: tuple[list[ev.Event], tuple[Reading, ...]]) -> None:
            news, readings = beat
            for event in (*news, ev.HostBeat(node=node, readings=readings)):
                self._emit(event)
            self._listen(node)

        def lost(error: Exception) -> None:
            log.debug("the host monitor of node %s is gone: %s", node, error)
            self._lost(node)

        if monitor is not None:
            self._then(monitor.beat.options(concurrency_group="events").remote(self._period_s), heard, lost)
