"""Effect. Callbacks on a worker: when they are called, what they cost, and what the ones that are there do."""

import gc
import gzip
import json
import logging
import time
from pathlib import Path

import pytest

from elastic import callbacks, sinks
from elastic.callbacks import Callback, CollectGarbage, MemoryLog, Profile, TensorBoardScalars, WorkerCallback
from elastic.control import events as ev
from elastic.control.state import RunState
from elastic.control.values import CommitId, StepReport
from elastic.errors import SettingError
from elastic.ledger.ledger import Ledger
from elastic.ledger.lines import line_of
from elastic.ledger.model import Category
from elastic.progress import Progress
from elastic.settings import Checkpoint, Interval, RunSettings
from elastic.train.runner import with_callbacks
from tests.effects.book import wait_for_slots
from tests.effects.idiom import STEPS, assert_like_a_plain_loop, once, trained
from tests.effects.solo import Solo

BASES = (Callback, WorkerCallback)


class Diary(WorkerCallback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[object] = []

    def on_begin(self, session):
        self.lines.append(("begin", session.worker))

    def on_step_begin(self, step):
        self.lines.append((step.index, step.attempt, step.is_committed))

    def on_step_end(self, step):
        self.lines.append((step.index, step.attempt, step.is_committed))

    def on_end(self):
        self.lines.append("end")


def test_each_attempt_is_told_and_what_it_cost_comes_with_the_step(solo):
    diary = Diary()
    hook = once(2, "batch", lambda step, training: solo.break_generation())
    ended = solo.run(with_callbacks(trained(hook), [diary]))
    assert_like_a_plain_loop(ended)
    attempts = [line for line in diary.lines[1:-1] if line[0] == 2]
    assert [line[2] for line in attempts] == [False, False, False, True]
    assert diary.lines[0] == ("begin", "w0") and diary.lines[-1] == "end"
    assert [line[0] for line in diary.lines[1:-1:2]] == [0, 1, 2, 2, 3]
    assert all(set(report.costs) == {"Diary"} and report.costs["Diary"] >= 0 for report in ended.reports)


def test_of_a_step_that_all_leave_out_nobody_is_told(solo):
    """Neither of a beginning nor of an end: train_fn has not seen it either."""
    solo.left_out, diary = (1,), Diary()
    ended = solo.run(with_callbacks(trained(), [diary]))
    assert [report.commit.step for report in ended.reports if report.skipped] == [1]
    assert [line[0] for line in diary.lines[1:-1]] == [0, 0, 2, 2, 3, 3]


def test_a_cost_belongs_to_its_step_alone(solo):
    class Slow(WorkerCallback):
        def on_step_end(self, step):
            time.sleep(1.0 * (step.index == 1))

    reports = solo.run(with_callbacks(trained(), [Slow()])).reports
    costs = [report.costs["Slow"] for report in reports]
    assert costs[1] >= 1.0 > max(costs[0], *costs[2:])
    waited_s = [report.times.callback_s for report in reports]
    assert waited_s[2] >= 1.0 > max(*waited_s[:2], waited_s[3]), "the time from its commit on is the next step's"


def test_without_callbacks_a_step_costs_nothing_of_them(solo):
    assert [report.costs for report in solo.run(trained()).reports] == [{}] * STEPS


def test_a_callback_that_raises_ends_the_run_as_train_fn_would(solo):
    class Broken(WorkerCallback):
        def on_step_begin(self, step):
            raise ValueError("by the callback")

    ended = solo.run(with_callbacks(trained(), [Broken()]))
    assert isinstance(ended.last, ev.TrainFnRaised) and "by the callback" in ended.last.summary


def test_an_end_that_fails_changes_nothing(solo, caplog):
    class Broken(WorkerCallback):
        def on_end(self):
            raise ValueError("too late")

    assert_like_a_plain_loop(solo.run(with_callbacks(trained(), [Broken()])))
    assert "Broken.on_end failed: ValueError: too late" in caplog.text


def test_garbage_is_collected_at_chosen_steps_and_at_no_other_time(solo):
    collected, at = [], []

    def seen(phase, info):
        if phase == "start" and at:
            collected.append((at[-1], info["generation"]))

    def hook(step, training, place):
        at.append(step.index)
        assert not gc.isenabled()
        if place == "batch":
            for _ in range(20_000):  # more than what makes Python collect by itself
                ring: list[object] = []
                ring.append(ring)

    class Before(WorkerCallback):
        def on_step_begin(self, step):
            at.append(step.index)

        def on_end(self):
            at.clear()

    gc.callbacks.append(seen)
    try:
        ended = solo.run(with_callbacks(trained(hook), [Before(), CollectGarbage(every_steps=2)]))
    finally:
        gc.callbacks.remove(seen)
    assert_like_a_plain_loop(ended)
    assert collected == [(0, 2), (2, 2)]
    assert gc.isenabled() and gc.get_freeze_count() == 0
    assert all("CollectGarbage" in report.costs for report in ended.reports)


def test_memory_is_reported_every_so_many_steps(solo):
    ended = solo.run(with_callbacks(trained(), [MemoryLog(every_steps=2)]))
    told = [report.metrics.get("memory/host_bytes") for report in ended.reports]
    assert [bool(one) for one in told] == [True, False, True, False]
    assert all(one > 10 << 20 for one in told if one)


def traces(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "solo").glob("*"))


