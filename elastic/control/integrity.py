"""Pure. What each replica says of itself in a reduction, and who is odd among them.

State: replicas of one commit hold the same bits, so the one whose digest differs from what more than half hold is
corrupt. Loss: replicas compute different micro-batches, so a loss that is not finite may be the data's. The step is
tried again with the hands passed on by one: if the same micro-batches are finite elsewhere, it was the replica.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum

WORDS = 5
COMPARED_STEPS = 100  # a vote is looked for every so many updates, unless the user says otherwise
COMPARED_SHARE = 0.005  # and takes no more of the time since the one before it
_MASK = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One replica's row in the tail of a reduction.

    Attributes:
        digest: 64 bits over its state at the door of the step; 0 where no vote is due.
        odd: 1 + number of its first micro-batch whose loss was not finite; 0 if there was none.
        micro_batches: how many it computed; compute_s: seconds that took, loading included, waiting not.
    """

    digest: int = 0
    odd: int = 0
    micro_batches: int = 0
    compute_s: float = 0.0

    def words(self) -> tuple[float, ...]:
        """As numbers that float64 holds exactly (the seconds apart, which are what float64 makes of them)."""
        return (self.digest >> 32, self.digest & _MASK, self.odd, self.micro_batches, self.compute_s)

    @classmethod
    def from_words(cls, words: Sequence[float]) -> "Account":
        high, low, odd, micro_batches = (int(word) for word in words[:4])
        return cls(digest=high << 32 | low, odd=odd, micro_batches=micro_batches, compute_s=float(words[4]))


def table(mine: Account, rank: int, replicas: int) -> list[float]:
    """This replica's part of the table of all accounts: its own row, zeros elsewhere; the sum is the whole table."""
    rows: list[float] = [0.0] * (replicas * WORDS)
    rows[rank * WORDS : (rank + 1) * WORDS] = mine.words()
    return rows


def accounts(rows: Sequence[float]) -> tuple[Account, ...]:
    """The accounts of all replicas, by rank."""
    return tuple(Account.from_words(rows[start : start + WORDS]) for start in range(0, len(rows), WORDS))


def outvoted(digests: Sequence[Hashable]) -> tuple[int, ...] | None:
    """Ranks that hold something else than more than half of all do; None if no more than half agree."""
    value, votes = Counter(digests).most_common(1)[0]
    if 2 * votes <= len(digests):
        return None
    return tuple(rank for rank, digest in enumerate(digests) if digest != value)


def is_vote_due(update: int, since_s: float, took_s: float) -> bool:
    """Whether states are compared at the door of an update, where that is left to what it costs.

    Args:
        since_s: since the last vote; infinite before the first. took_s: to read all state for it.
    """
    return update > 0 and update % COMPARED_STEPS == 0 and took_s <= COMPARED_SHARE * since_s


class LossVerdict(Enum):
    """What follows from the losses of an attempt."""

    FINE = "fine"
    LOOK_AGAIN = "look again"
    USER = "user"
    REPLICA = "replica"


def judge_losses(first: Sequence[Account], second: Sequence[Account] = ()) -> tuple[LossVerdict, tuple[int, ...]]:
    """Whose a loss is that is not finite; names the ranks, if it is a replica's.

    Args:
        first: accounts of the step's first attempt, by rank.
        second: of the one in which rank r + 1 computed what rank r had computed; empty before it.
    """
    odd = [rank for rank, account in enumerate(first) if account.odd]
    if not odd:
        return LossVerdict.FINE, ()
    if second:
        culprits = tuple(rank for rank in odd if not second[(rank + 1) % len(second)].odd)
        return (LossVerdict.REPLICA, culprits) if culprits else (LossVerdict.USER, ())
    at_work = sum(account.micro_batches > 0 for account in first)
    is_alone = len(first) == 1
    return (LossVerdict.USER if is_alone or len(odd) == at_work > 1 else LossVerdict.LOOK_AGAIN), ()
