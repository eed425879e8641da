"""Effect. Where a heal's tensors land: memory that a joiner has touched before anybody waits for it.

The first touch of fresh memory costs more than the copy that follows (measured: 0.4 to 1 GB/s against 5 and more), so a
worker on its way to the door reserves what it will receive, while the others still train.
"""

import math
from collections.abc import Iterable

import torch

from elastic.train.sharded import local
from elastic.train.tree import Slot

_ALIGN_BYTES = 64


class Landing:
    """Memory for the tensors of one heal; what does not fit is allocated as usual."""

    def __init__(self) -> None:
        self._arena = torch.empty(0, dtype=torch.uint8)
        self._used_bytes = 0

    def reserve(self, tensors: Iterable[torch.Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Touch what this state will take."""
        self._arena, self._used_bytes = torch.zeros(expected_bytes(tensors, optimizers), dtype=torch.uint8), 0
        self._arena.fill_(1)  # zeros come from pages that nobody has touched yet

    def release(self) -> None:
        """Healed: what was received keeps its memory as long as somebody holds it."""
        self._arena, self._used_bytes = torch.empty(0, dtype=torch.uint8), 0

    def empty(self, slot: Slot) -> torch.Tensor:
        """Memory for one tensor, on the CPU."""
        dtype = getattr(torch, slot.dtype)
        size_bytes = math.prod(slot.shape) * dtype.itemsize
        end = self._used_bytes + _padded(size_bytes)
        if end > self._arena.numel() or not size_bytes:
            return slot.empty()
        begin, self._used_bytes = self._used_bytes, end
        return self._arena[begin : begin + size_bytes].view(dtype).view(slot.shape)


def expected_bytes(tensors: Iterable[torch.Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """What a state takes, each tensor padded; optimizers that have not stepped yet will have two moments."""
    sizes = [_padded(tensor.nbytes) for tensor in tensors]
    fresh = [optimizer for optimizer in optimizers if not optimizer.state]
    params = [
        local(param.detach()) for optimizer in fresh for group in optimizer.param_groups for param in group["params"]
    ]
    sizes += [2 * _padded(param.nbytes) + 2 * _ALIGN_BYTES for param in params]
    return sum(sizes)


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
