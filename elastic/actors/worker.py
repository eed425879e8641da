"""Effect. A worker on Ray: a WorkerHost that knows its slot, its peers and its mates."""

import logging
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import ray
from ray import cloudpickle
from ray.exceptions import RayError
from ray.util import get_node_ip_address, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup

from elastic.actors.former import Introduction
from elastic.actors.peer_source import PeerSource, namespace, peer_sources
from elastic.actors.ray_data import RayBlocks
from elastic.actors.slots import asked_in, gang_of
from elastic.actors.worker_actor import call, worker_names
from elastic.checkpoint.catalog import Holder
from elastic.checkpoint.manifest import ShardKey
from elastic.checkpoint.memory import MemorySource
from elastic.checkpoint.reader import take_inventory
from elastic.control import events as ev
from elastic.control.adoption import Adopted
from elastic.settings import Checkpoint, RunSettings
from elastic.train.host import WorkerHost, WorkerSpec
from elastic.train.runner import TrainFn

log = logging.getLogger("elastic")

_BY_VALUE_BYTES = 64 << 10  # Ray sends an argument with the call up to 100 KiB
_PUT_S = 30.0
_UPLOAD_SHARE = 0.8  # of the time that an orphan has; the rest is for its mates
_AGREE_SHARE = 0.5  # of that; who has not saved its state by then is not waited for
_ANSWER_S = 10.0
_LOOK_S = 0.2


class RayWorkerHost(WorkerHost):
    """A WorkerHost in an actor; an orphan removes the placement group of its replica, which frees its slot.

    Args:
        group: with the slot in which it works.
    """

    def __init__(
        self,
        worker: str,
        seed: int,
        settings: RunSettings,
        train_fn: TrainFn,
        gang: int,
        shard: int,
        digest: str,
        group: PlacementGroup,
    ) -> None:
        spec = WorkerSpec(worker=worker, seed=seed, settings=settings, train_fn=train_fn, gang=gang, shard=shard)
        self._node = ray.get_runtime_context().get_node_id()
        self._introduction = partial(
            Introduction, gang=gang, settings=settings, digest=digest, node=self._node, pid=os.getpid()
        )

        def peers() -> list[PeerSource]:
            return peer_sources(settings.run, ray.get_runtime_context().get_node_id())

        super().__init__(
            spec, get_node_ip_address(), self._leave, dumps=cloudpickle.dumps, ray_blocks=RayBlocks, peers=peers
        )
        self._peers, self._is_persistent = peers, bool(settings.checkpoint and settings.checkpoint.persistent)
        self._namespace, self._width = namespace(settings.run), settings.scaling.workers_per_replica
        self._memory = MemorySource(Path((settings.checkpoint or Checkpoint()).memory), settings.run)
        self._has_saved, self._group = False, group

    def introduce(self) -> Introduction:
        """Who this is, for a driver that may want to go on with it."""
        return self._introduction(heeded=self.heeded())

    def adopt(self, incarnation: int) -> Adopted:
        """See `WorkerHost.adopt`."""
        return replace(super().adopt(incarnation), node=self._node)

    def sealed(self) -> list[ShardKey] | None:
        """All that is sealed in the memory of this node, once this worker has saved its last state; None: not yet."""
        return [manifest.key for manifest in self._memory.manifests()] if self._has_saved else None

    def _leave(self, last: ev.ShardStaged | None, left_s: float) -> None:
        """Nobody is left who drives: have the last state made durable, then free the slot."""
        deadline_s, self._has_saved = time.monotonic() + left_s, True
        try:
            if last is not None and self._is_persistent:
                self._make_durable(last, left_s * _UPLOAD_SHARE)
        finally:
            self._free_slots(deadline_s)

    def _make_durable(self, last: ev.ShardStaged, within_s: float) -> None:
        """What all of its replica have sealed; of mates that are gone it has sent what any node holds."""
        deadline_s = time.monotonic() + within_s
        theirs = self._sealed_by_mates(deadline_s - within_s * (1 - _AGREE_SHARE))
        found = [one.manifest.key for one in self._holders()] if self._gone() else []
        last = newest_of_all(last, self.sealed() or (), (*theirs, *found))
        why_not, sent = ["it was not sent"], set[int]()
        while why_not[-1] and (shards := {last.shard, *self._gone()} - sent):  # a mate may be killed meanwhile
            why_not = self._sent(last, shards, deadline_s)
            sent |= shards
        if any(why_not):
            told = [reason for reason in why_not if reason][-1]
            log.warning("step %d is in the memory of nodes, and not durable: %s", last.commit.step, told)

    def _sent(self, last: ev.ShardStaged, shards: Collection[int], deadline_s: float) -> list[str]:
        """Have these shards uploaded, its own at the end; why the step was not durable after each."""
        senders, why_not = self._senders(last, shards), list[str]()
        for shard in sorted(shards, key=lambda shard: (shard == last.shard, shard)):
            left_s = max(0.0, deadline_s - time.monotonic())
            if shard in senders:
                why_not.append(senders[shard].make_durable(self.heeded(), replace(last, shard=shard), left_s))
            else:
                why_not.append(f"no replica actor holds shard {shard} of {last.shards}")
        return why_not

    def _senders(self, last: ev.ShardStaged, shards: Collection[int]) -> dict[int, PeerSource]:
        """For each shard the nearest node that holds it; its own node has its own."""
        here = [peer for peer in self._peers() if peer.node == self._node]
        senders, others = {last.shard: here[0]} if here else {}, set(shards) - {last.shard}
        for one in self._holders() if others else ():
            key, node = one.manifest.key, cast(PeerSource, one.source)
            if key.shard in others and key.shards == last.shards and key.commit.same_state(last.commit):
                senders.setdefault(key.shard, node)
        return senders

    def _holders(self) -> tuple[Holder, ...]:
        """What all nodes hold, nearest first; of a mate that is gone its own may be the only one."""
        return take_inventory(self._peers(), _ANSWER_S).holders

    def _gone(self) -> set[int]:
        """Shards of its replica whose workers have ended."""
        living = self._living()
        return {shard for shard, mate in enumerate(self._link.mates) if mate not in living}

    def _sealed_by_mates(self, deadline_s: float) -> list[ShardKey]:
        """What the nodes of its mates hold, once they have saved their last state, too; of those that are there."""
        told: dict[str, list[ShardKey]] = {}
        mates = set(self._link.mates) - {self._link.worker}
        while (left := mates & self._living().keys() - told.keys()) and time.monotonic() < deadline_s:
            told |= {mate: keys for mate in left if (keys := self._ask_sealed(mate)) is not None}
            time.sleep(_LOOK_S * (not left <= told.keys()))
        return [key for keys in told.values() for key in keys]

    def _ask_sealed(self, mate: str) -> list[ShardKey] | None:
        try:
            actor = ray.get_actor(self._living()[mate], namespace=self._namespace)
            return ray.get(call(actor, "sealed"), timeout=_ANSWER_S)
        except (KeyError, ValueError, RayError) as error:  # it has ended meanwhile, or is about to
            log.debug("%s does not say what it has saved: %s", mate, type(error).__name__)
            return None

    def _free_slots(self, deadline_s: float) -> None:
        """A replica's slots are one group, which takes all its workers along: the first of those left waits for all.

        Who was never a member knows no mates, has saved nothing, and gives them all the time that they have.
        """
        self._free_what_waits()
        mates = self._link.mates
        is_member, frees = bool(mates) or self._width == 1, None
        while frees is None and self._link.silent_s >= self._orphan_lease_s:
            if is_member:
                frees = frees_group(self._link.worker, mates, self._living())
            if time.monotonic() >= deadline_s:
                frees = frees or not is_member
            time.sleep(_LOOK_S * (frees is None))
        if frees:
            remove_placement_group(self._group)

    def _free_what_waits(self) -> None:
        """Slots that the last driver had asked for, and did not get: they would get what orphans free, for nobody."""
        if self._link.silent_s < self._orphan_lease_s:
            return
        try:
            for number, group in placement_group_table().items():
                name, is_waiting = group["name"], group["state"] == "PENDING"  # who has lost a node may have workers
                if is_waiting and gang_of(name, self._run) is not None and asked_in(name) <= self.heeded():
                    remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(number))))
        except Exception as error:  # whatever it is, its own slot is to be freed
            log.warning("slots that are waited for are not given up: %s", error)

    def _living(self) -> dict[str, str]:
        """Names of the actors that are there, by worker of the run."""
        return {worker: name for name, worker in worker_names(self._namespace).items() if worker}


