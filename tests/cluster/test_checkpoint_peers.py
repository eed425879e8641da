"""Effect. Copies on other nodes: they outlive the node they came from, an actor's death, and a store that is full."""

import functools
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastic.checkpoint import rungs
from elastic.checkpoint.arena import Arena
from elastic.checkpoint.catalog import candidates
from elastic.checkpoint.disk import Disk
from elastic.checkpoint.manifest import ShardKey
from elastic.checkpoint.memory import MemorySource, scan
from elastic.checkpoint.reader import take_inventory
from elastic.checkpoint.records import name_of, parse_name
from elastic.checkpoint.rungs import Rung
from elastic.checkpoint.source import Tier
from elastic.checkpoint.vault import open_vault
from elastic.checkpoint.vault_source import VaultSource
from elastic.control import events as ev
from elastic.settings import Checkpoint, Interval, RunSettings
from tests.effects import shards
from tests.effects.shards import key

pytestmark = pytest.mark.timeout(400)

STORE_BYTES = 80 << 20
CHUNK_BYTES = 1 << 20
BEAT_S = 0.3


def disk_of(root: Path, run: str, node: str) -> Disk:
    return Disk(root / f"disk-{node}", run, f"disk of node {node[:12]}")


def slots_of(root: Path, run: str, node: str) -> MemorySource:
    return MemorySource(root / node, run)


class Crew:
    """Nodes of their own, x and y if nothing else is said, with a keeper; `told` is what the journal would get."""

    def __init__(self, cluster: Any, root: Path, names: str = "xy") -> None:
        self._cluster, self._root = cluster, root
        self.told, self.crashes, self.keepers = [], [], []
        self.arenas: dict[str, Arena] = {}
        self.nodes: dict[str, Any] = {}
        for name in names:
            self.add(name)

    def add(self, name: str, **labels: str) -> None:
        self.nodes[name] = self._cluster.add_node(num_cpus=0, object_store_memory=STORE_BYTES, labels=labels or None)

    def id(self, name: str) -> str:
        return self.nodes[name].node_id

    def keeper(self, incarnation: int = 1, has_disks: bool = False, on: str = "xy", **checkpoint: Any) -> Any:
        from elastic.actors.keeper import Keeper

        tiers = Checkpoint(memory=str(self._root), **{"peers": 1, **checkpoint})
        settings = RunSettings(run=self._root.name, checkpoint=tiers, incarnation=incarnation)
        memory = functools.partial(slots_of, self._root, self._root.name)
        disk = functools.partial(disk_of, self._root, self._root.name) if has_disks else None
        keeper = Keeper(settings, self._tell, self.crashes.append, memory=memory, disk=disk, beat_s=BEAT_S)
        self.keepers.append(keeper)
        keeper.homes({shard: {self.id(name)} for shard, name in enumerate("xy") if name in on})
        return keeper

    def _tell(self, told: Any) -> None:
        if not isinstance(told, ev.Logged):
            self.told.append(told)

    def arena(self, name: str) -> Arena:
        """Of the one worker on this node; a folder is a node's memory, since all nodes share this machine."""
        if name not in self.arenas:
            folder = self._root / self.id(name)
            folder.mkdir(exist_ok=True)
            self.arenas[name] = Arena(folder, self._root.name, 1, "w")
        return self.arenas[name]

    def seal(self, of: ShardKey, name: str, nbytes: int = 5 * CHUNK_BYTES + 77) -> Any:
        data, arena = shards.payload(of, nbytes), self.arena(name)
        slot = arena.begin(nbytes)
        assert slot is not None
        slot.payload[:nbytes] = data
        arena.seal(slot, shards.manifest(of, data, CHUNK_BYTES, self._root.name))
        staged = ev.ShardStaged(worker="w", commit=of.commit, nbytes=nbytes, shard=of.shard, shards=of.shards)
        self.keepers[-1].staged(self.id(name), staged)
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
        for arena in self.arenas.values():
            arena.close()
        for name in list(self.nodes):
            self.remove(name)
        assert self.crashes == []


