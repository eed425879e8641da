"""Effect. From a fault on a machine to full size again, through Kubernetes: an API server, pods with own addresses.

The driver is a process that knows of the cluster what a head's pod does; a stand-in plays operator, scheduler, kubelet.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from benchmarks.hosts import Hosts, why_not
from elastic.cli import cli
from tests.cluster.standin_operator import Namespaces, Operator
from tests.cluster.standin_pods import environment_of, ray_container
from tests.cluster.test_fit import assert_no_attempt_wasted, committed_samples
from tests.cluster.training import read_lines
from tests.effects.kube_parts import account_of, api_server, apply, crds
from tests.effects.nvml_standin import compiled
from tests.lines import whole_lines

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(500),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
pytest.importorskip("kubernetes")

RUNS = tuple(f"site{number}" for number in range(8))
STEPS = 2000
WAIT_S = 150.0
END_S = 200.0
GPU_MODEL = "nvidia-l4"
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}  # as Google's machines have it
SPOT_TAINT = {"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"}
RUN = f"""
scaling: {{num_dp_replicas: [1, 2], resources_per_worker: {{CPU: 1}}}}
limits: {{start_timeout_s: 30, hang_floor_s: 30, grow_after_s: 0.2}}
kuberay:
  {{interactive: true, gpus_per_node: 1, cpus_per_node: 1, memory_gib_per_node: 2, head_cpus: 1, head_memory_gib: 2,
    accelerator: {GPU_MODEL}, grace_s: 40, autoscale: false}}
