"""The commit protocol of the persistent tier, on a directory and in memory; on Cloud Storage in test_gcs.py."""

import pickle
import threading
import time
from dataclasses import asdict

import numpy as np
import pytest

from elastic.checkpoint import vault as vault_module
from elastic.checkpoint.leases import BusyError
from elastic.checkpoint.manifest import Fork
from elastic.checkpoint.records import name_of, sealed
from elastic.checkpoint.source import Tier
from elastic.checkpoint.store import MissingError, StoreError
from elastic.checkpoint.stores import open_store
from elastic.checkpoint.vault import FencedError, Vault, open_vault, runs_of
from elastic.checkpoint.vault_source import VaultSource
from elastic.errors import CorruptError, SettingError
from tests.effects.vault_parts import (
    commit_id,
    made_durable,
    manifest_of,
    payload_of,
    reader_of,
    succeeded,
    uploaded,
    what_is_read,
)


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def vault(store):
    opened = Vault(store, "night-1")
    opened.register("test")
    return opened


def objects(vault: Vault, kind: str) -> list[str]:
    return [item.key for item in vault.store.list(vault.keys.folder(kind))]


def test_a_durable_step_is_read_back(vault):
    made_durable(vault, 10)
    record = made_durable(vault, 20, {"loss": 0.5})
    assert record.nbytes == 2048
    assert [each.commit.step for each in vault.commits()] == [20, 10]
    assert vault.commits()[0] == record
    assert what_is_read(vault) == {20: "whole", 10: "whole"}
    assert vault.store.read("night-1/LATEST") == f"{name_of(record.commit)}\n".encode()
    assert runs_of(vault.store) == ["night-1"]


def test_ranges_go_across_chunks(vault):
    made_durable(vault, 10)
    source = VaultSource(open_vault(vault.store.url, "night-1"))
    assert (source.tier, source.where) == (Tier.PERSISTENT, f"{vault.store.url}/night-1")
    key = source.manifests()[0].key
    payload = payload_of(10, key.shard)
    for begin, end in ((0, 1024), (255, 257), (256, 512), (1000, 1024), (7, 7)):
        assert source.read(key, begin, end) == payload[begin:end]
    with pytest.raises(StoreError, match="no bytes from"):
        source.read(key, 1000, 1025)
    other = manifest_of(commit_id(11), 0, 2, payload).key
    with pytest.raises(MissingError, match="step 11, shard 0 of 2"):
        source.read(other, 0, 1)
    source.close()


def test_c02_without_commit_there_is_nothing(vault):
    commit = commit_id(10)
    digests = uploaded(vault, commit)
    assert what_is_read(vault) == {}
    with pytest.raises(MissingError):
        vault.commit(commit, [digests[0], digests[0]])
    with pytest.raises(MissingError):
        vault.commit(commit, digests[:1])
    victim = next(key for key in objects(vault, "steps") if "chunk-000003" in key)
    vault.store.delete(victim)
    with pytest.raises(MissingError, match="not there in full"):
        vault.commit(commit, digests)
    assert vault.commits() == []


def test_a_shard_of_another_commit_is_refused(vault):
    digests, others = uploaded(vault, commit_id(10)), uploaded(vault, commit_id(20))
    folder = vault.keys.shard(name_of(commit_id(10)), 0, 2)
    moved = vault.store.read(vault.keys.manifest(name_of(commit_id(20)), 0, 2, others[0]))
    vault.store.create(f"{folder}manifest-{others[0]}", moved)
    with pytest.raises(CorruptError, match="is of step 20"):
        vault.commit(commit_id(10), [others[0], digests[1]])


def test_committing_again_is_success(vault):
    digests = uploaded(vault, commit_id(10))
    first = vault.commit(commit_id(10), digests)
    assert vault.commit(commit_id(10), digests) == first
    assert uploaded(vault, commit_id(10)) == digests


def test_an_upload_that_broke_off_goes_on_where_it_was(vault):
    payload = payload_of(10, 0)
    manifest = manifest_of(commit_id(10), 0, 1, payload)
    asked: list[int] = []

    def read(begin: int, end: int) -> bytes:
        asked.append(begin)
        if len(asked) == 3:
            raise StoreError("the node is gone")
        return payload[begin:end]

    single = Vault(vault.store, "night-1", threads=1)
    with pytest.raises(StoreError, match="the node is gone"):
        single.upload(manifest, read)
    assert len(objects(vault, "steps")) == 2
    digest = single.upload(manifest, read)
    assert sorted(asked) == [0, 256, 512, 512, 768]
    single.upload(manifest, read)
    assert len(asked) == 5
    vault.commit(manifest.commit, [digest])


