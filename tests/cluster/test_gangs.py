"""Effect. Replicas of two workers on a real cluster, each fully sharded over its workers: a worker, then a node."""

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.control.state import RunState
from examples.llama import Recipe, make_train_fn
from tests.cluster.test_fit import committed_samples
from tests.cluster.training import At, fully_sharded, read_lines

pytestmark = pytest.mark.timeout(150)

STEPS = 200
LONG = 600  # so that a process starts meanwhile, and imports torch, beside another test


def fit(folder: Path, saboteur: At, steps: int = STEPS, **scaling: Any) -> Any:
    return elastic.fit(
        fully_sharded(folder, steps),
        scaling=elastic.Scaling(num_dp_replicas=(1, 2), workers_per_replica=2, **scaling),
        limits=elastic.Limits(start_timeout_s=120, hang_floor_s=30),
        callbacks=[saboteur],
        run_dir=folder / "run",
    )


def assert_nothing_lost(folder: Path) -> None:
    assert set(committed_samples(folder).values()) == {1}
    finished = [line for line in read_lines(folder) if line["event"] == "finished"]
    for shard in (0, 1):
        assert len({line["digest"] for line in finished if line["shard"] == shard}) == 1


def gangs_of(saboteur: At) -> list[set[tuple[str, ...]]]:
    return [{tuple(m.worker for m in view.gang(r)) for r in range(view.replicas)} for view in saboteur.generations]


@pytest.mark.slow
def test_a_lost_worker_is_replaced_in_its_replica(hosts: Any, tmp_path: Path) -> None:
    """The other replica goes on alone meanwhile; the worker that was left keeps its process."""

    def kill(state: RunState) -> None:
        os.kill(state.members[1].pid, signal.SIGKILL)

    saboteur = At(10, kill)
    result = fit(tmp_path, saboteur, LONG)
    assert saboteur.fired_s is not None
    assert result.world_sizes[:2] == [2, 1] and result.world_sizes[-1] == 2
    first, last = gangs_of(saboteur)[0], gangs_of(saboteur)[-1]
    (broken,) = first - last
    (mended,) = last - first
    assert broken[0] == mended[0] and broken[1] != mended[1]
    assert len([line for line in read_lines(tmp_path) if line["event"] == "started"]) == 5
    assert_nothing_lost(tmp_path)


@pytest.mark.slow
def test_a_lost_node_takes_its_replica_along(hosts: Any, tmp_path: Path) -> None:
    doomed, stays = (hosts.add_node(num_cpus=2, object_store_memory=80 << 20, resources={"g": 2}) for _ in range(2))
    nodes = {node.node_id: node for node in (doomed, stays)}

    def remove(state: RunState) -> None:
        assert len({member.node for member in state.members[:2]}) == 1, "a replica was torn apart"
        hosts.remove_node(nodes.pop(state.members[0].node), allow_graceful=False)

    saboteur = At(10, remove)
    try:
        result = fit(tmp_path, saboteur, resources_per_worker={"CPU": 1, "g": 1})
    finally:
        for node in nodes.values():
            hosts.remove_node(node)
    assert saboteur.fired_s is not None
    assert result.world_sizes == [2, 1]
    assert_nothing_lost(tmp_path)


@pytest.mark.slow
def test_a_replica_on_two_nodes_has_half_of_its_workers_on_each(hosts: Any, tmp_path: Path) -> None:
    """In the order of their shards; whoever dies is replaced on its node, where its slot is free again."""
    nodes = [hosts.add_node(num_cpus=2, object_store_memory=80 << 20, resources={"h": 2}) for _ in range(2)]
    places: list[list[str]] = []

    def look(state: RunState) -> None:
        places.append([member.node for member in state.members])
        os.kill(state.members[3].pid, signal.SIGKILL)

    saboteur = At(10, look)
    try:
        result = elastic.fit(
            fully_sharded(tmp_path, 60),
            scaling=elastic.Scaling(
                num_dp_replicas=1, workers_per_replica=4, num_nodes_per_dp=2, resources_per_worker={"CPU": 1, "h": 1}
            ),
            limits=elastic.Limits(start_timeout_s=120, hang_floor_s=30),
            checkpoint=elastic.Checkpoint(local_interval=elastic.Interval(steps=1), peers=0),
            callbacks=[saboteur],
            run_dir=tmp_path / "run",
        )
    finally:
        for node in nodes:
            hosts.remove_node(node)
    assert saboteur.fired_s is not None
    ((first, second, third, fourth),) = places
    assert first == second != third == fourth
    assert result.steps == 60 and result.world_sizes[0] == result.world_sizes[-1] == 1
    assert set(committed_samples(tmp_path).values()) == {1}


def test_an_epoch_may_end_with_fewer_rows_than_workers(hosts: Any, tmp_path: Path) -> None:
    """Nine rows in steps of four, dealt by two: the last micro-batch of an epoch has one row, for two workers."""
    recipe = Recipe(steps=7, batch_size=4, micro_batch_size=2, context=16, max_bytes=9 * 16 + 1)
    result = elastic.fit(
        make_train_fn(recipe),
        scaling=elastic.Scaling(num_dp_replicas=1, workers_per_replica=2),
        limits=elastic.Limits(start_timeout_s=120, hang_floor_s=30),
        run_dir=tmp_path / "run",
    )
    assert result.steps == 7 and math.isfinite(result.last_report["loss"])