"""
DRIVER = """
import json, os, sys
from pathlib import Path
from ray import cloudpickle
import elastic
from tests.cluster import training
cloudpickle.register_pickle_by_value(training)
folder, steps = Path(sys.argv[1]), int(sys.argv[2])
result = elastic.fit(
    training.regression(folder, steps=steps, pause_s=0.02, until=folder / "enough"),
    name=os.environ["RAY_CLUSTER_NAME"],
    run_dir=folder / "run",
)
incidents = [(one.kind.name, list(one.culprits), one.decision, list(one.evidence)) for one in result.incidents]
print(json.dumps({"steps": result.steps, "world_sizes": result.world_sizes, "incidents": incidents}))
"""


@pytest.fixture(scope="module")
def kube() -> Iterator[Any]:
    module = api_server("full")
    with module.KubeApi(crds=sorted(crds().glob("*.yaml")), users=[account_of(name) for name in RUNS]) as running:
        yield running


@pytest.fixture(scope="module")
def names() -> Iterator[str]:
    """One for each test: whom the API server knows is said when it starts."""
    return iter(RUNS)


def rendered(name: str, folder: Path, run: str = RUN) -> dict[str, Any]:
    """The objects that `elastic kuberay render` writes of these settings."""
    (folder / "run.yaml").write_text(f"name: {name}\n{run}")
    words = ["kuberay", "render", "--config", str(folder / "run.yaml"), "--out", str(folder / "k8s")]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    return {path.stem: yaml.safe_load(path.read_text()) for path in (folder / "k8s").glob("*.yaml")}


def head_environment(spec: dict[str, Any], config: dict[str, Any], folder: Path) -> dict[str, str]:
    """What the template of the head says; its configuration lies below `folder` where the pod would have it.

    Args:
        spec: of the RayCluster. config: its ConfigMap.
    """
    pod = spec["headGroupSpec"]["template"]
    environment = environment_of({"metadata": {"name": "head"}, "spec": pod["spec"]}, "")
    named = config["metadata"]["name"]
    (volume,) = [one["name"] for one in pod["spec"]["volumes"] if one.get("configMap", {}).get("name") == named]
    (mount,) = [one for one in ray_container(pod["spec"])["volumeMounts"] if one["name"] == volume]
    there = folder / mount["mountPath"].lstrip("/")
    there.mkdir(parents=True)
    for file, text in config["data"].items():
        (there / file).write_text(text)
    return environment | {"ELASTIC_CONFIG": str(folder / environment["ELASTIC_CONFIG"].lstrip("/"))}


class Site:
    """What is rendered of RUN, on machines of its own, the run on it, and what plays the rest of Kubernetes."""

    def __init__(self, kube: Any, hosts: Hosts, folder: Path, objects: dict[str, Any], machines: int) -> None:
        self.kube, self.hosts, self.folder = kube, hosts, folder
        self.name = str(objects["raycluster"]["metadata"]["name"])
        apply(kube, objects.values())
        (group,) = [one for one in objects["raycluster"]["spec"]["workerGroupSpecs"] if one["groupName"] == "workers"]
        self._labels = group["template"]["spec"]["nodeSelector"]
        self.kubelet = Namespaces(hosts, compiled(folder), folder)
        self.operator = Operator(kube, self.kubelet, self.name, [f"{self.name}-cpu"], ("supervisor", "workers"))
        for number in range(machines):
            self.add_machine(f"{self.name}-m{number}")
        self.operator.reconcile()
        assert self.operator.is_ready(), "the program is not started before all pods of the minimum run"
        assert len(self.operator.trainers) == 1, "the rest is asked for by the run"
        (folder / "driver.py").write_text(DRIVER)
        environment = {**hosts.environment, "RAY_ADDRESS": hosts.ray_address}
        environment["KUBECONFIG"] = kube.kubeconfig_for(account_of(self.name))  # with no more rights than are rendered
        environment |= {"KUBERNETES_SERVICE_HOST": "x", "RAY_CLUSTER_NAME": self.name}  # as in the head's pod
        with (folder / "driver.log").open("w") as log:
            self.driver = subprocess.Popen(
                [sys.executable, str(folder / "driver.py"), str(folder), str(STEPS)],
                env=environment,
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def add_machine(self, name: str) -> None:
        """One of the pool that the workers' pods ask for."""
        taints = [GPU_TAINT, *([SPOT_TAINT] if SPOT_TAINT["key"] in self._labels else [])]
        self.operator.add_machine(name, labels=self._labels, taints=taints)

    def until(self, condition: Callable[[], bool], why: str) -> None:
        """Play Kubernetes until it holds."""
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert self.driver.poll() is None, (self.folder / "driver.log").read_text()[-4000:]
            assert time.monotonic() < deadline_s, f"{why}: {self.operator.running}, {self.lines()[-3:]}"
            self.operator.now_and_then()
            time.sleep(0.5)

    def lines(self) -> list[dict[str, Any]]:
        try:
            return read_lines(self.folder)
        except ValueError:  # a line is being written
            return []

    def train(self, replicas: int, why: str) -> None:
        """Play Kubernetes until so many processes, each alive, have committed some of the last steps."""

        def do() -> bool:
            last = [line for line in self.lines() if line["event"] == "committed"][-4 * replicas :]
            alive = {line["pid"] for line in last if Path(f"/proc/{line['pid']}").exists()}
            return len(alive) == replicas and min(line["step"] for line in last) >= 10

        self.until(do, f"{replicas} replicas do not train {why}")

    def pod_of(self, pid: int) -> str:
        return next(pod for pod in self.operator.trainers if pid in self.kubelet.pids(pod))

    def victim(self) -> tuple[int, str]:
        """A worker that trains, and the machine it is on."""
        pid = next(line["pid"] for line in reversed(self.lines()) if line["event"] == "committed")
        return pid, self.operator.running[self.pod_of(pid)].machine

    def end(self) -> dict[str, Any]:
        """Train the rest quickly; how the run ended."""
        (self.folder / "enough").touch()
        said, _ = self.driver.communicate(timeout=END_S)
        assert self.driver.returncode == 0, (self.folder / "driver.log").read_text()[-4000:]
        result: dict[str, Any] = json.loads(said.splitlines()[-1])
        assert result["steps"] == STEPS
        once = committed_samples(self.folder)
        assert len(once) == STEPS * 16 and set(once.values()) == {1}, "a sample was skipped, or repeated"
        return result

    def journal(self, event: str) -> list[dict[str, Any]]:
        return [line for line in whole_lines(self.folder / "run" / "journal.jsonl") if line.get("event") == event]

    def close(self) -> None:
        if self.driver.poll() is None:
            self.driver.kill()
        self.driver.communicate()


