"""Effect. Which nodes may have workers of this run: those whose monitor has found them healthy.

Workers on a node that is being checked stand at the door unannounced; a node that fails, or must go, gets no new ones.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from elastic.actors.fleet import Emit
from elastic.control import events as ev
from elastic.control.hardware import FindingKind
from elastic.control.xid import Severity
from elastic.settings import Health

log = logging.getLogger("elastic")

_AGAIN_S = 1.0
_NODE_ID = "ray.io/node-id"  # a label that each node of Ray carries


class Admission:
    """See the module; called from the fleet's threads, one at a time for each node.

    Args:
        emit: takes what is told of nodes, and workers that may be announced now.
        check: asks the monitor of a node for its health; the callbacks get the sentences, or the error of the call.
    """

    def __init__(
        self,
        health: Health,
        emit: Emit,
        check: Callable[[str, Callable[[list[str]], Any], Callable[[Exception], Any]], None],
    ) -> None:
        self._health, self._emit, self._check = health, emit, check
        self._waiting: dict[str, list[ev.WorkerParked]] = {}
        self._unhealthy: dict[str, float] = {}  # when it is checked again
        self._shunned: set[str] = set()
        self._avoided: set[str] = set()  # since they were last checked

    def begin(self, node: str) -> None:
        """Its first worker was placed there, or its monitor is a new one."""
        self._avoided.discard(node)
        self._unhealthy.pop(node, None)
        if self._health.checks:
            self._waiting.setdefault(node, [])
            self._check(node, lambda found: self._answered(node, found), lambda error: self._failed(node, error))

    def begin_again(self, node: str) -> None:
        """A worker was placed there: a node that workers have had to avoid is checked anew."""
        if node in self._avoided:
            self.begin(node)

    def ask_again(self, node: str) -> None:
        """Contact was lost with its monitor, which may have no successor: soon, if nobody begins before."""
        self._unhealthy[node] = time.monotonic() + _AGAIN_S

    def is_open(self, node: str) -> bool:
        """Whether a check of this node is asked for, or will be again: its monitor is needed for that."""
        return node in self._waiting or node in self._unhealthy

    def must_wait(self, node: str, event: ev.WorkerParked) -> bool:
        """Whether this is told only once the node was checked."""
        waiting = self._waiting.get(node)
        if waiting is None:
            return False
        waiting.append(event)
        return True

    def heed(self, event: ev.Event) -> None:
        """A node that must go for another reason gets no new workers either."""
        if isinstance(event, ev.HardwareFinding) and event.severity is Severity.NODE_MUST_GO:
            self._shunned.add(event.node)

    @property
    def shunned(self) -> frozenset[str]:
        """Nodes that get no new workers."""
        return frozenset(self._shunned)

    def labels(self, wanted: Mapping[str, str] | None, avoid: frozenset[str], node: str) -> dict[str, str]:
        """For the next placement: what the user wants, and `node`, or none of those to be avoided or left out."""
        shunned = self._shunned | avoid
        self._avoided |= avoid
        if node:
            return {**(wanted or {}), _NODE_ID: node}
        return {**(wanted or {}), **({_NODE_ID: f"!in({','.join(sorted(shunned))})"} if shunned else {})}

    def labels_among(
        self, wanted: Mapping[str, str] | None, avoid: frozenset[str], nodes: Collection[str], doubted: frozenset[str]
    ) -> dict[str, str]:
        """For a placement on one of these nodes, on a doubted one only if need be; empty if it can be on none."""
        fit = set(nodes) - self._shunned - avoid
        best = sorted(fit - doubted or fit)
        return {**(wanted or {}), _NODE_ID: f"in({','.join(best)})"} if best else {}

    def recheck(self) -> None:
        """Nodes that have failed, from time to time."""
        for node, due_s in list(self._unhealthy.items()):
            if time.monotonic() >= due_s:
                self.begin(node)

    def _answered(self, node: str, found: list[str]) -> None:
        severity = Severity.NODE_MUST_GO if found else Severity.INFORMATIONAL
        if found:
            self._unhealthy[node] = time.monotonic() + self._health.recheck_s
        else:
            self._shunned.discard(node)
        detail = "; ".join(found) or "healthy"
        self._emit(ev.HardwareFinding(node=node, device="", kind=FindingKind.HEALTH, severity=severity, detail=detail))
        for event in self._waiting.pop(node, []):
            self._emit(event)

    def _failed(self, node: str, error: Exception) -> None:
        """A monitor that is lost is replaced, and asked again; any other error is the node's."""
        log.debug("the health of node %s is not known: %s", node, error)
        self._answered(node, [f"it could not be checked: {type(error).__name__}"])
