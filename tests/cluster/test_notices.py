"""Effect. The cloud tells two machines at once that it takes them away: one departure, between two steps."""

from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.control.state import RunState
from elastic.control.values import IncidentClass
from tests.cluster.test_fit import assert_no_attempt_wasted, committed_samples, fit
from tests.cluster.training import At
from tests.effects.metadata import Metadata, metadata_server
from tests.lines import whole_lines

pytestmark = pytest.mark.timeout(300)


def node_beside(hosts: Any, server: Metadata | None) -> Any:
    """A node with room for one worker, and the server that it asks about itself."""
    environment = {} if server is None else {"GCE_METADATA_HOST": server.host}
    return hosts.add_node(num_cpus=1, object_store_memory=80 << 20, resources={"spot": 1}, env_vars=environment or None)


def placed_after_the_notice(journal: Path) -> list[dict[str, Any]]:
    """Ray takes the noticed machines for free; who is placed there would be sent away again, and so on."""
    lines = whole_lines(journal)
    told = next(number for number, line in enumerate(lines) if line.get("event") == "NodeNotice")
    return [line for line in lines[told:] if line.get("event") == "WorkerPlaced"]


def test_machines_that_are_taken_away_together_are_left_together(hosts: Any, tmp_path: Path) -> None:
    with metadata_server() as one, metadata_server() as other:
        nodes = [node_beside(hosts, server) for server in (one, other, None)]

        def tell(state: RunState) -> None:
            for server in (one, other):
                server.says = {"preempted": "TRUE", "maintenance-event": "NONE"}

        saboteur = At(10, tell)
        scaling = elastic.Scaling(num_dp_replicas=(1, 3), resources_per_worker={"CPU": 1, "spot": 1})
        # Each monitor asks the cloud when its own second is over.
        limits = elastic.Limits(start_timeout_s=150, notice_window_s=3.0)
        try:
            result = fit(tmp_path, saboteur, steps=400, scaling=scaling, limits=limits)
        finally:
            for node in nodes:
                hosts.remove_node(node)
        assert one.asked and other.asked, "no monitor asked the cloud"
    assert saboteur.fired_s is not None
    assert {incident.kind for incident in result.incidents} == {IncidentClass.DEPARTURE}
    assert all("the cloud takes the machine away" in incident.evidence[0] for incident in result.incidents)
    assert result.world_sizes == [3, 1], "two notices of one moment are one generation"
    assert {line["node"] for line in placed_after_the_notice(tmp_path / "run" / "journal.jsonl")} <= {nodes[2].node_id}
    assert_no_attempt_wasted(tmp_path)
    assert set(committed_samples(tmp_path).values()) == {1}
