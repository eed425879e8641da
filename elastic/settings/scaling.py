"""Pure. Size and shape of the worker group."""

from collections.abc import Mapping
from dataclasses import dataclass

from elastic.errors import SettingError

GPU_COLLECTIVES = ("nccl", "gloo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Size and shape of the worker group, in Ray's language for resources.

    Attributes:
        num_dp_replicas: data-parallel replicas, `n` or `(minimum, maximum)`: the run starts with what the cluster
            places, grows to the maximum as slots appear, and pauses below the minimum. (replicas; default 1: every
            machine has room for it)
        spares: replicas parked at the door of their first step, ready to replace a lost one. (replicas; default 0: a
            spare keeps resources that somebody pays for)
        stand_ins: processes on each node with workers that have imported all that a worker needs, and become one when
            a worker there is lost; each takes the host memory of these imports, and no slot. Unless 0, there are some
            on a node with room and no workers, too. (processes per node; default 1: of the workers of a node, seldom
            more than one is lost at a time)
        workers_per_replica: workers that hold one copy of the model together, each a shard of it. (workers; default 1:
            plain data parallelism)
        num_nodes_per_dp: nodes of a replica, each with as many of its workers, in the order of their shards. (nodes;
            default 1: links within a node are the fastest)
        use_gpu: give each worker one GPU (`{"GPU": 1}`) instead of one CPU. (yes or no; default no: not every cluster
            has GPUs)
        resources_per_worker: Ray resources of a worker; replaces the default of `use_gpu`. (amounts by name; default
            none: one CPU, or one GPU, is what most need)
        gpu_collectives: what sums tensors that are on GPUs, `nccl` or `gloo`, which goes by way of the hosts' memory,
            and is what workers have that share a GPU. (name; default nccl: it uses the links between GPUs)
        label_selector: Ray node labels a worker's node must carry, e.g. `{"ray.io/market-type": "spot"}`. (values by
            label; default none: any node will do)
        threads_per_worker: torch's intra-op threads in a worker; pinned, since sums change with it. (threads;
            default 1: the only number that fits each machine)
        supervisor_labels: labels of a node for the supervisor, such as `{"pool": "cpu"}`. (values by label; default
            none: beside the driver)
        supervisor_resource: a resource that such a node has; where neither is given, or no node fits, it runs beside
            the driver. (text; default none: beside the driver)
    """

    num_dp_replicas: int | tuple[int, int] = 1
    spares: int = 0
    stand_ins: int = 1
    workers_per_replica: int = 1
    num_nodes_per_dp: int = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    gpu_collectives: str = "nccl"
    label_selector: Mapping[str, str] | None = None
    threads_per_worker: int = 1
    supervisor_labels: Mapping[str, str] | None = None
    supervisor_resource: str = ""

    def __post_init__(self) -> None:
        given, pair = self.num_dp_replicas, self.num_dp_replicas
        pair = pair if isinstance(pair, tuple) else (pair, pair)
        if len(pair) != 2 or not all(isinstance(number, int) for number in pair):
            raise SettingError(f"Scaling.num_dp_replicas={given!r} must be an integer or (minimum, maximum)")
        low, high = self.bounds
        if not 1 <= low <= high:
            raise SettingError(
                f"Scaling.num_dp_replicas={given!r} must be n >= 1 or (minimum, maximum) with 1 <= minimum <= maximum"
            )
        for name, least in (("spares", 0), ("stand_ins", 0), ("workers_per_replica", 1), ("threads_per_worker", 1)):
            _check_count(name, getattr(self, name), least)
        _check_count("num_nodes_per_dp", self.num_nodes_per_dp, None)
        if self.num_nodes_per_dp < 1 or self.workers_per_replica % self.num_nodes_per_dp:
            raise SettingError(
                f"Scaling.num_nodes_per_dp={self.num_nodes_per_dp} must divide workers_per_replica="
                f"{self.workers_per_replica}: each node of a replica has as many of its workers"
            )
        if self.gpu_collectives not in GPU_COLLECTIVES:
            raise SettingError(
                f"Scaling.gpu_collectives={self.gpu_collectives!r} must be one of {', '.join(GPU_COLLECTIVES)}"
            )
        if not self.resources:
            raise SettingError("Scaling.resources_per_worker={} must name what a worker is placed by, as in {'CPU': 1}")
        if any(amount <= 0 for amount in self.resources.values()):
            raise SettingError(f"Scaling.resources_per_worker={self.resources_per_worker!r} must hold positive amounts")
        if "object_store_memory" in self.resources:
            raise SettingError(
                f"Scaling.resources_per_worker={self.resources_per_worker!r}: no worker can have object_store_memory "
                "of its own; give nodes more of it, with ray start --object-store-memory"
            )

    @property
    def bounds(self) -> tuple[int, int]:
        """(minimum, maximum) of replicas."""
        given = self.num_dp_replicas
        return (given, given) if isinstance(given, int) else given

    @property
    def workers_per_node(self) -> int:
        """Of one replica."""
        return self.workers_per_replica // self.num_nodes_per_dp

    @property
    def has_accelerators(self) -> bool:
        """Whether a worker is given more than cores and memory."""
        return not self.resources.keys() <= {"CPU", "memory"}

    @property
    def has_nccl(self) -> bool:
        """Whether NCCL takes tensors on GPUs; it refuses two workers on one."""
        return self.gpu_collectives == "nccl" and self.resources.get("GPU", 1.0) >= 1

    @property
    def resources(self) -> dict[str, float]:
        """Ray resources of one worker."""
        if self.resources_per_worker is not None:
            return dict(self.resources_per_worker)
        return {"GPU": 1.0} if self.use_gpu else {"CPU": 1.0}


def _check_count(name: str, given: object, least: int | None) -> None:
    if not isinstance(given, int):
        raise SettingError(f"Scaling.{name}={given!r} must be a whole number")
    if least is not None and given < least:
        raise SettingError(f"Scaling.{name}={given} must {'not be negative' if least == 0 else 'be at least 1'}")
