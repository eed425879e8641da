"""Effect. Ray's drain: a node that is about to leave takes no new work, and nothing on it is killed by Ray.

This is the one module that touches Ray's private interface to it (`ray._private.state`, `GcsClient`); Ray publishes a
drain nowhere else, so it is polled.
"""

import time
from collections.abc import Callable
from typing import Any

import ray
from ray._private import state, worker

from elastic.actors.fleet import Emit
from elastic.control import events as ev
from elastic.errors import ElasticError

_PREEMPTION = 2  # DrainNodeReason of Ray's autoscaler protocol: running work may be lost
_LOOK_S = 0.25  # a look costs about 2 ms


class Drains:
    """Tells once of each node that Ray is draining and that is of use to the run: on others Ray places none.

    A cluster may drain a node a minute, for other jobs.

    Args:
        emit: takes the NodeNotice. is_in_use: whether a node has workers, or stand-ins.
    """

    def __init__(self, emit: Emit, is_in_use: Callable[[str], bool]) -> None:
        self._emit, self._is_in_use = emit, is_in_use
        self._told: set[str] = set()
        self._due_s = 0.0

    def look_now_and_then(self) -> None:
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + _LOOK_S
        draining = draining_nodes()
        self._told.intersection_update(draining)
        for node, reason in draining.items():
            if node not in self._told and self._is_in_use(node):
                self._told.add(node)
                self._emit(ev.NodeNotice(node=node, reason=reason))


def draining_nodes() -> dict[str, str]:
    """Node id -> why it will be lost, for each node that is being drained; needs a connection to the cluster."""
    now_s = time.time()
    return {
        node: f"its node is drained, deadline in {deadline_ms / 1000 - now_s:.0f} s" if deadline_ms else "it is drained"
        for node, deadline_ms in state.state.get_draining_nodes().items()
    }


def drain_node(node: str, reason: str, deadline_s: float) -> str:
    """Have a node of the connected cluster drained.

    Args:
        node: the beginning of its id, its address, or its name.
        reason: kept by Ray beside the drain.
        deadline_s: from now until the node may be taken away.

    Returns:
        The node's full id.

    Raises:
        ElasticError: no live node, or several, match; or Ray refuses.
    """
    alive = [one for one in ray.nodes() if one["Alive"]]
    found = [one["NodeID"] for one in alive if _is(one, node)]
    if len(found) != 1:
        known = ", ".join(f"{one['NodeID'][:8]} ({one['NodeManagerAddress']})" for one in alive)
        raise ElasticError(f"{len(found)} live nodes match {node!r}: name one of {known}")
    deadline_ms = int((time.time() + deadline_s) * 1000)
    client = worker.global_worker.gcs_client  # type: ignore[attr-defined]
    accepted, message = client.drain_node(found[0], _PREEMPTION, reason, deadline_ms)
    if not accepted:
        raise ElasticError(f"Ray refuses to drain {found[0]}: {message}")
    return str(found[0])


def _is(known: dict[str, Any], node: str) -> bool:
    return known["NodeID"].startswith(node) or node in (known["NodeManagerAddress"], known["NodeManagerHostname"])
