"""Effect. A worker whose GPU is slow, as the straggler sections of NVIDIA's extension see it, tells its driver."""

import contextlib
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from elastic.control import events as ev
from elastic.settings import RunSettings, Scaling
from elastic.train.host import WorkerHost, WorkerSpec
from tests.effects.helpers import HOST, LONG_S, child, hear


class Detector:
    """What we use of the extension's; `Report` as of its versions 0.4 and 0.6."""

    class Report:
        gpu_individual_perf_scores = {0: 0.9, 1: 0.5}  # noqa: RUF012

    @classmethod
    def initialize(cls, **options: Any) -> None:
        assert options["scores_to_compute"] == ["individual_perf_scores"]

    @classmethod
    @contextlib.contextmanager
    def detection_section(cls, name: str, profile_cuda: bool) -> Iterator[None]:
        yield

    @classmethod
    def generate_report(cls) -> type[Report]:
        return cls.Report


def compute(session: Any) -> None:
    """A train_fn of which nothing is left but the sections around its steps."""
    for _ in range(100):
        with session._around.section():
            pass
    raise SystemExit("enough")


def serve_worker(pipe: Any) -> None:
    """A child's main: a worker's process on a machine that seems to have a GPU, and the extension."""
    package, module = (types.ModuleType(f"nvidia_resiliency_ext{name}") for name in ("", ".straggler"))
    module.Detector = Detector  # type: ignore[attr-defined]
    sys.modules |= {one.__name__: one for one in (package, module)}
    torch.cuda.is_available = lambda: True
    settings = RunSettings(run=f"slow-{os.getpid()}", scaling=Scaling(use_gpu=True))
    host = WorkerHost(WorkerSpec(worker="w7", seed=0, settings=settings, train_fn=compute), host=HOST)
    told: list[ev.Event] = []
    while not any(isinstance(event, ev.WorkerDeparted | ev.TrainFnRaised) for event in told):
        told += host.events(LONG_S)
    host.end()
    pipe.send([event for event in told if not isinstance(event, ev.Logged)])


def test_a_worker_tells_at_which_share_of_its_best_speed_its_gpu_computes() -> None:
    with child(serve_worker) as (_, pipe):
        told = hear(pipe)
    assert [type(event) for event in told] == [ev.GpuSlow, ev.WorkerDeparted], told
    assert told[0] == ev.GpuSlow(worker="w7", share=0.5)
