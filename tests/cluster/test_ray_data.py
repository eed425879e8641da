"""Effect. A Ray dataset as a ledger of blocks: each row once an epoch, though a worker is killed and one joins."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import elastic
from elastic.actors.ray_data import RayBlocks
from elastic.control.batch_size import ConstantBatch
from elastic.control.data import BatchPlan
from elastic.control.state import RunState
from elastic.errors import SettingError, TrainFnError
from tests.cluster.training import At, read_lines

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data"),  # Ray warns of its own settings
]

LIMITS = elastic.Limits(start_timeout_s=120)
LONG_S = 120.0
SIZES = (40, 7, 33, 0, 21, 19)
ROWS, BATCH = sum(SIZES), 16  # 7 steps of 16 and one of 8 make an epoch
STEPS = 24


@pytest.fixture(scope="module")
def dataset(hosts: Any) -> Any:
    """The rows; reading them once, as a worker does, has Ray Data start actors that stay as long as the cluster."""
    import ray
    from ray import cloudpickle
    from ray.data._internal.stats import get_or_create_stats_actor

    made = materialized()
    assert len(RayBlocks(cloudpickle.loads(cloudpickle.dumps(made)), 60)) == ROWS
    ray.get(get_or_create_stats_actor().__ray_ready__.remote(), timeout=LONG_S)
    return made


def materialized() -> Any:
    """Rows (i, x, name) in blocks of SIZES."""
    import pyarrow
    import ray.data

    firsts = np.cumsum((0, *SIZES))
    return ray.data.from_arrow(
        [
            pyarrow.table(
                {
                    "i": np.arange(first, first + size),
                    "x": np.arange(first, first + size) / ROWS,
                    "name": [f"row {i}" for i in range(first, first + size)],
                }
            )
            for first, size in zip(firsts, SIZES, strict=False)
        ]
    ).materialize()


def over(dataset: Any, folder: Path, steps: int = STEPS, pause_s: float = 0.01) -> Any:
    """A train_fn that fits a line to the rows, and writes down which it consumed."""

    def train_fn(session: Any) -> dict[str, Any]:
        import json
        import time

        model = session.prepare(torch.nn.Linear(1, 1).double())
        for parameter in model.parameters():
            torch.nn.init.zeros_(parameter)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session.track(model=model, optimizer=optimizer)
        rows = session.ray_dataset(dataset)
        batches = session.batches(rows, batch_size=16, micro_batch_size=2)
        log = os.open(folder / f"{session.worker}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        fetched = []
        fetch = rows._fetch
        rows._fetch = lambda block: (fetched.append(block), fetch(block))[1]

        def write(**line: Any) -> None:
            os.write(log, json.dumps({"t": time.time(), **line}).encode() + b"\n")

        for step in session.steps(batches, max_steps=steps):
            with step:
                place = {"step": step.index, "generation": step.generation}
                for batch in step:
                    assert batch["name"] == [f"row {i}" for i in batch["i"].tolist()]
                    write(event="consumed", **place, ids=batch["i"].tolist())
                    time.sleep(pause_s)
                    step.backward((model(batch["x"][:, None]).squeeze(1) - batch["x"]).square().mean())
                step.apply(optimizer)
                step.report(loss=step.loss)
                write(event="committed", **place, samples=step.samples)
        return {"weight": model.weight.item(), "fetched": fetched}

    return train_fn


def committed_rows(folder: Path) -> list[Counter[int]]:
    """Of each step."""
    lines = read_lines(folder)
    stands = {line["step"]: line["generation"] for line in lines if line["event"] == "committed"}
    rows = [Counter[int]() for _ in stands]
    for line in lines:
        if line["event"] == "consumed" and stands.get(line["step"]) == line["generation"]:
            rows[line["step"]].update(line["ids"])
    return rows


def test_a_killed_worker_and_a_spare_cost_no_row(dataset: Any, tmp_path: Path) -> None:
    """The rows of each step are those that the blocks' sizes and the seed say, and the answer is a plain loop's."""

    def kill(state: RunState) -> None:
        os.kill(state.members[1].pid, signal.SIGKILL)

    result = elastic.fit(
        over(dataset, tmp_path, pause_s=0.1),
        scaling=elastic.Scaling(num_dp_replicas=2, spares=1),
        limits=LIMITS,
        callbacks=[At(10, kill)],
        run_dir=tmp_path / "run",
    )
    assert len(result.incidents) == 1, "nobody was killed"
    steps, wanted = committed_rows(tmp_path), planned_rows()
    assert steps == [Counter(rows) for rows in wanted]
    for epoch in range(STEPS // 8):
        part = steps[8 * epoch : 8 * epoch + 8]
        assert [sum(step.values()) for step in part] == [BATCH] * 7 + [ROWS - 7 * BATCH]
        assert sum(part, Counter()) == Counter(range(ROWS))
    assert result.value["weight"] == pytest.approx(trained_alone(wanted), rel=1e-9)
    assert len(result.value["fetched"]) <= 3 * (len(SIZES) - 1) + 1, "a block is fetched once an epoch"


def planned_rows() -> list[list[int]]:
    blocks = tuple(size for size in SIZES if size)
    plan = BatchPlan(samples=ROWS, batch_size=ConstantBatch(size=BATCH), micro_batch_size=2, blocks=blocks)
    steps, consumed = [], 0
    for _ in range(STEPS):
        cut = plan.cut(consumed, 1)
        steps.append([index for one in cut for index in plan.sample_indices(one)])
        consumed += len(steps[-1])
    return steps


def trained_alone(steps: list[list[int]]) -> float:
    model = torch.nn.Linear(1, 1).double()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in steps:
        x = torch.tensor(rows, dtype=torch.float64) / ROWS
        optimizer.zero_grad()
        (model(x[:, None]).squeeze(1) - x).square().mean().backward()
        optimizer.step()
    return float(model.weight.item())


def test_what_is_not_materialized_is_refused_and_loader_processes_have_no_part_in_it(
    dataset: Any, tmp_path: Path
) -> None:
    import ray.data

    lazy = ray.data.range(64)

    def train_fn(session: Any) -> None:
        with pytest.raises(SettingError, match=r"call ds.materialize\(\) before elastic.fit"):
            session.ray_dataset(lazy)
        session.batches(session.ray_dataset(dataset), batch_size=16, workers=1)

    with pytest.raises(TrainFnError, match=r"Ray dataset is read in the training thread.* or leave workers=0"):
        elastic.fit(train_fn, limits=LIMITS, callbacks=[], run_dir=tmp_path / "run")
