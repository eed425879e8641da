"""Effect. The host monitors of a run as the driver sees them: one for each node that has workers, replaced if lost."""

import contextlib
import logging
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elastic.actors.admission import Admission
from elastic.actors.fleet import Emit
from elastic.actors.monitor import UNREACHABLE, HostMonitor
from elastic.actors.refusals import Refusals
from elastic.actors.relays import Relays
from elastic.actors.series import GpuSeries
from elastic.chaos.striking import Scene
from elastic.control import events as ev
from elastic.control.envelopes import beat_of, findings_of, text_of
from elastic.control.faults import Fault
from elastic.control.refusing import misplaced
from elastic.control.silences import Silences
from elastic.settings import RunSettings

log = logging.getLogger("elastic")

_REPLACE_S = 1.0  # until a lost monitor is replaced; on a node that is gone, its workers are proven dead by then
_END_S = 10.0
_STACK_S = 1.0  # for which a fence waits for the stacks of who is killed: nobody can have them after it
_HUNG_S = 60.0  # for which a monitor that was heard before says nothing, though it beats every period

Then = Callable[[Any, Callable[[Any], Any], Callable[[Exception], Any]], None]


def _ignore(_: Any) -> None:
    """Nothing follows."""


def _is_alive(node: str) -> bool | None:
    """Whether Ray has that node; None: Ray does not say."""
    try:
        return any(one["NodeID"] == node and one["Alive"] for one in ray.nodes())
    except (RayError, ConnectionError, TimeoutError) as error:
        log.debug("Ray does not say which nodes there are: %s", error)
        return None


