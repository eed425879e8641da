"""Effect. Snapshots: the state at the door of a step, copied into this node's shared memory while the next step runs.

    door of s + 1     small state is copied at once; parameters and optimizer state by a thread beside (`copies.py`)
    reduction of s+1  all replicas have applied s: it is stable, and a thread sums and seals the slot
    apply of s + 1    waits for what is not copied yet

A step that is tried again instead of becoming stable leaves nothing behind. Which steps are staged is agreed: the
leader's vote travels in the tail of their reductions. Of the workers of a host that hold the same shard, one stages it.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from elastic.checkpoint.arena import FEWEST, Arena, Room, Slot
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.memory import reclaim, scan
from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.control.values import CommitId, Fork, View
from elastic.errors import NoRoomError, StateError
from elastic.policies.interval import FREE_SHARE, Schedule
from elastic.policies.sizing import slots_for
from elastic.settings import Checkpoint
from elastic.train.copies import Copies, pin
from elastic.train.landing import expected_bytes
from elastic.train.sharded import local
from elastic.train.slot_layout import Layout, RunningSums, clear_gaps, laid_out_as, model_layout, sums, targets
from elastic.train.surroundings import Surroundings

if TYPE_CHECKING:
    from elastic.train.replica import Replica
    from elastic.train.step import Step

log = logging.getLogger("elastic")

_LAST_S = 30.0
_POLL_S = 0.02
_AGAIN_S, _TRIES = 0.5, 10  # how often room is looked for, and how many times


@dataclass(slots=True)
class Snapshot:
    """One step's state on its way into a slot; `manifest` lacks its sums, of which `sums` has the first."""

    slot: Slot
    copies: Copies
    manifest: Manifest
    sums: RunningSums
    stall_s: float = 0.0


class NoSnapshots:
    """What the training thread asks of a worker's snapshots; without `fit(checkpoint=...)` nothing is done."""

    def expect(self, tensors: Sequence[torch.Tensor], optimizers: Sequence[torch.optim.Optimizer]) -> Room:
        """What the state will take, so that its memory is there before the first snapshot."""
        return Room()

    def joined(self, view: View) -> None:
        """A generation begins."""

    def vote(self, step: "Step") -> float:
        """Summed over replicas: above 0 this step is staged."""
        return 0.0

    def committed(self, step: "Step") -> None:
        """Applied on this worker."""

    def at_door(self) -> None:
        """All is at rest: take the step that was agreed on.

        Raises:
            StateError: an earlier snapshot failed in a way that is nobody's lack of memory.
        """

    def fence(self) -> None:
        """From here on parameters and optimizer state may change."""

    def stable(self, commit: CommitId) -> None:
        """This commit can not be lost any more: seal it, if it is staged."""

    def drop(self) -> None:
        """The staged step will never be stable: its attempt was replaced."""

    def save(self, commit: CommitId, replicas: int, is_asked: bool = False) -> None:
        """Stage and seal what is at rest, the result of this commit, whether or not it is known to be stable.

        Args:
            is_asked: by somebody who has asked nobody else on this host; else those do it who usually stage.
        """

    def flush(self) -> None:
        """Wait until what is stable is sealed.

        Raises:
            StateError: it is not, and not for lack of memory.
        """

    def finish(self, commit: CommitId, replicas: int) -> None:
        """The loop is over, perhaps left early: what it ends with is staged, if it was not, and sealed.

        Raises:
            StateError: it is not, and not for lack of memory.
        """

    def close(self) -> None:
        """The worker leaves: what is sealed stays on the node."""


