"""What strikes a simulated fleet: each fault does what its name says, or is refused; none is passed over."""

from dataclasses import replace

import pytest

from elastic.control.faults import FaultKind
from elastic.control.remediation import Kind, Remediation
from elastic.control.values import IncidentClass
from elastic.control.xid import Severity
from elastic.errors import SettingError
from elastic.policies import Ladder
from elastic.sim.account import Cause
from elastic.sim.failures import failures_of
from elastic.sim.fleet import Fleet
from elastic.sim.progress import Kept
from elastic.sim.scenario import Cluster, Failures, Job, Scenario, Times, parse
from elastic.sim.study import row_of, simulate
from elastic.sim.vocabulary import PLAYED

CLUSTER = Cluster(gpus=64, spare_nodes=0, repair_s=1800.0, reset_s=300.0, nodes_per_rack=2, racks_per_switch=2)
TIMES = Times(start_s=60.0, save_interval_s=600.0, load_s=30.0, warmup_s=20.0, detect_hang_s=120.0, loading_s=10.0)
WAYS = ("live", "restart")


def scenario(way: str = "live", hours: float = 4.0, times: Times = TIMES, **failures: object) -> Scenario:
    """Eight machines, a replica on each."""
    return Scenario(
        name="eight",
        cluster=CLUSTER,
        job=Job(hours=hours, step_s=10.0),
        failures=Failures(**failures),  # type: ignore[arg-type]
        times=times,
        way=way,
    )


def ran(schedule: str, way: str = "live", policy=None, **given: object):
    played = scenario(way, schedule=schedule, **given)
    found = Fleet(played, 0, policy).run() if policy is not None else simulate(played, 0)
    assert found.account.total_s == pytest.approx(played.end_s, abs=1e-6) and found.ending == ""
    return found


def told(found) -> list[tuple[str, str]]:
    return [(one.kind, one.decision.partition(":")[0]) for one in found.failures]


# --- what a fleet cannot play is refused ---


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        ("60 kill rank:1", "rank:1: no worker of a fleet has a name or a rank"),
        ("60 kill leader", "leader: no worker"),
        ("60 kill worker:w1", "worker:w1: no worker"),
        ("60 node_down node:n8", "node:n8: its machines are node:n0 to node:n7"),
        ("60 node_down node:n", "node:n: its machines are"),
        ("60 kill for=5", "kill for=5: it is over at once"),
        ("60 xid with=79 for=5", "xid for=5: it is over at once"),
        ("60 xid with=79,gpu=1", "xid with=79,gpu=1: only the number counts: write with=79"),
        ("every 0.0001 kill", "every 0.0001: it must be 0.001 s or more"),
        ("poisson mtbf=0.0001 kill", "mtbf=0.0001: it must be 0.001 s or more"),
        ("60 bit_flip node:n1", "bit_flip node:n1: a fleet's checkpoints lie on no certain machine: leave it out"),
        ("60 kill,storage_errors node:n1", "storage_errors node:n1: a fleet's checkpoints lie on no certain machine"),
        ("60 storage_errors with=0.5", "storage_errors with=0.5: storage is there or it is not"),
        ("60 packets with=eth0,loss=0.1", "packets: a fleet has no packets"),
        ("60 disk_full", "disk_full: a fleet has no disks"),
        ("60 raise", "raise: an exception of a train_fn ends the run"),
        ("60 kill_monitor", "kill_monitor: a fleet has no host monitors"),
        ("every 60 kill,kill_supervisor", "kill_supervisor: a fleet's controller does not die"),
    ],
)
def test_a_schedule_that_would_have_no_effect_is_refused_and_named(schedule, why):
    with pytest.raises(SettingError, match="^failures.schedule: ") as refused:
        scenario(schedule=schedule)
    assert why in str(refused.value)


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind not in PLAYED])
def test_so_is_a_kind_that_would_have_none(kind):
    with pytest.raises(SettingError, match=f"failures.kinds.{kind.value}: "):
        scenario(kinds={kind: 1.0})


