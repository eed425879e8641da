"""Pure. Below the minimum, what survivors hold goes down to the memory of their nodes at once, lest nobody comes."""

from elastic.control.commands import Save
from elastic.control.state import WorkerRecord
from elastic.control.turn import Turn


def save_what_is_held(turn: Turn) -> None:
    """Have the newest state that is held in full saved, for each shard by one worker of each node; each is asked once.

    Nobody can make a later step stable any more, so it counts as one, whether or not all members had applied it.
    """
    holders = turn.tally.holders
    state = holders.resumable()
    if turn.settings.checkpoint is None or state is None or state[0] < 0:
        return
    held, tally = holders.commits[state], turn.tally
    ranked = tally.by_rank(name for name in held if name in tally.ranks)  # who stages usually has slots: it comes first
    first: dict[tuple[str, int], str] = {}
    for worker in turn.many((*ranked, *tally.by_start(held.keys() - tally.ranks.keys()))):
        if worker.prepared is None:
            first.setdefault((worker.node, worker.shard), worker.name)
    asked = tuple(sorted(set(first.values()) - set(turn.state.saving)))
    if asked:
        turn.change(saving=(*turn.state.saving, *asked))
        reason = f"the run waits, and step {state[0]} may be all it has"
        turn.do(Save(workers=asked, commit=held[asked[0]], reason=reason))


def save_again(turn: Turn, worker: WorkerRecord) -> None:
    """It waits for an order: the last one may have been lost. Who has saved what it holds does nothing more."""
    if worker.name in turn.state.saving and worker.answer is not None:
        turn.do(Save(workers=(worker.name,), commit=worker.answer, reason="the save was lost"))
