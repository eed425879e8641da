"""Effect. Ray's autoscaler beside us writes the same group: nobody's numbers and nobody's names get lost.

It writes as `kuberay/cloud_provider.py` of Ray does: without comparing, and the whole list of pods that are to go.
"""

import copy
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from io import BytesIO
from math import inf
from typing import Any

import pytest

from elastic.actors.machines import Machines
from elastic.actors.taken import Taken
from elastic.control.care import Care
from elastic.control.state import RunState
from elastic.kube.client import KubeClient, connect
from elastic.kube.manifests import render
from elastic.kube.objects import GroupState, Pod
from elastic.kube.pods import GROUP
from elastic.settings import RunSettings
from tests.effects.kube_parts import api_server, crds, create
from tests.pure.test_kuberay_manifests import KUBERAY, SCALING, with_kuberay

kubernetes = pytest.importorskip("kubernetes")

CLUSTER, LOW, HIGH = "shared", 4, 9
WHERE = f"/apis/ray.io/v1/namespaces/default/rayclusters/{CLUSTER}"
LOOK_S, WAIT_S = 0.05, 60.0
STATE = RunState(settings=RunSettings(run=CLUSTER, scaling=SCALING))
KEPT = replace(KUBERAY, interactive=True, entrypoint="", node_rights=False)

Change = list[dict[str, Any]]


class InMemory:
    """What an API server does with one RayCluster: each write is a version, and one of another version is refused."""

    def __init__(self, one: dict[str, Any]) -> None:
        self._one = copy.deepcopy(one)
        self._version = 0

    def get_namespaced_custom_object(self, *names: str, **_: Any) -> BytesIO:
        one = copy.deepcopy(self._one)
        one["metadata"]["resourceVersion"] = str(self._version)
        return BytesIO(json.dumps(one).encode())

    def patch_namespaced_custom_object(self, *names: Any, **_: Any) -> BytesIO:
        body = names[-1]
        if body["metadata"]["resourceVersion"] != str(self._version):
            raise kubernetes.client.ApiException(status=409, reason="Conflict")
        self._one["spec"] |= copy.deepcopy(body["spec"])
        self._version += 1
        return self.get_namespaced_custom_object()

    def patch(self, change: Change) -> None:
        for one in change:
            _, _, _, number, name = one["path"].split("/")
            self._one["spec"]["workerGroupSpecs"][int(number)][name] = one["value"]
        self._version += 1


class Beside:
    """A client of ours, and the autoscaler, which can come between our reading and our writing.

    Attributes:
        read: how often we have read the group. written: how often we wrote it. refused: of those, in vain.
    """

    def __init__(self, client: KubeClient, custom: Any, patch: Callable[[Change], None]) -> None:
        self.client, self._custom, self._patch = client, custom, patch
        self.read, self.written, self.refused = 0, 0, 0
        self.between: list[Callable[[], None]] = []
        client._custom = self
        self.client.pods = lambda cluster: tuple(self.pods.values())  # type: ignore[method-assign]
        self.pods = {
            f"p{number}": Pod(
                name=f"p{number}", group=GROUP, address=f"a{number}", node="", is_running=True, is_leaving=False
            )
            for number in range(HIGH)
        }

    def autoscale(self, replicas: int, leave: tuple[str, ...] | None = None) -> None:
        path = "/spec/workerGroupSpecs/1"
        change = [{"op": "replace", "path": f"{path}/replicas", "value": replicas}]
        if leave is not None:
            change += [{"op": "add", "path": f"{path}/scaleStrategy", "value": {"workersToDelete": list(leave)}}]
        self._patch(change)

    def group(self) -> GroupState:
        read, group = self.read, self.client.groups(CLUSTER)[GROUP]
        self.read = read
        return group

    def get_namespaced_custom_object(self, *names: Any, **how: Any) -> Any:
        self.read += 1
        return self._custom.get_namespaced_custom_object(*names, **how)

    def patch_namespaced_custom_object(self, *names: Any, **how: Any) -> Any:
        if self.between:
            self.between.pop(0)()
        self.written += 1
        try:
            return self._custom.patch_namespaced_custom_object(*names, **how)
        except kubernetes.client.ApiException:
            self.refused += 1
            raise

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline_s, (self.group(), self.read, self.written)
            time.sleep(LOOK_S)

    def look_on(self) -> None:
        """Until it was read some more times."""
        looked = self.read
        self.until(lambda: self.read > looked + 5)


REAL = pytest.param("api server", marks=[pytest.mark.slow, pytest.mark.timeout(180)])


