"""Effect. Hardware on a Ray cluster: a node whose GPU needs a reboot gets no workers, and a GPU that fails costs one.

One node has a driver: the stand-in that the tests compile, in the environment of its raylet.
"""

import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.control.state import RunState
from elastic.control.values import IncidentClass
from tests.cluster import training
from tests.cluster.test_chaos import CLI
from tests.cluster.test_tuning import Asking
from tests.effects.nvml_standin import STATE, Standin, compiled, install_smi
from tests.effects.test_chaos_xid import why_not
from tests.lines import whole_lines

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]
STORE_BYTES = 80 << 20
LATE_S = 60.0


@dataclass(frozen=True, slots=True)
class Nodes:
    """Two nodes with one slot each; `gpus` is the driver of one of them, `programs` comes first on its PATH."""

    with_gpu: str
    without: str
    gpus: Standin
    state: Path
    programs: Path


@pytest.fixture
def nodes(hosts: Any, tmp_path: Path) -> Iterator[Nodes]:
    library = compiled(tmp_path)
    state, programs = tmp_path / "state", tmp_path / "bin"
    programs.mkdir()
    gpus = Standin(state, count=1)
    environment = {"LD_LIBRARY_PATH": str(library.parent), STATE: str(state)}
    environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    slot = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": STORE_BYTES, "resources": {"there": 1}}
    added = [hosts.add_node(env_vars=environment, **slot), hosts.add_node(**slot)]
    yield Nodes(added[0].node_id, added[1].node_id, gpus, state, programs)
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
    lines = whole_lines(folder / "run" / "journal.jsonl")
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


def until_written(folder: Path, *texts: str) -> None:
    """The journal has these, in this order."""
    deadline_s = time.monotonic() + LATE_S
    while time.monotonic() < deadline_s:
        rest = (folder / "run" / "journal.jsonl").read_text()
        for text in texts:
            _, found, rest = rest.partition(text)
        if found:
            return
        time.sleep(0.1)
    raise AssertionError(f"{texts} is not in the journal")


def broken_meanwhile(nodes: Nodes, folder: Path, act: Callable[[], Any], train: Any) -> tuple[elastic.Result, str, Any]:
    """A run whose GPU is claimed by the worker there, and that goes on slowly until `act` has returned."""
    victims: list[str] = []

    def claim(state: RunState) -> None:
        (victim,) = (member for member in state.members if member.node == nodes.with_gpu)
        victims.append(victim.name)
        nodes.gpus["gpu0.pid"] = victim.pid

    def acted() -> Any:
        try:
            return act()
        finally:
            (folder / "enough").touch()

    asking = Asking(acted)
    result = elastic.fit(
        train(training.regression(folder, steps=1000, pause_s=0.05, until=folder / "enough")),
        name="xids",
        scaling=elastic.Scaling(num_dp_replicas=(1, 2), resources_per_worker={"CPU": 1, "there": 1}),
        callbacks=[training.At(2, claim), asking.callback],
        health=elastic.Health(period_s=0.1),
        run_dir=folder / "run",
    )
    return result, victims[0], asking.result()


@pytest.mark.parametrize("where", ["the stand-in for NVML", "the kernel log"])
def test_an_xid_that_elastic_chaos_injects_becomes_an_incident(
    nodes: Nodes, hosts: Any, tmp_path: Path, where: str
) -> None:
    if where == "the kernel log" and (reason := why_not()):
        pytest.skip(reason)
    argument = "94,bus=ee9a:17:00" if where == "the kernel log" else f"94,nvml={nodes.state},gpu=0"
    words = ["xids", "--fault", "xid", "--target", f"node:{nodes.with_gpu}", "--with", argument, "--force"]

    def act() -> Any:
        command = training.start_python(CLI, tmp_path, "chaos", *words, "--address", hosts.address)
        said = command.communicate(timeout=120)
        until_written(tmp_path, '"IncidentResolved"')
        return command.returncode, said

    result, victim, (code, said) = broken_meanwhile(nodes, tmp_path, act, lambda train_fn: train_fn)
    assert code == 0, said
    (struck,) = journal(tmp_path, "FaultInjected")
    assert struck["fault"]["kind"] == "xid" and struck["target"] == nodes.with_gpu
    found = [line for line in journal(tmp_path, "HardwareFinding") if line["kind"] == "xid"]
    here = [line for line in found if line["node"] == nodes.with_gpu]
    assert here and here[0]["workers"] == [victim]
    assert all(line["severity"] == "informational" for line in found if line not in here), "one kernel, two monitors"
    incident = result.incidents[0]
    assert (incident.kind, list(incident.culprits)) == (IncidentClass.GPU_FAULT, [victim])
    assert "XID 94" in incident.evidence[0] and result.steps == 1000


