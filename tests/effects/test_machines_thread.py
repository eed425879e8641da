"""The thread that keeps machines: what it does about rights it lacks, and about a server that is away."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from elastic.actors import machines
from elastic.actors.machines import Machines, NoMachines, machines_of
from elastic.actors.taken import Taken
from elastic.control import events as ev
from elastic.control.care import Care
from elastic.control.state import Phase, RunState, Standing, WorkerRecord
from elastic.kube.errors import KubeError, Why
from elastic.kube.marks import mark
from elastic.kube.objects import GroupState, Machine, Pod, Taint
from elastic.settings import KubeRay, Limits, RunSettings, Scaling

SETTINGS = RunSettings(run="llama", limits=Limits(start_timeout_s=0.2))
STATE = RunState(settings=SETTINGS)
BAD = replace(STATE, care=Care(quarantine={"n0": inf}))
TRAINS = replace(STATE, workers={"w0": WorkerRecord(name="w0", standing=Standing.MEMBER, node="n0")})
LOOK_S, WAIT_S = 0.02, 60.0


@dataclass
class Server:
    """Stands in for the client; `fails` maps a method to what it raises, `lacks` names groups that are not there."""

    replicas: int = 1
    spares: int | None = None
    group: str = "workers"
    lacks: tuple[str, ...] = ()
    fails: dict[str, Why | Exception] = field(default_factory=dict)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    taints: tuple[Taint, ...] = ()
    nodes_s: float = 0.0
    is_a_jobs: bool = True

    def _called(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, *arguments))
        if name in self.fails:
            why = self.fails[name]
            if isinstance(why, Exception):
                raise why
            after_s = 10.0 - 1e-3 * len(self.calls)  # what the client says of a time-out is never the same twice
            raise KubeError(f"{name}: {why.value} (Read timed out. (read timeout={after_s}))", why=why, status=0)

    def is_of_a_job(self, cluster: str) -> bool:
        self._called("is_of_a_job")
        return self.is_a_jobs

    def groups(self, cluster: str) -> dict[str, GroupState]:
        self._called("groups")
        sizes = {"supervisor": 1, "workers": self.replicas} | ({} if self.spares is None else {"spares": self.spares})
        made = (GroupState(name=name, replicas=size, low=0, high=5, leaving=()) for name, size in sizes.items())
        return {one.name: one for one in made if one.name not in self.lacks}

    def pods(self, cluster: str) -> tuple[Pod, ...]:
        self._called("pods")
        return (Pod(name="p0", group=self.group, address="a0", node="m0", is_running=True, is_leaving=False),)

    def machines(self) -> tuple[Machine, ...]:
        time.sleep(self.nodes_s)
        self._called("machines")
        return (Machine(name="m0", is_cordoned=False, taints=self.taints),)

    def quarantine(self, name: str, run: str, until_s: float) -> None:
        self._called("quarantine", name, run, until_s)
        self.taints = (mark(run, until_s),)

    def release(self, name: str, run: str) -> None:
        self._called("release", name)
        self.taints = ()

    def replace_pods(self, cluster: str, group: str, pods: frozenset[str]) -> None:
        self._called("replace_pods", group, pods)

    def scale(self, cluster: str, group: str, replicas: int, leave: frozenset[str], of: int) -> None:
        self._called("scale", group, replicas, leave)
        if group == "spares":
            self.spares = replicas
        else:
            self.replicas = replicas

    def close(self) -> None:
        self._called("close")

    def names(self) -> set[str]:
        return {call[0] for call in self.calls}


class Kept:
    """A thread with a server, and what it emits."""

    def __init__(self, server: Server, run: RunSettings, **kuberay: Any) -> None:
        self.server, self.events = server, []  # type: ignore[var-annotated]
        self.alive = {"n0": "a0"}
        self.taken: frozenset[str] = frozenset()
        settings = KubeRay(gpus_per_node=0, **kuberay)
        self.machines = Machines(
            server,  # type: ignore[arg-type]
            "c",
            run,
            settings,
            self.events.append,
            lambda: dict(self.alive),
            LOOK_S,
            lambda: Taken(self.taken, frozenset()),
        )

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline_s, (self.server.calls[-5:], self.events)
            time.sleep(LOOK_S)


@pytest.fixture
def keep() -> Iterator[Callable[..., Kept]]:
    made: list[Kept] = []

    def start(server: Server, state: RunState, **kuberay: Any) -> Kept:
        made.append(Kept(server, state.settings, **kuberay))
        made[-1].machines.follow(state)
        return made[-1]

    yield start
    for one in made:
        one.machines.close()
        assert one.server.calls[-1] == ("close",)


def test_a_bad_machine_is_cordoned_and_its_pod_replaced(keep):
    kept = keep(Server(), BAD)
    kept.until(lambda: "replace_pods" in kept.server.names())
    assert [call for call in kept.server.calls if call[0] in ("quarantine", "replace_pods")][:2] == [
        ("quarantine", "m0", "default.llama", inf),
        ("replace_pods", "workers", frozenset({"p0"})),
    ]


@pytest.mark.parametrize("is_said", [True, False], ids=["its file says so", "by what the cluster is"])
def test_a_bad_machine_that_another_run_is_on_is_replaced_once_that_has_left(keep, is_said):
    """Of a cluster to work on; where a run has it for itself, what still holds a processor there is what is bad."""
    shared = keep(Server(is_a_jobs=is_said), STATE, interactive=is_said, autoscale=False)
    shared.taken = frozenset({"n0"})
    shared.machines.follow(BAD)
    looks = len(shared.server.calls)
    shared.until(lambda: len(shared.server.calls) > looks + 20)
    assert "quarantine" in shared.server.names() and "replace_pods" not in shared.server.names()
    shared.taken = frozenset()
    shared.until(lambda: "replace_pods" in shared.server.names())
    assert "scale" not in shared.server.names()
    alone = keep(Server(), STATE)
    alone.taken = frozenset({"n0"})
    alone.machines.follow(BAD)
    alone.until(lambda: "replace_pods" in alone.server.names())


def test_a_server_that_is_away_is_asked_again_and_told_of_once(keep, caplog):
    caplog.set_level(logging.WARNING, "elastic")
    kept = keep(Server(fails={"groups": Why.UNREACHABLE}), BAD)
    kept.until(lambda: len(kept.server.calls) > 5)
    assert kept.server.names() == {"is_of_a_job", "groups"}
    assert len([line for line in caplog.messages if "training goes on" in line]) == 1
    kept.server.fails.clear()
    kept.until(lambda: "replace_pods" in kept.server.names())


def test_troubles_that_last_side_by_side_are_told_of_once_each(keep, caplog):
    caplog.set_level(logging.WARNING, "elastic")
    kept = keep(Server(fails={"quarantine": Why.FORBIDDEN, "replace_pods": Why.BUSY}), BAD)
    kept.until(lambda: [call[0] for call in kept.server.calls].count("replace_pods") > 5)
    told = [line.partition(":")[2] for line in caplog.messages if "training goes on" in line]
    assert len(told) == 2 and len(set(told)) == 2, told
    kept.server.fails.clear()
    kept.until(lambda: bool(kept.server.taints))


@pytest.mark.parametrize("call", ["groups", "machines", "quarantine"])
def test_a_mistake_of_ours_costs_remediation_and_not_the_run(keep, caplog, call):
    caplog.set_level(logging.WARNING, "elastic")
    kept = keep(Server(fails={call: TypeError("'NoneType' object is not iterable")}), BAD)
    kept.until(lambda: [one[0] for one in kept.server.calls].count(call) > 5)
    (told,) = [one for one in caplog.records if "training goes on" in one.message]
    assert told.exc_info is not None
    kept.server.fails.clear()
    kept.until(lambda: bool(kept.server.taints))


def test_what_fails_half_way_is_done_by_the_next_look(keep):
    kept = keep(Server(fails={"replace_pods": Why.UNREACHABLE}), BAD)
    kept.until(lambda: [call[0] for call in kept.server.calls].count("replace_pods") > 2)
    kept.server.fails.clear()


def test_a_cordon_that_fails_is_ordered_again(keep):
    kept = keep(Server(fails={"quarantine": Why.BUSY}), BAD)
    kept.until(lambda: [call[0] for call in kept.server.calls].count("quarantine") > 2)
    assert "replace_pods" not in kept.server.names(), "the next pod could come to the same machine"
    kept.server.fails.clear()
    kept.until(lambda: bool(kept.server.taints))
    kept.until(lambda: "replace_pods" in kept.server.names())


def test_what_is_not_done_is_not_told_of_as_done(keep, caplog):
    caplog.set_level(logging.WARNING, "elastic")
    kept = keep(Server(fails={"quarantine": Why.FORBIDDEN, "replace_pods": Why.FORBIDDEN}), BAD)
    kept.until(lambda: [call[0] for call in kept.server.calls].count("replace_pods") > 3)
    assert not [line for line in caplog.messages if "gets no pods" in line or "replaced" in line]
    kept.server.fails.clear()
    kept.until(lambda: len([line for line in caplog.messages if "m0 gets no pods, for good" in line]) == 1)


@pytest.mark.parametrize("why", [Why.FORBIDDEN, IndexError("a mistake of ours")], ids=repr)
def test_what_can_not_be_done_keeps_nobody_from_being_told(keep, why):
    leaving = (Taint(key="cloud.google.com/impending-node-termination"),)
    kept = keep(Server(taints=leaving, fails={"quarantine": why}), BAD)
    kept.until(lambda: bool(kept.events) and "replace_pods" in kept.server.names())
    assert kept.events == [ev.NodeNotice(node="n0", reason="the cloud takes the machine away")]


def test_a_machine_is_cordoned_though_its_raylet_died_first(keep):
    kept = keep(Server(), STATE)
    kept.until(lambda: [call[0] for call in kept.server.calls].count("machines") > 2)
    kept.alive.clear()
    kept.machines.follow(BAD)
    kept.until(lambda: "replace_pods" in kept.server.names())
    assert ("quarantine", "m0", "default.llama", inf) in kept.server.calls


def test_without_rights_on_nodes_it_says_so_once_works_on_and_asks_again(keep, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "elastic")
    monkeypatch.setattr(machines, "_RIGHTS_S", 0.5)
    kept = keep(Server(fails={"machines": Why.FORBIDDEN}), BAD)
    kept.until(lambda: "replace_pods" in kept.server.names())
    kept.until(lambda: [call[0] for call in kept.server.calls].count("machines") >= 4)
    assert [call[0] for call in kept.server.calls].count("pods") > 8, "pods are looked at meanwhile"
    assert len([line for line in caplog.messages if "kept out by Ray alone" in line]) == 1
    kept.server.fails.clear()
    kept.until(lambda: "quarantine" in kept.server.names())
    assert len([line for line in caplog.messages if "nodes may be looked at" in line]) == 1


def test_nodes_of_a_large_cluster_are_looked_at_less_often_and_remembered_meanwhile(keep):
    leaving = (Taint(key="cloud.google.com/impending-node-termination"),)
    kept = keep(Server(nodes_s=0.05), STATE)
    kept.until(lambda: [call[0] for call in kept.server.calls].count("machines") >= 2)
    between = [call[0] for call in kept.server.calls]
    assert between.count("pods") >= 8, "a fiftieth of the time at most"
    kept.machines.follow(BAD)
    kept.until(lambda: "quarantine" in kept.server.names())
    names = [call[0] for call in kept.server.calls]
    assert names[: names.index("quarantine")].count("machines") == 2, "what was seen is still known"
    kept.server.taints += leaving
    kept.until(lambda: bool(kept.events))
    after = [call[0] for call in kept.server.calls]
    assert "machines" in after[after.index("quarantine") :][:6], "what was written is looked at again"


@pytest.mark.parametrize("why", [Why.BUSY, Why.UNREACHABLE, Why.GARBLED])
def test_a_list_of_nodes_that_fails_holds_back_what_needs_none(keep, caplog, why):
    """Of a large cluster it is long, and servers refuse such calls first; only who cordons first may replace."""
    caplog.set_level(logging.INFO, "elastic")
    kept = keep(Server(replicas=0, fails={"machines": why}), BAD, autoscale=False)
    kept.until(lambda: [call[0] for call in kept.server.calls].count("machines") > 5)
    assert ("scale", "workers", 1, frozenset()) in kept.server.calls and "replace_pods" not in kept.server.names()
    assert len([line for line in caplog.messages if "training goes on" in line]) == 1
    assert not [line for line in caplog.messages if "answers again" in line]
    kept.server.fails.clear()
    kept.until(lambda: "replace_pods" in kept.server.names())
    names = [call[0] for call in kept.server.calls]
    assert names.index("quarantine") < names.index("replace_pods")
    assert len([line for line in caplog.messages if "answers again" in line]) == 1


def test_a_token_that_is_not_taken_now_may_be_later(keep):
    kept = keep(Server(fails={"machines": Why.UNKNOWN}), BAD)
    kept.until(lambda: [call[0] for call in kept.server.calls].count("machines") > 5)
    kept.server.fails.clear()
    kept.until(lambda: "quarantine" in kept.server.names())


def test_where_rights_were_not_given_nodes_are_not_even_asked_for_and_it_says_so(keep, caplog):
    caplog.set_level(logging.INFO, "elastic")
    kept = keep(Server(), BAD, node_rights=False)
    kept.until(lambda: "replace_pods" in kept.server.names())
    assert "machines" not in kept.server.names()
    assert len([line for line in caplog.messages if "kuberay.node_rights is off" in line]) == 1


def test_the_group_has_the_size_that_the_run_needs_unless_the_autoscaler_sees_to_it(keep):
    alone = keep(Server(replicas=0), STATE, autoscale=False)
    alone.until(lambda: ("scale", "workers", 1, frozenset()) in alone.server.calls)
    unborn = keep(Server(replicas=4), STATE, autoscale=False)
    unborn.until(lambda: len(unborn.server.calls) > 10)
    assert "scale" not in unborn.server.names(), "before there is a worker nobody can say which machines are too many"
    settled = keep(Server(replicas=4), TRAINS, autoscale=False)
    settled.until(lambda: ("scale", "workers", 1, frozenset()) in settled.server.calls)
    beside = keep(Server(replicas=0), STATE)
    beside.until(lambda: len(beside.server.calls) > 10)
    assert "scale" not in beside.server.names()


def test_a_bad_spare_is_replaced_in_its_own_group(keep):
    kept = keep(Server(group="spares", spares=1), BAD)
    kept.until(lambda: "replace_pods" in kept.server.names())
    assert ("replace_pods", "spares", frozenset({"p0"})) in kept.server.calls


def test_spares_are_asked_for_in_their_group_and_not_among_the_workers(keep):
    scaling = Scaling(num_dp_replicas=(1, 2), spares=2)
    state = replace(STATE, settings=replace(SETTINGS, scaling=scaling))
    kept = keep(Server(spares=0), state, autoscale=False, spare_pool="reserve", cpus_per_node=1)
    kept.until(lambda: kept.server.spares == 2 and kept.server.replicas == 2)
    beside = keep(Server(spares=0), state, spare_pool="reserve", cpus_per_node=1)
    beside.until(lambda: len(beside.server.calls) > 10)
    assert "scale" not in beside.server.names(), "the autoscaler sees to them"


def test_a_cluster_without_the_workers_group_is_told_of_once(keep, caplog):
    caplog.set_level(logging.WARNING, "elastic")
    kept = keep(Server(lacks=("workers",)), BAD)
    kept.until(lambda: len(kept.server.calls) > 6)
    assert kept.server.names() == {"is_of_a_job", "groups", "pods"}
    (told,) = [line for line in caplog.messages if "training goes on" in line]
    assert "RayCluster c has no worker group workers" in told


def test_missing_machines_become_an_event_and_so_does_their_coming(keep):
    kept = keep(Server(replicas=3), STATE)
    kept.until(lambda: bool(kept.events))
    assert isinstance(kept.events[0], ev.NodesMissing) and kept.events[0].missing == 2
    kept.server.replicas = 1
    kept.until(lambda: len(kept.events) > 1)
    assert kept.events[1].missing == 0


@pytest.mark.parametrize(("for_s", "is_given_back"), [(300.0, True), (inf, False)], ids=["for a while", "for ever"])
def test_a_run_that_has_ended_gives_back_what_nobody_else_would(keep, for_s, is_given_back):
    until_s = time.time() + for_s  # not a parameter: those are made when tests are collected, minutes before this runs
    state = replace(STATE, care=Care(quarantine={"n0": until_s}))
    kept = keep(Server(taints=(mark("default.llama", until_s),)), state)
    kept.until(lambda: len(kept.server.calls) > 5)
    assert ("release", "m0") not in kept.server.calls
    kept.machines.follow(replace(state, phase=Phase.ENDED))  # there may be another look before the close
    kept.machines.close()
    assert (("release", "m0") in kept.server.calls) is is_given_back


def test_marks_of_a_run_of_the_same_name_in_another_namespace_stay(keep):
    theirs = mark("night.llama", time.time() + 300.0)
    kept = keep(Server(taints=(theirs,)), STATE)
    kept.until(lambda: len(kept.server.calls) > 8)
    kept.machines.follow(replace(STATE, phase=Phase.ENDED))
    kept.machines.close()
    assert "release" not in kept.server.names()
    other = keep(Server(), BAD, namespace="night")
    other.until(lambda: bool(other.server.taints))
    assert [call[2] for call in other.server.calls if call[0] == "quarantine"] == ["night.llama"]


@pytest.mark.parametrize(
    ("state", "kuberay", "fails"),
    [
        (BAD, {}, {}),  # another driver may go on
        (replace(STATE, phase=Phase.ENDED), {"node_rights": False}, {}),
        (replace(STATE, phase=Phase.ENDED), {}, {"machines": Why.FORBIDDEN}),
    ],
)
def test_otherwise_marks_stay(keep, state, kuberay, fails):
    kept = keep(Server(taints=(mark("default.llama", time.time() + 300.0),), fails=fails), state, **kuberay)
    kept.machines.close()
    assert "release" not in kept.server.names()


def test_a_mark_that_could_not_be_taken_away_is_told_of_with_what_to_do(keep, caplog):
    server = Server(taints=(mark("default.llama", time.time() + 300.0),), fails={"release": Why.UNREACHABLE})
    kept = keep(server, replace(STATE, phase=Phase.ENDED, care=Care(quarantine={"n0": inf})))
    kept.machines.close()
    assert [line for line in caplog.messages if "kubectl taint nodes m0 elastic.quarantine/default.llama-" in line]


@pytest.mark.parametrize(("phase", "is_told"), [(Phase.ENDED, True), (Phase.RUNNING, False)])
def test_marks_that_nobody_could_take_away_in_time_are_told_of(keep, caplog, monkeypatch, phase, is_told):
    monkeypatch.setattr(machines, "_END_S", 0.1)
    kept = keep(Server(nodes_s=1.0), replace(STATE, phase=phase))
    kept.until(lambda: "pods" in kept.server.names())
    kept.machines.close()
    assert bool([line for line in caplog.messages if "marks of this run may be left" in line]) is is_told
    kept.machines._thread.join(WAIT_S)


def test_taints_become_notices(keep):
    leaving = (Taint(key="cloud.google.com/impending-node-termination"),)
    kept = keep(Server(taints=leaving), STATE)
    kept.until(lambda: bool(kept.events))
    assert kept.events == [ev.NodeNotice(node="n0", reason="the cloud takes the machine away")]


@pytest.mark.parametrize(("kuberay", "host"), [(None, "x"), (KubeRay(), None)])
def test_elsewhere_there_is_nothing_to_keep(monkeypatch, kuberay, host):
    monkeypatch.setenv("RAY_CLUSTER_NAME", "c")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    if host is not None:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    kept = machines_of(kuberay, SETTINGS, print)
    assert isinstance(kept, NoMachines)
    kept.follow(STATE)
    kept.close()


def test_a_pod_speaks_to_its_own_namespace_whatever_the_settings_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Kustomize writes another one into all objects, and not into the settings within one of them."""
    caplog.set_level(logging.WARNING, "elastic")
    asked: list[str] = []
    (tmp_path / "namespace").write_text("ml")
    monkeypatch.setattr(machines, "_NAMESPACE", str(tmp_path / "namespace"))
    monkeypatch.setattr(machines, "connect", lambda namespace: (asked.append(namespace), Server())[1])
    monkeypatch.setenv("RAY_CLUSTER_NAME", "c")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    for namespace in ("default", "ml"):
        machines_of(KubeRay(gpus_per_node=0, namespace=namespace), SETTINGS, print).close()
    assert asked == ["ml", "ml"]
    assert [one.getMessage() for one in caplog.records if "in the namespace ml, not" in one.getMessage()] == [
        "machines: this pod is in the namespace ml, not KubeRay.namespace=default, and so is its cluster"
    ]