@contextmanager
def gathered(hosts: Any, root: Path, names: str = "xy") -> Iterator[Crew]:
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    crew = Crew(hosts, root, names)
    try:
        yield crew
    finally:
        crew.close()


@pytest.fixture
def crew(hosts: Any, tmp_path: Path) -> Iterator[Crew]:
    with gathered(hosts, tmp_path) as crew:
        yield crew


def wait_until(is_so: Callable[[], bool], what: str, within_s: float = 150.0, seen: object = None) -> None:
    deadline_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline_s, (what, seen)
        time.sleep(0.05)


def pid_of(actor: Any) -> int:
    import ray

    return ray.get(actor.__ray_call__.options(concurrency_group="control").remote(lambda self: os.getpid()), timeout=30)


def spilled_bytes(asked: str) -> int:
    """By all stores of the cluster; node `asked` collects the answers."""
    import ray
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    node = next(one for one in ray.nodes() if one["NodeID"] == asked)
    state = get_state_from_address(ray.get_runtime_context().gcs_address)
    reply = get_memory_info_reply(state, node["NodeManagerAddress"], node["NodeManagerPort"])
    assert reply.store_stats.object_store_bytes_used > 0, "it knows of no store"
    return reply.store_stats.spilled_bytes_total


def store_of(node: str) -> Any:
    """What one node tells of its store: spilled_bytes_total, object_store_bytes_used."""
    import ray
    from ray._private.internal_api import node_stats

    known = next(one for one in ray.nodes() if one["NodeID"] == node)
    return node_stats(known["NodeManagerAddress"], known["NodeManagerPort"], include_memory_info=False).store_stats


def test_actors_begin_where_workers_are_loaded_before_these_have_homes(crew: Crew) -> None:
    keeper = crew.keeper(on="")
    keeper.expect(crew.id("y"))
    wait_until(lambda: keeper.inventory(crew.id("y")), "no actor was begun")
    assert [(one.node, one.tier) for one in keeper.inventory(crew.id("y"))] == [(crew.id("y"), Tier.MEMORY)]


def test_c17_a_copy_outlives_its_node_and_a_restarted_actor_is_filled_again(crew: Crew) -> None:
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


def test_c17_an_actor_that_will_not_be_restarted_is_replaced(crew: Crew) -> None:
    """It ended by itself, since its driver was stopped for longer than a lease; or somebody has killed it for good."""
    import ray

    keeper = crew.keeper()
    crew.seal(key(1, 0, 2), "x"), crew.seal(key(1, 1, 2), "y")
    wait_until(lambda: crew.is_replicated(1), f"step 1 was not replicated: {crew.told}")
    gone = next(one for one in keeper.inventory("") if one.node == crew.id("y"))
    pid, told = pid_of(gone._actor), len(crew.told)
    ray.kill(gone._actor, no_restart=True)
    wait_until(lambda: len(crew.told) > told and crew.is_replicated(1), f"nobody came in its place: {crew.told[told:]}")
    there = next(one for one in keeper.inventory("") if one.node == crew.id("y"))
    assert pid_of(there._actor) != pid


def test_a_disk_that_cannot_be_used_costs_its_node_no_other_tier(crew: Crew, tmp_path: Path) -> None:
    (tmp_path / f"disk-{crew.id('x')}").write_text("a file where a folder should be")
    crew.keeper(has_disks=True)
    crew.seal(key(1, 0, 2), "x"), crew.seal(key(1, 1, 2), "y")
    wait_until(lambda: crew.is_replicated(1), f"step 1 was not replicated: {crew.told}")
    wait_until(lambda: any(isinstance(told, rungs.Degraded) and told.rung == "disk" for told in crew.told), "not told")


def test_a_full_store_refuses_and_says_so_and_nothing_is_spilled(crew: Crew) -> None:
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
    assert spilled_bytes(crew.id("y")) == 0