class Snapshots(NoSnapshots):
    """One worker's snapshots, in an arena.

    Args:
        settings: how often, and where.

    Attributes:
        forks: where the history of what is committed from now on began anew.
        skipped: steps that were not staged, since all slots were being sealed or read.
        is_off: the tier is given up on this worker, for want of room.
    """

    def __init__(self, replica: "Replica", around: Surroundings, settings: Checkpoint) -> None:
        self._replica, self._run, self._directory = replica, around.run, Path(settings.memory)
        self._arena = Arena(self._directory, around.run, around.incarnation, around.worker, slots_for(settings.peers))
        self._schedule = Schedule(settings.local_interval, settings.overhead, free_share=FREE_SHARE)
        self._timeout_s = around.limits.door_timeout_s
        self.forks: tuple[Fork, ...] = ()
        self.skipped = 0
        self.is_off = False
        self._is_stager = False
        self._expected_bytes = 0
        self._wanted: Step | None = None  # agreed on, and applied; to be staged at the door
        self._copying: Snapshot | None = None  # its sources must not change
        self._open: Snapshot | None = None  # not known yet whether its step becomes stable
        self._layout = Layout((), (), 0)
        self._applied: CommitId | None = None  # here, the last one
        self._sealed: CommitId | None = None  # the last one
        self._last_thread: threading.Thread | None = None
        self._reserving: threading.Thread | None = None
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._stream: Any = None
        self._may_pin = True  # memory that cannot be page-locked once is not tried again
        self._busy_s = 0.0  # for which the last one was copied and sealed; what lies between is a wait for its step

    # --- which steps, and who ---

    def expect(self, tensors: Sequence[torch.Tensor], optimizers: Sequence[torch.optim.Optimizer]) -> Room:
        self._expected_bytes = expected_bytes(tensors, optimizers)
        return self._arena.room(self._expected_bytes)

    def joined(self, view: View) -> None:
        """Who stages for the first time reserves its slots beside the first steps."""
        self.forks = view.forks
        hosts = len({member.host for member in view.members})
        now_s = time.monotonic()
        self._schedule.watched(failures=view.failures, hosts=hosts, watched_s=view.watched_s, now_s=now_s)
        self._is_stager = view.is_first_of_its_shard(self._replica.link.worker)
        if self._is_stager and self._reserving is None:
            self._reserving = self._start(self._reserve)

    def vote(self, step: "Step") -> float:
        """The leader knows when it is time; who has no memory for it yet is against, unless it is the last chance."""
        replica = self._replica
        is_against = self._is_stager and not self.is_off and not self._is_ready
        vote = -1.0 if is_against else 0.0
        if replica.rank or step.phase != replica.phases - 1:
            return vote
        if step.number == replica.last_number:
            return replica.replicas + 1.0
        return vote + self._schedule.is_due(step.index, time.monotonic())

    def committed(self, step: "Step") -> None:
        self._applied = step.commit
        if step.is_staged:
            self._wanted = step
            self._schedule.done(step.index, time.monotonic())

    # --- the way of a snapshot ---

    def at_door(self) -> None:
        step, self._wanted = self._wanted, None
        self._raise_failure()
        if not self._is_stager:
            self._let_go()
        if step is None or self.is_off or not self._is_stager:
            return
        with self._replica.page.during(Flying.SLOW, "taking a snapshot"):
            is_usual = self._is_ready
            if self._reserving is not None:
                self._reserving.join(self._timeout_s)
            started_s = time.perf_counter()
            try:
                snapshot = self._begin(step.commit, step.replicas)
                if snapshot is None and (step.wants_pause or step.number == self._replica.last_number):
                    self._settle()  # nothing comes after it: rather wait for a slot than leave it out
                    snapshot = self._begin(step.commit, step.replicas)
                if step.number == self._replica.last_number:
                    snapshot = snapshot or self._begin_soon(step.commit, step.replicas, self._timeout_s)
            except NoRoomError as error:
                self._give_up(error)
                return
        if snapshot is None and step.number == self._replica.last_number:
            raise self._not_kept()
        if snapshot is None:
            self.skipped += 1
            self._start(self._complete)
            return
        self._open = self._copying = snapshot
        snapshot.stall_s = time.perf_counter() - started_s if is_usual else 0.0

    def _not_kept(self) -> StateError:
        return StateError(
            "the last step is not kept: all slots were held by readers for "
            f"Limits.door_timeout_s={self._timeout_s}; see what is slow, the persistent tier or the disk"
        )

    def _let_go(self) -> None:
        """Another worker of this host stages now, and needs the room; what is sealed stays until there is newer."""
        if self._reserving is not None and self._open is None:
            self._reserving = None
            self._start(self._arena.close)

    def fence(self) -> None:
        snapshot, self._copying = self._copying, None
        if snapshot is None:
            return
        started_s = time.perf_counter()
        with self._replica.page.during(Flying.SLOW, "waiting for a snapshot"):
            snapshot.copies.fence(self._timeout_s)
        stall_s = snapshot.stall_s + time.perf_counter() - started_s
        if snapshot.stall_s:
            self._schedule.stalled(stall_s)
        self._schedule.arrived(self._busy_s)
        if not self._replica.rank and (chosen := self._schedule.news(time.monotonic())) is not None:
            link = self._replica.link
            link.post(ev.IntervalChosen(worker=link.worker, tier="memory", reason=chosen.reason))

    def stable(self, commit: CommitId) -> None:
        snapshot = self._open
        if snapshot is not None and snapshot.manifest.commit.same_state(commit):
            self._open = None
            self._start(lambda: self._seal(snapshot))

    def drop(self) -> None:
        snapshot, self._open = self._open, None
        if snapshot is not None:
            self._start(lambda: self._abandon(snapshot))

    def save(self, commit: CommitId, replicas: int, is_asked: bool = False) -> None:
        if self.is_off or not (self._is_stager or is_asked):
            return
        with self._replica.page.during(Flying.SLOW, "saving the state, since nobody may come to go on with it"):
            if self._open is not None and self._open.manifest.commit.same_state(commit):
                self.stable(commit)
            else:
                self.drop()
            self._settle()
            if not self._has_sealed(commit):
                self._stage_at_rest(commit, replicas)
            self._settle()

    def _stage_at_rest(self, commit: CommitId, replicas: int, within_s: float = _LAST_S) -> None:
        self._copying = None
        try:
            snapshot = self._begin_soon(commit, replicas, within_s)
        except NoRoomError as error:
            self._give_up(error)
            return
        if snapshot is not None:
            snapshot.copies.fence(self._timeout_s)
            self._start(lambda: self._seal(snapshot))

    def flush(self) -> None:
        self._settle()
        self._raise_failure()
        if self._last_thread is not None and self._last_thread.is_alive():
            raise StateError(f"the last snapshot is not sealed within Limits.door_timeout_s={self._timeout_s}")

    def finish(self, commit: CommitId, replicas: int) -> None:
        self.drop()  # what was not sealed by now is not what the loop ends with
        self.flush()
        is_mine = self._is_stager and self._applied is not None and self._applied.same_state(commit)
        if not is_mine or self._has_sealed(commit) or self.is_off:
            return
        self._stage_at_rest(commit, replicas, self._timeout_s)
        self.flush()
        if not self._has_sealed(commit) and not self.is_off:
            raise self._not_kept()

    def _has_sealed(self, commit: CommitId) -> bool:
        return self._sealed is not None and self._sealed.same_state(commit)

    def close(self) -> None:
        self.drop()
        self._settle()
        self._arena.close()

    def _settle(self) -> None:
        if self._last_thread is not None:
            self._last_thread.join(self._timeout_s)

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise StateError(f"a snapshot failed: {type(self._error).__name__}: {self._error}") from self._error

    # --- at the door ---

    def _begin_soon(self, commit: CommitId, replicas: int, within_s: float = _LAST_S) -> Snapshot | None:
        """Readers let go of a slot within seconds; it is the last chance to stage the result of the run."""
        deadline_s = time.monotonic() + within_s
        snapshot = None
        while snapshot is None and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
            snapshot = self._begin(commit, replicas)
        return snapshot

    def _begin(self, commit: CommitId, replicas: int) -> Snapshot | None:
        replica = self._replica
        flat = replica.tracked.flatten()
        layout = self._layout = laid_out_as(flat, self._layout)
        slot = self._arena.begin(layout.nbytes)
        if slot is None:
            return None
        if slot.layout is not layout:
            clear_gaps(slot.payload, layout)
            slot.layout = layout
        pairs = list(zip(targets(slot.payload, layout, flat.tensors), flat.tensors, strict=True))
        steady = self._steady()
        later = [pair for pair in pairs if pair[1].data_ptr() in steady]
        now = [pair for pair in pairs if pair[1].data_ptr() not in steady]
        manifest = Manifest(
            run=self._run,
            commit=commit,
            shard=replica.shard,
            shards=replica.width,
            layout=model_layout(replica.model),
            skeleton=flat.skeleton.decode(),
            entries=layout.entries,
            nbytes=layout.nbytes,
            chunks=(),
            forks=self.forks,
            replicas=replicas,
            taken_at_s=time.time(),
        )
        running = self._running_sums(slot)
        copies = Copies(now, later, self._side_stream(slot, flat.tensors), running)
        return Snapshot(slot, copies, manifest, running)

    def _running_sums(self, slot: Slot) -> RunningSums:
        return RunningSums(slot.payload)

    def _steady(self) -> set[int]:
        """Addresses of what changes inside apply alone: the model's parameters, and the optimizers' state."""
        replica, found = self._replica, list[torch.Tensor]()
        if replica.model is not None:
            found += replica.model.parameters()
        for optimizer in replica.tracked.optimizers:
            found += [param for group in optimizer.param_groups for param in group["params"]]
            found += [value for entries in optimizer.state.values() for value in entries.values() if _is_tensor(value)]
        return {local(tensor.detach()).data_ptr() for tensor in found}

    def _side_stream(self, slot: Slot, tensors: list[torch.Tensor]) -> Any:
        """Where copies from a GPU run, into page-locked memory; None without one."""
        if not any(tensor.is_cuda for tensor in tensors):
            return None
        self._stream = self._stream or torch.cuda.Stream()
        if self._may_pin and not slot.is_pinned:
            self._may_pin = slot.is_pinned = pin(slot, slot.payload)
        return self._stream

    # --- threads beside the training ---

    def _start(self, act: Callable[[], None]) -> threading.Thread:
        """One after the other, so that slots are sealed in the order of their steps."""
        arguments = (act, self._last_thread)
        thread = threading.Thread(target=self._guarded, args=arguments, name="elastic-snapshot", daemon=True)
        self._last_thread = thread
        thread.start()
        return thread

    def _guarded(self, act: Callable[[], None], before: threading.Thread | None) -> None:
        try:
            if before is not None:
                before.join()
            act()
        except NoRoomError as error:
            self._give_up(error)
        except Exception as error:  # the training thread raises it at the next door, or at the end
            self._error = error

    @property
    def _is_ready(self) -> bool:
        """Whether the slots' memory is there."""
        return self._reserving is not None and not self._reserving.is_alive()

    def _reserve(self) -> None:
        """What earlier workers have sealed here stays until there is something newer, and may leave room for one.

        Who has staged before lets go in the next moment, if it lives.
        """
        for left in reversed(range(_TRIES)):
            reclaim(self._directory, self._run)
            others = scan(self._directory, self._run)
            try:
                self._arena.reserve(self._expected_bytes, fewest=1 if others else FEWEST)
                return
            except NoRoomError:
                if not (others and left):
                    raise
            time.sleep(_AGAIN_S)

    def _complete(self) -> None:
        """Slots for which there was no room, now that more may have given way; what somebody reads yet will later."""
        if not self._arena.is_short(self._layout.nbytes):
            return
        reclaim(self._directory, self._run)
        may_give_way = any(not self._arena.holds(one.path) for one in scan(self._directory, self._run))
        try:
            self._arena.reserve(self._layout.nbytes)
        except NoRoomError as error:
            if not may_give_way:
                raise
            log.info("snapshots go on when what earlier workers have left gives way: %s", error)

    def _seal(self, snapshot: Snapshot) -> None:
        snapshot.copies.wait(self._timeout_s)
        began_s = time.monotonic()
        manifest = replace(snapshot.manifest, chunks=sums(snapshot.slot.payload, snapshot.manifest, snapshot.sums.done))
        self._arena.seal(snapshot.slot, manifest)
        self._sealed = manifest.commit
        self._busy_s = snapshot.copies.took_s + time.monotonic() - began_s
        link, key = self._replica.link, manifest.key
        place = {"shard": key.shard, "shards": key.shards}
        link.post(ev.ShardStaged(worker=link.worker, commit=key.commit, nbytes=manifest.nbytes, **place))
        self._complete()

    def _abandon(self, snapshot: Snapshot) -> None:
        snapshot.copies.wait(self._timeout_s)
        snapshot.slot.abandon()

    def _give_up(self, error: NoRoomError) -> None:
        """Training goes on without this tier; told once."""
        with self._lock:
            if self.is_off:
                return
            self.is_off = True
        log.warning("no more snapshots in memory on this worker: %s", error)
        link = self._replica.link
        link.post(ev.TierDegraded(worker=link.worker, tier="memory", reason=str(error)))


def make_snapshots(replica: "Replica", around: Surroundings) -> NoSnapshots:
    """As `around.checkpoint` says."""
    return NoSnapshots() if around.checkpoint is None else Snapshots(replica, around, around.checkpoint)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
