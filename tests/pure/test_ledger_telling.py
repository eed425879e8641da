"""The ledger on journals with something odd or missing in them; and how an account is told."""

import json
from dataclasses import replace
from math import inf

import pytest

from elastic.control.bequest import bequest_of, left_by
from elastic.control.care import Care, Hold
from elastic.control.outcome import Ending, Outcome
from elastic.control.state import RunState
from elastic.ledger.ledger import Ledger
from elastic.ledger.lines import broken_off, happened
from elastic.ledger.model import Account
from elastic.ledger.telling import facts, lines, rows
from elastic.settings import Checkpoint, RunSettings, Scaling
from tests.pure.test_ledger import STEP_S, C, Journal, near, only, started, strike


def test_who_is_told_that_train_fn_raised_twice_knows_one_error():
    journal = started().sleep(0.3)
    for worker in ("w1", "w0"):
        journal.write(event="TrainFnRaised", worker=worker, summary="ValueError: no", traceback="")
    account = journal.phase("ended").account()
    assert only(account, "train_fn raised").culprits == ("w1",)


def test_a_fault_of_another_version_is_known_by_its_kind():
    journal = started()
    fault = {"kind": "kill", "strength": 3}
    journal.write(event="FaultInjected", fault=fault, target="w1", at_s=journal.at_s, proof="seen")
    injected = only(journal.steps(2).account(), "injected fault").injected[0]
    assert (injected.fault, injected.target) == ("kill", "w1")


def test_steps_that_are_told_after_the_run_went_back_behind_them_do_not_count():
    journal = started()
    journal.incident("silent_corruption")
    journal.phase("waiting", waits_for="restore").sleep(1.0).form(2, took_s=0.0, back_to=9)
    late = {"incarnation": 1, "generation": 1, "attempt": 1, "step": 21}
    report = {"commit": late, "replicas": 2, "samples": 8, "started_at_s": 1.0, "committed_at_s": 1.5}
    journal.write(event="StepStable", worker="w0", report=report)
    assert journal.steps(5).account().steps.last == 14


def test_what_steps_would_have_been_after_those_that_were_lost_is_not_productive():
    journal = started().sleep(3.0)
    journal.incident("silent_corruption")
    journal.phase("waiting", waits_for="restore").sleep(1.0).form(2, took_s=0.0, back_to=9).steps(5)
    account = journal.account()
    assert account.wall_seconds[C.PRODUCTIVE] == near(15 * STEP_S)
    assert account.wall_seconds[C.DETECTING] == near(2.5), "the silence, but for one attempt in flight"


def test_slow_steps_are_charged_to_the_straggler_that_was_found_among_their_workers():
    journal = started().steps(3, 1.5)
    journal.incident("straggler")
    account = journal.steps(3, 1.5).steps(5).account()
    assert only(account, "straggler").wall_seconds == {C.STRAGGLER_DRAG: near(6.0)}
    assert not [one for one in account.incidents if one.kind == "slow steps"]


def test_only_what_is_safe_somewhere_counts_as_saved_and_a_clock_set_back_gives_no_time():
    journal = started()
    journal.write(checkpoint="CheckpointRung", commit={"step": 5}, rung="durable")
    journal.write(checkpoint="CheckpointRung", commit={"step": 9}, rung="staged")
    for seconds in (-0.8, 0.8):
        journal.write(event="Noted", worker="w1", what="profile", step=journal.step, seconds=seconds, detail="")
    account = journal.steps(1, seconds=STEP_S + 1.0).steps(1).account()
    assert account.steps.saved == 5 and account.callback_seconds == {"profile": near(0.8)}


@pytest.mark.parametrize(
    "line",
    [
        {"command": "EndRun", "reason": "done"},
        {"event": "LoopEnded", "worker": "w0", "generation": 1, "times": {"since_s": 5.0, "stall_s": 1.0}},
        {"trainer": "job_ended"},
        {"trainer": "end"},
    ],
    ids=lambda line: next(iter(line.values())),
)
def test_a_journal_that_begins_with_its_end_has_an_account(line):
    """What came before was lost: nothing is known of it, and nothing is made up."""
    ledger = Ledger()
    assert ledger.feed({"t": 10.0, **line})
    account = ledger.account(12.0)
    assert account.goodput == 0.0 and sum(account.wall_seconds.values()) == near(account.wall_s)