def test_a_node_that_is_full_gives_to_several_at_once_spills_nothing_and_keeps_nothing_of_it(
    hosts: Any, tmp_path: Path
) -> None:
    """What it gives lies in its own store until Ray has brought it over, beside the copies that it has taken."""
    import ray

    with gathered(hosts, tmp_path, "xyz") as crew:
        keeper = crew.keeper(peers=0)
        keeper.homes({shard: {crew.id(name)} for shard, name in enumerate("xyz")})
        wait_until(lambda: len(keeper.inventory("")) == 3, "no actors")
        at = {name: next(one for one in keeper.inventory("") if one.node == crew.id(name)) for name in "xyz"}

        def pull(of: ShardKey, giver: str, taker: str) -> Any:
            return at[taker]._actor.pull.options(concurrency_group="pull").remote(1, of, [at[giver]])

        held, given = key(1, 0, 3), [key(1, 1, 3), key(1, 2, 3)]
        crew.seal(held, "y", 52 * CHUNK_BYTES)
        assert ray.get(pull(held, "y", "x"), timeout=60).reason == ""
        for of in given:
            crew.seal(of, "x", 20 * CHUNK_BYTES)
        answers = ray.get([pull(of, "x", taker) for of in given for taker in "yz"], timeout=60)
        assert [(one.reason, one.nbytes) for one in answers] == [("", 20 * CHUNK_BYTES)] * 4
        told = {name: store_of(crew.id(name)) for name in "xyz"}
        assert {name: one.spilled_bytes_total for name, one in told.items()} == dict.fromkeys("xyz", 0)
        wait_until(lambda: store_of(crew.id("x")).object_store_bytes_used < 53 * CHUNK_BYTES, "it keeps what it gave")
        assert store_of(crew.id("z")).object_store_bytes_used > 40 * CHUNK_BYTES


def left_behind(root: Path) -> None:
    """Slots of a worker that is gone, one of them sealed, where the settings say that slots are."""
    arena, data = Arena(root, root.name, 1, "gone"), shards.payload(key(1), CHUNK_BYTES)
    slot = arena.begin(len(data))
    assert slot is not None
    slot.payload[: len(data)] = data
    arena.seal(slot, shards.manifest(key(1), data, CHUNK_BYTES, root.name))
    arena.close()
    assert scan(root, root.name)


def test_the_next_driver_takes_over_and_without_one_it_ends_by_itself(crew: Crew, tmp_path: Path) -> None:
    import ray

    keeper = crew.keeper(memory_lease_s=60.0)
    left_behind(tmp_path)
    crew.seal(key(1, 0, 2), "x")
    crew.seal(key(1, 1, 2), "y")
    wait_until(lambda: crew.is_replicated(1), "not replicated")
    assert len(keeper.inventory("")) == 2
    keeper.close(keep=True)
    assert len(keeper.inventory("")) == 2, "they ended with their driver"

    crew.told.clear()
    later = crew.keeper(incarnation=2, memory_lease_s=8.0)
    wait_until(lambda: crew.is_replicated(1), "the next driver did not find what was there")
    source = later.inventory("")[0]
    with pytest.raises(ray.exceptions.RayTaskError, match="incarnation 1 is not obeyed: one of 2 took over"):
        ray.get(source._actor.beat.options(concurrency_group="control").remote(1, []), timeout=30)
    keeper.close(keep=False)
    assert scan(tmp_path, tmp_path.name) and len(later.inventory("")) == 2, "they obey the newer driver"
    later.close(keep=True)
    wait_until(lambda: keeper.inventory("") == [], "they outlived their lease")
    assert list(tmp_path.glob("*.slot")) == [], "slots have outlived the lease"


