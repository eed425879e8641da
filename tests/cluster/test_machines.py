"""Effect. A run heals its machines on Kubernetes: a real API server, a stand-in operator, a raylet for each pod."""

import itertools
import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.actors import machines
from elastic.callbacks import Callback
from elastic.control.remediation import ClusterView, Kind, Remediation
from elastic.control.state import RunState
from elastic.control.values import Incident, IncidentClass
from elastic.kube.manifests import render
from elastic.kube.shape import ROLE, TRAINER
from elastic.settings import KubeRay
from tests.cluster.standin_operator import Operator, SharedAddress
from tests.cluster.test_fit import committed_samples
from tests.cluster.training import At, read_lines, regression
from tests.effects.kube_parts import account_of, api_server, apply, crds
from tests.lines import whole_lines
from tests.pure.test_kuberay_manifests import RunConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
pytest.importorskip("kubernetes")

RUNS = tuple(f"world{number}" for number in range(12))
AWAY_S = 30.0
LONGEST_GAP_S = 5.0  # between two steps; most of it is the worker that is killed while the server is away
RUN = """
scaling: {num_dp_replicas: [1, 2], resources_per_worker: {CPU: 1}, label_selector: {elastic-role: trainer}}
limits: {start_timeout_s: 30, hang_floor_s: 30, grow_after_s: 0.2}
kuberay: {entrypoint: python x, gpus_per_node: 0, cpus_per_node: 1, memory_gib_per_node: 2, autoscale: false}
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


class World:
    """A RayCluster of its own with two replicas, and what plays the operator.

    Args:
        pods: what the workers' group begins with. reserve: machines of the pool for a spare; 0: there is no spare.
    """

    def __init__(
        self, kube: Any, hosts: Any, folder: Path, name: str, machines: int, pods: int = 2, reserve: int = 0
    ) -> None:
        self.kube, self.folder, self.name = kube, folder, name
        scaling = elastic.Scaling(
            num_dp_replicas=(1, 2),
            resources_per_worker={"CPU": 1},
            label_selector={ROLE: TRAINER},
            spares=1 if reserve else 0,
        )
        kuberay = KubeRay(interactive=True, gpus_per_node=0, cpus_per_node=1, memory_gib_per_node=2, autoscale=False)
        kuberay = replace(kuberay, spare_pool="reserve" if reserve else "")
        objects = render(RunConfig(name=name, scaling=scaling, kuberay=kuberay), "1")
        labels = objects["raycluster"]["metadata"].setdefault("labels", {})
        labels["ray.io/originated-from-crd"] = "RayJob"  # as the operator makes it for a job
        groups = objects["raycluster"]["spec"]["workerGroupSpecs"]
        group = next(one for one in groups if one["groupName"] == "workers")
        group |= {"replicas": pods, "maxReplicas": max(pods, group["maxReplicas"])}
        apply(kube, objects.values())
        names, played = [f"{name}-m{number}" for number in range(machines)], [one["groupName"] for one in groups[1:]]
        self.operator = Operator(kube, SharedAddress(hosts), name, names, tuple(played))
        for number in range(reserve):
            self.operator.add_machine(f"{name}-r{number}", labels={"cloud.google.com/gke-nodepool": "reserve"})
        self.operator.reconcile()
        with_spare = RUN.replace("scaling: {", "scaling: {spares: 1, ").replace(
            "kuberay: {", "kuberay: {spare_pool: reserve, "
        )
        (folder / "run.yaml").write_text(with_spare if reserve else RUN)

    def fit(self, *callbacks: Callback, steps: int, policy: Any = None, pause_s: float = 0.01) -> Any:
        """The rest is done quickly once there is a file `enough`."""
        return elastic.fit(
            regression(self.folder, steps=steps, pause_s=pause_s, until=self.folder / "enough"),
            config=self.folder / "run.yaml",
            name=self.name,
            callbacks=[self.operator, *callbacks],
            policy=policy,
            run_dir=self.folder / "run",
        )

    def journal(self, kind: str) -> list[dict[str, Any]]:
        lines = whole_lines(self.folder / "run" / "journal.jsonl")
        return [line for line in lines if kind in json.dumps(line)]


@contextmanager
def world_on(kube: Any, hosts: Any, folder: Path, name: str, *sizes: int) -> Iterator[World]:
    made = World(kube, hosts, folder, name, *sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machines, "ray_addresses", lambda: made.operator.addresses)
        patch.setenv("KUBECONFIG", kube.kubeconfig_for(account_of(name)))  # with no more rights than are rendered
        patch.setenv("KUBERNETES_SERVICE_HOST", "x")
        patch.setenv("RAY_CLUSTER_NAME", name)
        yield made
    made.operator.close()


@pytest.fixture
def world(kube, hosts, names, tmp_path, request) -> Iterator[World]:
    with world_on(kube, hosts, tmp_path, next(names), *getattr(request, "param", (3,))) as made:
        yield made


@pytest.fixture
def world_apart(hosts, tmp_path) -> Iterator[World]:
    """With an API server that nobody else needs."""
    name = "apart"
    with (
        api_server("full").KubeApi(crds=sorted(crds().glob("*.yaml")), users=[account_of(name)]) as kube,
        world_on(kube, hosts, tmp_path, name, 3) as made,
    ):
        yield made


def replace_node(incident: Incident, view: ClusterView) -> Remediation:
    if incident.kind is IncidentClass.STRAGGLER:  # of a busy machine; a worker that is lost is what is played here
        return Remediation(kind=Kind.CONTINUE, reason="only slow")
    return Remediation(kind=Kind.REPLACE_NODE, reason="by choice")


def kill_second(state: RunState) -> None:
    os.kill(state.members[1].pid, signal.SIGKILL)


def test_a_bad_machine_is_replaced_and_the_run_has_its_size_again(world):
    seen: list[str] = []

    def act(state: RunState) -> None:
        seen.append(world.operator.machine_of(state.members[1].node))
        kill_second(state)

    result = world.fit(At(10, act), steps=700, policy=replace_node)
    assert result.steps == 700 and result.world_sizes == [2, 1, 2]
    bad = world.operator.machine(seen[0])["spec"]
    assert bad["unschedulable"] and f"elastic.quarantine/default.{world.name}" in {one["key"] for one in bad["taints"]}
    placed = {pod["spec"]["nodeName"] for pod in world.operator.pods()}
    assert seen[0] not in placed and len(placed) == 2
    assert world.operator.group()["replicas"] == 2
    once = committed_samples(world.folder)
    assert len(once) == 700 * 16 and set(once.values()) == {1}, "no step was lost or made twice"


@pytest.mark.parametrize("world", [(1, 2, 2)], indirect=True)
def test_a_bad_machine_of_the_spares_is_replaced_in_their_group(world):
    """Only one machine of the workers is there, so that the spare trains."""

    class Watch(Callback):
        """Kills the worker on the spare once it trains, and ends the run when another spare does."""

        bad = ""

        def on_step(self, report: Any, state: RunState, goodput: float) -> None:
            spare = [one for one in state.members if world.operator.machine_of(one.node).startswith(f"{world.name}-r")]
            if report.replicas == 2 and spare and not self.bad:
                self.bad = world.operator.machine_of(spare[0].node)
                os.kill(spare[0].pid, signal.SIGKILL)
            elif report.replicas == 2 and spare and world.operator.machine_of(spare[0].node) != self.bad:
                (world.folder / "enough").touch()

    watch = Watch()
    assert world.operator.group("spares")["replicas"] == 0, "the program does not wait for it"
    result = world.fit(watch, steps=2000, policy=replace_node, pause_s=0.05)
    assert result.world_sizes[-3:] == [2, 1, 2]
    spares, workers = world.operator.group("spares"), world.operator.group()
    assert len(spares["scaleStrategy"]["workersToDelete"]) == 1 and spares["replicas"] == 1
    assert not (workers.get("scaleStrategy") or {}).get("workersToDelete") and workers["replicas"] == 2
    bad = world.operator.machine(watch.bad)["spec"]
    assert bad["unschedulable"] and f"elastic.quarantine/default.{world.name}" in {one["key"] for one in bad["taints"]}
    (other,) = {f"{world.name}-r0", f"{world.name}-r1"} - {watch.bad}
    where = {one.group: one.machine for one in world.operator.running.values()}
    assert where == {"workers": f"{world.name}-m0", "spares": other}
    once = committed_samples(world.folder)
    assert len(once) == 2000 * 16 and set(once.values()) == {1}, "no step was lost or made twice"


class Away:
    """An API server that is away for a while: stopped, so that it says nothing, or killed, so that it refuses."""

    def __init__(self, world: World, is_silent: bool) -> None:
        self._world, self._is_silent = world, is_silent
        self._is_back = threading.Event()
        self.began_s = 0.0

    def begin(self) -> None:
        self.began_s = time.time()
        self._world.operator.is_away = True
        server = self._world.kube._procs[-1]
        server.send_signal(signal.SIGSTOP if self._is_silent else signal.SIGKILL)
        timer = threading.Timer(AWAY_S, self.end)
        timer.daemon = True
        timer.start()

    def end(self) -> None:
        """From the timer's thread, and again at the end of the test, whatever came of it."""
        kube = self._world.kube
        if self._is_silent:
            kube._procs[-1].send_signal(signal.SIGCONT)
        elif not self._is_back.is_set():
            self._is_back.set()
            kube._procs[-1].wait(10)
            with (Path(kube.dir) / "server.log").open("ab") as log:
                kube._procs[-1] = subprocess.Popen(
                    kube._procs[-1].args,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=kube.dir,
                    process_group=0,
                )
            kube._wait(lambda: kube.request("GET", "/readyz")[0] == 200, "kube-apiserver")
        self._world.operator.is_away = False