def test_an_xid_by_chance_needs_its_numbers():
    with pytest.raises(SettingError, match="failures.xids"):
        scenario(kinds={FaultKind.XID: 1.0})
    plain = {"cluster": {"gpus": 8}, "job": {"hours": 1}, "failures": {"kinds": {"xid": 1}, "xids": {79: 2, 31: 1}}}
    assert parse(plain).failures.xids == {79: 2.0, 31: 1.0}
    for wrong in (3, {"79": 1}):
        with pytest.raises(SettingError, match="by the number of an XID"):
            parse({**plain, "failures": {"xids": wrong}})
    codes = [one.xid for one in failures_of(scenario(hours=500.0, per_day=24.0, **parsed(plain)), 0)]
    assert set(codes) == {79, 31} and codes.count(79) == pytest.approx(2 * codes.count(31), rel=0.3)


def parsed(plain: dict) -> dict[str, object]:
    return {"kinds": parse(plain).failures.kinds, "xids": parse(plain).failures.xids, "bad_share": 0.25}


# --- what passes, and what does not ---


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ["stop node:n3 for=60", "partition node:n3 with=eth0 for=60"])
def test_what_is_over_before_it_is_found_is_waited_for(way, fault):
    found = ran(f"3600 {fault}", way)
    assert [one.decision for one in found.failures] == ["wait"]
    assert found.account.seconds[Cause.DETECTING] == pytest.approx(60.0)
    assert found.account.seconds[Cause.REDONE] == 0.0


@pytest.mark.parametrize(("name", "cause"), [("form_s", Cause.FORMING), ("heal_s", Cause.HEALING)])
def test_what_takes_longer_than_a_run_usually_waits_is_waited_for(name, cause):
    found = ran("7200 kill node:n1", times=replace(TIMES, **{name: 900.0}))
    seconds = found.account.seconds
    assert 900.0 <= seconds[cause] <= 3 * 900.0 + 10.0, "the start, the failure, and growing again"
    assert seconds[Cause.REDONE] <= 20.0 and seconds[Cause.RESTORE] == 0.0 and seconds[Cause.PAUSED] == 0.0


@pytest.mark.parametrize("way", WAYS)
def test_who_is_stopped_for_no_said_time_is_stopped_for_good(way):
    (stopped,) = ran("3600 stop node:n3", way, lasts_s=60.0).failures
    assert stopped.decision == ("shrink: 1 lost, no spare, 7 survive" if way == "live" else "restart")
    drawn = ran("", way, lasts_s=60.0, per_day=24.0, kinds={FaultKind.STOP: 1.0})
    assert {one.decision for one in drawn.failures} == {"wait"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("kind", "lasts_s"), [("partition with=eth0", 90.0), ("slow", 90.0), ("storage_errors", 90.0), ("notice", 600.0)]
)
def test_what_a_schedule_does_not_say_is_as_the_scenario_says(way, kind, lasts_s):
    one, other = (ran(f"3600 {kind}{end}", way, lasts_s=90.0, notice_s=600.0) for end in ("", f" for={lasts_s:g}"))
    assert (one.account, one.incidents) == (other.account, other.incidents)
    if kind == "notice" and way == "restart":
        assert one.incidents[0].at_s == 4200.0


def test_what_is_found_before_it_is_over_costs_a_worker():
    found = ran("3600 stop node:n3 for=600")
    assert told(found)[0][1] == "shrink" and found.account.seconds[Cause.DETECTING] == pytest.approx(120.0)


def test_a_first_step_that_is_held_up_is_told_when_it_is_done():
    times = Times(start_s=60.0, save_interval_s=600.0, loading_s=10.0, detect_hang_s=120.0)
    found = ran("80 stop node:n3 for=100; 1000 kill node:n1", times=times)
    assert [one.decision.partition(":")[0] for one in found.failures] == ["wait", "shrink"]


@pytest.mark.parametrize("way", WAYS)
def test_a_machine_that_is_cut_off_for_long_is_away_until_it_is_over(way):
    cut, stopped = (
        ran(f"3600 {fault} for=3000", way).account.seconds[Cause.REDUCED_CAPACITY]
        for fault in ("partition node:n3 with=eth0", "stop node:n3")
    )
    assert cut == pytest.approx(3000.0 / 8, rel=0.25) and stopped < 30.0


@pytest.mark.parametrize("way", WAYS)
def test_how_slow_a_machine_is_may_be_said(way):
    calm, twice, thrice = (
        ran(schedule, way, policy=Ladder() if way == "live" else None).account.seconds[Cause.PRODUCTIVE]
        for schedule in ("", "3600 slow node:n2 with=2 for=1200", "3600 slow node:n2 with=3 for=1200")
    )
    assert calm - twice == pytest.approx(600.0, rel=0.05) and calm - thrice == pytest.approx(800.0, rel=0.05)


