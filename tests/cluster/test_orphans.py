"""Effect. The workers of one replica whose driver has died: they make durable what all of them hold."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ray.util import placement_group_table

from elastic.actors.replica import end_replicas
from elastic.actors.slots import gang_of
from elastic.checkpoint.vault import Vault, open_vault
from elastic.train.flight import PAGES, page_path
from tests.cluster import training
from tests.cluster.test_fit import control_plane_pids
from tests.cluster.test_leaving import wait_until_gone, worker_pids

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]

SCRIPT = """
import sys
from pathlib import Path
import elastic
from elastic.actors import equipment
from tests.cluster import apart, training
from ray import cloudpickle

if __name__ == "__main__":
    for module in (apart, training):
        cloudpickle.register_pickle_by_value(module)
    folder, bytes_per_s, nodes = Path(sys.argv[1]), float(sys.argv[3]) or None, int(sys.argv[5])
    train_fn = training.stopping_apart(training.fully_sharded(folder, 100_000))
    if nodes > 1:
        equipment.slots_in, train_fn = apart.own_slots(folder), apart.on_its_node(train_fn, folder)
    store = {"persistent": str(folder / "store"), "persistent_interval": elastic.Interval(seconds=1000)}
    elastic.fit(
        train_fn,
        scaling=elastic.Scaling(num_dp_replicas=(1, int(sys.argv[6])), workers_per_replica=2, num_nodes_per_dp=nodes),
        limits=elastic.Limits(orphan_lease_s=5),
        checkpoint=elastic.Checkpoint(
            local_interval=elastic.Interval(steps=1),
            peers=0,
            upload_bytes_per_s=bytes_per_s,
            memory_lease_s=float(sys.argv[4]),
            **store
        ),
        run_dir=folder / "run",
        name=folder.name,
        address=sys.argv[2],
    )
"""


@contextmanager
def orphaned(
    hosts: Any,
    folder: Path,
    bytes_per_s: float = 0.0,
    memory_lease_s: float = 3600.0,
    nodes: int = 1,
    replicas: int = 1,
) -> Iterator[tuple[Vault, set[int]]]:
    """Two workers whose driver was killed after its first durable step; where that is, and their pids."""
    arguments = [str(one) for one in (folder, hosts.address, bytes_per_s, memory_lease_s, nodes, replicas)]
    process = training.start_python(SCRIPT, folder, *arguments)
    vault, deadline_s = open_vault(str(folder / "store"), folder.name), time.monotonic() + 60
    try:
        while not vault.commits() or min(last_steps(folder).values(), default=0) < 20:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline_s, "no durable step within 60 s"
            time.sleep(0.1)
        process.kill()
        yield vault, worker_pids(folder)
    finally:
        process.kill()
        print(process.communicate()[1][-3000:])
        end_replicas(folder.name, incarnation=1)


def last_steps(folder: Path) -> dict[int, int]:
    """What each shard has applied."""
    lines = [line for line in training.read_lines(folder) if line["event"] == "committed"]
    return {line["shard"]: line["step"] for line in lines}  # by time


def test_mates_that_stopped_at_different_steps_make_durable_what_both_hold(hosts: Any, tmp_path: Path) -> None:
    with orphaned(hosts, tmp_path) as (vault, pids):
        assert wait_until_gone(pids, 90) == set()
    held = last_steps(tmp_path)
    assert held[0] == held[1] + 1, "they have stopped at the same step"
    assert vault.commits()[0].commit.step == held[1]


def test_what_a_killed_mate_has_sealed_on_another_node_is_sent_from_there(hosts: Any, tmp_path: Path) -> None:
    """It is killed before it has saved its last state, and ordered nothing: the other one orders both shards."""
    with orphaned(hosts, tmp_path, nodes=2) as (vault, pids):
        os.kill(next(line["pid"] for line in training.read_lines(tmp_path) if line["shard"] == 1), signal.SIGKILL)
        before = vault.commits()[0].commit.step
        assert wait_until_gone(pids, 90) == set()
        assert len(list(tmp_path.glob("*.shard"))) == 2, "they were on one node"
        held = min(last_steps(tmp_path).values()) - 1  # it seals a step with the next one's reduction
        assert before < held, "all was there before it was killed"
        assert vault.commits()[0].commit.step >= held


@pytest.mark.parametrize("is_leaving", [False, True])
def test_the_upload_of_a_mate_goes_on_when_another_one_is_killed(hosts: Any, tmp_path: Path, is_leaving: bool) -> None:
    """Their node sends both shards, one after the other at this speed: the second is a second on its way.

    One is killed before it has saved its last state, the other once it has.
    """
    with orphaned(hosts, tmp_path, bytes_per_s=2000) as (vault, pids):
        started = next(line for line in training.read_lines(tmp_path) if line["shard"] == 0)
        page, deadline_s = page_path(tmp_path.name, started["worker"], 1), time.monotonic() + 60
        while is_leaving and page.exists():  # until it has saved its state
            assert time.monotonic() < deadline_s, "it does not leave"
            time.sleep(0.01)
        os.kill(started["pid"], signal.SIGKILL)
        before = vault.commits()[0].commit.step
        assert wait_until_gone(pids, 90) == set()
        held = min(last_steps(tmp_path).values()) - (not is_leaving)  # it seals a step with the next one's reduction
        assert before < held, "all was there before it was killed"
        while vault.commits()[0].commit.step < held:
            assert time.monotonic() < deadline_s, "what they held is not durable"
            time.sleep(0.1)
        assert not page.exists(), "who left last took no page of the other's away"


def test_slots_that_a_dead_driver_waited_for_are_not_given_to_it(hosts: Any, tmp_path: Path) -> None:
    """What orphans free goes to whoever waits for it, and nobody drives these any more."""
    with orphaned(hosts, tmp_path, replicas=20) as (_, pids):
        assert "PENDING" in groups_of(tmp_path.name), "there was room for all"
        assert wait_until_gone(pids, 90) == set()
        deadline_s = time.monotonic() + 30
        while left := groups_of(tmp_path.name):
            assert time.monotonic() < deadline_s, left
            time.sleep(0.1)


def groups_of(run: str) -> list[str]:
    """How the slots of a run stand that are not given back."""
    groups = [group for group in placement_group_table().values() if gang_of(group["name"], run) is not None]
    return [group["state"] for group in groups if group["state"] != "REMOVED"]


def test_what_orphans_left_that_were_all_killed_goes_with_their_replica_actor(hosts: Any, tmp_path: Path) -> None:
    """Their host monitor went with the driver, and none of them is left to tidy up."""
    with orphaned(hosts, tmp_path, memory_lease_s=8.0) as (_, pids):
        assert wait_until_gone(set(control_plane_pids("ray::HostMonitor")), 10) == set()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert wait_until_gone(pids, 10) == set()
        assert len([name for name in left_behind(tmp_path) if name.endswith(".page")]) == 2, "they took them along"
        deadline_s = time.monotonic() + 60
        while left := left_behind(tmp_path):
            assert time.monotonic() < deadline_s, left
            time.sleep(0.1)


def left_behind(folder: Path) -> list[str]:
    """Their flight pages and slots in shared memory."""
    return sorted(path.name for path in PAGES.glob(f"elastic-{folder.name}@*"))
