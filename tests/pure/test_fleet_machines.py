"""Which machine a failure strikes matters in a simulated fleet, in either way of living with it; and how slow it is."""

from dataclasses import replace

import pytest

from elastic.policies import Ladder
from elastic.sim.account import Cause
from elastic.sim.failures import Failure, failures_of
from elastic.sim.scenario import Failures, Job, Scenario
from elastic.sim.study import simulate
from tests.pure.test_fleet_faults import CLUSTER, TIMES, WAYS, ran, scenario


def with_spares(schedule: str, way: str, least: int = 0, seed: int = 0, **failures: object):
    played = Scenario(
        name="eight and two",
        cluster=replace(CLUSTER, spare_nodes=2),
        job=Job(hours=4.0, step_s=10.0, minimum_replicas=least),
        failures=Failures(schedule=schedule, **failures),  # type: ignore[arg-type]
        times=TIMES,
        way=way,
    )
    found = simulate(played, seed)
    assert found.account.total_s == pytest.approx(played.end_s, abs=1e-6)
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "fault", ["node_down", "kill", "xid with=79", "stop for=900", "stop for=60", "slow for=3600", "notice for=60"]
)
def test_what_strikes_a_machine_that_nobody_uses_is_no_incident(way, fault):
    kind, _, rest = fault.partition(" ")
    calm, struck = (with_spares(one, way) for one in ("", f"3600 {kind} node:n9 {rest}"))
    assert struck.incidents == () and struck.account == calm.account


def taken(seed: int, *spot: tuple[float, int]) -> list[Failure]:
    """By a trace, of ten machines."""
    failures = Failures(spot=spot, notice_s=0.0)
    ten = Scenario(name="ten", cluster=replace(CLUSTER, spare_nodes=2), job=Job(hours=4.0), failures=failures)
    return failures_of(ten, seed)


def test_whom_a_capacity_trace_takes_is_drawn_among_all_machines():
    drawn = [taken(seed, (3600.0, 7), (7200.0, 10)) for seed in range(40)]
    assert {len(set(one.nodes)) for found in drawn for one in found} == {3}
    assert {node for (one,) in drawn for node in one.nodes} == set(range(10)), "somebody is never taken"
    assert drawn[3] == taken(3, (3600.0, 7), (7200.0, 10)) != drawn[4]


def test_whom_a_capacity_trace_has_taken_is_not_taken_again_and_the_first_is_back_first():
    for seed in range(20):
        first, both, second = taken(seed, (10.0, 9), (20.0, 7), (30.0, 8), (40.0, 6), (50.0, 10))
        assert [(one.at_s, one.lasts_s) for one in (first, both, second)] == [(10.0, 20.0), (20.0, 30.0), (40.0, 10.0)]
        assert not set(first.nodes) & set(both.nodes) and not set(both.nodes) & set(second.nodes)
        assert [len(one.nodes) for one in (first, both, second)] == [1, 2, 2]


@pytest.mark.parametrize("way", WAYS)
def test_a_capacity_trace_stops_those_whose_machine_it_takes_and_nobody_by_taking_idle_ones(way):
    trace = ((3600.0, 9), (7200.0, 10))
    seed_of = {min(one.nodes[0], 8): seed for seed in range(40) for one in taken(seed, *trace)}
    idle, used = (with_spares("", way, seed=seed_of[node], spot=trace) for node in (8, 0))
    assert idle.incidents == ()
    assert len(used.failures) == 1


@pytest.mark.parametrize("way", WAYS)
def test_of_two_rows_of_a_trace_for_one_time_the_last_one_counts(way):
    assert with_spares("", way, spot=((3600.0, 5), (3600.0, 10))).incidents == ()
    twice, once = (taken(3, *rows, (7200.0, 10)) for rows in (((3600.0, 5), (3600.0, 7)), ((3600.0, 7),)))
    assert [(one.at_s, one.lasts_s, len(one.nodes)) for one in twice] == [(3600.0, 3600.0, 3)]
    assert [(one.at_s, one.lasts_s, len(one.nodes)) for one in once] == [(3600.0, 3600.0, 3)]


@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_that_is_reset_at_once_keeps_its_machine_there(way):
    at_once, soon = (
        simulate(replace(one, cluster=replace(CLUSTER, reset_s=reset_s)), 0).account.seconds[Cause.REDUCED_CAPACITY]
        for one in [scenario(way, schedule="3600 xid node:n1 with=95")]
        for reset_s in (0.0, 0.001)
    )
    assert at_once == pytest.approx(soon, abs=0.1)


@pytest.mark.parametrize("way", WAYS)
def test_a_machine_that_is_away_is_not_lost_again(way):
    once = "3600 node_down node:n1 for=1800"
    again = "; ".join(f"{at_s} node_down node:n1 for=900" for at_s in (3600, 3900, 4500))
    one, often = (with_spares(schedule, way) for schedule in (once, f"{once}; {again}"))
    assert one.account == often.account and one.failures == often.failures
    assert with_spares(f"{once}; 3900 node_down node:n9; 4000 kill", way).account.seconds[Cause.REDUCED_CAPACITY] < 30.0


