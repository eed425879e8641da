"""Effect. What a worker's steps share: model and reducer, buffers, data, the group of the current generation."""

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from elastic.checkpoint.arena import Room
from elastic.control.data import MicroBatch, all_hands, hash32
from elastic.control.flight import Flying
from elastic.control.pace import Pace, RateRule, Resize, next_pace, resize_of
from elastic.control.tuning import NOT_TUNED
from elastic.control.values import CommitId, StepReport, View, is_left_out
from elastic.errors import AttemptBroken, ConservationError, DivergenceError, NonFiniteLossError, StepMisuseError
from elastic.train.buffers import Buffers
from elastic.train.cursor import Cursor, rates
from elastic.train.data import Source
from elastic.train.direct import can_go_together
from elastic.train.evaluation import Evaluator
from elastic.train.gloo import FormingCancelledError, GlooGroup
from elastic.train.landing import Landing
from elastic.train.mailbox import KEPT_REPORTS
from elastic.train.meter import Meter
from elastic.train.nccl import Nccl, has_nccl
from elastic.train.reducer import Reducer
from elastic.train.sharded import reset
from elastic.train.snapshot import make_snapshots
from elastic.train.step import OUTSIDE, POISONED, UNWANTED, Step
from elastic.train.surroundings import Surroundings
from elastic.train.tail import Tail
from elastic.train.tracked import Tracked
from elastic.train.watch import Watch

log = logging.getLogger("elastic")

_CURSOR = "elastic.cursor"  # no name that session.track can be given
Result = TypeVar("Result")