def test_arrays_are_uploaded_as_they_are(vault):
    payload = payload_of(10, 0)
    array = np.frombuffer(payload, dtype=np.uint8)
    digest = vault.upload(manifest_of(commit_id(10), 0, 1, payload), lambda begin, end: array[begin:end])
    vault.commit(commit_id(10), [digest])
    assert what_is_read(vault) == {10: "whole"}


def test_what_does_not_match_its_sum_is_not_uploaded(vault):
    payload = payload_of(10, 0)
    with pytest.raises(CorruptError, match="chunk 2"):
        vault.upload(manifest_of(commit_id(10), 0, 1, payload), reader_of(payload[:600] + b"!" + payload[601:]))
    assert not any("manifest" in key for key in objects(vault, "steps"))


def test_a_damaged_leftover_is_replaced(vault):
    payload = payload_of(10, 0)
    manifest = manifest_of(commit_id(10), 0, 1, payload)
    vault.store.create(vault.keys.chunk(manifest, 1), b"torn")
    vault.commit(commit_id(10), [vault.upload(manifest, reader_of(payload))])
    assert what_is_read(vault) == {10: "whole"}


def test_another_run_does_not_belong_here(vault):
    payload = payload_of(10, 0)
    with pytest.raises(SettingError, match="run 'day-1'"):
        vault.upload(manifest_of(commit_id(10), 0, 1, payload, run="day-1"), reader_of(payload))
    with pytest.raises(SettingError):
        Vault(vault.store, "../night-1")


def test_c10_a_zombie_cannot_commit(vault):
    made_durable(vault, 10)
    digests = uploaded(vault, commit_id(20))
    successor = Vault(vault.store, "night-1")
    succeeded(vault, successor, 10)
    assert successor.incarnation == 2
    with pytest.raises(FencedError, match="incarnation 2 has taken over from 1"):
        vault.commit(commit_id(20), digests)
    with pytest.raises(FencedError):
        vault.fork(Fork(incarnation=1, generation=2, step=5))
    assert [record.commit.step for record in vault.commits(also_void=True)] == [10]
    made_durable(successor, 20)
    assert [record.commit.incarnation for record in vault.commits()] == [2, 1]


def test_c10_a_zombie_that_slipped_through_is_void(vault, monkeypatch):
    """The fence is looked at, then the zombie sleeps through its successor's registration and fork, then commits."""
    made_durable(vault, 10)
    digests = uploaded(vault, commit_id(20))
    successor = Vault(vault.store, "night-1")
    create, begun = vault.store.create, []

    def create_late(key: str, data: bytes) -> None:
        if "/commits/" in key and not begun:
            begun.append(key)
            succeeded(vault, successor, 10)
        create(key, data)

    monkeypatch.setattr(vault.store, "create", create_late)
    with pytest.raises(FencedError):
        vault.commit(commit_id(20), digests)
    assert begun and vault.store.read(begun[0])
    assert what_is_read(successor) == {10: "whole"}
    assert [record.commit.step for record in successor.commits(also_void=True)] == [20, 10]
    made_durable(successor, 15)
    assert [record.commit.step for record in successor.commits()] == [15, 10]


def test_c10_a_zombie_that_slips_through_with_a_fork_takes_it_back(vault, monkeypatch):
    """It goes back behind the step that its successor goes on from."""
    made_durable(vault, 10)
    made_durable(vault, 20)
    successor = Vault(vault.store, "night-1")
    create, begun = vault.store.create, []

    def create_late(key: str, data: bytes) -> None:
        if "/forks/" in key and not begun:
            begun.append(key)
            succeeded(vault, successor, 20)
        create(key, data)

    monkeypatch.setattr(vault.store, "create", create_late)
    fork = Fork(incarnation=vault.incarnation, generation=7, step=10)
    with pytest.raises(FencedError):
        vault.fork(fork)
    assert begun and fork not in successor.forks()
    assert [record.commit.step for record in successor.commits()] == [20, 10]


def test_c10_numbers_are_given_once(store):
    vaults = [Vault(store, "night-1") for _ in range(6)]
    threads = [threading.Thread(target=vault.register, args=("test",)) for vault in vaults]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(vault.incarnation for vault in vaults) == [1, 2, 3, 4, 5, 6]
    assert Vault(store, "night-1").register("test", at_least=40) == 40


