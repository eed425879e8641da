"""Pure. From a step log to the figures of the recovery benchmark."""

import dataclasses

import pytest

from benchmarks.rows import (
    LOSS_STEPS,
    Fault,
    broken_promises,
    lost_before,
    mean_step_s,
    medians,
    pause,
    recovery,
    share_of_ideal,
    slowest_resumption_s,
    step_time_s,
    where_time_went,
    whole_run,
)
from elastic.demo.steplog import StepLog, collect

STEP_S = 1.0
BATCH = 4


class Script:
    """Writes the log of a run step by step; its clock goes on by a step at a time."""

    def __init__(self) -> None:
        self.now_s, self.step, self.lines = 0.0, 0, list[dict]()

    def wait(self, seconds: float) -> "Script":
        self.now_s += seconds
        return self

    def consume(self, pids: str, generation: int = 1, step: int | None = None) -> "Script":
        """These workers take the step's samples, in equal parts."""
        step = self.step if step is None else step
        for place, pid in enumerate(pids):
            ids = [step * BATCH + sample for sample in range(BATCH)][place :: len(pids)]
            self._write("consumed", pid, step, generation, ids=ids)
        return self

    def commit(self, pids: str, generation: int = 1, step: int | None = None) -> "Script":
        for pid in pids:
            self._write("committed", pid, self.step if step is None else step, generation, loss=0.5)
        if step is None:
            self.step += 1
        return self

    def steps(self, count: int, pids: str, generation: int = 1, step_s: float = STEP_S) -> "Script":
        for _ in range(count):
            self.consume(pids, generation).wait(step_s).commit(pids, generation)
        return self

    def finish(self, **digests: str) -> "Script":
        for pid, digest in digests.items():
            self.lines.append({"event": "finished", "t": self.now_s, "pid": ord(pid), "digest": digest})
        return self

    def _write(self, event: str, pid: str, step: int, generation: int, **facts: object) -> None:
        place = {"step": step, "generation": generation, "attempt": 1}
        self.lines.append({"event": event, "t": self.now_s, "pid": ord(pid), **place, **facts})

    @property
    def log(self) -> StepLog:
        return collect(self.lines)


def pids(names: str) -> frozenset[int]:
    return frozenset(map(ord, names))


def fault(at_s: float, victims: str = "", members: str = "abcd", size: int = 4, returns: bool = False) -> Fault:
    return Fault(kind="kill", at_s=at_s, members=pids(members), victims=pids(victims), full_size=size, returns=returns)


def test_a_kill_in_mid_step_is_detected_resumed_and_made_whole() -> None:
    script = Script().steps(5, "abcd")
    script.consume("abcd").wait(0.5)  # the fault is at 5.5
    script.wait(0.25).steps(2, "abc", generation=2)  # begins at 5.75
    script.wait(0.5).steps(2, "abce", generation=3)  # begins at 8.25
    row = recovery(script.log, fault(5.5, victims="d"))
    assert row["t_detect_s"] == 0.25
    assert row["t_resume_s"] == 1.25
    assert row["t_full_s"] == 3.75
    assert row["longest_gap_s"] == 1.75  # from 5.0 to 6.75
    assert (row["steps_lost"], row["survivors"], row["survivors_kept"]) == (0, 3, 3)
    assert whole_run(script.log, BATCH, None)["attempts_lost"] == 1


def test_a_pause_begins_with_a_sudden_fault_and_else_with_the_gap() -> None:
    script = Script().steps(2, "abcd").wait(0.25).consume("abc", generation=2).wait(1.0).commit("abc", generation=2)
    lost = fault(2.125, victims="d")
    row = recovery(script.log, lost)
    assert pause(row, lost) == (2.125, 3.25)
    for announced in (fault(2.125), dataclasses.replace(lost, kind="notice"), dataclasses.replace(lost, watched_s=0.5)):
        assert pause(recovery(script.log, announced), announced) == (2.0, 3.25)
    assert pause(recovery(Script().log, lost), lost) is None


def test_attempts_that_nobody_commits_count_as_lost_once_they_are_old() -> None:
    script = Script().steps(2, "abcd").consume("abcd").wait(1.0).steps(3, "abc", generation=2)
    assert [lost_before(script.log, step) for step in (2, 3)] == [0, 1]


def test_a_gap_that_never_ended_has_no_length() -> None:
    script = Script().steps(2, "abcd").consume("abcd").wait(0.5)  # the fault is at 2.5
    script.wait(0.25).commit("abc")  # was in flight
    assert recovery(script.log, fault(2.5, victims="d"))["longest_gap_s"] is None
    assert recovery(script.steps(1, "abc", generation=2).log, fault(2.5, victims="d"))["longest_gap_s"] == 1.0


