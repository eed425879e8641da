"""Effect. Plays KubeRay's operator, the scheduler and the kubelet: worker groups become pods, and each pod a raylet.

Pods are what `standin_pods` makes of the groups' templates; nothing of a raylet is decided here but its address and the
size of its object store.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.hosts import Hosts
from benchmarks.remains import pids_on
from elastic.callbacks import Callback
from elastic.control.state import RunState
from elastic.control.values import StepReport
from tests.cluster.standin_pods import Object, environment_of, fits, hook_of, pod_of, started_with
from tests.effects.kube_parts import create
from tests.effects.nvml_standin import STATE, Standin

MERGE = "application/merge-patch+json"
PODS = "/api/v1/namespaces/default/pods"
STORE_BYTES = 80 << 20
EVERY_S = 0.5
TRAINERS = "workers"


@dataclass(frozen=True, slots=True)
class Running:
    """A pod that runs: on which machine, its address, and the id of its Ray node where the kubelet is told that."""

    pod: Object
    machine: str
    address: str
    node: str = ""

    @property
    def group(self) -> str:
        return str(self.pod["metadata"]["labels"]["ray.io/group"])


@dataclass(frozen=True, slots=True)
class Ended:
    """How a pod ended that had time for it: what its hook said, whether its raylet was gone before the grace was."""

    hook: str
    is_in_time: bool


class Kubelet(Protocol):
    """Runs what a pod says.

    Attributes:
        head: address of Ray's head.
    """

    head: str

    def start(self, pod: Object, machine: str) -> Running: ...

    def end(self, running: Running) -> Ended:
        """Take it away within its grace: first its hook, then SIGTERM, then the end."""

    def stop(self, pod: str) -> None:
        """Take its raylet away at once, with all that it runs."""


class SharedAddress:
    """Raylets of a `ray.cluster_utils.Cluster`, which all have this machine's address; pods get made-up ones.

    So a hook cannot name its node, and pods end at once.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster, self.head = cluster, cluster.address
        self._raylets: dict[str, Any] = {}

    def start(self, pod: Object, machine: str) -> Running:
        name, options = pod["metadata"]["name"], started_with(pod)
        address = f"10.9.0.{name.rpartition('-')[2]}"
        raylet = self._cluster.add_node(
            num_cpus=int(options["num-cpus"]),
            num_gpus=int(options.get("num-gpus", 0)),
            memory=int(options["memory"]),
            object_store_memory=STORE_BYTES,
            labels=dict(one.split("=") for one in options["labels"].split(",")),
            env_vars=environment_of(pod, address),
        )
        self._raylets[name] = raylet
        return Running(pod, machine, address, raylet.node_id)

    def end(self, running: Running) -> Ended:
        self.stop(running.pod["metadata"]["name"])
        return Ended("", is_in_time=False)

    def stop(self, pod: str) -> None:
        self._cluster.remove_node(self._raylets.pop(pod), allow_graceful=False)


