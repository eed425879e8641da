"""Effect. `torch.distributed`'s WORLD as a group that forwards to the current generation.

Where a replica is one worker, it holds the replicas. Where a replica is several, it holds these: rank and size are then
the same for life, so a device mesh over it, and the sharded model that was built on the mesh, outlive every generation;
and so do groups of some of them, which a mesh of several dimensions has.

So SyncBatchNorm, metrics libraries and `dist.all_reduce(x)` mean what they say, whoever is a member at the moment. The
group object stays the same over all generations; behind it, a gloo group of its own is connected by the first use in
each generation. It is not the one that the gradients go through, since two uses of one group must be in one order on
all ranks, and the last backward launches gradients whenever they are ready.

This is the one module that touches how torch takes process groups written in Python: a subclass of ProcessGroup that a
registered backend's creator returns, the names of its methods, among them `new_group`, which torch calls where WORLD
has it, and `_register_backend` of the group behind it.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from elastic.errors import StepMisuseError
from elastic.train.gloo import GlooGroup, InOneGo
from elastic.train.nccl import Lane

if TYPE_CHECKING:
    from elastic.train.replica import Replica

BACKEND = "elastic"
OPERATIONS = (
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
    "_allgather_base",
    "_reduce_scatter_base",
)

IN_ONE_GO = ("send", "recv", "recv_anysource", *(one for one in OPERATIONS if "reduce_scatter" in one))

_opening: "World | None" = None


class Talk(dist.Work):
    """A collective of the user: whoever waits for it is freed when its generation breaks."""

    def __init__(self, work: Any, wait: Callable[[], None]) -> None:
        super().__init__()
        self._work, self._wait = work, wait

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it has ended; how long is `Limits.collective_timeout_s`, not `timeout`.

        Raises:
            AttemptBroken: (a signal) it failed.
        """
        self._wait()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def result(self) -> Any:
        return self._work.result()

    def get_future(self) -> Any:
        return self._work.get_future()


class World(dist.ProcessGroup):
    """The members of the current generation, as torch.distributed sees them; or some workers of a replica.

    Args:
        replica: knows the current generation, and whether a collective can be tried again now.
        shard, width: place of this worker in its replica, and how many workers that has.
        shards: those that belong to it, in its order; empty: all of them.
        connection: told apart by it from the replica's other groups; the same on all who belong to it.
    """

    def __init__(
        self,
        replica: "Replica",
        shard: int = 0,
        width: int = 1,
        shards: Sequence[int] = (),
        connection: str = "world",
    ) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]
        self._replica, self._shard, self._width = replica, shard, width
        self._shards, self._connection = tuple(shards or range(width)), connection
        self._name = BACKEND

    def rank(self) -> int:
        return self._replica.rank if self._width == 1 else self._shards.index(self._shard)

    def size(self) -> int:
        return self._replica.replicas if self._width == 1 else len(self._shards)

    def new_group(self, ranks: Sequence[int], *, group_name: str, **_: Any) -> "World | None":
        """A group of some workers of this replica, all of which call this; None for those who are not in it.

        Raises:
            StepMisuseError: a replica is one worker, and those of the group may be lost.
        """
        if self._width == 1:
            raise StepMisuseError(
                "torch.distributed.new_group: its members are fixed and would not outlive a failure; use session.group"
            )
        if self._shard not in ranks:
            return None
        group = World(self._replica, self._shard, self._width, ranks, f"world/{group_name}")
        group.setGroupName(group_name)
        return group

    @property
    def group_name(self) -> str:  # type: ignore[override]
        return self._name

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "gloo"

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name
        self._name = name

    def start(self, operation: str, *args: Any, **kwargs: Any) -> Talk | None:
        """Start a collective among the members of the current generation; None where a stream waits for it already.

        Raises:
            StepMisuseError: here it could not be tried again after a failure.
            AttemptBroken: (a signal) the generation is broken.
        """
        replica = self._replica
        group = replica.talking_group(operation) if self._width == 1 else replica.inner_group(operation)
        ranks = range(group.size) if self._width == 1 else self._shards
        if replica.nccl is not None and _is_on_gpu(args):
            return self._start_on_gpu(group, ranks, operation, args, kwargs)
        behind = self._group_behind("gloo", group, lambda: _process_group(group, self._connection, ranks))
        work = getattr(behind, operation)(*args, **kwargs)
        stream = torch.cuda.current_stream() if _is_on_gpu(args) else None
        noted = InOneGo([work], stream=stream) if operation in IN_ONE_GO else work
        group.note(noted)
        return Talk(work, lambda: replica.unless_broken(lambda: group.finish(noted)))

    def _start_on_gpu(
        self, group: GlooGroup, ranks: Sequence[int], operation: str, args: Any, kwargs: dict[str, Any]
    ) -> Talk | None:
        """What it leads to is void if the generation breaks before the end of the step, where that is looked at."""
        if operation in ("send", "recv", "recv_anysource"):
            raise StepMisuseError(
                f"{operation} of a tensor on a GPU: NCCL pairs these only where all are known at once, and else two "
                "workers may wait for each other for ever; send tensor.cpu(), or use a collective"
            )
        replica = self._replica
        replica.has_talked_on_gpu = True
        lane = replica.unless_broken(lambda: group.other_lane(self._connection, ranks))
        assert lane is not None
        behind = self._group_behind("nccl", group, lambda: _on_gpu(lane, ranks.index(group.rank), len(ranks)))
        started = getattr(behind, operation)(*args, **kwargs)
        if started is None:
            return None
        work = lane.started(started, (args, kwargs))
        group.note(work)
        return Talk(started, lambda: replica.unless_broken(lambda: group.pass_on(work)))

    def _group_behind(self, kind: str, group: GlooGroup, make: Callable[[], Any]) -> Any:
        """The process group of torch that an operation is handed to; a new one in each generation."""
        return group.whole(f"{kind}/{self._connection}", lambda: self._replica.unless_broken(make))