def test_who_is_slow_before_it_trains_drags_nobody_yet():
    one = replace(CLUSTER, gpus=8, spare_nodes=1)
    times = replace(TIMES, loading_s=100.0)
    schedule = "3600 node_down node:n0 for=9000; 3700 slow node:n1 with=3 for=600"
    given = replace(scenario(schedule=schedule, times=times), cluster=one)
    assert simulate(given, 0).account.total_s == pytest.approx(given.end_s, abs=1e-6)


def test_what_is_slow_on_a_machine_of_nobody_drags_nobody():
    played = Scenario(
        name="spare",
        cluster=Cluster(gpus=64, spare_nodes=1),
        job=Job(hours=2.0),
        failures=Failures(schedule="3600 slow node:n8 for=600"),
    )
    assert simulate(played, 0).account.seconds[Cause.STRAGGLER_DRAG] == 0.0


def test_the_policy_hears_of_a_straggler_and_may_part_with_it():
    heard = []

    def parts(incident, view):
        heard.append((incident.kind, max(view.slowness.values(), default=1.0)))
        if incident.kind is IncidentClass.STRAGGLER:
            return Remediation(kind=Kind.SWAP, reason="too slow")
        return Ladder()(incident, view)

    with_spare = replace(
        scenario(schedule="3600 slow node:n2 with=3 for=3600"), job=Job(hours=4.0, step_s=10.0, spare_replicas=1)
    )
    kept, parted = Fleet(with_spare, 0).run(), Fleet(with_spare, 0, parts).run()
    assert set(heard) == {(IncidentClass.STRAGGLER, 3.0)}
    assert told(parted) == [("slow", "8 replicas")]
    assert parted.account.seconds[Cause.STRAGGLER_DRAG] < 0.4 * kept.account.seconds[Cause.STRAGGLER_DRAG]


def test_what_is_dealt_by_speed_drags_less():
    def deals(incident, view):
        return Remediation(kind=Kind.REDEAL, reason="by speed")

    schedule = "3600 slow node:n2 with=3 for=3600"
    even, dealt = (ran(schedule, policy=policy).account.seconds[Cause.STRAGGLER_DRAG] for policy in (None, deals))
    assert dealt < 0.5 * even


# --- XIDs by their class ---


