"""Effect. The worker's actor: a WorkerHost whose control calls answer while training runs."""

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray import cloudpickle
from ray.util import get_current_placement_group, get_node_ip_address, remove_placement_group

from elastic.actors.former import Introduction
from elastic.actors.peer_source import PeerSource, namespace, peer_sources
from elastic.actors.ray_data import RayBlocks
from elastic.control import events as ev
from elastic.control.adoption import Adopted
from elastic.settings import RunSettings
from elastic.train.host import WorkerHost, WorkerSpec
from elastic.train.runner import TrainFn

log = logging.getLogger("elastic")

# `events` waits for news in its own group, so that a freeze is never queued behind it.
_GROUPS = {"control": 4, "events": 1}
_BY_VALUE_BYTES = 64 << 10  # Ray sends an argument with the call up to 100 KiB
_PUT_S = 30.0
_UPLOAD_SHARE = 0.8  # of the time that an orphan has; the rest is for its mates
_LOOK_S = 0.2


class RayWorkerHost(WorkerHost):
    """A WorkerHost in an actor; an orphan removes its own placement group, which frees its slot."""

    def __init__(
        self, worker: str, seed: int, settings: RunSettings, train_fn: TrainFn, gang: int, shard: int, digest: str
    ) -> None:
        spec = WorkerSpec(worker=worker, seed=seed, settings=settings, train_fn=train_fn, gang=gang, shard=shard)
        self._introduction = partial(Introduction, settings=settings, digest=digest)
        self._node = ray.get_runtime_context().get_node_id()

        def peers() -> list[PeerSource]:
            return peer_sources(settings.run, ray.get_runtime_context().get_node_id())

        super().__init__(
            spec, get_node_ip_address(), self._leave, dumps=cloudpickle.dumps, ray_blocks=RayBlocks, peers=peers
        )
        self._peers, self._is_persistent = peers, bool(settings.checkpoint and settings.checkpoint.persistent)
        self._namespace, self._width = namespace(settings.run), settings.scaling.workers_per_replica

    def introduce(self) -> Introduction:
        """Who this is, for a driver that may want to go on with it."""
        return self._introduction(heeded=self.heeded())

    def adopt(self, incarnation: int) -> Adopted:
        """See `WorkerHost.adopt`."""
        return replace(super().adopt(incarnation), node=self._node)

    def _leave(self, last: ev.ShardStaged | None, left_s: float) -> None:
        """Nobody is left who drives: have the last state made durable, then free the slot."""
        deadline_s = time.monotonic() + left_s
        try:
            if last is not None and self._is_persistent:
                self._make_durable(last, left_s * _UPLOAD_SHARE)
        finally:
            self._free_slots(deadline_s)

    def _make_durable(self, last: ev.ShardStaged, within_s: float) -> None:
        here = [peer for peer in self._peers() if peer.node == self._node]
        if here:
            why_not = here[0].make_durable(self.heeded(), last, within_s)
        else:
            why_not = "there is no replica actor on this node"
        if why_not:
            log.warning("step %d is in the memory of this node, and not durable: %s", last.commit.step, why_not)

    def _free_slots(self, deadline_s: float) -> None:
        """A replica's slots are one group, which takes all its workers along: the first of those left waits for all.

        Who was never a member knows no mates, has saved nothing, and gives them all the time that they have.
        """
        group, mates = get_current_placement_group(), self._link.mates
        is_member, frees = bool(mates) or self._width == 1, None
        while group is not None and frees is None and self._link.silent_s >= self._orphan_lease_s:
            if is_member:
                frees = frees_group(self._link.worker, mates, self._living())
            if time.monotonic() >= deadline_s:
                frees = frees or not is_member
            time.sleep(_LOOK_S * (frees is None))
        if frees:
            remove_placement_group(group)

    def _living(self) -> set[str]:
        """Workers of the run whose actors are there."""
        named = ray.util.list_named_actors(all_namespaces=True)
        return {one["name"].rpartition("-")[2] for one in named if one["namespace"] == self._namespace}


def frees_group(worker: str, mates: Sequence[str], living: Collection[str]) -> bool | None:
    """Whether an orphan removes the slots of its replica: True: yes, it is the last; False: a mate does; None: not yet.

    Args:
        mates: workers of its replica, by shard. living: workers of the run whose actors are there.
    """
    others = [mate for mate in mates if mate != worker and mate in living]
    if not others:
        return True
    return False if mates.index(others[0]) < mates.index(worker) else None


def carried(train_fn: TrainFn) -> Any:
    """What actors are started with for `train_fn`, as it is now: itself, or a reference to it where it is large.

    Ray starts an actor once its node has fetched what is behind references, from any node that has it. Of one that has
    just died it gets nothing, and asks again after 10 s, and after 20 s more: long for who is to replace a worker.
    """
    reference, buffers = ray.put(train_fn), list[Any]()
    nbytes = len(cloudpickle.dumps(train_fn, buffer_callback=buffers.append))
    nbytes += sum(buffer.raw().nbytes for buffer in buffers)
    return reference if nbytes > _BY_VALUE_BYTES else ray.get(reference, timeout=_PUT_S)


def start_worker_host(
    *,
    name: str,
    namespace: str,
    num_cpus: float,
    num_gpus: float,
    resources: dict[str, float],
    strategy: Any,
    arguments: tuple[Any, ...],
) -> Any:
    """A handle to a new, detached worker actor; it waits for its slot by itself."""
    options: dict[str, Any] = {"concurrency_groups": _GROUPS, "max_restarts": 0}
    actor_class = ray.remote(**options)(RayWorkerHost)
    return actor_class.options(
        name=name,
        namespace=namespace,
        lifetime="detached",
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        resources=resources,
        scheduling_strategy=strategy,
    ).remote(*arguments)