def test_the_last_member_to_commit_counts() -> None:
    script = Script().steps(2, "abcd").wait(0.25)
    script.consume("abc", generation=2).wait(1.0).commit("ab", generation=2).wait(2.0)
    script.commit("c", generation=2, step=script.step - 1)
    assert recovery(script.log, fault(2.0, victims="d"))["t_resume_s"] == 3.25


def test_a_step_that_was_in_flight_and_is_committed_all_the_same_is_not_the_recovery() -> None:
    """The victim's gradients were out before it died: the survivors notice only in the next step."""
    script = Script().steps(2, "abcd").consume("abcd").wait(0.5)
    script.wait(0.25).commit("abc")  # the fault is at 2.5
    script.consume("abc").wait(1.0)  # an attempt that fails
    script.consume("abc", generation=2).wait(1.0).commit("abc", generation=2)
    row = recovery(script.log, fault(2.5, victims="d"))
    assert row["t_detect_s"] == 1.25
    assert row["t_resume_s"] == 2.25
    assert row["t_full_s"] is None


def test_steps_that_survivors_had_committed_and_do_again_are_lost_and_not_the_recovery() -> None:
    script = Script().steps(6, "abcd").wait(1.0)  # the fault is at 6.0
    script.step = 4  # back to a checkpoint
    script.steps(3, "abc", generation=2)
    row = recovery(script.log, fault(6.0, victims="d"))
    assert row["steps_lost"] == 2
    assert row["t_detect_s"] == 1.0
    assert row["t_resume_s"] == 4.0  # steps 4 and 5 again, then 6


def test_a_step_that_only_the_victim_had_committed_is_not_lost() -> None:
    script = Script().steps(2, "abcd").consume("abcd").wait(0.5).commit("d", step=2)
    script.wait(0.5).steps(1, "abc", generation=2)
    row = recovery(script.log, fault(2.5, victims="d"))
    assert row["steps_lost"] == 0
    assert row["t_resume_s"] == 1.5


def test_after_a_notice_the_victim_trains_on_until_it_is_taken_out() -> None:
    script = Script().steps(2, "abcd")  # the notice is at 2.0
    script.wait(0.125).steps(3, "abcd").steps(1, "abc", generation=2)
    row = recovery(script.log, fault(2.0, victims="d"))
    assert row["t_detect_s"] == 3.125
    assert row["longest_gap_s"] == 1.125
    assert whole_run(script.log, BATCH, None)["attempts_lost"] == 0


def test_victims_that_come_back_make_the_run_whole() -> None:
    script = Script().steps(2, "abcd").wait(0.5).steps(1, "ab", generation=2).steps(1, "abcd", generation=3)
    row = recovery(script.log, fault(2.0, victims="cd", returns=True))
    assert row["t_resume_s"] == 1.5
    assert row["t_full_s"] == 2.5
    assert recovery(script.log, fault(2.0, victims="cd"))["t_full_s"] is None


def test_what_those_write_who_were_cut_off_is_neither_the_recovery_nor_full_size() -> None:
    """They come back long after, and give a step of theirs the same name."""
    script = Script().steps(2, "abcd").wait(0.5).steps(1, "ab", generation=2).steps(30, "ab", generation=3)
    script.commit("cd", generation=2, step=2)
    row = recovery(script.log, fault(2.0, victims="cd", returns=True))
    assert (row["t_resume_s"], row["t_full_s"]) == (1.5, None)


def test_what_was_taken_for_a_while_is_not_counted_until_whole_again() -> None:
    """Nobody can be whole where there is no room."""
    script = Script().steps(2, "abcd").wait(0.5).steps(1, "ab", generation=2).wait(1.5).steps(1, "abef", generation=3)
    shrunk = dataclasses.replace(fault(2.0, victims="cd"), room_at_s=4.0)
    row = recovery(script.log, shrunk)
    assert (row["t_resume_s"], row["t_full_s"], row["longest_gap_s"]) == (1.5, 2.0, 2.5)


def test_restarted_processes_are_no_survivors() -> None:
    script = Script().steps(2, "abcd").wait(5.0).steps(1, "efgh", generation=2)
    row = recovery(script.log, fault(2.0, victims="d"))
    assert (row["survivors"], row["survivors_kept"]) == (3, 0)
    assert row["t_resume_s"] == 6.0


def test_what_shows_late_is_waited_for() -> None:
    """Nobody is hit; three steps later all are started again, or the run ends."""
    script = Script().steps(5, "abcd").steps(3, "abcd")
    watched = dataclasses.replace(fault(4.5), watched_s=10.0)
    row = recovery(script.log, watched)
    assert (row["longest_gap_s"], row["survivors_kept"]) == (None, 0)
    row = recovery(script.wait(6.0).steps(2, "abef", generation=2).log, watched)
    assert (row["longest_gap_s"], row["survivors_kept"]) == (7.0, 2)


