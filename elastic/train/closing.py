"""Effect. The closing reduction, after which no replica needs another any more."""

from elastic.control.data import Conservation, hash32
from elastic.control.flight import Flying
from elastic.control.integrity import Account
from elastic.errors import AttemptBroken, ConservationError
from elastic.train.replica import Replica
from elastic.train.tail import Tail


def close_loop(replica: Replica, number: int) -> bool:
    """Once it completes, all replicas have applied the last update, `number` - 1; False if it failed.

    Each shard has a reduction of its own; the look at the losses is taken together by all workers of a replica, so it
    ends only when the reductions of all shards have.

    It has the shape of the step that would come next, so that a replica that left the loop earlier than the others is
    told so, instead of gloo aborting the process.

    Raises:
        ConservationError: the replicas, or the workers of one, left the loop at different steps.
    """
    reducer, generation = replica.reducer, replica.view.generation if replica.view else 0
    identity = hash32("closing", replica.incarnation, generation, number)
    micro_batches = replica.batches.plan.cut(replica.cursor.samples, replica.replicas)
    reducer.begin(replica.hands(len(micro_batches), number, replica.watch.attempt_of(number)))
    replica.buffers.begin()
    row = _nothing(replica, identity).row()
    for group in replica.groups:
        group.unwatch()  # who has all of this reduction ends, whether or not the others have it by then
    replica.page.note(Flying.REDUCING)
    tail = replica.summed(row)
    if tail is None:
        replica.tell_broken()
        replica.settle()
        return False
    if tail.record.replicas_identity != identity * replica.replicas or tail.record.samples != 0:
        raise ConservationError(f"the replicas left the loop at different steps; this one before update {number}")
    try:
        replica.any_inside(False, "end of the loop", number, Flying.REDUCING)
        replica.watch.check(number, 1, tail.table, is_skipped=False)
    except AttemptBroken:
        return False
    return True


def _nothing(replica: Replica, identity: int) -> Tail:
    """What a replica that computes nothing says beside its gradients."""
    return Tail(
        record=Conservation(samples=0, micro_batches=0, replicas_identity=identity, replicas=1),
        pauses=0.0,
        skips=0.0,
        stages=0.0,
        compares=0.0,
        loss=0.0,
        weight=0.0,
        weighted=0.0,
        used=replica.reducer.used,
        buffers=replica.buffers.change,
        table=replica.watch.table(Account(digest=replica.watch.digest())),
    )
