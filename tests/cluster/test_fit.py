"""Effect. elastic.fit on a real cluster: placement, results, faults, and nothing left behind."""

import functools
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import ray

import elastic
from elastic.actors import host_monitors, staff
from elastic.actors.draining import drain_node, draining_nodes
from elastic.actors.worker import carried
from elastic.control.state import RunState
from elastic.control.values import IncidentClass
from elastic.errors import ElasticError
from tests.chaos.ledger_checks import booked
from tests.cluster import training
from tests.cluster.training import At, read_lines, regression, relative_difference
from tests.conftest import RUN_MARK
from tests.lines import whole_lines

pytestmark = pytest.mark.timeout(300)

LONGER_S = 0.04  # for each micro-batch: what is done at a step is done long before the last one


def fit(folder: Path, *callbacks: Any, steps: int = 40, pause_s: float = 0.005, **settings: Any) -> Any:
    """A run in `folder`, two replicas unless told otherwise."""
    scaling = settings.pop("scaling", elastic.Scaling(num_dp_replicas=2))
    limits = settings.pop("limits", elastic.Limits(start_timeout_s=150))
    result = elastic.fit(
        regression(folder, steps, pause_s),
        scaling=scaling,
        limits=limits,
        callbacks=callbacks,
        run_dir=folder / "run",
        **settings,
    )
    booked(folder / "run" / "journal.jsonl")
    return result