def test_what_an_earlier_life_has_left_on_other_nodes_goes_with_the_run(crew: Crew, tmp_path: Path) -> None:
    """The driver of the first one was killed; the second one needs one of its two nodes."""
    first = crew.keeper(peers=0)
    left_behind(tmp_path)
    wait_until(lambda: len(first.inventory("")) == 2, "no actors")
    assert [list(one.manifests()) for one in first.inventory("")] == [[], []], "both have begun"
    first.close(keep=True)
    second = crew.keeper(incarnation=2, peers=0, on="x")
    second.close(keep=False)
    wait_until(lambda: second.inventory("") == [], "an actor of the first life lives")
    assert list(tmp_path.glob("*.slot")) == []


def test_what_is_staged_becomes_durable_and_its_slot_is_kept_until_the_next_one(crew: Crew, tmp_path: Path) -> None:
    url, run = str(tmp_path / "store"), tmp_path.name
    open_vault(url, run).register("test")
    torn = (
        tmp_path / "store" / run / "steps" / name_of(key(99).commit) / "shard-00000-of-00001" / "chunk-000000-00000000"
    )
    torn.parent.mkdir(parents=True)
    torn.write_text("of an uploader that was killed an hour ago")
    os.utime(torn, (time.time() - 3600,) * 2)
    crew.keeper(persistent=url, persistent_interval=Interval(steps=1))
    data = {}
    for step in (1, 2, 3, 4, 5):  # more than there are slots
        data |= {(step, 0): crew.seal(key(step, 0, 2), "x"), (step, 1): crew.seal(key(step, 1, 2), "y")}
        wait_until(lambda step=step: crew.rung(step) is not None and crew.rung(step).rung >= Rung.REPLICATED, "stuck")
        assert {one.manifest.commit.step for one in scan(tmp_path / crew.id("x"), run)} >= {step}
    wait_until(lambda: crew.rung(5).rung is Rung.DURABLE, f"step 5 is not durable: {crew.told[-5:]}")
    chosen = rungs.UploadInterval(reason="set to every 1 steps")
    wait_until(lambda: crew.told.count(chosen) == 1, f"nobody was told how often: {crew.told[-5:]}")
    source = VaultSource(open_vault(url, run))
    newest = source.manifests()[0]
    assert newest.commit.same_state(key(5).commit)
    read = np.frombuffer(bytes(source.read(newest.key, 0, newest.nbytes)), dtype=np.uint8)
    assert np.array_equal(read, data[5, newest.shard])
    source.close()
    wait_until(lambda: not torn.exists(), "what was left behind is still there")


def test_more_shards_than_are_uploaded_at_once_outlast_their_slots(hosts: Any, tmp_path: Path) -> None:
    """One node, as with eight GPUs and one replica; steps are staged over all slots while the store is slow."""
    url, run, shards_here, nbytes = str(tmp_path / "store"), tmp_path.name, 6, 2 * CHUNK_BYTES
    vault = open_vault(url, run)
    vault.register("test")
    with gathered(hosts, tmp_path, "x") as crew:
        every = Interval(steps=1000)
        keeper = crew.keeper(on="x", persistent=url, persistent_interval=every, upload_bytes_per_s=1 << 19)
        node, folder = crew.id("x"), tmp_path / crew.id("x")
        keeper.homes({shard: {node} for shard in range(shards_here)})
        folder.mkdir()
        arenas = [Arena(folder, run, 1, f"w{shard}") for shard in range(shards_here)]

        def seal(step: int, shard: int) -> bool:
            of, slot = key(step, shard, shards_here), arenas[shard].begin(nbytes)
            if slot is None:
                return False
            data = shards.payload(of, nbytes)
            slot.payload[:nbytes] = data
            arenas[shard].seal(slot, shards.manifest(of, data, CHUNK_BYTES, run))
            staged = ev.ShardStaged(worker="w", commit=of.commit, nbytes=nbytes, shard=shard, shards=shards_here)
            keeper.staged(node, staged)
            return True

        def of_first() -> int:
            return sum(one.manifest.commit.step == 1 for one in scan(folder, run))

        for step in itertools.count(1):
            for shard in range(shards_here):
                wait_until(functools.partial(seal, step, shard), f"no slot for step {step}", seen=crew.told)
            wait_until(lambda step=step: crew.rung(step) is not None, f"step {step} is not told of")
            wait_until(lambda: any((tmp_path / "store" / run / "leases").glob("*")), "nothing is uploaded")
            assert not vault.commits(), "it is durable, and no slot of it was written anew while it was sent"
            if of_first() < shards_here:
                break
        wait_until(lambda: any(one.commit.step == 1 for one in vault.commits()), "it is not durable", seen=crew.told)
        assert [one.reason for one in crew.told if isinstance(one, rungs.Degraded) and one.rung == "durable"] == []
        for arena in arenas:
            arena.close()


