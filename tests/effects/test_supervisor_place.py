"""Effect. Where the supervisor goes, among the nodes that a cluster tells of."""

from typing import Any

import pytest

from elastic.actors import supervisor_actor
from elastic.settings import Scaling

NODES = [
    {"NodeID": "gpu", "Alive": True, "Labels": {"pool": "gpu"}, "Resources": {"GPU": 8.0}},
    {"NodeID": "lost", "Alive": False, "Labels": {"pool": "cpu"}, "Resources": {"cpu_node": 1.0}},
    {"NodeID": "b", "Alive": True, "Labels": {"pool": "cpu"}, "Resources": {"cpu_node": 1.0}},
    {"NodeID": "a", "Alive": True, "Labels": {"pool": "cpu"}, "Resources": {}},
]


@pytest.mark.parametrize(
    ("wanted", "node"),
    [
        ({}, None),
        ({"supervisor_labels": {"pool": "cpu"}}, "a"),
        ({"supervisor_resource": "cpu_node"}, "b"),
        ({"supervisor_labels": {"pool": "cpu"}, "supervisor_resource": "cpu_node"}, "b"),
        ({"supervisor_labels": {"pool": "none"}}, None),
        ({"supervisor_resource": "TPU"}, None),
    ],
)
def test_it_goes_where_labels_and_resource_say(monkeypatch: Any, wanted: dict[str, Any], node: str | None) -> None:
    monkeypatch.setattr(supervisor_actor.ray, "nodes", lambda: NODES)
    assert supervisor_actor._wanted_node(Scaling(**wanted)) == node
