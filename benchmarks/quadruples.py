"""Pure. A run in which something is switched on and off in blocks of some seconds: when, and what it costs.

Blocks come in quadruples, A B B A: what drifts meanwhile meets both alike. What is compared is the mean time from
commit to commit within a quadruple, and what all processes of the run compute for a step. Two controls are played in
the same run: one in which nothing is switched, which must show nothing, and one in which something of a known cost is,
which must show that.
"""

import math
import random
import statistics
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

LIMIT = 0.005  # of a step's time
DROPPED = 10  # steps at the beginning of a block: the one before is felt a little longer
LETTERS = "ABBA"
RESAMPLES = 10_000
_FEWEST = 6  # quadruples; an interval of fewer says too little


class Does(Enum):
    """What is done in a block."""

    BARE = "bare"
    SEEN = "seen"
    SPUN = "spun"  # seen, and a step takes a little longer, by a known time


class Compared(Enum):
    """What quadruples are for."""

    OBSERVABILITY = "observability"
    NULL = "null"
    POSITIVE = "positive"


PAIRS = {
    Compared.OBSERVABILITY: (Does.BARE, Does.SEEN),
    Compared.NULL: (Does.SEEN, Does.SEEN),
    Compared.POSITIVE: (Does.SEEN, Does.SPUN),
}
ORDER = (Compared.OBSERVABILITY, Compared.NULL, Compared.OBSERVABILITY, Compared.POSITIVE)


class Verdict(Enum):
    """Whether the cost is below the limit."""

    MET = "met"
    MISSED = "missed"
    NOT_RESOLVED = "not resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some seconds in which one thing is done; they count from the beginning of the first block."""

    quadruple: int
    compared: Compared
    letter: str
    does: Does
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Share of a step's time, or of processors. low, high: its mean lies between them in 95 % of resamplings."""

    mean: float
    low: float
    high: float
    quadruples: int


def planned(seconds: float, block_s: float) -> tuple[Block, ...]:
    """All blocks that fit in, at least a quadruple of each in its turn."""
    rounds = max(1, int(seconds / (block_s * len(LETTERS) * len(ORDER))))
    return tuple(_planned(rounds * len(ORDER), block_s))


def _planned(quadruples: int, block_s: float) -> Iterator[Block]:
    for quadruple in range(quadruples):
        compared = ORDER[quadruple % len(ORDER)]
        for place, letter in enumerate(LETTERS):
            begin_s = (quadruple * len(LETTERS) + place) * block_s
            yield Block(
                quadruple=quadruple,
                compared=compared,
                letter=letter,
                does=PAIRS[compared][letter == "B"],
                begin_s=begin_s,
                end_s=begin_s + block_s,
            )


def does_at(blocks: Sequence[Block], at_s: float) -> Does:
    """What is done then; before the first block, and after the last one, all is as usual."""
    if not blocks or not 0 <= at_s < blocks[-1].end_s:
        return Does.SEEN
    return blocks[int(at_s / blocks[0].end_s)].does


def step_s(commits_s: Sequence[float], block: Block) -> float | None:
    """Mean time from commit to commit in a block, without the first steps; None where too few are left."""
    kept = commits_s[bisect_left(commits_s, block.begin_s) + DROPPED : bisect_left(commits_s, block.end_s)]
    return (kept[-1] - kept[0]) / (len(kept) - 1) if len(kept) > 1 else None


def contrasts(blocks: Sequence[Block], values: Sequence[float | None]) -> dict[Compared, list[float]]:
    """By what is compared, by how much the mean of B is above that of A, for each quadruple of which all is known."""
    found: dict[Compared, list[float]] = {one: [] for one in Compared}
    for first in range(0, len(blocks), len(LETTERS)):
        four = values[first : first + len(LETTERS)]
        known = [one for one in four if one is not None]
        if len(known) == len(LETTERS):
            a, b, again_b, again_a = known
            found[blocks[first].compared].append((b + again_b - a - again_a) / 2)
    return found


def log_ratios(blocks: Sequence[Block], taken_s: Sequence[float | None]) -> dict[Compared, list[float]]:
    """By what is compared, how much longer a step of B takes, a logarithm for each whole quadruple."""
    return contrasts(blocks, [None if one is None else math.log(one) for one in taken_s])


def cost(ratios: Sequence[float], seed: int) -> Cost | None:
    """What share of B's time is lost, from log ratios; None where there are none."""
    found = share(ratios, seed)
    if found is None:
        return None
    mean, low, high = (-math.expm1(-one) for one in (found.mean, found.low, found.high))
    return Cost(mean=mean, low=low, high=high, quadruples=found.quadruples)


def share(differences: Sequence[float], seed: int) -> Cost | None:
    """Of what is a share already; None where there are none."""
    if not differences:
        return None
    chance = random.Random(seed)
    means = sorted(statistics.fmean(chance.choices(differences, k=len(differences))) for _ in range(RESAMPLES))
    low, high = means[round(0.025 * RESAMPLES)], means[round(0.975 * RESAMPLES) - 1]
    return Cost(mean=statistics.fmean(differences), low=low, high=high, quadruples=len(differences))


def processor_shares(
    commits_s: Sequence[float], computed: Sequence[tuple[float, float, float]], whole_s: float
) -> list[float | None]:
    """What all processes computed for a step, as a share of the processor time that a step of the workers takes up.

    Args:
        computed: of each block: from when to when it was looked at, and the processor seconds meanwhile.
        whole_s: of a step, of all workers together.

    Returns:
        By block; None where no step was committed.
    """
    steps = [bisect_left(commits_s, until_s) - bisect_left(commits_s, from_s) for from_s, until_s, _ in computed]
    return [
        spent_s / count / whole_s if count else None for count, (_, _, spent_s) in zip(steps, computed, strict=True)
    ]


def resolves(costs: Mapping[Compared, Cost | None]) -> bool:
    """Whether the controls show what they must: nothing as large as the limit, and what is known to be there."""
    null, positive = costs[Compared.NULL], costs[Compared.POSITIVE]
    return null is not None and positive is not None and -LIMIT < null.low <= null.high < LIMIT and positive.low > 0


def verdict(costs: Mapping[Compared, Cost | None]) -> Verdict:
    """Met where the whole interval is below the limit, missed where it is above, and if the controls hold."""
    found = costs[Compared.OBSERVABILITY]
    if found is None or found.quadruples < _FEWEST or not resolves(costs):
        return Verdict.NOT_RESOLVED
    if found.high < LIMIT:
        return Verdict.MET
    return Verdict.MISSED if found.low >= LIMIT else Verdict.NOT_RESOLVED
