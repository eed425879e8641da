"""The client, and the rights of a run, on a real API server with KubeRay's definitions."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest

from elastic.actors.machines import Machines
from elastic.actors.taken import Taken
from elastic.control.care import Care
from elastic.control.state import RunState, Standing, WorkerRecord
from elastic.kube import validate
from elastic.kube.client import KubeClient, connect
from elastic.kube.errors import KubeError, Why
from elastic.kube.manifests import documents, render
from elastic.kube.objects import JobState, JobStatus
from elastic.settings import RunSettings
from tests.effects.kube_parts import ROOT, VARIANTS, account_of, api_server, apply, ask_as, crds, create, variant_of
from tests.pure.test_kuberay_manifests import CONFIG, KUBERAY, SCALING, with_kuberay

sys.path.insert(0, str(ROOT / "tools"))
from kuberay import objects_of  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
kubernetes = pytest.importorskip("kubernetes")

JOBS = "/apis/ray.io/v1/namespaces/default/rayjobs"
CLUSTERS = "/apis/ray.io/v1/namespaces/default/rayclusters"
MERGE = "application/merge-patch+json"
ENDS = [("other", "8"), ("run", "5")]


@pytest.fixture(scope="module")
def kube() -> Iterator[Any]:
    """A full API server: rights, nodes, eviction."""
    module = api_server("full")
    with module.KubeApi(crds=sorted(crds().glob("*.yaml")), users=["nobody", account_of("keeper")]) as running:
        yield running


@pytest.fixture
def client(kube) -> Iterator[KubeClient]:
    made = connect("default", kube.kubeconfig, call_s=5.0)
    yield made
    made.close()


@pytest.fixture
def named(request) -> str:
    """A name that no other test uses."""
    return f"t{abs(hash(request.node.name)) % 10**8}"


def rayjob(name: str) -> dict[str, Any]:
    one = render(CONFIG, "1")["rayjob"]
    return one | {"metadata": {"name": name, "namespace": "default"}}


def raycluster(kube: Any, name: str, **labels: str) -> str:
    one = render(with_kuberay(interactive=True, entrypoint=""), "1")["raycluster"]
    status, answer = create(kube, one | {"metadata": {"name": name, "namespace": "default", "labels": labels}})
    assert status == 201, answer
    return name


def set_status(kube: Any, name: str, **status: str) -> None:
    """What the operator does."""
    found, answer = kube.request("PATCH", f"{JOBS}/{name}/status", {"status": status}, content_type=MERGE)
    assert found == 200, answer


def add_pod(
    kube: Any, name: str, cluster: str, node: str, labels: dict[str, str] | None = None, address: str = "10.1.2.3"
) -> None:
    labels = {"ray.io/cluster": cluster, "ray.io/group": "workers"} | (labels or {})
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": node}
    one = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": labels}}
    status, answer = create(kube, one | {"spec": spec})
    assert status == 201, answer
    running = {"status": {"phase": "Running", "podIP": address}}
    kube.request("PATCH", f"/api/v1/namespaces/default/pods/{name}/status", running, content_type=MERGE)


# --- RayJobs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}, JobState.SUCCEEDED),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"}, JobState.STOPPED),
        ({"jobDeploymentStatus": "Failed", "jobStatus": "FAILED"}, JobState.FAILED),
        ({"jobDeploymentStatus": "ValidationFailed"}, JobState.INVALID),
    ],
)
def test_a_job_is_watched_to_each_of_its_ends(kube, client, named, status, state):
    client.create_job(rayjob(named))
    assert client.job(named).state is JobState.WAITING
    told: list[JobStatus] = []

    def operate() -> None:
        for one in ({"jobDeploymentStatus": "Running", "jobStatus": "RUNNING", "rayClusterName": "c"}, status):
            time.sleep(0.5)
            set_status(kube, named, **one)

    operator = threading.Thread(target=operate)
    operator.start()
    end = client.wait_for_job(named, lambda one: False, 30.0, told.append)
    operator.join()
    assert end.state is state and end.cluster == "c"
    assert [one.state for one in told] == [JobState.WAITING, JobState.RUNNING, state]


def test_a_job_that_does_not_end_is_waited_for_until_the_deadline(client, named):
    client.create_job(rayjob(named))
    with pytest.raises(TimeoutError, match="is not running yet after 2 s"):
        client.wait_for_job(named, lambda one: False, 2.0, lambda one: None)


def test_a_job_that_is_deleted_ends_the_watch(client, named):
    client.create_job(rayjob(named))
    threading.Timer(0.5, client.delete_job, [named]).start()
    with pytest.raises(KubeError) as caught:
        client.wait_for_job(named, lambda one: False, 30.0, lambda one: None)
    assert caught.value.why is Why.MISSING


def test_a_watch_goes_on_after_the_server_was_away(kube, client, named):
    """Stopped, it accepts connections and answers nothing."""
    client.create_job(rayjob(named))
    server = kube._procs[-1].pid

    def interrupt() -> None:
        time.sleep(0.5)
        os.kill(server, signal.SIGSTOP)
        time.sleep(8)
        os.kill(server, signal.SIGCONT)
        time.sleep(1)
        set_status(kube, named, jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        assert client.wait_for_job(named, lambda one: False, 60.0, lambda one: None).state is JobState.SUCCEEDED
    finally:
        thread.join()


def test_errors_are_told_apart(kube, client, named):
    def why(call: Any) -> Why:
        with pytest.raises(KubeError) as caught:
            call()
        return caught.value.why

    client.create_job(rayjob(named))
    wrong = rayjob(f"{named}x")
    wrong["spec"]["backoffLimit"] = "many"
    assert why(lambda: client.create_job(rayjob(named))) is Why.CONFLICT
    assert why(lambda: client.create_job(wrong)) is Why.INVALID
    assert why(lambda: client.job("not-there")) is Why.MISSING
    stranger = connect("default", kube.kubeconfig_for("nobody"), call_s=5.0)
    assert why(lambda: stranger.job(named)) is Why.FORBIDDEN
    stranger.close()


def test_a_server_that_is_not_there_is_an_error_in_time(tmp_path, kube):
    text = Path(kube.kubeconfig).read_text().replace(kube.url, "https://127.0.0.1:1")
    (tmp_path / "config").write_text(text)
    away = connect("default", str(tmp_path / "config"), call_s=2.0)
    began_s = time.monotonic()
    with pytest.raises(KubeError) as caught:
        away.job("x")
    assert caught.value.why is Why.UNREACHABLE and time.monotonic() - began_s < 30
    away.close()


# --- RayClusters ------------------------------------------------------------------------------------------------------


def test_whether_a_job_has_made_a_cluster_is_told_by_the_operators_label(kube, client, named):
    assert client.is_of_a_job(raycluster(kube, named, **{"ray.io/originated-from-crd": "RayJob"}))
    assert not client.is_of_a_job(raycluster(kube, f"{named}-lab"))


def test_a_group_is_scaled_within_its_bounds(kube, client, named):
    cluster = raycluster(kube, named)
    before = client.groups(cluster)["workers"]
    assert (before.low, before.high, before.replicas) == (4, 9, 4)
    assert client.scale(cluster, "workers", 6).replicas == 6
    assert client.scale(cluster, "workers", 99).replicas == 9
    assert client.scale(cluster, "workers", 0).replicas == 4
    client.replace_pods(cluster, "workers", frozenset({"p1"}))
    shrunk = client.scale(cluster, "workers", 5, frozenset({"p2"}))
    assert (shrunk.replicas, shrunk.leaving) == (5, ("p1", "p2"))
    with pytest.raises(KubeError, match="no worker group other"):
        client.scale(cluster, "other", 1)
    assert client.groups(cluster)["supervisor"].replicas == 1, "other groups stay as they were"


def test_pods_are_replaced_beside_those_that_others_name(kube, client, named):
    cluster = raycluster(kube, named)
    client.replace_pods(cluster, "workers", frozenset({"p1"}))
    client.replace_pods(cluster, "workers", frozenset({"p2", "p1"}))
    group = client.groups(cluster)["workers"]
    assert group.leaving == ("p1", "p2") and group.replicas == 4


def test_writers_that_come_at_once_all_succeed(kube, client, named):
    cluster = raycluster(kube, named)
    writers = [
        threading.Thread(target=client.replace_pods, args=(cluster, "workers", frozenset({f"p{number}"})))
        for number in range(5)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert client.groups(cluster)["workers"].leaving == tuple(f"p{number}" for number in range(5))


def test_pods_are_read_with_their_places(kube, client, named):
    add_pod(kube, f"{named}-a", named, "machine-a")
    (pod,) = client.pods(named)
    assert (pod.name, pod.group, pod.node, pod.address) == (f"{named}-a", "workers", "machine-a", "10.1.2.3")
    assert pod.is_running and not pod.is_leaving


def test_eviction_heeds_the_budget(kube, client, named):
    add_pod(kube, f"{named}-b", named, "machine-b", {"budget": named})
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"budget": named}}}
    status, answer = create(kube, budget | {"metadata": {"name": named, "namespace": "default"}, "spec": spec})
    assert status == 201, answer
    with pytest.raises(KubeError) as caught:
        client.evict(f"{named}-b")
    assert caught.value.why is Why.HELD
    add_pod(kube, f"{named}-c", named, "machine-b")
    client.evict(f"{named}-c")
    assert all(pod.is_leaving for pod in client.pods(named) if pod.name.endswith("-c"))


# --- machines ---------------------------------------------------------------------------------------------------------


def test_a_quarantine_leaves_what_others_have_done_alone(kube, client, named):
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    kube.add_node(named, taints=[taint])
    client.quarantine(named, "run", inf)
    client.quarantine(named, "other", 7.5)
    client.quarantine(named, "run", 4.5)
    found = kube.request("GET", f"/api/v1/nodes/{named}")[1]["spec"]
    ours = [{"key": f"elastic.quarantine/{run}", "value": end, "effect": "NoSchedule"} for run, end in ENDS]
    assert [one for one in found["taints"] if one["key"] != "node.kubernetes.io/unschedulable"] == [taint, *ours]
    client.release(named, "run")
    assert client.machine(named).is_cordoned, "for another run"
    client.release(named, "other")
    found = client.machine(named)
    assert not found.is_cordoned and not any("elastic" in one.key for one in found.taints)
    assert "node.kubernetes.io/not-ready" in {one.key for one in found.taints}


def test_a_machine_that_a_person_has_cordoned_stays_cordoned(kube, client, named):
    kube.add_node(named)
    kube.request("PATCH", f"/api/v1/nodes/{named}", {"spec": {"unschedulable": True}}, content_type=MERGE)
    client.quarantine(named, "run", 4.5)
    client.release(named, "run")
    found = client.machine(named)
    assert found.is_cordoned and not any("elastic" in one.key for one in found.taints)


# --- rights -----------------------------------------------------------------------------------------------------------

NODE_PATCH = ("PATCH", "/api/v1/nodes/target", {"spec": {"unschedulable": True}})
ALLOWED = [
    ("GET", f"{CLUSTERS}/rights", None),
    ("GET", "/api/v1/namespaces/default/pods", None),
    ("PATCH", f"{CLUSTERS}/rights", {"metadata": {"labels": {"a": "b"}}}),
]
NEVER = [
    ("GET", CLUSTERS, None),
    ("GET", JOBS, None),
    ("POST", "/api/v1/namespaces/default/pods/x/eviction", {"metadata": {"name": "x"}}),
    ("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "x"}}),
    ("DELETE", "/api/v1/namespaces/default/pods/x", None),
    ("GET", "/api/v1/namespaces/default/secrets", None),
    ("GET", "/api/v1/namespaces/kube-system/pods", None),
    ("GET", "/api/v1/namespaces/default/configmaps", None),
    ("DELETE", f"{CLUSTERS}/rights", None),
    ("POST", CLUSTERS, {"metadata": {"name": "x"}}),
    ("PATCH", f"{JOBS}/x", {"spec": {"suspend": True}}),
    ("DELETE", "/api/v1/nodes/target", None),
    ("POST", "/api/v1/nodes", {"metadata": {"name": "x"}}),
    ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles", None),
]


@pytest.fixture(scope="module", params=[True, False], ids=["with node rights", "without node rights"])
def head(kube, request) -> tuple[bool, Any]:
    """Whether it has rights on nodes, and how to ask as the head's service account."""
    name = "rights" if request.param else "lean"
    config = replace(with_kuberay(node_rights=request.param), name=name)
    for file, one in render(config, "1").items():
        if "role" in file or "account" in file:
            status, answer = create(kube, one)
            assert status == 201, answer
    if request.param:  # comes first
        raycluster(kube, "rights")
        kube.add_node("target")

    def ask(method: str, path: str, body: Any, who: str = "head") -> int:
        return ask_as(kube, account_of(name, who), method, path, body)

    return request.param, ask