def test_steps_before_any_life_is_told_of_count_and_the_rest_is_unknown():
    ledger, place = Ledger(), {"incarnation": 1, "generation": 1, "attempt": 1}
    assert ledger.feed({"t": 8.0, "event": "Unheard"})
    for step in (5, 7):
        times = {"started_at_s": 10.0 + step, "committed_at_s": 11.0 + step}
        report = {"commit": {"step": step, **place}, "replicas": 2, "samples": 8, **times}
        assert ledger.feed({"t": 11.0 + step, "event": "StepStable", "worker": "w0", "report": report})
    account = ledger.account()
    assert account.wall_seconds[C.PRODUCTIVE] == near(2.0) and account.wall_seconds[C.UNKNOWN] > 0
    assert sum(account.wall_seconds.values()) == near(account.wall_s)


# --- how it is told ---------------------------------------------------------------------------------------------------


def told_of() -> Account:
    """A run with callbacks, an injected fault, and steps that were lost again."""
    journal = started().steps(4, callback_s=0.2, costs={"Profile": 0.3, "CollectGarbage": 0.1})
    strike(journal, "kill", "one")
    journal.incident("worker_lost")
    journal.phase("waiting", waits_for="restore").sleep(1.0).form(2, took_s=0.0, back_to=20).steps(5)
    return journal.account()


def test_the_facts_are_plain_and_name_every_category():
    account = told_of()
    told = facts(account)
    assert json.loads(json.dumps(told)) == told
    assert told["wall_seconds"].keys() == told["worker_seconds"].keys() == {category.value for category in C}
    assert told["wall_seconds"]["productive"] == account.wall_seconds[C.PRODUCTIVE]
    assert told["wall_seconds"]["paused"] == 0.0, "nothing went into it"
    lost = next(one for one in told["incidents"] if one["kind"] == "worker lost")
    assert [one["kind"] for one in lost["injected"]] == ["kill"] and lost["culprits"] == ["w1"]
    assert next(one for one in told["incidents"] if one["kind"] == "run start")["injected"] == []


def test_the_table_has_each_category_and_the_whole():
    account = told_of()
    *categories, (name, wall_s, workers_s) = rows(account)
    assert [row[0] for row in categories] == [category.value for category in C]
    assert (name, wall_s, workers_s) == ("all", account.wall_s, account.workers_s)
    assert sum(row[1] for row in categories) == near(wall_s)


def test_the_text_begins_with_the_whole_and_has_the_dearest_first():
    account = told_of()
    text = list(lines(account))
    assert text[0].startswith("run r: ") and "so far, 1 life of the driver" in text[0]
    assert f"goodput {account.goodput:.1%}" in text[1] and "done for nothing" in text[1]
    table = [line.split()[0] for line in text[4 : text.index("", 3)] if not line.startswith("callbacks:")]
    assert table[0] == "productive" and table[-1] == "all" and "paused" not in table
    assert any(line.startswith("callbacks: Profile ") for line in text), "the dearest first"
    assert any("worker lost: w1" in line for line in text)
    assert any(line.startswith("     injected: kill rank:1 at ") for line in text)
    assert "     seen: gone" in text and "     done: swap" in text
    assert any(line.startswith("goodput ") and line.endswith(account.definitions[0].formula) for line in text[-20:])


def test_a_run_that_has_hardly_begun_is_told_without_shares():
    ledger = Ledger()
    assert ledger.feed({"t": 5.0, "event": "RunStarted"}) and ledger.feed({"t": 10.0, "event": "Unheard"})
    text = list(lines(ledger.account()))
    assert any(line.split()[:3] == ["all", "5.00", "100.0%"] for line in text)
    assert "0 steps kept, " in text[1] and "lost" not in text[1]
    assert not any(line.startswith("callbacks:") for line in text)


