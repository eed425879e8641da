"""Effect. The tiers of a run on Ray: its keeper is told what happens, and is waited for in the end."""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elastic.actors.keeper import Keeper
from elastic.actors.peer_source import PeerSource, peer_sources
from elastic.actors.prefetcher import Aim
from elastic.actors.replica import end_replicas, wake
from elastic.actors.tiers import Tiers
from elastic.checkpoint.catalog import Candidate, Holder, candidates
from elastic.checkpoint.manifest import is_visible
from elastic.checkpoint.reach import Reach
from elastic.checkpoint.records import VERIFIED
from elastic.checkpoint.remembered import Remembered
from elastic.checkpoint.reported import Reported
from elastic.checkpoint.rungs import CheckpointRung, DiskStep, Rung
from elastic.checkpoint.source import Source, Tier
from elastic.control import events as ev
from elastic.control.restoring import last_copy, why_at_once
from elastic.control.state import OVER, RunState
from elastic.control.values import CommitId, Fork, View
from elastic.settings import Checkpoint, RunSettings
from elastic.train.flight import storage_switch

log = logging.getLogger("elastic")

_FLUSH_S = 600.0
_DISK_S = 60.0  # a disk that is full, or slow, is no reason to wait for long
_POLL_S = 0.05
_TOLD_S = 5.0
_ASK_S = 0.5
_ANNOUNCE_S = 5.0  # then workers may read what their nodes bring, too


