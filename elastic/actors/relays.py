"""Effect. The relays of a run as the driver sees them: each hears some host monitors, and is replaced if lost."""

import logging
import time
from collections.abc import Callable
from threading import Lock
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elastic.actors.refusals import Refusals
from elastic.actors.relay import Relay
from elastic.control import events as ev
from elastic.control.envelopes import Heard, relayed
from elastic.control.silences import Silences
from elastic.settings import Limits

log = logging.getLogger("elastic")

_OFTENER = 2  # a relay asks its monitors more often than it tells, so that a host is not heard late for being relayed
_HUNG_S = 60.0  # without an answer, which takes a period, or what it takes to start a process
_SILENT_S = 60.0  # for which a monitor that was heard before says nothing to a relay that answers

EmitOf = Callable[[str, ev.Event], None]
EmitBeat = Callable[[ev.HostsHeard], None]
Then = Callable[[Any, Callable[[Any], Any], Callable[[Exception], Any]], None]


class Relays:
    """See the module.

    Args:
        emit: takes what the monitor of a node tells.
        emit_beat: takes what a relay itself tells.
        then: goes on with an answer, or an error, of a call to Ray, in a thread that may call Ray.
        on_lost: called with a node whose monitor is gone.
        on_hung: called with a node whose monitor was heard before, and has said nothing for too long.
    """

    def __init__(
        self,
        emit: EmitOf,
        emit_beat: EmitBeat,
        then: Then,
        on_lost: Callable[[str], None],
        on_hung: Callable[[str], None],
        limits: Limits,
    ) -> None:
        self._emit, self._emit_beat, self._then = emit, emit_beat, then
        self._on_lost, self._on_hung, self._limits = on_lost, on_hung, limits
        self._heard_by: dict[Any, dict[str, Any]] = {}  # relay -> node -> monitor
        # Of the monitors behind each relay, looked at when it answers: while it does not, nobody listens to them.
        self._behind: dict[Any, Silences[str]] = {}
        self._had: dict[str, int] = {}  # node -> how many of the news of its monitor have come here
        self._refusals = Refusals()
        self._silences: Silences[Any] = Silences(time.monotonic())  # of relays, since each was asked
        self._lock = Lock()

    def add(self, node: str, monitor: Any, was_heard: bool = False) -> None:
        """Have this monitor heard by a relay that has room, or by a new one."""
        self._had[node] = 0
        self._assign(node, monitor, was_heard)

    def _assign(self, node: str, monitor: Any, was_heard: bool) -> None:
        with self._lock:
            room = (one for one, nodes in self._heard_by.items() if len(nodes) < self._limits.hosts_per_relay)
            relay = next(room, None)
            is_new = relay is None
            if relay is None:
                relay = self._start(node)
                self._heard_by[relay], self._behind[relay] = {}, Silences(time.monotonic())
            self._heard_by[relay][node] = monitor
            if was_heard:
                self._behind[relay].begin(node, time.monotonic())
        self._then(relay.add.remote(node, monitor, self._had[node]), _ignore, _ignore)
        if is_new:
            self._listen(relay)

    def replace_hung(self, now_s: float) -> None:
        """A relay that does not answer, or says what nobody understands, hides its hosts: others take them over.

        To be called every second or so.
        """
        for relay in self._silences.longer_than(_HUNG_S, now_s):
            log.warning("a relay has not answered for %.0f s; another one takes its place", _HUNG_S)
            ray.kill(relay)
            self._replace(relay)

    def _replace(self, relay: Any) -> None:
        with self._lock:
            nodes, were_heard = self._heard_by.pop(relay, {}), self._behind.pop(relay, ())
            self._silences.forget(relay)
            self._refusals.forget(relay)
        for node, monitor in nodes.items():
            self._assign(node, monitor, node in were_heard)

    def kill(self) -> None:
        with self._lock:
            relays, self._heard_by, self._behind = list(self._heard_by), {}, {}
            self._silences.clear()
        for relay in relays:
            ray.kill(relay)

    def _start(self, node: str) -> Any:
        """On the first of its hosts, so that they are spread; anywhere, if that one has just gone."""
        period_s = self._limits.heartbeat_polling_period_s / _OFTENER
        strategy = NodeAffinitySchedulingStrategy(node, soft=True)
        actor_class = ray.remote(num_cpus=0)(Relay).options(scheduling_strategy=strategy)
        limits = self._limits
        return actor_class.remote(period_s, limits.hang_floor_s, limits.stopped_timeout_s, has_own_process=True)

    def _listen(self, relay: Any) -> None:
        def heard(message: Any) -> None:
            if relay not in self._heard_by:
                return  # it was taken for hung: the next one is told the same
            with self._lock:
                hosts = tuple(self._heard_by.get(relay, ()))
            told, why_not = relayed(message, hosts, self._had)
            for part, why in why_not.items():
                self._refusals.say(relay, part, why)
            if told is None:
                return  # it is as one that hangs
            for node, event in told.events:
                self._emit(node, event)
            self._had |= told.numbers
            if told.beat.nodes:
                self._emit_beat(told.beat)
            for node in told.lost:
                with self._lock:
                    self._heard_by.get(relay, {}).pop(node, None)
                self._on_lost(node)
            self._end_hung(relay, told)
            self._listen(relay)

        def lost(error: Exception) -> None:
            log.debug("a relay of %d hosts is gone: %s", len(self._heard_by.get(relay, {})), error)
            self._replace(relay)

        if relay in self._heard_by:
            self._silences.begin(relay, time.monotonic())
            self._then(relay.beat.remote(self._limits.heartbeat_polling_period_s), heard, lost)

    def _end_hung(self, relay: Any, told: Heard) -> None:
        """Monitors that this relay asks in vain; it has answered just now."""
        now_s = time.monotonic()
        with self._lock:
            behind = self._behind.get(relay)
            if behind is None:
                return  # it was replaced meanwhile
            for node in told.beat.nodes:
                behind.begin(node, now_s)
            for node in told.lost:
                behind.forget(node)
            hung = behind.longer_than(_SILENT_S, now_s)
            for node in hung:
                behind.forget(node)
        for node in hung:
            self._on_hung(node)


def _ignore(_: Any) -> None:
    """Nothing follows: a relay that is gone is heard of otherwise."""