def test_a_log_that_ends_too_early_leaves_figures_open() -> None:
    row = recovery(Script().steps(2, "abcd").log, fault(2.0, victims="d"))
    assert (row["t_detect_s"], row["t_resume_s"], row["t_full_s"], row["longest_gap_s"]) == (None,) * 4
    assert row["survivors_kept"] == 0


def test_samples_of_committed_attempts_are_counted_once() -> None:
    script = Script().steps(2, "abcd").consume("abcd").wait(0.5).steps(2, "abc", generation=2)
    row = whole_run(script.finish(a="x", b="x").log, BATCH, None)
    assert (row["steps"], row["samples_repeated"], row["samples_skipped"]) == (4, 0, 0)
    assert row["digests_equal"] is True


@pytest.mark.parametrize(
    ("ids", "repeated", "skipped"), [([8, 9, 10], 0, 1), ([8, 9, 10, 11, 11], 1, 0), ([8, 9, 10, 0], 1, 1)]
)
def test_samples_that_are_missing_or_doubled_are_found(ids: list[int], repeated: int, skipped: int) -> None:
    script = Script().steps(2, "abcd").consume("a").commit("abcd")
    script.lines[-5]["ids"] = ids
    row = whole_run(script.log, BATCH, None)
    assert (row["samples_repeated"], row["samples_skipped"]) == (repeated, skipped)


def test_a_step_left_out_is_all_its_samples_skipped() -> None:
    script = Script().steps(2, "abcd")
    script.step += 1
    assert whole_run(script.steps(1, "abcd").log, BATCH, None)["samples_skipped"] == BATCH


def test_goodput_is_the_time_of_steps_that_stand_of_all_of_it() -> None:
    script = Script().steps(5, "abcd").wait(5 * STEP_S).steps(5, "abc", generation=2)
    assert whole_run(script.log, BATCH, STEP_S)["goodput"] == pytest.approx(9 / 14)
    assert whole_run(Script().steps(1, "abcd").log, BATCH, STEP_S)["goodput"] is None
    assert whole_run(Script().log, BATCH, STEP_S)["goodput"] is None
    assert whole_run(script.log, BATCH, None)["goodput"] is None


def test_replicas_that_differ_or_never_ended_are_told_apart() -> None:
    script = Script().steps(1, "ab")
    assert whole_run(script.log, BATCH, None)["digests_equal"] is None
    assert whole_run(script.finish(a="x", b="y").log, BATCH, None)["digests_equal"] is False


def test_the_length_of_a_step_is_a_median() -> None:
    script = Script().steps(4, "abcd").wait(9.0).steps(4, "abcd")
    assert step_time_s(script.log) == 1.0
    assert step_time_s(script.log, from_s=99.0) is None


def test_losses_are_means_of_whole_stretches() -> None:
    row = whole_run(Script().steps(2 * LOSS_STEPS + 1, "ab").log, BATCH, None)
    assert len(row["losses"]) == 2
    assert whole_run(Script().log, BATCH, None)["losses"] == []


