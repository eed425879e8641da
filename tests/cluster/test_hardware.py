"""Effect. Hardware on a Ray cluster: a node whose GPU needs a reboot gets no workers, and a GPU that fails costs one.

One node has a driver: the stand-in that the tests compile, in the environment of its raylet.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.control.state import RunState
from elastic.control.values import IncidentClass
from tests.cluster import training
from tests.effects.nvml_standin import STATE, Standin, compiled

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]
STORE_BYTES = 80 << 20


@dataclass(frozen=True, slots=True)
class Nodes:
    """Two nodes with one slot each; `gpus` is the driver of one of them."""

    with_gpu: str
    without: str
    gpus: Standin


@pytest.fixture
def nodes(hosts: Any, tmp_path: Path) -> Iterator[Nodes]:
    library = compiled(tmp_path)
    gpus = Standin(tmp_path / "state", count=1)
    environment = {"LD_LIBRARY_PATH": str(library.parent), STATE: str(tmp_path / "state")}
    slot = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": STORE_BYTES, "resources": {"there": 1}}
    added = [hosts.add_node(env_vars=environment, **slot), hosts.add_node(**slot)]
    yield Nodes(added[0].node_id, added[1].node_id, gpus)
    for node in added:
        hosts.remove_node(node)


def fit(folder: Path, *callbacks: Any, steps: int = 40, **options: Any) -> elastic.Result:
    return elastic.fit(
        training.regression(folder, steps=steps, pause_s=0.01),
        scaling=elastic.Scaling(num_dp_replicas=(1, 2), resources_per_worker={"CPU": 1, "there": 1}),
        callbacks=list(callbacks),
        run_dir=folder / "run",
        **options,
    )


def journal(folder: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(text) for text in (folder / "run" / "journal.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("event") == event]


def test_a_node_that_fails_its_check_gets_no_workers(nodes: Nodes, tmp_path: Path) -> None:
    nodes.gpus["action"] = 2
    result = fit(tmp_path)
    assert set(result.world_sizes) == {1} and result.incidents == []
    checks = {line["node"]: line for line in journal(tmp_path, "HardwareFinding") if line["kind"] == "health"}
    assert checks[nodes.with_gpu]["severity"] == "node_must_go"
    assert "asks for: Node Reboot" in checks[nodes.with_gpu]["detail"]
    assert checks[nodes.without]["severity"] == "informational"
    placed = [line["node"] for line in journal(tmp_path, "WorkerPlaced")]
    assert placed.count(nodes.with_gpu) == 1, "nobody was placed there again"
    parked = {line["worker"] for line in journal(tmp_path, "WorkerParked")}
    first = next(line["worker"] for line in journal(tmp_path, "WorkerPlaced") if line["node"] == nodes.with_gpu)
    consumed = {path.stem for path in tmp_path.glob("w*.jsonl") if '"consumed"' in path.read_text()}
    assert first not in consumed and consumed <= parked


def test_a_gpu_that_fails_costs_its_worker_and_no_step(nodes: Nodes, tmp_path: Path) -> None:
    struck: list[str] = []

    def fail(state: RunState) -> None:
        (victim,) = (member for member in state.members if member.node == nodes.with_gpu)
        struck.append(victim.name)
        nodes.gpus["gpu0.pid"] = victim.pid
        nodes.gpus.xid(94)

    saboteur = training.At(10, fail)
    result = fit(tmp_path, saboteur, steps=120, health=elastic.Health(period_s=0.1))
    assert saboteur.fired_s is not None
    incident = result.incidents[0]
    assert (incident.kind, list(incident.culprits)) == (IncidentClass.GPU_FAULT, struck)
    assert "XID 94 (ROBUST_CHANNEL_CONTAINED_ERROR)" in incident.evidence[0]
    assert result.steps == 120
    blind = [line["detail"] for line in journal(tmp_path, "HardwareFinding") if line["kind"] == "blind"]
    assert any("GPUs: no driver library" in detail for detail in blind), "the other node says what it can not see"