def test_a_run_of_which_nothing_is_told_has_no_incidents():
    text = list(lines(Ledger().account()))
    assert text[0].startswith("run : 0.0 s") and not any("cost" in line for line in text)
    assert ("", "") not in zip(text, text[1:], strict=False), "and no room for them"


def test_what_is_not_decided_yet_is_not_told():
    account = started().account()
    (begun,) = account.incidents
    undecided = replace(account, incidents=(replace(begun, decision=""),))
    assert [line for line in lines(account) if line not in list(lines(undecided))] == [
        "     done: start workers: because"
    ]


def test_a_stop_that_was_asked_for_twice_has_both_reasons():
    journal = started()
    for reason in ("w5 can join", "w6 can join"):
        journal.write(command="Pause", worker="w0", generation=1, reason=reason)
        journal.phase("freezing", planned=True).sleep(0.1)
    account = journal.form(2, took_s=0.1).steps(2).account()
    assert only(account, "planned stop").evidence == ("w5 can join", "w6 can join")


def seen(journal: Journal, kind: str, node: str, detail: str) -> None:
    journal.write(
        event="HardwareFinding", node=node, device="", kind=kind, severity="informational", detail=detail, workers=[]
    )


@pytest.mark.parametrize("is_told_late", [False, True])
def test_what_a_sensor_sees_of_an_injected_fault_is_evidence_beside_its_own_proof(is_told_late):
    journal = started()
    fault = {"kind": "disk_full", "target": "any", "at_s": 1.0, "duration_s": 2.0, "argument": "", "draw": 0}
    told = {"event": "FaultInjected", "fault": fault, "target": "n1", "at_s": journal.at_s, "proof": "filled"}
    if not is_told_late:
        journal.write(**told)
    journal.sleep(0.1)
    for kind, node, detail in (
        ("space", "n1", "0% of /disk is free"),
        ("space", "n1", "0% of /disk is free"),
        ("space", "n2", "another node"),
        ("xid", "n1", "another kind"),
        ("clock", "n1", "of no fault"),
    ):
        seen(journal, kind, node, detail)
    if is_told_late:
        journal.write(**told)
    seen(journal.sleep(60.0), "space", "n1", "long after")
    incident = only(journal.steps(2).account(), "injected fault")
    assert incident.evidence == ("filled", "0% of /disk is free")


def test_a_driver_that_leaves_before_it_has_seen_anything_says_so_and_one_whose_run_is_over_does_not():
    end, phase = broken_off(None, 7.0, KeyboardInterrupt())
    assert (end["command"], end["outcome"]["ending"], end["outcome"]["message"]) == (
        "EndRun",
        "stopped",
        "KeyboardInterrupt",
    )
    assert (phase["phase"], phase["t"]) == ("ended", 7.0)
    over = RunState(settings=RunSettings(run="r", scaling=Scaling()), outcome=Outcome(ending=Ending.SUCCEEDED))
    assert list(broken_off(over, 8.0, KeyboardInterrupt())) == []


def test_a_run_that_is_paused_and_then_ended_is_not_paused_when_it_is_started_again():
    care = Care(hold=Hold(reason="somebody asked", until_s=inf), quarantine={"n": inf})
    paused = RunState(settings=RunSettings(run="r", scaling=Scaling()), care=care, seen_s=5.0, without_progress=3)
    assert left_by(paused).paused == "somebody asked", "who takes over from a killed driver"
    (left,) = [line for line in broken_off(paused, 7.0, KeyboardInterrupt()) if "life" in line]
    again = bequest_of(json.loads(json.dumps(left, allow_nan=False)))
    assert (again.paused, again.without_progress, again.quarantine) == ("", 0, {"n": None})
    assert not [line for line in broken_off(paused, 7.0, ValueError("of the driver")) if "life" in line]


