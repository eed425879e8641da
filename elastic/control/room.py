"""Pure. Whether the snapshots of all workers of a node fit into its memory together, before any is taken."""

from elastic.control.events import WorkerParked
from elastic.control.state import Standing
from elastic.control.turn import Turn


def crowded(turn: Turn, event: WorkerParked) -> str:
    """Why the slots of a node's workers do not fit, now that one more is at the door; empty if they do.

    One worker of each shard stages there. What is free is as the last one saw it: none has reserved anything yet.
    """
    if not event.slot_bytes:
        return ""
    by_shard: dict[int, int] = {}
    for worker in turn.many(turn.tally.nodes[turn.worker(event.worker).node]):
        if worker.standing is Standing.PARKED:
            by_shard[worker.shard] = max(worker.slot_bytes, by_shard.get(worker.shard, 0))
    needed = sum(by_shard.values())
    if needed <= event.free_bytes:
        return ""
    return (
        f"{event.free_bytes >> 20} MiB of its memory are free, and the slots of {len(by_shard)} shards take "
        f"{needed >> 20} MiB together: enlarge it (docker --shm-size, an emptyDir of medium Memory), or set "
        "Checkpoint.memory to a larger one"
    )
