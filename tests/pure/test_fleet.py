"""Simulated fleets: the books balance, each failure is answered, and published rates come out."""

import json
import math
from dataclasses import replace

import pytest

from elastic.control.faults import FaultKind
from elastic.control.remediation import Kind, Remediation
from elastic.errors import SettingError
from elastic.policies import ExitOnNotice, policy_of
from elastic.sim.account import Account, Cause
from elastic.sim.failures import failures_of
from elastic.sim.fleet import Fleet
from elastic.sim.machines import Machines
from elastic.sim.planning import Given
from elastic.sim.restarting import Restarting
from elastic.sim.scenario import Cluster, Failures, Job, Scenario, Times, parse, spot_rows
from elastic.sim.study import difference_of, interval_of, machine_hours, median, row_of, simulate
from elastic.sim.vocabulary import PLAYED
from tests.pure.pinned import FLEETS_FILE, fleet_digests

HOUR_S = 3600.0
KINDS = {kind: 1.0 for kind in PLAYED}


def scenario_of(way: str = "live", **given: object) -> Scenario:
    """16 machines in 8 replicas for ten hours, with a failure of any kind every half an hour."""
    parts = {
        "name": "small",
        "cluster": Cluster(gpus=128, nodes_per_replica=2, spare_nodes=1, repair_s=HOUR_S),
        "job": Job(hours=10.0, step_s=10.0, slowdown=0.01),
        "failures": Failures(per_day=48.0, kinds=KINDS, xids={79: 1.0, 31: 1.0, 95: 1.0, 63: 1.0}, lasts_s=900.0),
        "times": Times(start_s=60.0, save_interval_s=600.0, save_stall_s=2.0, load_s=30.0, warmup_s=20.0),
        "way": way,
    }
    return Scenario(**{**parts, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["live", "restart"])
def test_every_second_has_a_name(way):
    for seed in range(2):
        for scenario in (scenario_of(way), scenario_of(way, is_elastic=False)):
            ran = simulate(scenario, seed)
            assert ran.account.total_s == pytest.approx(scenario.end_s, abs=1e-6)
            assert all(seconds >= -1e-6 for seconds in ran.account.seconds.values())
            assert 0.0 < ran.goodput < 1.0
            assert ran.incidents


@pytest.mark.parametrize("way", ["live", "restart"])
def test_one_seed_is_one_run(way):
    one, two = (simulate(scenario_of(way), 3) for _ in range(2))
    other = simulate(scenario_of(way), 4)
    assert one == two and one.digest == two.digest
    assert one != other and one.digest != other.digest


def test_fleets_are_what_they_were_elsewhere():
    """Whoever has changed the control plane or the model writes them anew: python -m tests.pure.pinned"""
    assert fleet_digests() == json.loads(FLEETS_FILE.read_text())


@pytest.mark.parametrize("way", ["live", "restart"])
def test_without_failures_only_what_the_scenario_says_is_lost(way):
    ran = simulate(scenario_of(way, failures=Failures()), 0)
    shares = ran.account.shares()
    start = 60.0 / 36000.0 if way == "restart" else (60.0 + 5.0 + 60.0 + 0.1) / 36000.0
    expected = (1.0 - start) * (600.0 / 602.0) * 0.99
    assert shares["productive"] == pytest.approx(expected, rel=1e-3)
    assert ran.incidents == ()


def test_live_processes_lose_no_step_but_the_one_under_way():
    ran = simulate(scenario_of(failures=Failures(schedule="every 600 kill")), 0)
    kills = [told for told in ran.incidents if told.kind == "kill"]
    assert len(kills) >= 50
    assert ran.account.seconds[Cause.REDONE] <= 10.0 * len(kills)
    assert max(told.lost_s for told in kills) < 10.0 + 5.0
    assert {told.decision.split(":")[0] for told in kills} == {"shrink"}


def test_a_restart_loses_what_came_after_the_last_checkpoint():
    failures = Failures(schedule="1000 kill")
    ran = simulate(scenario_of("restart", failures=failures), 0)
    since_s = (1000.0 - 60.0) % 602.0
    assert ran.account.seconds[Cause.REDONE] == pytest.approx(since_s * 600.0 / 602.0 * 0.99)
    times = Times(start_s=60.0, save_interval_s=600.0, save_lag_s=400.0)
    lagging = scenario_of("restart", failures=failures, times=times)
    assert simulate(lagging, 0).account.seconds[Cause.REDONE] == pytest.approx(940.0 * 0.99)


def test_where_machines_are_missing_it_waits_or_goes_on_with_fewer():
    failures = Failures(schedule="1000 node_down node:n0; 1001 node_down node:n5")
    waits = simulate(scenario_of("restart", failures=failures, is_elastic=False), 0)
    shrinks = simulate(scenario_of("restart", failures=failures), 0)
    assert waits.account.seconds[Cause.PAUSED] > 1000.0
    assert shrinks.account.seconds[Cause.PAUSED] == 0.0 < shrinks.account.seconds[Cause.REDUCED_CAPACITY]
    assert [told.decision for told in shrinks.incidents][-1] == "grow"
    assert shrinks.goodput > waits.goodput


def test_where_all_replicas_die_the_state_comes_from_a_checkpoint():
    failures = Failures(rack_mtbf_s=4 * HOUR_S)
    cluster = Cluster(gpus=64, nodes_per_replica=1, nodes_per_rack=8, repair_s=600.0)
    runs = [simulate(scenario_of(cluster=cluster, failures=failures), 0)]
    assert sum(run.account.seconds[Cause.RESTORE] for run in runs) > 0.0
    assert all(run.ending == "" for run in runs)


def test_a_machine_that_is_announced_to_go_costs_no_step():
    failures = Failures(schedule="every 1800 notice", notice_s=60.0)
    ran = simulate(scenario_of(failures=failures), 0)
    assert ran.generations > 10
    assert ran.account.seconds[Cause.REDONE] == pytest.approx(0.0, abs=1e-6)


def test_spot_capacity_comes_and_goes():
    trace = ((3600.0, 8), (7200.0, 17), (10800.0, 12), (14400.0, 20))
    found = failures_of(scenario_of(failures=Failures(spot=trace, notice_s=30.0)), 0)
    assert [(one.at_s, len(one.nodes), one.away_s) for one in found] == [(3570.0, 9, 3600.0), (10770.0, 5, 3600.0)]
    for way in ("live", "restart"):
        ran = simulate(scenario_of(way, failures=Failures(spot=trace)), 0)
        away = 4.0 / 8.0 * 3600.0 + 2.0 / 8.0 * 3600.0
        assert ran.account.seconds[Cause.REDUCED_CAPACITY] == pytest.approx(away, rel=0.25)


@pytest.mark.parametrize("spot", [((3600.0, 8), (7200.0, 17)), ((0.0, 8), (3600.0, 17))])
def test_capacity_that_goes_without_notice_is_not_announced(spot):
    found = failures_of(scenario_of(failures=Failures(spot=spot, notice_s=0.0 if spot[0][0] else 30.0)), 0)
    assert [(one.at_s, one.kind, one.lasts_s) for one in found] == [(spot[0][0], FaultKind.NODE_DOWN, 3600.0)]
    for way in ("live", "restart"):
        told = simulate(scenario_of(way, failures=Failures(spot=((3600.0, 8), (7200.0, 17)), notice_s=0.0)), 0).failures
        assert [one.kind for one in told] == ["node_down"]


def test_failures_come_at_the_rates_that_are_given():
    scenario = scenario_of(
        job=Job(hours=2000.0), failures=Failures(per_day=24.0, bad_share=0.25, bad_times=9.0, rack_mtbf_s=200 * HOUR_S)
    )
    found = failures_of(scenario, 1)
    assert found == sorted(found, key=lambda one: one.at_s)
    drawn = [one for one in found if not one.nodes]
    bad = [one for one in found if len(one.nodes) == 1 and one.nodes[0] < 4]
    racks = [one for one in found if len(one.nodes) > 1]
    assert len(drawn) == pytest.approx(2000, rel=0.1)
    assert len(bad) == pytest.approx(2000 / 16 * 4 * 8, rel=0.1)
    assert len(racks) == pytest.approx(10, abs=8)


def test_a_policy_decides():
    seen = []

    def waits(incident, view):
        seen.append(incident.kind)
        return Remediation(kind=Kind.PAUSE, reason="to see", for_s=300.0)

    failures = Failures(schedule="every 3600 kill")
    ladder, paused = (Fleet(scenario_of(failures=failures), 0, policy).run() for policy in (None, waits))
    assert seen and paused.account.seconds[Cause.PAUSED] > 0.9 * 300.0 * len(set(seen))
    assert paused.goodput < ladder.goodput


def test_slow_machines_drag_all():
    failures = Failures(schedule="3600 slow for=1800", slow_factor=2.0)
    for way in ("live", "restart"):
        calm, slow = (simulate(scenario_of(way, failures=one), 0) for one in (Failures(), failures))
        lost_s = calm.account.seconds[Cause.PRODUCTIVE] - slow.account.seconds[Cause.PRODUCTIVE]
        assert lost_s == pytest.approx(900.0, rel=0.02)


def test_machines_are_given_out_lowest_first_and_shunned_ones_not():
    machines = Machines(Cluster(gpus=32, nodes_per_replica=2), spares=0)
    assert machines.take("w0") and machines.of["w0"] == (0, 1)
    assert not machines.take("w1", avoid=["n2"]) and machines.free == [2, 3]
    machines.lose(3, until_s=5.0)
    assert not machines.take("w1")
    assert not machines.come_back(3, now_s=4.0) and machines.come_back(3, now_s=5.0)
    machines.lose(0, until_s=9.0)
    machines.release("w0")
    assert sorted(machines.free) == [1, 2, 3]


def test_a_scenario_keeps_its_sources():
    plain = {
        "name": "x",
        "cluster": {"gpus": {"value": 64, "source": "a paper"}, "repair_s": "2h"},
        "job": {"hours": 1},
        "failures": {"kinds": {"kill": 2, "node-down": 1}, "spot": [[0, 4]]},
    }
    scenario = parse(plain)
    assert scenario.sources == {"cluster.gpus": "a paper"} and scenario.cluster.repair_s == 7200.0
    assert scenario.failures.kinds == {FaultKind.KILL: 2.0, FaultKind.NODE_DOWN: 1.0}
    later = parse({"name": "y", "job": {"hours": {"value": 2, "source": "us"}}}, scenario)
    assert later.job.hours == 2 and later.cluster == scenario.cluster and later.sources["cluster.gpus"] == "a paper"


@pytest.mark.parametrize(
    ("plain", "why"),
    [
        ({"cluster": {"gpu": 1}}, "cluster.gpu is unknown"),
        ({"cluster": 3, "job": {"hours": 1}}, "must be a mapping"),
        ({"cluster": {"gpus": "many"}}, "must be a number"),
        ({"cluster": {"gpus": -1}}, "must not be negative"),
        ({"cluster": {"gpus": 8}, "job": {}}, "hours"),
        ({"cluster": {"gpus": 8}, "job": {"hours": 0}}, "must be 0.001 or more"),
        ({"cluster": {"gpus": 8}, "job": {"hours": 1, "minimum_replicas": 9}}, "more than the 1 replicas"),
        ({"cluster": {"gpus": 8}, "job": {"hours": 1}, "way": "none"}, "must be one of"),
        ({"cluster": {"gpus": 8}, "job": {"hours": 1}, "weather": "fine"}, "no part of a scenario"),
        ({"cluster": {"gpus": 8}, "job": {"hours": 1}, "failures": {"kinds": {}}}, "weights"),
        ({"cluster": {"gpus": 8}, "job": {"hours": 1}, "failures": {"kinds": {"boom": 1}}}, "there is no fault"),
        ({"cluster": {"gpus": 8}, "job": {"hours": 1}, "failures": {"spot": 3}}, "rows of"),
        ({"cluster": {"gpus": 8}, "job": {"hours": 1}, "failures": {"schedule": "boom"}}, None),
    ],
)
def test_a_scenario_that_cannot_work_says_why(plain, why):
    if why is None:  # the schedule speaks for itself, when it is played
        with pytest.raises(SettingError, match="no entry of a schedule"):
            failures_of(parse(plain), 0)
        return
    with pytest.raises(SettingError, match=why):
        parse(plain)


def test_a_capacity_trace_is_lines_of_seconds_and_machines():
    assert spot_rows("seconds,machines\n0,4\n# away\n\n60.5,2\n") == [[0.0, 4.0], [60.5, 2.0]]
    with pytest.raises(SettingError, match="no line of a capacity trace"):
        spot_rows("0,4\nsoon,3")
    assert spot_rows("# ours\n\nseconds,machines\n0,4\n") == [[0.0, 4.0]]


@pytest.mark.parametrize("line", ["0,5.5", "0;5", "3600,nan", ".5,four", "0,5,1"])
def test_a_first_line_that_begins_with_a_number_names_no_columns(line):
    with pytest.raises(SettingError, match=f"^'{line}' is no line of a capacity trace"):
        spot_rows(f"{line}\n3600,8")


def test_a_row_has_its_interval_and_its_price():
    cluster = Cluster(gpus=128, nodes_per_replica=2, spare_nodes=1, price_per_gpu_hour=2.0)
    scenario = scenario_of("restart", cluster=cluster)
    row = row_of("a", scenario, [Restarting(scenario, seed).run() for seed in range(10)])
    assert row.interval[0] < row.goodput < row.interval[1]
    assert row.gpu_hours == 17 * 8 * 10 and row.cost == 2.0 * row.gpu_hours
    assert row.useful_cost == pytest.approx(row.cost / (10 * row.goodput))
    assert sum(row.shares.values()) == pytest.approx(1.0)


def test_machines_that_a_capacity_trace_has_taken_away_cost_nothing():
    spot = ((7200.0, 0), (14400.0, 99), (90000.0, 1))
    scenario = scenario_of(failures=Failures(spot=spot))
    assert machine_hours(scenario, 17) == 17 * 2 + 17 * 6
    row = row_of("a", scenario, [simulate(scenario, 0)])
    assert row.gpu_hours == 8 * 17 * 8
    assert machine_hours(scenario_of(), 17) == 170


def test_a_policy_that_fails_is_part_of_the_row():
    def fails(incident, view):
        raise ValueError("(oh)")

    row = row_of("a", scenario_of(), [simulate(scenario_of(), seed, policy_of(fails)) for seed in range(2)])
    assert row.faults == ("the policy raised ValueError: (oh)",)
    sound = row_of("a", scenario_of(), [simulate(scenario_of(), seed) for seed in range(2)])
    assert sound.faults == () and sound.decided == row.decided and sum(sound.kinds.values()) == sound.incidents


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"failures": {"storage_mtbf_s": 0}}, "failures.storage_mtbf_s=0 must be 0.001 or more"),
        ({"failures": {"rack_mtbf_s": 0}}, "failures.rack_mtbf_s=0 must be"),
        (
            {"failures": {"flapping_share": 0.5, "flapping_up_s": 0, "flapping_down_s": 0}},
            "failures.flapping_up_s=0 must be",
        ),
        ({"failures": {"per_day": 1e11}}, "failures.per_day=100000000000.0 must be from 0 to 8.64e+07"),
        ({"failures": {"bad_share": 0.5, "bad_times": 1e11}}, "failures.bad_times=100000000000.0 must be from 0 to"),
        ({"times": {"save_stall_s": 1e300}}, "times.save_stall_s=1e+300 must be 1e+12 or less"),
        ({"times": {"load_s": "9" * 400}}, "times.load_s=inf must be finite"),
        ({"cluster": {"gpus": 8 * 10**400}}, "cluster.gpus=8000000000000"),
        ({"failures": {"flapping_down_s": 0}}, "failures.flapping_down_s=0 must be 0.001 or more"),
        ({"failures": {"switch_lasts_s": 0}}, "failures.switch_lasts_s=0 must be 0.001 or more"),
        ({"failures": {"storage_lasts_s": 0}}, "failures.storage_lasts_s=0 must be 0.001 or more"),
        ({"job": {"hours": 1, "slowdown": 1.5}}, "job.slowdown=1.5 must be from 0 to 0.999"),
        ({"job": {"hours": float("inf")}}, "job.hours=inf must be finite"),
        ({"job": {"hours": float("nan")}}, "job.hours=nan must be a number"),
        ({"job": {"hours": 0}}, "job.hours=0 must be 0.001 or more"),
        ({"failures": {"spot": [[9, 3], [5, 4]]}}, "failures.spot: 5 comes after 9; order the rows by their seconds"),
        ({"failures": {"spot": [[9, -4]]}}, "failures.spot machines=-4 must not be negative"),
        ({"failures": {"spot": [[9, 1.5]]}}, "failures.spot machines=1.5 must be a whole number"),
        ({"failures": {"spot": [["a", 3]]}}, "failures.spot seconds='a' must be a number"),
        ({"failures": {"spot": [3]}}, "failures.spot must be rows"),
        ({"failures": {"spot": 3}}, "failures.spot must be rows"),
        ({"failures": {"bad_share": 2}}, "failures.bad_share=2 must be from 0 to 1"),
        ({"failures": {"flapping_share": 2}}, "failures.flapping_share=2 must be from 0 to 1"),
        ({"failures": {"bad_share": 0.05}}, "failures.bad_share=0.05 of 8 machines is none: write 0.125 or more"),
        ({"failures": {"flapping_share": 0.01}}, "failures.flapping_share=0.01 of 8 machines is none: write 0.125"),
        ({"failures": {"slow_factor": 0}}, "failures.slow_factor=0 must be 1 or more"),
        ({"failures": {"kinds": {"kill": 0}}}, "failures.kinds: one of the weights must be positive"),
        ({"failures": {"kinds": {"boom": 1}}}, "failures.kinds: there is no fault 'boom'"),
        ({"failures": {"schedule": "60 boom"}}, "failures.schedule: there is no fault 'boom'"),
        ({"job": {"hours": 1, "step_s": "0s"}}, "job.step_s=0.0 must be 0.001 or more"),
        ({"times": {"load_s": "soon"}}, "times.load_s='soon' must be a number of seconds"),
        ({"cluster": {}, "job": None}, "cluster.gpus must be given"),
        ({"name": 5}, "name=5 must be a text"),
        ({5: 1}, "5: no part of a scenario"),
        ({"is_elastic": "no"}, "is_elastic='no' must be true or false"),
        ({"cluster": {"gpus": 64, "gpus_per_node": 0}}, "cluster.gpus_per_node=0 must be 1 or more"),
        ({"cluster": {"gpus": 64.5}}, "cluster.gpus=64.5 must be a whole number"),
        ({"cluster": {"gpus": 64, "nodes_per_rack": 0}}, "cluster.nodes_per_rack=0 must be 1 or more"),
        ({"failures": {"xids": {79: 0}}}, "failures.xids: one of the weights must be positive"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_its_name(given, why):
    with pytest.raises(SettingError) as caught:
        parse({"cluster": {"gpus": 64}, "job": {"hours": 1}, **given})
    assert str(caught.value).startswith(why)


def test_a_failure_that_never_comes_may_be_told_so():
    scenario = parse({"cluster": {"gpus": 8}, "job": {"hours": 1}, "failures": {"storage_mtbf_s": float("inf")}})
    assert failures_of(scenario, 0) == []


def test_none_may_be_said_with_its_unit():
    plain = {"cluster": {"gpus": 8}, "job": {"hours": 1}, "times": {"detect_s": "0s"}}
    assert parse(plain).times.detect_s == 0.0


def test_a_bare_value_has_no_source_of_another():
    base = parse({"cluster": {"gpus": 8}, "job": {"hours": {"value": 1, "source": "us"}}})
    assert base.sources == {"job.hours": "us"}
    assert parse({"job": {"hours": 2}}, base).sources == {}


@pytest.mark.parametrize(("gpus", "sizes"), [(5, "8"), (100, "96 or 104"), (8, "")])
def test_gpus_that_make_no_whole_replicas_are_refused(gpus, sizes):
    if not sizes:
        assert parse({"cluster": {"gpus": gpus}, "job": {"hours": 1}}).cluster.replicas == 1
        return
    with pytest.raises(SettingError, match=f"^cluster.gpus={gpus} makes no whole replicas of 8 GPUs: write {sizes}$"):
        parse({"cluster": {"gpus": gpus}, "job": {"hours": 1}})
    with pytest.raises(SettingError, match=f"^--gpus={gpus} makes no whole replicas of 8 GPUs: write {sizes}$"):
        Given(gpus=gpus, mtbf_s=1e4, state_bytes=1e9)


def test_what_two_rows_differ_by_is_judged_seed_by_seed():
    runs = [simulate(scenario_of("restart"), seed) for seed in range(3)]
    row = row_of("a", scenario_of("restart"), runs)
    assert row.goodputs == tuple(run.goodput for run in runs) and "goodputs" not in row.told
    better = replace(row, goodputs=tuple(one + 0.01 for one in row.goodputs))
    mean, (low, high) = difference_of(better, row)
    assert mean == pytest.approx(0.01) and (low, high) == pytest.approx((0.01, 0.01))
    assert difference_of(row, row) == (0.0, (0.0, 0.0))
    one = row_of("a", scenario_of("restart"), runs[:1])
    assert one.interval is None and difference_of(one, one) == (0.0, None)


def test_the_interval_of_a_share_is_one():
    runs = [replace(simulate(scenario_of("restart"), 0), account=Account()) for _ in range(2)]
    for run, seconds in zip(runs, (0.0, 5.0), strict=True):
        run.account.add(Cause.PRODUCTIVE, seconds)
        run.account.add(Cause.FORMING, 5.0 - seconds)
    assert row_of("a", scenario_of("restart"), runs).interval == (0.0, 1.0)


@pytest.mark.parametrize(
    ("many", "quantile"), [(120, 1.9801), (121, 1.9799), (400, 1.9659), (1000, 1.9623), (3000, 1.9608)]
)
def test_an_interval_is_never_narrower_than_students(many, quantile):
    values = [float(number % 2) for number in range(many)]
    mean = sum(values) / many
    deviation = (sum((one - mean) ** 2 for one in values) / (many - 1)) ** 0.5
    low, high = interval_of(values)
    assert 1.0 <= (high - low) / 2 / (quantile * deviation / many**0.5) < 1.01


def test_small_numbers():
    assert interval_of([0.5]) is None
    low, high = interval_of([1.0, 2.0, 3.0, 4.0])
    tenths = [0.1] * 10
    assert interval_of(tenths) == (0.1, 0.1), "as exact as it gets, with every version of Python"
    assert (low, high) == pytest.approx((2.5 - 3.182 * 0.6455, 2.5 + 3.182 * 0.6455), rel=1e-3)
    assert interval_of([float(number % 2) for number in range(200)])[0] == pytest.approx(0.5 - 1.96 * 0.0354, rel=1e-2)
    assert (median([]), median([3.0, 1.0, 2.0]), median([1.0, 2.0])) == (0.0, 2.0, 1.5)
    account = Account()
    assert account.goodput == 0.0
    account.add(Cause.PRODUCTIVE, 3.0)
    account.move(5.0, Cause.PRODUCTIVE, Cause.REDONE)
    assert account.seconds[Cause.REDONE] == 3.0 and math.isclose(account.total_s, 3.0)


def test_a_policy_that_gives_up_ends_the_run():
    def gives_up(incident, view):
        return Remediation(kind=Kind.GIVE_UP, reason="too dear")

    ran = Fleet(scenario_of(failures=Failures(schedule="3600 kill")), 0, gives_up).run()
    assert "too dear" in ran.ending
    assert ran.account.seconds[Cause.PAUSED] == pytest.approx(36000.0 - 3600.0, rel=0.01)


def test_a_machine_in_quarantine_gets_no_worker_until_it_is_over():
    def keeps_away(incident, view):
        return Remediation(kind=Kind.QUARANTINE, reason="bad", for_s=1200.0)

    failures, cluster = Failures(schedule="3600 kill"), Cluster(gpus=128, nodes_per_replica=2, spare_nodes=0)
    ladder, away = (
        Fleet(scenario_of(failures=failures, cluster=cluster), 0, policy).run() for policy in (None, keeps_away)
    )
    missing_s = [run.account.seconds[Cause.REDUCED_CAPACITY] * 8 for run in (ladder, away)]
    assert missing_s[0] == pytest.approx(65.0, rel=0.3)
    assert 1100.0 < missing_s[1] < 1400.0


def test_failures_in_the_middle_of_a_recovery_are_answered_too():
    times = Times(start_s=60.0, freeze_s=2.0, form_s=5.0, heal_s=3.0)
    schedule = "1000 kill node:n0; 1001 kill node:n2; 1004 kill node:n4; 1006 node_down node:n6; 1080 kill node:n8"
    ran = simulate(scenario_of(failures=Failures(schedule=schedule), times=times), 0)
    assert ran.ending == "" and ran.goodput > 0.9
    assert ran.account.total_s == pytest.approx(36000.0, abs=1e-6)
    assert ran.generations >= 3


def test_what_is_parked_takes_over_at_once():
    cluster = Cluster(gpus=128, nodes_per_replica=2)
    failures = Failures(
        schedule="3600 node_down node:n0",
    )
    with_spare = scenario_of(cluster=cluster, failures=failures, job=Job(hours=10.0, spare_replicas=1))
    without = scenario_of(cluster=cluster, failures=failures, job=Job(hours=10.0))
    spare, none = (simulate(one, 0) for one in (with_spare, without))
    assert spare.account.seconds[Cause.REDUCED_CAPACITY] < 1.0 < none.account.seconds[Cause.REDUCED_CAPACITY]
    assert spare.machines == 18 and [told.decision.split(":")[0] for told in spare.incidents] == ["swap in a spare"]


def test_what_passes_is_waited_for_where_processes_restart():
    failures = Failures(schedule="3600 stop for=60; 7200 stop for=3000")
    ran = simulate(scenario_of("restart", failures=failures), 0)
    assert [(told.decision, round(told.lost_s)) for told in ran.incidents][0] == ("wait", 60)
    assert ran.incidents[1].decision == "restart" and ran.incidents[1].lost_s > 600.0


# --- what is rare -----------------------------------------------------------------------------------------------------


def ran(schedule: str, policy=None, **times: float):
    """A fleet under these failures alone; it trains from 125.1 s on, a step takes 10 s."""
    given = {"start_s": 60.0, "save_interval_s": 600.0, "load_s": 30.0, **times}
    scenario = scenario_of(failures=Failures(schedule=schedule), times=Times(**given))
    found = Fleet(scenario, 0, policy).run()
    assert found.account.total_s == pytest.approx(36000.0, abs=1e-6) and found.ending == ""
    return found


def test_before_anybody_trains_a_failure_strikes_nobody():
    assert ran("30 kill").incidents == ()


def test_a_machine_that_is_lost_while_its_worker_loads_is_replaced():
    calm = ran("")
    for lost in (ran("62 node_down node:n0"), ran("70 node_down node:n0")):
        assert lost.incidents == () and lost.account.seconds[Cause.PRODUCTIVE] < calm.account.seconds[Cause.PRODUCTIVE]


def test_a_failure_in_the_first_step_costs_nothing_but_that_step():
    found = ran("128 kill node:n0")
    assert found.incidents[0].kind == "kill" and found.account.seconds[Cause.RESTORE] == 0.0
    assert 0.0 < found.account.seconds[Cause.REDONE] <= 10.0


def test_what_strikes_a_machine_that_nobody_is_on_strikes_nobody():
    once, twice = ran("3600 kill node:n0"), ran("3600 kill node:n0; 3603 kill node:n0")
    assert once.incidents == twice.incidents != ()


def test_a_machine_that_is_lost_again_comes_back_later():
    once, twice = (
        ran(schedule).account.seconds[Cause.REDUCED_CAPACITY]
        for schedule in (
            "1000 node_down node:n0 for=600; 1000 node_down node:n2 for=600",
            "1000 node_down node:n0 for=600; 1000 node_down node:n2 for=600; "
            "1300 node_down node:n0 for=900; 1300 node_down node:n2 for=900",
        )
    )
    assert twice > once + 0.5 * 600.0 / 8.0


def test_who_dies_while_a_generation_forms_is_found_by_those_who_wait_for_it():
    found = ran("1000 kill node:n0; 1009 kill node:n4", detect_s=5.0, freeze_s=2.0, form_s=5.0)
    assert [told.kind for told in found.incidents] == ["kill", "growth"], "nobody trained in between"


def test_who_does_not_answer_in_time_is_ended():
    found = ran("1000 kill node:n0", freeze_s=100.0)
    assert "8 lost" in found.incidents[0].decision and found.account.seconds[Cause.RESTORE] > 0.0
    assert found.account.seconds[Cause.REDUCED_CAPACITY] == 0.0, "their machines are free at once"


def test_who_joins_while_others_hang_waits_until_they_are_found():
    found = ran("3600 node_down node:n0; 3676 stop node:n4 for=9000", detect_hang_s=100.0)
    assert [told.kind for told in found.incidents][:2] == ["node_down", "stop"]
    assert found.account.seconds[Cause.DETECTING] >= 100.0 and found.incidents[2].at_s > 3776.0


@pytest.mark.parametrize("stall_s", [0.0, 3.0])
def test_a_policy_may_save_and_exit_and_the_step_is_saved(stall_s):
    times = Times(save_stall_s=stall_s)
    scenario = scenario_of(times=times, failures=Failures(schedule="3600 notice node:n1 for=300"))
    found = simulate(scenario, 0, ExitOnNotice())
    steps = math.floor(found.account.seconds[Cause.PRODUCTIVE] / scenario.job.step_s + 1e-6)
    assert found.ending.endswith(f"; step {steps - 1} is saved") and steps > 300
    assert found.account.seconds[Cause.PAUSED] == pytest.approx(scenario.end_s - 3600.0, abs=20.0)


def test_a_policy_may_pause_for_a_while():
    def pauses(incident, view):
        return Remediation(kind=Kind.PAUSE, reason="to see", for_s=600.0)

    found = simulate(scenario_of(failures=Failures(schedule="3600 kill node:n1")), 0, pauses)
    assert found.account.seconds[Cause.PAUSED] == pytest.approx(600.0, abs=5.0)


def test_who_is_to_exit_while_all_wait_does_so():
    def exits(incident, view):
        return Remediation(kind=Kind.EXIT, reason="enough")

    job = Job(hours=4.0, step_s=10.0, minimum_replicas=8)
    found = simulate(scenario_of(job=job, failures=Failures(schedule="3600 node_down node:n1 for=9000")), 0, exits)
    assert found.ending.startswith("the run exited before its last step (enough)")


def test_a_policy_may_go_back_to_a_checkpoint():
    def goes_back(incident, view):
        return Remediation(kind=Kind.RESTART_FROM_TIER, reason="to be sure")

    found = ran("3600 kill node:n0", goes_back)
    assert found.account.seconds[Cause.RESTORE] > 0.0


def test_a_machine_that_is_back_before_its_worker_has_gone_is_free_once_that_has():
    machines = Machines(Cluster(gpus=32, nodes_per_replica=2), spares=0)
    assert machines.take("w0") and machines.of["w0"] == (0, 1)
    machines.lose(0, until_s=5.0)
    assert machines.come_back(0, now_s=5.0) and sorted(machines.free) == [2, 3]
    machines.release("w0")
    assert sorted(machines.free) == [0, 1, 2, 3]


def test_what_comes_back_before_a_restart_takes_part_from_the_start():
    lost = simulate(scenario_of("restart", failures=Failures(schedule="30 node_down node:n0 for=10")), 0)
    assert lost.account.seconds[Cause.REDUCED_CAPACITY] < 60.0


def test_kinds_of_failures_come_as_often_as_they_weigh():
    wanted = Failures(per_day=240.0, kinds={FaultKind.KILL: 3.0, FaultKind.STOP: 1.0})
    kinds = [one.kind for one in failures_of(scenario_of(job=Job(hours=200.0), failures=wanted), 0)]
    assert kinds.count(FaultKind.KILL) == pytest.approx(1500, rel=0.1)
    assert kinds.count(FaultKind.STOP) == pytest.approx(500, rel=0.2)
