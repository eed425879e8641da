"""Effect. The checkpoint replica: an actor on a node; it serves the node's shards and keeps copies of other nodes'.

It pulls: workers take no part, so they may die at any time without breaking a transfer. Copies lie in Ray's store of
this node, mapped by this actor: Ray neither spills nor frees them, and they outlive the node that they came from. A
restarted actor begins with what is in its node's slots; its driver has it pull the rest again.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elastic.actors.equipment import Equipment, equipment_for
from elastic.actors.peer_source import PeerSource, actor_name, namespace, replica_actors
from elastic.actors.uploading import WAITING, UploadAnswer, Uploads
from elastic.checkpoint.disk import Disk
from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.checkpoint.memory import reclaim
from elastic.checkpoint.node import Node
from elastic.checkpoint.prefetching import Incoming, prefetch
from elastic.checkpoint.pulling import PART_BYTES
from elastic.checkpoint.rungs import Holding
from elastic.checkpoint.source import Together
from elastic.checkpoint.store import StoreError
from elastic.checkpoint.vault import Vault
from elastic.checkpoint.vault_cleaning import Janitor
from elastic.checkpoint.vault_source import VaultSource
from elastic.control import events as ev
from elastic.control.values import CommitId
from elastic.errors import CorruptError, ElasticError, NoRoomError
from elastic.settings import RunSettings
from elastic.train.flight import sweep_pages
from elastic.train.logs import lines_of

log = logging.getLogger("elastic")

# Of the budget. Two nodes that pull two shards each have 8 parts on their way in the store of the node that gives them:
# no more than what lies between a budget of 0.7 of the store and the 0.8 at which Ray spills.
_PARTS = 56
_AGAIN_S = 10.0  # between two tries of an upload that nobody else would try again
_LEASE_LOOK_S = 0.5
_CLEAR_S = 5.0
_MAP_S = 30.0  # it is in this node's store, and is only mapped
_LOOK_S = 10.0
_WAKE_S = 60.0
_WOKEN_S = 120.0
_WAIT_S = 0.2  # then a reader asks again, and the thread is free for those whose bytes are here
_GROUPS = {"control": 2, "read": 8, "pull": 2, "upload": WAITING, "prefetch": 1, "disk": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class PullAnswer:
    """How a pull ended; reason: why there is no copy, empty if there is one."""

    holding: Holding
    reason: str = ""
    is_full: bool = False
    seconds: float = 0.0
    nbytes: int = 0

    def why_no_copy(self, key: ShardKey) -> str:
        """Empty if there is one."""
        if self.reason or any(one.is_same(key) for one in self.holding.copies):
            return self.reason
        return f"it was to pull shard {key.shard} of {key.shards} of step {key.commit.step}, and holds no copy of it"


class CheckpointReplica:
    """See the module. Reads and pulls have threads of their own, so that beats are answered meanwhile."""

    def __init__(self, node: str, equipment: Equipment) -> None:
        self._equipment = equipment
        self._lines = lines_of("replica", node, equipment.logs)
        self._vault: Vault | None = None
        self._janitor = Janitor()
        part_bytes = min(PART_BYTES, max(1, equipment.budget_bytes // _PARTS))
        self._memories = {equipment.slots: equipment.memory(node)}
        self._node = Node(node[:12], self._memories[equipment.slots], equipment.budget_bytes, _put, part_bytes)
        self._where, self._no_disk = node, "this actor was started without Checkpoint.disk"
        log.info("keeps what is in the memory of node %s, and %d bytes of copies", node[:12], equipment.budget_bytes)
        self._use_disk(equipment)
        self._vault_lock = threading.Lock()
        self._uploads = Uploads(self._node, self._opened)
        self._heard_s = time.monotonic()
        self._self = ray.get_runtime_context().current_actor
        threading.Thread(target=self._expire, name="elastic-lease", daemon=True).start()

    # --- for the driver, whose incarnation comes first ---

    def equip(self, equipment: Equipment) -> None:
        """A new driver takes over; its persistent tier is opened anew. What is held stays, and so does its budget.

        Where it has its slots, or its disk, in another place, what is in the earlier one can be read for as long.
        """
        self._obey(equipment.incarnation)
        with self._vault_lock:
            if equipment.incarnation > self._equipment.incarnation:
                self._equipment, self._vault = equipment, None
                self._use_memory(equipment)
        self._use_disk(equipment)

    def _use_memory(self, equipment: Equipment) -> None:
        slots = equipment.slots
        others = {place: memory for place, memory in self._memories.items() if place != slots}
        self._memories = {slots: self._memories.get(slots) or equipment.memory(self._where), **others}
        self._node.memory = Together([*self._memories.values()])

    def _use_disk(self, equipment: Equipment) -> None:
        """See what is there before anybody asks what can be restored; for a moment only, as it may hang.

        One that cannot be used costs this node its disk, and no other tier.
        """
        if equipment.disk is None:
            return
        try:
            disk = equipment.disk(self._where)
        except ElasticError as error:
            self._no_disk = str(error)
            log.warning("%s", error)
            return
        self._no_disk, before = "", self._node.disks
        if before and before[0].directory == disk.directory:
            return
        self._node.disks = (disk, *(one for one in before if one.directory != disk.directory))
        looking = threading.Thread(target=_look_at, args=(disk,), name="elastic-disk", daemon=True)
        looking.start()
        looking.join(_LOOK_S)

    def beat(self, incarnation: int, pins: Collection[ShardKey] | None) -> tuple[Holding, list[ev.Logged]]:
        """Keep these slots, None: those that are kept now; tell what is here, and what was logged here since."""
        self._obey(incarnation)
        if pins is not None:
            self._node.pin(pins)
        return self._node.holding(), self._lines.taken()

    def pull(self, incarnation: int, key: ShardKey, peers: Sequence[PeerSource]) -> PullAnswer:
        """Take a copy from the first of the peers that gives it whole."""
        self._obey(incarnation)
        try:
            pulled = self._node.pull(key, peers)
        except (NoRoomError, StoreError) as error:
            is_full = isinstance(error, NoRoomError)
            return PullAnswer(holding=self._node.holding(), reason=str(error), is_full=is_full)
        return PullAnswer(holding=self._node.holding(), seconds=pulled.seconds, nbytes=pulled.nbytes)

    def expect(self, incarnation: int, manifests: Sequence[Manifest]) -> None:
        """A restore needs these here; what another one has brought goes."""
        self._obey(incarnation)
        self._node.expect(manifests)

    def prefetch(self, incarnation: int, coming: Sequence[Incoming], durable: Sequence[Manifest]) -> None:
        """Begin to take what is expected, `durable` being in the persistent tier. Does not wait."""
        self._obey(incarnation)
        prefetch(self._node, coming, lambda: VaultSource(self._opened(), known=durable))

    def drop(self, incarnation: int, key: ShardKey) -> Holding:
        """Give a copy up."""
        self._obey(incarnation)
        self._node.drop(key)
        return self._node.holding()

    def to_disk(self, incarnation: int, key: ShardKey) -> PullAnswer:
        """Write a shard that is in a slot to this node's disk."""
        self._obey(incarnation)
        began_s = time.monotonic()
        if self._no_disk:
            return PullAnswer(holding=self._node.holding(), reason=self._no_disk)
        try:
            with self._node.lent(key) as (manifest, read):
                self._node.disks[0].write(manifest, read)
        except (NoRoomError, StoreError, CorruptError) as error:
            is_full = isinstance(error, NoRoomError)
            return PullAnswer(holding=self._node.holding(), reason=str(error), is_full=is_full)
        seconds = time.monotonic() - began_s
        return PullAnswer(holding=self._node.holding(), seconds=seconds, nbytes=manifest.nbytes)

    def off_disk(self, incarnation: int, key: ShardKey) -> Holding:
        """Remove a shard from this node's disk."""
        self._obey(incarnation)
        for disk in self._node.disks:
            try:
                disk.erase(key)
                disk.sweep()  # what a killed writer left is too young to go when its successor looks for it first
            except StoreError as error:
                log.warning("an old step stays on the disk: %s", error)
        return self._node.holding()

    def upload(self, incarnation: int, key: ShardKey, metrics: Mapping[str, float] | None = None) -> UploadAnswer:
        """Write a shard to the persistent tier.

        With `metrics` of the step no driver may be left by then: whoever finds all its shards there commits it, and
        what fails is tried again for as long as a lease lasts.
        """
        self._obey(incarnation)
        with self._uploads.working(key):
            until_s = time.monotonic() + self._equipment.lease_s
            while True:
                uploaded = self._uploads.upload(key)
                if metrics is None or uploaded.is_gone:
                    return uploaded
                reason, is_failure = uploaded.reason, bool(uploaded.reason)
                if not is_failure:
                    reason, is_failure = self._commit_if_whole(incarnation, key, metrics)
                if reason:
                    log.warning("step %d is not durable yet: %s", key.commit.step, reason)
                if not is_failure or incarnation < self._equipment.incarnation or time.monotonic() > until_s:
                    return uploaded
                time.sleep(_AGAIN_S)

    def commit(self, incarnation: int, commit: CommitId, digests: Sequence[str], metrics: Mapping[str, float]) -> str:
        """Make a step durable; returns why it is not, empty if it is. What nobody wants any more is `clean`'s."""
        self._obey(incarnation)
        try:
            self._opened().commit(commit, digests, metrics)
        except ElasticError as error:
            return f"node {self._node.name}: {error}"
        return ""

    def clean(self, incarnation: int) -> None:
        """Delete from the persistent tier what nobody wants any more; after a COMMIT was told, as it may take long."""
        self._obey(incarnation)
        try:
            self._janitor.clean(self._opened(), self._equipment.keep)
        except ElasticError as error:
            log.warning("old steps, and what was left behind, are not deleted now: %s", error)

    def make_durable(self, incarnation: int, key: ShardKey) -> str:
        """No driver is left: upload a shard, and commit its step if all shards are there; returns why it is not."""
        self._obey(incarnation)
        with self._uploads.working(key):
            return self._uploads.upload(key).reason or self._commit_if_whole(incarnation, key, {})[0]

    def _commit_if_whole(self, incarnation: int, key: ShardKey, metrics: Mapping[str, float]) -> tuple[str, bool]:
        """Commit a step if all its shards are there; why it is not durable, empty if it is, and whether that failed."""
        try:
            digests = self._opened().uploaded(key.commit, key.shards)
            if len(digests) < key.shards:
                return f"of {key.shards} shards {len(digests)} are uploaded so far", False
            reason = self.commit(incarnation, key.commit, digests, metrics)
        except ElasticError as error:
            reason = f"node {self._node.name}: {error}"
        if not reason:
            with contextlib.suppress(StoreError):  # a newer driver has taken over, and cleans
                self.clean(incarnation)
        return reason, bool(reason)

    def clear(self, incarnation: int) -> None:
        """The run is over: take away what its lives have left in the memory of this node."""
        self._obey(incarnation)
        self._clear()

    def _clear(self) -> None:
        self._node.pin(())
        for slots in self._memories:
            reclaim(slots, self._equipment.run, kept=0)
        sweep_pages(self._equipment.run)  # of workers that were killed after their driver and its host monitors

    def _obey(self, incarnation: int) -> None:
        """Raises: StoreError: a newer driver has taken over."""
        if incarnation < self._equipment.incarnation:
            raise StoreError(
                f"the driver of incarnation {incarnation} is not obeyed: one of {self._equipment.incarnation} took over"
            )
        self._heard_s = time.monotonic()

    # --- for whoever restores, and for other nodes ---

    def manifests(self, step: int | None = None, with_disk: bool = True) -> list[bytes]:
        """Of all whole shards here, or those of one step, encoded, newest step first."""
        return [manifest.encode() for manifest in self._node.manifests(step, with_disk)]

    def manifest(self, key: ShardKey) -> bytes:
        """Of one shard, encoded. Raises: MissingError."""
        return self._node.manifest(key).encode()

    def read(self, key: ShardKey, begin: int, end: int) -> Any:
        """Bytes [begin, end) of a shard, (end - begin,) uint8, owned by the caller.

        Raises:
            MissingError. ComingError: they are on their way; ask again.
        """
        self._heard_s = time.monotonic()  # what is read stays, driver or not
        return self._node.read(key, begin, end, _WAIT_S)

    def _opened(self) -> Vault:
        with self._vault_lock:
            if self._vault is None:
                if self._equipment.vault is None:
                    raise StoreError("there is no persistent tier: set Checkpoint.persistent")
                self._vault = self._equipment.vault()
            return self._vault

    def _is_needed(self) -> bool:
        """A driver was heard, or something is uploaded and committed, or may be about to be."""
        is_heard = time.monotonic() - self._heard_s < self._equipment.lease_s
        return is_heard or self._uploads.is_at_work

    def _expire(self) -> None:
        while self._is_needed():
            time.sleep(min(_LEASE_LOOK_S, self._equipment.lease_s / 4))
        log.warning("no driver for %.0f s: what node %s holds is given up", self._equipment.lease_s, self._node.name)
        try:
            if self._equipment.incarnation:  # who was only woken to be asked has no say in what stays
                self._clear()
        finally:
            ray.kill(self._self, no_restart=True)


