"""Effect. Nodes that restore from the persistent tier: each chunk leaves the store once, and they pass it on."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastic.checkpoint.boxes import Want, plan
from elastic.checkpoint.catalog import Candidate, candidates
from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.checkpoint.node import Node
from elastic.checkpoint.prefetching import Incoming, prefetch
from elastic.checkpoint.reader import Effort, read, take_inventory
from elastic.checkpoint.source import Source, Tier
from elastic.checkpoint.spreading import errands, wanted
from elastic.checkpoint.store import Item, StoreError
from elastic.checkpoint.stores import open_store
from elastic.checkpoint.vault import Vault
from elastic.checkpoint.vault_source import VaultSource
from tests.effects.helpers import LONG_S
from tests.effects.shards import FakeMemory
from tests.effects.test_node import put
from tests.effects.vault_parts import CHUNK_BYTES, commit_id, made_durable, manifest_of, payload_of

STEP, NBYTES, SHARDS = 10, 1024, 2  # of a shard; see vault_parts


class Counting:
    """A store that counts how often each chunk is read; `fail_after` reads of chunks it fails."""

    def __init__(self, url: str) -> None:
        self._store, self.url, self.reads = open_store(url), url, Counter[str]()
        self.fail_after: int | None = None
        self._lock = threading.Lock()

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        if "/chunk-" in name:
            with self._lock:
                self.reads[name] += 1
                if self.fail_after is not None and self.reads.total() > self.fail_after:
                    raise StoreError("the store is away")
        return self._store.read(name, begin, end)

    def list(self, prefix: str) -> Iterator[Item]:
        return self._store.list(prefix)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Seen:
    """A node as others see it: a source for who restores, and a peer for who passes on."""

    gives_stored = False

    def __init__(self, node: Node, tier: Tier = Tier.PEER) -> None:
        self.node, self.where, self.tier = node, f"node {node.name}", tier
        self.is_gone = False

    def manifests(self, step: int | None = None) -> list[Manifest]:
        return self.node.manifests(step)

    def read(self, key: ShardKey, begin: int, end: int) -> Any:
        if self.is_gone:
            raise StoreError("it is gone")
        return self.node.read(key, begin, end)

    def manifest(self, key: ShardKey, timeout_s: float) -> Manifest:
        return self.node.manifest(key)

    def fetch(self, key: ShardKey, begin: int, end: int, timeout_s: float) -> Any:
        return self.read(key, begin, end)


class Cluster:
    """Nodes without anything, and a store that holds a step of two shards."""

    def __init__(self, url: str, names: str, budget_bytes: int = 1 << 20) -> None:
        writer = Vault(open_store(url), "night-1")
        writer.register("test")
        made_durable(writer, STEP)
        self.store = Counting(url)
        self.nodes = {name: Seen(Node(name, FakeMemory(), budget_bytes, put, CHUNK_BYTES)) for name in names}
        self.work: list[threading.Thread] = []
        self.vaults: list[VaultSource] = []

    def tier(self, known: Sequence[Manifest] = ()) -> VaultSource:
        self.vaults.append(VaultSource(Vault(self.store, "night-1"), known=known))  # type: ignore[arg-type]
        return self.vaults[-1]

    def found(self, sources: Sequence[Source]) -> Candidate:
        return candidates(take_inventory(sources).holders, "night-1")[0]

    def prefetch(self, homes: dict[str, set[int]], width: int, room: dict[str, int] | None = None) -> None:
        """As the driver does: all expect what they are to get, then they take it."""
        manifests = self.found([self.tier()]).manifests
        room = room or dict.fromkeys(self.nodes, 1 << 20)
        nbytes = dict.fromkeys(range(SHARDS), NBYTES)
        found = errands(wanted(SHARDS, width, homes), {}, room, nbytes, set(range(SHARDS)))
        by_node = {node: [one for one in found if one.node == node] for node in {one.node for one in found}}
        for node, mine in by_node.items():
            self.nodes[node].node.expect([manifests[one.shard] for one in mine])
        for node, mine in by_node.items():
            incoming = [
                Incoming(
                    key=manifests[one.shard].key,
                    peers=tuple(self.nodes[source] for source in one.sources),
                    is_durable=True,
                )
                for one in mine
            ]
            self.work.append(prefetch(self.nodes[node].node, incoming, lambda: self.tier(manifests)))

    def restore(self, here: str, begin: int, end: int) -> tuple[bytes, Counter[str]]:
        """Bytes [begin, end) of both shards, one after the other, as a worker on `here` gets them; and from where."""
        nodes = [Seen(one.node, Tier.MEMORY if name == here else Tier.PEER) for name, one in self.nodes.items()]
        candidate = self.found([*nodes, self.tier()])
        parts, places = [], Counter[str]()
        for shard in range(SHARDS):
            low, high = max(begin - shard * NBYTES, 0), min(end - shard * NBYTES, NBYTES)
            if low >= high:
                continue
            want = Want(path="/model/weight", dtype="uint8", whole=(NBYTES,), box=((low,), (high,)))
            into = np.zeros(high - low, dtype=np.uint8)
            one = plan([want], candidate.manifests, own=shard)
            for report in read(candidate, one, [into], Effort(timeout_s=LONG_S)):
                places.update({place.tier: place.nbytes for place in report.places})
            parts.append(into.tobytes())
        return b"".join(parts), places

    def close(self) -> None:
        for thread in self.work:
            thread.join(LONG_S)
            assert not thread.is_alive()
        for vault in self.vaults:
            vault.close()


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Any]:
    made: list[Cluster] = []

    def make(names: str, **more: Any) -> Cluster:
        made.append(Cluster(str(tmp_path / "store"), names, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


WHOLE = payload_of(STEP, 0) + payload_of(STEP, 1)
CHUNKS = len(WHOLE) // CHUNK_BYTES


def all_restore(cluster: Cluster, parts: dict[str, tuple[int, int]]) -> dict[str, Counter[str]]:
    """Workers on all these nodes at once; each gets its bytes. Returns where they came from."""
    told: dict[str, Any] = {}

    def work(node: str, begin: int, end: int) -> None:
        told[node] = cluster.restore(node, begin, end)

    threads = [threading.Thread(target=work, args=(node, *part)) for node, part in parts.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert {node: data for node, (data, _) in told.items()} == {node: WHOLE[a:b] for node, (a, b) in parts.items()}
    return {node: places for node, (_, places) in told.items()}


def test_every_node_needs_all_and_each_chunk_leaves_the_store_once(clusters: Any) -> None:
    cluster = clusters("abcdefg")
    cluster.prefetch({node: {0, 1} for node in cluster.nodes}, width=SHARDS)
    places = all_restore(cluster, dict.fromkeys(cluster.nodes, (0, len(WHOLE))))
    assert set(cluster.store.reads.values()) == {1} and len(cluster.store.reads) == CHUNKS
    assert all(set(one) == {"memory"} for one in places.values())


def test_without_it_each_node_reads_for_itself(clusters: Any) -> None:
    cluster = clusters("abc")
    all_restore(cluster, dict.fromkeys(cluster.nodes, (0, len(WHOLE))))
    assert set(cluster.store.reads.values()) == {3}


def test_another_number_of_workers_reads_what_overlaps_from_the_nodes_that_took_it(clusters: Any) -> None:
    cluster, third = clusters("abc"), len(WHOLE) // 3
    cluster.prefetch({node: {0} for node in cluster.nodes}, width=3)
    parts = {node: (number * third, (number + 1) * third) for number, node in enumerate(cluster.nodes)}
    places = all_restore(cluster, parts)
    assert set(cluster.store.reads.values()) == {1} and len(cluster.store.reads) == CHUNKS
    assert not any("persistent" in one for one in places.values())


def test_who_has_no_room_is_left_out_and_reads_from_the_others(clusters: Any) -> None:
    cluster = clusters("ab")
    room = {"a": 1 << 20, "b": NBYTES - 1}
    cluster.prefetch({node: {0, 1} for node in cluster.nodes}, SHARDS, room)
    places = all_restore(cluster, dict.fromkeys(cluster.nodes, (0, len(WHOLE))))
    assert set(cluster.store.reads.values()) == {1}
    assert set(places["b"]) == {"peer"} and cluster.nodes["b"].node.manifests() == []


def test_a_node_that_is_lost_on_the_way_costs_no_read_of_the_store(clusters: Any) -> None:
    """The root has it all; the one between it and the last is gone."""
    cluster = clusters("abcd")
    names = [
        errand.node
        for errand in errands(
            wanted(1, 1, {node: {0} for node in cluster.nodes}), {}, dict.fromkeys(cluster.nodes, 1 << 20), {0: 1}, {0}
        )
    ]
    cluster.nodes[names[1]].is_gone = True
    cluster.prefetch({node: {0} for node in cluster.nodes}, width=SHARDS)
    cluster.close()
    last = cluster.nodes[names[3]].node
    assert bytes(last.read(last.manifests()[0].key, 0, NBYTES)) == payload_of(STEP, 0)
    assert set(cluster.store.reads.values()) == {1}


def test_a_prefetch_that_fails_costs_only_its_bytes(clusters: Any, caplog: pytest.LogCaptureFixture) -> None:
    cluster = clusters("ab")
    cluster.store.fail_after = 2
    cluster.prefetch({node: {0, 1} for node in cluster.nodes}, width=SHARDS)
    for thread in cluster.work:
        thread.join(LONG_S)
    assert "not prefetched: node" in caplog.text and "the store is away" in caplog.text
    assert all(one.node.manifests() == [] and one.node.holding().nbytes == 0 for one in cluster.nodes.values())
    cluster.store.fail_after = None
    places = all_restore(cluster, dict.fromkeys(cluster.nodes, (0, len(WHOLE))))
    assert all(set(one) == {"persistent"} for one in places.values())


def test_a_vault_is_a_peer_and_a_lease_is_given_up_in_the_end(clusters: Any) -> None:
    cluster = clusters("a")
    tier = cluster.tier()
    key = manifest_of(commit_id(STEP), 1, SHARDS, payload_of(STEP, 1)).key
    assert tier.manifest(key, 1.0).key == key
    for begin, end in ((0, NBYTES), (0, CHUNK_BYTES), (CHUNK_BYTES, 3 * CHUNK_BYTES), (5, NBYTES - 5), (7, 7)):
        assert bytes(tier.fetch(key, begin, end, 1.0)) == payload_of(STEP, 1)[begin:end]
    assert cluster.prefetch({"a": {1}}, width=SHARDS) is None
    for thread in cluster.work:
        thread.join(LONG_S)
    tier.close()
    assert [item.key for item in cluster.store.list("night-1/leases/") if "/read-" in item.key] == []
