"""Effect. Copies on other nodes: they outlive the node they came from, an actor's death, and a store that is full."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastic.checkpoint import rungs
from elastic.checkpoint.manifest import ShardKey
from elastic.checkpoint.rungs import Rung
from elastic.checkpoint.source import Tier
from elastic.settings import Checkpoint, RunSettings
from tests.cluster import slots
from tests.effects import shards
from tests.effects.shards import key

pytestmark = pytest.mark.timeout(180)

STORE_BYTES = 80 << 20
CHUNK_BYTES = 1 << 20
BEAT_S = 0.3


class Crew:
    """Two nodes of their own, x and y, with a keeper; `told` is what the journal would get."""

    def __init__(self, cluster: Any, root: Path) -> None:
        self._cluster, self._root = cluster, root
        self.told, self.crashes, self.keepers = [], [], []
        self.nodes = {name: cluster.add_node(num_cpus=0, object_store_memory=STORE_BYTES) for name in "xy"}

    def id(self, name: str) -> str:
        return self.nodes[name].node_id

    def keeper(self, incarnation: int = 1, **checkpoint: Any) -> Any:
        from elastic.actors.keeper import Keeper

        settings = RunSettings(run=self._root.name, checkpoint=Checkpoint(**checkpoint), incarnation=incarnation)
        memory = slots.in_folders(self._root)
        keeper = Keeper(settings, memory, None, self.told.append, self.crashes.append, beat_s=BEAT_S)
        self.keepers.append(keeper)
        keeper.homes({0: {self.id("x")}, 1: {self.id("y")}})
        return keeper

    def seal(self, of: ShardKey, name: str, nbytes: int = 5 * CHUNK_BYTES + 77) -> Any:
        data = shards.payload(of, nbytes)
        slots.FileMemory(self._root, self.id(name)).seal(shards.manifest(of, data, CHUNK_BYTES, self._root.name), data)
        self.keepers[-1].staged(self.id(name))
        return data

    def rung(self, step: int) -> rungs.CheckpointRung | None:
        told = [one for one in self.told if isinstance(one, rungs.CheckpointRung) and one.commit.step == step]
        return told[-1] if told else None

    def is_replicated(self, step: int, copies: int = 2) -> bool:
        told = self.rung(step)
        return told is not None and told.rung is Rung.REPLICATED and told.copies == copies

    def remove(self, name: str) -> None:
        self._cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def close(self) -> None:
        for keeper in self.keepers:
            keeper.close(keep=False)
        for name in list(self.nodes):
            self.remove(name)
        assert self.crashes == []


@pytest.fixture
def crew(hosts: Any, tmp_path: Path) -> Iterator[Crew]:
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(slots)
    crew = Crew(hosts, tmp_path)
    try:
        yield crew
    finally:
        crew.close()


def wait_until(is_so: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def pid_of(actor: Any) -> int:
    import ray

    return ray.get(actor.__ray_call__.options(concurrency_group="control").remote(lambda self: os.getpid()), timeout=30)


def test_a_copy_outlives_its_node_and_a_restarted_actor_is_filled_again(crew: Crew) -> None:
    keeper = crew.keeper()
    data = [crew.seal(key(1, 0, 2), "x"), crew.seal(key(1, 1, 2), "y")]
    wait_until(lambda: crew.is_replicated(1), f"step 1 was not replicated: {crew.told}")
    ladder = [told.rung for told in crew.told if isinstance(told, rungs.CheckpointRung)]
    assert ladder[-1] is Rung.REPLICATED and Rung.LOCAL in ladder
    here, there = keeper.inventory(crew.id("x"))
    assert (here.tier, there.tier) == (Tier.MEMORY, Tier.PEER)
    assert {one.shard for one in there.manifests()} == {0, 1}

    told = len(crew.told)
    pid = pid_of(there._actor)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(crew.told) > told and crew.is_replicated(1), "the restarted actor was not filled again")
    assert crew.told[told].rung is Rung.LOCAL, "its death was not noticed"
    assert pid_of(there._actor) != pid

    gone = crew.id("x")
    crew.remove("x")
    wait_until(lambda: crew.rung(1) is not None and bool(crew.rung(1).degraded or crew.rung(1).copies == 2), "no word")
    source = next(one for one in keeper.inventory(gone) if one.node == crew.id("y"))
    manifests = {one.shard: one for one in source.manifests()}
    for shard in (0, 1):
        manifest = manifests[shard]
        for number in range(len(manifest.chunks)):
            begin, end = manifest.chunk(number)
            read = source.read(manifest.key, begin, end)
            manifest.verify(number, read)
            assert np.array_equal(read, data[shard][begin:end])


def test_a_full_store_refuses_and_says_so_and_nothing_is_spilled(crew: Crew) -> None:
    from ray._private.internal_api import memory_summary

    keeper = crew.keeper()
    nbytes = 30 << 20  # the budget is 56 MiB
    for step in (1, 2):
        crew.seal(key(step, 0, 2), "x", nbytes)
        crew.seal(key(step, 1, 2), "y", CHUNK_BYTES)
        wait_until(lambda step=step: crew.rung(step) is not None and crew.rung(step).rung is Rung.REPLICATED, "stuck")
    assert crew.is_replicated(1) and not crew.rung(1).degraded
    assert "raise Checkpoint.peer_bytes" in crew.rung(2).degraded
    assert [told for told in crew.told if isinstance(told, rungs.Degraded)], "it was not said"
    held = next(one for one in keeper.inventory("") if one.node == crew.id("y")).manifests()
    assert {(one.commit.step, one.shard) for one in held} == {(1, 0), (1, 1), (2, 1)}
    assert "Spilled" not in memory_summary(stats_only=True)


def test_the_next_driver_takes_over_and_without_one_it_ends_by_itself(crew: Crew) -> None:
    import ray

    keeper = crew.keeper(memory_lease_s=2.0)
    crew.seal(key(1, 0, 2), "x")
    crew.seal(key(1, 1, 2), "y")
    wait_until(lambda: crew.is_replicated(1), "not replicated")
    assert len(keeper.inventory("")) == 2
    keeper.close(keep=True)
    assert len(keeper.inventory("")) == 2, "they ended with their driver"

    crew.told.clear()
    later = crew.keeper(incarnation=2, memory_lease_s=2.0)
    wait_until(lambda: crew.is_replicated(1), "the next driver did not find what was there")
    source = later.inventory("")[0]
    with pytest.raises(ray.exceptions.RayTaskError, match="incarnation 1 is not obeyed: one of 2 took over"):
        ray.get(source._actor.beat.options(concurrency_group="control").remote(1, []), timeout=30)
    later.close(keep=True)
    wait_until(lambda: keeper.inventory("") == [], "they outlived their lease", within_s=30)
