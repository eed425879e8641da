"""What a switch costs: blocks in their order, steps in their blocks, intervals, and what they say."""

import math
import random

import pytest

from benchmarks.quadruples import (
    DROPPED,
    LIMIT,
    Compared,
    Cost,
    Does,
    Verdict,
    contrasts,
    cost,
    does_at,
    log_ratios,
    planned,
    processor_shares,
    resolves,
    share,
    step_s,
    verdict,
)

STEP_S, BLOCK_S = 0.05, 4.0


def played(blocks, longer, jitter_s=0.0, seed=0):
    """Commits of a run in which a step takes so much longer where something is done."""
    chance, commits_s, now_s = random.Random(seed), [], -1.0
    while now_s < blocks[-1].end_s + 1.0:
        now_s += STEP_S * (1 + longer.get(does_at(blocks, now_s), 0.0)) + chance.gauss(0.0, jitter_s)
        commits_s.append(now_s)
    return commits_s


def costs_of(blocks, commits_s):
    ratios = log_ratios(blocks, [step_s(commits_s, block) for block in blocks])
    return {one: cost(ratios[one], seed=0) for one in Compared}


def test_blocks_are_in_their_order_and_each_comparison_has_its_turn():
    blocks = planned(600.0, BLOCK_S)
    assert len(blocks) == 36 * 4 and blocks[-1].end_s == 576.0
    assert "".join(block.letter for block in blocks[:8]) == "ABBAABBA"
    assert [block.does for block in blocks[:4]] == [Does.BARE, Does.SEEN, Does.SEEN, Does.BARE]
    assert {block.does for block in blocks[4:8]} == {Does.SEEN}
    assert [block.does for block in blocks[12:16]] == [Does.SEEN, Does.SPUN, Does.SPUN, Does.SEEN]
    assert len(planned(1.0, BLOCK_S)) == 16, "a quadruple of each, however little time there is"


@pytest.mark.parametrize(
    ("at_s", "does"), [(-0.1, Does.SEEN), (0.0, Does.BARE), (4.0, Does.SEEN), (15.9, Does.BARE), (64.0, Does.SEEN)]
)
def test_at_each_moment_one_thing_is_done(at_s, does):
    assert does_at(planned(1.0, BLOCK_S), at_s) is does
    assert does_at((), at_s) is Does.SEEN


def test_the_first_steps_of_a_block_do_not_count():
    block = planned(1.0, BLOCK_S)[1]
    slow = [4.0 + 0.2 * number for number in range(DROPPED)]
    usual = [slow[-1] + STEP_S * number for number in range(1, 20)]
    assert step_s([3.9, *slow, *usual, 9.0], block) == pytest.approx(STEP_S)
    assert step_s([*slow, *usual[:1]], block) is None


@pytest.mark.parametrize(
    ("seen", "is_so"),
    [(0.0, Verdict.MET), (0.003, Verdict.MET), (0.005, Verdict.NOT_RESOLVED), (0.01, Verdict.MISSED)],
)
def test_what_it_costs_is_found_under_jitter(seen, is_so):
    blocks = planned(600.0, BLOCK_S)
    longer = {Does.SEEN: seen, Does.SPUN: seen + 0.005}
    costs = costs_of(blocks, played(blocks, longer, jitter_s=0.0005))
    found, null, positive = (costs[one] for one in Compared)
    assert found.low <= seen / (1 + seen) <= found.high and found.high - found.low < 0.002
    assert null.low <= 0 <= null.high and positive.low <= 0.005 <= positive.high
    assert resolves(costs) and verdict(costs) is is_so


def test_a_drift_meets_both_alike():
    blocks = planned(600.0, BLOCK_S)
    commits_s = [at_s + 1e-5 * at_s**2 for at_s in played(blocks, {})]
    assert all(abs(one.mean) < 1e-4 for one in costs_of(blocks, commits_s).values())


def test_a_quadruple_that_lacks_a_block_is_left_out():
    blocks = planned(1.0, BLOCK_S)
    ratios = log_ratios(blocks, [1.0, None, 1.0, 1.0, *[1.0, 2.0, 2.0, 1.0] * 3])
    assert ratios[Compared.OBSERVABILITY] == [pytest.approx(math.log(2))]
    assert cost([], seed=0) is None


def test_what_all_processes_compute_for_a_step_is_a_share_of_what_the_workers_have():
    commits_s = [0.05 * number for number in range(100)]
    computed = [(0.01, 1.01, 0.4), (1.01, 2.01, 0.8), (9.0, 10.0, 0.1)]
    assert processor_shares(commits_s, computed, whole_s=0.2) == [pytest.approx(0.1), pytest.approx(0.2), None]


@pytest.mark.parametrize("longer", [0.0, 0.002, 0.01])
def test_what_processors_lose_is_found_among_what_they_do_anyway(longer):
    """A step takes a fourth of the workers' processors, more or less; what is looked for is much smaller."""
    blocks, chance = planned(480.0, BLOCK_S), random.Random(1)
    values = [0.25 + longer * (block.does is Does.SEEN) + chance.gauss(0.0, 0.002) for block in blocks]
    found = contrasts(blocks, values)[Compared.OBSERVABILITY]
    told = share(found, seed=0)
    assert told.low <= longer <= told.high and told.high - told.low < 0.004
    assert told.quadruples == len(found) == 14 and share([], seed=0) is None


def costs(found=(0.001, 0.002, 0.003), null=(-0.001, 0.0, 0.001), positive=(0.004, 0.005, 0.006), quadruples=18):
    told = zip(Compared, (found, null, positive), strict=True)
    return {
        one: given and Cost(low=given[0], mean=given[1], high=given[2], quadruples=quadruples) for one, given in told
    }


@pytest.mark.parametrize(
    ("told", "is_so"),
    [
        ({}, Verdict.MET),
        ({"found": (0.004, 0.0045, LIMIT)}, Verdict.NOT_RESOLVED),
        ({"found": (LIMIT, 0.01, 0.02)}, Verdict.MISSED),
        ({"found": None}, Verdict.NOT_RESOLVED),
        ({"quadruples": 5}, Verdict.NOT_RESOLVED),
        ({"null": (-0.006, 0.0, 0.001)}, Verdict.NOT_RESOLVED),
        ({"null": (-0.001, 0.0, 0.005)}, Verdict.NOT_RESOLVED),
        ({"null": None}, Verdict.NOT_RESOLVED),
        ({"positive": (0.0, 0.005, 0.01)}, Verdict.NOT_RESOLVED),
        ({"positive": None}, Verdict.NOT_RESOLVED),
    ],
)
def test_it_is_met_only_if_all_of_the_interval_is_below_and_the_controls_hold(told, is_so):
    assert verdict(costs(**told)) is is_so
