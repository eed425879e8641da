"""Effect. Sums over micro-batches in one fixed order, so that their bits depend neither on the group nor on the deal.

Each replica adds up the whole blocks of its hand (`control/ordered.py`) and keeps what is not whole apart. Then, for
each bucket, every replica receives its share of the elements of all blocks (all-to-all), adds them in the order of
the tree, and all gather the shares. So the traffic of a replica grows with the number of its blocks, one where the
deal is even and a power of two, and not with the size of the group.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from elastic.control.ordered import Block, blocks, fold, push
from elastic.train.gloo import GlooGroup


class OrderedSum:
    """The sum of one flat tensor's terms, one for each micro-batch of a step.

    Args:
        group: the group of the current generation.
    """

    def __init__(self, group: Callable[[], GlooGroup]) -> None:
        self._group = group
        self._stack: list[Block[torch.Tensor]] = []
        self._free: list[torch.Tensor] = []
        self._memory: dict[str, torch.Tensor] = {}
        self._hands: Sequence[range] = ()
        self._is_started = False

    def begin(self, hands: Sequence[range]) -> None:
        """Start an attempt; `hands` are the micro-batches of each rank."""
        self._free += [block.total for block in self._stack]
        self._stack, self._hands, self._is_started = [], hands, False

    def push(self, number: int, term: torch.Tensor) -> None:
        """Take the next term of this replica's hand; the caller may change it afterwards."""
        kept = self._free.pop() if self._free else torch.empty_like(term)
        push(self._stack, Block(number, 1, kept.copy_(term)), self._add)

    def start(self, like: torch.Tensor) -> Any:
        """Send every replica its share of this replica's blocks; returns a work. A skipped hand counts as zeros."""
        group = self._group()
        share = -(-like.numel() // group.size)
        self._like, self._share, self._is_started = like, share, True
        sizes = [max(0, min(share, like.numel() - rank * share)) for rank in range(group.size)]
        held = {(block.first, block.count): block.total for block in self._stack}
        own = [held.get(place) for place in blocks(self._hands[group.rank])]
        sent = self._reuse("sent", len(own) * like.numel(), like)
        at = 0
        for rank, size in enumerate(sizes):
            for total in own:
                part = sent[at : at + size]
                part.zero_() if total is None else part.copy_(total[rank * share : rank * share + size])
                at += size
        mine = sizes[group.rank]
        counts = [len(blocks(hand)) for hand in self._hands]
        self._received = self._reuse("received", sum(counts) * mine, like)
        item = like.element_size()
        return group.all_to_all(
            self._received,
            sent,
            [count * mine * item for count in counts],
            [len(own) * size * item for size in sizes],
        )

    def combine(self) -> Any:
        """All blocks are here: add up this replica's share in order, and gather everybody's; returns a work."""
        group = self._group()
        mine = self._reuse("mine", self._share, self._like)
        places = [place for hand in self._hands for place in blocks(hand)]
        size = self._received.numel() // len(places) if places else 0
        parts = zip(places, self._received.split(size) if size else (), strict=False)
        stack: list[Block[torch.Tensor]] = []
        for (first, count), part in sorted(parts, key=lambda pair: pair[0]):
            push(stack, Block(first, count, part), torch.Tensor.add_)
        if stack:
            torch.add(fold(stack, torch.Tensor.add_), 0.0, out=mine[:size])  # -0.0 + 0.0 is 0.0, here and everywhere
        self._gathered = self._reuse("gathered", self._share * group.size, self._like)
        return group.all_gather(self._gathered, mine)

    def take(self, target: torch.Tensor) -> None:
        """Copy the gathered sum."""
        target.copy_(self._gathered[: target.numel()])

    def drop(self) -> None:
        """An operation may still write: use fresh memory from now on."""
        self._stack, self._free, self._memory = [], [], {}

    def _add(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        self._free.append(right)
        return left.add_(right)

    def _reuse(self, name: str, size: int, like: torch.Tensor) -> torch.Tensor:
        """(size,) of warm memory: the pages of fresh memory fault slowly."""
        kept = self._memory.get(name)
        if kept is None or kept.numel() < size:
            kept = self._memory[name] = torch.empty(size, dtype=like.dtype, device=like.device)
        return kept[:size]


class OrderedSums:
    """One `OrderedSum` for each bucket, and one for what a step sums in float64 beside them."""

    def __init__(self, buckets: int, group: Callable[[], GlooGroup]) -> None:
        self.sums = [OrderedSum(group) for _ in range(buckets)]
        self.beside = OrderedSum(group)
        self.all = (*self.sums, self.beside)

    def begin(self, hands: Sequence[range]) -> None:
        for one in self.all:
            one.begin(hands)

    def drop(self) -> None:
        for one in self.all:
            one.drop()
