"""Effect. A model's buffers within a step: every micro-batch starts from the committed ones, changes are averaged.

So the running statistics of a BatchNorm depend neither on how micro-batches are dealt nor on a failed attempt.
"""

import torch


class Buffers:
    """The floating-point and integer buffers of a model; their changes are summed with the gradients.

    Args:
        model: its buffers must exist when the first step begins.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._live = [b for b in model.buffers() if b.dtype != torch.bool and not b.is_complex()]
        self._committed = [b.detach().clone() for b in self._live]
        self.size = sum(b.numel() for b in self._live)
        self._change = torch.zeros(self.size, dtype=torch.float64)

    def accept(self) -> None:
        """What the model holds now is committed (at the door of a step, or after healing)."""
        for kept, live in zip(self._committed, self._live, strict=True):
            kept.copy_(live)

    def restore(self) -> None:
        """Back to what is committed."""
        with torch.no_grad():
            for kept, live in zip(self._committed, self._live, strict=True):
                live.copy_(kept)

    def begin(self) -> None:
        """Start an attempt at the door of a step: what the model holds there is committed."""
        self.accept()
        self._change.zero_()

    def after_micro_batch(self, weight: float) -> None:
        """Add this micro-batch's weighted change, and go back to what is committed."""
        if not self.size:
            return
        change = [(live - kept).double().flatten() for kept, live in zip(self._committed, self._live, strict=True)]
        self._change.add_(torch.cat(change), alpha=weight)
        self.restore()

    @property
    def change(self) -> torch.Tensor:
        """(size,) float64: this replica's weighted changes, to be summed over replicas."""
        return self._change

    def apply(self, total: torch.Tensor) -> None:
        """Commit the summed changes.

        Args:
            total: (size,) float64, summed over replicas.
        """
        if not self.size:
            return
        parts = total.split([b.numel() for b in self._live])
        with torch.no_grad():
            for kept, live, part in zip(self._committed, self._live, parts, strict=True):
                change = part.view_as(live) if live.is_floating_point() else part.round().view_as(live)
                live.copy_(kept.double() + change if live.is_floating_point() else kept + change.to(live.dtype))
