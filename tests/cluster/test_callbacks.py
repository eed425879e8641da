"""Effect. Callbacks given to fit: some run where it was called, some on every worker, through Ray."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

import elastic
from elastic import callbacks, errors
from elastic.callbacks import Callback, ScaledLR
from elastic.control.state import RunState
from elastic.control.values import StepReport
from tests.cluster.training import Numbers

pytestmark = pytest.mark.timeout(300)

LIMITS = elastic.Limits(start_timeout_s=150)


class Reports(Callback):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        self.reports.append(report)


def following(session: Any) -> float:
    """A few steps with a batch that follows; returns the last factor."""
    assert gc.get_freeze_count() > 10_000, "what was imported is not looked at in the steps"
    model = session.prepare(torch.nn.Linear(8, 1).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    session.track(model=model, optimizer=optimizer)
    batches = session.batches(Numbers(64), batch_size=elastic.FollowReplicas(per_replica=8), micro_batch_size=4)
    for step in session.steps(batches, max_steps=5):
        with step:
            for _, x, y in step:
                step.backward(((model(x).squeeze(-1) - y) ** 2).mean())
            step.apply(optimizer)
            step.report(factor=step.rate_factor)
    return step.rate_factor


def test_a_rule_goes_to_the_workers_and_other_callbacks_stay(hosts: Any, tmp_path: Path) -> None:
    told = Reports()
    result = elastic.fit(
        following,
        scaling=elastic.Scaling(num_dp_replicas=2),
        callbacks=[told, callbacks.SquareRootLR(reference_batch=4)],
        limits=LIMITS,
        run_dir=tmp_path / "run",
    )
    assert result.value == 2.0
    assert [report.metrics["factor"] for report in told.reports] == [2.0] * 5
    assert [report.samples for report in told.reports] == [16] * 5


def test_an_exception_in_a_rule_is_raised_by_fit_with_its_traceback(hosts: Any, tmp_path: Path) -> None:
    broken = ScaledLR(rule=lambda batch, reference: batch / 0)
    with pytest.raises(errors.TrainFnError, match="ZeroDivisionError") as caught:
        elastic.fit(following, callbacks=[broken], limits=LIMITS, run_dir=tmp_path / "run")
    assert "in <lambda>" in caught.value.traceback


def test_what_is_no_callback_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(errors.SettingError, match="WorkerCallback"):
        elastic.fit(following, callbacks=[print], run_dir=tmp_path / "run")  # type: ignore[list-item]
    assert not (tmp_path / "run").exists()