@pytest.mark.parametrize(
    ("code", "severity", "away_s"),
    [
        (31, Severity.USER_ERROR, 0.0),
        (94, Severity.RESTARTABLE, 0.0),
        (95, Severity.RESET_NEEDED, 300.0),
        (79, Severity.NODE_MUST_GO, 1800.0),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_an_xid_costs_what_its_class_asks_for(way, code, severity, away_s):
    (failure,) = failures_of(scenario(schedule=f"3600 xid node:n3 with={code}"), 0)
    found = ran(f"3600 xid node:n3 with={code}", way)
    assert failure.severity is severity and [one.kind for one in found.failures] == ["xid"]
    missing_s = 8 * found.account.seconds[Cause.REDUCED_CAPACITY]
    assert missing_s == pytest.approx(away_s, abs=700.0 if way == "restart" and away_s else 60.0)
    decisions = {
        Severity.NODE_MUST_GO: "replace the node",
        Severity.RESET_NEEDED: "reset the GPU",
        Severity.RESTARTABLE: "restart the worker",
        Severity.USER_ERROR: "shrink",  # nothing is wrong with the GPU: another process takes the place
    }
    if way == "live":
        assert found.failures[0].decision.partition(":")[0] == decisions[severity]


@pytest.mark.parametrize("way", WAYS)
def test_an_xid_that_is_only_a_note_costs_nothing(way):
    assert ran("3600 xid node:n3 with=63", way).failures == ()


# --- checkpoints: damaged ones, and storage that is away ---


@pytest.mark.parametrize("way", WAYS)
def test_a_flipped_bit_is_in_a_stored_shard_and_costs_who_reads_it(way):
    def goes_back(incident, view):
        return Remediation(kind=Kind.RESTART_FROM_TIER, reason="to be sure")

    policy = goes_back if way == "live" else None
    assert ran("3500 bit_flip", way).failures == ()
    sound, damaged = (
        ran(schedule, way, policy).account.seconds[Cause.REDONE]
        for schedule in ("3600 kill node:n1", "3500 bit_flip; 3501 bit_flip; 3600 kill node:n1")
    )
    assert damaged - sound == pytest.approx(600.0, abs=25.0)


def test_a_shard_of_the_tier_that_is_named_is_damaged():
    times = Times(start_s=60.0, save_interval_s=300.0, upload_interval_s=1200.0, loading_s=10.0, load_s=30.0)
    all_lost = "; ".join(f"3600 node_down node:n{number} for=60" for number in range(8))
    one_lost = "3600 kill node:n1"

    def goes_back(incident, view):
        return Remediation(kind=Kind.RESTART_FROM_TIER, reason="to be sure")

    redone_s = {
        (flip, lost): ran(f"{flip}{lost}", "live", goes_back, times=times).account.seconds[Cause.REDONE]
        for flip in ("", "3590 bit_flip with=memory; ", "3590 bit_flip with=persistent; ")
        for lost in (all_lost, one_lost)
    }
    memory, persistent = "3590 bit_flip with=memory; ", "3590 bit_flip with=persistent; "
    assert redone_s["", one_lost] < 310.0 < 1000.0 < redone_s["", all_lost] < 1215.0
    assert redone_s[memory, one_lost] - redone_s["", one_lost] == pytest.approx(300.0, abs=15.0)
    assert redone_s[persistent, one_lost] == redone_s["", one_lost]
    assert redone_s[memory, all_lost] == redone_s["", all_lost]
    assert redone_s[persistent, all_lost] - redone_s["", all_lost] == pytest.approx(1200.0, abs=15.0)


@pytest.mark.parametrize("way", WAYS)
def test_while_storage_is_away_nothing_is_saved_and_nothing_read(way):
    def goes_back(incident, view):
        return Remediation(kind=Kind.RESTART_FROM_TIER, reason="to be sure")

    policy = goes_back if way == "live" else None
    sound, outage, longer = (
        ran(f"{storage}3600 kill node:n1", way, policy).account.seconds
        for storage in ("", "2000 storage_errors for=1500; ", "2000 storage_errors for=1800; ")
    )
    redone_s = outage[Cause.REDONE] - sound[Cause.REDONE]
    assert redone_s > 1000.0 if way == "restart" else redone_s < 0.0, "what was late is kept as soon as it can be"
    waits_s = sum(longer[cause] - outage[cause] for cause in (Cause.RESTORE, Cause.FORMING, Cause.PAUSED))
    begins_s = 3600.0 + (121.0 if way == "restart" else 10.0)
    assert waits_s == pytest.approx(3800.0 - begins_s, abs=15.0)
    assert longer[Cause.REDONE] - sound[Cause.REDONE] > 1000.0


def test_what_is_late_is_kept_when_it_can_be():
    kept = Kept(100.0, 100.0)
    kept.trained(250.0, 1.0, 250.0, is_down=False)
    assert (kept.newest_s, kept.before_s, kept.since_s) == (200.0, 100.0, 50.0)
    kept.trained(150.0, 1.0, 400.0, is_down=True)
    assert kept.newest_s == 200.0
    kept.trained(30.0, 1.0, 430.0, is_down=False)
    assert (kept.newest_s, kept.before_s, kept.since_s) == (400.0, 200.0, 30.0)
    kept.damage()
    assert kept.newest_s == 200.0


# --- what strikes many, and again and again ---


def test_a_switch_cuts_off_the_racks_behind_it():
    found = failures_of(scenario(hours=500.0, switch_mtbf_s=180000.0, switch_lasts_s=300.0), 0)
    assert {one.nodes for one in found} == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert all((one.kind, one.lasts_s) == (FaultKind.PARTITION, 300.0) for one in found)
    assert len(found) == pytest.approx(20, abs=12)


def test_storage_fails_as_often_as_is_said():
    found = failures_of(scenario(hours=500.0, storage_mtbf_s=36000.0, storage_lasts_s=900.0), 0)
    assert {(one.kind, one.lasts_s) for one in found} == {(FaultKind.STORAGE_ERRORS, 900.0)}
    assert len(found) == pytest.approx(50, abs=25)


@pytest.mark.parametrize("way", WAYS)
def test_flapping_machines_come_and_go(way):
    wanted = {"flapping_share": 0.25, "flapping_up_s": 1800.0, "flapping_down_s": 300.0}
    found = failures_of(scenario(hours=100.0, **wanted), 0)
    assert {one.nodes for one in found} == {(6,), (7,)} and {one.lasts_s for one in found} == {300.0}
    assert len(found) == pytest.approx(2 * 360000 / 2100, rel=0.2)
    row = row_of("flaps", scenario(way, **wanted), [simulate(scenario(way, **wanted), 0)])
    assert row.incidents > 5 and row.goodput < 1.0


def test_what_is_done_again_was_done_as_slowly_as_the_slowest():
    times = Times(save_interval_s=3600.0, start_s=0.0, load_s=1.0, relaunch_s=1.0)
    found = ran("3600 slow node:n1 for=2799 with=10; 6400 kill node:n2", "restart", times=times)
    assert found.account.seconds[Cause.REDONE] == pytest.approx(1.0 + 2799 / 10, abs=1.0)


@pytest.mark.parametrize("way", WAYS)
def test_while_there_is_no_machine_all_wait(way):
    found = ran("", way, hours=10.0, spot=((7200.0, 0), (14400.0, 8)))
    shares = found.account.shares()
    assert shares["paused"] == pytest.approx(0.2, abs=0.005) and shares.get("forming", 0.0) < 0.01
    assert way == "restart" or 0.0 < shares["restore"] < 0.01


# --- what counts as an incident ---


@pytest.mark.parametrize("way", WAYS)
def test_growing_again_is_no_incident(way):
    found = ran("1800 node_down node:n1; 7200 node_down node:n2", way)
    assert [one.kind for one in found.failures] == ["node_down", "node_down"]
    assert len(found.incidents) == 4
    row = row_of("two", scenario(way), [found])
    assert (row.incidents, row.resizes) == (2.0, 2.0)
    assert row.lost_s == pytest.approx(sum(one.lost_s for one in found.failures) / 2)


def test_a_machine_that_was_announced_to_go_is_one():
    found = ran("1800 notice node:n1 for=60")
    assert [(one.kind, one.is_planned) for one in found.incidents] == [("notice", False), ("growth", True)]


def test_there_are_no_more_incidents_than_failures():
    played = scenario(hours=60.0, per_day=24.0, kinds={FaultKind.NODE_DOWN: 3.0, FaultKind.NOTICE: 1.0})
    drawn, counted = len(failures_of(played, 0)), len(simulate(played, 0).failures)
    assert 0.8 * drawn < counted <= drawn


# --- starting anew, and failing again ---


def test_what_fails_while_processes_start_lengthens_the_incident():
    times = Times(save_interval_s=600.0, detect_s=10.0, relaunch_s=100.0, load_s=50.0, warmup_s=20.0)
    once = ran("3600 kill", "restart", times=times)
    twice = ran("3600 kill; 3730 kill", "restart", times=times)
    (one,), (two,) = once.failures, twice.failures
    assert one.lost_s == pytest.approx(180.0 + 0.0) and two.lost_s == pytest.approx(130.0 + 180.0)


def test_what_fails_while_there_are_no_processes_strikes_nobody():
    times = Times(save_interval_s=600.0, detect_s=100.0, relaunch_s=100.0)
    once, twice = (ran(one, "restart", times=times) for one in ("3600 kill", "3600 kill; 3650 kill"))
    assert once.account.seconds == twice.account.seconds


def test_a_machine_that_goes_while_there_are_no_processes_is_missed_all_the_same():
    times = Times(save_interval_s=600.0, detect_s=100.0, relaunch_s=100.0)
    found = ran("3600 kill; 3650 node_down node:n1", "restart", times=times)
    assert told(found) == [("kill", "shrink")]
    assert found.account.seconds[Cause.REDUCED_CAPACITY] > 100.0


def test_a_failure_while_it_grows_is_an_incident_of_its_own():
    times = Times(save_interval_s=600.0, relaunch_s=100.0)
    found = ran("1800 node_down node:n1 for=600; 3020 kill", "restart", times=times)
    grown = next(one for one in found.incidents if one.is_planned)
    struck_s = grown.at_s + 50.0
    found = ran(f"1800 node_down node:n1 for=600; {struck_s:g} kill", "restart", times=times)
    assert [one.kind for one in found.incidents] == ["node_down", "capacity is back", "kill"]
    assert found.incidents[1].lost_s == pytest.approx(50.0)


def test_who_is_not_there_yet_is_not_waited_for():
    assert ran("30 stop node:n3 for=20").incidents == ()
