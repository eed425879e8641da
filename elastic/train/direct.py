"""Effect. Sums of small tensors over a gloo group, in one round: all send all they have to everybody, and add it up.

Gloo's own sum goes around a ring, in several messages for each other rank, one after the other; that pays where there
is much to send. For little, each message costs more than what is in it. `python -m benchmarks.summing` compares both,
and its result, `benchmarks/results/summing.json`, is where the limits below come from.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

MESSAGE_BYTES = 512 << 10
SENT_BYTES = 1 << 20
_ALIGNED_BYTES = 16  # of the largest element


def is_small(size_bytes: int, ranks: int) -> bool:
    """Whether each of so many ranks had better send so much to every other one at once than around a ring."""
    return ranks > 1 and size_bytes <= MESSAGE_BYTES and size_bytes * (ranks - 1) <= SENT_BYTES


def can_go_together(tensors: Sequence[torch.Tensor], ranks: int) -> bool:
    """Whether these are in this machine's memory, and small in all."""
    return all(one.device.type == "cpu" for one in tensors) and is_small(_ends(tensors)[-1], ranks)


def to_everybody(group: Any, received: torch.Tensor, sent: torch.Tensor) -> Any:
    """Start to send (elements,) to all ranks, and to receive theirs, (ranks, elements); returns a work."""
    counts = [sent.numel()] * group.size()
    return group.alltoall_base(received.view(-1), sent.repeat(group.size()), counts, counts)


class SumTogether:
    """A work that sums tensors over all ranks, in place, in rank order: so all get the same bits.

    Nothing is written to them but by `wait`, so one that is abandoned leaves them alone.

    Args:
        group: the process group. tensors: contiguous, of the same sizes and dtypes on all ranks.
    """

    def __init__(self, group: Any, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors, self._ranks, self._ends = tensors, group.size(), _ends(tensors)
        sent = torch.zeros(self._ends[-1], dtype=torch.uint8)
        for mine, tensor in zip(self._cut(sent), tensors, strict=True):
            mine.copy_(tensor.view(-1))
        self._received = torch.empty(self._ranks, sent.numel(), dtype=torch.uint8)
        self._work = to_everybody(group, self._received, sent)
        self._has_added = False

    def is_completed(self) -> bool:
        """Whether all have sent what they have."""
        return bool(self._work.is_completed())

    def wait(self, timeout: timedelta | None = None) -> None:
        """Wait for all, at most for the group's own timeout, and add up.

        Raises:
            RuntimeError: the group is broken, or not all have come in time.
        """
        self._work.wait(timeout) if timeout is not None else self._work.wait()
        if self._has_added:
            return
        self._has_added = True
        for rank in range(self._ranks):
            for part, tensor in zip(self._cut(self._received[rank]), self._tensors, strict=True):
                flat = tensor.view(-1)
                flat.add_(part) if rank else flat.copy_(part)

    def _cut(self, message: torch.Tensor) -> list[torch.Tensor]:
        """The tensors that a message holds."""
        begins = [0, *self._ends[:-1]]
        return [
            message[begin : begin + one.numel() * one.element_size()].view(one.dtype)
            for begin, one in zip(begins, self._tensors, strict=True)
        ]


def _ends(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Where each of them ends in a message, which begins the next one where an element of any dtype may lie."""
    ends, at = [], 0
    for one in tensors:
        at += -(-one.numel() * one.element_size() // _ALIGNED_BYTES) * _ALIGNED_BYTES
        ends.append(at)
    return ends
