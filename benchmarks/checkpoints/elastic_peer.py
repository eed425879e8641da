"""This library's slots, and a copy on another node: replica actors of a Ray cluster of two nodes on this machine."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from benchmarks.checkpoint_peers import Nothing
from benchmarks.checkpoints.elastic_slots import Slots, new_bench, newest, reserve, restore
from benchmarks.checkpoints.serving import Task, serve, task_from_arguments
from benchmarks.checkpoints.state import Work, new_state
from elastic.actors.equipment import Equipment, budget_bytes
from elastic.actors.peer_source import PeerSource
from elastic.actors.replica import end_replica, start_replica
from elastic.checkpoint import memory
from elastic.checkpoint.memory import MemorySource
from elastic.settings import Keep
from elastic.train.landing import Landing
from elastic.train.tracked import Tracked

TIMEOUT_S = 120.0
STORE = 8  # times the state


class Joiner:
    """An actor on a node that holds nothing: it gets its state from another one."""

    def __init__(self, run: str, nbytes: int) -> None:
        self._run, self._tracked, self._landing = run, Tracked(), Landing()
        model, optimizer = new_state(nbytes)
        self._tracked.add({"model": model, "optimizer": optimizer})

    def make_room(self) -> None:
        reserve(self._landing, self._tracked)

    def restore(self, source: PeerSource) -> None:
        restore([source], self._run, self._tracked, self._landing)


class SlotsAndPeer(Slots):
    """A node is survived once another one has pulled and verified the shard."""

    has = ("stall_s", "process_s", "node_s", "restore_s")

    def __init__(self, bench: Any, task: Task, nodes: list[str]) -> None:
        super().__init__(bench, task)
        self._landing.release()  # the joiner has its own
        self._giver, self._taker = nodes
        equipment = Equipment(
            incarnation=1,
            run=self.run,
            memory=memory_of(self._giver, task.ramdisk, self.run),
            vault=None,
            keep=Keep(),
            slots=task.ramdisk,
            budget_bytes=budget_bytes(None, STORE * task.nbytes),
            lease_s=TIMEOUT_S,
        )
        self._replicas = {node: start_replica(node, equipment) for node in nodes}
        here = NodeAffinitySchedulingStrategy(self._giver, soft=False)
        self._joiner = ray.remote(num_cpus=0)(Joiner).options(scheduling_strategy=here).remote(self.run, task.nbytes)
        ray.get(self._joiner.make_room.remote(), timeout=TIMEOUT_S)
        self._held: Any = None

    def node(self) -> None:
        key = newest(self.source, self.run).key
        pull = self._replicas[self._taker].pull.options(concurrency_group="pull")
        source = PeerSource(self._replicas[self._giver], self._giver)
        answer = ray.get(pull.remote(1, key, [source]), timeout=TIMEOUT_S)
        if answer.reason:
            raise RuntimeError(answer.reason)
        self._held = key

    def restore(self) -> None:
        """By an actor beside the slots, from the copy of the other node: the slots would have gone with their node."""
        source = PeerSource(self._replicas[self._taker], self._taker)
        ray.get(self._joiner.restore.remote(source), timeout=TIMEOUT_S)

    def clear(self) -> None:
        if self._held is not None:
            drop = self._replicas[self._taker].drop.options(concurrency_group="control")
            ray.get(drop.remote(1, self._held), timeout=TIMEOUT_S)
            self._held = None
            ray.get(self._joiner.make_room.remote(), timeout=TIMEOUT_S)
            time.sleep(1.0)  # Ray frees memory of its stores once a second

    def close(self) -> None:
        for actor in self._replicas.values():
            end_replica(actor)


def memory_of(giver: str, folder: Path, run: str) -> Callable[[str], Any]:
    return lambda node: MemorySource(folder, run) if node == giver else Nothing()


def main() -> None:
    task = task_from_arguments()
    cluster = Cluster()
    cluster.add_node(num_cpus=0, include_dashboard=False, object_store_memory=100 << 20)
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=STORE * task.nbytes).node_id for _ in range(2)]
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    bench = new_bench(task)
    try:
        keeper = SlotsAndPeer(bench, task, nodes)
        serve(task, {"elastic-peer": keeper}, Work(bench.tensors, task.step_memcpys))
        keeper.close()
    finally:
        memory.remove(task.ramdisk, bench.run)
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
