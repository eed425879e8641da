"""Pure. Which samples make a step, in which order, in which micro-batches, and who computes them.

All of it follows from the seed, the samples that committed steps have consumed, and the number of replicas; so replicas
agree without talking, and whatever sizes the steps have, each sample comes once an epoch. The order of an epoch is a
permutation computed sample by sample (a Feistel network with cycle walking: Black and Rogaway, "Ciphers with Arbitrary
Finite Domains", 2002), so no list of the dataset's size is ever held.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Protocol

from elastic.control.batch_size import BatchSize, tuned_sizes
from elastic.control.tuning import Tuning
from elastic.errors import DatasetTooSmallError, SettingError

_MASK = (1 << 64) - 1
_ROUNDS = 4


def mix64(value: int) -> int:
    """Spread the bits of a 64-bit integer (the finalizer of splitmix64: Steele, Lea, Flood, OOPSLA 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def seed_of(*parts: int) -> int:
    """One 63-bit seed from several integers, e.g. (seed, step, micro-batch)."""
    value = 0
    for part in parts:
        value = mix64(value ^ (part & _MASK))
    return value >> 1


class Permutation:
    """A permutation of range(size), chosen by `key`; each element costs a few integer operations."""

    def __init__(self, size: int, key: int) -> None:
        self._size = size
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._half_mask = (1 << self._half_bits) - 1
        self._keys = tuple(seed_of(key, turn) for turn in range(_ROUNDS))

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self._size:
            raise IndexError(position)
        value = self._encrypt(position)
        while value >= self._size:  # the domain is less than 4x the size, so a few turns suffice
            value = self._encrypt(value)
        return value

    def _encrypt(self, value: int) -> int:
        left, right = value >> self._half_bits, value & self._half_mask
        for key in self._keys:
            left, right = right, left ^ (mix64(right ^ key) & self._half_mask)
        return (left << self._half_bits) | right


@dataclass(frozen=True, slots=True)
class Row:
    """A sample's place in blocks: the number of its block, and its row there."""

    block: int
    row: int


def row_of(ends: Sequence[int], index: int) -> Row:
    """Where the sample of that index lies.

    Args:
        ends: running sums of the blocks' sizes, which are positive.

    Raises:
        IndexError: there is no such sample.
    """
    if not ends or not 0 <= index < ends[-1]:
        raise IndexError(index)
    block = bisect_right(ends, index)
    return Row(block, index - (ends[block - 1] if block else 0))


class BlockPermutation:
    """A permutation of range(sum(sizes)) that goes block by block: blocks in random order, and rows within each.

    Args:
        sizes: of the blocks, all positive.
    """

    def __init__(self, sizes: Sequence[int], key: int) -> None:
        self._sizes, self._key = sizes, key
        order = Permutation(len(sizes), key)
        self._blocks = [order[place] for place in range(len(sizes))]
        self._ends = list(accumulate(sizes[block] for block in self._blocks))
        self._firsts = [0, *accumulate(sizes)]
        self._rows: tuple[int, Permutation] | None = None

    def __getitem__(self, position: int) -> int:
        at = row_of(self._ends, position)
        block = self._blocks[at.block]
        if self._rows is None or self._rows[0] != block:
            self._rows = block, Permutation(self._sizes[block], seed_of(self._key, block))
        return self._firsts[block] + self._rows[1][at.row]


@lru_cache(maxsize=4)  # an epoch's, and the next one's
def _permutation(size: int, key: int) -> Permutation:
    return Permutation(size, key)


@lru_cache(maxsize=4)
def _block_permutation(sizes: tuple[int, ...], key: int) -> BlockPermutation:
    return BlockPermutation(sizes, key)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """`count` samples, before which the run has consumed `first` samples; `number` counts within the step."""

    number: int
    first: int
    count: int


class Plan(Protocol):
    """How data is cut into steps and micro-batches, from the committed state and the number of replicas alone."""

    @property
    def batch_size(self) -> BatchSize: ...

    @property
    def micro_batch_size(self) -> int: ...

    def require(self, replicas: int) -> None: ...

    def global_batch(self, replicas: int) -> int: ...

    def epoch_of(self, consumed: int) -> int: ...

    def cut(self, consumed: int, replicas: int) -> Sequence[MicroBatch]: ...

    def micro_batch_hash(self, micro_batch: MicroBatch) -> int: ...

    def tuned(self, tuning: Tuning) -> "Plan": ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How a dataset of `samples` is cut into steps and micro-batches.

    A step takes up where the committed ones have ended: its place is the number of samples that they consumed, so it
    does not matter how many steps, of which sizes, they were. It ends with its epoch at the latest; weights stay exact.

    Attributes:
        batch_size: samples of a step, by the number of replicas.
        micro_batch_size: samples of one forward.
        blocks: sizes of the blocks that the dataset is stored in; a shuffled epoch then goes block by block. Empty:
            samples are equally near.

    Raises:
        SettingError: micro_batch_size is not positive, or the blocks are not the whole dataset.
        DatasetTooSmallError: fewer samples than a global batch of one replica.
    """

    samples: int
    batch_size: BatchSize
    micro_batch_size: int
    seed: int = 0
    shuffle: bool = True
    blocks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.blocks and (min(self.blocks) < 1 or sum(self.blocks) != self.samples):
            raise SettingError(
                f"block_sizes of a dataset of {self.samples} samples must be positive and add up to that; they add up "
                f"to {sum(self.blocks)}"
            )
        if self.micro_batch_size < 1:
            raise SettingError(f"micro_batch_size={self.micro_batch_size} must be at least 1")
        if self.samples < self.global_batch(1):
            raise DatasetTooSmallError(
                f"the dataset holds {self.samples} samples, fewer than one global batch of {self.global_batch(1)}: "
                "lower batch_size"
            )

    @property
    def order(self) -> dict[str, int | bool]:
        """What the order of samples follows from."""
        blocks = hash32(*self.blocks) if self.blocks else 0
        return {"samples": self.samples, "seed": self.seed, "shuffle": self.shuffle, "blocks": blocks}

    def global_batch(self, replicas: int) -> int:
        """Samples of a step that no epoch's end cuts short."""
        return self.batch_size.samples(replicas, self.micro_batch_size)

    def tuned(self, tuning: Tuning) -> "BatchPlan":
        """The same data in steps of other sizes.

        Raises:
            SettingError, DatasetTooSmallError: the sizes do not fit each other, or the data.
        """
        size, micro_batch_size = tuned_sizes(self.batch_size, self.micro_batch_size, tuning)
        return replace(self, batch_size=size, micro_batch_size=micro_batch_size)

    def require(self, replicas: int) -> None:
        """A step of any size can be cut from it: one that is larger than an epoch ends with it."""

    def epoch_of(self, consumed: int) -> int:
        """The epoch of the step that begins after `consumed` samples of the run."""
        return consumed // self.samples

    def cut(self, consumed: int, replicas: int) -> tuple[MicroBatch, ...]:
        """The micro-batches of the step that begins after `consumed` samples of the run.

        Fewer replicas, should it be tried again, get a prefix of the same samples, cut at the same places.
        """
        left = self.samples - consumed % self.samples
        count = min(self.global_batch(replicas), left)
        starts = range(0, count, self.micro_batch_size)
        return tuple(
            MicroBatch(number, consumed + start, min(self.micro_batch_size, count - start))
            for number, start in enumerate(starts)
        )

    def sample_indices(self, micro_batch: MicroBatch) -> list[int]:
        """Dataset indices of a micro-batch, in the order of its epoch."""
        epoch, first = divmod(micro_batch.first, self.samples)
        positions = range(first, first + micro_batch.count)
        if not self.shuffle:
            return list(positions)
        key = seed_of(self.seed, epoch)
        order = _block_permutation(self.blocks, key) if self.blocks else _permutation(self.samples, key)
        return [order[position] for position in positions]

    def micro_batch_hash(self, micro_batch: MicroBatch) -> int:
        """32 bits that stand for the samples of one micro-batch in the conservation record."""
        return seed_of(self.seed, micro_batch.first, micro_batch.count) & 0xFFFFFFFF


def even(replicas: int) -> tuple[int, ...]:
    """The shares of an even deal."""
    return (1,) * replicas


def deal(micro_batches: int, shares: Sequence[int], rank: int) -> range:
    """Numbers of the micro-batches that `rank` computes: contiguous, as many as its share of all shares.

    With equal shares the sizes differ by one at most; shares that add up to `micro_batches` are the sizes. A replica
    may be dealt nothing, as when there are more replicas than micro-batches.
    """
    whole, before = sum(shares), sum(shares[:rank])
    return range(before * micro_batches // whole, (before + shares[rank]) * micro_batches // whole)


def all_hands(micro_batches: int, shares: Sequence[int]) -> list[range]:
    """What `deal` gives each rank."""
    whole, ends = sum(shares), [0, *accumulate(shares)]
    return [range(a * micro_batches // whole, b * micro_batches // whole) for a, b in pairwise(ends)]


def hash32(*parts: object) -> int:
    """32 bits of a digest over the parts' text; the same in every process, unlike hash()."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conservation:
    """What travels with the gradients, summed over replicas: proof that a step was made of exactly its micro-batches.

    Sums of 32-bit integers stay exact in float64 up to 2**21 terms, in any order of summation.
    """

    samples: int
    micro_batches: int
    replicas_identity: int
    replicas: int

    def words(self) -> tuple[int, int, int, int]:
        """As numbers, in a fixed order."""
        return (self.samples, self.micro_batches, self.replicas_identity, self.replicas)

    @classmethod
    def from_words(cls, words: Sequence[float]) -> "Conservation":
        samples, micro_batches, identity, replicas = (int(word) for word in words)
        return cls(samples=samples, micro_batches=micro_batches, replicas_identity=identity, replicas=replicas)


def contribution(plan: Plan, done: Sequence[MicroBatch], identity: int) -> Conservation:
    """One replica's part: the micro-batches whose backward it has run."""
    return Conservation(
        samples=sum(micro_batch.count for micro_batch in done),
        micro_batches=sum(plan.micro_batch_hash(micro_batch) for micro_batch in done),
        replicas_identity=identity,
        replicas=1,
    )


def expected(plan: Plan, consumed: int, replicas: int, identity: int) -> Conservation:
    """What the sum over all replicas must be, in the step that begins after `consumed` samples."""
    whole = contribution(plan, plan.cut(consumed, replicas), identity)
    return replace(whole, replicas_identity=identity * replicas, replicas=replicas)