def test_who_did_not_register_or_fork_cannot_commit(vault):
    stranger = Vault(vault.store, "night-1", incarnation=7)
    with pytest.raises(SettingError, match="has not registered"):
        stranger.commit(commit_id(1), uploaded(stranger, commit_id(1)))
    successor = Vault(vault.store, "night-1")
    successor.register("test")
    commit = commit_id(1, incarnation=2)
    with pytest.raises(SettingError, match="call fork first"):
        successor.commit(commit, uploaded(successor, commit))
    fork = Fork(incarnation=2, generation=1, step=-1)
    successor.commit(commit, uploaded(successor, commit, forks=(fork,)))
    assert successor.forks() == [fork]


def test_a_redone_step_of_the_same_lineage_is_another_commit(vault):
    """A step past a fork may be done again with the same name of its reductions, and other bits."""
    made_durable(vault, 10)
    made_durable(vault, 20, lineage="same")
    vault.fork(Fork(incarnation=1, generation=2, step=10))
    assert [record.commit.step for record in vault.commits()] == [10]
    made_durable(vault, 20, lineage="same", generation=2)
    assert [record.commit.generation for record in vault.commits()] == [2, 1]


@pytest.mark.parametrize("left", [b"", b"0000", b"\xff\xfe", b"9999999999-none-1-1\n"])
def test_c21_latest_is_only_a_hint(vault, left):
    made_durable(vault, 10)
    vault.store.put(vault.keys.latest, left)
    assert what_is_read(vault) == {10: "whole"}
    made_durable(vault, 20)
    assert vault.store.read(vault.keys.latest).startswith(b"0000000020-")
    made_durable(vault, 15)
    assert vault.store.read(vault.keys.latest).startswith(b"0000000020-")


def test_c06_quarantine_is_remembered_with_its_reason(vault):
    record = made_durable(vault, 10)
    vault.quarantine(record.commit, "loss was nan 3 steps later")
    vault.quarantine(record.commit, "again")
    assert Vault(vault.store, "night-1").quarantined() == {record.commit: "loss was nan 3 steps later"}
    vault.store.put(vault.keys.quarantine(record.name), b"torn")
    assert vault.quarantined() == {record.commit: "not readable"}


class Bomb:
    went_off = False

    def __reduce__(self):
        return setattr, (Bomb, "went_off", True)


def test_c19_no_code_from_a_checkpoint_runs(vault):
    made_durable(vault, 10)
    bomb = pickle.dumps(Bomb())
    for item in list(vault.store.list("night-1/")):
        vault.store.put(item.key, bomb)
    reader = Vault(vault.store, "night-1")
    assert reader.commits() == []
    assert VaultSource(reader).manifests() == []
    assert not Bomb.went_off
    pickle.loads(bomb)
    assert Bomb.went_off, "the bomb works"


def test_c20_hostile_names_stay_in_their_place(vault, tmp_path):
    record = made_durable(vault, 10)
    (tmp_path / "outside").write_text("secret")
    body = asdict(record)
    hostile = {**body["commit"], "lineage": "../../../outside"}
    for number, changes in enumerate(({"run": "../outside"}, {"commit": hostile}, {"manifests": ["../../outside"]})):
        vault.store.create(f"night-1/commits/000000001{number}-a-1-1", sealed("commit", {**body, **changes}))
    vault.store.create("night-1/commits/x", record.encode())
    vault.store.create("night-1/commits/0000000009-a-1-1/deeper", record.encode())
    reader = Vault(vault.store, "night-1")
    assert [each.commit.step for each in reader.commits()] == [10]
    assert what_is_read(reader) == {10: "whole"}


def test_a_read_takes_a_lease_and_gives_it_up(vault):
    record = made_durable(vault, 10)
    source = VaultSource(Vault(vault.store, "night-1"))
    source.read(source.manifests()[0].key, 0, 10)
    assert vault.leases.is_taken(record.name, is_durable=True)
    source.close()
    assert not vault.leases.is_taken(record.name, is_durable=True)


def test_a_step_whose_lease_is_over_is_not_made_durable(vault, monkeypatch):
    """The process was stopped between its look at the shards and the COMMIT: they may be gone by now."""
    digests, look = uploaded(vault, commit_id(10)), vault._check_forks
    opened = Vault(vault.store, "night-1", now_s=lambda: time.time() + ahead_s)
    opened.incarnation, ahead_s = vault.incarnation, 0.0

    def stopped(manifests):
        nonlocal ahead_s
        look(manifests)
        ahead_s = 2 * opened.leases.lease_s

    monkeypatch.setattr(opened, "_check_forks", stopped)
    with pytest.raises(BusyError, match="the lease on it is over"):
        opened.commit(commit_id(10), digests)
    assert vault.commits() == []