@pytest.fixture(scope="module")
def clean(hosts: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The fault-free run that others are compared with."""
    return fit(tmp_path_factory.mktemp("clean"))


def committed_samples(
    folder: Path, is_void: Callable[[dict[str, Any]], bool] = lambda line: False
) -> Counter[tuple[int, int]]:
    """(step, sample) -> times, over the attempts that were committed last.

    Args:
        is_void: a line of an attempt that a restart has undone; its generation's number may be given out once more.
    """
    lines = [line for line in read_lines(folder) if not is_void(line)]
    stands = {line["step"]: line["generation"] for line in lines if line["event"] == "committed"}
    consumed = (
        line for line in lines if line["event"] == "consumed" and stands.get(line["step"]) == line["generation"]
    )
    return Counter((line["step"], sample) for line in consumed for sample in line["ids"])


def assert_nothing_lost(folder: Path, clean: Any, result: Any, steps: int = 40) -> None:
    """P2, P3 and identical replicas."""
    samples = committed_samples(folder)
    assert set(samples.values()) == {1}
    assert len(samples) == steps * 16
    assert relative_difference(result.value["parameters"], clean.value["parameters"]) < 1e-9
    assert len({line["digest"] for line in read_lines(folder) if line["event"] == "finished"}) == 1


def placed_on(folder: Path) -> set[str]:
    """Nodes that the journal says workers were placed on."""
    lines = whole_lines(folder / "run" / "journal.jsonl")
    return {line["node"] for line in lines if line.get("event") == "WorkerPlaced"}


def test_a_run_without_faults_returns_its_result(clean: Any) -> None:
    assert clean.steps == 40
    assert clean.world_sizes == [2]
    assert clean.incidents == []
    assert clean.last_report["loss"] < 20
    assert 0 < clean.goodput <= 1
    assert Path(clean.run_dir, "journal.jsonl").exists()


@pytest.mark.slow
def test_what_a_worker_is_started_with_lies_on_no_other_node(
    hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one that has just died, its node would fetch it in vain, and start nothing for 10 or 30 s."""
    given, begin = list[Any](), staff.begin

    def recording(actor: Any, *how: Any) -> Any:
        given.extend(how)
        return begin(actor, *how)

    monkeypatch.setattr(staff, "begin", recording)
    result = fit(tmp_path, steps=2, scaling=elastic.Scaling(num_dp_replicas=1))
    assert result.steps == 2 and given
    assert not [one for one in given if isinstance(one, ray.ObjectRef)]


def test_train_fn_is_carried_as_it_was_and_a_large_one_is_shared(hosts: Any) -> None:
    values = [1]
    small = carried(functools.partial(print, values))
    values.append(2)
    assert small.args == ([1],)
    for large in (bytes(1 << 17), numpy.zeros(1 << 17, numpy.uint8)):
        shared = carried(functools.partial(print, large))
        assert isinstance(shared, ray.ObjectRef) and len(ray.get(shared, timeout=30).args[0]) == 1 << 17


def test_gpu_workers_go_where_the_gpus_are(hosts: Any, tmp_path: Path) -> None:
    scaling, health = elastic.Scaling(num_dp_replicas=2, use_gpu=True), elastic.Health(checks=False)
    fit(tmp_path, steps=3, scaling=scaling, health=health)  # they are Ray's word alone: a check would find none
    assert placed_on(tmp_path) == {hosts.nodes["gpu"].node_id}


def test_a_worker_may_ask_for_memory(hosts: Any, tmp_path: Path) -> None:
    """Which Ray takes as a resource of a slot, and as a word of its own of an actor."""
    scaling = elastic.Scaling(num_dp_replicas=1, resources_per_worker={"CPU": 1, "memory": 50e6})
    assert fit(tmp_path, steps=3, scaling=scaling).steps == 3


@pytest.mark.slow
def test_label_selectors_choose_nodes(hosts: Any, tmp_path: Path) -> None:
    fit(tmp_path, steps=3, scaling=elastic.Scaling(num_dp_replicas=2, label_selector={"pool": "b"}))
    assert placed_on(tmp_path) == {hosts.nodes["b"].node_id}


def test_a_killed_worker_costs_no_step_and_no_process(clean: Any, tmp_path: Path) -> None:
    """The survivor goes on in the same process with the same objects; a replacement joins later."""
    niceness = set()

    def kill(state: RunState) -> None:
        ours = (*(member.pid for member in state.members), *control_plane_pids())
        niceness.update(os.getpriority(os.PRIO_PROCESS, pid) for pid in ours)
        os.kill(state.members[1].pid, signal.SIGKILL)

    saboteur = At(10, kill)
    result = fit(tmp_path, saboteur, pause_s=LONGER_S, scaling=elastic.Scaling(num_dp_replicas=(1, 2)))
    assert saboteur.fired_s is not None
    assert niceness == {0} or os.geteuid() != 0, "who trains, and who watches, is not the least on its node"
    assert len(result.incidents) == 1
    assert result.world_sizes[:2] == [2, 1]
    assert_nothing_lost(tmp_path, clean, result)
    survivor = saboteur.generations[0].members[0].worker
    lines = whole_lines(tmp_path / f"{survivor}.jsonl")
    assert len({line["pid"] for line in lines}) == 1
    assert [line["event"] for line in lines].count("started") == 1


def test_a_worker_that_tells_garbage_and_of_others_is_refused_once_and_trains(
    clean: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = elastic.fit(
        training.lying(regression(tmp_path)),
        scaling=elastic.Scaling(num_dp_replicas=2),
        limits=elastic.Limits(start_timeout_s=150),
        run_dir=tmp_path / "run",
    )
    said = [text for text in caplog.messages if text.startswith("refused: ")]
    assert said == [
        "refused: w1 tells of str, which is not its to tell",
        "refused: w1 tells of WorkerDead, which is not its to tell",
        "refused: w1 speaks for w0",  # another one of that kind, for w9, is not told of
        "refused: Overdue of w1: generation='1' is no int",
    ]
    assert (result.world_sizes, result.incidents) == ([2], [])
    assert_nothing_lost(tmp_path, clean, result)


@pytest.mark.slow
def test_a_spare_takes_over(clean: Any, tmp_path: Path) -> None:
    def kill_leader(state: RunState) -> None:
        os.kill(state.members[0].pid, signal.SIGKILL)

    saboteur = At(10, kill_leader)
    result = fit(tmp_path, saboteur, pause_s=LONGER_S, scaling=elastic.Scaling(num_dp_replicas=2, spares=1))
    assert saboteur.fired_s is not None
    assert set(result.world_sizes) == {2}
    assert_nothing_lost(tmp_path, clean, result)


def test_a_stopped_worker_is_seen_and_replaced(clean: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_monitors, "_STACK_S", 30.0)  # a second does not do where others want all processors

    def stop(state: RunState) -> None:
        os.kill(state.members[1].pid, signal.SIGSTOP)

    saboteur = At(8, stop)  # reports come some at a time: later, the run might be over
    limits = elastic.Limits(start_timeout_s=150, heartbeat_timeout_s=10)  # stacks take seconds on a busy machine
    scaling = elastic.Scaling(num_dp_replicas=(1, 2))
    result = fit(tmp_path, saboteur, pause_s=LONGER_S, scaling=scaling, limits=limits)
    assert saboteur.fired_s is not None
    (incident,) = result.incidents
    assert incident.kind is IncidentClass.WORKER_HUNG
    assert any("elastic-train" in evidence for evidence in incident.evidence), "its stacks were seen"
    assert_nothing_lost(tmp_path, clean, result)


@pytest.mark.slow
def test_a_worker_that_is_told_of_its_end_leaves_between_two_steps(clean: Any, tmp_path: Path) -> None:
    """As a scheduler does it: SIGTERM first."""

    def tell(state: RunState) -> None:
        os.kill(state.members[1].pid, signal.SIGTERM)

    saboteur = At(10, tell)
    result = fit(tmp_path, saboteur, pause_s=LONGER_S, scaling=elastic.Scaling(num_dp_replicas=(1, 2), stand_ins=0))
    assert saboteur.fired_s is not None
    (incident,) = result.incidents
    assert incident.kind is IncidentClass.DEPARTURE
    assert result.world_sizes[:2] == [2, 1]
    assert_no_attempt_wasted(tmp_path)
    assert_nothing_lost(tmp_path, clean, result)


def test_a_drained_node_is_left_between_two_steps(hosts: Any, tmp_path: Path) -> None:
    """Its workers leave, nobody new is placed there, and Ray takes it away once it is idle."""
    drained = hosts.add_node(num_cpus=1, object_store_memory=80 << 20, resources={"there": 1})
    stays = hosts.add_node(num_cpus=1, object_store_memory=80 << 20, resources={"there": 1})
    left: list[str] = []

    def drain(state: RunState) -> None:
        left.append(state.members[0].node)
        drain_node(left[0][:12], "a test", deadline_s=60)

    saboteur = At(10, drain)
    try:
        scaling = elastic.Scaling(num_dp_replicas=(1, 2), resources_per_worker={"CPU": 1, "there": 1})
        result = fit(tmp_path, saboteur, steps=50, pause_s=LONGER_S, scaling=scaling)
    finally:
        for node in (drained, stays):
            hosts.remove_node(node)
    assert saboteur.fired_s is not None
    (incident,) = result.incidents
    assert incident.kind is IncidentClass.DEPARTURE and "its node is drained" in incident.evidence[0]
    assert result.world_sizes == [2, 1]
    assert_no_attempt_wasted(tmp_path)
    assert set(committed_samples(tmp_path).values()) == {1}


def test_only_a_node_that_is_there_can_be_drained(hosts: Any) -> None:
    with pytest.raises(ElasticError, match="0 live nodes match 'nowhere': name one of "):
        drain_node("nowhere", "a test", deadline_s=1)
    with pytest.raises(ElasticError, match="live nodes match"):
        drain_node("", "a test", deadline_s=1)
    assert draining_nodes() == {}


def assert_no_attempt_wasted(folder: Path) -> None:
    """What was consumed was committed."""
    lines = read_lines(folder)
    attempts = [
        {(line["step"], line["generation"]) for line in lines if line["event"] == event}
        for event in ("consumed", "committed")
    ]
    assert attempts[0] == attempts[1]


def test_training_survives_its_supervisor_and_monitors(clean: Any, tmp_path: Path) -> None:
    """The control plane may die; a failure after its death is still handled."""
    killed: list[int] = []

    def kill_control_plane(state: RunState) -> None:
        for pid in control_plane_pids():
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        os.kill(state.members[1].pid, signal.SIGKILL)

    saboteur = At(10, kill_control_plane)
    result = fit(tmp_path, saboteur, pause_s=LONGER_S, scaling=elastic.Scaling(num_dp_replicas=2, spares=1))
    assert len(killed) >= 2
    assert_nothing_lost(tmp_path, clean, result)


def control_plane_pids(*titles: str) -> list[int]:
    """Supervisor and host monitors of this session's clusters, or one of these, by the names Ray gives processes."""
    titles = titles or ("ray::Guard", "ray::HostMonitor")
    found, ours = [], "=".join(RUN_MARK).encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = path.read_bytes().decode(errors="replace")
            is_ours = ours in path.with_name("environ").read_bytes()
        except OSError:
            continue
        if is_ours and title.startswith(titles):
            found.append(int(path.parent.name))
    return found


@pytest.mark.slow
def test_the_group_grows_when_slots_appear(hosts: Any, clean: Any, tmp_path: Path) -> None:
    """Three replicas are wanted, one slot is there; a node with more comes."""
    added: list[Any] = []

    def add_node(state: RunState) -> None:
        added.append(hosts.add_node(num_cpus=2, object_store_memory=80 << 20, labels={"pool": "new"}))

    hosts_before = At(3, add_node)
    small = hosts.add_node(num_cpus=1, object_store_memory=80 << 20, labels={"pool": "new"})
    try:
        scaling = elastic.Scaling(num_dp_replicas=(1, 3), label_selector={"pool": "new"})
        result = fit(tmp_path, hosts_before, steps=400, scaling=scaling)
    finally:
        for node in (small, *added):
            hosts.remove_node(node)
    assert added
    assert result.world_sizes[0] == 1
    assert result.world_sizes[-1] > 1
    assert set(committed_samples(tmp_path).values()) == {1}


def test_a_lost_node_takes_its_workers_along(hosts: Any, tmp_path: Path) -> None:
    """A raylet is killed; Ray ends its workers, the others go on."""
    doomed = hosts.add_node(num_cpus=1, object_store_memory=80 << 20, resources={"here": 1})
    stays = hosts.add_node(num_cpus=1, object_store_memory=80 << 20, resources={"here": 1})
    nodes = {node.node_id: node for node in (doomed, stays)}

    def remove(state: RunState) -> None:
        victim = state.members[0].node
        hosts.remove_node(nodes.pop(victim), allow_graceful=False)

    saboteur = At(10, remove)
    try:
        scaling = elastic.Scaling(num_dp_replicas=(1, 2), resources_per_worker={"CPU": 1, "here": 1})
        result = fit(tmp_path, saboteur, steps=300, scaling=scaling)  # its workers outlive a raylet by seconds
    finally:
        for node in nodes.values():
            hosts.remove_node(node)
    assert saboteur.fired_s is not None
    assert result.world_sizes == [2, 1]
    samples = committed_samples(tmp_path)
    assert (set(samples.values()), len(samples)) == ({1}, 300 * 16)