@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "refuses"])
def test_an_api_server_that_is_away_costs_training_nothing(world_apart, caplog, is_silent):
    caplog.set_level(logging.INFO, "elastic")
    world = world_apart
    away = Away(world, is_silent)

    class Watch(Callback):
        """Ends the run once it is whole again."""

        def on_step(self, report: Any, state: RunState, goodput: float) -> None:
            if any("Kubernetes answers again" in line for line in caplog.messages) and state.replicas == 2:
                (world.folder / "enough").touch()

    def act(state: RunState) -> None:
        away.begin()
        kill_second(state)

    try:
        result = world.fit(At(10, act), Watch(), steps=4000, policy=replace_node, pause_s=0.02)
    finally:
        away.end()
    assert result.steps == 4000 and result.world_sizes == [2, 1, 2], "remediation went on when it was back"
    end_s = away.began_s + AWAY_S
    steps = [line["t"] for line in read_lines(world.folder) if line["event"] == "committed"]
    meanwhile = [away.began_s, *(step_s for step_s in steps if away.began_s < step_s < end_s), end_s]
    assert max(later - earlier for earlier, later in itertools.pairwise(meanwhile)) < LONGEST_GAP_S
    told = [line for line in caplog.messages if "the API server does not answer" in line]
    assert told and all(line.endswith("training goes on, and this is tried again") for line in told)
    assert len(told) <= 2, f"once for each call that it was away from, of which the first was half a look: {told}"