def frees_group(worker: str, mates: Sequence[str], living: Collection[str]) -> bool | None:
    """Whether an orphan removes the slots of its replica: True: yes, it is the last; False: a mate does; None: not yet.

    Args:
        mates: workers of its replica, by shard. living: workers of the run whose actors are there.
    """
    others = [mate for mate in mates if mate != worker and mate in living]
    if not others:
        return True
    return False if mates.index(others[0]) < mates.index(worker) else None


def newest_of_all(last: ev.ShardStaged, mine: Collection[ShardKey], theirs: Collection[ShardKey]) -> ev.ShardStaged:
    """What an orphan has made durable: of what it has sealed, the newest of which mates have sealed all other shards.

    The last step that a worker has applied may be one that a mate was only prepared for. Where no step is whole, it is
    `last`, its own: somebody else may hold the rest.

    Args:
        mine, theirs: what its node, and those of its mates, hold sealed.
    """

    def is_whole(key: ShardKey) -> bool:
        same = [one for one in (*mine, *theirs) if one.shards == key.shards and one.commit.same_state(key.commit)]
        return len({one.shard for one in same}) == key.shards

    def made(key: ShardKey) -> tuple[int, int, int]:
        return key.commit.incarnation, key.commit.generation, key.commit.step

    own = [key for key in mine if (key.shard, key.shards) == (last.shard, last.shards)]
    newest = max(filter(is_whole, own), key=made, default=None)
    return last if newest is None else replace(last, commit=newest.commit)


def carried(train_fn: TrainFn) -> Any:
    """What actors are started with for `train_fn`, as it is now: itself, or a reference to it where it is large.

    Ray starts an actor once its node has fetched what is behind references, from any node that has it. Of one that has
    just died it gets nothing, and asks again after 10 s, and after 20 s more: long for who is to replace a worker.
    """
    reference, buffers = ray.put(train_fn), list[Any]()
    nbytes = len(cloudpickle.dumps(train_fn, buffer_callback=buffers.append))
    nbytes += sum(buffer.raw().nbytes for buffer in buffers)
    return reference if nbytes > _BY_VALUE_BYTES else ray.get(reference, timeout=_PUT_S)
