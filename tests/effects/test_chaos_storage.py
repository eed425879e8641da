"""Effect. Faults of what is stored: a bit flips, a disk is full, storage fails; each is seen for what it is."""

import errno
import os
from collections import Counter

import numpy as np
import pytest

from elastic.chaos import disk, shards, storage
from elastic.chaos.aftermath import Aftermath, CannotStrikeError
from elastic.chaos.striking import Scene, strike
from elastic.checkpoint.arena import Arena
from elastic.checkpoint.memory import MemorySource
from elastic.checkpoint.reader import Effort, check
from elastic.checkpoint.store import StoreError
from elastic.checkpoint.stores import open_store
from elastic.checkpoint.stores.faulty import FaultyStore, struck_file, turn_off, turn_on
from elastic.checkpoint.vault import Vault
from elastic.control.faults import Fault, FaultKind
from elastic.train.flight import storage_switch
from tests.effects.helpers import LONG_S, Running, eventually
from tests.effects.shelves import RUN, numbers, of, shard_of
from tests.effects.store_parts import opened_store
from tests.effects.tmpfs import mounted
from tests.effects.vault_parts import made_durable, what_is_read

EFFORT = Effort(timeout_s=LONG_S, knob="a test")


@pytest.fixture
def aftermath():
    aftermath = Aftermath()
    yield aftermath
    aftermath.close()


# --- bits -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def slots(tmp_path):
    """Two sealed steps of one shard."""
    arena = Arena(tmp_path, RUN, 1, "w0")
    for step in (6, 7):
        manifest, payload = shard_of({"weight": numbers(40, 9), "bias": numbers(3)}, step)
        slot = arena.begin(manifest.nbytes)
        slot.payload[: manifest.nbytes] = payload
        arena.seal(slot, manifest)
    yield tmp_path
    arena.close()


def payload_in(folder, step):
    source = MemorySource(folder, RUN)
    (manifest,) = source.manifests(step)
    return manifest, np.array(source.read(manifest.key, 0, manifest.nbytes))


@pytest.mark.parametrize("seed", range(5))
def test_one_bit_of_a_tensor_flips_in_the_newest_slot_and_a_reader_refuses_it(slots, seed):
    older, (manifest, before) = payload_in(slots, 6)[1], payload_in(slots, 7)
    proof = shards.flip_in_memory(slots, RUN, seed)
    after = payload_in(slots, 7)[1]
    (byte,) = np.flatnonzero(before != after)
    assert bin(before[byte] ^ after[byte]).count("1") == 1
    assert any(entry.begin <= byte < entry.begin + entry.nbytes for entry in manifest.entries)
    assert f"shard 0 of step 7 in {slots}" in proof
    assert proof.endswith(f"byte {byte} was {before[byte]:#04x} and is {after[byte]:#04x}")
    assert np.array_equal(older, payload_in(slots, 6)[1])
    (newest, other) = of(MemorySource(slots, RUN))
    assert check(newest.shards[0][0], True, EFFORT) and not check(other.shards[0][0], True, EFFORT)


def test_another_seed_flips_another_bit(slots):
    assert len({shards.flip_in_memory(slots, RUN, seed).partition("byte")[2] for seed in range(8)}) == 8


def test_where_nothing_is_sealed_nothing_can_flip(tmp_path):
    with pytest.raises(CannotStrikeError, match="holds no sealed snapshot of the run night"):
        shards.flip_in_memory(tmp_path, "night", 0)


@pytest.mark.parametrize("kind", ["directory", "memory", "gcs"])
def test_one_bit_flips_in_the_persistent_tier_and_a_reader_refuses_it(kind, tmp_path, monkeypatch):
    with opened_store(kind, tmp_path, monkeypatch) as store:
        with pytest.raises(CannotStrikeError, match="holds no chunk of the run night-1 yet"):
            shards.flip_in_store(store, "night-1", 3)
        vault = Vault(store, "night-1", threads=2)
        vault.register("a test")
        for step in (4, 5):
            made_durable(vault, step)
        before = {item.key: store.read(item.key) for item in store.list("night-1/")}
        proof = shards.flip_in_store(store, "night-1", 3)
        after = {item.key: store.read(item.key) for item in store.list("night-1/")}
        (key,) = [key for key in before if before[key] != after[key]]
        assert key in proof and before.keys() == after.keys() and "/chunk-" in key
        assert key.split("/")[2] == max(one.split("/")[2] for one in before if "/steps/" in one)
        assert what_is_read(vault) == {4: "whole", 5: "CorruptError"}


# --- room -------------------------------------------------------------------------------------------------------------


