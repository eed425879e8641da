"""Effect. The checkpoint replica: an actor on a node; it serves the node's shards and keeps copies of other nodes'.

It pulls: workers take no part, so they may die at any time without breaking a transfer. Copies are objects in Ray's
store that this actor has put there and therefore owns, so they outlive the node that they came from, and they are held
mapped, so Ray does not spill them. A restarted actor begins with what is in its node's slots; its driver has it pull
the rest again.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elastic.actors.peer_source import PeerSource, actor_name, namespace, replica_actors
from elastic.checkpoint.disk import Disk
from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.checkpoint.memory import MemorySource, reclaim
from elastic.checkpoint.node import PART_BYTES, Node
from elastic.checkpoint.prefetching import Incoming, prefetch
from elastic.checkpoint.rungs import Holding
from elastic.checkpoint.source import Source
from elastic.checkpoint.store import StoreError
from elastic.checkpoint.vault import Vault, open_vault
from elastic.checkpoint.vault_cleaning import collected
from elastic.checkpoint.vault_source import VaultSource
from elastic.control.values import CommitId
from elastic.errors import CorruptError, ElasticError, NoRoomError
from elastic.settings import Checkpoint, Keep, RunSettings
from elastic.train.flight import storage_switch

log = logging.getLogger("elastic")

STORE_SHARE = 0.7  # Ray spills from 0.8 on, silently
_PARTS = 16  # so that two parts on their way stay below what the budget leaves free
_LEASE_LOOK_S = 0.5
_CLEAR_S = 5.0
_MAP_S = 30.0  # it is in this node's store, and is only mapped
_LOOK_S = 10.0
_WAKE_S = 60.0
_WOKEN_S = 120.0
_WAIT_S = 0.2  # then a reader asks again, and the thread is free for those whose bytes are here
_GROUPS = {"control": 2, "read": 8, "pull": 2, "upload": 2, "prefetch": 1, "disk": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What an actor is started with; the two functions are called on its node.

    Attributes:
        incarnation: of the driver; an actor obeys the newest one that has spoken to it, and no older one.
        memory: node id -> its slots. disk: node id -> its disk, None: none is used.
        vault: opens the persistent tier, None: there is none.
        keep: what the persistent tier keeps. budget_bytes: what copies may take.
        slots: the directory of its slots, which go with the actor, but for those of live workers. lease_s: how long
            actor, copies and slots outlive the last word of a driver.
    """

    run: str
    incarnation: int
    memory: Callable[[str], Source]
    disk: Callable[[str], Disk] | None = None
    vault: Callable[[], Vault] | None
    keep: Keep
    budget_bytes: int
    slots: Path
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PullAnswer:
    """How a pull ended; reason: why there is no copy, empty if there is one."""

    holding: Holding
    reason: str = ""
    is_full: bool = False
    seconds: float = 0.0
    nbytes: int = 0