_POLL_S = 0.001
_IDLE_STEPS = 100  # in which nothing is dealt to a replica: it needs nothing ahead


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the workers of a replica have told each other; `figures`: of each, by shard."""

    votes: tuple[bool, ...]
    figures: tuple[tuple[int, ...], ...]


class Replica:
    """The mutable heart of a session; users do not see it."""

    def __init__(self, around: Surroundings) -> None:
        self.shard, self.width, self.seed = around.shard, around.width, around.seed
        self.link, self.page = around.link, around.page
        self.meter = Meter(around.page)
        self.grace_s = around.limits.blame_grace_s
        self.settle_timeout_s = around.limits.settle_timeout_s
        self.snapshots = make_snapshots(self, around)
        self.nccl: Nccl | None = None  # where gradients are on a GPU
        self.has_talked_on_gpu = False  # since the sums of this attempt
        self._has_nccl = around.has_nccl
        self._most_replicas = around.most_replicas
        self.last_number = -1  # of the run's last update, -1 before it is known
        self.tracked = Tracked()
        self.landing = Landing()
        self.cursor = Cursor()
        self.tracked.add({_CURSOR: self.cursor})
        self.rate_rule: RateRule | None = None
        self.on_resize: list[Callable[[Resize], None]] = []
        self.watch = Watch(self)
        self.scalers: list[Any] = []
        self.model: torch.nn.Module | None = None
        self.group: GlooGroup | None = None  # those who hold the same shard, one for each replica
        self.inner: GlooGroup | None = None  # the workers of this replica, where they are several
        self.view: View | None = None
        self.phases = 1
        self.evaluator: Evaluator | None = None
        self.torn: Step | None = None  # entered, and neither applied nor undone: nothing can go on from there
        self.mute = OUTSIDE  # why a collective of the user is refused now; empty where it is welcome
        self.unpublished: deque[StepReport] = deque(maxlen=KEPT_REPORTS)
        self.on_report: Callable[[StepReport], None] = lambda report: None
        self._tuning = NOT_TUNED
        self._retired: list[GlooGroup] = []
        self._pending: Step | None = None
        self._own_error: Exception | None = None  # what an act on a stable step has raised
        self._reducer: Reducer | None = None
        self._buffers: Buffers | None = None
        self._batches: Source | None = None

    # --- set up by the user's calls ---

    def adopt(self, model: torch.nn.Module, bucket_bytes: int, digest_steps: int | None, reproducible: bool) -> None:
        if self._reducer is not None:
            raise StepMisuseError("session.prepare was called twice: wrap several modules in one torch.nn.ModuleDict")
        self.model = model
        in_order = self._live_group if reproducible else None
        self._reducer = Reducer(
            model, self._launch, self.link.is_stepping, self.cut, bucket_bytes, in_order, self._go_together
        )
        self._buffers = Buffers(model)
        self.watch = Watch(self, digest_steps)
        gpu = self._reducer.gpu
        if gpu is not None and self._has_nccl and not has_nccl():
            log.warning("this build of torch has no NCCL: gloo sums what is on %s, by way of the host's memory", gpu)
        elif gpu is not None and self._has_nccl:
            self.nccl = Nccl(gpu)

    def reserve(self) -> Room:
        """See what the state will take; what can not travel is refused now, not when somebody must be healed.

        Returns:
            Whether this node has room for snapshots of it.
        """
        tensors, optimizers = self.tracked.flatten().tensors, self.tracked.optimizers
        self.landing.reserve(tensors, optimizers)
        return self.snapshots.expect(tensors, optimizers)

    def use(self, batches: Source) -> None:
        """
        Raises:
            SettingError: at the largest size that the run may grow to, a step cannot be cut from this.
        """
        batches.plan.require(self._most_replicas)
        self._batches = batches
        self.tracked.add(batches.tracked)
        self.cursor.read_in(batches.order)

    def leave(self) -> None:
        """End what was started beside the training thread."""
        if self._batches is not None:
            self._batches.close()
        self.snapshots.close()
        for group in (*self._retired, *self.groups):
            group.unwatch()
            group.cut_lanes()

    @property
    def reducer(self) -> Reducer:
        if self._reducer is None:
            raise StepMisuseError("no model: call session.prepare(model) before session.steps")
        return self._reducer

    @property
    def layout(self) -> str:
        """What replicas must agree on: gradients' layout, how data is cut, what is compared and evaluated, and when."""
        mine = hash32(self.buffers.size, *self.tracked.names, *(["nccl"] if self.nccl is not None else []))
        return f"{self.reducer.layout}-{mine:08x}-{self.inner_layout}"

    @property
    def inner_layout(self) -> str:
        """The part of the layout that the workers of a replica share, whose shards differ."""
        every = self.evaluator.every if self.evaluator is not None else 0
        return f"{self.batches.fingerprint}-{self.phases}-{every}-{self.watch.digest_steps}"

    @property
    def buffers(self) -> Buffers:
        if self._buffers is None:
            raise StepMisuseError("no model: call session.prepare(model) before session.steps")
        return self._buffers

    @property
    def batches(self) -> Source:
        if self._batches is None:
            raise StepMisuseError("no data: pass the result of session.batches to session.steps")
        return self._batches

    # --- the current generation ---

    @property
    def rank(self) -> int:
        return self.group.rank if self.group else 0

    @property
    def replicas(self) -> int:
        return self.group.size if self.group else 1

    @property
    def generation(self) -> int:
        return self.view.generation if self.view else 0

    @property
    def incarnation(self) -> int:
        return self.view.incarnation if self.view else 0

    @property
    def groups(self) -> tuple[GlooGroup, ...]:
        return tuple(group for group in (self.group, self.inner) if group is not None)

    def join(self, view: View, group: GlooGroup, inner: GlooGroup | None = None) -> None:
        """The groups of the view take the place of the last ones, whose works have all ended."""
        self._retired += self.groups  # closing costs milliseconds; not before the next commit
        self.group, self.view, self.inner = group, view, inner
        self.snapshots.joined(view)

    def cut(self) -> None:
        """Free whatever waits on the current groups."""
        for group in self.groups:
            group.cut()

    def settle(self) -> None:
        """Have every reduction of a broken attempt end, the user's too, or leave it behind."""
        has_ended = self.reducer.settle(self.settle_timeout_s)
        for group in self.groups:
            if group.has_pending_notes():
                group.cut()
            if not (group.settle_notes(self.settle_timeout_s) and has_ended):
                group.leave_behind()
        if self.model is not None and self.width > 1:
            reset(self.model)

    def has_pending_notes(self) -> bool:
        """Whether a collective of the user is under way; inside a replica, where DTensors leave some, it is awaited.

        Raises:
            AttemptBroken: (a signal) the generation is broken.
        """
        inner = self.inner
        if inner is not None:
            self.unless_broken(inner.finish_all)
        return any(group.has_pending_notes() for group in self.groups)

    def talking_group(self, operation: str) -> GlooGroup:
        """The group for a sum over replicas outside of the reductions of a step.

        Raises:
            StepMisuseError: it could not be tried again here.
            AttemptBroken: (a signal) the generation is broken.
        """
        if self.mute or self.group is None:
            raise StepMisuseError(f"{operation}: {self.mute or OUTSIDE}")
        self.link.check()
        return self.group

    def inner_group(self, operation: str) -> GlooGroup:
        """The group for a collective among the workers of this replica; raises like `talking_group`.

        They compute the same micro-batches, and evaluate the same batches: among those they may talk, too.
        """
        if self.inner is None or self.mute is OUTSIDE:
            return self.talking_group(operation)
        self.link.check()
        return self.inner

    def any_inside(self, flag: bool, what: str, number: int, phase: Flying = Flying.TALKING) -> bool:
        """Whether one of this replica's workers says so; all of them ask; see `each_inside`."""
        return self.each_inside((flag,), what, number, phase)[0]

    def each_inside(
        self, flags: Sequence[bool], what: str, number: int, phase: Flying = Flying.TALKING
    ) -> tuple[bool, ...]:
        """Which of these one of this replica's workers has set; all of them ask.

        Args:
            flags: travel in one word, so that who asks for others at another place is told of it.
            what, number: of which flags, and before the end of which update; the same on all of them.
            phase: what is seen of it meanwhile.

        Raises:
            AttemptBroken: (a signal) the generation is broken.
            ConservationError: they ask at different places: one has left the loop, and another has not.
        """
        inner, mine = self.inner, hash32(what, number)
        if inner is None:
            return tuple(flags)
        bits = sum(flag << place for place, flag in enumerate(flags))
        rows = self.unless_broken(lambda: inner.gather_words([mine, bits]), phase)
        if any(row[0] != mine for row in rows):
            raise ConservationError(
                f"the workers of a replica have parted at update {number}, this one at its {what}: decide by what all "
                "shards share, such as step.index, when to leave the loop"
            )
        return tuple(any(row[1] >> place & 1 for row in rows) for place in range(len(flags)))

    def agree(self, commit: CommitId, weight: float, votes: Sequence[bool], figures: Sequence[int]) -> Agreement:
        """Wait until all workers of this replica have come to the apply of this commit.

        Args:
            weight: of what this worker has computed; each shard divides by a sum of its own, so all must have the same.
            figures: non-negative, as many on all of them.

        Raises:
            AttemptBroken: (a signal) the generation is broken, and it is open whether all have come.
            ConservationError: they have come to the apply of different commits, or with different weights.
        """
        inner, mine = self.inner, hash32(commit.step, commit.lineage, repr(weight))
        if inner is None:
            return Agreement(tuple(votes), (tuple(figures),))
        rows = self.unless_broken(lambda: inner.gather_words([mine, *votes, *figures]))
        if any(row[0] != mine for row in rows):
            raise ConservationError(
                f"the workers of a replica came to different ends of update {commit.step}: do all make the same steps, "
                "and give step.backward the weight of the whole micro-batch?"
            )
        end = 1 + len(votes)
        voted = tuple(any(column) for column in zip(*(row[1:end] for row in rows), strict=True))
        return Agreement(voted, tuple(tuple(row[end:]) for row in rows))

    @property
    def has_to_confirm(self) -> bool:
        """Something was said on GPUs since the sums: here, or maybe between other workers of this replica."""
        return self.has_talked_on_gpu or (self.inner is not None and self.nccl is not None)

    def confirm(self) -> None:
        """What was said on GPUs since the sums is right on all with whom it was: nobody had to abort anything before.

        The workers of a replica say so before they give their word that they can apply: what was said is part of that.

        Raises:
            AttemptBroken: (a signal) that is open.
        """
        self.has_talked_on_gpu = False
        self.reducer.catch_up()
        self.link.check()
        group = self._live_group() if self.inner is None else self.inner
        self.unless_broken(lambda: group.wait(group.allreduce(torch.zeros(1))))

    def unless_broken(self, act: Callable[[], Result], phase: Flying = Flying.TALKING) -> Result:
        """What talks to other workers outside of the reducer: if it fails, so has the generation.

        Raises:
            AttemptBroken: (a signal) it failed; the others are freed and told.
        """
        try:
            with self.page.during(phase):
                return act()
        except (RuntimeError, OSError, FormingCancelledError) as error:  # OSError: of the leader's store, and timeouts
            self.cut()
            self.link.broke(f"{type(error).__name__}: {error}")
            raise AttemptBroken from error

    def is_failure(self, error: BaseException | None) -> bool:
        """Whose exception it is, by state, not by type: any while the generation is broken belongs to the failure."""
        if isinstance(error, AttemptBroken):
            return True
        if not isinstance(error, Exception) or error is self._own_error:
            return False
        is_ours = isinstance(error, StepMisuseError | ConservationError | DivergenceError | NonFiniteLossError)
        return self.link.is_broken_within(0 if is_ours else self.grace_s)

    def _live_group(self) -> GlooGroup:
        if self.group is None:
            raise RuntimeError("no group")
        return self.group

    def _launch(self, *tensors: torch.Tensor) -> Any:
        return self._live_group().allreduce(*tensors)

    def _go_together(self, tensors: Sequence[torch.Tensor]) -> bool:
        return can_go_together(tensors, self.replicas)

    def summed(self, row: torch.Tensor) -> Tail | None:
        """Sum gradients and a tail's row over replicas, in place; None if a reduction failed."""
        elements = self.buffers.size
        beside = torch.empty(2 + elements, dtype=torch.float64) if self.reducer.is_ordered else None
        if not self.reducer.finish(row, beside):
            return None
        tail = Tail.of(row, len(self.reducer.params), elements)
        if beside is None:
            return tail
        loss, weight = beside[:2].tolist()
        return replace(tail, loss=loss, weight=weight, buffers=beside[2:])

    def tell_broken(self) -> None:
        """A reduction has failed: why, and whom it waited for if it did so in vain."""
        error = self.reducer.error
        self.link.broke(self.group.named(error) if self.group is not None else error)

    def exchange(self, step: Step, whole: Sequence[MicroBatch]) -> None:
        """Tell each other what was read, where that cannot be known without.

        Raises:
            AttemptBroken: (a signal) the generation is broken.
        """
        with self.page.during(Flying.FETCHING):  # of a step that was left out, all is read only here
            offer = self.batches.offer(step.dealt)
        if offer is not None:
            group = self._live_group()
            self.batches.receive(whole, self.unless_broken(lambda: group.gather_bytes(offer)))

    # --- who computes what ---

    def dealt(self, whole: Sequence[MicroBatch], number: int, attempt: int) -> list[MicroBatch]:
        """Those of an update's micro-batches that this replica computes."""
        return self.batches.dealt(whole, self._shares(number), self._player(self.rank, attempt))

    def hand(self, number: int, attempt: int) -> Hashable:
        """Changes with everything but progress that decides which micro-batches this replica computes."""
        return self.generation, attempt, self._player(self.rank, attempt), self._shares(number), self._tuning

    def forecast(self, step: Step, position: int) -> Iterator[MicroBatch]:
        """What this replica will compute from here on, if nothing happens: the rest of `step`, and those after it.

        It ends where nothing is dealt to this replica for long: some are only in the last, short step of an epoch.
        """
        plan, shares, player = self.batches.plan, self._shares(step.number), self._player(self.rank, step.attempt)
        consumed, number, replicas, rest = self.cursor.samples, step.number, self.replicas, step.dealt[position:]
        idle = 0
        while idle < _IDLE_STEPS:
            yield from rest
            if number % self.phases == self.phases - 1:
                consumed += sum(micro_batch.count for micro_batch in plan.cut(consumed, replicas))
            number += 1
            nobody = self.why_left_out(number // self.phases)
            rest = [] if nobody else self.batches.dealt(plan.cut(consumed, replicas), shares, player)
            idle = 0 if rest else idle + 1

    def hands(self, count: int, number: int, attempt: int) -> list[range]:
        """Which of `count` micro-batches each rank computes; empty unless sums are made in order, which needs them."""
        if not self.reducer.is_ordered:
            return []
        dealt = all_hands(count, self._shares(number))
        return [dealt[self._player(rank, attempt)] for rank in range(self.replicas)]

    def _player(self, rank: int, attempt: int) -> int:
        """Whose hand a rank plays: its own, and in a second attempt that of the rank before (`train/watch.py`)."""
        return (rank - attempt + 1) % self.replicas

    def _shares(self, number: int) -> tuple[int, ...]:
        plan = self.batches.plan
        return self.watch.shares(number, -(-plan.global_batch(self.replicas) // plan.micro_batch_size))

    # --- the size of a step ---

    def retune(self, number: int) -> None:
        """Before update `number`: as the view says; where it says nothing, and within a step, as the one before it."""
        tuning = self.cursor.tuning
        if self.view is not None and number % self.phases == 0:
            tuning = self.view.tuning.over(tuning)
        if tuning != self._tuning:
            self._tuning = tuning
            self.batches.tune(tuning)
            self.reducer.lay_out(tuning.bucket_bytes)

    def next_pace(self, index: int) -> Pace:
        """The pace of step `index` in the current generation."""
        batch = self.batches.plan.global_batch(self.replicas)
        return next_pace(self.cursor.pace, index, self.replicas, batch, self.rate_rule, self._tuning)

    def is_resized(self, pace: Pace) -> bool:
        """Whether size or tuning have changed since the last committed step, and somebody wants to know.

        Who was healed to that step has what others changed in it, and need not.
        """
        last = self.cursor.pace
        if last is None or not self.on_resize:
            return False
        return (last.replicas, last.tuning.felt) != (pace.replicas, pace.tuning.felt)

    def tell_resize(self, index: int, pace: Pace, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Inside apply: call what is to be called then."""
        assert self.cursor.pace is not None
        resize = resize_of(self.cursor.pace, pace, index, rates(optimizers))
        for act in self.on_resize:
            act(resize)

    # --- steps become stable ---

    def reduced(self, step: Step) -> None:
        """A reduction of this step has completed: all replicas have applied the one before it."""
        if self._pending is not None and self._pending.number < step.number:
            self.make_stable()

    def committed(self, step: Step) -> None:
        self._pending = step
        self.landing.release()
        self.snapshots.committed(step)
        if self.evaluator is not None:
            self.evaluator.committed()
        for group in self._retired:
            group.close()
        self._retired.clear()

    def evaluated(self, results: dict[str, float]) -> None:
        """All replicas have evaluated the last applied step, which therefore is stable."""
        if self._pending is not None:
            self._pending.metrics.update({f"evaluation/{name}": value for name, value in results.items()})
        self.make_stable()

    def make_stable(self) -> None:
        """The last applied step can not be lost any more: tell of it."""
        step, self._pending = self._pending, None
        if step is None:
            return
        self.snapshots.stable(step.commit)
        report = StepReport(
            commit=step.commit,
            metrics=dict(step.metrics),
            replicas=step.replicas,
            samples=step.samples if step.phase == self.phases - 1 else 0,
            started_at_s=step.started_at_s,
            committed_at_s=step.committed_at_s,
            skipped=step.skipped,
            seconds=step.seconds,
            tuning=step.tuning,
            voted=step.voted,
            times=step.times,
            costs=dict(step.costs),
        )
        self.drop_published(self.link.published)
        self.unpublished.append(report)
        self.on_report(report)
        for act in step.on_stable:
            self._act(act)

    def _act(self, act: Callable[[], None]) -> None:
        """What the user does about a stable step; what it raises is no failure, whatever befalls the next one.

        Not all replicas do so at the same place, and who has joined since does not: a collective would wait for it.
        """
        before, self.mute = self.mute, OUTSIDE
        try:
            with self.page.during(Flying.SLOW, "step.on_commit"):
                act()
        except Exception as error:
            self._own_error = error
            raise
        finally:
            self.mute = before

    def resume(self, view: View) -> None:
        """The state of the view's commit is in place."""
        told = [report for report in self.unpublished if not any(fork.voids(report.commit) for fork in view.forks)]
        self.unpublished = deque(told, maxlen=KEPT_REPORTS)
        if self._pending is not None and any(fork.voids(self._pending.commit) for fork in view.forks):
            self._pending = None  # the run was sent back behind it, while this worker was out of reach
            self.snapshots.drop()
        if self._pending is None:
            return
        if self.link.worker in view.replaced:
            self._pending = None  # lost with the rest of this replica; the others have done it again
            self.snapshots.drop()
        elif self._pending.number < view.resume.step:
            self.make_stable()  # a later step was applied somewhere, so all had applied this one
        elif not self._pending.commit.same_state(view.resume):
            self._pending = None  # the rest of this replica was lost before it had applied it, and nobody else had
            self.snapshots.drop()

    def save(self, is_asked: bool) -> None:
        """Nobody may come to go on: what this replica holds, at rest at the door, is the last there will be."""
        try:
            self.snapshots.save(self.link.state.commit, self.replicas, is_asked)
        finally:
            self.link.saved()

    def why_left_out(self, index: int) -> str:
        """Why nobody computes this step, empty if it is computed."""
        view = self.view
        if view is None:
            return ""
        if any(number // self.phases == index for number in view.left_out):
            return POISONED
        first = index * self.phases
        return UNWANTED if is_left_out(first, view.forks) else ""

    def forget(self) -> None:
        """Another state is restored: what was applied and is not known to be stable, or not told yet, is void."""
        self._pending = None
        self.unpublished.clear()
        self.snapshots.drop()

    def drop_published(self, last: int) -> None:
        """The driver knows the reports up to step `last`."""
        while self.unpublished and self.unpublished[0].commit.step <= last:
            self.unpublished.popleft()