@pytest.mark.parametrize("world", [(3, 1)], indirect=True)
def test_a_group_that_is_too_small_grows(world):
    result = world.fit(steps=1200, pause_s=0.004)
    assert world.operator.group()["replicas"] == 2 == len(world.operator.running)
    assert result.world_sizes[-1] == 2 and result.incidents == []


@pytest.mark.parametrize("world", [(3, 3)], indirect=True)
def test_a_group_that_is_too_large_shrinks_by_the_machine_that_has_no_worker(world):
    """The operator would delete any, and the oldest first, which have work."""

    class Watch(Callback):
        """Ends the run soon after the group has shrunk."""

        shrunk_at = 0

        def on_step(self, report: Any, state: RunState, goodput: float) -> None:
            if not self.shrunk_at and len(world.operator.running) == 2:
                self.shrunk_at = report.commit.step

    watch = Watch()
    result = world.fit(watch, steps=600, pause_s=0.006)
    assert 0 < watch.shrunk_at < 590, "it shrank while the run trained"
    assert result.world_sizes == [2] and result.incidents == [], "no worker was there"
    assert world.operator.group()["replicas"] == 2 and len(world.operator.running) == 2
    named = world.operator.group()["scaleStrategy"]["workersToDelete"]
    assert len(named) == 1 and named[0] not in world.operator.running, named


@pytest.mark.parametrize("world", [(1,)], indirect=True)
def test_machines_that_do_not_come_are_told_of_and_taken_when_they_do(world):
    def act(state: RunState) -> None:
        world.operator.add_machine(f"{world.name}-late")

    class Watch(Callback):
        """Adds a machine once the run was told that one is missing."""

        is_told = False

        def on_state(self, state: RunState) -> None:
            if state.care.nodes_missing and not self.is_told:
                self.is_told = True
                act(state)
            if self.is_told and state.replicas == 2 and not state.care.nodes_missing:
                (world.folder / "enough").touch()

    watch = Watch()
    result = world.fit(watch, steps=2000)
    assert watch.is_told and result.world_sizes == [1, 2]
    assert len(world.journal("NodesMissing")) == 2


def test_a_machine_that_is_about_to_go_is_left_between_two_steps(world):
    def act(state: RunState) -> None:
        machine = world.operator.machine_of(state.members[1].node)
        world.operator.taint(machine, "cloud.google.com/impending-node-termination")

    result = world.fit(At(10, act), steps=400)
    assert result.steps == 400 and result.world_sizes[:2] == [2, 1]
    assert "the cloud takes the machine away" in json.dumps(world.journal("NodeNotice"))
    assert result.incidents[0].kind.name == "DEPARTURE"