def test_what_is_being_deleted_is_neither_read_nor_written(vault):
    record = made_durable(vault, 10)
    source = VaultSource(Vault(vault.store, "night-1"))
    key = source.manifests()[0].key
    with vault.leases.clearing(record.name, is_durable=True):
        with pytest.raises(BusyError, match="is being deleted"):
            source.read(key, 0, 10)
        with pytest.raises(BusyError):
            uploaded(Vault(vault.store, "night-1"), record.commit)
    assert source.read(key, 0, 10)
    source.close()


def test_c15_c16_what_hangs_is_named_within_the_deadline(vault):
    payload, never = payload_of(10, 0), threading.Event()
    impatient = Vault(vault.store, "night-1", stall_s=0.2)

    def read(begin: int, end: int) -> bytes:
        if begin == 512:
            never.wait(20)
        return payload[begin:end]

    with pytest.raises(StoreError, match=r"upload of step 10, shard 0 of 1, of run night-1: nothing moved .* for 2"):
        impatient.upload(manifest_of(commit_id(10), 0, 1, payload), read)
    never.set()


def test_c15_a_failing_store_fails_the_upload(vault, monkeypatch):
    def full(key: str, data: bytes) -> None:
        raise StoreError("no space left")

    monkeypatch.setattr(vault.store, "create", full)
    with pytest.raises(StoreError, match="no space left"):
        uploaded(vault, commit_id(10))


def test_c15_a_manifest_that_cannot_be_read_hides_no_newer_step_and_no_older_one_is_taken_instead(vault, monkeypatch):
    first, last = made_durable(vault, 10), made_durable(vault, 20)
    read, bad = vault.store.read, {"/0000000020-"}

    def failing(key: str, *about: int) -> bytes:
        if "/manifest-" in key and any(name in key for name in bad):
            raise StoreError("input/output error")
        return read(key, *about)

    source = VaultSource(Vault(vault.store, "night-1"))
    monkeypatch.setattr(vault.store, "read", failing)
    with pytest.raises(StoreError, match="input/output error"):
        source.manifests()  # to go on from the older one would make the newest void
    assert {one.commit for one in source.manifests(10)} == {first.commit}
    key = manifest_of(last.commit, 0, 2, payload_of(20, 0)).key
    with pytest.raises(StoreError, match="input/output error") as caught:
        source.read(key, 0, 1)
    assert not isinstance(caught.value, MissingError), "it is there, so nobody may hold it for lost"
    bad.symmetric_difference_update({"/0000000010-", "/0000000020-"})
    other = VaultSource(Vault(vault.store, "night-1"))
    assert {one.commit for one in other.manifests()} == {last.commit}, "the older one hides nothing"
    assert other.troubles == ["input/output error"] * 2
    bad.clear()
    assert {one.commit.step for one in source.manifests()} == {10, 20} and source.troubles == []


def test_uploads_keep_to_their_bandwidth(store, monkeypatch):
    slept: list[float] = []
    vault = Vault(store, "night-1", bytes_per_s=1000.0, threads=1)
    monkeypatch.setattr(vault._throttle, "_sleep", slept.append)
    monkeypatch.setattr(vault._throttle, "_clock", lambda: 0.0)
    vault._throttle._free_at_s = 0.0
    uploaded(vault, commit_id(10), shards=1)
    assert slept == pytest.approx([0.256, 0.512, 0.768, 1.024])


def test_a_chunk_may_wait_for_all_those_of_another_shard_that_shares_the_cap(store, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(vault_module, "in_parallel", lambda *_, stall_s, **__: waits.append(stall_s))
    Vault(store, "night-1", bytes_per_s=1000.0, threads=4, stall_s=60.0).all_of(print, [], "nothing", nbytes=500)
    assert waits == [60.0 + 2 * 4 * 0.5]


def test_a_step_that_is_asked_for_is_found_however_old_it_is_and_no_other_is_read(vault):
    for step in (10, 20, 30):
        made_durable(vault, step)
    source = VaultSource(Vault(vault.store, "night-1"), newest=1)
    assert {one.commit.step for one in source.manifests()} == {30}
    assert {one.commit.step for one in source.manifests(10)} == {10}
    assert len({place[0] for place in source._manifests}) == 1, "nor is what was asked for before held for ever"
