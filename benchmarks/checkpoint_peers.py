"""What it costs to hold a shard on another node, and to read it back.

    python -m benchmarks.checkpoint_peers --out peers.json

A cluster of two nodes on this machine. A replica actor on one pulls a shard from the other's, verifies every chunk and
keeps it; in turns with that, an actor on the same node fetches as many bytes from a plain actor on the other, as Ray
does it by itself. Then the shard is read back by an actor beside a replica actor, and by one on the other node, chunk
by chunk, verified. Each time is from the call to the last byte. Medians; the first rounds warm pages and are left out.

Ray frees memory of its stores once a second; a pause before each measurement keeps one from waiting for another's.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from benchmarks.provenance import provenance
from elastic.actors.equipment import Equipment, budget_bytes
from elastic.actors.peer_source import PeerSource
from elastic.actors.replica import end_replica, start_replica
from elastic.checkpoint.boxes import Want, plan
from elastic.checkpoint.catalog import Holder, candidates
from elastic.checkpoint.manifest import CHUNK_BYTES, Entry, Manifest, ShardKey
from elastic.checkpoint.reader import Effort, read
from elastic.checkpoint.source import Tier
from elastic.control.values import CommitId
from elastic.settings import Keep

COMMIT = CommitId(incarnation=1, generation=1, attempt=0, step=1, lineage="bench")
WARM_UP = 2
TIMEOUT_S = 300.0
PAUSE_S = 1.5
STORE = 8  # times the shard


class OneShard:
    """A node's memory that holds one shard, in a mapped file."""

    tier, where = Tier.MEMORY, "a mapped file"

    def __init__(self, path: Path) -> None:
        self._manifest = Manifest.decode(path.with_suffix(".manifest").read_bytes())
        self._array = np.memmap(path, dtype=np.uint8, mode="r")

    def manifests(self, step: int | None = None) -> list[Manifest]:
        return [self._manifest]

    def read(self, key: ShardKey, begin: int, end: int) -> Any:
        return np.asarray(self._array[begin:end])


class Nothing:
    """A node's memory without slots."""

    tier, where = Tier.MEMORY, "nothing"

    def manifests(self, step: int | None = None) -> list[Manifest]:
        return []


class Plain:
    """An actor that knows Ray only."""

    def load(self, path: Path) -> None:
        self._array = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))

    def make_room(self, nbytes: int) -> None:
        """What `restore` fills, as the tensors of a worker are there before it loads them."""
        self._into = np.full(nbytes, 1, dtype=np.uint8)

    def give(self) -> Any:
        return self._array

    def fetch(self, other: Any) -> float:
        """Seconds until all bytes of the other's array are in this node's store."""
        began_s = time.monotonic()
        array = ray.get(other.give.remote(), timeout=TIMEOUT_S)
        seconds = time.monotonic() - began_s
        assert array.dtype == np.uint8
        return seconds

    def restore(self, source: PeerSource) -> float:
        """Seconds until the source's shard was read into this process's memory, verified."""
        began_s = time.monotonic()
        (manifest,) = source.manifests()
        (candidate,) = candidates([Holder(source=source, manifest=manifest)], manifest.run)
        (entry,) = manifest.entries
        want = Want(path=entry.path, dtype=entry.dtype, whole=entry.shape, box=entry.box)
        read(candidate, plan([want], candidate.manifests), [self._into], Effort(timeout_s=TIMEOUT_S))
        return time.monotonic() - began_s


def write_shard(path: Path, nbytes: int) -> ShardKey:
    payload = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    payload.tofile(path)
    manifest = Manifest(
        run="bench",
        commit=COMMIT,
        shard=0,
        shards=1,
        layout="",
        skeleton="{}",
        entries=(Entry(path="/state", dtype="uint8", shape=(nbytes,), begin=0, nbytes=nbytes),),
        nbytes=nbytes,
        chunks=tuple(google_crc32c.value(payload[at : at + CHUNK_BYTES]) for at in range(0, nbytes, CHUNK_BYTES)),
    )
    path.with_suffix(".manifest").write_bytes(manifest.encode())
    return manifest.key


def memory_of(giver: str, path: Path) -> Callable[[str], Any]:
    return lambda node: OneShard(path) if node == giver else Nothing()


