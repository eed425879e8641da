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
import math
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import torch

from elastic.control.data import Conservation, contribution, expected, hash32
from elastic.control.integrity import Account
from elastic.control.values import NOTHING_COMMITTED, CommitId
from elastic.errors import AttemptBroken, ConservationError, NonFiniteLossError, StepMisuseError
from elastic.train import rng
from elastic.train.amp import ScalerState
from elastic.train.flight import Flying

if TYPE_CHECKING:
    from elastic.train.replica import Replica

_HEAD = 7  # scalars in front of the tail: 4 of the conservation record, pause votes, skip votes, loss


class Step:
    """One attempt at one step, as the user's loop sees it.

    Attributes:
        index: number of the step, from 0.
        epoch: number of the epoch it belongs to.
        generation, attempt: which try this is.
        loss: mean loss over the whole global batch; known once the micro-batches are exhausted.
        samples, replicas: of the whole step.
        wants_pause: some replica asked for a stop at the end of this step.
    """

    def __init__(self, replica: "Replica", index: int, attempt: int, generation: int) -> None:
        self.index = index
        self.attempt = attempt
        self.generation = generation
        self.epoch = replica.batches.plan.epoch_of(index)
        self.loss = float("nan")
        self.replicas = replica.replicas
        self.samples = replica.batches.plan.samples_of(index)
        self.commit = NOTHING_COMMITTED
        self.wants_pause = False
        self.metrics: dict[str, float] = {}
        self.on_stable: list[Callable[[], None]] = []
        self.skipped = ""
        self.seconds: tuple[float, ...] = ()  # of a micro-batch, smoothed, by rank
        self.committed_at_s = 0.0
        self._replica = replica
        self._dealt = replica.dealt(index, attempt)
        self._done: list[int] = []
        self._loss_sum = 0.0
        self._digest = self._odd = 0  # what this replica says of itself: see control/integrity.py
        self._computed_before_s = 0.0
        self._position = self._started = -1  # of the micro-batch that is computed now, and of the last backward
        self._is_entered = self._is_reduced = self._is_applying = self._is_over = False
        self._scaler_states: list[ScalerState] = []
        self.started_at_s = time.time()

    # --- what the user calls ---

    @property
    def is_entered(self) -> bool:
        return self._is_entered

    @property
    def is_committed(self) -> bool:
        """Applied (or skipped) on this replica."""
        return self._is_over

    def __enter__(self) -> "Step":
        if self._is_entered:
            raise StepMisuseError(f"step {self.index} was entered twice: take a new one from session.steps")
        self._is_entered = True
        replica = self._replica
        replica.page.place(self.generation, self.index, self.attempt)
        replica.page.note(Flying.IN_BODY)
        self._computed_before_s = replica.page.computing_s
        self._digest = replica.watch.digest_before(self.index)
        replica.reducer.begin(replica.hands(self.index, self.attempt))
        replica.buffers.begin()
        self._scaler_states = [ScalerState(scaler) for scaler in replica.scalers]
        rng.seed_all(replica.seed, self.index, rng.BODY)
        return self

    def __iter__(self) -> Iterator[Any]:
        """This replica's micro-batches; when they are exhausted, all reductions have settled.

        Raises:
            AttemptBroken: (a signal) the attempt cannot complete; the `with` takes care of it.
        """
        self._need_entered("for batch in step")
        replica = self._replica
        for position, micro_batch in enumerate(self._dealt):
            if self._is_reduced:
                return
            replica.link.check()
            rng.seed_all(replica.seed, self.index, micro_batch.number)
            replica.page.note(Flying.COMPUTING, micro_batch.number)
            if position == len(self._dealt) - 1:
                replica.reducer.last_backward(micro_batch.number)
            self._position = position
            yield replica.batches.load(self.index, micro_batch)
            if len(self._done) <= position:
                raise StepMisuseError(f"step {self.index}: micro-batch {micro_batch.number} had no step.backward(loss)")
        if self._is_reduced:  # by step.skip
            return
        rng.seed_all(replica.seed, self.index, rng.BODY)
        self._reduce()

    def backward(self, loss: torch.Tensor, scaler: Any = None) -> None:
        """Back-propagate the mean loss of the current micro-batch, weighted by its share of the global batch.

        Args:
            loss: scalar, the mean over the micro-batch's samples.
            scaler: a GradScaler; the loss is scaled by it for the backward only.
        """
        if self._is_reduced or len(self._done) > self._position:
            raise StepMisuseError(
                f"step {self.index}: step.backward outside of `for batch in step`, or twice for a micro-batch"
            )
        replica, micro_batch = self._replica, self._dealt[len(self._done)]
        weight = micro_batch.count / self.samples
        if self._started == self._position:
            raise StepMisuseError(
                f"step {self.index}: step.backward of micro-batch {micro_batch.number} failed and was called again; "
                "part of its gradient is summed already: let the exception end the run, or lower micro_batch_size"
            )
        self._started = self._position
        value = float(loss.detach())
        if not math.isfinite(value):
            self._odd = self._odd or micro_batch.number + 1
        self._loss_sum += weight * value
        weighted = loss * weight
        (scaler.scale(weighted) if scaler is not None else weighted).backward()
        replica.buffers.after_micro_batch(weight)
        if replica.reducer.is_ordered:
            self._loss_sum, loss_term = 0.0, self._loss_sum
            beside = torch.cat([torch.tensor([loss_term], dtype=torch.float64), replica.buffers.take_change()])
            replica.reducer.end_micro_batch(micro_batch.number, beside)
        self._done.append(micro_batch.number)

    def apply(self, *optimizers: torch.optim.Optimizer, scheduler: Any = None, scaler: Any = None) -> None:
        """Update the parameters: atomically, after proof that the reductions held exactly this step.

        Args:
            optimizers: stepped in this order.
            scheduler: a learning-rate scheduler (or several), stepped after them.
            scaler: a GradScaler; unscales, skips on infinities, and is updated.

        Raises:
            AttemptBroken: (a signal) a freeze came first.
            StepMisuseError: called before the micro-batches were exhausted, or twice.
        """
        if not self._is_reduced or self._is_over:
            raise StepMisuseError(f"step {self.index}: step.apply once, after `for batch in step` is exhausted")
        replica = self._replica
        schedulers = [
            one for one in (scheduler if isinstance(scheduler, list | tuple) else [scheduler]) if one is not None
        ]
        replica.tracked.require(*optimizers, *schedulers, *([scaler] if scaler is not None else []))
        replica.page.note(Flying.APPLYING)
        self.commit = self._commit_id()
        with replica.link.applying(self.commit):
            self._is_applying = True  # from here on there is no way back
            if self.skipped:
                replica.buffers.restore()
                for state in self._scaler_states:
                    state.restore()
            else:
                for optimizer in optimizers:
                    scaler.step(optimizer) if scaler is not None else optimizer.step()
                if scaler is not None:
                    scaler.update()
                for one in schedulers:
                    one.step()
                replica.buffers.apply(self._buffer_change)
            self._is_over = True
            self.committed_at_s = time.time()
        replica.page.note(Flying.IN_BODY)
        replica.committed(self)

    def report(self, **metrics: float) -> None:
        """Metrics of this step; told to the driver once the step is stable, dropped if it is tried again."""
        self.metrics.update({name: float(value) for name, value in metrics.items()})

    def on_commit(self, act: Callable[[], None]) -> None:
        """Run `act` once this step is stable; not at all for an attempt that failed."""
        self.on_stable.append(act)

    def skip(self, reason: str) -> None:
        """Drop this step on all replicas: its samples count as consumed, no optimizer runs, the reason is recorded.

        Call it instead of iterating, or in the middle; the other replicas' `apply` then changes nothing.
        """
        self._need_entered("step.skip")
        if self._is_reduced:
            raise StepMisuseError(f"step {self.index}: step.skip after its reductions; decide before")
        self.skipped = reason
        self._done = [micro_batch.number for micro_batch in self._dealt]
        self._reduce()
        self.apply()

    # --- the end of the with ---

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        if kind is None:
            if not self._is_over:
                raise StepMisuseError(
                    f"step {self.index} was left without step.apply at {_place(sys._getframe(1))}: "
                    "continue, break and return do not end a step; call step.skip(reason) to drop it"
                )
            return False
        if self._is_applying or not self._is_retry(error):
            return False
        self._undo()
        return True

    def _is_retry(self, error: BaseException | None) -> bool:
        """Judged by state, not by type: any Exception while the generation is broken belongs to the failure."""
        if isinstance(error, AttemptBroken):
            return True
        if not isinstance(error, Exception):
            return False
        replica = self._replica
        return replica.link.is_broken_within(
            0 if isinstance(error, StepMisuseError | ConservationError | NonFiniteLossError) else replica.grace_s
        )

    def _undo(self) -> None:
        """Leave the state as it was at the door."""
        replica = self._replica
        replica.settle()
        replica.buffers.restore()
        for state in self._scaler_states:
            state.restore()

    # --- the reductions ---

    def _need_entered(self, what: str) -> None:
        if not self._is_entered:
            raise StepMisuseError(f"{what} of step {self.index} outside of its `with step:`")

    def _reduce(self) -> None:
        """Sum gradients and tail over replicas, and check that the sum is this step and nothing else."""
        replica = self._replica
        replica.page.note(Flying.REDUCING)
        tail = self._tail()
        if not finish(replica, tail):
            replica.link.broke(replica.reducer.error)
            raise AttemptBroken
        self._check_conservation(tail)
        if tail[_HEAD - 2] > 0 and not self.skipped:
            self.skipped = "another replica skipped it"
        replica.watch.check(self.index, self.attempt, tail[-replica.watch.size :], is_skipped=bool(self.skipped))
        self.seconds = replica.watch.seconds
        self.loss = float(tail[_HEAD - 1])
        self.wants_pause = bool(tail[_HEAD - 3] > 0)
        used = replica.reducer.used.numel()
        self._buffer_change = tail[_HEAD + used : -replica.watch.size]
        replica.reducer.hide_unused(tail[_HEAD : _HEAD + used])
        self._record_bytes = tail[: _HEAD + used].numpy().tobytes()
        self._is_reduced = True
        replica.reduced(self)

    def _identity(self) -> int:
        """32 bits that must be the same on all replicas of this attempt."""
        replica = self._replica
        return hash32(replica.incarnation, self.generation, self.index, self.attempt, replica.layout)

    def _tail(self) -> torch.Tensor:
        mine = contribution(self._replica.batches.plan, self.index, self._done, self._identity())
        votes = (self._replica.link.wants_pause(), bool(self.skipped))
        computed_s = self._replica.page.computing_s - self._computed_before_s
        account = Account(digest=self._digest, odd=self._odd, micro_batches=self._position + 1, compute_s=computed_s)
        return make_tail(self._replica, mine, votes, self._loss_sum, account)

    def _check_conservation(self, tail: torch.Tensor) -> None:
        replica = self._replica
        want = expected(replica.batches.plan, self.index, replica.replicas, self._identity())
        got = Conservation.from_words(tail[:4].tolist())
        if got != want:
            raise ConservationError(
                f"step {self.index}: the reduction holds {got}, but (seed, step) says {want}; no optimizer was run"
            )

    def _commit_id(self) -> CommitId:
        replica = self._replica
        lineage = hashlib.blake2b(replica.link.state.commit.lineage.encode() + self._record_bytes, digest_size=8)
        return CommitId(replica.incarnation, self.generation, self.attempt, self.index, lineage.hexdigest())


