"""Effect. A model's buffers within a step: every micro-batch starts from the committed ones, changes are averaged.

So the running statistics of a BatchNorm depend neither on how micro-batches are dealt nor on a failed attempt.
"""

import torch


class Buffers:
    """The floating-point and integer buffers of a model; their changes are summed with the gradients.

    They are looked up by name each time, since a module may assign a new tensor instead of writing into the old one.

    Args:
        model: its buffers must exist when the first step begins.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._committed = {name: b.detach().clone() for name, b in self._live().items()}
        self.size = sum(b.numel() for b in self._committed.values())
        self._change = torch.zeros(self.size, dtype=torch.float64)

    def accept(self) -> None:
        """What the model holds now is committed (at the door of a step, or after healing)."""
        self._committed = {name: b.detach().clone() for name, b in self._live().items()}

    def restore(self) -> None:
        """Back to what is committed."""
        live = self._live()
        with torch.no_grad():
            for name, kept in self._committed.items():
                live[name].copy_(kept)

    def begin(self) -> None:
        """Start an attempt at the door of a step: what the model holds there is committed."""
        if self.size:
            self.accept()
            self._change.zero_()

    def after_micro_batch(self, weight: float) -> None:
        """Add this micro-batch's weighted change, and go back to what is committed."""
        if not self.size:
            return
        live = self._live()
        if weight:
            change = [(live[name] - kept).double().flatten() for name, kept in self._committed.items()]
            self._change.add_(torch.cat(change), alpha=weight)
        self.restore()

    @property
    def change(self) -> torch.Tensor:
        """(size,) float64: this replica's weighted changes, to be summed over replicas."""
        return self._change

    def take_change(self) -> torch.Tensor:
        """(size,) float64: the change so far, which then begins anew; for sums that are made elsewhere."""
        taken, self._change = self._change, torch.zeros(self.size, dtype=torch.float64)
        return taken

    def apply(self, total: torch.Tensor) -> None:
        """Commit the summed changes.

        Args:
            total: (size,) float64, summed over replicas.
        """
        if not self.size:
            return
        parts = total.split([b.numel() for b in self._committed.values()])
        live = self._live()
        with torch.no_grad():
            for (name, kept), part in zip(self._committed.items(), parts, strict=True):
                change = part.view_as(kept)
                if kept.is_floating_point():
                    live[name].copy_(kept.double() + change)
                else:
                    live[name].copy_(kept + change.round().to(kept.dtype))

    def _live(self) -> dict[str, torch.Tensor]:
        return {n: b for n, b in self._model.named_buffers() if b.dtype != torch.bool and not b.is_complex()}
