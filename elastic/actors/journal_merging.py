"""Effect. Segments of a journal in the persistent tier become few, so that who reads a long run has few to read.

`elastic/checkpoint/merging.py` says which. Whoever is killed in the middle leaves a merged object beside its segments,
or some of them: the next one goes on from there.
"""

import contextlib

from elastic.actors.stored_journal import encoded, key_of, objects, read
from elastic.checkpoint.merging import Span, batches, due
from elastic.checkpoint.parallel import in_parallel
from elastic.checkpoint.seal import OtherVersionError
from elastic.checkpoint.store import Store, TakenError
from elastic.errors import CorruptError

_AT_ONCE = 4  # of what long runs of before have left; the driver's own lines wait meanwhile
_DELETERS = 8
_STALL_S = 300.0


def merge(store: Store, run: str, incarnation: int) -> None:
    """Merge what there is enough of, and delete what was merged a while ago.

    Args:
        incarnation: of the driver that does.

    Raises:
        StoreError: something cannot be read, written or deleted. CorruptError: a segment is not what was written.
    """
    there = objects(store, run)
    replaced = due({span: item.modified_at_s for span, item in there.items()})
    for merged, segments in list(replaced.items())[:_AT_ONCE]:
        try:
            read(store, run, [merged])  # what is deleted can be read there, every line
        except OtherVersionError:
            raise  # its release merges on
        except CorruptError:
            if len(segments) == len(list(merged.numbers)):
                store.delete(key_of(run, merged))  # it is made anew of them
            continue
        in_parallel(
            lambda span: store.delete(key_of(run, span)),
            segments,
            threads=_DELETERS,
            stall_s=_STALL_S,
            what=f"{store.url}: the journal of {run}",
        )
    for batch in batches({span: item.nbytes for span, item in there.items()}, incarnation)[:_AT_ONCE]:
        found = read(store, run, batch)
        span = Span(batch[0].incarnation, batch[0].first, batch[-1].last)
        with contextlib.suppress(TakenError):  # by another driver of the run: it says the same
            store.create(key_of(run, span), encoded([found[number] for number in span.numbers]))
