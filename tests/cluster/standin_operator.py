"""Effect. Plays KubeRay's operator, the scheduler and the kubelet: worker groups become pods, and each pod a raylet."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.hosts import Hosts
from benchmarks.remains import pids_on
from elastic.callbacks import Callback
from elastic.control.state import RunState
from elastic.control.values import StepReport
from tests.effects.kube_parts import create
from tests.effects.nvml_standin import STATE, Standin

MERGE = "application/merge-patch+json"
PODS = "/api/v1/namespaces/default/pods"
LABELS = {"elastic-role": "trainer"}
STORE_BYTES = 80 << 20
EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Running:
    """A pod that runs: on which machine, its address, and the id of its Ray node where the kubelet is told that."""

    machine: str
    address: str
    node: str = ""


class Kubelet(Protocol):
    """Starts a raylet for a pod, and takes it away with all that it runs."""

    def start(self, pod: str, machine: str) -> Running: ...

    def stop(self, pod: str) -> None: ...


class SharedAddress:
    """Raylets of a `ray.cluster_utils.Cluster`, which all have this machine's address; pods get made-up ones."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._raylets: dict[str, Any] = {}

    def start(self, pod: str, machine: str) -> Running:
        raylet = self._cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, labels=LABELS)
        self._raylets[pod] = raylet
        return Running(machine, f"10.9.0.{pod.rpartition('-')[2]}", raylet.node_id)

    def stop(self, pod: str) -> None:
        self._cluster.remove_node(self._raylets.pop(pod), allow_graceful=False)


class Namespaces:
    """Each pod has a network namespace, with an address of its own, and the stand-in GPU of its machine.

    Args:
        library: the stand-in for NVML. folder: for the state of each machine's GPU.

    Attributes:
        gpus: by machine.
    """

    def __init__(self, hosts: Hosts, library: Path, folder: Path) -> None:
        self._hosts, self._library, self._folder = hosts, library, folder
        self._named: dict[str, str] = {}
        self.gpus: dict[str, Standin] = {}

    def start(self, pod: str, machine: str) -> Running:
        state = self._folder / f"{machine}.nvml"
        if machine not in self.gpus:
            self.gpus[machine] = Standin(state, count=1)
        driver = {"LD_LIBRARY_PATH": str(self._library.parent), STATE: str(state)}
        labels = ",".join(f"{name}={value}" for name, value in LABELS.items())
        host = self._hosts.add(1, "--num-gpus=0", f"--labels={labels}", **driver)
        self._named[pod] = host
        return Running(machine, self._hosts.hosts[host].address)

    def stop(self, pod: str) -> None:
        self._hosts.lose(self._named.pop(pod))

    def pids(self, pod: str) -> set[int]:
        """Processes in a pod."""
        return pids_on(self._named[pod])


class Operator(Callback):
    """One pod fits each machine; a pod whose machine may not have it stays pending.

    It works in the thread that calls `reconcile`: as a callback of `fit`, in the main thread, which Ray's raylets need.

    Args:
        kube: the API server. kubelet: starts raylets.
        machines: names of the nodes of Kubernetes that there are.

    Attributes:
        running: pods that run, by name. is_away: the API server does not answer.
    """

    def __init__(self, kube: Any, kubelet: Kubelet, cluster: str, machines: list[str]) -> None:
        self._kube, self._kubelet, self._cluster = kube, kubelet, cluster
        self.running: dict[str, Running] = {}
        self.is_away = False
        self._machines: list[str] = []
        self._placed: dict[str, str] = {}
        self._made, self._due_s = 0, 0.0
        for machine in machines:
            self.add_machine(machine)

    @property
    def addresses(self) -> dict[str, str]:
        """Of pods, by the id of their Ray node."""
        return {one.node: one.address for one in self.running.values()}

    def add_machine(self, name: str) -> None:
        self._machines.append(name)
        self._kube.add_node(name)

    def lose_machine(self, name: str) -> None:
        """As a power cut: it is gone with its pod, and whoever keeps the cluster sees so."""
        self._machines.remove(name)
        for pod, running in list(self.running.items()):
            if running.machine == name:
                self.delete(pod)
        self._ask("DELETE", f"/api/v1/nodes/{name}")

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        self.now_and_then()

    def on_state(self, state: RunState) -> None:
        self.now_and_then()

    def now_and_then(self) -> None:
        if not self.is_away and time.monotonic() >= self._due_s:
            self.reconcile()
            self._due_s = time.monotonic() + EVERY_S

    def reconcile(self) -> None:
        """Delete what is to be deleted, make what is missing, place what is pending.

        Of pods that are too many the oldest go, which are those that have work.
        """
        group = self.group()
        for name in (group.get("scaleStrategy") or {}).get("workersToDelete") or ():
            if name in {pod["metadata"]["name"] for pod in self.pods()}:
                self.delete(name)
        names = sorted((pod["metadata"]["name"] for pod in self.pods()), key=_age)
        for name in names[: max(0, len(names) - group["replicas"])]:
            self.delete(name)
        for _ in range(group["replicas"] - len(names)):
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

    def taint(self, machine: str, key: str) -> None:
        """What the cloud does."""
        self._ask("PATCH", f"/api/v1/nodes/{machine}", {"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}})

    def machine_of(self, node: str) -> str:
        """Where the pod of a Ray node is, or was."""
        return self._placed[node]

    def delete(self, name: str) -> None:
        """The pod goes, and its raylet with all that it runs."""
        if self.running.pop(name, None) is not None:
            self._kubelet.stop(name)
        self._ask("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    def close(self) -> None:
        for name in list(self.running):
            del self.running[name]
            self._kubelet.stop(name)

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
        running = self.running[name] = self._kubelet.start(name, free[0])
        self._placed[running.node] = free[0]
        self._ask("PATCH", f"{PODS}/{name}/status", {"status": {"phase": "Running", "podIP": running.address}})

    def _takes_pods(self, machine: str) -> bool:
        """No taint is tolerated."""
        spec = self.machine(machine)["spec"]
        return not spec.get("unschedulable") and not spec.get("taints")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        kind = MERGE if method == "PATCH" else "application/json"
        status, answer = self._kube.request(method, path, body, content_type=kind)
        assert status < 300, f"{method} {path}: {status} {answer}"
        return answer


def _age(pod: str) -> int:
    return int(pod.rpartition("-")[2])
