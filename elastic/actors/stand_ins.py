"""Effect. The stand-ins of a run: where its workers are, or may come, processes that can become a worker at once.

Most of what a replacement takes is the start of a process and its imports, on cores that the survivors' steps want. A
stand-in has both behind it. It holds no slot: who takes it gives it the slot, and the accelerators, of the worker.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elastic.actors.hands import Hands
from elastic.actors.host_monitors import Then
from elastic.actors.peer_source import namespace
from elastic.actors.worker_actor import stand_in_name, start_worker_actor
from elastic.control.standing_by import ready_places, room_of, stand_ins_by_node
from elastic.settings import RunSettings

log = logging.getLogger("elastic")

_AGAIN_S = 30.0  # until a node on which one has failed gets another
_ASK_S = 30.0
_LINGER_S = 60.0  # on a node whose workers have gone: their replacements may come there
_CALM_S = 3.0  # after one was taken, or somebody joins: forming, and the first steps, want the cores of imports
_LOOK_S = 1.0
_SURVEY_S = 10.0  # nodes come and go seldom, and Ray needs a while to list thousands
_AT_ONCE = 16  # Ray needs milliseconds for each


@dataclass(slots=True)
class StandIn:
    """What the driver holds of one; `due_s`: when it is asked again, none while it has yet to answer."""

    node: str
    actor: Any
    is_ready: bool = False
    due_s: float | None = 0.0


class StandIns:
    """Called from any thread.

    Args:
        train_fn: pickled, so that what it imports is imported, too; empty: not that.
        then: goes on with an answer, or an error, of a call to Ray, in a thread that may call Ray.
    """

    def __init__(
        self, settings: RunSettings, train_fn: bytes, then: Then, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._train_fn, self._then, self._clock = settings, train_fn, then, clock
        self._all: list[StandIn] = []
        self._failed_s: dict[str, float] = {}
        self._needed_s: dict[str, float] = {}
        self._number, self._look_s, self._survey_s, self._calm_until_s = 0, 0.0, 0.0, 0.0
        self._room: dict[str, int] = {}
        self._lock = threading.RLock()

    def keep(self, hands: Hands, shunned: Collection[str] = ()) -> None:
        """Have as many on each node as `stand_ins_by_node` says; ask those that are there.

        None starts on the nodes of workers on their way to their first step. Called often; acts once a second.

        Args:
            hands: the run's workers. shunned: nodes that get no new workers.
        """
        now_s = self._clock()
        if now_s < self._look_s:
            return
        self._look_s = now_s + _LOOK_S
        workers, loading = hands.by_node(), hands.loading()
        self._survey(now_s, shunned)
        with self._lock:
            wanted = stand_ins_by_node(workers, self._room, self._settings.scaling)
            self._needed_s |= dict.fromkeys(wanted, now_s)
            for one in [one for one in self._all if now_s - self._needed_s[one.node] > _LINGER_S]:
                self._drop(one)
            for node in self._wanting(workers, {node: wanted[node] for node in wanted if node not in loading}, now_s):
                self._start(node)
            for one in self._all:
                if one.due_s is not None and now_s >= one.due_s:
                    self._ask(one)

    def _survey(self, now_s: float, shunned: Collection[str]) -> None:
        if not self._settings.scaling.stand_ins or now_s < self._survey_s:
            return
        self._survey_s = now_s + _SURVEY_S
        try:
            nodes = {one["NodeID"]: (one["Resources"], one["Labels"]) for one in ray.nodes() if one["Alive"]}
        except RayError as error:  # Ray's head may be away
            log.debug("nodes are not known: %s", error)
        else:
            self._room = room_of(nodes, self._settings.scaling, shunned)

    def _wanting(self, workers: Collection[str], wanted: Mapping[str, int], now_s: float) -> list[str]:
        """Where there are too few: beside workers first; elsewhere one at a time, once all the others are ready."""
        if now_s < self._calm_until_s:
            return []
        there = Counter(one.node for one in self._all)
        fit = [node for node in wanted if now_s >= self._failed_s.get(node, 0.0)]
        missing = [node for node in fit for _ in range(wanted[node] - there[node])]
        beside = [node for node in missing if node in workers]
        if beside or not all(one.is_ready for one in self._all):
            return beside[:_AT_ONCE]
        return missing[:1]

    def places(self, workers: Mapping[str, int]) -> tuple[str, ...]:
        """Nodes on which a replica that is lost now would find them ready.

        Args:
            workers: the run's that are well, by node.
        """
        with self._lock:
            ready = Counter(one.node for one in self._all if one.is_ready)
            return ready_places(ready, workers, self._room, self._settings.scaling)

    def hold(self) -> None:
        """Start none for a while: somebody joins. Takes no lock: who holds it may be waiting for Ray."""
        self._calm_until_s = self._clock() + _CALM_S

    @property
    def has_any(self) -> bool:
        """Whether there is one, anywhere, that can be taken."""
        with self._lock:
            return bool(self._all)

    def is_on(self, node: str) -> bool:
        """Whether there is one on this node."""
        with self._lock:
            return any(one.node == node for one in self._all)

    def take(self, node: str) -> StandIn | None:
        """One on this node, which is nobody's any more; None: there is none.

        One that is not ready is so sooner, once it is hurried, than a process that has yet to start.
        """
        with self._lock:
            there = [one for one in self._all if one.node == node]
            found = next((one for one in there if one.is_ready), there[0] if there else None)
            if found is None:
                return None
            self._all.remove(found)
            self.hold()
            return found

    def end(self) -> None:
        """End those that nobody has taken."""
        with self._lock:
            for one in list(self._all):
                self._drop(one)

    def _start(self, node: str) -> None:
        self._number += 1
        scaling, lease_s = self._settings.scaling, self._settings.limits.orphan_lease_s
        try:
            actor = start_worker_actor(
                name=stand_in_name(self._settings.run, self._settings.incarnation, self._number),
                namespace=namespace(self._settings.run),
                strategy=NodeAffinitySchedulingStrategy(node, soft=False),
                resources={},
                as_stand_in=(lease_s, self._train_fn, scaling.has_accelerators),
            )
        except (RayError, RuntimeError, ValueError) as error:  # Ray's head may be away
            self._failed(node, error)
        else:
            self._all.append(StandIn(node, actor))

    def _failed(self, node: str, error: Exception) -> None:
        log.debug("a stand-in on node %s has failed: %s", node, error)
        self._failed_s[node] = self._clock() + _AGAIN_S

    def _ask(self, one: StandIn) -> None:
        """Whether it is ready; that tells it, too, that its driver lives."""

        def ready(_: int) -> None:
            one.is_ready, one.due_s = True, self._clock() + min(_ASK_S, self._settings.limits.orphan_lease_s / 4)

        def failed(error: Exception) -> None:
            with self._lock:
                if one in self._all:  # else it was taken, or dropped
                    self._failed(one.node, error)
                    self._drop(one)

        one.due_s = None
        self._then(one.actor.stand_by.options(concurrency_group="control").remote(), ready, failed)

    def _drop(self, one: StandIn) -> None:
        self._all.remove(one)
        ray.kill(one.actor)