def test_a_persistent_tier_that_fails_is_told_of_and_that_it_works_again(crew: Crew, tmp_path: Path) -> None:
    url, run = str(tmp_path / "store"), tmp_path.name
    open_vault(url, run).register("test")
    in_the_way = tmp_path / "store" / run / "steps"
    in_the_way.write_text("no directory")
    crew.keeper(persistent=url, persistent_interval=Interval(steps=1))

    def told() -> list[str]:
        return [one.reason for one in crew.told if isinstance(one, rungs.Degraded) and one.rung == "durable"]

    crew.seal(key(1, 0, 2), "x")
    crew.seal(key(1, 1, 2), "y")
    wait_until(lambda: len(told()) == 1, "nobody was told")
    assert "cannot" in told()[0], told()
    in_the_way.unlink()
    crew.seal(key(2, 0, 2), "x")
    crew.seal(key(2, 1, 2), "y")
    wait_until(lambda: crew.rung(2) is not None and crew.rung(2).rung is Rung.DURABLE, "step 2 is not durable")
    wait_until(lambda: len(told()) == 2, "nobody was told that it is over")
    assert told()[1] == ""


@pytest.mark.parametrize(
    "is_under_way",
    [
        pytest.param(True, id="its upload has begun", marks=pytest.mark.slow),
        pytest.param(False, id="its upload is not due"),
    ],
)
def test_what_is_handed_over_becomes_durable_without_a_keeper(crew: Crew, tmp_path: Path, is_under_way: bool) -> None:
    url, run = str(tmp_path / "store"), tmp_path.name
    vault = open_vault(url, run)
    vault.register("test")
    slowly = {"upload_bytes_per_s": 1 << 20} if is_under_way else {}
    keeper = crew.keeper(persistent=url, persistent_interval=Interval(steps=1000), **slowly)

    def has_begun(step: int) -> bool:
        names = (parse_name(path.name) for path in (tmp_path / "store" / run / "leases").glob("*"))
        return any(commit is not None and commit.step == step for commit in names)

    def is_durable(step: int) -> bool:
        return any(one.commit.step == step for one in vault.commits())

    def seal(step: int) -> None:
        crew.seal(key(step, 0, 2), "x")
        crew.seal(key(step, 1, 2), "y")

    seal(1)
    if is_under_way:
        wait_until(lambda: has_begun(1), "the first step is uploaded at once")
    else:
        wait_until(lambda: is_durable(1), "the first step is not uploaded", seen=crew.told)
        seal(2)
        wait_until(lambda: crew.rung(2) is not None and crew.rung(2).rung >= Rung.LOCAL, "step 2 is not whole")
    last = 1 if is_under_way else 2
    for pid in (pids := [pid_of(one._actor) for one in keeper.inventory(crew.id("x"))]):
        os.kill(pid, signal.SIGSTOP)  # until the keeper has left, however long that takes
    try:
        keeper.hand_over("the run exits")
        keeper.close(keep=True)
        assert len(pids) == 2 and not is_durable(last), "it was durable before the keeper had left"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    there = f"{vault.uploaded(key(last).commit, 2)} was there when the keeper left"
    wait_until(lambda: is_durable(last), f"nobody commits it; {there}", seen=crew.told)


