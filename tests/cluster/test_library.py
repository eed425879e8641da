"""Effect. What else comes with the library, for real: kept checkpoints, traces, a notice, and `elastic run`."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic import callbacks
from elastic.checkpoint.vault import open_vault
from elastic.control.state import RunState, Standing
from tests.cluster.training import At, regression
from tests.lines import whole_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LIMITS = elastic.Limits(start_timeout_s=150)
ROOT = Path(__file__).parents[2]


def test_a_model_checkpoint_is_written_and_the_best_are_kept(hosts: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    elastic.fit(
        regression(tmp_path, steps=40, pause_s=0.05),
        name="kept",
        scaling=elastic.Scaling(num_dp_replicas=2),
        callbacks=[callbacks.ModelCheckpoint(persistent=str(store), every_steps=5, top_k=2, metric="loss", last=1)],
        checkpoint=elastic.Checkpoint(local_interval=elastic.Interval(steps=5), peers=0),
        limits=LIMITS,
        run_dir=tmp_path / "run",
    )
    journal = whole_lines(tmp_path / "run" / "journal.jsonl")
    durable = [one["commit"]["step"] for one in journal if one.get("rung") == "durable"]
    assert len(durable) >= 3 and durable[-1] == 39
    vault = open_vault(str(store), "kept")
    try:
        kept = [one.commit.step for one in vault.commits()]
    finally:
        vault.close()
    assert 39 in kept and 1 <= len(kept) <= 4


def test_a_notice_is_told_with_how_long_saving_took(hosts: Any, tmp_path: Path) -> None:
    auto = callbacks.AutoCheckpoint(rung="local", within_s=60)

    def take_away(state: RunState) -> None:
        members = state.standing(Standing.MEMBER)
        os.kill(members[-1].pid, signal.SIGTERM)

    noticed = At(10, take_away)
    elastic.fit(
        regression(tmp_path, steps=60, pause_s=0.05),
        name="noticed",
        scaling=elastic.Scaling(num_dp_replicas=(1, 2)),
        callbacks=[auto, noticed],
        checkpoint=elastic.Checkpoint(persistent=str(tmp_path / "store"), peers=0),
        limits=LIMITS,
        run_dir=tmp_path / "run",
    )
    assert noticed.fired_s is not None
    assert len(auto.saved_s) == 1 and auto.saved_s[0] < 60


def test_traces_and_collections_are_in_the_journal(hosts: Any, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    elastic.fit(
        regression(tmp_path, steps=30),
        name="traced",
        scaling=elastic.Scaling(num_dp_replicas=2),
        callbacks=[
            callbacks.Profile(traces, steps=[range(5, 7)], ranks=[0, 1]),
            callbacks.CollectGarbage(every_steps=10),
        ],
        limits=LIMITS,
        run_dir=tmp_path / "run",
    )
    journal = whole_lines(tmp_path / "run" / "journal.jsonl")
    noted = [one for one in journal if one.get("event") == "Noted"]
    assert {one["worker"] for one in noted} == {"w0", "w1"} and all(one["seconds"] > 0 for one in noted)
    assert {Path(one["detail"]).name for one in noted} == {path.name for path in (traces / "traced").iterdir()}
    reports = [one["report"] for one in journal if one.get("event") == "StepStable"]
    costs = {one["commit"]["step"]: one["costs"] for one in reports}
    assert costs[10]["CollectGarbage"] > costs[11]["CollectGarbage"]
    assert costs[6]["Profile"] > costs[4]["Profile"]


SCRIPT = """
import torch
from sizes import SAMPLES

def train_fn(session):
    print("a worker talks")
    model = session.prepare(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    session.track(model=model, optimizer=optimizer)
    x = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(x, x.sum(1))
    for step in session.steps(session.batches(data, batch_size=64, micro_batch_size=8), max_steps=20):
        with step:
            for x, y in step:
                step.backward(((model(x).squeeze(1) - y) ** 2).mean())
            step.apply(optimizer)
            step.report(loss=step.loss)
"""


def test_a_script_is_run_from_a_shell(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "sizes.py").write_text("SAMPLES = 1024\n")
    (tmp_path / "run.yaml").write_text("train_fn: train.py\nscaling:\n  num_dp_replicas: 2\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    code = "from elastic.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "run.yaml", "--set", "seed=3", "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)  # the object alone
    assert "a worker talks" in done.stderr
    assert told["steps"] == 20 and told["world_sizes"][-1] == 2 and told["last_report"]["loss"] > 0
    assert (tmp_path / told["run_dir"] / "journal.jsonl").exists()
