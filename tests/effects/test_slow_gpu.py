"""Effect. A worker whose GPU is slow, as the straggler sections of NVIDIA's extension see it, tells its driver."""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from elastic.control import events as ev
from elastic.settings import RunSettings, Scaling
from elastic.train.host import WorkerHost, WorkerSpec
from tests.effects import nvrx_standin
from tests.effects.helpers import HOST, LONG_S, child, hear


def compute(session: Any) -> None:
    """A train_fn of which nothing is left but the sections around its steps."""
    for _ in range(200):  # two reports, of which the second finds the GPU slow
        with session._around.section():
            pass
    raise SystemExit("enough")


def serve_worker(pipe: Any, extension: Path) -> None:
    """A child's main: a worker's process on a machine that seems to have a GPU, and the extension."""
    sys.path.insert(0, str(extension))
    torch.cuda.is_available = lambda: True
    settings = RunSettings(run=f"slow-{os.getpid()}", scaling=Scaling(use_gpu=True))
    host = WorkerHost(WorkerSpec(worker="w7", seed=0, settings=settings, train_fn=compute), host=HOST)
    told: list[ev.Event] = []
    while not any(isinstance(event, ev.WorkerDeparted | ev.TrainFnRaised) for event in told):
        told += host.events(LONG_S)
    host.end()
    pipe.send([event for event in told if not isinstance(event, ev.Logged)])


def test_a_worker_tells_at_which_share_of_its_best_speed_its_gpu_computes(tmp_path: Path) -> None:
    nvrx_standin.write(tmp_path, nvrx_standin.HEALTH_CHECK_04)
    with child(serve_worker, tmp_path) as (_, pipe):
        told = hear(pipe)
    assert [type(event) for event in told] == [ev.GpuSlow, ev.WorkerDeparted], told
    assert told[0] == ev.GpuSlow(worker="w7", share=0.5)