def on_gpu_0(train_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """As if its worker had been given that GPU of its node."""

    def given(session: Any) -> Any:
        from elastic.train.surroundings import Surroundings

        Surroundings.gpus = property(lambda self: ("0",))  # type: ignore[assignment,method-assign]
        return train_fn(session)

    return given


def test_a_gpu_is_reset_on_its_node_which_then_has_a_worker_again(nodes: Nodes, tmp_path: Path) -> None:
    told = tmp_path / "arguments"
    install_smi(nodes.programs, f'printf "%s " "$@" > {told}')

    def act() -> None:
        nodes.gpus.xid(48)
        until_written(tmp_path, '"ResetGpu"', '"GpuReset"', '"WorkerPlaced", "worker": "w', nodes.with_gpu)

    result, victim, _ = broken_meanwhile(nodes, tmp_path, act, on_gpu_0)
    assert told.read_text() == "--gpu-reset -i 0 "
    (answer,) = journal(tmp_path, "GpuReset")
    assert (answer["node"], answer["gpus"], answer["error"]) == (nodes.with_gpu, ["0"], "")
    assert list(result.incidents[0].culprits) == [victim]
    assert result.incidents[0].decision.startswith("reset the GPU") and result.steps == 1000


def test_what_gpus_do_is_offered_to_prometheus_by_their_node(nodes: Nodes, tmp_path: Path) -> None:
    import ray

    (node,) = (one for one in ray.nodes() if one["NodeID"] == nodes.with_gpu)
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    seen: dict[str, float] = {}
    enough = tmp_path / "enough"

    def look(state: RunState) -> None:
        deadline_s = time.monotonic() + LATE_S
        while not seen and time.monotonic() < deadline_s:
            with urllib.request.urlopen(url, timeout=10) as answer:
                seen.update(values(answer.read().decode(), run="gpus", node=nodes.with_gpu, gpu="0"))
            time.sleep(0.2)
        enough.touch()

    looker = training.At(5, look)
    train_fn = training.regression(tmp_path, steps=1000, pause_s=0.05, until=enough)
    scaling = elastic.Scaling(num_dp_replicas=(1, 2), resources_per_worker={"CPU": 1, "there": 1})
    elastic.fit(train_fn, name="gpus", scaling=scaling, callbacks=[looker], run_dir=tmp_path / "run")
    assert looker.fired_s is not None
    assert seen == {
        "utilization": 0.97,
        "memory_used_bytes": float(50 << 30),
        "memory_bytes": float(80 << 30),
        "power_watts": 350.0,
        "temperature_celsius": 45.0,
    }
    assert not [line for line in journal(tmp_path, "HardwareFinding") if line["device"]], "it is no news"


def values(page: str, **tags: str) -> dict[str, float]:
    """By name, of the series of GPUs that have these tags."""
    wanted = ["ray_elastic_gpu_", *(f'{name}="{value}"' for name, value in tags.items())]
    found = [line for line in page.splitlines() if line.startswith(wanted[0]) and all(one in line for one in wanted)]
    return {line.partition("{")[0].removeprefix(wanted[0]): float(line.split()[-1]) for line in found}