def notes(ended) -> list[ev.Noted]:
    return [event for event in ended.events if isinstance(event, ev.Noted)]


def test_chosen_steps_are_traced_and_the_journal_gets_path_and_cost(solo, tmp_path):
    profile = Profile(tmp_path / "traces", steps=[range(1, 3)])
    ended = solo.run(with_callbacks(trained(), [profile]))
    assert_like_a_plain_loop(ended)
    assert traces(tmp_path / "traces") == ["w0-steps-step1.json.gz"]
    (note,) = notes(ended)
    assert note.what == "profile" and note.step == 2 and note.seconds > 0
    trace = json.loads(gzip.decompress(Path(note.detail).read_bytes()))
    assert any("addmm" in str(one.get("name")) or "linear" in str(one.get("name")) for one in trace["traceEvents"])
    costs = [report.costs["Profile"] for report in ended.reports]
    assert costs[2] > 0 and costs[2] > costs[0]


def test_steps_far_apart_are_traced_each_by_itself_and_the_end_of_a_run_ends_a_trace(solo, tmp_path):
    apart, late = Profile(tmp_path / "apart", steps=[range(0, STEPS, 2)]), [range(2, STEPS + 5)]
    assert_like_a_plain_loop(solo.run(with_callbacks(trained(), [apart])))
    assert traces(tmp_path / "apart") == [f"w0-steps-step{step}.json.gz" for step in range(0, STEPS, 2)]
    spans = [len(_steps_in(path)) for path in sorted((tmp_path / "apart" / "solo").iterdir())]
    assert len(set(spans)) == 1 and spans[0] > 0, "each has one step"
    assert_like_a_plain_loop(Solo(tmp_path).run(with_callbacks(trained(), [Profile(tmp_path / "late", steps=late)])))
    assert traces(tmp_path / "late") == ["w0-steps-step2.json.gz"]