def test_what_is_restored_is_waited_for_while_it_comes_and_passed_on(crew: Crew, tmp_path: Path) -> None:
    import ray

    from elastic.actors.prefetcher import Aim

    url, run, data = str(tmp_path / "store"), tmp_path.name, shards.payload(key(1), 5 * CHUNK_BYTES + 77)
    manifest, vault = shards.manifest(key(1), data, CHUNK_BYTES, run), open_vault(url, run)
    vault.register("test")
    vault.commit(key(1).commit, [vault.upload(manifest, lambda begin, end: data[begin:end])])
    keeper = crew.keeper(persistent=url)
    wait_until(lambda: len(keeper.inventory("")) == 2, "no actors")
    x, y = keeper.inventory("")
    ray.get(x._actor.expect.options(concurrency_group="control").remote(1, [manifest]), timeout=30)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(x.read, manifest.key, 0, manifest.nbytes)
        time.sleep(1.0)  # the actor has answered several times that it is on its way
        assert not read.done()
        (candidate,) = candidates(take_inventory([VaultSource(vault)]).holders, run)
        keeper.prefetch(Aim(candidate=candidate, width=1, homes={x.node: {0}, y.node: {0}}))
        assert np.array_equal(read.result(60), data)
    wait_until(lambda: len(y.manifests(1)) == 1, "it was not passed on")
    assert np.array_equal(y.read(manifest.key, 0, manifest.nbytes), data)
    time.sleep(2 * BEAT_S)  # both tell what they hold
    told = {one.node: one.sources for one in crew.told if isinstance(one, rungs.Prefetch)}
    assert set(told) == {x.node, y.node} and sorted(len(sources[0]) for sources in told.values()) == [0, 1]
    assert crew.rung(1) is None, "it counts as a copy"


def test_what_is_on_disks_outlives_memory_and_actors_of_all_nodes(crew: Crew, tmp_path: Path) -> None:
    """Both nodes are booted anew, as far as tests can: slots, copies and actors are gone, and only disks are left."""
    keeper, data = crew.keeper(has_disks=True, peers=0), {}

    def on_disk() -> list[int]:
        return [told.commit.step for told in crew.told if isinstance(told, rungs.DiskStep)]

    for step in (1, 2, 3):
        data[0], data[1] = crew.seal(key(step, 0, 2), "x"), crew.seal(key(step, 1, 2), "y")
        wait_until(lambda step=step: step in on_disk(), f"step {step} is not on the disks: {crew.told}")
    left = {name: tmp_path / f"disk-{crew.id(name)}" / tmp_path.name / "steps" for name in "xy"}
    wait_until(lambda: all(len(list(one.iterdir())) == 2 for one in left.values()), "step 1 stays")
    keeper.close(keep=False)
    for name, arena in crew.arenas.items():
        arena.close()
        for slot in (tmp_path / crew.id(name)).glob("*.slot"):
            slot.unlink()
    wait_until(lambda: keeper.inventory("") == [], "the actors live")
    later = crew.keeper(incarnation=2, has_disks=True, peers=0)
    wait_until(lambda: len(later.inventory("")) == 2, "no new actors")
    sources = {one.node: one for one in later.inventory("")}
    for shard, name in enumerate("xy"):
        manifests = sources[crew.id(name)].manifests()
        assert [(one.commit.step, one.shard) for one in manifests] == [(3, shard), (2, shard)]
        read = sources[crew.id(name)].read(manifests[0].key, 0, manifests[0].nbytes)
        assert np.array_equal(read, data[shard])
    near = next(one for one in later.inventory(crew.id("x")) if one.tier is Tier.MEMORY)
    assert near.manifests() == [], "whoever is on the node reads its disk by itself"
    (candidate, *_) = candidates(take_inventory(list(sources.values())).holders, tmp_path.name)
    assert candidate.commit.step == 3
