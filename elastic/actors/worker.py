"""Effect. The worker's actor: a WorkerHost whose control calls answer while training runs."""

from typing import Any

import ray
from ray import cloudpickle
from ray.util import get_current_placement_group, get_node_ip_address, remove_placement_group

from elastic.actors.peer_source import PeerSource, peer_sources
from elastic.actors.ray_data import RayBlocks
from elastic.settings import RunSettings
from elastic.train.host import WorkerHost, WorkerSpec
from elastic.train.runner import TrainFn

# `events` waits for news in its own group, so that a freeze is never queued behind it.
_GROUPS = {"control": 4, "events": 1}


class RayWorkerHost(WorkerHost):
    """A WorkerHost in an actor; an orphan removes its own placement group, which frees its slot."""

    def __init__(self, worker: str, seed: int, settings: RunSettings, train_fn: TrainFn, shard: int) -> None:
        spec = WorkerSpec(worker=worker, seed=seed, settings=settings, train_fn=train_fn, shard=shard)

        def peers() -> list[PeerSource]:
            return peer_sources(settings.run, ray.get_runtime_context().get_node_id())

        super().__init__(
            spec, get_node_ip_address(), _free_slot, dumps=cloudpickle.dumps, ray_blocks=RayBlocks, peers=peers
        )


def _free_slot() -> None:
    group = get_current_placement_group()
    if group is not None:
        remove_placement_group(group)


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
