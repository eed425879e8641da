"""Effect. Sums gradients over replicas: fixed buckets, launched in index order, overlapping the last backward.

Not DistributedDataParallel: its buckets are laid out per process, so that a joiner's do not fit the survivors', and an
exception inside backward leaves it unusable. Here the layout follows from the parameters alone, every replica launches
every bucket in every attempt (zeros where it computed nothing), and an attempt ends only when each launched reduction
has completed or failed, since a late one would write into the next attempt's buckets.
"""

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch

from elastic.errors import StateError, StepMisuseError
from elastic.train.gloo import GlooGroup, have_ended
from elastic.train.nccl import LaneWork
from elastic.train.ordered import OrderedSums
from elastic.train.sharded import local, spread

BUCKET_BYTES = 16 << 20
_SLICE = timedelta(milliseconds=50)
_POLL_S = 0.00005


class Bucket:
    """Some parameters of one dtype and device, whose gradients are views into one flat tensor."""

    def __init__(self, params: list[torch.nn.Parameter]) -> None:
        self.params = params
        self.flat = torch.empty(0)
        self.views: list[torch.Tensor] = []
        self.grads: list[torch.Tensor] = []  # the views as gradients, placed as their parameters are
        self.missing = 0
        self.streams: set[Any] = set()  # of a GPU, on which gradients were added in the last backward
        self.allocate()

    def allocate(self) -> None:
        """Fresh memory: nothing that an abandoned reduction may still write to."""
        parts = [local(p.detach()) for p in self.params]
        sizes = [part.numel() for part in parts]
        self.flat = torch.zeros(sum(sizes), dtype=parts[0].dtype, device=parts[0].device)
        self.views = [_laid_out_like(p, part) for part, p in zip(self.flat.split(sizes), parts, strict=True)]
        self.grads = [spread(view, p) for view, p in zip(self.views, self.params, strict=True)]

    def note_stream(self) -> None:
        """A gradient has been added on the current stream: FSDP2 has others than autograd."""
        if self.flat.is_cuda:
            self.streams.add(torch.cuda.current_stream(self.flat.device))

    def gather(self) -> None:
        """Have the current stream wait for all that were noted: whoever sums it orders itself by that one alone."""
        if self.flat.is_cuda:
            here = torch.cuda.current_stream(self.flat.device)
            for other in self.streams - {here}:
                here.wait_stream(other)