@pytest.mark.parametrize(
    ("error", "kind", "is_planned", "how"),
    [
        (KeyboardInterrupt(), "resubmitted", True, "life 1 had ended;"),
        (ValueError("a callback's own"), "driver lost", False, "life 1 had ended by an error of its driver;"),
    ],
    ids=["stopped", "failed"],
)
def test_the_life_after_one_that_was_stopped_is_no_failure(error, kind, is_planned, how):
    journal = started().steps(3)
    for line in broken_off(None, journal.at_s, error):
        journal.write(**line)
    assert not journal.account().is_live
    again = only(journal.sleep(60.0).begin().account(), kind)
    assert again.is_planned == is_planned and again.evidence[0].startswith(how)


def test_a_driver_that_ends_before_its_first_turn_hides_no_outage():
    """Somebody calls fit hours after the driver was killed, and Ctrl-C comes before anything was decided."""
    journal = started().steps(3).sleep(3600.0)
    journal.write(life="Settings", run="r", incarnation=2, knobs={})
    journal.sleep(1.0)
    for line in broken_off(None, journal.at_s, KeyboardInterrupt()):
        journal.write(**line)
    journal.incarnation = 2
    account = journal.sleep(60.0).begin().account()
    lost = only(account, "driver lost")
    assert lost.evidence[0].startswith("life 1 fell silent") and "3600.0 s" in lost.evidence[0]
    assert only(account, "resubmitted").is_planned
    assert account.wall_seconds[C.BETWEEN_INCARNATIONS] == pytest.approx(3660.0)


def test_no_secret_of_a_url_is_journalled():
    """The journal is copied into tiers, and reports are made of it."""
    url = "s3://KEY:SECRET@bucket/run?signature=SIGNED"
    state = RunState(settings=RunSettings(run="r", scaling=Scaling(), checkpoint=Checkpoint(persistent=url)))
    told = json.dumps(list(happened(None, state, [])))
    assert "SECRET" not in told and "SIGNED" not in told and "s3://***@bucket/run?***" in told


def test_steps_that_nobody_applied_say_nothing_of_how_long_steps_take():
    """A stretch of batches that is left out passes in milliseconds."""
    journal = started().steps(200)
    for _ in range(50):
        journal.sleep(0.005)
        journal.step += 1
        commit = {"incarnation": 1, "generation": 1, "attempt": 1, "step": journal.step}
        report = {
            "commit": commit,
            "replicas": 2,
            "samples": 8,
            "skipped": "left out",
            "times": {"since_s": journal.since_s},
        }
        report |= {"started_at_s": journal.since_s, "committed_at_s": journal.at_s}
        journal.write(event="StepStable", worker="w0", report=report)
        journal.since_s = journal.at_s
    account = journal.steps(200).account()
    assert account.wall_seconds[C.PRODUCTIVE] == near(420 * STEP_S + 50 * 0.005)
    assert C.DETECTING not in account.wall_seconds


@pytest.mark.parametrize("ahead_s", [0.5, 5.0])
def test_a_leader_whose_clock_is_ahead_changes_no_sum_and_blinds_nobody(ahead_s):
    """Its steps end in the driver's future, told eight at a time: none of them took no time at all."""
    journal = started()
    begun_s, step = journal.at_s, journal.step
    for _ in range(20):
        ends_s = [journal.at_s + STEP_S * (number + 1) for number in range(8)]
        journal.sleep(8 * STEP_S)
        for end_s in ends_s:
            step += 1
            commit = {"incarnation": 1, "generation": 1, "attempt": 1, "step": step}
            times = {"times": {"since_s": end_s - STEP_S + ahead_s}, "started_at_s": end_s - STEP_S + ahead_s}
            report = {"commit": commit, "replicas": 2, "samples": 8, "committed_at_s": end_s + ahead_s, **times}
            journal.write(event="StepStable", worker="w0", report=report)
    account = journal.account()
    assert account.wall_s == near(journal.at_s - 100.0) and journal.at_s - begun_s == 80.0
    assert journal.ledger._book.usual_s() > 0


