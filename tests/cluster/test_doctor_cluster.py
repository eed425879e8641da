"""Effect. `elastic doctor` on a cluster of several nodes: each is looked at, and what lies between them is measured."""

import json
from pathlib import Path
from typing import Any

import ray
from click.testing import CliRunner

from elastic.actors.surveying import survey_cluster
from elastic.cli import cli
from elastic.settings import Scaling
from tests.effects.helpers import eventually

NODES = 4


def living_nodes() -> list[Any]:
    return [node for node in ray.nodes() if node["Alive"]]


def test_all_nodes_and_links_are_looked_at(hosts: Any, tmp_path: Path) -> None:
    eventually(lambda: len(living_nodes()) == NODES, "Ray knows that nodes of other tests are gone")
    found = survey_cluster(None, "/dev/shm", Scaling(), str(tmp_path))
    assert found.trouble == "" and found.silent == ()
    assert len(found.machines) == len(found.store_bytes) == NODES
    assert all(machine.versions["ray"] for machine in found.machines)
    assert [machine.has_room for machine in found.machines].count(False) == 1, "the head has no slot"
    assert all(size > 0 for _, size in found.store_bytes)
    assert len(found.bytes_per_s) == NODES and all(speed > 1e6 for _, speed in found.bytes_per_s)
    assert all(abs(offset_s) < 0.5 for _, offset_s in found.clocks_s)
    assert len(found.tiers) == NODES and not any(trouble for _, trouble in found.tiers)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [], "what was written is gone"


def test_the_command_tells_of_them(hosts: Any) -> None:
    done = CliRunner().invoke(cli, ["doctor", "--json", "--params", "1e15"])
    assert done.exit_code == 3, done.output
    found = json.loads(done.stdout)
    assert len([row for row in found["findings"] if row["subject"] == "ramdisk"]) == NODES - 1
    assert any(row["subject"] == "authentication" and row["verdict"] == "costs" for row in found["findings"])