@pytest.fixture(scope="module", params=["in memory", REAL])
def kube(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A real API server, or None."""
    if request.param == "in memory":
        yield None
        return
    module = api_server("full")
    with module.KubeApi(crds=[crds() / "ray.io_rayclusters.yaml"]) as running:
        yield running


@pytest.fixture
def beside(kube: Any) -> Iterator[Beside]:
    one = render(with_kuberay(interactive=True, entrypoint=""), "1")["raycluster"]
    one["metadata"] = {"name": CLUSTER, "namespace": "default"}
    if kube is None:
        server, client = InMemory(one), KubeClient(kubernetes.client.ApiClient(), "default")
        made = Beside(client, server, server.patch)
    else:
        kube.request("DELETE", WHERE)
        status, answer = create(kube, one)
        assert status == 201, answer
        client = connect("default", kube.kubeconfig, call_s=5.0)

        def patch(change: Change) -> None:
            said, told = kube.request("PATCH", WHERE, change, content_type="application/json-patch+json")
            assert said == 200, told

        made = Beside(client, client._custom, patch)
    yield made
    client.close()


@pytest.fixture
def keep(beside: Beside) -> Iterator[Callable[..., None]]:
    """Have the machines of a run kept."""
    kept = []  # type: ignore[var-annotated]

    def start(state: RunState, autoscale: bool) -> None:
        nodes = {name.replace("p", "n"): pod.address for name, pod in beside.pods.items()}
        settings, told = replace(KEPT, autoscale=autoscale), []  # type: ignore[var-annotated]
        nobody = partial(Taken, frozenset(), frozenset())
        kept.append(
            Machines(beside.client, CLUSTER, STATE.settings, settings, told.append, lambda: nodes, LOOK_S, nobody)
        )
        kept[-1].follow(state)

    yield start
    for one in kept:
        one.close()


def test_a_pod_is_named_beside_those_of_a_write_that_came_between(beside):
    beside.between = [lambda: beside.autoscale(7, ("p8", "p7"))]
    beside.client.replace_pods(CLUSTER, GROUP, frozenset({"p0"}))
    group = beside.group()
    assert (group.replicas, group.leaving) == (7, ("p0", "p7", "p8"))
    assert (beside.written, beside.refused) == (2, 1), "the first one was refused, and tried again"


def test_a_number_that_was_decided_on_another_one_is_not_written(beside):
    """Both gave up a machine: written again, ours would have the operator delete two, and start one."""
    beside.autoscale(HIGH)
    beside.between = [lambda: beside.autoscale(8, ("p8",))]
    beside.client.scale(CLUSTER, GROUP, 8, frozenset({"p3"}), of=HIGH)
    group = beside.group()
    assert (group.replicas, group.leaving) == (8, ("p8",))
    assert (beside.written, beside.refused) == (1, 1)
    assert beside.client.scale(CLUSTER, GROUP, 7, frozenset({"p3"}), of=8).leaving == ("p3", "p8")


def test_a_write_of_what_is_there_is_none(beside):
    beside.autoscale(HIGH, ("p1",))
    beside.client.scale(CLUSTER, GROUP, HIGH)
    beside.client.replace_pods(CLUSTER, GROUP, frozenset({"p1"}))
    assert beside.written == 0


def test_a_bad_machine_is_named_until_its_pod_is_gone_and_the_autoscalers_numbers_stay(beside, keep):
    """The autoscaler comes between, then takes our name away with a list that it had read before."""
    beside.autoscale(6)
    beside.between = [lambda: beside.autoscale(5, ("p8",)), lambda: None, lambda: beside.autoscale(7, ())]
    keep(replace(STATE, care=Care(quarantine={"n0": inf})), autoscale=True)
    beside.until(lambda: "p0" in beside.group().leaving)
    assert (beside.group().replicas, beside.group().leaving) == (5, ("p0", "p8"))
    beside.autoscale(8, ())
    beside.until(lambda: not beside.between and beside.group().leaving == ("p0",))
    assert beside.group().replicas == 7, "what it wrote between, again"

    del beside.pods["p0"]
    beside.autoscale(6, ())
    done = beside.written
    for replicas in (4, HIGH, 5):
        beside.autoscale(replicas)
        beside.look_on()
        assert (beside.group().replicas, beside.group().leaving) == (replicas, ())
    assert beside.written == done, "nothing is left to do, whatever its numbers are"


def test_machines_are_asked_for_beside_somebody_who_does_too(beside, keep):
    beside.autoscale(LOW)
    beside.between = [lambda: beside.autoscale(6, ("p8",))]
    keep(STATE, autoscale=False)
    beside.until(lambda: beside.group().replicas == HIGH)
    assert beside.group().leaving == ("p8",) and (beside.written, beside.refused) == (2, 1)
    beside.look_on()
    assert beside.written == 2, "it has what it wants"
