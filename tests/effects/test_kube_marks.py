"""What is written onto machines, from a client whose server is one node in memory."""

import copy
import json
from collections.abc import Iterator
from io import BytesIO
from math import inf
from typing import Any

import pytest

from elastic.kube.client import KubeClient

kubernetes = pytest.importorskip("kubernetes")


class OneNode:
    """What an API server does with a node: a merge patch, refused where another write came ahead of it."""

    def __init__(self, **spec: Any) -> None:
        self.spec, self._version, self.writes = dict(spec), 0, 0
        self.between: list[dict[str, Any]] = []

    def read_node(self, name: str, **_: Any) -> Any:
        metadata = {"name": name, "resourceVersion": str(self._version)}
        return BytesIO(json.dumps({"metadata": metadata, "spec": self.spec}).encode())

    def patch_node(self, name: str, body: dict[str, Any], **_: Any) -> BytesIO:
        if self.between:
            self._write(self.between.pop())
        if body["metadata"]["resourceVersion"] != str(self._version):
            raise kubernetes.client.ApiException(status=409, reason="Conflict")
        self._write(body["spec"])
        return BytesIO(b"{}")

    def _write(self, spec: dict[str, Any]) -> None:
        merged = self.spec | copy.deepcopy(spec)
        self.spec = {key: value for key, value in merged.items() if value is not None}
        self._version += 1
        self.writes += 1

    @property
    def marks(self) -> dict[str, str]:
        return {one["key"]: one["value"] for one in self.spec.get("taints", ())}


@pytest.fixture
def client() -> Iterator[KubeClient]:
    made = KubeClient(kubernetes.client.ApiClient(), "default")
    yield made
    made.close()


def on(client: KubeClient, node: OneNode) -> OneNode:
    client._core = node
    return node


def test_a_machine_is_cordoned_and_marked_in_one_write_and_let_go_in_another(client):
    node = on(client, OneNode())
    client.quarantine("m", "llama", 7.5)
    assert (node.spec["unschedulable"], node.marks, node.writes) == (True, {"elastic.quarantine/llama": "8"}, 1)
    client.release("m", "llama")
    assert "unschedulable" not in node.spec and not node.marks and node.writes == 2


def test_a_person_who_has_cordoned_a_machine_finds_it_so(client):
    node = on(client, OneNode(unschedulable=True))
    client.quarantine("m", "llama", 7.5)
    client.quarantine("m", "llama", inf)
    client.release("m", "llama")
    assert node.spec == {"unschedulable": True, "taints": []}


def test_one_who_comes_between_is_heeded(client):
    node = on(client, OneNode())
    node.between = [{"unschedulable": True}]
    client.quarantine("m", "llama", 7.5)
    assert node.marks == {"elastic.quarantine/llama": "8.kept"}


def test_two_runs_on_a_machine_leave_each_other_alone(client):
    node = on(client, OneNode())
    client.quarantine("m", "llama", inf)
    client.quarantine("m", "night", 7.5)
    assert node.marks == {"elastic.quarantine/llama": "never", "elastic.quarantine/night": "8"}
    client.release("m", "night")
    assert node.marks == {"elastic.quarantine/llama": "never"} and node.spec["unschedulable"]
    client.release("m", "llama")
    assert "unschedulable" not in node.spec


def test_what_is_there_is_not_written_again_and_what_is_gone_is_left_as_it_is(client):
    """The list that this was decided on may be older than the node."""
    node = on(client, OneNode())
    client.quarantine("m", "llama", 7.5)
    client.quarantine("m", "llama", 7.5)
    assert node.writes == 1
    client.release("m", "llama")
    node.spec["unschedulable"] = True  # somebody's own, since
    client.release("m", "llama")
    assert node.spec["unschedulable"] and node.writes == 2
