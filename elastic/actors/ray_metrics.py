"""Effect. A run's metrics through Ray, whose nodes offer them to Prometheus as `ray_elastic_...`."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from elastic.callbacks.base import Callback
from elastic.control.metrics import METRICS, PREFIX, Metric, MetricKind, Sample, of_moment, of_state, of_steps
from elastic.control.moments import Moment
from elastic.control.state import RunState
from elastic.control.values import StepReport

PERIOD_S = 1.0  # Prometheus asks seldom; what happens meanwhile is summed
_MOST = 1024  # steps that are kept back


def _made_by_ray(metric: Metric) -> Any:
    from ray.util import metrics

    tags = ("run", *metric.tags)
    if metric.kind is MetricKind.HISTOGRAM:
        return metrics.Histogram(PREFIX + metric.name, metric.what, boundaries=list(metric.bounds), tag_keys=tags)
    kind = metrics.Gauge if metric.kind is MetricKind.GAUGE else metrics.Counter
    return kind(PREFIX + metric.name, metric.what, tag_keys=tags)


class RayMetrics(Callback):
    """Hands samples to Ray, in the thread that called `fit`, about once a second.

    Args:
        run: its name, a tag of every sample.
        make: a metric as Ray knows it.
    """

    def __init__(self, run: str, make: Callable[[Metric], Any] = _made_by_ray) -> None:
        self._run = run
        self._metrics = {metric.name: (metric, make(metric)) for metric in METRICS}
        self._shown: dict[str, set[tuple[str, ...]]] = {}
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
        self._record(of_moment(moment))

    def on_end(self) -> None:
        self._flush()

    def _flush_if_due(self) -> None:
        now_s = time.monotonic()
        if now_s - self._flushed_s >= PERIOD_S or len(self._reports) >= _MOST:
            self._flushed_s = now_s
            self._flush()

    def _flush(self) -> None:
        if self._reports:
            self._record(of_steps(self._reports, self._goodput))
            self._reports.clear()
        if self._state is not None:
            self._show(list(of_state(self._state)))

    def _show(self, samples: list[Sample]) -> None:
        """Series of a gauge that are not told any more go to 0: Ray would show their last value for ever."""
        told: dict[str, set[tuple[str, ...]]] = {}
        for sample in samples:
            told.setdefault(sample.name, set()).add(sample.tags)
        self._record(samples)
        for name, series in self._shown.items():
            self._record(Sample(name, 0.0, tags) for tags in series - told.get(name, set()))
        self._shown = told

    def _record(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            metric, made = self._metrics[sample.name]
            tags = {"run": self._run, **dict(zip(metric.tags, sample.tags, strict=True))}
            if metric.kind is MetricKind.GAUGE:
                made.set(sample.value, tags)
            elif metric.kind is MetricKind.HISTOGRAM:
                made.observe(sample.value, tags)
            elif sample.value > 0:
                made.inc(sample.value, tags)
