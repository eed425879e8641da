"""Pure. Callbacks that set or say something without a run: kept steps, throughput, lines now and then."""

import logging

import pytest

from elastic.callbacks import AutoCheckpoint, ModelCheckpoint, NoticeHeard, RungReached, StepLog, configured
from elastic.callbacks.throughput import throughput
from elastic.control.state import RunState
from elastic.control.values import CommitId, Rung, StepReport
from elastic.errors import SettingError
from elastic.settings import Checkpoint, Interval, Keep, RunSettings

STORE = "gs://bucket/runs"
STATE = RunState(settings=RunSettings(run="r"))


def report(step: int, begin_s: float, end_s: float, samples: int = 8, **metrics: float) -> StepReport:
    commit = CommitId(1, 1, 1, step, f"s{step}")
    return StepReport(
        commit=commit, metrics=metrics, replicas=2, samples=samples, started_at_s=begin_s, committed_at_s=end_s
    )


# --- which steps are kept ---------------------------------------------------------------------------------------------


def test_it_sets_the_tiers_and_saves_nothing_itself():
    wanted = ModelCheckpoint(every_steps=100, top_k=3, metric="evaluation/loss", last=1)
    got = wanted.configure(Checkpoint(persistent=STORE, peers=0))
    assert got == Checkpoint(
        persistent=STORE,
        peers=0,
        persistent_interval=Interval(steps=100),
        keep=Keep(last=1, best=3, metric="evaluation/loss"),
    )


def test_it_may_bring_the_place_along():
    assert ModelCheckpoint(persistent=STORE, every_s=60).configure(None) == Checkpoint(
        persistent=STORE, persistent_interval=Interval(seconds=60)
    )


def test_what_it_does_not_say_stays():
    given = Checkpoint(persistent=STORE, backup_interval_minutes=5)
    assert ModelCheckpoint(top_k=2).configure(given).upload_interval == Interval(seconds=300)


@pytest.mark.parametrize(
    ("wanted", "given", "told"),
    [
        (ModelCheckpoint(every_steps=5), None, "must say where"),
        (ModelCheckpoint(every_steps=5), Checkpoint(), "must say where"),
        (ModelCheckpoint(persistent="/a"), Checkpoint(persistent="/b"), "differ"),
        (ModelCheckpoint(every_steps=5), Checkpoint(persistent="/b", backup_interval_minutes=1), "how often"),
        (ModelCheckpoint(top_k=1), Checkpoint(persistent="/b", keep=Keep(every=7)), "what is kept"),
        (AutoCheckpoint(), None, "AutoCheckpoint needs fit"),
        (AutoCheckpoint("durable"), Checkpoint(), "needs Checkpoint.persistent"),
    ],
)
def test_what_contradicts_the_settings_is_refused(wanted, given, told):
    with pytest.raises(SettingError, match=told):
        configured([wanted], given)


@pytest.mark.parametrize("wrong", [{"every_steps": 0}, {"every_s": -1.0}, {"top_k": -1}, {"mode": "best"}, {"last": 0}])
def test_a_number_out_of_its_range_is_refused(wrong):
    with pytest.raises(SettingError):
        ModelCheckpoint(**wrong)


def test_a_rung_that_is_none_is_refused():
    with pytest.raises(SettingError, match="rung='safe'"):
        AutoCheckpoint("safe")


# --- after a notice ---------------------------------------------------------------------------------------------------


def notice(at_s: float, step: int) -> NoticeHeard:
    return NoticeHeard(run="r", at_s=at_s, step=step, node="n1", worker="", reason="preempted")


def rung(at_s: float, step: int, reached: Rung) -> RungReached:
    facts = {"checkpoint_step": step, "rung": reached, "copies": 2, "degraded": "", "reason": "kept"}
    return RungReached(run="r", at_s=at_s, step=step, **facts)