def test_a_worker_whose_clock_is_ahead_does_not_move_what_comes_after_it():
    journal = Journal(2).begin().park("w0", 3.0, 5.0)
    journal.write(event="WorkerParked", worker="w1", entered_s=journal.at_s + 60.0)
    journal.form(2, took_s=0.5).steps(20).sleep(2.2)
    journal.incident("worker_lost")
    journal.phase("freezing").sleep(0.1).form(2, took_s=0.6).steps(1)
    journal.incident("worker_lost", "IncidentResolved", resumed_s=journal.at_s)
    assert sum(only(journal.account(), "worker lost").wall_seconds.values()) > 2.0


def test_a_generation_that_is_numbered_again_by_another_driver_is_another_one():
    """The first driver died before anybody heard of it."""
    journal = started()
    view = {"incarnation": 1, "generation": 2, "members": [{"worker": "w0"}], "resume": {"step": 19}, "width": 1}
    journal.write(command="Form", reason="lost", view={**view, "bootstrap": False, "restored": False, "forks": []})
    journal.begin("RunTakenOver").sleep(1.0)
    journal.form(2, took_s=1.0, back_to=9).steps(5)
    account = journal.account()
    assert account.wall_seconds[C.REDONE] == near(10 * STEP_S), "steps 10 to 19 are made again"


def test_a_second_notice_is_not_the_first():
    journal = started()
    for _ in range(2):
        journal.write(event="WorkerNotice", worker="w1", reason="SIGTERM")
        journal.sleep(0.3).incident("departure", culprits=["w1"], number=journal.opened)
        journal.phase("freezing").sleep(0.1).form(1, took_s=0.2).steps(1)
        journal.incident("departure", "IncidentResolved", resumed_s=journal.at_s, number=journal.opened)
        journal.opened += 1
        journal.steps(1000)
    first, second = [one for one in journal.account().incidents if one.kind == "planned departure"]
    assert second.opened_s - first.opened_s > 900 * STEP_S


def test_lines_that_make_no_sense_are_passed_over():
    ledger = Ledger()
    assert not ledger.feed({"t": 1.0, "event": "FaultInjected", "fault": "x"})
    assert not ledger.feed_text('{"t": 1, "a": ' + "[" * 100_000)


@pytest.mark.parametrize("at_s", ["NaN", "Infinity", "1" + 400 * "0", '"soon"', "null", "[]"])
@pytest.mark.parametrize("said", ['"trainer": "job_started"', '"event": "RunStarted"', '"life": "Settings"'])
def test_a_line_of_no_moment_is_passed_over(said, at_s):
    ledger = Ledger()
    assert not ledger.feed_text(f'{{"t": {at_s}, {said}}}') and not ledger.feed_text(f"{{{said}}}")
    assert ledger.is_empty


def test_what_was_noted_counts_whenever_it_is_asked_for():
    once, twice = started(), started()
    for journal in (once, twice):
        journal.sleep(2.0).steps(1)
        for worker in ("w1", "w2"):
            seconds = {"seconds": 1.0, "detail": "", "t": journal.at_s}
            assert journal.ledger.feed({"event": "Noted", "worker": worker, "step": 20, "what": "uploads", **seconds})
            if journal is twice:
                journal.account()
    assert once.account().wall_seconds == twice.account().wall_seconds


def test_a_hang_between_two_steps_is_no_work():
    """As other trainers tell it: the step before has ended, and the next one has not begun."""
    ledger, at_s = Ledger(), 100.0
    assert ledger.feed({"t": at_s, "trainer": "job_started"})
    for step in range(20):
        ledger.feed({"t": at_s, "trainer": "step_started", "step": step})
        at_s += 1.0
        ledger.feed({"t": at_s, "trainer": "step_ended", "step": step})
        at_s += 600.0 if step == 9 else 0.0
    account = ledger.account()
    assert account.wall_seconds[C.PRODUCTIVE] < 23.0 and account.wall_seconds[C.DETECTING] > 590.0
    (hung,) = [one for one in account.incidents if one.kind == "stalled step"]
    assert "600.0 s from step 9 to step 10" in hung.evidence[0]
