"""Effect. C7, C8: saving, copying, uploading, collecting, losing and going on, in any order, on real slots and stores.

After each move the newest step that the tiers still owe can be restored, by any number of readers, with its bytes.
"""

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from elastic.checkpoint import memory
from elastic.checkpoint.arena import Arena
from elastic.checkpoint.boxes import Want, plan
from elastic.checkpoint.catalog import Candidate, candidates
from elastic.checkpoint.manifest import Entry, Manifest, chunk_count
from elastic.checkpoint.node import Node
from elastic.checkpoint.reader import Effort, read, take_inventory
from elastic.checkpoint.source import Source, Tier
from elastic.checkpoint.stores import open_store
from elastic.checkpoint.vault import Vault
from elastic.checkpoint.vault_cleaning import collected
from elastic.checkpoint.vault_source import VaultSource
from elastic.control.values import CommitId, Fork
from elastic.settings import Keep

RUN, NODES, SIZE, CHUNK_BYTES = "night", 3, 640, 64
ONE_THREAD = Effort(threads=1, timeout_s=30.0)
NOTHING = -1


class Peer:
    """A node, as a source and as somebody to pull from."""

    tier = Tier.PEER

    gives_stored = False

    def __init__(self, node: Node) -> None:
        self.where, self.node = node.name, node

    def manifests(self, step: int | None = None) -> list[Manifest]:
        return self.node.manifests(step)

    def read(self, key: Any, begin: int, end: int) -> Any:
        return self.node.read(key, begin, end)

    def manifest(self, key: Any, timeout_s: float) -> Manifest:
        return self.node.manifest(key)

    def fetch(self, key: Any, begin: int, end: int, timeout_s: float) -> Any:
        return self.node.read(key, begin, end)


def cut(shards: int, shard: int) -> tuple[int, int]:
    return shard * SIZE // shards, (shard + 1) * SIZE // shards