def test_the_head_may_do_what_it_needs(head):
    has_node_rights, ask = head
    assert [one for one in ALLOWED if ask(*one) != 200] == []
    nodes = [("GET", "/api/v1/nodes", None), ("GET", "/api/v1/nodes/target", None), NODE_PATCH]
    assert {ask(*one) for one in nodes} == ({200} if has_node_rights else {403})


def test_and_nothing_else(head):
    _, ask = head
    assert [one for one in NEVER if ask(*one) != 403] == []


def test_workers_may_do_nothing(head):
    _, ask = head
    assert {ask(*one, who="worker") for one in [*ALLOWED, *NEVER, NODE_PATCH]} == {403}


def test_all_that_is_done_about_machines_is_within_the_rights_of_the_head(kube, client, caplog):
    """Cordon, replacement, size, release and notice, with the token of the account that is rendered."""
    caplog.set_level(logging.INFO, "elastic")
    kuberay = replace(KUBERAY, interactive=True, entrypoint="", autoscale=False)
    config = replace(CONFIG, name="keeper", kuberay=kuberay)
    apply(kube, render(config, "1").values())
    nodes = {f"n{number}": f"10.3.0.{number}" for number in range(4)}
    for node, address in nodes.items():
        kube.add_node(f"keeper-{node}")
        add_pod(kube, f"keeper-{node}", "keeper", f"keeper-{node}", address=address)
    told: list[Any] = []
    workers = {"w": WorkerRecord(name="w", standing=Standing.MEMBER, node="n1")}
    state = RunState(settings=RunSettings(run="keeper", scaling=SCALING), workers=workers)
    head = connect("default", kube.kubeconfig_for(account_of("keeper")), call_s=5.0)
    nobody = partial(Taken, frozenset(), frozenset())
    kept = Machines(head, "keeper", state.settings, kuberay, told.append, lambda: nodes, 0.1, nobody)
    try:
        in_quarantine = {"n0": inf, "n2": time.time() + 600.0}
        kept.follow(replace(state, care=Care(quarantine=in_quarantine)))
        group = lambda: client.groups("keeper")["workers"]  # noqa: E731
        until(lambda: client.machine("keeper-n2").is_cordoned and group().leaving == ("keeper-n0",), caplog)
        until(lambda: group().replicas == 9, caplog)
        leaving = {"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}
        kube.request("PATCH", "/api/v1/nodes/keeper-n1", {"spec": {"taints": [leaving]}}, content_type=MERGE)
        until(lambda: [one.node for one in told] == ["n1"], caplog)
        kept.follow(replace(state, care=Care(quarantine={"n0": inf})))
        until(lambda: not client.machine("keeper-n2").is_cordoned, caplog)
        assert client.machine("keeper-n0").is_cordoned
    finally:
        kept.close()
    assert not [line for line in caplog.messages if "training goes on" in line]


def until(condition: Callable[[], bool], caplog: pytest.LogCaptureFixture) -> None:
    deadline_s = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline_s, caplog.messages[-5:]
        time.sleep(0.1)


# --- every manifest ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict() -> Iterator[Any]:
    """A current API server for the definitions alone: CEL, and refusal of unknown fields."""
    module = api_server("crd")
    with module.KubeApi(crds=sorted(crds().glob("*.yaml")), server="crd") as running:
        yield running


FOLDERS = ("base", "overlays/local", "overlays/interactive", "overlays/gke-a3", "overlays/gke-spot")


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("variant", ["", *VARIANTS])
def test_every_manifest_is_taken(kube, strict, folder, variant):
    where = ROOT / "kuberay" / folder
    for one in (variant_of(where, variant) if variant else objects_of(where)).values():
        server = strict if one["apiVersion"] == "ray.io/v1" else kube
        name = f"{one['metadata']['name']}-{folder.rpartition('/')[2]}{variant}"
        status, answer = create(server, one | {"metadata": one["metadata"] | {"name": name}})
        assert status == 201, answer


def test_the_strict_server_is_strict(strict):
    one = rayjob("wrong")
    one["spec"]["managedBy"] = "me"
    assert create(strict, one)[0] == 422
    one = rayjob("unknown")
    one["spec"]["frobnicate"] = 1
    assert create(strict, one)[0] == 400


def test_definitions_are_read_from_the_cluster(kube, tmp_path):
    (tmp_path / "job.yaml").write_text(documents({"job": rayjob("x")}))
    definitions = validate.from_cluster(kube.kubeconfig)
    assert validate.validate(tmp_path / "job.yaml", definitions).problems == ()
    (tmp_path / "job.yaml").write_text(documents({"job": rayjob("x") | {"spce": {}}}))
    assert "spce: there is no such field" in validate.validate(tmp_path / "job.yaml", definitions).problems[0]
