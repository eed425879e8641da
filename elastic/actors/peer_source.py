"""Effect. Shards that another node's replica actor holds, as anybody in the cluster reads them."""

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from elastic.checkpoint.copied import MIN_BYTES_PER_S, ComingError, patience_s
from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.checkpoint.pulling import FIRST_BYTE_S
from elastic.checkpoint.source import Tier
from elastic.checkpoint.store import MissingError, StoreError
from elastic.control import events as ev
from elastic.errors import CorruptError

log = logging.getLogger("elastic")

_PREFIX = "checkpoint-"


def namespace(run: str) -> str:
    """Where the actors of a run have their names."""
    return f"elastic-{run}"


def actor_name(node: str) -> str:
    """Of the replica actor of a node; without the incarnation, since it outlives drivers."""
    return f"{_PREFIX}{node}"


def is_replica(name: str) -> bool:
    """Whether an actor of this name is a replica actor."""
    return name.startswith(_PREFIX)


class PeerSource:
    """A replica actor as a `Source`, and as a node's `Peer`; may be carried to other processes.

    Args:
        actor: its handle. node: its node's id. tier: MEMORY where the reader is on that node.
    """

    gives_stored = True  # Ray has the answer in this node's store, and an array there keeps its bytes

    def __init__(self, actor: Any, node: str, tier: Tier = Tier.PEER) -> None:
        self._actor, self.node, self.tier = actor, node, tier
        self.where = f"node {node[:12]}"

    def manifests(self, step: int | None = None) -> Sequence[Manifest]:
        """See `Source.manifests`; one that was spoilt on its way is left out.

        Whoever is on that node reads its disk without the actor.
        """
        found = []
        for line in self._ask("manifests", "control", FIRST_BYTE_S, step, self.tier is not Tier.MEMORY):
            try:
                found.append(Manifest.decode(line))
            except CorruptError as error:
                log.warning("%s: %s", self.where, error)
        return found

    def read(self, key: ShardKey, begin: int, end: int) -> Any:
        """See `Source.read`; the bytes are this process's own, and outlive the node they came from."""
        return self.fetch(key, begin, end, FIRST_BYTE_S + (end - begin) / MIN_BYTES_PER_S)

    def manifest(self, key: ShardKey, timeout_s: float) -> Manifest:
        """See `Peer.manifest`."""
        return Manifest.decode(self._ask("manifest", "control", timeout_s, key))

    def fetch(self, key: ShardKey, begin: int, end: int, timeout_s: float) -> Any:
        """See `Peer.fetch`; what is on its way there is asked for again, for as long as `patience_s`."""
        deadline_s = time.monotonic() + patience_s(end)
        while True:
            try:
                return self._ask("read", "read", timeout_s, key, begin, end)
            except ComingError:
                if time.monotonic() > deadline_s:
                    raise

    def make_durable(self, incarnation: int, staged: ev.ShardStaged, within_s: float) -> str:
        """Have a shard that is in this node's memory uploaded, and committed; returns why not, empty if it is durable.

        The workers of the other shards do the same: whoever is the last finds all there. What takes longer than
        `within_s` is gone on with, and nobody waits for it.
        """
        key = ShardKey(commit=staged.commit, shard=staged.shard, shards=staged.shards)
        timeout_s = min(within_s, FIRST_BYTE_S + staged.nbytes / MIN_BYTES_PER_S)
        try:
            return str(self._ask("make_durable", "upload", timeout_s, incarnation, key))
        except (StoreError, MissingError, CorruptError) as error:
            return str(error)

    def _ask(self, method: str, group: str, timeout_s: float, *args: Any) -> Any:
        try:
            call = getattr(self._actor, method).options(concurrency_group=group)
            return ray.get(call.remote(*args), timeout=timeout_s)
        except GetTimeoutError:
            raise StoreError(f"{self.where} did not answer '{method}' within {timeout_s:.1f} s") from None
        except RayTaskError as error:
            for kind in (ComingError, MissingError, StoreError, CorruptError):
                if isinstance(error.cause, kind):
                    raise kind(str(error.cause)) from None
            raise StoreError(f"{self.where} failed in '{method}': {error.cause!r}") from error
        except RayError as error:
            raise StoreError(f"the replica actor of {self.where} is gone: {type(error).__name__}") from error


def replica_actors(run: str) -> dict[str, Any]:
    """All replica actors of a run in the connected cluster, by node, those of its earlier lives too."""
    found = {}
    for named in ray.util.list_named_actors(all_namespaces=True):
        if named["namespace"] == namespace(run) and is_replica(named["name"]):
            with contextlib.suppress(ValueError):  # it has ended meanwhile
                actor = ray.get_actor(named["name"], namespace=named["namespace"])
                found[named["name"].removeprefix(_PREFIX)] = actor
    return found


def peer_sources(run: str, here: str) -> list[PeerSource]:
    """Where shards of a run can be read, node `here` first; they may not answer.

    Those of nodes that Ray has lost are left out: it looks for them until a call's deadline.
    """
    alive = {one["NodeID"] for one in ray.nodes() if one["Alive"]}
    found = [
        PeerSource(actor, node, Tier.MEMORY if node == here else Tier.PEER)
        for node, actor in replica_actors(run).items()
        if node in alive
    ]
    return sorted(found, key=lambda source: (source.tier, source.node))