def measure(nodes: list[str], path: Path, nbytes: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round, by what was done."""
    giver, taker = nodes
    key = write_shard(path, nbytes)
    equipment = Equipment(
        incarnation=1,
        run="bench",
        memory=memory_of(giver, path),
        vault=None,
        keep=Keep(),
        slots=path.parent,
        budget_bytes=budget_bytes(None, STORE * nbytes),
        lease_s=TIMEOUT_S,
    )
    replicas = {node: start_replica(node, equipment) for node in nodes}
    plain = {
        node: ray.remote(num_cpus=0)(Plain).options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        )
        for node in nodes
    }
    hands = {node: actor.remote() for node, actor in plain.items()}
    ray.get(hands[giver].load.remote(path), timeout=TIMEOUT_S)
    ray.get([hand.make_room.remote(nbytes) for hand in hands.values()], timeout=TIMEOUT_S)
    source = PeerSource(replicas[giver], giver)
    seconds: dict[str, list[float]] = {"peer": [], "ray": [], "restore_local": [], "restore_peer": []}

    def pull() -> float:
        answer = ray.get(
            replicas[taker].pull.options(concurrency_group="pull").remote(1, key, [source]), timeout=TIMEOUT_S
        )
        assert not answer.reason and answer.nbytes == nbytes, answer.reason
        ray.get(replicas[taker].drop.options(concurrency_group="control").remote(1, key), timeout=TIMEOUT_S)
        return answer.seconds

    variants: dict[str, Callable[[], float]] = {
        "peer": pull,
        "ray": lambda: ray.get(hands[taker].fetch.remote(hands[giver]), timeout=TIMEOUT_S),
        "restore_local": lambda: ray.get(hands[giver].restore.remote(source), timeout=TIMEOUT_S),
        "restore_peer": lambda: ray.get(hands[taker].restore.remote(source), timeout=TIMEOUT_S),
    }
    for _ in range(WARM_UP + rounds):
        for name, run in variants.items():
            time.sleep(PAUSE_S)
            seconds[name].append(run())
    for actor in replicas.values():
        end_replica(actor)
    return {name: all_of[WARM_UP:] for name, all_of in seconds.items()}


def figures(nbytes: int, rounds: int) -> dict[str, Any]:
    """In a cluster of its own: speeds, in bytes a second, and the ratio to Ray's own transfer.

    Args:
        nbytes: of the shard. rounds: of all variants in turns, warm-up not counted.
    """
    cluster = Cluster()
    cluster.add_node(num_cpus=0, include_dashboard=False, object_store_memory=100 << 20)
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=STORE * nbytes).node_id for _ in range(2)]
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-peers-", dir="/dev/shm") as folder:
            seconds = measure(nodes, Path(folder) / "shard", nbytes, rounds)
    finally:
        ray.shutdown()
        cluster.shutdown()
    median = {name: statistics.median(all_of) for name, all_of in seconds.items()}
    return {
        "peer_vs_ray_pull": _ratio(seconds["ray"], seconds["peer"]),
        "peer_pull_bytes_per_s": nbytes / median["peer"],
        "ray_pull_bytes_per_s": nbytes / median["ray"],
        "restore_actor_bytes_per_s": nbytes / median["restore_local"],
        "restore_peer_bytes_per_s": nbytes / median["restore_peer"],
        "restore_peer_vs_ray_pull": _ratio(seconds["ray"], seconds["restore_peer"]),
        "bytes": nbytes,
        "seconds": seconds,
    }


def _ratio(ray_s: list[float], ours_s: list[float]) -> float:
    """Our speed, times that of Ray's own transfer in the same round."""
    return statistics.median(ray / ours for ray, ours in zip(ray_s, ours_s, strict=True))


def main() -> None:
    """Measure, write the result, print a short table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the result")
    parser.add_argument("--bytes", type=int, default=256 << 20, help="of the shard")
    parser.add_argument("--rounds", type=int, default=10, help="of all variants in turns, warm-up not counted")
    args = parser.parse_args()
    origin = provenance()
    result = {"benchmark": "checkpoint_peers", **figures(args.bytes, args.rounds), "provenance": origin}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    for name in ("peer_pull", "ray_pull", "restore_actor", "restore_peer"):
        print(f"{name:14} {result[f'{name}_bytes_per_s'] / 1e9:6.2f} GB/s")
    print(f"{'ratio':14} {result['peer_vs_ray_pull']:6.2f}   speed of a verified pull, times that of Ray's own")
    print(f"{'':14} {result['restore_peer_vs_ray_pull']:6.2f}   speed of a verified restore, times that of Ray's own")


if __name__ == "__main__":
    main()