def make_tail(
    replica: "Replica", record: Conservation, votes: tuple[bool, bool], loss: float, account: Account
) -> torch.Tensor:
    """(7 + parameters + buffers + table of accounts,) float64: what travels beside the gradients."""
    head = torch.tensor([*record.words(), *votes, loss], dtype=torch.float64)
    return torch.cat([head, replica.reducer.used, replica.buffers.change, replica.watch.table(account)])


def finish(replica: "Replica", tail: torch.Tensor) -> bool:
    """Sum gradients and tail over replicas; False if a reduction failed."""
    if not replica.reducer.is_ordered:
        return replica.reducer.finish(tail)
    beside = torch.empty(1 + replica.buffers.size, dtype=torch.float64)
    has_ended = replica.reducer.finish(tail, beside)
    used = replica.reducer.used.numel()
    tail[_HEAD - 1] = beside[0]  # in the tail these two are zeros: only whole numbers are the same in any order
    tail[_HEAD + used : -replica.watch.size] = beside[1:]
    return has_ended


def close_loop(replica: "Replica", index: int) -> bool:
    """The closing reduction: once it completes, all replicas have applied the last step, `index` - 1.

    It has a step's shape, so that a replica that left the loop earlier than the others is told so, instead of gloo
    aborting the process.

    Raises:
        ConservationError: the replicas left the loop at different steps.
    """
    reducer, generation = replica.reducer, replica.view.generation if replica.view else 0
    identity = hash32("closing", replica.incarnation, generation, index)
    reducer.begin(replica.hands(index, 1))
    replica.buffers.begin()
    record = Conservation(samples=0, micro_batches=0, replicas_identity=identity, replicas=1)
    tail = make_tail(replica, record, (False, False), 0.0, Account(digest=replica.watch.digest()))
    if not finish(replica, tail):
        replica.link.broke(reducer.error)
        replica.settle()
        return False
    if int(tail[2]) != identity * replica.replicas or int(tail[0]) != 0:
        raise ConservationError(f"the replicas left the loop at different steps; this one before step {index}")
    try:
        replica.watch.check(index, 1, tail[-replica.watch.size :], is_skipped=False)
    except AttemptBroken:
        return False
    return True


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
