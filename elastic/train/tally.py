"""Effect. What this replica's micro-batches have added in one attempt: each exactly once, with its weight."""

import math
from collections.abc import Sequence

import torch

from elastic.control.data import MicroBatch
from elastic.errors import StepMisuseError


class Tally:
    """The account of one attempt.

    Args:
        index: of the step, for messages. dealt: what this replica computes. samples: of the whole step.

    Attributes:
        done: micro-batches with samples that were back-propagated.
        weight: sum of weights in units of the step's samples, since they were last taken; total: of the whole attempt.
        weighted: number of micro-batches whose weight the user gave.
        position: of the micro-batch that is computed now, -1 before the first.
    """

    def __init__(self, index: int, dealt: Sequence[MicroBatch], samples: int) -> None:
        self._index, self._dealt, self._samples = index, dealt, samples
        self.done: list[MicroBatch] = []
        self.weight = self.total = 0.0
        self.weighted = 0
        self._loss, self._odd = 0.0, 0
        self._unread: list[tuple[int, float, torch.Tensor | float]] = []
        self.position = self._started = -1
        self._ended = 0

    def start(self) -> MicroBatch:
        """A backward begins; returns what it is of.

        Raises:
            StepMisuseError: outside of a micro-batch, or a second time for one.
        """
        if self._ended > self.position:
            raise StepMisuseError(
                f"step {self._index}: step.backward outside of `for batch in step`, or twice for a micro-batch"
            )
        micro_batch = self._dealt[self._ended]
        if self._started == self.position:
            raise StepMisuseError(
                f"step {self._index}: step.backward of micro-batch {micro_batch.number} failed and was called again; "
                "part of its gradient is summed already: let the exception end the run, or lower micro_batch_size"
            )
        self._started = self.position
        return micro_batch

    def share(self, micro_batch: MicroBatch, weight: float | torch.Tensor | None) -> float:
        """Weight of a micro-batch in units of the step's samples, so that its size stays near 1.

        Raises:
            StepMisuseError: the weight is not finite, or negative.
        """
        if weight is None or not micro_batch.count:
            return micro_batch.count / self._samples
        value = float(weight)
        if not (math.isfinite(value) and value >= 0):
            raise StepMisuseError(f"step {self._index}: a weight of {value}: it must be finite and not negative")
        self.weighted += 1
        return value / self._samples

    def add(self, micro_batch: MicroBatch, share: float, loss: torch.Tensor) -> None:
        """Its loss, a scalar, counts with this share."""
        self.weight += share
        self.total += share
        if share:
            value = loss.detach()
            is_ahead = value.is_cuda and type(value) is torch.Tensor
            self._unread.append((micro_batch.number, share, value.clone() if is_ahead else float(value)))

    @property
    def loss(self) -> float:
        """Weighted sum of losses."""
        self._read()
        return self._loss

    @property
    def odd(self) -> int:
        """Number + 1 of the first micro-batch whose loss is not finite, 0 without one."""
        self._read()
        return self._odd

    def _read(self) -> None:
        """Losses on a GPU are looked at late: to look at one waits for all that the device has been told."""
        unread, self._unread = self._unread, []
        for number, share, loss in unread:
            value = float(loss)
            self._odd = self._odd or (0 if math.isfinite(value) else number + 1)
            self._loss += share * value

    def end(self, micro_batch: MicroBatch) -> None:
        """Its backward is done."""
        self._ended += 1
        if micro_batch.count:
            self.done.append(micro_batch)

    def take(self) -> torch.Tensor:
        """(2,) float64: loss and weight so far, which then begin anew; for sums that are made elsewhere."""
        taken = torch.tensor([self.loss, self.weight], dtype=torch.float64)
        self._loss = self.weight = 0.0
        return taken

    def need_backward(self, micro_batch: MicroBatch) -> None:
        """The user's code has handed the current micro-batch back.

        Raises:
            StepMisuseError: there was no backward for it.
        """
        if self._ended <= self.position:
            raise StepMisuseError(f"step {self._index}: micro-batch {micro_batch.number} had no step.backward(loss)")

    def skip(self) -> None:
        """All samples count as consumed, whatever was computed."""
        self.done = [micro_batch for micro_batch in self._dealt if micro_batch.count]
