"""Effect. Plays KubeRay's operator, the scheduler and the kubelet: worker groups become pods, and each pod a raylet."""

import time
from typing import Any

from elastic.callbacks import Callback
from elastic.control.state import RunState
from elastic.control.values import StepReport
from elastic.kube.reconcile import QUARANTINE
from tests.effects.kube_parts import create

MERGE = "application/merge-patch+json"
PODS = "/api/v1/namespaces/default/pods"
STORE_BYTES = 80 << 20
EVERY_S = 0.5


class Operator(Callback):
    """One pod fits each machine; a pod whose machine may not have it stays pending.

    It works in the thread that calls `reconcile`: as a callback of `fit`, in the main thread, which Ray's raylets need.

    Args:
        kube: the API server. hosts: the Ray cluster to which raylets are added.
        machines: names of the nodes of Kubernetes that there are.

    Attributes:
        addresses: of pods, by the id of their Ray node. is_away: the API server does not answer.
    """

    def __init__(self, kube: Any, hosts: Any, cluster: str, machines: list[str]) -> None:
        self._kube, self._hosts, self._cluster = kube, hosts, cluster
        self.addresses: dict[str, str] = {}
        self.is_away = False
        self._raylets: dict[str, Any] = {}
        self._machines = list(machines)
        self._placed: dict[str, str] = {}
        self._made, self._due_s = 0, 0.0
        for machine in machines:
            kube.add_node(machine)

    def add_machine(self, name: str) -> None:
        self._machines.append(name)
        self._kube.add_node(name)

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        self.now_and_then()

    def on_state(self, state: RunState) -> None:
        self.now_and_then()

    def now_and_then(self) -> None:
        if not self.is_away and time.monotonic() >= self._due_s:
            self.reconcile()
            self._due_s = time.monotonic() + EVERY_S

    def reconcile(self) -> None:
        """Delete what is to be deleted, make what is missing, place what is pending."""
        group = self.group()
        for name in (group.get("scaleStrategy") or {}).get("workersToDelete") or ():
            if name in {pod["metadata"]["name"] for pod in self.pods()}:
                self.delete(name)
        for _ in range(group["replicas"] - len(self.pods())):
            self._create()
        for pod in self.pods():
            if not pod["spec"].get("nodeName"):
                self._place(pod["metadata"]["name"])

    def group(self) -> dict[str, Any]:
        one = self._ask("GET", f"/apis/ray.io/v1/namespaces/default/rayclusters/{self._cluster}")
        return next(group for group in one["spec"]["workerGroupSpecs"] if group["groupName"] == "workers")

    def pods(self) -> list[dict[str, Any]]:
        found = self._ask("GET", f"{PODS}?labelSelector=ray.io/cluster%3D{self._cluster}")
        return sorted(found["items"], key=lambda one: one["metadata"]["name"])

    def machine(self, name: str) -> dict[str, Any]:
        return self._ask("GET", f"/api/v1/nodes/{name}")

    def machine_of(self, node: str) -> str:
        """Where the pod of a Ray node is, or was."""
        return self._placed[node]

    def delete(self, name: str) -> None:
        """The pod goes, and its raylet with all that it runs."""
        raylet = self._raylets.pop(name, None)
        if raylet is not None:
            self.addresses.pop(raylet.node_id)
            self._hosts.remove_node(raylet, allow_graceful=False)
        self._ask("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    def close(self) -> None:
        for name in list(self._raylets):
            self._hosts.remove_node(self._raylets.pop(name), allow_graceful=False)

    def _create(self) -> None:
        self._made += 1
        labels = {"ray.io/cluster": self._cluster, "ray.io/group": "workers"}
        metadata = {"name": f"{self._cluster}-{self._made}", "namespace": "default", "labels": labels}
        spec = {"containers": [{"name": "ray-worker", "image": "i"}]}
        status, answer = create(self._kube, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        assert status == 201, answer

    def _place(self, name: str) -> None:
        taken = {pod["spec"].get("nodeName") for pod in self.pods()}
        free = [one for one in self._machines if one not in taken and self._takes_pods(one)]
        if not free:
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": free[0]}
        self._ask("POST", f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": target})
        raylet = self._hosts.add_node(num_cpus=1, object_store_memory=STORE_BYTES, labels={"elastic-role": "trainer"})
        address = f"10.9.0.{name.rpartition('-')[2]}"
        self._raylets[name], self.addresses[raylet.node_id] = raylet, address
        self._placed[raylet.node_id] = free[0]
        self._ask("PATCH", f"{PODS}/{name}/status", {"status": {"phase": "Running", "podIP": address}})

    def _takes_pods(self, machine: str) -> bool:
        spec = self.machine(machine)["spec"]
        keys = {taint["key"] for taint in spec.get("taints") or ()}
        return not spec.get("unschedulable") and QUARANTINE not in keys

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        kind = MERGE if method == "PATCH" else "application/json"
        status, answer = self._kube.request(method, path, body, content_type=kind)
        assert status < 300, f"{method} {path}: {status} {answer}"
        return answer