def test_a_step_of_few_members_counts_as_much_as_one_of_many() -> None:
    script = Script().steps(LOSS_STEPS // 2, "abcd").steps(LOSS_STEPS // 2, "a")
    for line in script.lines:
        line["loss"] = 1.0 if line["step"] < LOSS_STEPS // 2 else 3.0
    row = whole_run(script.log, BATCH, None)
    assert row["losses"] == [2.0] and row["loss"] == 3.0


def test_a_storms_time_is_accounted_for() -> None:
    """10 steps alone; an outage of 2 s beside its step; one of three has twice as much to do; a start-up of 1 s."""
    script = Script().steps(3, "abcd", step_s=2.0).steps(10, "abcd")  # while others start they take longer
    outage = (16.0, 19.0)
    script.wait(2.0).steps(1, "abcd", 2).steps(3, "abc", 3, step_s=2.0).steps(3, "abcd", 4)
    script.steps(1, "abcd", 4, step_s=2.0)
    row = where_time_went(script.log, [outage], micro_batch=1, calm_s=8.0)
    assert row["undisturbed_step_s"] == 1.0
    assert row["storm_s"] == pytest.approx(14.0)
    assert row["share"] == pytest.approx(8 / 14)
    assert row["outage_share"] == pytest.approx(2 / 14)
    assert row["below_full_size_share"] == pytest.approx(3 / 14)
    assert row["start_up_share"] == pytest.approx(1 / 14)


def test_members_who_leave_out_what_others_would_have_taken_have_no_more_to_do() -> None:
    script = Script().steps(10, "abcd")
    for _ in range(5):
        script.consume("abcd").wait(STEP_S).commit("abc")
    script.lines = [line for line in script.lines if not (line["t"] >= 10.0 and line["pid"] == ord("d"))]
    row = where_time_went(script.log, [(10.0, 10.5)], micro_batch=1)
    assert row["below_full_size_share"] == 0.0


def test_a_system_that_never_comes_back_has_done_nothing_of_a_storm() -> None:
    row = where_time_went(Script().steps(10, "abcd").log, [(10.0, 10.0)], micro_batch=1)
    assert (row["share"], row["storm_s"], row["undisturbed_step_s"]) == (0.0, 0.0, 1.0)


def test_a_mean_counts_what_a_median_hides() -> None:
    script = Script().steps(4, "abcd").wait(8.0).steps(5, "abcd")
    assert mean_step_s(script.log, 1.0, 99.0) == 2.0
    assert mean_step_s(script.log, 99.0, 999.0) is None


def test_a_storm_that_begins_at_once_has_nothing_to_be_compared_with() -> None:
    with pytest.raises(ValueError, match="before the first fault"):
        where_time_went(Script().steps(5, "ab").log, [(0.5, 1.0)], micro_batch=1)


@pytest.mark.parametrize(
    ("shown", "broken"),
    [
        ({"samples_repeated": 0, "samples_skipped": 0, "steps_lost": 0, "survivors": 3, "digests_equal": True}, 0),
        ({"steps_lost": 9, "survivors": 0}, 0),  # nobody was left who had committed them
        ({"samples_repeated": None, "digests_equal": None}, 0),
        ({"samples_repeated": 1, "samples_skipped": 2, "steps_lost": 1, "survivors": 3, "digests_equal": False}, 4),
        ({"param_rel_diff_vs_clean": 1e-15}, 0),
        ({"param_rel_diff_vs_clean": 1e-8}, 1),
    ],
)
def test_a_promise_that_a_run_breaks_is_named(shown: dict, broken: int) -> None:
    assert len(broken_promises(shown)) == broken


@pytest.mark.parametrize(
    ("resumed_s", "slowest_s"),
    [
        ((1.0, 2.0, 0.5), 2.0),
        ((1.0, None, 3.0), 23.0),  # it went on when it went on after the next fault
        ((None, None, 3.0), 43.0),
        ((1.0, 2.0, None), None),
        ((), None),
    ],
)
def test_the_slowest_resumption_of_a_storm_goes_on_over_the_next_strike(
    resumed_s: tuple[float | None, ...], slowest_s: float | None
) -> None:
    faults = [{"at_s": 100.0 + 20.0 * place, "t_resume_s": seconds} for place, seconds in enumerate(resumed_s)]
    assert slowest_resumption_s(faults) == slowest_s


def test_medians_leave_out_what_a_repetition_does_not_have() -> None:
    base = {"scenario": "kill", "system": "elastic", "digests_equal": True}
    rows = [
        base | {"t_resume_s": 1.0, "steps_lost": 0},
        base | {"t_resume_s": 3.0, "steps_lost": 0},
        base | {"t_resume_s": None, "timed_out": True, "digests_equal": None},
        base | {"scenario": "stop", "t_resume_s": 7.0},
    ]
    kill, stop, node = medians([*rows, base | {"scenario": "node", "unavailable": "the time was over"}])
    assert (node["repetitions"], node["digests_equal"]) == (0, None)
    assert (kill["repetitions"], kill["timed_out"], kill["t_resume_s"], kill["steps_lost"]) == (3, 1, 2.0, 0)
    assert kill["digests_equal"] is True, "of one run it is not known"
    assert [one["digests_equal"] for one in medians([rows[2], rows[2] | {"digests_equal": False}])] == [False]
    assert [one["digests_equal"] for one in medians([rows[2]])] == [None]
    assert (stop["scenario"], stop["t_resume_s"], stop["t_full_s"]) == ("stop", 7.0, None)


def test_the_speed_with_a_slow_member_against_what_is_left_of_the_capacity() -> None:
    """Four members, one at half speed: seven eighths are left; ten steps a second were done before, seven after."""
    times = [step / 10 for step in range(100)] + [10.0 + step / 7 for step in range(140)]
    place = {"event": "committed", "generation": 1, "attempt": 1, "pid": 1, "loss": 0.0}
    log = collect([place | {"step": step, "t": at_s} for step, at_s in enumerate(times)])
    figures = share_of_ideal(log, fault(10.0, victims="d"), window_s=5.0)
    assert figures["ideal"] == 0.875
    assert figures["speed_after"] == pytest.approx(0.7, abs=0.02)
    assert figures["share_of_ideal"] == pytest.approx(0.8, abs=0.03)
