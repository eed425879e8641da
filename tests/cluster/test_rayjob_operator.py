"""Effect. A RayJob from `kubectl apply` to its end: a real API server, a stand-in operator, Ray's API for jobs.

What is rendered makes the cluster; the program runs as a job on its head, with the head's environment and rights.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts import Hosts, why_not
from elastic.kube.client import KubeClient, connect
from elastic.kube.errors import KubeError, Why
from elastic.kube.objects import JobState, JobStatus
from tests.cluster.standin_jobs import Head, JobOperator
from tests.cluster.standin_operator import Namespaces, Operator
from tests.cluster.standin_pods import Object
from tests.cluster.test_fit import committed_samples
from tests.cluster.test_operator import GPU_MODEL, GPU_TAINT, RUN, head_environment, rendered
from tests.cluster.test_submit import free_ports
from tests.cluster.training import read_lines
from tests.effects.kube_parts import account_of, api_server, apply, crds
from tests.effects.nvml_standin import compiled

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(500),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
pytest.importorskip("kubernetes")

RUNS = ("job0", "job1")
STEPS = 1500
WAIT_S = 200.0
MACHINES = 3
PROGRAM = """
import sys
from pathlib import Path
import elastic
from tests.cluster.training import regression
folder, steps = Path(sys.argv[1]), int(sys.argv[2])
assert steps > 0, "nothing to train"
result = elastic.fit(regression(folder, steps=steps, pause_s=0.02, until=folder / "enough"))
print("trained", result.steps, "steps in worlds of", result.world_sizes, flush=True)
"""


@pytest.fixture(scope="module")
def kube() -> Iterator[Any]:
    module = api_server("full")
    with module.KubeApi(crds=sorted(crds().glob("*.yaml")), users=[account_of(name) for name in RUNS]) as running:
        yield running


class Job:
    """A rendered RayJob that was applied, machines for it, and what plays the rest of Kubernetes.

    Attributes:
        states: that its status has had, one after the other.
    """

    def __init__(self, kube: Any, folder: Path, name: str, steps: int) -> None:
        self.kube, self.folder, self.name = kube, folder, name
        self.client: KubeClient = connect("default", kube.kubeconfig)
        (folder / "program.py").write_text(PROGRAM)
        entrypoint = f"{sys.executable} {folder}/program.py {folder} {steps}"
        run = RUN.replace("interactive: true", f"entrypoint: {entrypoint}, retries: 0, linger_s: 2")
        self.objects = rendered(name, folder, f"run_dir: {folder}/run\n{run}")
        self.operator = JobOperator(kube, name, self._head)
        self.states: list[JobState] = []
        apply(kube, self.objects.values())

    def _head(self, cluster: Object) -> Head:
        """Of a RayCluster: with what its template says, and what the operator and Kubernetes tell its pod."""
        spec, name = cluster["spec"], cluster["metadata"]["name"]
        environment = head_environment(spec, self.objects["config"], self.folder)
        environment |= {"KUBECONFIG": self.kube.kubeconfig_for(account_of(self.name)), "KUBERNETES_SERVICE_HOST": "x"}
        environment["RAY_CLUSTER_NAME"] = name
        dashboard, agent, agent_grpc = free_ports(3)
        options = ("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}")
        options += (f"--dashboard-agent-listen-port={agent}", f"--dashboard-agent-grpc-port={agent_grpc}")
        hosts = Hosts((), options, environment).__enter__()
        self.kubelet = Namespaces(hosts, compiled(self.folder), self.folder)
        groups = tuple(group["groupName"] for group in spec["workerGroupSpecs"])
        operator = Operator(self.kube, self.kubelet, name, [f"{self.name}-cpu"], groups)
        labels = {"cloud.google.com/gke-accelerator": GPU_MODEL}
        for number in range(MACHINES):
            operator.add_machine(f"{self.name}-m{number}", labels=labels, taints=[GPU_TAINT])
        return Head(operator, f"http://127.0.0.1:{dashboard}", hosts.close)

    @property
    def pods(self) -> Operator:
        assert self.operator.head is not None
        return self.operator.head.operator

    def until(self, condition: Callable[[], bool], why: str) -> None:
        """Play Kubernetes until it holds."""
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            status = self.status()
            assert time.monotonic() < deadline_s, f"{why}: {status}, {self.lines()[-3:]}"
            self.operator.now_and_then()
            time.sleep(0.3)

    def status(self) -> JobStatus:
        found = self.client.job(self.name)
        if not self.states or self.states[-1] is not found.state:
            self.states.append(found.state)
        return found

    def lines(self) -> list[dict[str, Any]]:
        try:
            return read_lines(self.folder)
        except ValueError:  # a line is being written
            return []

    def trains_on(self) -> set[str]:
        """Pods of the processes, each alive, that have committed some of the last steps."""
        last = {line["pid"] for line in [line for line in self.lines() if line["event"] == "committed"][-8:]}
        return {pod for pod in self.pods.trainers if last & self.kubelet.pids(pod)}

    def is_gone(self) -> bool:
        return self.operator.head is None

    def assert_cleaned_up(self, cluster: str) -> None:
        with pytest.raises(KubeError) as caught:
            self.client.groups(cluster)
        assert caught.value.why is Why.MISSING and self.client.pods(cluster) == ()
        assert self.client.job(self.name).state.is_over, "the RayJob itself stays"

    def close(self) -> None:
        self.operator.close()
        self.client.close()


@pytest.fixture
def job(kube: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    made = Job(kube, tmp_path, *request.param)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("job", [(RUNS[0], STEPS)], indirect=True)
def test_a_rayjob_trains_replaces_a_node_succeeds_and_frees_its_machines(job: Job) -> None:
    job.until(lambda: job.status().state is JobState.RUNNING, "its program is not started")
    cluster = job.status().cluster
    assert cluster.startswith(f"{job.name}-") and len(job.pods.trainers) == 1, "it began with its minimum"
    job.until(lambda: len(job.trains_on()) == 2, "two replicas do not train")

    bad = sorted(job.trains_on())[0]
    machine, victims = job.pods.running[bad].machine, job.kubelet.pids(bad)
    gpu = job.kubelet.gpu_of(machine)
    gpu["gpu0.pid"] = next(line["pid"] for line in job.lines() if line["pid"] in victims)
    gpu.xid(79)
    job.until(lambda: bad not in job.pods.running, "its node is not replaced")
    job.until(lambda: len(job.trains_on()) == 2, "two replicas do not train again")
    assert job.pods.group()["scaleStrategy"]["workersToDelete"] == [bad] and job.pods.group()["replicas"] == 2
    assert job.pods.machine(machine)["spec"]["unschedulable"]

    (job.folder / "enough").touch()
    job.until(lambda: job.status().state.is_over, "it does not end")
    assert job.states == [JobState.WAITING, JobState.RUNNING, JobState.SUCCEEDED], job.status()
    once = committed_samples(job.folder)
    assert len(once) == STEPS * 16 and set(once.values()) == {1}, "a sample was skipped, or repeated"
    job.until(job.is_gone, "its machines are not freed")
    job.assert_cleaned_up(cluster)


@pytest.mark.parametrize("job", [(RUNS[1], 0)], indirect=True)
def test_a_rayjob_whose_program_fails_has_failed_and_frees_its_machines(job: Job) -> None:
    job.until(lambda: job.status().state.is_over, "it does not end")
    status = job.status()
    assert job.states == [JobState.WAITING, JobState.RUNNING, JobState.FAILED]
    assert "nothing to train" in status.message
    job.until(job.is_gone, "its machines are not freed")
    job.assert_cleaned_up(status.cluster)