class Reducer:
    """The gradients of one model, summed over the replicas of the current generation.

    Args:
        model: parameters that do not require gradients are left alone.
        launch: starts the sum of a tensor over replicas, or of some together; returns a work; raises if the group is
            broken.
        is_live: false once the attempt is lost; hooks then end the backward early.
        cut: frees pending reductions of the group.
        bucket_bytes: upper bound of a bucket at first, unless one parameter is larger.
        in_order: the current group, where sums must not depend on its size: each micro-batch's gradients are kept
            apart and added in one fixed order (`train/ordered.py`).
        go_together: whether these tensors are small enough to be summed in one message with what is summed beside them
            (`train/direct.py`); asked in each attempt, since it follows from the size of the group too.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        launch: Callable[..., Any],
        is_live: Callable[[], bool],
        cut: Callable[[], None],
        bucket_bytes: int = BUCKET_BYTES,
        in_order: Callable[[], GlooGroup] | None = None,
        go_together: Callable[[Sequence[torch.Tensor]], bool] = lambda tensors: False,
    ) -> None:
        self.params = [p for p in model.parameters() if p.requires_grad]
        if not self.params:
            raise StateError("the model has no parameter that requires a gradient")
        self._launch, self._is_live, self._cut = launch, is_live, cut
        self._in_order, self._first_bytes, self._go_together = in_order, bucket_bytes, go_together
        self.buckets: list[Bucket] = []
        self._ordered: OrderedSums | None = None
        self._cut_into(bucket_bytes)
        self._names = {p: name for name, p in model.named_parameters()}
        self._used = [0.0] * len(self.params)
        self._gpu = next((param.device for param in self.params if param.is_cuda), None)
        self._works: list[Any] = []
        self._next = 0
        self._is_last = False
        self._last_number = -1
        self._error: Exception | None = None
        self._is_active = self._is_together = self._is_dropping = False
        self._trainable = [(p, p.requires_grad) for p in model.parameters()]
        self.layout = self._digest_layout()
        for number, param in enumerate(self.params):
            param.register_post_accumulate_grad_hook(partial(self._on_gradient, number))

    def lay_out(self, bucket_bytes: int | None) -> None:
        """Between two attempts, on all replicas before the same step: buckets of another size; None: as at first.

        `layout` stays that of the first buckets: who joins is admitted before it knows what has been tuned since.
        """
        wanted = bucket_bytes or self._first_bytes
        if wanted == self.bucket_bytes:
            return
        for param in self.params:
            param.grad = None  # the old buckets go before the new ones come
        self.buckets, self._ordered = [], None
        self._cut_into(wanted)

    def _cut_into(self, bucket_bytes: int) -> None:
        self.bucket_bytes = bucket_bytes
        self.buckets = [Bucket(group) for group in _group(self.params, bucket_bytes)]
        place = {p: (i, j) for i, bucket in enumerate(self.buckets) for j, p in enumerate(bucket.params)}
        self._places = [place[p] for p in self.params]
        self._ordered = OrderedSums(len(self.buckets), self._in_order) if self._in_order is not None else None

    def _digest_layout(self) -> str:
        """Digest of names, shapes, dtypes and first buckets; must be the same on every replica."""
        lines = [
            f"{i} {self._names[p]} {tuple(view.shape)} {view.stride()} {p.dtype}"
            for i, b in enumerate(self.buckets)
            for p, view in zip(b.params, b.views, strict=True)
        ]
        lines += ["in order"] if self._ordered is not None else []
        return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()

    @property
    def is_ordered(self) -> bool:
        """Whether sums are made in one fixed order."""
        return self._ordered is not None

    @property
    def device(self) -> torch.device:
        """Where the gradients are, or the first of them."""
        return self.params[0].device

    @property
    def gpu(self) -> torch.device | None:
        """Where gradients are on a GPU, if some are."""
        return self._gpu

    @property
    def used(self) -> torch.Tensor:
        """(parameters,) float64: 1 where a gradient was computed in this attempt, to be summed over replicas."""
        return torch.tensor(self._used, dtype=torch.float64)

    def begin(self, hands: Sequence[range] = ()) -> None:
        """Start an attempt: zero gradients, nothing launched.

        Args:
            hands: numbers of the micro-batches of each rank; needed only where sums are made in order.

        Raises:
            StepMisuseError: a parameter was frozen or unfrozen since the model was prepared.
        """
        for param, was_trainable in self._trainable:
            if param.requires_grad is not was_trainable:
                raise StepMisuseError(
                    f"requires_grad of {self._names[param]} changed after session.prepare(model): freeze before it, or "
                    "keep it trainable, in a group with lr=0"
                )
        self._is_active = True
        self._works, self._next, self._is_last, self._error = [], 0, False, None
        if self._ordered is not None:
            self._ordered.begin(hands)
        is_whole = self._ordered is None and len(self.buckets) == 1  # small buckets are wanted in the backward
        self._is_together = is_whole and self._go_together(self._flats)
        self._used = [0.0] * len(self.params)
        for bucket in self.buckets:
            bucket.flat.zero_()
            bucket.missing = len(bucket.params)
            bucket.streams.clear()
            for param, grad in zip(bucket.params, bucket.grads, strict=True):
                param.grad = grad

    def last_backward(self, number: int = 0) -> None:
        """The next backward is the last, of micro-batch `number`: launch buckets as they become complete."""
        self._is_last, self._last_number = True, number

    @contextlib.contextmanager
    def dropping(self) -> Iterator[None]:
        """A backward inside leaves nothing behind: times zero is not enough, since gradients may be no numbers."""
        mine = [param.grad for param in self.params]
        self._is_dropping = True
        try:
            for param in self.params:
                param.grad = None  # autograd makes new ones instead of adding to the buckets
            yield
        finally:
            self._is_dropping = False
            for param, grad in zip(self.params, mine, strict=True):
                param.grad = grad

    def catch_up(self) -> None:
        """Wait until the device has computed what it was told to: this replica has not come to the sums before.

        A device that never does is a worker that hangs while it computes: the driver ends that.
        """
        if self._gpu is None:
            return
        event = torch.cuda.current_stream(self._gpu).record_event()
        while not event.query() and self._is_live():
            time.sleep(_POLL_S)

    def end_micro_batch(self, number: int, beside: torch.Tensor) -> None:
        """Where sums are made in order: keep the gradients of a micro-batch apart, and what is summed `beside` them."""
        if self._ordered is None:
            return
        self._ordered.beside.push(number, beside)
        if not self._is_last:  # else each bucket was taken when it was complete, or will be
            for one, bucket in zip(self._ordered.sums, self.buckets, strict=True):
                one.push(number, bucket.flat)
                bucket.flat.zero_()

    def finish(self, tail: torch.Tensor, beside: torch.Tensor | None = None) -> bool:
        """Launch what is left and `tail` after it, wait for all; False if any reduction failed.

        Args:
            tail: summed in place, in any order. beside: where the sum of what was given to `end_micro_batch` goes.
        """
        self._is_active = False
        self._pump(force=True)
        ordered = self._ordered
        if ordered is not None and beside is not None:
            self._start(lambda: ordered.beside.start(beside))
        self._start(lambda: self._launch(*(self._flats if self._is_together else ()), tail))
        for work in reversed(self._works):  # the tail first: gloo tells of a member that is gone, NCCL may not
            self._wait(work)
        if any(isinstance(work, LaneWork) for work in self._works):
            self._start(lambda: self._launch(torch.zeros(1)))  # all members have their sums, and none has cut before
            self._wait(self._works[-1])
        if ordered is not None and beside is not None:
            self._finish_in_order(ordered, beside)
        if self._error is None:
            self._works = []
        return self._error is None

    def _finish_in_order(self, ordered: OrderedSums, beside: torch.Tensor) -> None:
        """All blocks have arrived: add up this replica's share of the elements, and gather everybody's."""
        launched = len(self._works)
        for one in ordered.all:
            self._start(one.combine)
        for work in self._works[launched:]:
            self._wait(work)
        if self._error is None:
            for one, target in zip(ordered.all, (*self._flats, beside), strict=True):
                one.take(target)

    @property
    def error(self) -> str:
        return f"{type(self._error).__name__}: {self._error}" if self._error else ""

    def settle(self, timeout_s: float) -> bool:
        """After a broken attempt: have every launched reduction end; what does not, loses its memory.

        Returns:
            Whether all have ended. One that has not keeps its group: gloo may wait for ever in an operation whose
            connection was closed in the middle of a message (seen on torch 2.13).
        """
        self._is_active = self._is_last = False
        if not self._works:
            return True
        self._cut()
        has_ended = have_ended(self._works, timeout_s)
        if not has_ended:
            for bucket in self.buckets:
                bucket.allocate()
            if self._ordered is not None:
                self._ordered.drop()
        self._works = []
        return has_ended

    def scale(self, factor: float) -> None:
        """Multiply the summed gradients."""
        for bucket in self.buckets:
            bucket.flat.mul_(factor)

    def hide_unused(self, used: torch.Tensor) -> None:
        """Give parameters that no replica used the gradient None, as a single process would have, and others the sum.

        The user may have set a gradient to None (`zero_grad` in the loop's body) that another replica has computed.
        """
        for param, (i, j), count in zip(self.params, self._places, used.tolist(), strict=True):
            wanted = self.buckets[i].grads[j] if count else None
            if param.grad is not wanted:
                param.grad = wanted

    def _on_gradient(self, number: int, param: torch.nn.Parameter) -> None:
        """Runs once per parameter and micro-batch, so what is usual takes the shortest way."""
        if not self._is_active:
            return  # a backward outside of a step is the user's own
        if not self._is_live():
            raise _BackwardEndedError
        if self._is_dropping:
            return
        i, j = self._places[number]
        bucket = self.buckets[i]
        grad = param.grad
        if grad is None:
            return
        if grad is not bucket.grads[j]:
            self._take_back(param, grad, bucket, j)
        self._used[number] = 1.0
        if self._is_last:
            if i < self._next:
                raise StepMisuseError(
                    f"{self._names[param]} received a gradient after its bucket was reduced: call "
                    "step.backward once per micro-batch, on a loss that holds all of it"
                )
            bucket.missing -= 1
            bucket.note_stream()
            self._pump()

    def _take_back(self, param: torch.nn.Parameter, grad: torch.Tensor, bucket: Bucket, place: int) -> None:
        """The user set the gradient to None, or autograd has put a new one there: keep what is summed in the bucket."""
        if grad.is_sparse:
            raise StepMisuseError(f"the gradient of {self._names[param]} is sparse: use a dense one (sparse=False)")
        view = bucket.views[place]
        if local(grad).data_ptr() != view.data_ptr():
            with torch.no_grad():  # a new one of a DTensor may be a part of a sum yet: it becomes what the parameter is
                bucket.grads[place].add_(grad)
            param.grad = bucket.grads[place]

    def _pump(self, force: bool = False) -> None:
        while self._next < len(self.buckets) and (force or self.buckets[self._next].missing <= 0):
            self._start_bucket(self._next)
            self._next += 1

    @property
    def _flats(self) -> list[torch.Tensor]:
        return [bucket.flat for bucket in self.buckets]

    def _start_bucket(self, index: int) -> None:
        if self._is_together:
            return  # it goes with the tail
        flat = self.buckets[index].flat
        self.buckets[index].gather()
        if self._ordered is None:
            self._start(lambda: self._launch(flat))
            return
        one = self._ordered.sums[index]
        if self._is_last:
            one.push(self._last_number, flat)
        self._start(lambda: one.start(flat))

    def _start(self, launch: Callable[[], Any]) -> None:
        if self._error is None:
            try:
                self._works.append(launch())
            except RuntimeError as error:
                self._fail(error)

    def _wait(self, work: Any) -> None:
        """Wait in slices: an attempt that was frozen meanwhile is not worth waiting for."""
        while self._error is None:
            had_ended = work.is_completed()  # asked before: it may end between a slice's end and the question
            try:
                work.wait(_SLICE)
                return
            except RuntimeError as error:
                if had_ended or not self._is_live():
                    self._fail(error)
                    return

    def _fail(self, error: Exception) -> None:
        """Keep the first error and free the neighbours at once: they wait for this rank."""
        if self._error is None:
            self._error = error
            with contextlib.suppress(OSError):
                self._cut()


class _BackwardEndedError(RuntimeError):
    """Raised inside backward to end it early once its attempt is lost; judged by state, never shown."""


def _laid_out_like(param: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A view with the parameter's own strides where it is dense (channels-last, transposed), else row-major."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(param.shape, param.stride(), strict=True))
    is_dense = param.numel() > 0 and reach == param.numel()
    return part.as_strided(param.shape, param.stride(), part.storage_offset()) if is_dense else part.view_as(param)


def _group(params: Iterable[torch.nn.Parameter], bucket_bytes: int) -> list[list[torch.nn.Parameter]]:
    """Reverse order, since gradients come in it; a new group at each change of dtype or device."""
    groups: list[list[torch.nn.Parameter]] = []
    filled = 0
    for param in reversed(list(params)):
        size = local(param.detach()).numel() * param.element_size()
        same = bool(groups) and (groups[-1][0].dtype, groups[-1][0].device) == (param.dtype, param.device)
        if not same or filled + size > bucket_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(param)
        filled += size
    return groups
