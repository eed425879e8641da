"""Effect. A run's metrics, from the process of its driver."""

import time

from elastic.actors.series import Make, Series, made_by_ray
from elastic.callbacks.base import Callback
from elastic.control.metrics import BY_NAME, OF_RUNS, MetricKind, Sample, of_moment, of_state, of_steps
from elastic.control.moments import Moment
from elastic.control.state import RunState
from elastic.control.values import StepReport

PERIOD_S = 1.0  # Prometheus asks seldom; what happens meanwhile is summed
_MOST = 1024  # steps that are kept back


class RayMetrics(Callback):
    """Hands samples to Ray, in the thread that called `fit`, about once a second.

    Args:
        run: its name, a tag of every sample.
        make: a metric as Ray knows it.
    """

    def __init__(self, run: str, make: Make = made_by_ray) -> None:
        self._series = Series(run, OF_RUNS, make)
        self._latched: dict[tuple[str, tuple[str, ...]], Sample] = {}  # of moments: Ray forgets what it hears once
        self._reports: list[StepReport] = []
        self._state: RunState | None = None
        self._goodput = 0.0
        self._flushed_s = 0.0

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        self._reports.append(report)
        self._state, self._goodput = state, goodput
        self._flush_if_due()

    def on_state(self, state: RunState) -> None:
        self._state = state
        self._flush_if_due()

    def on_moment(self, moment: Moment) -> None:
        samples = list(of_moment(moment))
        self._series.record(samples)
        gauges = (one for one in samples if BY_NAME[one.name].kind is MetricKind.GAUGE)
        self._latched |= {(one.name, one.tags): one for one in gauges}

    def on_end(self) -> None:
        self._flush()

    def _flush_if_due(self) -> None:
        now_s = time.monotonic()
        if now_s - self._flushed_s >= PERIOD_S or len(self._reports) >= _MOST:
            self._flushed_s = now_s
            self._flush()

    def _flush(self) -> None:
        self._series.record(self._latched.values())
        if self._reports:
            self._series.record(of_steps(self._reports, self._goodput))
            self._reports.clear()
        if self._state is not None:
            self._series.show(list(of_state(self._state)))
