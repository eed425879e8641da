"""Effect. A worker at the door loads its part of a commit, as the driver said, or tells why it cannot."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from elastic.checkpoint.catalog import Holder, candidates, find
from elastic.checkpoint.reader import Effort, Enough, Inventory, take_inventory
from elastic.checkpoint.source import Source
from elastic.checkpoint.store import StoreError
from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.control.values import CommitId
from elastic.control.worker_protocol import WorkerState
from elastic.errors import CorruptError, DivergenceError, RefusedError
from elastic.train.replica import Replica
from elastic.train.restore import Fetched, Report, fetch
from elastic.train.surroundings import Surroundings


def revive(replica: Replica, around: Surroundings, commit: CommitId) -> None:
    """Fetch, install, and tell the driver; what this worker held, or had yet to tell of, is void then.

    Where nothing can be had, it still holds what it did: the run may go on with that, and its reports are to be told.

    Raises:
        StateError: the tracked objects are not those that were saved: train_fn has changed.
    """
    with replica.page.during(Flying.SLOW, f"restoring step {commit.step}"):
        try:
            fetched = _fetched(replica, around, commit)
            _refuse_a_start(fetched.report, around.link.state, around.link.is_spoilt)
            replica.snapshots.fence()
            around.link.restored(commit, partial(_install, replica, fetched), _told(around.worker, fetched.report))
        except (RefusedError, CorruptError, StoreError, DivergenceError) as error:
            held = around.link.state
            kept = held.commit if held.healed else None
            refused = ev.RestoreRefused(worker=around.worker, commit=commit, reason=str(error), kept=kept)
            if isinstance(error, RefusedError) and error.is_bad and error.shard is not None:
                refused = replace(refused, is_bad=True, shard=error.shard, chunk=error.chunk)
            around.link.answer_restore(refused)


def _install(replica: Replica, fetched: Fetched) -> None:
    """Until this it holds what it held, and a newer driver may have been told so."""
    replica.forget()
    fetched.install()


def _refuse_a_start(report: Report, held: WorkerState, is_spoilt: bool) -> None:
    """An import may lack what a run adds to it, and so sets back none of that where it is not as it was built.

    Args:
        is_spoilt: state was on its way into this worker's objects, and has not all arrived.

    Raises:
        RefusedError: the run has gone on since, here, or that.
    """
    if report.missing and is_spoilt:
        raise RefusedError(
            f"the import that the run began with holds nothing for {', '.join(report.missing)}, of which this worker "
            "has received a part of another state",
            shard=report.shard,
        )
    if report.missing and held.healed and held.commit.step > report.commit.step:
        raise RefusedError(
            f"the import that the run began with holds nothing for {', '.join(report.missing)}, of which this worker "
            f"has the state after update {held.commit.step}: begin a run of another name with it",
            shard=report.shard,
        )


def _fetched(replica: Replica, around: Surroundings, commit: CommitId) -> Fetched:
    """Who answers late is not waited for where the others have all of it, unless what they have turns out to be bad."""
    deadline_s = time.monotonic() + around.limits.restore_timeout_s

    def is_whole(holders: Sequence[Holder], waiting: Sequence[Source]) -> bool:
        return any(one.commit.same_state(commit) for one in candidates(holders, around.run))

    def look(enough: Enough | None) -> Inventory:
        return take_inventory(around.sources(), deadline_s - time.monotonic(), commit.step, enough)

    def fetched(inventory: Inventory) -> Fetched:
        candidate = find(candidates(inventory.holders, around.run), commit, inventory.silent)
        effort = Effort(turn=replica.shard, timeout_s=round(deadline_s - time.monotonic(), 1))
        return fetch(replica.tracked, candidate, replica.shard, replica.width, replica.landing, effort)

    first = look(is_whole)
    try:
        return fetched(first)
    except RefusedError:
        if not first.silent:
            raise
    return fetched(look(None))


def _told(worker: str, report: Report) -> ev.Restored:
    places = [place for shard in report.read for place in shard.places]
    return ev.Restored(
        worker=worker,
        commit=report.commit,
        seconds=report.seconds,
        nbytes=sum(shard.nbytes for shard in report.read),
        places=tuple(f"{one.tier} {one.where} {one.nbytes}" for one in sorted(places, key=lambda one: -one.nbytes)),
        retries=sum(shard.retries for shard in report.read),
    )
