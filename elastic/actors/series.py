"""Effect. Series of metrics through Ray, whose nodes offer them to Prometheus as `ray_elastic_...`.

From any process of a cluster; its node offers what it has told last.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from elastic.control.hardware import GpuReading
from elastic.control.metrics import OF_GPUS, PREFIX, Metric, MetricKind, Sample, of_gpus

Make = Callable[[Metric], Any]


def made_by_ray(metric: Metric) -> Any:
    """A metric as Ray knows it; a counter is a gauge of what it has come to, since Ray's own begin with an amount."""
    from ray.util import metrics

    tags = ("run", *metric.tags)
    if metric.kind is MetricKind.HISTOGRAM:
        return metrics.Histogram(PREFIX + metric.name, metric.what, boundaries=list(metric.bounds), tag_keys=tags)
    return metrics.Gauge(PREFIX + metric.name, metric.what, tag_keys=tags)


class Series:
    """See the module.

    Args:
        run: its name, a tag of every sample.
        make: a metric as Ray knows it.
    """

    def __init__(self, run: str, metrics: Iterable[Metric], make: Make = made_by_ray) -> None:
        self._run = run
        self._metrics = {metric.name: (metric, make(metric)) for metric in metrics}
        self._shown: dict[str, set[tuple[str, ...]]] = {}
        counters = (metric for metric, _ in self._metrics.values() if metric.kind is MetricKind.COUNTER)
        self._sums = {(metric.name, tags): 0.0 for metric in counters for tags in metric.zeros}

    def show(self, samples: Sequence[Sample]) -> None:
        """Series of a gauge that are not told any more go to 0: Ray would show their last value for ever.

        Sums are told again: Ray forgets what it hears once.
        """
        told: dict[str, set[tuple[str, ...]]] = {}
        for sample in samples:
            told.setdefault(sample.name, set()).add(sample.tags)
        self.record(samples)
        for name, series in self._shown.items():
            self.record(Sample(name, 0.0, tags) for tags in series - told.get(name, set()))
        self._shown = told
        self.record(Sample(name, 0.0, tags) for name, tags in list(self._sums))

    def record(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            metric, made = self._metrics[sample.name]
            tags = {"run": self._run, **dict(zip(metric.tags, sample.tags, strict=True))}
            if metric.kind is MetricKind.GAUGE:
                made.set(sample.value, tags)
            elif metric.kind is MetricKind.HISTOGRAM:
                made.observe(sample.value, tags)
            else:
                so_far = self._sums.get((sample.name, sample.tags), 0.0) + sample.value
                self._sums[sample.name, sample.tags] = so_far
                made.set(so_far, tags)


class GpuSeries:
    """What a host monitor sees of the GPUs of its node; made once there are some.

    Args:
        run, node: tags of every sample.
    """

    def __init__(self, run: str, node: str, make: Make = made_by_ray) -> None:
        self._run, self._node, self._make = run, node, make
        self._series: Series | None = None

    def show(self, gpus: Sequence[GpuReading]) -> None:
        if self._series is None:
            self._series = Series(self._run, OF_GPUS, self._make)
        self._series.show(list(of_gpus(self._node, gpus)))
