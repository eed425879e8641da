"""Plans for a cluster: what is tried, what is chosen, and what each other value would have been worth."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic.commands.scenarios import PRESETS, load
from elastic.control.flight import Flying, Reading
from elastic.control.suspicion import MIN_STEPS, hang_s, stall_limit_s, suspicions
from elastic.policies.interval import optimal_interval_s
from elastic.policies.table import BUILT_IN
from elastic.settings import Limits
from elastic.sim import planning
from elastic.sim.account import Cause
from elastic.sim.failures import failures_of
from elastic.sim.fleet import Fleet
from elastic.sim.planning import (
    POLICIES,
    Choice,
    Given,
    disk_interval_s,
    disk_worth,
    doubts,
    intervals_s,
    peers_of,
    planned,
    scenario_of,
    settings_of,
)
from elastic.sim.scenario import Failures, Job, Scenario
from elastic.sim.study import Row, median, simulate

WHERE: dict[str, Any] = {"worker": "w0", "generation": 1, "step": 1, "micro_batch": -1}
ROOT = Path(__file__).resolve().parents[2]

GIVEN = Given(
    gpus=128, mtbf_s=14400.0, state_bytes=840e9, nodes_per_replica=4, price_per_gpu_hour=2.0, notice_share=0.25
)


def made_up(what: str, wanted: Sequence[tuple[Scenario, str]]) -> list[Row]:
    assert wanted, "where all is known there is nothing to play"
    return [worth(*one) for one in wanted]


def worth(scenario: Scenario, policy: str) -> Row:
    """Two spares, the last policy and a minimum of one are best."""
    spares, least = scenario.cluster.spare_nodes, scenario.job.minimum_replicas
    goodput = 0.9 - 0.01 * abs(spares - 2) + 0.001 * POLICIES.index(policy) - 0.01 * (least - 1)
    usual = {
        "interval": (goodput, goodput),
        "shares": {},
        "incidents": 1.0,
        "resizes": 0.0,
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


def test_choices_are_tried_together_and_each_once():
    """A single replica leaves one minimum to choose, which is known by then."""
    batches: list[tuple[str, list[tuple[Scenario, str]]]] = []

    def play(what: str, wanted: Sequence[tuple[Scenario, str]]) -> list[Row]:
        batches.append((what, list(wanted)))
        return made_up(what, wanted)

    planned(replace(GIVEN, gpus=32), play)
    assert [what for what, _ in batches] == ["spare_nodes", "spare_replicas", "policy", "what each is worth"]
    played = [(repr(scenario), policy) for _, wanted in batches for scenario, policy in wanted]
    assert len(played) == len(set(played))


def test_intervals_follow_daly():
    local_s, persistent_s = intervals_s(GIVEN, 1)
    assert GIVEN.stall_s == pytest.approx(840e9 / 4 / 8 / planning.STALL_BYTES_PER_S)
    lost = (GIVEN.repair_s + GIVEN.loading_s) / 14400.0 / 4
    assert GIVEN.all_lost_s == pytest.approx(14400.0 / lost**3)
    assert local_s == optimal_interval_s(GIVEN.stall_s, GIVEN.all_lost_s)
    outages_s = optimal_interval_s(GIVEN.stall_s, GIVEN.outage_mtbf_s)
    assert persistent_s == pytest.approx(outages_s, rel=0.01) and persistent_s > max(local_s, GIVEN.upload_s)
    assert intervals_s(replace(GIVEN, outage_mtbf_s=60.0), 1) == (GIVEN.upload_s, GIVEN.upload_s)


def test_without_copies_on_other_machines_uploads_are_all_that_is_left_where_all_replicas_go():
    assert intervals_s(GIVEN, 0)[1] < 0.9 * intervals_s(GIVEN, 1)[1]


def test_snapshots_serve_who_has_one_replica_at_each_failure_and_who_has_many_hardly_ever():
    alone = replace(GIVEN, gpus=32)
    assert alone.all_lost_s == alone.mtbf_s
    assert intervals_s(alone, 1)[0] == optimal_interval_s(alone.stall_s, alone.mtbf_s)
    many = replace(GIVEN, gpus=32 * 1000, mtbf_s=1e5)
    assert intervals_s(many, 1)[0] == intervals_s(many, 1)[1]


def test_nobody_is_told_to_keep_a_step_twice_or_more_than_the_link_takes():
    alone = replace(GIVEN, gpus=32, step_s=1000.0)
    assert intervals_s(alone, 1)[0] == 1000.0
    slow = replace(GIVEN, gpus=32, link_bytes_per_s=1e9)
    assert slow.copy_s == pytest.approx(210.0)
    assert intervals_s(slow, 1)[0] == slow.copy_s > intervals_s(slow, 0)[0]
    assert intervals_s(replace(slow, gpus=128), 1)[0] == intervals_s(GIVEN, 1)[0], (
        "another replica has the bytes already"
    )


def test_as_many_peers_keep_copies_as_make_memory_as_safe_as_all_machines():
    assert peers_of(GIVEN, 16) == 1
    assert peers_of(replace(GIVEN, gpus=32, link_bytes_per_s=5e8), 4) == 2
    assert peers_of(replace(GIVEN, gpus=32, link_bytes_per_s=5e8), 2) == 1, "there is one other machine"
    assert peers_of(replace(GIVEN, gpus=8, nodes_per_replica=1), 1) == 0
    assert peers_of(replace(GIVEN, gpus=32, link_bytes_per_s=1e6), 4) == planning.MOST_PEERS


def test_disks_come_as_fast_as_they_write_and_save_what_uploads_lose():
    assert disk_interval_s(GIVEN, Choice()) == math.inf
    assert disk_worth(GIVEN, Choice()) == 0.0
    fast, slow = (replace(GIVEN, disk_bytes_per_s=rate) for rate in (1e12, 1e9))
    assert disk_interval_s(fast, Choice(local_interval_s=60.0)) == 60.0
    assert disk_interval_s(slow, Choice(local_interval_s=60.0)) == pytest.approx(210.0)
    worth_s = disk_worth(slow, Choice(persistent_interval_s=1800.0)) * GIVEN.outage_mtbf_s
    assert worth_s == pytest.approx((1800.0 - 210.0) / 2)
    assert disk_worth(slow, Choice(persistent_interval_s=100.0)) == 0.0, "uploads come sooner"


def test_a_plan_is_told_by_the_names_of_a_runs_settings():
    """That a run takes them is tested beside the command."""
    choice = Choice(policy="CostAware", minimum_replicas=2, spare_replicas=1, local_interval_s=9.0004, peers=2)
    told = settings_of(GIVEN, choice)
    assert told["policy"] == "elastic.policies:CostAware"
    replicas = {"num_dp_replicas": [2, 4], "spares": 1}
    assert told["scaling"] == replicas | {"workers_per_replica": 32, "num_nodes_per_dp": 4, "use_gpu": True}
    assert told["checkpoint"]["local_interval"] == {"seconds": 9.0} and told["checkpoint"]["peers"] == 2


def test_a_plan_that_cannot_work_says_why():
    found = planned(GIVEN, made_up)
    assert doubts(GIVEN, found) == []
    idle = replace(found, row=replace(found.row, goodput=0.0))
    assert [one.partition(",")[0] for one in doubts(GIVEN, idle)] == ["whatever is set"]
    (slow,) = doubts(replace(GIVEN, storage_bytes_per_s=1e6), found)
    assert slow.startswith("an upload takes 840000 s")


def test_who_does_no_work_is_not_the_cheapest():
    def play(what: str, wanted: Sequence[tuple[Scenario, str]]) -> list[Row]:
        rows = made_up(what, wanted)
        idle = [scenario.cluster.spare_nodes < 2 for scenario, _ in wanted]
        return [replace(row, goodput=0.0, useful_cost=0.0) if one else row for row, one in zip(rows, idle, strict=True)]

    assert planned(GIVEN, play).choice.spare_nodes == 2


@pytest.mark.parametrize(("peers", "is_kept"), [(0, False), (1, True)])
def test_a_copy_on_another_machine_outlives_a_single_replica(peers, is_kept):
    given = replace(GIVEN, gpus=32, mtbf_s=1e9, outage_mtbf_s=1e9, hours=3.0, repair_s=600.0, notice_share=0.0)
    choice = Choice(spare_nodes=1, peers=peers, local_interval_s=60.0, persistent_interval_s=3600.0)
    scenario = scenario_of(given, choice)
    ran = simulate(replace(scenario, failures=Failures(schedule="7000 node_down node:n0")), 0)
    assert [told.kind for told in ran.failures] == ["node_down"]
    assert (ran.account.seconds[Cause.REDONE] < 120.0) is is_kept


@pytest.mark.parametrize(("apart_s", "is_kept"), [(0.1, False), (60.0, True)])
def test_two_machines_at_a_time_are_more_than_one_copy_outlives(apart_s, is_kept):
    """Copies of the first are made good after 8.4 s; both are lost before anybody has looked for a step."""
    given = replace(GIVEN, gpus=32, mtbf_s=1e9, outage_mtbf_s=1e9, hours=3.0, repair_s=600.0, notice_share=0.0)
    choice = Choice(spare_nodes=2, peers=1, local_interval_s=60.0, persistent_interval_s=3600.0)
    schedule = f"7000 node_down node:n0; {7000 + apart_s} node_down node:n1"
    ran = simulate(replace(scenario_of(given, choice), failures=Failures(schedule=schedule)), 0)
    assert given.copy_s == pytest.approx(8.4) and ran.account.seconds[Cause.RESTORE] > 0.0
    assert (ran.account.seconds[Cause.REDONE] < 200.0) is is_kept


def test_a_choice_becomes_a_scenario():
    found = planned(GIVEN, made_up)
    scenario = scenario_of(GIVEN, found.choice)
    assert scenario.cluster.spare_nodes == 2 and scenario.failures.per_day == 6.0
    assert scenario.times.save_stall_s == GIVEN.stall_s and scenario.cluster.replicas == 4
    assert scenario.times.upload_interval_s == found.choice.persistent_interval_s
    assert [value for value, _ in found.worth["persistent_interval_s"]] == [
        f"{found.choice.persistent_interval_s * times:g}" for times in (0.25, 1.0, 4.0)
    ]


def test_policies_differ_where_a_spare_replica_is_there():
    given = replace(GIVEN, gpus=512, hours=100.0, notice_share=0.0)
    scenario = scenario_of(given, Choice(spare_nodes=4, spare_replicas=1))
    assert scenario.job.spare_replicas == 1 and scenario.cluster.nodes_per_rack == scenario.machine_count == 68
    goodputs = {round(simulate(scenario, 0, BUILT_IN[policy]).goodput, 9) for policy in POLICIES}
    assert len(goodputs) > 1


def test_who_hangs_is_found_by_the_rule_of_the_product():
    """At twice the limit, which is twice a usual step, once others wait for it; short steps have a least one."""
    readings = [Reading(phase=Flying.COMPUTING, commits=9, still_s=at_s, state="S", **WHERE) for at_s in (39.9, 40.0)]
    stall_s = stall_limit_s([10.0] * MIN_STEPS, Limits())
    assert [suspicions([one], stall_s, Limits())[0].is_dead for one in readings] == [False, True]
    assert scenario_of(GIVEN, Choice()).times.detect_hang_s == hang_s(10.0, Limits()) == 40.0
    assert hang_s(0.01, Limits()) == 2 * Limits().hang_floor_s


def test_no_copy_outlives_the_last_machine_however_slowly_they_go():
    fleet = Fleet(scenario_of(replace(GIVEN, gpus=32), Choice(peers=1)), 0)
    fleet.holders = {"w1": (0, 1, 2, 3)}
    kept = []
    for machine in range(4):
        fleet.now_s += 1000.0
        fleet.machines.lose(machine, until_s=1e6)
        fleet.lose_copies(machine)
        kept.append(bool(fleet.holders))
    assert kept == [True, True, True, False]


def test_an_outage_of_all_machines_costs_what_was_not_uploaded():
    given = replace(GIVEN, mtbf_s=1e9, outage_mtbf_s=4 * 3600.0, repair_s=600.0, hours=20.0)
    redone_s = []
    for interval_s in (900.0, 14400.0):
        ran = simulate(scenario_of(given, Choice(persistent_interval_s=interval_s)), 0)
        assert [told.kind for told in ran.failures].count("node_down") >= 3 and ran.ending == ""
        redone_s.append(ran.account.seconds[Cause.REDONE])
    assert redone_s[1] > 3 * redone_s[0] > 0.0


def test_what_was_measured_is_what_the_results_say():
    recovery = medians()
    assert pytest.approx(recovery["node"]["t_resume_s"], rel=0.01) == planning.DETECT_S
    joined = [row for row in result("inputs/recovery_elastic")["rows"] if row["scenario"] == "join"]
    gap_s, copy_s = (median(row[name] for row in joined) for name in ("longest_gap_s", "copy_s"))
    assert gap_s / copy_s == pytest.approx(planning.HEAL_TIMES, rel=0.02)
    kept = result("checkpoint_systems")
    stall_s = median(row["stall_s"] for row in kept["rows"] if row["system"] == "elastic" and row["stall_s"])
    assert kept["settings"]["nbytes"] / stall_s == pytest.approx(planning.STALL_BYTES_PER_S, rel=0.01)
    scale = (ROOT / "docs" / "scale.md").read_text()
    assert f"{1000 * planning.FREEZE_S:.0f} ms" in scale
    assert f"go after {10_000 * planning.GO_S_PER_HOST:.1f} s" in scale and "At 10,000 hosts" in scale


def test_so_are_the_values_of_the_presets():
    """A source that names a result and one of its medians, or the page on scale, is where the value is from."""
    found = 0
    for entry in (entry for path in PRESETS.glob("*.yaml") for entry in load(path.stem)):
        for where, source in entry.scenario.sources.items():
            section, _, name = where.partition(".")
            if named := re.match(r"recovery_elastic.json, (\w+): median (\w+)", source):
                value = getattr(getattr(entry.scenario, section), name)
                assert value == pytest.approx(medians()[named[1]][named[2]], rel=0.01), (entry.name, where)
                found += 1
            elif source.startswith("control/suspicion.py: "):
                assert entry.scenario.times.detect_hang_s == hang_s(entry.scenario.job.step_s, Limits())
                found += 1
            elif source.startswith("docs/scale.md: 112 ms"):
                assert entry.scenario.times.freeze_s == planning.FREEZE_S
            elif source.startswith("docs/scale.md: 12.4 s"):
                hosts = entry.scenario.cluster.nodes_per_replica
                assert entry.scenario.times.form_per_replica_s == pytest.approx(planning.GO_S_PER_HOST * hosts)
            elif "recovery_elastic.json, join" in source:
                assert (gigabytes := re.match(r"(\d+) GB a GPU", source)) and "at 25 GB/s, times 2.2" in source
                heal_s = planning.HEAL_TIMES * float(gigabytes[1]) / 25
                assert entry.scenario.times.heal_s == pytest.approx(heal_s, rel=0.04), entry.name
    assert found >= 8


# By preset: interruptions a day, of "The Llama 3 Herd of Models" (arXiv:2407.21783) and of arXiv:2410.21680.
PUBLISHED = {
    "llama3": 466 / 54,
    "fleet_1k": 24 / 7.9,
    "fleet_16k": 24 / 1.8,
    "fleet_100k": 466 / 54 * 100096 / 16384,
    "spot_256": 24 / 7.9 * 256 / 1024,
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_a_preset_fails_as_often_as_is_published(preset):
    """All causes together, but for machines that flap or are lent: those are no failures of the published ones."""
    scenario = load(preset)[0].scenario
    cluster, wanted = scenario.cluster, scenario.failures
    racks = math.ceil(scenario.machine_count / cluster.nodes_per_rack)
    switches = math.ceil(racks / cluster.racks_per_switch)
    bad = round(wanted.bad_share * cluster.nodes) / cluster.nodes * (wanted.bad_times - 1)
    each_s = racks / wanted.rack_mtbf_s + switches / wanted.switch_mtbf_s + 1 / wanted.storage_mtbf_s
    per_day = wanted.per_day * (1 + bad) + planning.DAY_S * each_s
    assert per_day == pytest.approx(PUBLISHED[preset], rel=0.01)
    drawn = replace(scenario, failures=replace(wanted, flapping_share=0.0, spot=()), job=Job(hours=24 * 400.0))
    assert len(failures_of(drawn, 0)) / 400 == pytest.approx(per_day, rel=0.1)


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return found


def medians() -> dict[str, dict[str, float]]:
    return {row["scenario"]: row for row in result("inputs/recovery_elastic")["medians"]}