class CheckpointReplica:
    """See the module. Reads and pulls have threads of their own, so that beats are answered meanwhile."""

    def __init__(self, node: str, equipment: Equipment) -> None:
        self._equipment = equipment
        self._vault: Vault | None = None
        part_bytes = min(PART_BYTES, max(1, equipment.budget_bytes // _PARTS))
        self._node = Node(node[:12], equipment.memory(node), equipment.budget_bytes, _put, part_bytes)
        self._where = node
        self._use_disk(equipment)
        self._vault_lock = threading.Lock()
        self._uploading: set[ShardKey] = set()
        self._heard_s = time.monotonic()
        self._self = ray.get_runtime_context().current_actor
        threading.Thread(target=self._expire, name="elastic-lease", daemon=True).start()

    # --- for the driver, whose incarnation comes first ---

    def equip(self, equipment: Equipment) -> None:
        """A new driver takes over; its persistent tier is opened anew. What is held stays, and so does its budget."""
        self._obey(equipment.incarnation)
        with self._vault_lock:
            if equipment.incarnation > self._equipment.incarnation:
                self._equipment, self._vault = equipment, None
        self._use_disk(equipment)

    def _use_disk(self, equipment: Equipment) -> None:
        """See what is there before anybody asks what can be restored; for a moment only, as it may hang."""
        if equipment.disk is not None and self._node.disk is None:
            self._node.disk = equipment.disk(self._where)
            looking = threading.Thread(target=_look_at, args=(self._node.disk,), name="elastic-disk", daemon=True)
            looking.start()
            looking.join(_LOOK_S)

    def beat(self, incarnation: int, pins: Collection[ShardKey]) -> Holding:
        """Keep these slots, and tell what is here."""
        self._obey(incarnation)
        self._node.pin(pins)
        return self._node.holding()

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
        began_s, disk = time.monotonic(), self._node.disk
        if disk is None:
            return PullAnswer(holding=self._node.holding(), reason="this actor was started without Checkpoint.disk")
        try:
            with self._node.lent(key) as (manifest, read):
                disk.write(manifest, read)
        except (NoRoomError, StoreError, CorruptError) as error:
            is_full = isinstance(error, NoRoomError)
            return PullAnswer(holding=self._node.holding(), reason=str(error), is_full=is_full)
        seconds = time.monotonic() - began_s
        return PullAnswer(holding=self._node.holding(), seconds=seconds, nbytes=manifest.nbytes)

    def off_disk(self, incarnation: int, key: ShardKey) -> Holding:
        """Remove a shard from this node's disk."""
        self._obey(incarnation)
        try:
            if self._node.disk is not None:
                self._node.disk.erase(key)
        except StoreError as error:
            log.warning("an old step stays on the disk: %s", error)
        return self._node.holding()

    def upload(self, incarnation: int, key: ShardKey, metrics: Mapping[str, float] | None = None) -> tuple[str, str]:
        """Write a shard to the persistent tier; returns (digest of its manifest, why it is not there).

        With `metrics` of the step no driver may be left by then: whoever finds all its shards there commits it.
        """
        self._obey(incarnation)
        self._uploading.add(key)
        try:
            with self._node.lent(key) as (manifest, read):
                digest = self._opened().upload(manifest, read)
            if metrics is not None and (reason := self._commit_if_whole(incarnation, key, metrics)):
                log.warning("step %d is not durable yet: %s", key.commit.step, reason)
            return digest, ""
        except ElasticError as error:
            return "", f"node {self._node.name}: {error}"
        finally:
            self._uploading.discard(key)

    def commit(self, incarnation: int, commit: CommitId, digests: Sequence[str], metrics: Mapping[str, float]) -> str:
        """Make a step durable and delete what nobody wants any more; returns why it is not durable, empty if it is."""
        self._obey(incarnation)
        try:
            self._opened().commit(commit, digests, metrics)
        except ElasticError as error:
            return f"node {self._node.name}: {error}"
        try:
            collected(self._opened(), self._equipment.keep)
        except ElasticError as error:
            log.warning("old steps are not deleted now: %s", error)
        return ""

    def make_durable(self, incarnation: int, key: ShardKey) -> str:
        """No driver is left: upload a shard, and commit its step if all shards are there; returns why it is not."""
        return self.upload(incarnation, key)[1] or self._commit_if_whole(incarnation, key, {})

    def _commit_if_whole(self, incarnation: int, key: ShardKey, metrics: Mapping[str, float]) -> str:
        """Commit a step if all its shards are uploaded; returns why it is not durable, empty if it is."""
        try:
            digests = self._opened().uploaded(key.commit, key.shards)
        except ElasticError as error:
            return f"node {self._node.name}: {error}"
        if len(digests) < key.shards:
            return f"of {key.shards} shards {len(digests)} are uploaded so far"
        return self.commit(incarnation, key.commit, digests, metrics)

    def clear(self, incarnation: int) -> None:
        """The run is over: take away what its lives have left in the memory of this node."""
        self._obey(incarnation)
        self._clear()

    def _clear(self) -> None:
        self._node.pin(())
        reclaim(self._equipment.slots, self._equipment.run, kept=0)

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
        return self._node.read(key, begin, end, _WAIT_S)

    def _opened(self) -> Vault:
        with self._vault_lock:
            if self._vault is None:
                if self._equipment.vault is None:
                    raise StoreError("there is no persistent tier: set Checkpoint.persistent")
                self._vault = self._equipment.vault()
            return self._vault

    def _expire(self) -> None:
        while self._uploading or time.monotonic() - self._heard_s < self._equipment.lease_s:
            time.sleep(min(_LEASE_LOOK_S, self._equipment.lease_s / 4))
        log.warning("no driver for %.0f s: what node %s holds is given up", self._equipment.lease_s, self._node.name)
        if self._equipment.incarnation:  # who was only woken to be asked has no say in what stays
            self._clear()
        ray.kill(self._self, no_restart=True)


def equipment_for(
    settings: RunSettings,
    store_bytes: float,
    memory: Callable[[str], Source] | None = None,
    disk: Callable[[str], Disk] | None = None,
) -> Equipment:
    """What the actor of a node gets.

    Args:
        store_bytes: of the node's object store.
        memory, disk: node id -> its slots, and its disk; default: where `settings.checkpoint` says.
    """
    checkpoint, run = settings.checkpoint or Checkpoint(), settings.run
    switch = storage_switch(run) if settings.is_breakable else None
    if checkpoint.disk is not None:
        disk = disk or functools.partial(disk_in, Path(checkpoint.disk), run)
    return Equipment(
        run=run,
        incarnation=settings.incarnation,
        memory=memory or functools.partial(slots_in, Path(checkpoint.memory), run),
        disk=disk,
        vault=opener(checkpoint, run, settings.incarnation, switch),
        keep=checkpoint.keep,
        budget_bytes=budget_bytes(checkpoint.peer_bytes, store_bytes),
        slots=Path(checkpoint.memory),
        lease_s=checkpoint.memory_lease_s,
    )


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


def budget_bytes(asked: int | None, store_bytes: float) -> int:
    """What the copies on a node may take of its object store, which must not come to spill."""
    most = int(STORE_SHARE * store_bytes)
    return most if asked is None else min(asked, most)


def slots_in(directory: Path, run: str, node: str) -> Source:
    """The slots of the node where it is called."""
    return MemorySource(directory, run, f"memory of node {node[:12]}")


def disk_in(directory: Path, run: str, node: str) -> Disk:
    """The disk of the node where it is called."""
    return Disk(directory, run, f"disk of node {node[:12]}")


def _look_at(disk: Disk) -> None:
    try:
        disk.sweep()
        disk.look()
    except StoreError as error:
        log.warning("what is on the disk of this node cannot be used: %s", error)


def opener(
    checkpoint: Checkpoint, run: str, incarnation: int, switch: Path | None = None
) -> Callable[[], Vault] | None:
    """Opens the persistent tier, wherever it is called; `switch`: see `open_vault`."""
    if checkpoint.persistent is None:
        return None
    cap, url = checkpoint.upload_bytes_per_s, checkpoint.persistent
    return functools.partial(open_vault, url, run, switch=switch, incarnation=incarnation, bytes_per_s=cap)


def _put(array: Any) -> tuple[Any, Any]:
    reference = ray.put(array)
    return reference, ray.get(reference, timeout=_MAP_S)