class RayTiers(Tiers):
    """See `Tiers`; `start` comes once the number of this life is known.

    Args:
        write: takes what is for the journal, from any thread.
        crash: takes the error that has ended that thread.
    """

    def __init__(
        self,
        settings: RunSettings,
        here: str,
        emit: Callable[[ev.Event], None],
        write: Callable[[Any], None],
        crash: Callable[[Exception], None],
        kept: Remembered | None = None,
    ) -> None:
        checkpoint = settings.checkpoint or Checkpoint()
        switch = storage_switch(settings.run) if settings.is_breakable else None
        reach = Reach(settings.run, checkpoint, lambda: peer_sources(settings.run, here), switch)
        super().__init__(settings.run, reach, emit, settings.limits.restore_timeout_s, write, kept)
        self._settings, self._has_disks = settings, checkpoint.disk is not None
        self._crash = crash
        self._is_persistent = checkpoint.persistent is not None
        self._keeper: Keeper | None = None
        self._reported = Reported()
        self._staged = self._on_disk = -1
        self._homes: Mapping[str, set[int]] = {}
        self._worry = ""
        self._leased: tuple[CommitId, int] | None = None  # what is about to be restored, and its shards
        self._claims: deque[tuple[CommitId, int]] = deque()  # leases of what was found, and not heard of yet
        self._state: RunState | None = None  # as last seen
        self._changed = threading.Condition()

    def begin(self, at_least: int = 1) -> tuple[int, tuple[Fork, ...]]:
        if self._has_disks:
            wake(self._settings)
        return super().begin(at_least)

    def start(self, settings: RunSettings) -> None:
        """Begin to keep; `settings` name this life."""
        self._keeper = Keeper(settings, self._told, self._crash, self._metrics_of)
        self._keeper.forked(self._forks)

    def heed(self, event: ev.Event, state: RunState) -> None:
        super().heed(event, state)
        self._state = state
        if self._keeper is None:
            return
        before, self._worry = self._worry, last_copy(state)
        if self._worry and not before:
            self._keeper.redundancy_lost(self._worry)
        match event:
            case ev.ShardStaged() if event.worker in state.workers:
                if is_visible(event.commit, self._forks):  # else it was left behind while it was on its way
                    self._staged = max(self._staged, event.commit.step)
                self._reported.staged(event.commit.step, self._durable)
                urgent = why_at_once(state, event.commit)
                self._keeper.staged(state.workers[event.worker].node, event, urgent)
            case ev.NodeNotice():
                self._keeper.notice(event.node, event.reason)
            case ev.RestoreFound():
                self._heed_found(self._keeper, event, state)
            case ev.WorkerPlaced():
                self._heed_placed(self._keeper, event, state)
            case ev.StepStable():
                self._reported.reported(event.report.commit.step, event.report.metrics)
            case _:
                pass

    def formed(self, view: View, state: RunState) -> None:
        with self._changed:  # what is told meanwhile is of the history before, or after
            super().formed(view, state)
            left, self._left = self._left, -1
            if view.restored:
                self._staged = step = view.resume.step
                # What is in memory alone, and the last step of the run, is still to come down.
                self._on_disk = step if self._durable == step else min(self._on_disk, step)
            elif not view.bootstrap:  # what live workers have staged for an earlier driver may have to come down yet
                self._staged = max(self._staged, left)
        if view.restored:
            self._reported.went_back(view.resume.step)
        if self._keeper is not None:
            self._keeper.forked(self._forks)  # before the lease is over
            if view.restored:
                self._keeper.restored(view.generation)
                self._lease(self._keeper, None)
            homes: dict[int, set[str]] = {}
            for member in state.members:
                homes.setdefault(member.shard, set()).add(member.node)
            self._keeper.homes(homes)
            hosts = len({member.host for member in view.members})
            self._keeper.watched(failures=view.failures, hosts=hosts, watched_s=view.watched_s)

    def _heed_placed(self, keeper: Keeper, event: ev.WorkerPlaced, state: RunState) -> None:
        """There may be thousands, and a node has many: most are no news."""
        worker = state.workers.get(event.worker)
        if worker is not None and worker.shard not in self._homes.get(event.node, ()):
            self._prefetch(keeper, state, self._homes)
        if state.view is None:
            keeper.expect(event.node)

    def _heed_found(self, keeper: Keeper, event: ev.RestoreFound, state: RunState) -> None:
        is_stale = state.restore is not None and event.number not in (0, state.restore.number)
        found = self._found if self._prefetch(keeper, state, {}) else None
        if not is_stale:
            self._lease(keeper, (found.commit, len(found.shards)) if found is not None else None)
        if event.commit is not None and self._claims:
            keeper.lease(*self._claims.popleft(), is_over=True)
        if found is None and not is_stale:
            keeper.prefetch(None)  # it was announced, and is not wanted any more

    def _lease(self, keeper: Keeper, wanted: tuple[CommitId, int] | None) -> None:
        """This is not collected until something else is wanted, or nothing."""
        before, self._leased = self._leased, wanted
        if wanted is not None:
            keeper.lease(*wanted)  # before the other one is over: it may be the same
        if before is not None:
            keeper.lease(*before, is_over=True)

    def _prefetch(self, keeper: Keeper, state: RunState, before: Mapping[str, set[int]]) -> bool:
        """Bring what is about to be restored to the nodes of those who load it, if they are others than before.

        Returns:
            Whether what was found last is about to be restored.
        """
        found, wish = self._found, state.restore
        if found is None or wish is None or wish.commit is None or not found.commit.same_state(wish.commit):
            return False
        self._homes = homes = _homes(state)
        if homes != before:
            keeper.prefetch(Aim(candidate=found, width=state.width, homes=homes))
        return True

    def _claim(self, candidate: Candidate) -> bool:
        """What is being dropped was still to be seen a moment ago; the keeper knows."""
        if self._keeper is None:
            return super()._claim(candidate)
        is_durable = self._claim_durable(candidate)
        told, claim = queue.SimpleQueue[frozenset[tuple[str, int]]](), (candidate.commit, len(candidate.shards))
        self._keeper.lease(*claim, then=told.put)
        try:
            going = told.get(timeout=_ANNOUNCE_S)
        except queue.Empty:  # it is told without an answer: who cannot load it says so
            going = frozenset()
        if all(any(not _is_going(one, going, is_durable) for one in holders) for holders in candidate.shards):
            self._claims.append(claim)
            return True
        self._keeper.lease(*claim, is_over=True)
        return False

    def _is_enough(self, is_newest_wanted: bool, holders: Sequence[Holder], waiting: Sequence[Source]) -> bool:
        """Nodes that are out of reach are not waited for, which Ray may not know of yet; nor, once it is whole, is
        anybody for the newest step that was staged, if that is what is wanted."""
        away = _out_of_reach(self._state)
        if all(isinstance(one, PeerSource) and one.node in away for one in waiting):
            return True
        if not is_newest_wanted or self._staged < 0:
            return False
        newest = max((holder.manifest.commit.step for holder in holders), default=self._staged)
        best = candidates(holders, self._settings.run, self._forks)
        return bool(best) and best[0].commit.step >= max(newest, self._staged)

    def _announce(self, candidate: Candidate) -> None:
        """Live workers load it at once: their nodes expect it before they ask, so that each byte is read once."""
        keeper, state = self._keeper, self._state
        homes = _homes(state) if state is not None else {}
        if keeper is None or state is None or not homes:
            return
        told = threading.Event()
        keeper.prefetch(Aim(candidate=candidate, width=state.width, homes=homes), told.set)
        told.wait(_ANNOUNCE_S)

    def hand_over(self) -> None:
        """The run exits, and this process may be killed before `flush` has ended: actors do what is left without it."""
        if self._keeper is not None and self._staged >= 0:
            self._keeper.hand_over("the run exits")

    def flush(self) -> bool:
        """Wait until the last staged step is durable, and on the disks, where there are such tiers; tell on the way.

        Returns:
            Whether it is as safe as it was to be: False where the persistent tier, or else the disks, lack it yet.
        """
        if self._keeper is None or self._staged < 0:
            return True
        now_s = time.monotonic()
        self._wait(self._is_persistent, now_s + _FLUSH_S, "durable", lambda: self._durable)
        self._wait(self._has_disks, now_s + _DISK_S, "whole on the disks of nodes", lambda: self._on_disk)
        if self._is_persistent:
            self._wait_clean(self._keeper, now_s + _FLUSH_S)
            return self._durable >= self._staged
        return not self._has_disks or self._on_disk >= self._staged

    def _wait(self, is_wanted: bool, until_s: float, what: str, reached: Callable[[], int]) -> None:
        if not is_wanted or self._keeper is None:
            return
        told_s = time.monotonic()
        asked_s = told_s - _ASK_S
        with self._changed:
            while reached() < self._staged and (now_s := time.monotonic()) < until_s:
                if now_s - asked_s >= _ASK_S:  # again: it may have heard of the last step since
                    asked_s = now_s
                    self._keeper.redundancy_lost("the run is over")
                if now_s - told_s > _TOLD_S:
                    told_s = now_s
                    log.warning("step %d is not %s yet", self._staged, what)
                self._changed.wait(_POLL_S)
        if reached() < self._staged:
            log.error("step %d is not %s at the end; the last one that is: %d", self._staged, what, reached())

    def _wait_clean(self, keeper: Keeper, until_s: float) -> None:
        """Who deletes would be ended with the actors; what is then left goes after the next run's first COMMIT."""
        while not keeper.wait_clean(_TOLD_S):
            log.warning("old steps are still being deleted from the persistent tier (Checkpoint.keep)")
            if time.monotonic() > until_s:
                return

    def close(self, keep: bool) -> None:
        if self._keeper is not None:
            self._keeper.close(keep)
        elif not keep:
            end_replicas(self._settings.run, incarnation=0)  # those that were woken
        super().close(keep)

    def _told(self, told: Any) -> None:
        if isinstance(told, ev.Logged):
            self._emit(told)
            return
        self._write(told)
        if isinstance(told, DiskStep):
            with self._changed:
                if is_visible(told.commit, self._forks):
                    self._on_disk = max(self._on_disk, told.commit.step)
                self._changed.notify_all()
        if isinstance(told, CheckpointRung) and told.rung is Rung.DURABLE:
            with self._changed:
                if is_visible(told.commit, self._forks):
                    self._durable = max(self._durable, told.commit.step)
                self._changed.notify_all()

    def _metrics_of(self, commit: CommitId) -> Mapping[str, float]:
        reported, state = self._reported.of(commit.step), self._state
        return reported if state is None or state.verified < 0 else {**reported, VERIFIED: float(state.verified)}


def _is_going(holder: Holder, going: frozenset[tuple[str, int]], is_durable: bool) -> bool:
    source = holder.source
    if source.tier is Tier.PERSISTENT:
        return not is_durable
    return isinstance(source, PeerSource) and (source.node, holder.manifest.shard) in going


def _out_of_reach(state: RunState | None) -> set[str]:
    """Nodes that used to be heard, and are not any more."""
    if state is None or state.seen_s is None:
        return set()
    limit_s = state.seen_s - state.settings.limits.heartbeat_timeout_s
    return {node for node, heard_s in state.heard_s.items() if heard_s < limit_s}


def _homes(state: RunState) -> dict[str, set[int]]:
    """Shards of each node's workers, those that start included."""
    homes: dict[str, set[int]] = {}
    for worker in state.workers.values():
        if worker.node and worker.standing not in OVER:
            homes.setdefault(worker.node, set()).add(worker.shard)
    return homes
