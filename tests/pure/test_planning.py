"""Plans for a cluster: what is tried, what is chosen, and what each other value would have been worth."""

import pytest

from elastic.policies.interval import optimal_interval_s
from elastic.sim.planning import POLICIES, Given, intervals_s, planned, scenario_of
from elastic.sim.scenario import Scenario
from elastic.sim.study import Row

GIVEN = Given(
    gpus=128, mtbf_s=14400.0, state_bytes=840e9, nodes_per_replica=4, price_per_gpu_hour=2.0, notice_share=0.25
)


def made_up(scenario: Scenario, policy: str) -> Row:
    """Two spares, the last policy and a minimum of one are best."""
    spares, least = scenario.cluster.spare_nodes, scenario.job.minimum_replicas
    goodput = 0.9 - 0.01 * abs(spares - 2) + 0.001 * POLICIES.index(policy) - 0.01 * (least - 1)
    usual = {
        "interval": (goodput, goodput),
        "shares": {},
        "incidents": 1.0,
        "lost_s": 1.0,
        "gpu_hours": 1.0,
        "seeds": 1,
    }
    return Row(name=policy, goodput=goodput, cost=100.0, useful_cost=100.0 / goodput, **usual)


def test_each_setting_takes_its_best_value():
    found = planned(GIVEN, made_up)
    assert (found.choice.spare_nodes, found.choice.policy, found.choice.minimum_replicas) == (2, POLICIES[-1], 1)
    assert found.row.goodput == pytest.approx(0.903)
    assert [value for value, _ in found.worth["minimum_replicas"]] == ["1", "2", "4"]
    assert all(found.row.useful_cost <= row.useful_cost for tried in found.worth.values() for _, row in tried)
    assert len(found.worth["local_interval_s"]) == 3


def test_intervals_follow_daly():
    local_s, persistent_s = intervals_s(GIVEN)
    assert GIVEN.stall_s == pytest.approx(840e9 / 4 / 8 / 19.5e9)
    assert local_s == optimal_interval_s(GIVEN.stall_s, 14400.0)
    assert persistent_s >= max(local_s, GIVEN.upload_s)


def test_a_choice_becomes_a_scenario():
    found = planned(GIVEN, made_up)
    scenario = scenario_of(GIVEN, found.choice)
    assert scenario.cluster.spare_nodes == 2 and scenario.failures.per_day == 6.0
    assert scenario.times.save_stall_s == GIVEN.stall_s and scenario.cluster.replicas == 4
