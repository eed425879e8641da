"""Effect. On a real cluster: nodes that are kept out, a run that saves and exits, a policy from a file."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.actors.draining import drain_node
from elastic.control.state import RunState
from elastic.policies import ExitOnNotice
from tests.cluster.test_checkpoint import checkpoint, rungs
from tests.cluster.test_checkpoint import fit as fit_checkpointed
from tests.cluster.test_fit import assert_nothing_lost, clean, fit  # noqa: F401 - a fixture
from tests.cluster.training import At
from tests.lines import whole_lines

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

POLICY = """
from elastic.policies import Kind, Remediation

def out_with_it(incident, view):
    return Remediation(kind=Kind.REPLACE_NODE, reason=f"{view.nodes[incident.culprits[0]]} has failed")
"""


def journal(folder: Path) -> list[dict[str, Any]]:
    return whole_lines(folder / "run" / "journal.jsonl")


def test_no_worker_is_placed_on_a_node_that_is_replaced(clean: Any, hosts: Any, tmp_path: Path) -> None:  # noqa: F811
    """A policy from a file; the node has room for the replacement, and does not get it."""
    (tmp_path / "mine.py").write_text(POLICY)
    lost: list[str] = []

    def kill(state: RunState) -> None:
        lost.append(state.members[1].node)
        os.kill(state.members[1].pid, signal.SIGKILL)

    saboteur = At(10, kill)
    policy = f"{tmp_path / 'mine.py'}:out_with_it"
    scaling = elastic.Scaling(num_dp_replicas=(1, 2))
    result = fit(tmp_path, saboteur, steps=400, scaling=scaling, policy=policy)
    assert saboteur.fired_s is not None
    assert result.incidents[0].decision == f"replace the node: {lost[0]} has failed"
    told = [line for line in journal(tmp_path) if line.get("event") == "WorkerPlaced"]
    later = [line["node"] for line in told if line["t"] > saboteur.fired_s]
    assert later and lost[0] not in later
    assert result.world_sizes[-1] == 2, "the replacement has joined"


def test_a_run_saves_and_exits_on_notice_and_its_next_life_goes_on(hosts: Any, tmp_path: Path) -> None:
    node = hosts.add_node(num_cpus=2, object_store_memory=80 << 20, labels={"pool": "leaving"})
    try:
        scaling = elastic.Scaling(num_dp_replicas=2, label_selector={"pool": "leaving"})
        saboteur = At(10, lambda state: drain_node(node.node_id, "preempted", 30.0))
        options = {"scaling": scaling, "policy": ExitOnNotice(), "callbacks": [saboteur]}
        with pytest.raises(elastic.errors.ExitedError, match="is saved") as raised:
            fit_checkpointed(tmp_path, "exits", checkpoint(tmp_path), steps=4000, **options)
        assert saboteur.fired_s is not None
        stopped = raised.value.step
    finally:
        hosts.remove_node(node)
    durable = [line["commit"]["step"] for line in rungs(tmp_path) if line["rung"] == "durable"]
    assert durable and max(durable) >= stopped >= 10
    result = fit_checkpointed(tmp_path, "exits", checkpoint(tmp_path), steps=max(durable) + 20)
    assert result.steps == max(durable) + 20
    (restored,) = {line["commit"]["step"] for line in journal(tmp_path) if line.get("event") == "Restored"}
    assert restored >= max(durable), "later steps are in the memory of the nodes, if there are any"
