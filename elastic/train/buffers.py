"""Effect. A model's buffers within a step: every micro-batch starts from the committed ones, changes are averaged.

So the running statistics of a BatchNorm depend neither on how micro-batches are dealt nor on a failed attempt. A flag
is turned by any micro-batch that turns it. What a model does not keep in its state (persistent=False: tables and
caches, which each process makes for itself) is no concern of a step. A value that stays what it was is unchanged,
also where it is infinite, as in a mask; one that was not finite is the mean of what all micro-batches set in its place,
if that is not 0.
"""

import torch


class Buffers:
    """The buffers of a model's state; their changes are summed with the gradients.

    They are looked up by name each time, since a module may assign a new tensor instead of writing into the old one.

    Args:
        model: its buffers must exist when the first step begins.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._names = frozenset(buffers_of(model))
        self._committed = {name: b.detach().clone() for name, b in self._live().items()}
        self._sizes = [_numbers(b).numel() for b in self._committed.values()]
        self.size = sum(self._sizes)
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
            change = [_numbers(_difference(live[name], kept)) for name, kept in self._committed.items()]
            self._change.add_(torch.cat(change).cpu(), alpha=weight)
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
        parts = total.split(self._sizes)
        live = self._live()
        with torch.no_grad():
            for (name, kept), part in zip(self._committed.items(), parts, strict=True):
                live[name].copy_(_changed(kept, part.to(kept.device)))

    def _live(self) -> dict[str, torch.Tensor]:
        return {name: b for name, b in self._model.named_buffers() if name in self._names}


def buffers_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Those of its state, by name."""
    left_out = _not_persistent(model)
    return {name: buffer for name, buffer in model.named_buffers() if name not in left_out}


def _not_persistent(model: torch.nn.Module) -> set[str]:
    """Names of buffers that were registered so. Nothing but this private set of each module tells.

    `state_dict` does not: users may override it, and rename or copy what is in it.
    """
    named = ((place, name) for place, module in model.named_modules() for name in module._non_persistent_buffers_set)
    return {f"{place}.{name}" if place else name for place, name in named}


def _numbers(buffer: torch.Tensor) -> torch.Tensor:
    """(n,) float64: what is added up of it."""
    return _parts(buffer).detach().double().flatten()


def _parts(buffer: torch.Tensor) -> torch.Tensor:
    """Of a complex number both parts, in a last dimension."""
    return torch.view_as_real(buffer) if buffer.is_complex() else buffer


def _difference(live: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Of large integers only this goes through a float64."""
    if kept.dtype == torch.bool:
        return live ^ kept
    live, kept = _parts(live), _parts(kept)
    if not kept.is_floating_point():
        return live.long() - kept.long()  # of small integers the difference may be none
    is_same = (live == kept) | (live.isnan() & kept.isnan())
    return torch.where(is_same, 0.0, live - torch.where(kept.isfinite(), kept, 0.0))


def _changed(kept: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    """A buffer after a change, (n,) float64 as of `_numbers`."""
    if kept.dtype == torch.bool:
        return kept ^ (change.view_as(kept) != 0)
    parts = _parts(kept)
    change = change.view_as(parts)
    if not parts.is_floating_point():
        return (parts.long() + change.round().long()).to(parts.dtype)
    base = torch.where(parts.isfinite() | (change == 0), parts.double(), 0.0)
    total = base + change
    return torch.view_as_complex(total) if kept.is_complex() else total
