"""Effect. The processes of a run's workers on Ray: new ones in their slots, or stand-ins that take a slot over."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from elastic.actors.hands import Hand
from elastic.actors.host_monitors import Then
from elastic.actors.peer_source import namespace
from elastic.actors.slots import Slots
from elastic.actors.stand_ins import StandIns
from elastic.actors.worker_actor import actor_name, begin, holder_name, start_worker_actor
from elastic.settings import RunSettings

log = logging.getLogger("elastic")

_NOT_STARTED = (RayError, RuntimeError, ValueError)  # what Ray says where it can start no actor now


class Staff:
    """See the module. Called from the fleet's threads.

    Args:
        work: what all workers are started with: seed, settings, train_fn, digest.
        then: goes on with an answer, or an error, of a call to Ray, in a thread that may call Ray.
        came_up, lost: told of a worker's pid, or of the error of its start.
    """

    def __init__(
        self,
        settings: RunSettings,
        slots: Slots,
        work: tuple[int, Any, str],
        then: Then,
        came_up: Callable[[str, int], None],
        lost: Callable[[str, Exception], None],
    ) -> None:
        self._settings, self._slots, self._then = settings, slots, then
        self._seed, self._train_fn, self._digest = work
        self._came_up, self._lost = came_up, lost
        # Modules of the user's may ask for GPUs when they are imported; and a large train_fn is no light luggage.
        is_left_out = settings.scaling.has_accelerators or isinstance(self._train_fn, ray.ObjectRef)
        self.stand_ins = StandIns(settings, b"" if is_left_out else cloudpickle.dumps(self._train_fn), then)
        self._lock = threading.Lock()

    def start_in_slot(self, worker: str, hand: Hand) -> None:
        """A new process, which waits for its place by itself."""
        name = actor_name(self._settings.run, self._settings.incarnation, worker)
        try:
            self._begin(worker, hand, self._actor_in_slot(name, hand), {})
        except _NOT_STARTED as error:
            self._lost(worker, error)

    def man(self, worker: str, hand: Hand) -> None:
        """A process for a worker whose place is known: a stand-in, if there is one there."""
        with self._lock:
            if hand.is_manned or hand.is_over:
                return
            hand.is_manned, stand_in = True, self.stand_ins.take(hand.node)
            hand.is_in_slot = stand_in is None
        try:
            if stand_in is None:
                self.start_in_slot(worker, hand)
            elif stand_in.is_ready:
                self._begin_standing(worker, hand, stand_in.actor)
            else:
                self._hurry(worker, hand, stand_in.actor)
        except _NOT_STARTED as error:
            self._lost(worker, error)

    def _hurry(self, worker: str, hand: Hand, actor: Any) -> None:
        """One that still imports does so with the usual priority from now on, and begins then."""
        hand.actor = actor
        if hand.is_over:  # released meanwhile, by whoever saw no actor yet
            hand.kill()
            return
        hurried = actor.hurry.options(concurrency_group="control").remote()
        self._then(
            hurried,
            lambda _: self._begin_standing(worker, hand, actor),
            lambda error: self._not_begun(worker, hand, error),
        )

    def _begin_standing(self, worker: str, hand: Hand, actor: Any) -> None:
        if self._settings.scaling.has_accelerators:
            self._begin_beside(worker, hand, actor)
        else:
            self._begin(worker, hand, actor, {})

    def _begin_beside(self, worker: str, hand: Hand, stand_in: Any) -> None:
        """Ray tells accelerators to who has the slot alone: an actor that does no more holds it for the stand-in."""
        hand.actor = stand_in
        hand.holder = self._actor_in_slot(holder_name(self._settings.run, self._settings.incarnation, worker), hand)
        if hand.is_over:  # released meanwhile, by whoever saw no holder yet
            hand.kill()
            return
        asked = hand.holder.surroundings.options(concurrency_group="control").remote()
        self._then(
            asked,
            lambda found: self._begin(worker, hand, stand_in, found),
            lambda error: self._lost(worker, error),
        )

    def _begin(self, worker: str, hand: Hand, actor: Any, surroundings: Mapping[str, str]) -> None:
        hand.actor = actor
        if hand.is_over:  # released meanwhile, by whoever saw no actor yet
            hand.kill()
            return
        where = (hand.gang, hand.shard, self._digest, hand.group)
        begun = begin(actor, surroundings, worker, self._seed, self._settings, self._train_fn, *where)
        self._then(
            begun,
            lambda pid: self._came_up(worker, pid),
            lambda error: self._not_begun(worker, hand, error),
        )

    def _not_begun(self, worker: str, hand: Hand, error: Exception) -> None:
        if hand.is_in_slot or hand.is_over:
            self._lost(worker, error)
            return
        log.info("a stand-in can not be %s, and a new process takes its place: %s", worker, type(error).__name__)
        hand.kill()
        hand.is_in_slot, hand.holder = True, None
        self.start_in_slot(worker, hand)

    def _actor_in_slot(self, name: str, hand: Hand) -> Any:
        assert hand.group is not None, name
        limits = self._settings.limits
        return start_worker_actor(
            name=name,
            namespace=namespace(self._settings.run),
            strategy=PlacementGroupSchedulingStrategy(hand.group, self._slots.bundle_of(hand.shard)),
            resources=self._settings.scaling.resources,
            waits_s=limits.load_timeout_s + limits.orphan_lease_s,  # a driver that lives has ended it by then
        )
