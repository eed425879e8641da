"""Effect. Where a heal's tensors land: memory that a joiner has touched before anybody waits for it.

The first touch of fresh memory costs more than the copy that follows (measured: 0.4 to 1 GB/s against 5 and more), so a
worker on its way to the door reserves what it will receive, while the others still train. Where what it holds is of no
worth, state lands in its own tensors, and nothing is left to copy.
"""

import math
from collections.abc import Iterable, Mapping

import torch

from elastic.train.sharded import local
from elastic.train.tree import Slot

_ALIGN_BYTES = 64
_COUNT_BYTES = 4  # as that of a parameter's steps


class Landing:
    """Memory for the tensors of one heal, a piece of its own for each; what does not fit is allocated as usual.

    What one object keeps of it holds no other's memory, and saving it writes no other's bytes.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[torch.Tensor]] = {}  # by bytes
        self._lent: dict[str, torch.Tensor] = {}  # by path

    def reserve(self, tensors: Iterable[torch.Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Touch what this state will take."""
        self._free = {}
        for size_bytes in _expected(tensors, optimizers):
            piece = torch.zeros(size_bytes, dtype=torch.uint8)
            piece.fill_(1)  # zeros come from pages that nobody has touched yet
            self._free.setdefault(size_bytes, []).append(piece)

    def over(self, lent: Mapping[str, torch.Tensor]) -> "Landing":
        """For one heal: state lands in these tensors of the receiver itself, by path, where it fits; else as usual."""
        landing = Landing()
        landing._free, landing._lent = self._free, dict(lent)
        return landing

    def release(self) -> None:
        """Healed: what was received keeps its memory as long as somebody holds it."""
        self._free = {}

    def empty(self, slot: Slot) -> torch.Tensor:
        """Memory for one tensor, on the CPU."""
        dtype, lent = getattr(torch, slot.dtype), self._lent.pop(slot.path, None)
        if lent is not None and (lent.dtype, tuple(lent.shape)) == (dtype, slot.shape):
            return lent
        pieces = self._free.get(math.prod(slot.shape) * dtype.itemsize)
        return pieces.pop().view(dtype).view(slot.shape) if pieces else slot.empty()


def expected_bytes(tensors: Iterable[torch.Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """What a state takes, each tensor padded."""
    return sum(_padded(size_bytes) for size_bytes in _expected(tensors, optimizers))


def _expected(tensors: Iterable[torch.Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> list[int]:
    """Bytes of each tensor of a state; one that has not stepped will have two moments, and a count or two."""
    fresh = [optimizer for optimizer in optimizers if not optimizer.state]
    params = [
        local(param.detach()) for optimizer in fresh for group in optimizer.param_groups for param in group["params"]
    ]
    moments = [size for param in params for size in (param.nbytes, param.nbytes, _COUNT_BYTES, _COUNT_BYTES)]
    return [tensor.nbytes for tensor in tensors if tensor.nbytes] + [size for size in moments if size]


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