class Tiers(RuleBasedStateMachine):
    """One worker a shard, the i-th on the i-th node; each save is of the next step.

    owed: the newest step that must be there: `local` as long as no node is lost, `copied` if one is, `durable` always.
    """

    @initialize(shards=st.integers(1, NODES))
    def begin(self, shards: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="machine-", dir="/dev/shm"))
        self.truth: dict[tuple[int, str], Any] = {}
        self.local = self.copied = self.durable = self.step = NOTHING
        self.generation = self.made = 0
        self.forks: tuple[Fork, ...] = ()
        self.arenas: list[Arena] = []
        self.nodes = [self.new_node(number) for number in range(NODES)]
        self.shards = shards
        self.live()

    def teardown(self) -> None:
        for arena in getattr(self, "arenas", []):
            arena.close()
        if hasattr(self, "root"):
            shutil.rmtree(self.root)

    # --- what happens ---

    @rule()
    def save(self) -> None:
        """Staged and sealed by all, or, where a slot is held, by none."""
        commit = self.next_commit()
        state = np.random.default_rng(self.made).integers(0, 256, SIZE, dtype=np.uint8)
        parts = [state[slice(*cut(self.shards, shard))] for shard in range(self.shards)]
        slots = [arena.begin(len(part)) for arena, part in zip(self.arenas, parts, strict=True)]
        for shard, (slot, part) in enumerate(zip(slots, parts, strict=True)):
            if slot is None or None in slots:
                if slot is not None:
                    slot.abandon()
                continue
            slot.payload[: len(part)] = part
            self.arenas[shard].seal(slot, self.manifest(commit, shard, slot.payload[: len(part)]))
        self.step = commit.step
        if None not in slots:
            self.truth[commit.step, commit.lineage] = state
            self.local = commit.step

    @rule(shard=st.integers(0, NODES - 1))
    def crash_while_saving(self, shard: int) -> None:
        """A worker dies with a slot half written; the next one on its node takes up its place."""
        shard %= self.shards
        slot = self.arenas[shard].begin(SIZE)
        if slot is not None:
            slot.payload[: SIZE // 2] = 0xEE
        self.arenas[shard].close()
        self.arenas[shard] = self.new_arena(shard)
        memory.reclaim(self.nodes[shard % NODES][0], RUN)

    @precondition(lambda self: self.local > NOTHING)
    @rule()
    def replicate(self) -> None:
        """Each shard of the newest step in memory is copied to one more node; then older copies go."""
        newest = self.newest(self.peers())
        keys = {holders[0].manifest.key for holders in newest.shards}
        for _, node in self.nodes:
            node.pin(keys)
        for holders in newest.shards:
            there = {holder.source.where for holder in holders}
            taker = next((node for _, node in self.nodes if node.name not in there), None)
            if len(there) == 1 and taker is not None:
                taker.pull(holders[0].manifest.key, [Peer(n) for _, n in self.nodes if n.name in there])
        for _, node in self.nodes:
            for one in node.holding().copies:
                if not any(one.is_same(key) for key in keys):
                    node.drop(one)
        self.copied = newest.commit.step

    @precondition(lambda self: self.local > NOTHING)
    @rule(is_whole=st.booleans())
    def upload(self, is_whole: bool) -> None:
        """One that breaks off leaves shards without a COMMIT."""
        newest = self.newest(self.peers())
        digests = []
        for holders in newest.shards[: None if is_whole else 1]:
            holder = holders[0]
            key = holder.manifest.key
            digests.append(self.vault.upload(holder.manifest, lambda a, b, h=holder, k=key: h.source.read(k, a, b)))
        if is_whole:
            self.vault.commit(newest.commit, digests)
            self.durable = max(self.durable, newest.commit.step)

    @rule(number=st.integers(0, NODES - 1))
    def prefetch(self, number: int) -> None:
        """The best step there is comes to a node, as for a restore."""
        durable, node = VaultSource(self.vault), self.nodes[number][1]
        others: list[Any] = [Peer(other) for _, other in self.nodes if other is not node]
        for one in self.found([*self.peers(), durable])[:1]:
            node.expect(one.manifests)
            for manifest in one.manifests:
                node.fill(manifest.key, [*others, durable])
        durable.close()

    @rule(last=st.integers(1, 2))
    def collect(self, last: int) -> None:
        collected(self.vault, Keep(last=last))

    @rule(number=st.integers(0, NODES - 1), shards=st.integers(1, NODES))
    def lose_a_node(self, number: int, shards: int) -> None:
        """With its slots and copies; a blank one comes, and the run goes on from what is left."""
        shutil.rmtree(self.nodes[number][0])
        self.nodes[number] = self.new_node(number)
        self.local, self.copied = self.copied, NOTHING
        self.go_on(shards, is_new_life=False)

    @rule(shards=st.integers(1, NODES))
    def all_workers_die(self, shards: int) -> None:
        self.go_on(shards, is_new_life=False)

    @rule(shards=st.integers(1, NODES))
    def begin_another_life(self, shards: int) -> None:
        self.go_on(shards, is_new_life=True)

    # --- what must hold ---

    @invariant()
    def what_is_owed_can_be_restored(self) -> None:
        owed = max(self.local, self.copied, self.durable)
        durable = VaultSource(self.vault)
        found = self.found([*self.peers(), durable])
        try:
            assert owed == NOTHING or (found and found[0].commit.step >= owed), (owed, found[:1])
            for one in found[:1]:
                for readers in (1, 2):
                    self.assert_right(one, readers)
        finally:
            durable.close()

    def assert_right(self, one: Candidate, readers: int) -> None:
        truth = self.truth[one.commit.step, one.commit.lineage]
        for reader in range(readers):
            begin, end = cut(readers, reader)
            want = Want(path="/x", dtype="uint8", whole=(SIZE,), box=((begin,), (end,)))
            into = np.zeros(end - begin, dtype=np.uint8)
            read(one, plan([want], one.manifests), [into], ONE_THREAD)
            assert np.array_equal(into, truth[begin:end])

    # --- helpers ---

    def go_on(self, shards: int, is_new_life: bool) -> None:
        """From the best step there is; all that came after it is void."""
        found = self.found([*self.peers(), VaultSource(self.vault)])
        self.step = found[0].commit.step if found else NOTHING
        if is_new_life:
            self.live()
        self.generation += 1
        fork = Fork(incarnation=self.vault.incarnation, generation=self.generation, step=self.step)
        self.vault.fork(fork)
        self.forks = (*self.forks, fork)
        self.start_workers(shards)

    def live(self) -> None:
        """A life of the driver begins."""
        self.vault = Vault(open_store(str(self.root / "store")), RUN, threads=1)
        self.vault.register("test")
        self.generation = 0
        if self.vault.incarnation == 1:
            self.generation = 1
            self.vault.fork(Fork(incarnation=1, generation=1, step=NOTHING))
            self.start_workers(self.shards)

    def start_workers(self, shards: int) -> None:
        for arena in self.arenas:
            arena.close()
        self.shards = shards
        self.arenas = [self.new_arena(shard) for shard in range(shards)]

    def new_arena(self, shard: int) -> Arena:
        self.made += 1
        return Arena(self.nodes[shard][0], RUN, self.vault.incarnation, f"w{self.made}")

    def new_node(self, number: int) -> tuple[Path, Node]:
        folder = self.root / f"node{number}"
        folder.mkdir()
        source = memory.MemorySource(folder, RUN, where=f"node{number}")
        return folder, Node(f"node{number}", source, 1 << 20, lambda array: (None, np.array(array)), CHUNK_BYTES)

    def peers(self) -> list[Source]:
        return [Peer(node) for _, node in self.nodes]

    def found(self, sources: list[Source]) -> tuple[Candidate, ...]:
        return candidates(take_inventory(sources).holders, RUN, self.vault.forks())

    def newest(self, sources: list[Source]) -> Candidate:
        return self.found(sources)[0]

    def next_commit(self) -> CommitId:
        self.made += 1
        which = {"incarnation": self.vault.incarnation, "generation": self.generation, "attempt": 0}
        return CommitId(**which, step=self.step + 1, lineage=f"l{self.made}")

    def manifest(self, commit: CommitId, shard: int, payload: Any) -> Manifest:
        begin, end = cut(self.shards, shard)
        entry = Entry(path="/x", dtype="uint8", shape=(end - begin,), begin=0, nbytes=end - begin)
        count = chunk_count(len(payload), CHUNK_BYTES)
        sums = [google_crc32c.value(payload[n * CHUNK_BYTES : (n + 1) * CHUNK_BYTES]) for n in range(count)]
        return Manifest(
            run=RUN,
            commit=commit,
            shard=shard,
            shards=self.shards,
            layout="",
            skeleton="{}",
            entries=(replace(entry, whole=(SIZE,), at=(begin,)),),
            nbytes=len(payload),
            chunks=tuple(sums),
            chunk_bytes=CHUNK_BYTES,
            forks=self.forks,
        )


def played(examples: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # nothing here cuts the power
    health = list(HealthCheck)
    options = settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=health)
    run_state_machine_as_test(Tiers, settings=options)


def test_c07_c08_what_is_owed_can_be_restored_at_all_times(monkeypatch: pytest.MonkeyPatch) -> None:
    played(30, 25, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_c07_c08_what_is_owed_can_be_restored_in_many_stories(monkeypatch: pytest.MonkeyPatch) -> None:
    played(200, 40, monkeypatch)