class Namespaces:
    """Each pod has a network namespace, with an address of its own, and the stand-in GPU of its machine.

    Args:
        library: the stand-in for NVML. folder: for the state of each machine's GPU.
    """

    def __init__(self, hosts: Hosts, library: Path, folder: Path) -> None:
        self._hosts, self._library, self._folder, self.head = hosts, library, folder, hosts.ray_address
        self._named: dict[str, str] = {}
        self._gpus: dict[str, Standin] = {}

    def start(self, pod: Object, machine: str) -> Running:
        self.gpu_of(machine)
        options = started_with(pod)
        host = self._hosts.add(
            int(options["num-cpus"]),
            *(f"--{name}={value}" for name, value in options.items() if value),
            has_own_memory=True,  # the operator gives it to those whose template does not
            environment_at=lambda address: environment_of(pod, address),
            LD_LIBRARY_PATH=str(self._library.parent),
            **{STATE: str(self._state_of(machine))},
        )
        self._named[pod["metadata"]["name"]] = host
        return Running(pod, machine, self._hosts.hosts[host].address)

    def end(self, running: Running) -> Ended:
        name = running.pod["metadata"]["name"]
        deadline_s = time.monotonic() + running.pod["spec"]["terminationGracePeriodSeconds"]
        inside = environment_of(running.pod, running.address)
        said = self._said(self._named[name], hook_of(running.pod), inside, deadline_s)
        raylet, is_in_time = self._hosts.raylets[self._named[name]], True
        raylet.send_signal(signal.SIGTERM)
        try:
            raylet.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            is_in_time = False
        self.stop(name)
        return Ended(said, is_in_time)

    def stop(self, pod: str) -> None:
        self._hosts.lose(self._named.pop(pod))

    def gpu_of(self, machine: str) -> Standin:
        """It is there before the first pod is, and outlives all."""
        if machine not in self._gpus:
            self._gpus[machine] = Standin(self._state_of(machine), count=1)
        return self._gpus[machine]

    def _state_of(self, machine: str) -> Path:
        return self._folder / f"{machine}.nvml"

    def pids(self, pod: str) -> set[int]:
        """Processes in a pod."""
        return pids_on(self._named[pod])

    def _said(self, host: str, hook: Sequence[str], environment: dict[str, str], deadline_s: float) -> str:
        """What a hook says; it runs in the container, with the image's PATH."""
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        try:
            done = subprocess.run(
                ["ip", "netns", "exec", host, *hook],
                env={**self._hosts.environment, **path, **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=deadline_s - time.monotonic(),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "the hook took all of the grace"
        return done.stdout


class Operator(Callback):
    """One pod fits each machine; a pod whose machine may not have it stays pending.

    It works in the thread that calls `reconcile`: as a callback of `fit`, in the main thread, which Ray's raylets need.

    Args:
        kube: the API server. kubelet: starts raylets.
        machines: names of the nodes of Kubernetes that there are.
        groups: those that have pods.

    Attributes:
        running: pods that run, by name. is_away: the API server does not answer.
    """

    def __init__(
        self, kube: Any, kubelet: Kubelet, cluster: str, machines: list[str], groups: tuple[str, ...] = (TRAINERS,)
    ) -> None:
        self._kube, self._kubelet, self._cluster, self._groups = kube, kubelet, cluster, groups
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

    @property
    def trainers(self) -> dict[str, Running]:
        """Pods of the workers that run, by name."""
        return {name: one for name, one in self.running.items() if one.group == TRAINERS}

    def add_machine(self, name: str, **about: Any) -> None:
        """`about`: its labels, its taints."""
        self._machines.append(name)
        self._kube.add_node(name, **about)

    def lose_machine(self, name: str) -> None:
        """As a power cut: it is gone with its pod, and whoever keeps the cluster sees so."""
        self._machines.remove(name)
        for pod, running in list(self.running.items()):
            if running.machine == name:
                del self.running[pod]
                self._kubelet.stop(pod)
                self._ask("DELETE", f"{PODS}/{pod}", {"gracePeriodSeconds": 0})
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
        for name in self._groups:
            self._resize(self.group(name))
        for pod in self.pods():
            if not pod["spec"].get("nodeName"):
                self._place(pod)

    def is_ready(self) -> bool:
        """Whether all pods run that the groups have, before which a RayJob's program is not started."""
        wanted = {name: self.group(name)["replicas"] for name in self._groups}
        there = [one.group for one in self.running.values()]
        return all(there.count(name) == replicas for name, replicas in wanted.items())

    def group(self, name: str = TRAINERS) -> Object:
        one = self._ask("GET", f"/apis/ray.io/v1/namespaces/default/rayclusters/{self._cluster}")
        found: Object = next(group for group in one["spec"]["workerGroupSpecs"] if group["groupName"] == name)
        return found

    def pods(self, group: str = "") -> list[Object]:
        selected = f"ray.io/cluster%3D{self._cluster}" + (f",ray.io/group%3D{group}" if group else "")
        found = self._ask("GET", f"{PODS}?labelSelector={selected}")
        return sorted(found["items"], key=lambda one: one["metadata"]["name"])

    def machine(self, name: str) -> dict[str, Any]:
        return self._ask("GET", f"/api/v1/nodes/{name}")

    def taint(self, machine: str, key: str) -> None:
        """What the cloud does."""
        self._ask("PATCH", f"/api/v1/nodes/{machine}", {"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}})

    def machine_of(self, node: str) -> str:
        """Where the pod of a Ray node is, or was."""
        return self._placed[node]

    def delete(self, name: str) -> Ended:
        """As anybody may ask for it: its raylet, with all that it runs, has the time that the pod gives itself."""
        self._ask("DELETE", f"{PODS}/{name}")
        running = self.running.pop(name, None)
        if running is None:
            return Ended("", is_in_time=True)
        ended = self._kubelet.end(running)
        self._ask("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        return ended

    def close(self) -> None:
        for name in list(self.running):
            del self.running[name]
            self._kubelet.stop(name)

    def _resize(self, group: Object) -> None:
        there = {pod["metadata"]["name"] for pod in self.pods(group["groupName"])}
        for name in there & set((group.get("scaleStrategy") or {}).get("workersToDelete") or ()):
            self.delete(name)
            there.remove(name)
        for name in sorted(there, key=_age)[: max(0, len(there) - group["replicas"])]:
            self.delete(name)
        for _ in range(group["replicas"] - len(there)):
            self._made += 1
            pod = pod_of(self._cluster, group, f"{self._cluster}-{group['groupName']}-{self._made}", self._kubelet.head)
            status, answer = create(self._kube, pod)
            assert status == 201, answer

    def _place(self, pod: Object) -> None:
        """One whose machine may not have it stays pending."""
        name, taken = pod["metadata"]["name"], {one["spec"].get("nodeName") for one in self.pods()}
        free = [one for one in self._machines if one not in taken and fits(pod, self.machine(one))]
        if not free:
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": free[0]}
        self._ask("POST", f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": target})
        running = self.running[name] = self._kubelet.start(pod, free[0])
        self._placed[running.node] = free[0]
        self._ask("PATCH", f"{PODS}/{name}/status", {"status": {"phase": "Running", "podIP": running.address}})

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        kind = MERGE if method == "PATCH" else "application/json"
        status, answer = self._kube.request(method, path, body, content_type=kind)
        assert status < 300, f"{method} {path}: {status} {answer}"
        return answer


def _age(pod: str) -> int:
    return int(pod.rpartition("-")[2])
