"""Effect. The supervisor in an actor of its own, which outlives its driver for a while, and where it is placed."""

import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elastic.actors.asking import supervisor_name
from elastic.actors.monitor import process_state
from elastic.actors.peer_source import namespace
from elastic.actors.supervisor import Supervisor
from elastic.control import events as ev
from elastic.control.commands import Command
from elastic.control.remediation import Policy
from elastic.control.state import RunState
from elastic.settings import Scaling

log = logging.getLogger("elastic")

_WATCH_S = 1.0


class SupervisorActor(Supervisor):
    """See `Supervisor`; it ends itself when it has heard no driver for the orphan lease, as workers do.

    Args:
        driver: (node id, pid) of the driver.
    """

    def __init__(self, state: RunState, policy: Policy, driver: tuple[str, int]) -> None:
        super().__init__(state, policy)
        self._lease_s = state.settings.limits.orphan_lease_s
        node, pid = driver
        self._driver_pid = pid if node == ray.get_runtime_context().get_node_id() else None
        self._heard_s = time.monotonic()
        threading.Thread(target=self._watch_for_driver, name="elastic-orphan-watch", daemon=True).start()

    def observe(self, events: list[tuple[float, ev.Event]]) -> tuple[tuple[Command, ...], RunState]:
        """See `Supervisor.observe`."""
        answer = super().observe(events)
        self._heard_s = time.monotonic()
        return answer

    def silent_s(self) -> float:
        """For how long nothing was heard of the driver; for ever, if its process is seen to be gone."""
        if self._driver_pid is not None and process_state(self._driver_pid) in ("", "Z", "X"):
            return math.inf
        return time.monotonic() - self._heard_s

    def _watch_for_driver(self) -> None:
        pause = threading.Event()
        while time.monotonic() - self._heard_s < self._lease_s:
            pause.wait(min(_WATCH_S, self._lease_s / 4))
        os._exit(0)


def start_supervisor(state: RunState, policy: Policy, beside_driver: bool) -> tuple[Any, bool]:
    """A new supervisor, and whether it is on the driver's node.

    Raises:
        ValueError: the run has one.
    """
    run, scaling = state.settings.run, state.settings.scaling
    here = ray.get_runtime_context().get_node_id()
    node = here if beside_driver else (_wanted_node(scaling) or here)
    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "lifetime": "detached"}
    options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
    options |= {"name": supervisor_name(run), "namespace": namespace(run)}
    return ray.remote(**options)(SupervisorActor).remote(state, policy, (here, os.getpid())), node == here


def _wanted_node(scaling: Scaling) -> str | None:
    """A live node as `Scaling` describes it; None where nothing is asked for, or there is none."""
    if not scaling.supervisor_labels and not scaling.supervisor_resource:
        return None
    found = sorted(one["NodeID"] for one in ray.nodes() if one["Alive"] and _fits(one, scaling))
    if not found:
        log.warning("no node is as Scaling.supervisor_labels or supervisor_resource say: the supervisor stays here")
    return found[0] if found else None


def _fits(node: Mapping[str, Any], scaling: Scaling) -> bool:
    labels, resource = node.get("Labels", {}), scaling.supervisor_resource
    is_labelled = all(labels.get(key) == value for key, value in (scaling.supervisor_labels or {}).items())
    return is_labelled and (not resource or node["Resources"].get(resource, 0) > 0)