def test_how_long_it_took_to_save_is_told_once(caplog):
    caplog.set_level(logging.INFO, "elastic")
    auto = AutoCheckpoint(within_s=1.0)
    auto.on_moment(notice(10.0, step=7))
    auto.on_moment(rung(10.1, 6, Rung.REPLICATED))  # from before the notice
    auto.on_moment(rung(10.2, 8, Rung.LOCAL))
    assert not caplog.records
    auto.on_moment(rung(10.5, 8, Rung.DURABLE))
    auto.on_moment(rung(10.9, 9, Rung.REPLICATED))
    assert auto.saved_s == [0.5]
    assert [one.getMessage() for one in caplog.records] == [
        "notice for node n1: preempted: step 8 is durable, 0.50 s after the notice"
    ]
    auto.on_end()
    assert len(caplog.records) == 1


def test_what_was_not_saved_in_time_is_a_warning(caplog):
    late, never = AutoCheckpoint(within_s=1.0), AutoCheckpoint()
    for one in (late, never):
        one.on_moment(notice(10.0, step=7))
    late.on_moment(rung(12.5, 7, Rung.REPLICATED))
    never.on_end()
    assert [one.levelname for one in caplog.records] == ["WARNING", "WARNING"]
    assert "no step from after it had become replicated" in caplog.records[1].getMessage()


# --- how fast ---------------------------------------------------------------------------------------------------------


def test_throughput_counts_all_of_the_time_and_step_time_only_steps():
    steps = [report(0, 0.0, 1.0), report(1, 1.5, 2.5)]
    got = throughput(steps)
    assert (got.steps, got.step_s, got.between_s, got.samples_per_s, got.replicas) == (2, 1.0, 0.25, 6.4, 2)
    assert got.tokens_per_s is None
    assert throughput(steps, since_s=-1.5).samples_per_s == 4.0
    assert throughput(steps, tokens_per_sample=10).tokens_per_s == 64.0
    assert throughput([report(0, 0.0, 2.0, tokens=100.0)]).tokens_per_s == 50.0
    assert throughput([report(0, 0.0, 2.0, tokens=100.0), report(1, 2.0, 3.0)]).tokens_per_s is None
    in_phases = [report(0, 0.0, 1.0, samples=0), report(1, 1.0, 2.0, tokens=100.0)]
    assert throughput(in_phases).tokens_per_s == 50.0


def test_a_log_that_was_given_to_a_run_before_begins_anew(caplog):
    """It is given again to the fit that follows a failed one."""
    caplog.set_level(logging.INFO, "elastic")
    log = StepLog(every_s=60.0)
    for begin_s in (0.0, 3600.0):
        log.on_begin(lambda wish: None)
        log.on_step(report(0, begin_s, begin_s + 1.0), STATE, 1.0)
        log.on_end()
    first, second = (one.getMessage() for one in caplog.records)
    assert first == second and "8.0 samples/s" in first


def test_a_line_comes_every_so_many_seconds_and_one_at_the_end(caplog):
    caplog.set_level(logging.INFO, "elastic")
    log = StepLog(every_s=2.0, tokens_per_sample=4)
    for step in range(5):
        log.on_step(report(step, step, step + 1.0, **{"memory/host_bytes": 2.0**30}), STATE, 1.0)
    assert len(caplog.records) == 2
    log.on_end()
    log.on_end()
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == ["step 1", "step 3", "step 4"]
    assert caplog.records[0].getMessage() == (
        "step 1: 1.000 s a step, 8.0 samples/s, 32 tokens/s, 2 replicas; memory of the leader: host 1.00 GiB"
    )


@pytest.mark.parametrize("wrong", [{"every_s": 0.0}, {"tokens_per_sample": -1.0}])
def test_a_log_that_can_not_be_is_refused(wrong):
    with pytest.raises(SettingError, match="StepLog"):
        StepLog(**wrong)


def test_what_sets_nothing_leaves_the_settings_as_they_are():
    given = Checkpoint(persistent=STORE)
    assert configured([StepLog(), ModelCheckpoint(top_k=2)], given) == ModelCheckpoint(top_k=2).configure(given)
    assert configured([StepLog()], None) is None