def _forwarded(operation: str) -> Any:
    def call(self: World, *args: Any, **kwargs: Any) -> Talk | None:
        return self.start(operation, *args, **kwargs)

    return call


for _operation in OPERATIONS:
    setattr(World, _operation, _forwarded(_operation))


def _process_group(group: GlooGroup, name: str, ranks: Sequence[int]) -> Any:
    """All operations of a process group, on connections of their own among these members."""
    backend, kind = group.other(name, ranks), dist.ProcessGroup.BackendType.GLOO
    whole = dist.ProcessGroup(dist.HashStore(), ranks.index(group.rank), len(ranks))
    whole._set_default_backend(kind)
    for device in ("cpu", "cuda"):
        whole._register_backend(torch.device(device), kind, backend)
    return whole


def _on_gpu(lane: Lane, rank: int, size: int) -> Any:
    """All operations of a process group for tensors on GPUs."""
    whole = dist.ProcessGroup(dist.HashStore(), rank, size)
    kind = dist.ProcessGroup.BackendType.NCCL
    whole._set_default_backend(kind)
    whole._register_backend(torch.device("cuda"), kind, lane.group)
    return whole


def _is_on_gpu(value: Any) -> bool:
    """Whether there is a tensor on a GPU among the arguments of an operation."""
    if isinstance(value, torch.Tensor):
        return value.is_cuda
    return isinstance(value, list | tuple) and any(_is_on_gpu(one) for one in value)


def open_world(replica: "Replica", shard: int = 0, width: int = 1) -> World:
    """Make torch.distributed's WORLD the current generation.

    Raises:
        StepMisuseError: this process has a WORLD already.
    """
    global _opening
    if dist.is_initialized():
        raise StepMisuseError(
            "torch.distributed is initialized in this worker already: leave init_process_group to the session, which "
            "provides WORLD"
        )
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _hand_over, devices=["cpu", "cuda"])
    _opening = world = World(replica, shard, width)
    dist.init_process_group(BACKEND, store=dist.HashStore(), rank=world.rank(), world_size=world.size())
    return world


def close_world() -> None:
    """Leave torch.distributed as it was before."""
    if dist.is_initialized() and isinstance(dist.group.WORLD, World):
        dist.destroy_process_group()


def _hand_over(*arguments: Any) -> World:
    """What torch calls for a new group of this backend, which is WORLD: the others are its own to make."""
    global _opening
    world, _opening = _opening, None
    assert world is not None
    return world
