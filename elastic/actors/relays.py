"""Effect. The relays of a run as the driver sees them: each hears some host monitors, and is replaced if lost."""

import logging
from collections.abc import Callable
from threading import Lock
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elastic.actors.fleet import Emit
from elastic.actors.relay import Heard, Relay
from elastic.control import events as ev
from elastic.settings import Limits

log = logging.getLogger("elastic")

_OFTENER = 2  # a relay asks its monitors more often than it tells, so that a host is not heard late for being relayed

EmitOf = Callable[[str, ev.Event], None]
Then = Callable[[Any, Callable[[Any], Any], Callable[[Exception], Any]], None]


class Relays:
    """See the module.

    Args:
        emit: takes what the monitor of a node tells.
        emit_beat: takes what a relay itself tells.
        then: goes on with an answer, or an error, of a call to Ray, in a thread that may call Ray.
        on_lost: called with a node whose monitor is gone.
    """

    def __init__(
        self, emit: EmitOf, emit_beat: Emit, then: Then, on_lost: Callable[[str], None], limits: Limits
    ) -> None:
        self._emit, self._emit_beat, self._then, self._on_lost = emit, emit_beat, then, on_lost
        self._limits = limits
        self._heard_by: dict[Any, dict[str, Any]] = {}  # relay -> node -> monitor
        self._had: dict[str, int] = {}  # node -> how many of the news of its monitor have come here
        self._lock = Lock()

    def add(self, node: str, monitor: Any) -> None:
        """Have this monitor heard by a relay that has room, or by a new one."""
        self._had[node] = 0
        self._assign(node, monitor)

    def _assign(self, node: str, monitor: Any) -> None:
        with self._lock:
            room = (one for one, nodes in self._heard_by.items() if len(nodes) < self._limits.hosts_per_relay)
            relay = next(room, None)
            is_new = relay is None
            if relay is None:
                relay = self._start(node)
                self._heard_by[relay] = {}
            self._heard_by[relay][node] = monitor
        self._then(relay.add.remote(node, monitor, self._had[node]), _ignore, _ignore)
        if is_new:
            self._listen(relay)

    def kill(self) -> None:
        with self._lock:
            relays, self._heard_by = list(self._heard_by), {}
        for relay in relays:
            ray.kill(relay)

    def _start(self, node: str) -> Any:
        """On the first of its hosts, so that they are spread; anywhere, if that one has just gone."""
        period_s = self._limits.heartbeat_polling_period_s / _OFTENER
        strategy = NodeAffinitySchedulingStrategy(node, soft=True)
        actor_class = ray.remote(num_cpus=0)(Relay).options(scheduling_strategy=strategy)
        return actor_class.remote(period_s, self._limits.hang_floor_s, self._limits.stopped_timeout_s)

    def _listen(self, relay: Any) -> None:
        def heard(told: Heard) -> None:
            for node, event in told.events:
                self._emit(node, event)
            self._had |= told.numbers
            if told.beat.nodes:
                self._emit_beat(told.beat)
            for node in told.lost:
                with self._lock:
                    self._heard_by.get(relay, {}).pop(node, None)
                self._on_lost(node)
            self._listen(relay)

        def lost(error: Exception) -> None:
            with self._lock:
                nodes = self._heard_by.pop(relay, {})
            log.debug("a relay of %d hosts is gone: %s", len(nodes), error)
            for node, monitor in nodes.items():
                self._assign(node, monitor)

        if relay in self._heard_by:
            self._then(relay.beat.remote(self._limits.heartbeat_polling_period_s), heard, lost)


def _ignore(_: Any) -> None:
    """Nothing follows: a relay that is gone is heard of otherwise."""