def _steps_in(path: Path) -> list[str]:
    """The optimizer steps in a trace."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    return [one["name"] for one in trace["traceEvents"] if "Optimizer.step" in str(one.get("name"))]


def test_the_steps_after_an_incident_are_traced_and_kept(solo, tmp_path):
    hook = once(1, "batch", lambda step, training: solo.break_generation())
    profile = Profile(tmp_path, after_incident=2, keep=1, steps=[range(0, 1), range(3, 4)])
    ended = solo.run(with_callbacks(trained(hook), [profile]))
    assert_like_a_plain_loop(ended)
    assert traces(tmp_path) == ["w0-incident-g2-step1.json.gz", "w0-steps-step3.json.gz"]


def test_an_incident_that_comes_between_two_steps_is_traced_under_its_number_and_ends_what_is_traced(solo, tmp_path):
    def hook(step, training, place):
        if (step.index, place) == (1, "after"):
            solo.failures += 1
            solo.break_generation()

    solo.failures = 4  # before this worker's first step
    profile = Profile(tmp_path, after_incident=1, steps=[range(STEPS)])
    assert_like_a_plain_loop(solo.run(with_callbacks(trained(hook), [profile])))
    found = ["w0-incident-4-g2-step2.json.gz", "w0-steps-step0.json.gz", "w0-steps-step3.json.gz"]
    assert traces(tmp_path) == found


def test_the_step_after_every_second_checkpoint_is_traced(tmp_path):
    """Snapshots of steps 0, 1, 2: the one of step 1 is the second."""
    checkpoint = Checkpoint(memory=str(tmp_path), local_interval=Interval(steps=1), peers=0)
    solo = Solo(tmp_path, checkpoint=checkpoint)
    hook = trained(lambda step, training, place: wait_for_slots(training.session) if place == "start" else None)
    ended = solo.run(with_callbacks(hook, [Profile(tmp_path / "traces", every_checkpoint=2)]))
    assert_like_a_plain_loop(ended)
    assert {event.commit.step for event in ended.events if isinstance(event, ev.ShardStaged)} >= {0, 1}
    assert traces(tmp_path / "traces") == ["w0-checkpoint-step2.json.gz"]
    (note,) = notes(ended)
    assert note.what == "profile" and note.step == 2 and note.seconds > 0
    assert ended.reports[2].costs["Profile"] > ended.reports[1].costs.get("Profile", 0.0)


def test_other_ranks_trace_nothing(solo, tmp_path):
    assert_like_a_plain_loop(solo.run(with_callbacks(trained(), [Profile(tmp_path, steps=[range(9)], ranks=[1])])))
    assert traces(tmp_path) == []


def test_a_folder_that_can_not_be_written_ends_no_training(solo, tmp_path, caplog):
    (tmp_path / "traces").write_text("a file")
    ended = solo.run(with_callbacks(trained(), [Profile(tmp_path / "traces", steps=[range(0, 1), range(2, 3)])]))
    assert_like_a_plain_loop(ended)
    assert notes(ended) == []
    assert len([one for one in caplog.records if "a trace is not written" in one.getMessage()]) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Profile("/traces"),
        lambda: Profile("/traces", after_incident=-1),
        lambda: CollectGarbage(every_steps=0),
        lambda: CollectGarbage(generation=3),
        lambda: MemoryLog(every_steps=0),
        lambda: TensorBoardScalars("/logs", every_steps=0),
    ],
)
def test_a_setting_that_can_not_work_is_refused(wrong):
    with pytest.raises(SettingError):
        wrong()


def scalars_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What an event file holds, read with the format's own message."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, list[tuple[int, float]]] = {}
    for path in folder.glob("events.*"):
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 12 + size + 4
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_scalars_of_steps_are_written_for_tensorboard(tmp_path):
    board = TensorBoardScalars(tmp_path, every_steps=2, tokens_per_sample=10)
    state = RunState(settings=RunSettings(run="r"))
    for step in range(4):
        made = StepReport(
            commit=CommitId(1, 1, 1, step, "s"),
            metrics={"loss": 1.0 / (step + 1)} | ({"evaluation/loss": 7.0} if step == 1 else {}),
            replicas=2,
            samples=8,
            started_at_s=100.0 + step,
            committed_at_s=101.0 + step,
            costs={"CollectGarbage": 0.25},
        )
        board.on_step(made, state, 0.5)
    board.on_end()
    found = scalars_in(tmp_path)
    assert found["loss"][1:] == [(2, pytest.approx(1 / 3)), (3, 0.25)], "the last one is written, too"
    assert found["evaluation/loss"] == [(2, 7.0)], "whichever step it came after"
    assert found["train/step_time"] == [(0, 1.0), (2, 1.0), (3, 1.0)]
    assert found["train/samples_per_s"] == [(0, 8.0), (2, 8.0), (3, 8.0)]
    assert found["train/tokens_per_s"][0] == (0, 80.0)
    assert found["train/goodput"][1] == (2, 0.5) and found["cost/CollectGarbage"][0] == (0, 0.25)


def test_scalars_of_a_step_in_phases_are_written_when_its_samples_are_known(tmp_path):
    board, state = TensorBoardScalars(tmp_path), RunState(settings=RunSettings(run="r"))
    for update in range(4):
        made = StepReport(
            commit=CommitId(1, 1, 1, update, "s"),
            metrics={"first": 1.0} if update % 2 == 0 else {"second": 2.0},
            replicas=2,
            samples=8 if update % 2 else 0,
            started_at_s=100.0 + update,
            committed_at_s=101.0 + update,
        )
        board.on_step(made, state, 0.5)
    board.on_end()
    found = scalars_in(tmp_path)
    assert found["first"] == [(1, 1.0), (3, 1.0)] and found["second"] == [(1, 2.0), (3, 2.0)]
    assert found["train/samples_per_s"] == [(1, 4.0), (3, 4.0)]


def test_a_board_that_can_not_be_written_is_told_once(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "elastic")
    (tmp_path / "logs").write_text("a file")
    board, state = TensorBoardScalars(tmp_path / "logs"), RunState(settings=RunSettings(run="r"))
    for step in range(3):
        made = StepReport(
            commit=CommitId(1, 1, 1, step, "s"),
            metrics={},
            replicas=1,
            samples=1,
            started_at_s=0.0,
            committed_at_s=1.0,
        )
        board.on_step(made, state, 1.0)
    board.on_end()
    assert len([one for one in caplog.records if "scalars are not written" in one.getMessage()]) == 1


READY_MADE = [one for one in vars(callbacks).values() if isinstance(one, type) and issubclass(one, BASES)]
READY_MADE += [Progress, sinks.Sink, *sinks.Sink.__subclasses__()]


@pytest.mark.parametrize("ready_made", [one for one in READY_MADE if one not in BASES], ids=lambda one: one.__name__)
def test_each_says_what_it_costs(ready_made):
    told = " ".join(one.__doc__ or "" for one in ready_made.__mro__ if issubclass(one, BASES) and one not in BASES)
    assert "Cost: " in told


class Takes(WorkerCallback):
    """0.2 s before each step, on some workers."""

    def on_step_begin(self, step):
        time.sleep(0.2)


def test_what_callbacks_take_is_in_the_ledger_by_their_names(solo):
    """From the reports that a worker makes, through the lines of a journal."""
    ended, ledger = solo.run(with_callbacks(trained(), [Takes(), MemoryLog(every_steps=1)])), Ledger()
    begun = {"run": "r", "incarnation": 1, "scaling": {"num_dp_replicas": 1, "workers_per_replica": 1}}
    ledger.feed({"t": ended.reports[0].times.since_s, "life": "Begun", "settings": begun})
    ledger.feed({"t": ended.reports[0].times.since_s, "phase": "running"})
    for report in ended.reports:
        ledger.feed(line_of("event", report.committed_at_s, ev.StepStable(worker="w0", report=report)))
    account = ledger.account()
    told_s = {name: sum(report.costs[name] for report in ended.reports) for name in ("Takes", "MemoryLog")}
    rounded_s = 1e-4
    assert account.wall_seconds[Category.CALLBACKS] == pytest.approx(sum(told_s.values()), abs=rounded_s)
    assert account.callback_seconds == pytest.approx(told_s, abs=rounded_s)
    assert told_s["Takes"] >= 0.2 * STEPS and told_s["MemoryLog"] > 0
    assert sum(account.wall_seconds.values()) == pytest.approx(account.wall_s)
