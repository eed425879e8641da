"""Effect. The seam between the driver and the processes it drives: on Ray, or as child processes."""

from collections.abc import Callable
from typing import Any, Protocol

from elastic.control import events as ev
from elastic.control.faults import Fault
from elastic.control.values import CommitId, View

Emit = Callable[[ev.Event], None]


class Fleet(Protocol):
    """Does what the driver says and reports back through `emit`; no method waits for a worker.

    A fleet emits WorkerPlaced and WorkerLost on its own account, WorkerDead when it has proof, HostBeat for each host
    that it hears, and passes on whatever the workers post.
    """

    def start(
        self,
        worker: str,
        gang: int,
        shard: int,
        avoid: frozenset[str] = frozenset(),
        node: str = "",
        doubted: frozenset[str] = frozenset(),
    ) -> None:
        """Workers of one gang are one replica, and are placed as `Scaling.num_nodes_per_dp` says.

        Args:
            avoid, node, doubted: see `StartWorker`.
        """
        ...

    def freeze(self, worker: str, generation: int) -> None: ...

    def form(self, worker: str, view: View) -> None: ...

    def restore(self, worker: str, commit: CommitId, number: int) -> None: ...

    def save(self, worker: str, commit: CommitId) -> None: ...

    def go(self, worker: str, generation: int) -> None: ...

    def connect(self, worker: str, view: View) -> None: ...

    def pause(self, worker: str, generation: int, patience_s: float) -> None: ...

    def finish(self, worker: str) -> None: ...

    def dismiss(self, worker: str) -> None: ...

    def told(self, generation: int, published: int) -> None:
        """Workers need not keep what they told of steps up to `published`: the journal has it, as of `generation`."""
        ...

    def confirm(self) -> None:
        """Called before members that may be alive are left behind: no other driver goes on with them.

        Raises:
            SupersededError: one does.
        """
        ...

    def prove_dead(self, worker: str) -> None: ...

    def knock(self, workers: tuple[str, ...], others: tuple[str, ...]) -> None:
        """Answered by a Knocked; see `Knock`."""
        ...

    def look(self) -> None:
        """Have all hosts tell at once what their workers are doing."""
        ...

    def inspect(self, worker: str) -> None: ...

    def fence(self, worker: str) -> None: ...

    def reset_gpu(self, node: str, gpus: tuple[str, ...]) -> None:
        """Answered by a GpuReset."""

    def inject(self, fault: Fault, worker: str, node: str) -> None:
        """Have a fault strike: emits FaultInjected with proof, or FaultRefused."""
        ...

    def value(self, worker: str, timeout_s: float) -> Any:
        """What train_fn returned on this worker; the one call that waits."""
        ...

    def shutdown(self, keep_memory: bool = False) -> None:
        """End every worker and leave nothing behind; `keep_memory`: but the snapshots in the memory of the nodes."""
        ...