class HostMonitors:
    """See the module.

    Args:
        emit: takes what the monitors tell.
        then: goes on with an answer, or an error, of a call to Ray, in a thread that may call Ray.
        on_new: called with a node whose monitor is new and knows of no worker.
        settings: how often each is asked, from how many on they are heard through relays, what they sense and check.

    Attribute `admission`: which nodes may have workers.
    """

    def __init__(self, emit: Emit, then: Then, on_new: Callable[[str], None], settings: RunSettings) -> None:
        limits = settings.limits
        self._emit, self._then, self._on_new = emit, then, on_new
        self._run, self._health, self._logs = settings.run, settings.health, settings.logs
        self._period_s = limits.heartbeat_polling_period_s
        self._hang_floor_s, self._stopped_timeout_s = limits.hang_floor_s, limits.stopped_timeout_s
        self._relay_above_hosts = limits.relay_above_hosts
        gpus = settings.scaling.resources.get("GPU", 0.0) * settings.scaling.workers_per_node
        self._wanted_gpus = math.ceil(round(gpus, 6))  # a replica has its part of a node to itself
        self.admission = Admission(settings.health, emit, self._check)
        self._monitors: dict[str, Any] = {}
        self._replacements: dict[str, float] = {}
        self._silences: Silences[str] = Silences(time.monotonic())  # of monitors that no relay hears
        self._relays = Relays(self._believe, emit, then, self._lost, self._end, limits)
        self._watched: dict[str, str] = {}
        self._inspected: set[str] = set()  # whose stacks have been asked for, and have not come yet
        self._refusals = Refusals()
        self._garbled: set[str] = set()  # nodes whose monitor has answered with what is no beat; asked again soon
        self._is_measured: dict[str, bool] = {}  # whether another node's bytes came fast enough; False: there was none

    def need(self, node: str) -> None:
        """Have a monitor on this node."""
        if node in self._monitors:
            self.admission.begin_again(node)
            return
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        # A driver that hangs in a reset, or in a check, must not keep it from fencing.
        groups = {"events": 1, "control": 2, "health": 2, "slow": 1, "stacks": 1}
        options: dict[str, Any] = {"num_cpus": 0, "concurrency_groups": groups}
        actor_class = ray.remote(**options)(HostMonitor).options(scheduling_strategy=strategy)
        show = GpuSeries(self._run, node).show
        self._monitors[node] = actor_class.remote(
            node, True, self._health, self._hang_floor_s, self._stopped_timeout_s, show, self._logs
        )
        self._listen(node)
        self._on_new(node)
        self.admission.begin(node)

    def replace(self, is_needed: Callable[[str], bool]) -> None:
        """A monitor may die alone, or hang; its node gets another one. So does a relay.

        Args:
            is_needed: whether a node has workers; one without is needed, too, until it has passed its check.
        """
        now_s = time.monotonic()
        for node in self._silences.longer_than(_HUNG_S, now_s):
            self._silences.forget(node)
            self._end(node)
        for node, due_s in list(self._replacements.items()):
            if now_s >= due_s:
                is_wanted = is_needed(node) or (self.admission.is_open(node) and _is_alive(node))
                if is_wanted is None:
                    continue  # it is asked again
                del self._replacements[node]
                if is_wanted:
                    self.need(node)
        while self._garbled:
            self._listen(self._garbled.pop())
        self._relays.replace_hung(now_s)
        self.admission.recheck()

    def _end(self, node: str) -> None:
        """A monitor that says nothing any more; whoever has called it hears that it is gone."""
        if (monitor := self._monitors.get(node)) is not None:
            log.warning("the host monitor of node %s has said nothing for %.0f s, and is ended", node[:12], _HUNG_S)
            ray.kill(monitor)

    def watch(self, node: str, worker: str, pid: int, page: Path) -> None:
        self._watched[worker] = node
        if (monitor := self._monitors.get(node)) is not None:
            self._then(monitor.watch.remote(worker, pid, page), _ignore, _ignore)

    def forget(self, node: str, worker: str) -> None:
        self._watched.pop(worker, None)
        if (monitor := self._monitors.get(node)) is not None:
            self._then(monitor.forget.remote(worker), _ignore, _ignore)

    def look(self) -> None:
        """Have those that no relay hears look at their workers now, and tell what they see."""
        for monitor in list(self._monitors.values()) if not self._is_relayed() else ():
            self._then(monitor.look.options(concurrency_group="control").remote(), _ignore, _ignore)

    def inspect(self, node: str, worker: str) -> None:
        """Have its stacks dumped; they come as an event."""

        def tell(answer: Any) -> None:
            self._inspected.discard(worker)
            stack, why_not = text_of(node, answer)
            self._emit(ev.StackDumped(worker=worker, stack=stack or why_not))

        if (monitor := self._monitors.get(node)) is not None:
            self._inspected.add(worker)
            asked = monitor.inspect.options(concurrency_group="stacks").remote(worker)
            self._then(asked, tell, lambda _: self._inspected.discard(worker))

    def fence(self, node: str, worker: str, done: Callable[[str], None]) -> None:
        """Kill a worker; `done` gets the proof of its end, empty if there is none."""

        def fenced(answer: Any) -> None:
            proof, why_not = text_of(node, answer)
            if why_not:
                self._refusals.say(node, "proof", why_not)
            done(proof)

        if (monitor := self._monitors.get(node)) is not None:
            stack_s = _STACK_S if worker in self._inspected else 0.0
            self._then(monitor.fence.remote(worker, stack_s), fenced, lambda _: done(""))
        else:
            done("")

    def reset_gpus(self, node: str, gpus: tuple[str, ...], timeout_s: float) -> None:
        """Have GPUs reset; how that ended comes as an event."""

        def tell(answer: Any) -> None:
            error, why_not = text_of(node, answer)
            self._emit(ev.GpuReset(node=node, gpus=gpus, error=error or why_not))

        if (monitor := self._monitors.get(node)) is not None:
            reset = monitor.reset_gpus.options(concurrency_group="slow")
            self._then(reset.remote(gpus, timeout_s), tell, lambda error: tell(f"its host monitor is gone: {error}"))
        else:
            tell("the node has no host monitor")

    def inject(self, node: str, fault: Fault, worker: str, scene: Scene) -> None:
        """Have a fault strike; what came of it is among the monitor's news, unless the node can not tell any more."""

        def lost(error: Exception) -> None:
            reason = f"the host monitor of its node was lost meanwhile: {error}".splitlines()[0]
            if fault.kind in UNREACHABLE:
                self._emit(ev.FaultInjected(fault=fault, target=node, at_s=asked_s, proof=reason))
            else:
                self._emit(ev.FaultRefused(fault=fault, reason=reason))

        asked_s = time.time()
        if (monitor := self._monitors.get(node)) is not None:
            self._then(monitor.inject.remote(fault, worker, node, scene), _ignore, lost)
        else:
            self._emit(ev.FaultRefused(fault=fault, reason=f"node {node[:12]} has no host monitor now"))

    def actor(self, node: str) -> Any:
        """The monitor of a node, None if there is none."""
        return self._monitors.get(node)

    def end_all(self, pages: str, arenas: tuple[str, str] | None = None) -> None:
        """End the workers on all nodes, take their flight pages away, and end the monitors.

        Args:
            arenas: (directory, run) of slots that go too.
        """
        monitors = dict(self._monitors)
        calls = {node: (one.end_all.remote(pages, arenas), one.logged.remote()) for node, one in monitors.items()}
        asked = [call for pair in calls.values() for call in pair]
        ended = set(ray.wait(asked, num_returns=len(asked), timeout=_END_S)[0]) if asked else set()
        for node, pair in calls.items():
            if not ended.issuperset(pair):  # gone, or late: all nodes together have one deadline
                continue
            with contextlib.suppress(RayError, GetTimeoutError):
                alive, logged = ray.get(list(pair), timeout=_END_S)
                if alive:
                    log.warning("processes that could not be ended: %s", alive)
                for one in beat_of(node, (logged, ())).news:
                    self._believe(node, one)

    def _believe(self, node: str, event: ev.Event) -> None:
        """Pass on what is this monitor's to tell; say once of each kind that something was not."""
        if why_not := misplaced(node, event, self._watched):
            self._refusals.say(node, type(event).__name__, why_not)
        else:
            self._emit(event)

    def kill(self) -> None:
        self._relays.kill()
        for monitor in self._monitors.values():
            ray.kill(monitor)

    def _check(
        self,
        node: str,
        done: Callable[[list[str]], Any],
        failed: Callable[[Exception], Any],
        peer: Any = None,
        lost: frozenset[str] = frozenset(),
    ) -> None:
        """Ask a monitor for the health of its node; measured from another node, if that is wanted and there is one.

        Args:
            peer: where one lends its bytes. lost: those that were asked for that, and are lost.
        """
        monitor = self._monitors.get(node)
        if monitor is None:  # it is replaced, if its node is there, and then asked
            return
        if self._health.peer_bytes_per_s and peer is None:
            others = sorted(self._monitors.keys() - {node, *lost}, key=lambda one: not self._is_measured.get(one))
            if others:
                self._is_measured.pop(node, None)
                without = lost | {others[0]}
                ask_another = partial(self._check, node, done, failed, lost=without)
                self._borrow(others[0], partial(self._check, node, done, failed), ask_another, failed)
                return
            self._is_measured[node] = False

        def answered(answer: Any) -> None:
            found = findings_of(answer)
            done(found)
            if peer is not None and not found:
                self._make_up_for(node)

        def not_answered(error: Exception) -> None:
            if isinstance(error, ActorUnavailableError):
                self.admission.ask_again(node)
            elif not isinstance(error, RayActorError):  # a monitor that is lost is replaced, and asked again
                failed(error)

        self._then(
            monitor.check_health.options(concurrency_group="health").remote(peer, self._wanted_gpus),
            answered,
            not_answered,
        )

    def _make_up_for(self, node: str) -> None:
        """Bytes come here as fast as they should: whoever had nobody to measure with has this node now."""
        self._is_measured[node] = True
        for other in [one for one, is_measured in self._is_measured.items() if not is_measured]:
            self.admission.begin(other)

    def _borrow(
        self, node: str, use: Callable[[Any], Any], lost: Callable[[], Any], failed: Callable[[Exception], Any]
    ) -> None:
        """Have a node lend its bytes; `use` gets its address and port. That it is lost says nothing of who borrows."""
        monitor = self._monitors.get(node)
        if monitor is None:
            lost()
            return
        address = next((one["NodeManagerAddress"] for one in ray.nodes() if one["NodeID"] == node), "")
        lending = monitor.lend.options(concurrency_group="health").remote(address)
        self._then(
            lending,
            lambda port: use((address, port)),
            lambda error: lost() if isinstance(error, RayActorError) else failed(error),
        )

    def _lost(self, node: str) -> None:
        self._monitors.pop(node, None)
        self._silences.forget(node)
        self._is_measured.pop(node, None)
        self._replacements[node] = time.monotonic() + _REPLACE_S
        self._emit(ev.MonitorLost(node=node))

    def _is_relayed(self) -> bool:
        return len(self._monitors) > self._relay_above_hosts

    def _listen(self, node: str) -> None:
        """Ask it for its next news; where there are many, a relay does."""
        monitor = self._monitors.get(node)
        if monitor is not None and self._is_relayed():
            self._relays.add(node, monitor, was_heard=node in self._silences)
            self._silences.forget(node)
            return

        def heard(message: Any) -> None:
            beat = beat_of(node, message)
            if beat.why_not:
                self._refusals.say(node, "beat", beat.why_not)
            if not beat.is_heard:
                if node not in self._silences:
                    self._silences.begin(node, time.monotonic())  # it has started
                self._garbled.add(node)
                return
            self._silences.begin(node, time.monotonic())
            for event in beat.news:
                self._believe(node, event)
            self._emit(ev.HostBeat(node=node, readings=beat.readings))
            self._listen(node)

        def lost(error: Exception) -> None:
            log.debug("the host monitor of node %s is gone: %s", node, error)
            self._lost(node)

        if monitor is not None:
            self._then(monitor.beat.options(concurrency_group="events").remote(self._period_s), heard, lost)
