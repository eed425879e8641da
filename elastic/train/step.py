"""Effect. One attempt at one step: `with step:` is a transaction, committed by all replicas or tried again.

    for step in session.steps(batches, max_steps=1000):
        with step:
            for batch in step:                      # this replica's micro-batches
                step.backward(loss_fn(model, batch))
            step.apply(optimizer)                   # after all reductions, before any freeze
            step.report(loss=step.loss)

The `with` swallows a broken collective, the `for` yields the same step again in the next generation.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import torch

from elastic.control.data import Conservation, contribution, expected, hash32
from elastic.control.flight import Flying
from elastic.control.integrity import Account
from elastic.control.values import NOT_TIMED, NOTHING_COMMITTED, CommitId
from elastic.errors import AttemptBroken, ConservationError, StepMisuseError
from elastic.train import rng
from elastic.train.amp import ScalerState, agree_on_infinities
from elastic.train.tail import Tail
from elastic.train.tally import Tally
from elastic.train.updating import GroupValues, listed, update

if TYPE_CHECKING:
    from elastic.train.replica import Replica

OUTSIDE = (
    "a collective can be tried again after a failure only inside `with step:` before step.apply, or in an evaluation "
    "(session.evaluate_every); wrappers that talk when they are built, like DistributedDataParallel, are not needed"
)
UNWANTED = "left out, as elastic rewind was told"
POISONED = "left out, since one of its micro-batches ended all who computed it"
SKIPPED_ELSEWHERE = "another replica skipped it"
_UNEQUAL = (
    "replicas may compute unequal numbers of micro-batches, so one among them would wait for ever: pass "
    "equal_rounds=True to session.batches, or talk after `for batch in step`"
)


class Step:
    """One attempt at one step, as the user's loop sees it.

    Attributes:
        index: number of the step, from 0.
        phase: which update of the step this is, from 0; always 0 unless session.steps was given `phases`.
        number: number of the update: index * phases + phase.
        epoch: number of the epoch it belongs to.
        rate_factor: what learning rates are multiplied with in its optimizers.
        generation, attempt: which try this is.
        loss: weighted mean loss over the whole global batch; known once the micro-batches are exhausted, nan in a step
            that is skipped.
        samples, replicas: of the whole step. dealt: the micro-batches of it that this replica computes.
        wants_pause: some replica asked for a stop at the end of this step.
        is_staged: its state is to be copied into the memory of the nodes.
        is_compared: the state that it leads to is to be compared with that of all other replicas.
    """

    def __init__(self, replica: "Replica", number: int, attempt: int, generation: int) -> None:
        self.number = number
        self.index, self.phase = divmod(number, replica.phases)
        self.attempt = attempt
        self.generation = generation
        self.epoch = replica.batches.plan.epoch_of(replica.cursor.samples)
        self.loss = float("nan")
        self.replicas = replica.replicas
        self._micro_batches = replica.batches.plan.cut(replica.cursor.samples, self.replicas)
        self.samples = sum(micro_batch.count for micro_batch in self._micro_batches)
        self._pace = replica.next_pace(self.index)
        self.rate_factor = self._pace.factor(self.index)
        self.tuning = self._pace.tuning
        self.commit = NOTHING_COMMITTED
        self.wants_pause = self.is_staged = self.is_compared = False
        self.metrics: dict[str, float] = {}
        self.on_stable: list[Callable[[], None]] = []
        self.skipped = ""
        self.seconds: tuple[float, ...] = ()  # of a micro-batch, smoothed, by rank of the worker
        self.voted = False  # all replicas have shown that they held the same bits before it
        self.committed_at_s, self.times = 0.0, NOT_TIMED
        self.costs: dict[str, float] = {}  # seconds that callbacks took around it, by name
        self._replica = replica
        self.dealt = replica.dealt(self._micro_batches, number, attempt)
        self._hand = replica.hand(number, attempt)
        self._tally = Tally(self.index, self.dealt, self.samples)
        self._digest = 0  # what this replica says of itself: see control/integrity.py
        self._computed_before_s = 0.0
        self._is_entered = self._is_reduced = self._is_applying = self._is_over = self._may_have_traces = False
        self._scaler_states: list[ScalerState] = []
        self._group_values = GroupValues(replica.tracked.optimizers)
        self.started_at_s = time.time()

    # --- what the user calls ---

    @property
    def is_entered(self) -> bool:
        return self._is_entered

    @property
    def is_committed(self) -> bool:
        """Applied (or skipped) on this replica."""
        return self._is_over

    @property
    def is_last_phase(self) -> bool:
        """Its samples are consumed by this update, and no other one of the step follows."""
        return self.phase == self._replica.phases - 1

    def __enter__(self) -> "Step":
        if self._is_entered:
            raise StepMisuseError(f"step {self.index} was entered twice: take a new one from session.steps")
        self._is_entered = True
        replica = self._replica
        replica.torn = self
        replica.mute = ""
        replica.page.place(self.generation, self.number, self.attempt)
        replica.page.note(Flying.IN_BODY)
        self._computed_before_s = replica.page.computing_s
        self._digest = replica.watch.digest_before(self.number)
        replica.reducer.begin(replica.hands(len(self._micro_batches), self.number, self.attempt))
        replica.buffers.begin()
        self._scaler_states = self._states_of_scalers()
        rng.seed_all(replica.seed, self.number, rng.BODY)
        return self

    def __iter__(self) -> Iterator[Any]:
        """This replica's micro-batches; when they are exhausted, all reductions have settled.

        Raises:
            AttemptBroken: (a signal) the attempt cannot complete; the `with` takes care of it.
        """
        self._need_entered("for batch in step")
        replica = self._replica
        replica.mute = "" if replica.batches.equal_rounds or replica.width > 1 else _UNEQUAL
        for position, micro_batch in enumerate(self.dealt):
            if self._is_reduced:
                return
            replica.link.check()
            replica.page.note(Flying.FETCHING, micro_batch.number)
            batch = replica.batches.take(micro_batch, self._hand, partial(replica.forecast, self, position))
            rng.seed_all(replica.seed, self.number, micro_batch.number)
            replica.page.note(Flying.COMPUTING, micro_batch.number)
            if position == len(self.dealt) - 1:
                replica.reducer.last_backward(micro_batch.number)
            self._tally.position = position
            if replica.buffers.size:
                replica.buffers.restore()  # a forward beside the counted ones, for an accuracy, say, has changed them
            yield batch
            if not self._is_reduced:
                self._tally.need_backward(micro_batch)
        if self._is_reduced:  # by step.skip
            return
        replica.mute = ""
        self._reduce()

    def backward(self, loss: torch.Tensor, scaler: Any = None, *, weight: float | torch.Tensor | None = None) -> None:
        """Back-propagate the mean loss of the current micro-batch, weighted by its share of the global batch.

        Args:
            loss: scalar, the mean over what the micro-batch's weight counts; its samples by default.
            scaler: a GradScaler; the loss is scaled by it for the backward only.
            weight: what counts instead of samples, e.g. tokens; the sum over all replicas need not be known. Give it
                for all micro-batches of a step or for none. With 0 the micro-batch counts for nothing.

        Raises:
            StepMisuseError: outside of a micro-batch, a second time for one, or with a weight below 0.
        """
        replica, tally = self._replica, self._tally
        if self._is_reduced:
            raise StepMisuseError(f"step {self.index}: step.backward outside of `for batch in step`")
        micro_batch = tally.start()
        share = tally.share(micro_batch, weight)
        tally.add(micro_batch, share, loss)
        is_common = replica.batches.equal_rounds or replica.width > 1
        if share or is_common:  # where workers talk in a backward, all must run it
            weighted = loss * share
            with nullcontext() if share else replica.reducer.dropping():
                (scaler.scale(weighted) if scaler is not None else weighted).backward()
        replica.buffers.after_micro_batch(share)
        if replica.reducer.is_ordered:
            beside = torch.cat([tally.take(), replica.buffers.take_change()])
            replica.reducer.end_micro_batch(micro_batch.number, beside)
        tally.end(micro_batch)

    def apply(self, *optimizers: torch.optim.Optimizer, scheduler: Any = None, scaler: Any = None) -> None:
        """Update the parameters: atomically, after proof that the reductions held exactly this step.

        After a skip, here or on another replica, nothing is updated, and the call may be left out.

        Args:
            optimizers: stepped in this order.
            scheduler: a learning-rate scheduler (or several), stepped after them.
            scaler: a GradScaler; unscales, skips on infinities, and is updated.

        Raises:
            AttemptBroken: (a signal) a freeze came first.
            StepMisuseError: called before the micro-batches were exhausted, or twice.
        """
        if self._is_over and self.skipped:
            self._leave_no_trace()
            return
        if not self._is_reduced or self._is_over:
            raise StepMisuseError(f"step {self.index}: step.apply once, after `for batch in step` is exhausted")
        replica = self._replica
        schedulers = listed(scheduler)
        replica.tracked.require(*optimizers, *schedulers, *([scaler] if scaler is not None else []))
        replica.tracked.refuse_grown(optimizers)
        if replica.has_pending_notes():
            raise StepMisuseError(f"step {self.index}: wait for your asynchronous collectives before step.apply")
        if scaler is not None and replica.width > 1 and not self.skipped:
            agree_on_infinities(scaler, optimizers, partial(replica.any_inside, what="infinities", number=self.number))
        replica.mute = OUTSIDE
        with replica.meter.stalling():
            replica.snapshots.fence()
        if replica.has_to_confirm:
            replica.confirm()
        replica.page.note(Flying.AT_DOOR)  # while there is no driver, or the next generation decides, nobody is late
        self.commit = self._commit_id()
        with replica.link.applying(self.commit, self._agree if replica.width > 1 else None):
            replica.page.note(Flying.APPLYING)
            self._is_applying = True  # from here on there is no way back
            if self.skipped:
                self._back_to_the_door()
            self._tell_resize(() if self.skipped else optimizers)
            if not self.skipped:
                update(optimizers, schedulers, scaler, self.rate_factor)
                replica.buffers.apply(self._buffer_change)
            replica.cursor.move(self.samples if self.is_last_phase else 0, self._pace, self.is_compared)
            if self.is_last_phase:
                replica.batches.commit()
            self._is_over = True
            self.committed_at_s = time.time()
        self.times = replica.meter.lap(self.committed_at_s)
        replica.page.committed()
        replica.page.note(Flying.OUTSIDE)  # what the user does yet inside the `with`, a save for one, is no part of it
        replica.committed(self)

    def report(self, **metrics: float) -> None:
        """Metrics of this step; told to the driver once the step is stable, dropped if it is tried again."""
        self.metrics.update({name: float(value) for name, value in metrics.items()})

    def on_commit(self, act: Callable[[], None]) -> None:
        """Run `act` once this step is stable; not at all for an attempt that failed."""
        self.on_stable.append(act)

    def skip(self, reason: str) -> None:
        """Drop this step on all replicas: its samples count as consumed, no optimizer runs, the reason is recorded.

        Call it instead of iterating, or in the middle; `apply` then changes nothing on any replica.
        """
        self._need_entered("step.skip")
        if self._is_reduced:
            raise StepMisuseError(f"step {self.index}: step.skip after its reductions; decide before")
        if self._replica.batches.equal_rounds:
            raise StepMisuseError(
                f"step {self.index}: step.skip with equal_rounds=True would leave others waiting for a collective"
            )
        self.leave_out(str(reason) or "no reason was given")

    def leave_out(self, reason: str) -> None:
        """A skip that all replicas make at once."""
        self.skipped = reason
        self._tally.skip()
        self._replica.mute = ""
        self._reduce()
        self.apply()
        self._may_have_traces = True

    def _leave_no_trace(self) -> None:
        """Of what was done here after the skip: the others go back to the door where they apply, after the same code.

        What follows `step.apply` stays: all have run it.
        """
        if self._may_have_traces:
            self._may_have_traces = False
            self._back_to_the_door()

    # --- the end of the with ---

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        self._replica.mute = OUTSIDE
        self._replica.page.note(Flying.OUTSIDE)
        if kind is None and self.skipped:
            error = self._drop()
        elif kind is None and not self._is_over:
            raise StepMisuseError(
                f"step {self.index} was left without step.apply at {_place(sys._getframe(1))}: "
                "continue, break and return do not end a step; call step.skip(reason) to drop it"
            )
        is_failure = error is not None and not self._is_applying and self._replica.is_failure(error)
        if is_failure:
            self._undo()
        if is_failure or self._is_over:
            self._replica.torn = None
        return is_failure

    def _drop(self) -> BaseException | None:
        """A step was skipped, and the user may have called no apply, or unscaled; returns what failed, if it did."""
        try:
            self.apply()
            for state in self._scaler_states:
                state.restore()
        except AttemptBroken as signal:
            return signal
        finally:
            self._replica.page.note(Flying.OUTSIDE)
        return None

    def _undo(self) -> None:
        """Leave the state as it was at the door."""
        self._replica.settle()
        self._back_to_the_door()

    def _back_to_the_door(self) -> None:
        """What may have changed since, other than by an update."""
        self._replica.buffers.restore()
        self._group_values.restore()
        for state in self._scaler_states:
            state.restore()

    def _tell_resize(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Whatever `on_resize` changes is part of the state from this step on, also where it is skipped."""
        replica = self._replica
        if not replica.is_resized(self._pace):
            return
        replica.buffers.restore()
        replica.tell_resize(self.index, self._pace, optimizers)
        replica.buffers.accept()
        self._scaler_states = self._states_of_scalers()
        self._group_values = GroupValues(replica.tracked.optimizers)

    def _states_of_scalers(self) -> list[ScalerState]:
        return [ScalerState(scaler, self._replica.reducer.device) for scaler in self._replica.scalers]

    # --- the reductions ---

    def _need_entered(self, what: str) -> None:
        if not self._is_entered:
            raise StepMisuseError(f"{what} of step {self.index} outside of its `with step:`")

    def _reduce(self) -> None:
        """Sum gradients and tail over replicas, and check that the sum is this step and nothing else."""
        replica = self._replica
        replica.reducer.catch_up()
        replica.page.note(Flying.REDUCING)
        row = self._tail().row()
        tail = replica.summed(row)
        if tail is None:
            replica.tell_broken()
            raise AttemptBroken
        self._check_conservation(tail.record)
        is_dropped, self.is_compared = replica.each_inside(
            (tail.skips > 0, tail.compares > 0), "reduction", self.number
        )
        if is_dropped and not self.skipped:  # a skip of one shard is a skip of all
            self.skipped = SKIPPED_ELSEWHERE
        self.voted = replica.watch.check(self.number, self.attempt, tail.table, is_skipped=bool(self.skipped))
        if self.is_last_phase:
            replica.exchange(self, self._micro_batches)
        self.seconds = replica.watch.seconds if replica.width == 1 else ()  # of all its workers: see `_agree`
        self.loss, self._buffer_change = tail.loss if not self.skipped else float("nan"), tail.buffers
        self.wants_pause = tail.pauses > 0
        self.is_staged = tail.stages > 0 or self.wants_pause
        if tail.weighted and not self.skipped:
            self._divide(tail)
        replica.reducer.hide_unused(tail.used)
        self._record_bytes = Tail.identity_bytes(row, len(replica.reducer.params))
        if replica.width > 1:  # what all shards of a step have in common
            self._record_bytes = repr((self._place, tail.record.samples, tail.record.micro_batches)).encode()
        self._is_reduced = True
        replica.has_talked_on_gpu = False  # what was said before is in what all have summed
        replica.page.note(Flying.IN_BODY)
        replica.reduced(self)
        rng.seed_all(replica.seed, self.number, rng.BODY)  # not all replicas have run acts of the last step meanwhile

    def _divide(self, tail: Tail) -> None:
        """From weighted sums to the weighted mean: only now is it known what the weights add up to."""
        if tail.weighted != len(self._micro_batches):
            raise StepMisuseError(f"step {self.index}: give step.backward a weight for every micro-batch, or for none")
        if not tail.weight:
            raise StepMisuseError(f"step {self.index}: all weights are 0: call step.skip(reason) where nothing counts")
        self._replica.reducer.scale(1 / tail.weight)
        self.loss = tail.loss / tail.weight
        self._buffer_change = tail.buffers / tail.weight

    @cached_property
    def _identity(self) -> int:
        """32 bits that must be the same on all replicas of this attempt."""
        replica = self._replica
        return hash32(*self._place, replica.layout, replica.reducer.bucket_bytes, self.rate_factor)

    @property
    def _place(self) -> tuple[int, int, int, int]:
        return (self._replica.incarnation, self.generation, self.number, self.attempt)

    def _agree(self) -> bool:
        """Whether all workers of this replica have come to apply; if that stays open, the next generation decides."""
        page = self._replica.page
        page.note(Flying.REDUCING)
        try:
            watch, votes = self._replica.watch, (self.wants_pause, self.is_staged)
            weight = 0.0 if self.skipped else self._tally.total  # one may have skipped what the others computed
            agreed = self._replica.agree(self.commit, weight, votes, watch.microseconds)
            self.wants_pause, self.is_staged = agreed.votes
            self.seconds = watch.learn(agreed.figures)
        except AttemptBroken:
            return False
        finally:
            page.note(Flying.AT_DOOR)
        return True

    def _tail(self) -> Tail:
        replica, tally = self._replica, self._tally
        computed_s = replica.page.computing_s - self._computed_before_s
        account = Account(digest=self._digest, odd=tally.odd, micro_batches=tally.position + 1, compute_s=computed_s)
        return Tail(
            record=contribution(replica.batches.plan, tally.done, self._identity),
            pauses=float(replica.link.wants_pause()),
            skips=float(bool(self.skipped)),
            stages=replica.snapshots.vote(self),
            compares=replica.watch.vote(self.number, time.monotonic()),
            loss=tally.loss,
            weight=tally.weight,
            weighted=float(tally.weighted),
            used=replica.reducer.used,
            buffers=replica.buffers.change,
            table=replica.watch.table(account),
        )

    def _check_conservation(self, got: Conservation) -> None:
        replica = self._replica
        want = expected(replica.batches.plan, replica.cursor.samples, replica.replicas, self._identity)
        if got != want:
            raise ConservationError(
                f"step {self.index}: the reduction holds {got}, but seed, cursor and learning-rate rule say {want}; "
                "no optimizer was run"
            )

    def _commit_id(self) -> CommitId:
        replica = self._replica
        lineage = hashlib.blake2b(replica.link.state.commit.lineage.encode() + self._record_bytes, digest_size=8)
        return CommitId(replica.incarnation, self.generation, self.attempt, self.number, lineage.hexdigest())


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