def test_a_disk_is_full_until_the_fault_is_over(tmp_path, aftermath):
    with mounted(tmp_path, "1m") as tiny:
        proof = disk.fill(tiny, aftermath, lasts_s=1000.0)
        assert "No space left on device" in proof and str(tiny) in proof
        with pytest.raises(OSError) as caught:
            (tiny / "more").write_bytes(bytes(100_000))
        assert caught.value.errno == errno.ENOSPC
        aftermath.close()
        (tiny / "more").write_bytes(bytes(100_000))
        assert os.listdir(tiny) == ["more"]


def test_a_full_disk_is_free_again_after_its_time(tmp_path, aftermath):
    with mounted(tmp_path, "1m") as tiny:
        disk.fill(tiny, aftermath, lasts_s=0.3)
        eventually(lambda: os.statvfs(tiny).f_bavail, "there is room again")


def test_memory_is_not_filled_where_that_could_end_the_machine(tmp_path, aftermath, monkeypatch):
    monkeypatch.setattr(disk, "_available_bytes", lambda: 1 << 20)
    with mounted(tmp_path, "1m") as tiny, pytest.raises(CannotStrikeError, match="could bring this machine down"):
        disk.fill(tiny, aftermath, lasts_s=1.0)


def test_what_is_no_directory_cannot_be_filled(tmp_path, aftermath):
    with pytest.raises(CannotStrikeError, match="is no directory on this node"):
        disk.fill(tmp_path / "nowhere", aftermath, lasts_s=1.0)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    store = FaultyStore(open_store(str(tmp_path / "store")), tmp_path / "run-faults.page")
    store.create("night/one", b"1")
    yield store
    store.close()


CALLS = {
    "create": lambda store: store.create("night/two", b"2"),
    "put": lambda store: store.put("night/LATEST", b"2"),
    "read": lambda store: store.read("night/one"),
    "list": lambda store: list(store.list("night/")),
    "delete": lambda store: store.delete("night/two"),
    "sweep": lambda store: store.sweep("night/", 0.0),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_fails_while_the_switch_is_on_and_works_before_and_after(call, store, tmp_path):
    CALLS[call](store)
    turn_on(tmp_path / "run-faults.page", share=1.0, lasts_s=1000.0, draw=0)
    with pytest.raises(StoreError, match="injected by elastic chaos"):
        CALLS[call](store)
    turn_off(tmp_path / "run-faults.page")
    CALLS[call](store)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_the_switch_turns_itself_off_when_its_time_is_over(store, tmp_path):
    turn_on(tmp_path / "run-faults.page", share=1.0, lasts_s=0.2, draw=0)
    with pytest.raises(StoreError):
        store.read("night/one")

    def works() -> bool:
        try:
            return store.read("night/one") == b"1"
        except StoreError:
            return False

    eventually(works, "it works again")


def test_a_share_of_the_calls_fails(store, tmp_path):
    turn_on(tmp_path / "run-faults.page", share=0.5, lasts_s=1000.0, draw=5)
    came = Counter()
    for _ in range(200):
        try:
            came[store.read("night/one")] += 1
        except StoreError:
            came["failed"] += 1
    assert 60 < came["failed"] < 140


def test_the_proof_is_the_first_call_that_failed(tmp_path, aftermath):
    switch = storage_switch("chaos-storage")
    store = FaultyStore(open_store(str(tmp_path / "store")), switch)
    fault = Fault(kind=FaultKind.STORAGE_ERRORS, duration_s=1000.0)
    striking = Running(lambda: strike(fault, Scene(run="chaos-storage"), None, aftermath))
    eventually(switch.exists, "the switch is on")
    assert not striking.is_over, "nothing has failed yet"
    with pytest.raises(StoreError):
        store.create("night/one", b"1")
    assert "cannot write night/one: injected by elastic chaos" in striking.result()
    assert struck_file(switch).exists()
    aftermath.close()
    store.create("night/one", b"1")
    assert not switch.exists() and not struck_file(switch).exists()
    store.close()


def test_a_fault_that_comes_while_another_lasts_is_refused_and_ends_nothing(tmp_path, aftermath):
    store = FaultyStore(open_store(str(tmp_path)), storage_switch(RUN))
    first = Running(lambda: storage.fail(RUN, aftermath, 1.0, LONG_S, draw=1))
    eventually(storage_switch(RUN).exists, "the first is on")
    with pytest.raises(CannotStrikeError, match="already"):
        storage.fail(RUN, aftermath, 1.0, LONG_S, draw=2)
    with pytest.raises(StoreError, match="injected"):
        store.put("a", b"x")
    assert "cannot write a" in first.result()


def test_a_store_that_nobody_calls_does_not_fail(aftermath):
    with pytest.raises(CannotStrikeError, match="nobody on this node called the store within 0.2 s"):
        storage.fail("chaos-idle", aftermath, 1.0, 0.2, 0)
    assert not storage_switch("chaos-idle").exists()
