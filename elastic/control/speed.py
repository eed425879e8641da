"""Pure. How long each worker computes at a micro-batch: smoothed, compared with the group, and turned into shares."""

import heapq
from collections.abc import Iterable, Sequence
from statistics import median_low

from elastic.control.integrity import Account

_NEWEST = 0.2  # weight of the newest step in the smoothed time


def smooth(before: Sequence[float], told: Sequence[Account]) -> tuple[float, ...]:
    """Smoothed seconds for a micro-batch, by rank, after one more step; 0 for whom nothing is known yet.

    Args:
        before: the same after the step before; empty at the start.
        told: accounts of the step; who computed nothing in it keeps its figure.
    """
    known = before or (0.0,) * len(told)
    return tuple(
        old if not account.micro_batches else _mixed(old, account.compute_s / account.micro_batches)
        for old, account in zip(known, told, strict=True)
    )


def _mixed(old_s: float, new_s: float) -> float:
    return new_s if old_s == 0.0 else old_s + _NEWEST * (new_s - old_s)


def scores(seconds: Sequence[float], width: int = 1) -> tuple[float, ...]:
    """How many times the median of its group each worker takes; 1 for whom nothing is known.

    Of an even number the faster one of the middle two is the median: of two workers one may be slow.

    Args:
        seconds: for a micro-batch, by rank. width: workers of a replica: a group are those who hold the same shard,
            since shards may be work of different sizes.
    """
    by_shard = [_scores(seconds[shard::width]) for shard in range(width)]
    return tuple(score for replica in zip(*by_shard, strict=True) for score in replica)


def by_replica(seconds: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """How long each replica takes for a micro-batch: as long as its slowest worker; 0 where one is not known.

    Args:
        seconds: of its workers, by shard, then by replica.
    """
    return tuple(max(shards) if all(shards) else 0.0 for shards in zip(*seconds, strict=True))


def _scores(seconds: Sequence[float]) -> tuple[float, ...]:
    known = [one for one in seconds if one > 0.0]
    if not known:
        return (1.0,) * len(seconds)
    middle = median_low(known)
    return tuple(one / middle if one > 0.0 else 1.0 for one in seconds)


def by_node(workers: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The score of each node from (node, score) of its workers: its best one, since a slow node slows them all."""
    best: dict[str, float] = {}
    for node, score in workers:
        best[node] = min(score, best.get(node, score))
    return best


def balance(micro_batches: int, seconds: Sequence[float]) -> tuple[int, ...]:
    """How many micro-batches each replica is dealt so that the last one is done as early as can be.

    Each is given to whoever would be done with it first (greedy list scheduling, which is optimal for jobs of one
    size). Everybody computes one at least, where there are enough, so that nobody's speed is forgotten.

    Args:
        seconds: for a micro-batch, by rank; where one is not known, the deal is even.
    """
    if not all(one > 0.0 for one in seconds):
        return (1,) * len(seconds)
    first = 1 if micro_batches >= len(seconds) else 0
    counts = [first] * len(seconds)
    done_at = [((first + 1) * one, rank) for rank, one in enumerate(seconds)]
    heapq.heapify(done_at)
    for _ in range(micro_batches - first * len(seconds)):
        at_s, rank = heapq.heappop(done_at)
        counts[rank] += 1
        heapq.heappush(done_at, (at_s + seconds[rank], rank))
    return tuple(counts)