def start_replica(node: str, equipment: Equipment) -> Any:
    """A handle to the replica actor of a node, the one that is there already, or a new one; it needs `equip`."""
    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "concurrency_groups": _GROUPS}
    return (
        ray.remote(**options)(CheckpointReplica)
        .options(
            name=actor_name(node),
            namespace=namespace(equipment.run),
            lifetime="detached",
            get_if_exists=True,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote(node, equipment)
    )


def wake(settings: RunSettings) -> None:
    """Actors on all nodes, so that all disks can be asked; they end soon by themselves, unless a keeper wants them.

    Waits until they answer, or for a minute.
    """
    calls = []
    for node in (one for one in ray.nodes() if one["Alive"]):
        equipment = equipment_for(replace(settings, incarnation=0), node["Resources"].get("object_store_memory", 0))
        actor = start_replica(node["NodeID"], replace(equipment, lease_s=min(_WOKEN_S, equipment.lease_s)))
        calls.append(actor.manifests.options(concurrency_group="control").remote(-1))
    ray.wait(calls, num_returns=len(calls), timeout=_WAKE_S)


def end_replica(actor: Any) -> None:
    """End it for good, with its copies."""
    try:
        ray.kill(actor, no_restart=True)
    except RayError as error:
        log.debug("a replica actor was gone already: %s", error)


def end_replicas(run: str, incarnation: int) -> None:
    """End all replica actors of a run, on nodes that only earlier lives have used too, with copies and slots.

    Those that obey a newer driver are left alone.
    """
    alive = {one["NodeID"] for one in ray.nodes() if one["Alive"]}
    actors = replica_actors(run)
    calls = {node: actors[node].clear.options(concurrency_group="control").remote(incarnation) for node in actors}
    there = [call for node, call in calls.items() if node in alive]
    if there:
        ray.wait(there, num_returns=len(there), timeout=_CLEAR_S)
    for node, actor in actors.items():
        try:
            ray.get(calls[node], timeout=0)
        except RayTaskError as error:
            log.info("the replica actor of node %s goes on: %s", node[:12], error.cause)
            continue
        except RayError as error:
            log.debug("the memory of node %s was not cleared: %s", node[:12], error)
        end_replica(actor)


def _look_at(disk: Disk) -> None:
    try:
        disk.sweep()
        disk.look()
    except StoreError as error:
        log.warning("what is on the disk of this node cannot be used: %s", error)


def _put(array: Any) -> tuple[Any, Any]:
    try:
        reference = ray.put(array)
        return reference, ray.get(reference, timeout=_MAP_S)
    except (ObjectStoreFullError, OutOfDiskError) as error:
        raise NoRoomError(f"Ray's object store has no room for {len(array) >> 20} MiB: give it more memory") from error
    except RayError as error:
        raise StoreError(f"Ray's object store took no copy: {type(error).__name__}: {error}") from error
