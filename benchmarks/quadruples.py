"""Pure. A run in which something is switched on and off in blocks of some seconds: when, and what it costs.

Blocks come in quadruples, A B B A: what drifts meanwhile meets both alike. What is compared is the mean time from
commit to commit within a quadruple. Two controls are played in the same run: one in which nothing is switched, which
must show nothing, and one in which something of a known cost is, which must show that.
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
    """Share of a step's time. low, high: its mean lies between them in 95 % of resamplings."""

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


def log_ratios(blocks: Sequence[Block], taken_s: Sequence[float | None]) -> dict[Compared, list[float]]:
    """By what is compared, how much longer a step of B takes, a logarithm for each whole quadruple."""
    found: dict[Compared, list[float]] = {one: [] for one in Compared}
    for first in range(0, len(blocks), len(LETTERS)):
        four = taken_s[first : first + len(LETTERS)]
        known_s = [one for one in four if one is not None]
        if len(known_s) == len(LETTERS):
            a, b, again_b, again_a = map(math.log, known_s)
            found[blocks[first].compared].append((b + again_b - a - again_a) / 2)
    return found


def cost(ratios: Sequence[float], seed: int) -> Cost | None:
    """What share of B's time is lost, from log ratios; None where there are none."""
    if not ratios:
        return None
    chance = random.Random(seed)
    means = sorted(statistics.fmean(chance.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    low, high = means[round(0.025 * RESAMPLES)], means[round(0.975 * RESAMPLES) - 1]
    lost = [-math.expm1(-one) for one in (statistics.fmean(ratios), low, high)]
    return Cost(mean=lost[0], low=lost[1], high=lost[2], quadruples=len(ratios))


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