@pytest.mark.parametrize("way", WAYS)
def test_a_machine_that_is_repaired_does_not_fail(way):
    """Repairs take half an hour; an outage that says how long it lasts does so all the same."""
    once, again, told, longer = (
        ran(f"3600 node_down node:n1; {rest}", way).account.seconds[Cause.REDUCED_CAPACITY]
        for rest in ("", "5000 node_down node:n1", "5000 notice node:n1 for=60", "5000 node_down node:n1 for=1800")
    )
    assert again == told == once and longer > once + 1000.0 / 8


def test_a_machine_that_is_lost_twice_takes_the_copies_of_one():
    times = replace(TIMES, save_interval_s=60.0, upload_interval_s=1800.0, copy_s=100.0)
    once, twice = (
        Scenario(
            name="one replica of two machines, and two spares",
            cluster=replace(CLUSTER, gpus=16, nodes_per_replica=2, spare_nodes=2),
            job=Job(hours=4.0, step_s=10.0, peers=1),
            failures=Failures(schedule=schedule),
            times=times,
        )
        for schedule in ("3600 node_down node:n0", "3600 node_down node:n0; 3600.5 node_down node:n0")
    )
    assert simulate(twice, 0).account == simulate(once, 0).account


@pytest.mark.parametrize("way", WAYS)
def test_machines_that_are_lost_together_are_repaired_together(way):
    all_of_them = "; ".join(f"3600 node_down node:n{number}" for number in range(8))
    found = with_spares(all_of_them, way, least=8)
    assert len(found.failures) == 1
    assert found.failures[0].lost_s < 1800.0 + 800.0


def test_a_machine_that_goes_while_another_one_comes_is_missed_from_then_on():
    times = replace(TIMES, replace_s=1000.0)
    spared = Scenario(
        name="one spare",
        cluster=replace(CLUSTER, spare_nodes=1),
        job=Job(hours=3.0, step_s=10.0),
        failures=Failures(schedule="3600 node_down node:n1; 4000 node_down node:n2; 4100 node_down node:n2"),
        times=times,
        way="restart",
    )
    (incident,) = simulate(spared, 0).failures
    assert (incident.kind, incident.decision) == ("node_down", "shrink")


@pytest.mark.parametrize("way", WAYS)
def test_what_fails_before_anybody_is_there_strikes_machines_alone(way):
    found = ran("30 kill node:n1; 40 node_down node:n2 for=600", way)
    assert [one.is_planned for one in found.incidents] == [True]


@pytest.mark.parametrize("trace", [((3600.0, 0), (12600.0, 8)), ((0.0, 0), (10800.0, 8))])
def test_who_waits_for_machines_does_not_look_all_the_time(trace):
    """Neither for a checkpoint that is to be restored, nor for the first ones."""
    found = with_spares("", "live", spot=trace)
    assert found.account.seconds[Cause.PAUSED] + found.account.seconds[Cause.WORKER_START] > 9000.0
    assert found.account.seconds[Cause.PRODUCTIVE] > 0.0 and found.events < 1000


# --- how slow all are ---


@pytest.mark.parametrize("way", WAYS)
def test_all_are_as_slow_as_the_slowest(way):
    policy = Ladder() if way == "live" else None
    calm, alone, beside, after = (
        ran(schedule, way, policy=policy).account.seconds[Cause.STRAGGLER_DRAG]
        for schedule in (
            "",
            "3600 slow node:n1 with=10 for=3600",
            "3600 slow node:n1 with=10 for=3600; 4000 slow node:n2 with=1.1 for=10",
            "3600 slow node:n1 with=2 for=3600; 4000 slow node:n2 with=10 for=100; 4050 slow node:n1 with=3 for=10",
        )
    )
    assert calm == 0.0 and alone == pytest.approx(3240.0, rel=0.02)
    assert beside == pytest.approx(alone, rel=1e-6)
    assert after == pytest.approx(3500.0 / 2 + 90.0, rel=0.02)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at_s", [100.3, 1000.7, 1234.567, 2000.123, 3333.33])
def test_who_was_slow_drags_nobody_afterwards(at_s, way):
    """However the sum of both times is rounded."""
    found = ran(f"{at_s} slow node:n1 with=2 for=61.7", way)
    assert found.account.seconds[Cause.STRAGGLER_DRAG] <= 61.7 / 2 + 1e-6


@pytest.mark.parametrize("way", WAYS)
def test_an_incident_that_is_not_over_before_the_run_is_counts_too(way):
    found = with_spares("; ".join(f"7200 node_down node:n{number} for=90000" for number in range(3)), way, least=8)
    (incident,) = found.failures
    assert incident.kind == "node_down" and incident.decision.partition(" ")[0] == "wait" and found.ending == ""
    assert 7200.0 <= incident.lost_s <= 7200.0 + 610.0


@pytest.mark.parametrize("way", WAYS)
def test_who_is_waited_for_at_the_end_is_so_no_longer_than_that(way):
    (incident,) = with_spares("14340 stop node:n1 for=100", way).failures
    assert (incident.decision, incident.lost_s) == ("wait", 60.0)


def test_what_nobody_has_decided_yet_has_no_decision_of_what_was_before():
    found = with_spares("3600 kill node:n1; 14399.5 kill node:n2", "live")
    assert [bool(one.decision) for one in found.failures] == [True, False]