@contextmanager
def running(kube: Any, folder: Path, objects: dict[str, Any], machines: int) -> Iterator[Site]:
    environment = head_environment(objects["raycluster"]["spec"], objects["config"], folder)
    with Hosts((), environment=environment) as hosts:
        made = Site(kube, hosts, folder, objects, machines)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def site(kube: Any, names: Iterator[str], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    with running(kube, tmp_path, rendered(next(names), tmp_path), getattr(request, "param", 3)) as made:
        made.train(2, "at first")
        yield made


def test_a_gpu_that_fails_costs_its_machine_and_no_step(site: Site) -> None:
    pid, machine = site.victim()
    gpu = site.kubelet.gpu_of(machine)
    gpu["gpu0.pid"] = pid
    gpu.xid(79)
    began_s = time.time()
    site.until(lambda: machine not in {one.machine for one in site.operator.running.values()}, "it is not replaced")
    site.until(lambda: len(site.operator.trainers) == 2, "the new pod does not run")
    site.train(2, "again")

    result = site.end()
    assert result["world_sizes"][-3:] == [2, 1, 2]
    ((kind, culprits, decision, evidence),) = result["incidents"]
    assert kind == "GPU_FAULT" and len(culprits) == 1 and decision.startswith("replace the node"), result
    assert "XID 79" in evidence[0]
    spec = site.operator.machine(machine)["spec"]
    marks = {one["key"]: one["value"] for one in spec["taints"]}
    ours = f"elastic.quarantine/default.{site.name}"
    assert spec["unschedulable"] and marks == {"nvidia.com/gpu": "present", ours: "never"}
    assert site.operator.group()["replicas"] == 2, "the number of machines stays"
    named = site.operator.group()["scaleStrategy"]["workersToDelete"]
    assert len(named) == 1 and named[0] not in site.operator.running
    started = [line for line in site.lines() if line["event"] == "started"]
    assert len(started) == 3 and started[-1]["t"] > began_s, "the survivor did not start anew"


def test_a_spot_machine_is_left_before_it_goes_and_another_takes_its_place(site: Site) -> None:
    _, machine = site.victim()
    site.operator.taint(machine, "cloud.google.com/impending-node-termination")
    site.train(1, "on the machine that stays")
    assert "the cloud takes the machine away" in site.journal("NodeNotice")[0]["reason"]
    assert not site.journal("CollectiveBroken") and not site.journal("WorkerLost"), "nobody had to stop"
    site.operator.lose_machine(machine)
    site.train(2, "with a new machine")

    result = site.end()
    assert result["world_sizes"][-3:] == [2, 1, 2]
    assert [kind for kind, *_ in result["incidents"]] == ["DEPARTURE"]
    consumed = Counter(
        sample for line in site.lines() if line["event"] == "consumed" for sample in [(line["step"], *line["ids"])]
    )
    assert set(consumed.values()) == {1}, "no attempt was lost"


@pytest.mark.parametrize(
    ("pool", "hook_s"), [("grace_s: 40", 10), ("spot: true, grace_s: 15", 5)], ids=["drained", "spot"]
)
def test_a_pod_that_is_deleted_is_left_in_its_grace_and_costs_no_attempt(kube, names, tmp_path, pool, hook_s):
    objects = rendered(next(names), tmp_path, RUN.replace("grace_s: 40", pool))
    with running(kube, tmp_path, objects, 3) as site:
        site.train(2, "at first")
        pid, _ = site.victim()
        pod = site.pod_of(pid)
        ended = site.operator.delete(pod)
        assert ended.is_in_time, ended
        # The hook starts an interpreter that imports Ray; where 5 s are too few for that, the raylet drains itself.
        assert ended.hook.startswith("draining ") or hook_s < 10, ended
        assert pid not in site.hosts.pids() and pod not in site.operator.running
        site.train(2, "with a new pod")

        result = site.end()
        assert result["world_sizes"][-3:] == [2, 1, 2]
        assert [kind for kind, *_ in result["incidents"]] == ["DEPARTURE"]
        reasons = [line["reason"] for line in site.journal("NodeNotice")]
        assert any("drained" in reason for reason in reasons), f"the drain was heard of: {reasons}"
        assert not site.journal("CollectiveBroken") and not site.journal("WorkerLost"), "nobody had to stop"
        assert_no_attempt_wasted(site.folder)


def test_without_rights_on_nodes_a_bad_one_is_kept_out_by_ray_and_its_pod_replaced(kube, names, tmp_path):
    objects = rendered(next(names), tmp_path, RUN.replace("autoscale: false", "autoscale: false, node_rights: false"))
    assert not {"node-role", "node-role-binding"} & set(objects)
    with running(kube, tmp_path, objects, 3) as site:
        site.train(2, "at first")
        pid, machine = site.victim()
        bad, gpu = site.pod_of(pid), site.kubelet.gpu_of(machine)
        gpu["gpu0.pid"] = pid
        gpu.xid(79)
        site.until(lambda: bad not in site.operator.running, "its pod is not replaced")
        site.until(lambda: len(site.operator.trainers) == 2, "the new pod does not run")
        site.train(2, "again")

        result = site.end()
        assert result["world_sizes"][-3:] == [2, 1, 2]
        ((kind, _, decision, _),) = result["incidents"]
        assert kind == "GPU_FAULT" and decision.startswith("replace the node"), result
        spec = site.operator.machine(machine)["spec"]
        assert not spec.get("unschedulable") and spec["taints"] == [GPU_TAINT], "nobody has touched the machine"
        said = (site.folder / "driver.log").read_text()
        assert "kuberay.node_rights is off: nodes are not cordoned, bad ones are kept out by Ray alone" in said


@pytest.mark.parametrize("site", [2], indirect=True)
def test_without_capacity_the_run_shrinks_and_with_it_it_grows_back(site: Site) -> None:
    _, machine = site.victim()
    site.operator.lose_machine(machine)
    site.train(1, "on the machine that is left")
    site.until(lambda: bool(site.journal("NodesMissing")), "it is not told that a machine is missing")
    assert len(site.operator.pods("workers")) == 2 and len(site.operator.trainers) == 1, "a pod waits for a machine"
    site.add_machine(f"{site.name}-late")
    site.train(2, "with capacity")
    site.until(lambda: len(site.journal("NodesMissing")) == 2, "it is not told that all are there")

    result = site.end()
    assert result["world_sizes"][-3:] == [2, 1, 2]
    assert [line["missing"] for line in site.journal("NodesMissing")] == [1, 0]


def test_a_machine_that_fails_its_check_comes_back_after_a_while_and_is_taken_once_it_passes(kube, names, tmp_path):
    objects = rendered(next(names), tmp_path, RUN.replace("grow_after_s", "quarantine_s: 20, grow_after_s"))
    with running(kube, tmp_path, objects, 2) as site:
        machine = f"{site.name}-m1"
        gpu = site.kubelet.gpu_of(machine)
        gpu["gpu0.remap.failure"] = 1

        def refused() -> list[str]:
            """Ray nodes that failed, which are pods of the one machine."""
            checks = [line for line in site.journal("HardwareFinding") if line["kind"] == "health"]
            return [line["node"] for line in checks if line["severity"] == "node_must_go"]

        site.train(1, "on the machine that is well")
        site.until(lambda: len(refused()) == 1, "the machine is not found to be ill")
        site.until(lambda: "unschedulable" in site.operator.machine(machine)["spec"], "it is not kept away from")
        ends = [one["value"] for one in site.operator.machine(machine)["spec"]["taints"]]
        assert any(end.isdecimal() for end in ends), f"for a while only: {ends}"
        site.until(lambda: len(refused()) == 2, "it is not given back, and checked again")
        assert len(set(refused())) == 2, "its pod was replaced"
        gpu["gpu0.remap.failure"] = 0
        site.train(2, "although the machine is well again")
        spec = site.operator.machine(machine)["spec"]
        assert not spec.get("unschedulable") and spec["taints"] == [GPU_TAINT], spec

        result = site.end()
        assert result["world_sizes"] == [1, 2] and result["incidents"] == [], "it cost the run nothing"
