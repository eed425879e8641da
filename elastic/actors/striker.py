"""Effect. The driver's hand in fault injection on Ray: what host monitors can not do, since it strikes themselves."""

import threading
import time
from typing import Any

import ray
from ray.exceptions import RayError

from elastic.actors.asking import supervisor_name
from elastic.actors.draining import drain_node
from elastic.actors.fleet import Emit
from elastic.actors.host_monitors import HostMonitors, Then
from elastic.actors.peer_source import namespace
from elastic.chaos.striking import Scene
from elastic.control import events as ev
from elastic.control.faults import Fault, FaultKind
from elastic.errors import ElasticError
from elastic.settings import RunSettings

_TRIES = 100  # calls that an actor may answer after it was killed


class Striker:
    """See the module.

    Args:
        emit: takes FaultInjected, with proof, or FaultRefused.
        then: as of `HostMonitors`.
    """

    def __init__(self, settings: RunSettings, monitors: HostMonitors, emit: Emit, then: Then) -> None:
        self._run, self._scene = settings.run, Scene.of(settings)
        self._monitors, self._emit, self._then = monitors, emit, then

    def inject(self, fault: Fault, worker: str, node: str) -> None:
        """Have a fault strike; returns at once, and may be called from any thread."""
        if fault.kind is FaultKind.KILL_SUPERVISOR:
            self._kill(fault, "supervisor", self._supervisor(), "where")
        elif fault.kind is FaultKind.KILL_MONITOR:
            self._kill(fault, node, self._monitors.actor(node), "readings")
        elif fault.kind is FaultKind.NOTICE and not worker:
            threading.Thread(target=self._drain, args=(fault, node), name="elastic-drain", daemon=True).start()
        else:
            self._monitors.inject(node, fault, worker, self._scene)

    def _supervisor(self) -> Any:
        try:
            return ray.get_actor(supervisor_name(self._run), namespace(self._run))
        except ValueError:
            return None

    def _drain(self, fault: Fault, node: str) -> None:
        at_s = time.time()
        try:
            proof = f"Ray drains {drain_node(node, 'elastic chaos', fault.lasts_s)}"
        except (ElasticError, RayError) as error:
            self._emit(ev.FaultRefused(fault=fault, reason=str(error)))
        else:
            self._emit(ev.FaultInjected(fault=fault, target=node, at_s=at_s, proof=proof))

    def _kill(self, fault: Fault, target: str, actor: Any, method: str) -> None:
        """Kill an actor's process, and call it until the call fails."""
        if actor is None:
            self._emit(ev.FaultRefused(fault=fault, reason=f"{target}: there is no such process now"))
            return
        at_s, left = time.time(), _TRIES

        def answered(_: Any) -> None:
            nonlocal left
            left -= 1
            if left:
                self._then(getattr(actor, method).remote(), answered, died)
            else:
                self._emit(ev.FaultRefused(fault=fault, reason=f"{target} still answers after it was killed"))

        def died(error: Exception) -> None:
            proof = f"it answers no more: {type(error).__name__}"
            self._emit(ev.FaultInjected(fault=fault, target=target, at_s=at_s, proof=proof))

        ray.kill(actor)
        self._then(getattr(actor, method).remote(), answered, died)
