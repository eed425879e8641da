"""Effect. The part of the keeper that has nodes write to the persistent tier, when it is time. All in its thread."""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from elastic.actors.uploading import UploadAnswer
from elastic.checkpoint import rungs
from elastic.checkpoint.manifest import ShardKey
from elastic.checkpoint.records import VERIFIED
from elastic.control.values import CommitId
from elastic.policies.interval import Measured, Schedule
from elastic.settings import Checkpoint

log = logging.getLogger("elastic")

_COST = "CPU time, on all cores of a node,"
_UPLOAD_S = 6 * 3600.0  # actors have tighter deadlines of their own, which follow from sizes

Then = Callable[[Callable[[], Any], float, Callable[[Any], Any], Callable[[str], Any]], None]


class UploadKeeper:
    """See the module.

    Args:
        tell: takes what is for the journal. then: continues when a call to an actor is answered, see `Calls`.
        heed: takes what the ladder is to hear. metrics: of a step, for `Keep.best`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        incarnation: int,
        tell: Callable[[rungs.UploadInterval], None],
        then: Then,
        heed: Callable[[rungs.Event], None],
        metrics: Callable[[CommitId], Mapping[str, float]],
    ) -> None:
        self._checkpoint, self._incarnation = checkpoint, incarnation
        self._tell, self._then, self._heed, self._metrics = tell, then, heed, metrics
        # Uploads stop nobody, but take time of cores that training could use: that is what one costs.
        self._schedule = Schedule(checkpoint.upload_interval, checkpoint.overhead, Measured(what=_COST))
        self._began_s = 0.0
        self._cost_s: dict[str, float] = {}  # by node, of the step that was begun last
        self._uploading: dict[ShardKey, rungs.Upload] = {}
        self._is_leaving = self._is_measured = False
        self._cleaning, self._failed_step = 0, -1
        self.is_clean = threading.Event()  # for any thread: no node is deleting old steps
        self.is_clean.set()

    def is_due(self, newest: int | None) -> bool:
        """Whether to upload now; newest: step that is staged."""
        if newest is None or newest == self._schedule.last_step:
            return False
        return self._schedule.is_due(newest, time.monotonic())

    def upload(self, order: rungs.Upload, actor: Any) -> None:
        """Have a node write a shard."""
        if order.key.commit.step != self._schedule.last_step:
            self._began_s = time.monotonic()
            self._schedule.done(order.key.commit.step, self._began_s)
            self._cost_s = {}
        cost_s = self._cost_s

        def ended(answer: UploadAnswer) -> None:
            cost_s[order.node] = cost_s.get(order.node, 0.0) + answer.cost_s
            self._uploading.pop(order.key, None)
            if answer.reason:
                level = logging.INFO if answer.is_gone else logging.WARNING
                log.log(level, "checkpoints: not uploaded: %s", answer.reason)
            told = rungs.Uploaded(key=order.key, node=order.node, digest=answer.digest, reason=answer.reason)
            self._heed(dataclasses.replace(told, is_gone=answer.is_gone))
            if answer.reason and not answer.is_gone:
                self._sweep_after(order.key.commit.step, actor)

        self._uploading[order.key] = order
        metrics = dict(self._metrics(order.key.commit)) if self._is_leaving else None
        self._then(
            lambda: actor.upload.options(concurrency_group="upload").remote(self._incarnation, order.key, metrics),
            _UPLOAD_S,
            ended,
            lambda reason: ended(UploadAnswer(reason=reason)),
        )

    def commit(self, order: rungs.Commit, actor: Any) -> None:
        """Have a node make a step durable."""

        def ended(reason: str) -> None:
            if reason:
                log.warning("checkpoints: step %d is not committed: %s", order.commit.step, reason)
            else:  # first, so that who waits for both misses none
                self._cleaning += 1
                self.is_clean.clear()
            self._heed(rungs.Committed(commit=order.commit, shards=len(order.digests), reason=reason))
            if not reason:
                self._clean(actor)

        metrics = dict(self._metrics(order.commit))
        if self._checkpoint.keep.best and not metrics.keys() - {VERIFIED}:
            told = "checkpoints: no metric of step %d is known: it never counts among the best (Checkpoint.keep.best)"
            log.warning(told, order.commit.step)
        commit, digests = order.commit, order.digests
        self._then(
            lambda: actor.commit.options(concurrency_group="upload").remote(
                self._incarnation, commit, digests, metrics
            ),
            _UPLOAD_S,
            ended,
            ended,
        )

    def _clean(self, actor: Any) -> None:
        """Have a node delete what nobody wants any more: the next step need not wait for that, nor who is told."""

        def ended(reason: str | None) -> None:
            if reason:
                log.warning("checkpoints: old steps are not deleted now: %s", reason)
            self._cleaning -= 1
            if not self._cleaning:
                self.is_clean.set()

        self._ask_to_clean(actor, ended)

    def _sweep_after(self, step: int, actor: Any) -> None:
        """What a step that is never committed leaves behind may be what later ones lack the room for: once for each."""
        if step == self._failed_step:
            return
        self._failed_step = step
        self._ask_to_clean(actor, lambda reason: log.debug("cleaned after step %d: %s", step, reason or "done"))

    def _ask_to_clean(self, actor: Any, ended: Callable[[str | None], None]) -> None:
        self._then(
            lambda: actor.clean.options(concurrency_group="upload").remote(self._incarnation), _UPLOAD_S, ended, ended
        )

    def arrived(self, told: rungs.CheckpointRung) -> None:
        """A step has come to a rung."""
        if told.rung is not rungs.Rung.DURABLE or told.commit.step != self._schedule.last_step:
            return
        self._schedule.arrived(time.monotonic() - self._began_s)
        self._schedule.stalled(max(self._cost_s.values(), default=0.0))
        self._tell_interval()

    def watched(self, *, failures: int, hosts: int, watched_s: float) -> None:
        """What was seen of the run so far: incidents, in so many seconds, on so many hosts."""
        self._schedule.watched(failures=failures, hosts=hosts, watched_s=watched_s, now_s=time.monotonic())
        if self._is_measured:
            self._tell_interval()

    def _tell_interval(self) -> None:
        self._is_measured = True
        chosen = self._schedule.news(time.monotonic())
        if chosen is not None and self._checkpoint.persistent is not None:
            self._tell(rungs.UploadInterval(reason=chosen.reason))

    def leave(self, actor_of: Callable[[str], Any]) -> None:
        """From now on nodes may be left alone with what they upload; those that are at it were not told so yet."""
        self._is_leaving = True
        for order in list(self._uploading.values()):
            actor = actor_of(order.node)
            if actor is not None:
                self.upload(order, actor)
