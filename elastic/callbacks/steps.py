"""Effect. Steps for people: a line now and then, and scalars for TensorBoard."""

import logging
import os
from collections.abc import Callable, Sequence

from elastic.callbacks.base import Callback
from elastic.callbacks.board import Board, Entry
from elastic.callbacks.throughput import Throughput, throughput
from elastic.control.state import RunState
from elastic.control.tuning import Tuning
from elastic.control.values import StepReport
from elastic.errors import SettingError

log = logging.getLogger("elastic")


class StepLog(Callback):
    """Log a line every so many seconds: step time, samples and tokens a second, replicas, memory if it is reported.

    Tokens are counted where `train_fn` says `step.report(tokens=...)` (of the whole global batch), or by
    `tokens_per_sample`. Memory comes from the worker callback `MemoryLog`.

    Cost: nothing on workers; it runs where `fit` was called.

    Args:
        every_s: between two lines, in the time of the steps. tokens_per_sample: e.g. the length of a sequence.

    Raises:
        SettingError: a number is not positive.
    """

    def __init__(self, every_s: float = 10.0, tokens_per_sample: float | None = None) -> None:
        if every_s <= 0 or (tokens_per_sample is not None and tokens_per_sample <= 0):
            raise SettingError(f"StepLog(every_s={every_s}, tokens_per_sample={tokens_per_sample}) must be positive")
        self._every_s, self._tokens_per_sample = every_s, tokens_per_sample
        self._since_s: float | None = None
        self._reports: list[StepReport] = []

    def on_begin(self, tune: Callable[[Tuning], None]) -> None:
        self._since_s = None  # it may have been given to a run before

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        self._reports.append(report)
        begin_s = self._reports[0].started_at_s if self._since_s is None else self._since_s
        if report.committed_at_s - begin_s >= self._every_s:
            self._tell()

    def on_end(self) -> None:
        if self._reports:
            self._tell()

    def _tell(self) -> None:
        last = self._reports[-1]
        rates = throughput(self._reports, self._since_s, self._tokens_per_sample)
        log.info("step %d: %s%s", last.commit.step, _sentence(rates), _memory(last))
        self._since_s = last.committed_at_s
        self._reports.clear()


class TensorBoardScalars(Callback):
    """Scalars of each stable step for TensorBoard, through tensorboardX.

    What `step.report` was given, under its own name, and results of evaluations; of steps between two that are written
    the newest of each. `train/step_time`, `train/between_steps` (seconds),
    `train/samples_per_s`, `train/tokens_per_s`, `train/replicas`, `train/goodput`, and `cost/<callback>` in seconds.
    A step that is told again (after a rewind) is written again.

    Cost: nothing on workers; about 0.1 ms a step where `fit` was called, in a thread of its own. What cannot be written
    is logged, and dropped; a minute later it is tried again.

    Args:
        log_dir: where TensorBoard looks. every_steps: between two that are written. tokens_per_sample: see `StepLog`.

    Raises:
        SettingError: `every_steps` is not positive.
    """

    def __init__(
        self, log_dir: str | os.PathLike[str], every_steps: int = 1, tokens_per_sample: float | None = None
    ) -> None:
        if every_steps < 1:
            raise SettingError(f"TensorBoardScalars(every_steps={every_steps}) must be at least 1")
        self._log_dir, self._every_steps, self._tokens_per_sample = os.fspath(log_dir), every_steps, tokens_per_sample
        self._board: Board | None = None
        self._since_s: float | None = None
        self._goodput, self._is_due = 0.0, False
        self._reports: list[StepReport] = []

    def on_begin(self, tune: Callable[[Tuning], None]) -> None:
        self._since_s, self._is_due = None, False  # it may have been given to a run before

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        self._reports.append(report)
        self._goodput = goodput
        self._is_due |= report.commit.step % self._every_steps == 0
        if self._is_due and (report.samples or report.skipped):  # only the last update of a step tells its samples
            self._tell()

    def _tell(self) -> None:
        last = self._reports[-1]
        shown = scalars(self._reports, throughput(self._reports, self._since_s, self._tokens_per_sample), self._goodput)
        if self._board is None:
            self._board = Board(self._log_dir, "scalars")
        self._board.put(Entry(step=last.commit.step, at_s=last.committed_at_s, scalars=shown))
        self._since_s, self._is_due = last.committed_at_s, False
        self._reports.clear()

    def on_end(self) -> None:
        if self._reports:
            self._tell()
        if self._board is not None:
            self._board.close()
            self._board = None


def scalars(reports: Sequence[StepReport], rates: Throughput, goodput: float) -> dict[str, float]:
    """By name; see `TensorBoardScalars`."""
    found = {name: value for report in reports for name, value in report.metrics.items()}
    found |= {"train/step_time": rates.step_s, "train/between_steps": rates.between_s}
    found |= {"train/samples_per_s": rates.samples_per_s, "train/replicas": float(rates.replicas)}
    found |= {"train/goodput": goodput}
    if rates.tokens_per_s is not None:
        found["train/tokens_per_s"] = rates.tokens_per_s
    return found | {f"cost/{name}": seconds for name, seconds in reports[-1].costs.items()}


def _sentence(rates: Throughput) -> str:
    tokens = "" if rates.tokens_per_s is None else f", {rates.tokens_per_s:.0f} tokens/s"
    return f"{rates.step_s:.3f} s a step, {rates.samples_per_s:.1f} samples/s{tokens}, {rates.replicas} replicas"


def _memory(report: StepReport) -> str:
    named = {"host": "memory/host_bytes", "GPU": "memory/gpu_bytes", "GPU peak": "memory/gpu_peak_bytes"}
    told = [f"{name} {report.metrics[key] / 2**30:.2f} GiB" for name, key in named.items() if key in report.metrics]
    return f"; memory of the leader: {', '.join(told)}" if told else ""
