"""Effect. What workers log comes to the driver's files through Ray, and is shown once."""

import logging
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.exceptions import RayTaskError

import elastic
from elastic.actors.asking import supervisor_name
from elastic.actors.peer_source import namespace
from elastic.actors.stored_journal import StoredJournal
from elastic.checkpoint.records import opened
from elastic.checkpoint.stores import open_store
from elastic.control.state import RunState
from tests.cluster.training import At, Numbers
from tests.lines import whole_lines

pytestmark = pytest.mark.timeout(300)


def talking(session: Any) -> None:
    """Says the same on every worker, in the middle of a step."""
    model = session.prepare(torch.nn.Linear(8, 1).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    session.track(model=model, optimizer=optimizer)
    for step in session.steps(session.batches(Numbers(64), batch_size=16, micro_batch_size=4), max_steps=6):
        with step:
            for _, x, y in step:
                step.backward(((model(x).squeeze(-1) - y) ** 2).mean())
            step.apply(optimizer)
            if step.index == 3:
                logging.getLogger("train").warning("loss is %f here", step.loss)
            logging.getLogger("train").info("step %d", step.index)


def test_lines_of_workers_are_kept_by_worker_and_shown_once(hosts: Any, tmp_path: Path, caplog: Any) -> None:
    def call_as_a_stranger(state: RunState) -> None:
        supervisor = ray.get_actor(supervisor_name("talking"), namespace("talking"))
        with pytest.raises(RayTaskError):
            ray.get(supervisor.call.remote("guessed", "state"), timeout=30)

    stranger = At(2, call_as_a_stranger)
    result = elastic.fit(
        talking,
        scaling=elastic.Scaling(num_dp_replicas=2),
        callbacks=[stranger],
        limits=elastic.Limits(start_timeout_s=150),
        checkpoint=elastic.Checkpoint(persistent=str(tmp_path / "store"), peers=0),
        logs=elastic.Logs(persistent=True),
        name="talking",
        run_dir=tmp_path / "run",
    )
    assert result.steps == 6
    shown = [one for one in caplog.records if "loss is" in one.getMessage()]
    assert len(shown) == 2 and "1 more from 1 worker" in shown[1].getMessage()
    folder = tmp_path / "run" / "logs"
    for worker in ("w0", "w1"):
        told = whole_lines(tmp_path / "run" / "logs" / f"{worker}.jsonl")
        lines = [line for line in told if line["logger"] == "train"]
        assert [line["text"] for line in lines if line["level"] == "info"] == [f"step {step}" for step in range(6)]
        (warned,) = [line for line in lines if line["level"] == "warning"]
        assert warned["step"] == 3 and warned["generation"] == 1 and warned["worker"] == worker and warned["node"]
    assert stranger.fired_s is not None
    (supervisor,) = [one for one in whole_lines(folder / "supervisor.jsonl") if one["level"] == "warning"]
    assert "without the run's token" in supervisor["text"] and supervisor["role"] == "supervisor" and supervisor["node"]
    assert [one.getMessage() for one in caplog.records].count(f"supervisor: {supervisor['text']}") == 1
    for role, text in (("monitor", "watches w"), ("replica", "keeps what is in the memory")):
        found = [line for path in folder.glob(f"{role}-*.jsonl") for line in whole_lines(path) if text in line["text"]]
        assert found and all(one["role"] == role and one["worker"] == f"{role}-{one['node'][:12]}" for one in found)
    assert "Logged" not in (tmp_path / "run" / "journal.jsonl").read_text()
    store = open_store(str(tmp_path / "store"))
    try:
        assert {item.key.split("-")[-2] for item in store.list("talking/logs/")} >= {"w0", "w1"}
        copied = [
            str(opened("log", store.read(one.key))["text"]) for one in store.list("talking/logs/0000000001-driver")
        ]
        assert "".join(copied) == (folder / "driver.jsonl").read_text(), "from its first line to its last"
        assert "".join(StoredJournal(store, "talking").parts()) == (tmp_path / "run" / "journal.jsonl").read_text()
    finally:
        store.close()


@pytest.fixture(autouse=True)
def at_warning(caplog: Any) -> None:
    caplog.set_level(logging.WARNING)
