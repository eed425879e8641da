"""Pure. Which samples make a step, in which order, in which micro-batches, and who computes them.

All of it follows from (seed, step) alone, so any set of replicas, at any time, agrees without talking, and a step that
is tried again by fewer replicas is made of the same micro-batches. The order of an epoch is a permutation computed
sample by sample (a Feistel network with cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
2002), so no list of the dataset's size is ever held.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

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
class MicroBatch:
    """`count` samples of a step, from position `first` of the epoch on; `number` counts within the step."""

    number: int
    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How a dataset of `samples` is cut into steps of `batch_size` and micro-batches of `micro_batch_size` samples.

    The last step of an epoch is as short as what is left; weights stay exact.

    Raises:
        SettingError: a size is not positive.
        DatasetTooSmallError: fewer samples than one global batch.
    """

    samples: int
    batch_size: int
    micro_batch_size: int
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.micro_batch_size < 1:
            raise SettingError(
                f"batch_size={self.batch_size} and micro_batch_size={self.micro_batch_size} must be at least 1"
            )
        if self.samples < self.batch_size:
            raise DatasetTooSmallError(
                f"the dataset holds {self.samples} samples, fewer than one global batch of {self.batch_size}: "
                "lower batch_size"
            )

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.samples // self.batch_size)

    def epoch_of(self, step: int) -> int:
        return step // self.steps_per_epoch

    def samples_of(self, step: int) -> int:
        """Global samples of a step."""
        first = (step % self.steps_per_epoch) * self.batch_size
        return min(self.batch_size, self.samples - first)

    def micro_batches(self, step: int) -> tuple[MicroBatch, ...]:
        """The step's micro-batches, the same for any number of replicas."""
        first = (step % self.steps_per_epoch) * self.batch_size
        count = self.samples_of(step)
        starts = range(0, count, self.micro_batch_size)
        return tuple(
            MicroBatch(number, first + start, min(self.micro_batch_size, count - start))
            for number, start in enumerate(starts)
        )

    def sample_indices(self, step: int, micro_batch: MicroBatch) -> list[int]:
        """Dataset indices of a micro-batch, in the order of its epoch."""
        positions = range(micro_batch.first, micro_batch.first + micro_batch.count)
        if not self.shuffle:
            return list(positions)
        order = Permutation(self.samples, seed_of(self.seed, self.epoch_of(step)))
        return [order[position] for position in positions]

    def micro_batch_hash(self, step: int, number: int) -> int:
        """32 bits that stand for one micro-batch in the conservation record."""
        return seed_of(self.seed, step, number) & 0xFFFFFFFF


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


def contribution(plan: BatchPlan, step: int, done: range | list[int], identity: int) -> Conservation:
    """One replica's part: the micro-batches whose backward it has run."""
    counts = {batch.number: batch.count for batch in plan.micro_batches(step)}
    return Conservation(
        samples=sum(counts[number] for number in done),
        micro_batches=sum(plan.micro_batch_hash(step, number) for number in done),
        replicas_identity=identity,
        replicas=1,
    )


def expected(plan: BatchPlan, step: int, replicas: int, identity: int) -> Conservation:
    """What the sum over all replicas must be."""
    whole = contribution(plan, step, range(len(plan.micro_batches(step))), identity)
    return Conservation(
        samples=whole.samples,
        micro_batches=whole.micro_batches,
        replicas_identity=identity * replicas,
        replicas=replicas,
    )
