"""Effect. C7, C8: what is durable stays: until it is loaded, whoever collects, and where nobody can read it."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.actors import tiers
from elastic.checkpoint import seal
from elastic.checkpoint.claim import Claim
from elastic.checkpoint.leases import SKEW_S, BusyError
from elastic.checkpoint.store import MissingError, StoreError
from elastic.checkpoint.stores import open_store
from elastic.checkpoint.vault import Vault, open_vault
from elastic.checkpoint.vault_cleaning import collected
from elastic.control.state import Restoring, RunState
from elastic.control.values import CommitId, Fork
from elastic.settings import Keep, RunSettings
from tests.effects.helpers import LONG_S, eventually
from tests.effects.test_failing_states import RUN, Life
from tests.effects.test_vault_cleaning import Clock
from tests.effects.vault_parts import made_durable, what_is_read

PAUSE_S = 0.01


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    opened = open_vault(str(tmp_path / "store"), RUN)
    opened.register("test")
    for step in (10, 20, 30):
        made_durable(opened, step)
    return open_vault(str(tmp_path / "store"), RUN)  # as `elastic gc` has it, while drivers come and go


def steps_after_collecting(vault: Vault) -> list[int]:
    collected(vault, Keep(last=1))
    return [record.commit.step for record in vault.commits(also_void=True)]


def wanted(commit: CommitId | None) -> RunState:
    """The controller has heard of what was found, and has it restored, or not."""
    wish = Restoring(number=1, commit=commit) if commit is not None else None
    return RunState(settings=RunSettings(run=RUN), restore=wish)


def test_c07_c08_what_was_found_stays_from_the_find_until_it_is_loaded(tmp_path: Path, vault: Vault) -> None:
    life = Life(tmp_path)
    found = life.found(at_most=10)
    life.tiers.heed(found, wanted(found.commit))
    assert steps_after_collecting(vault) == [30, 10], "nobody has read a byte of it yet"
    assert what_is_read(vault)[10] == "whole"
    assert found.commit is not None
    life.started(found.commit)
    name = vault.commits()[0].name
    eventually(lambda: not vault.leases.is_taken(name, is_durable=True), "the lease is over")
    life.tiers.close(keep=True)


def test_c07_what_was_loaded_stays_until_it_is_recorded_that_history_goes_on_from_it(
    tmp_path: Path, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then steps of the old line are better ones for whoever collects."""
    life, fork, is_down, tried = Life(tmp_path), Vault.fork, threading.Event(), threading.Event()
    is_down.set()

    def failing(vault: Vault, *about: Any) -> None:
        tried.set()
        if is_down.is_set():
            raise StoreError("unavailable")
        fork(vault, *about)

    monkeypatch.setattr(tiers, "_AGAIN_S", PAUSE_S)
    monkeypatch.setattr(Vault, "fork", failing)
    found = life.found(at_most=10)
    life.tiers.heed(found, wanted(found.commit))
    assert found.commit is not None
    life.formed(found.commit)
    assert tried.wait(LONG_S)
    time.sleep(10 * PAUSE_S)
    assert steps_after_collecting(vault) == [30, 10]
    is_down.clear()
    eventually(lambda: steps_after_collecting(vault) == [10], "the lease on what is the newest good step is over")
    eventually(lambda: not any(one.name in ("elastic-fork", "elastic-claim") for one in threading.enumerate()), "end")
    life.tiers.close(keep=True)


def test_c08_nothing_is_begun_over_durable_steps_that_are_void(tmp_path: Path, vault: Vault) -> None:
    """A life went back to a step that only its peers had, and was lost before its first COMMIT."""
    vault.register("test")
    vault.fork(Fork(incarnation=vault.incarnation, generation=1, step=5))
    life = Life(tmp_path)
    found = life.found()
    assert found.commit is None
    assert "void" in found.error and "step 30 is the newest" in found.error and "another name" in found.error
    life.tiers.close(keep=True)
    vault.register("test")
    vault.fork(Fork(incarnation=vault.incarnation, generation=1, step=-1))
    life = Life(tmp_path)
    assert (life.found().commit, life.found().error) == (None, ""), "it has begun anew already"
    life.tiers.close(keep=True)


def test_what_was_found_and_is_not_wanted_may_go(tmp_path: Path, vault: Vault) -> None:
    life = Life(tmp_path)
    life.tiers.heed(life.found(at_most=10), wanted(None))
    eventually(lambda: 10 not in steps_after_collecting(vault), "the lease is over")
    life.tiers.close(keep=True)


def test_another_step_that_is_found_takes_the_place_of_the_first(tmp_path: Path, vault: Vault) -> None:
    life = Life(tmp_path)
    for at_most in (10, 20):
        found = life.found(at_most=at_most)
        life.tiers.heed(found, wanted(found.commit))
    eventually(lambda: steps_after_collecting(vault) == [30, 20], "the first lease is over")
    life.tiers.close(keep=True)
    assert steps_after_collecting(vault) == [30]


def test_what_is_being_deleted_is_not_found(tmp_path: Path, vault: Vault) -> None:
    life, (newest, *_) = Life(tmp_path), vault.commits()
    with vault.leases.clearing(newest.name, is_durable=True):
        found = life.found()
    assert found.commit is not None and found.commit.step == 20
    life.tiers.close(keep=True)


def test_a_claim_lasts_as_long_as_somebody_waits_for_workers(tmp_path: Path) -> None:
    clock = Clock()
    vault = Vault(open_store(str(tmp_path / "store")), RUN, now_s=clock)
    vault.register("test")
    old, new = made_durable(vault, 10), made_durable(vault, 20)
    claim = Claim(vault, old.commit, PAUSE_S)
    taken = next(vault.store.list(vault.keys.leases(old.name))).key
    written = vault.store.read(taken)
    clock.ahead_s = vault.leases.lease_s - SKEW_S
    eventually(lambda: vault.store.read(taken) != written, "it is renewed")
    clock.ahead_s = vault.leases.lease_s + 2 * SKEW_S
    assert 10 in steps_after_collecting(vault), "the first lease would be over"
    claim.end()
    assert steps_after_collecting(vault) == [20]
    with pytest.raises(MissingError, match="has been deleted"):
        Claim(vault, old.commit, PAUSE_S)
    with vault.leases.clearing(new.name, is_durable=True), pytest.raises(BusyError):
        Claim(vault, new.commit, PAUSE_S)
    assert not vault.leases.is_taken(new.name, is_durable=True)


MANY = range(1, 21)  # more than one look comes to


@pytest.fixture
def long_run(tmp_path: Path) -> Vault:
    opened = open_vault(str(tmp_path / "store"), RUN)
    opened.register("test")
    for step in MANY:
        made_durable(opened, step)
    return opened


@pytest.mark.parametrize("at_most", [1, 3, 20])
def test_an_old_durable_step_is_found_by_its_number(tmp_path: Path, long_run: Vault, at_most: int) -> None:
    life = Life(tmp_path)
    found = life.found(at_most=at_most)
    assert found.commit is not None and found.commit.step == at_most
    life.tiers.close(keep=True)


def test_an_old_durable_step_is_found_where_no_newer_one_will_do(tmp_path: Path, long_run: Vault) -> None:
    left_out = [record.commit for record in long_run.commits() if record.commit.step > 2]
    for commit in left_out[:9]:
        long_run.quarantine(commit, "wrong bytes")
    life = Life(tmp_path)
    found = life.found(without=tuple(left_out[9:]))
    assert found.commit is not None and found.commit.step == 2
    for record in long_run.commits():
        long_run.quarantine(record.commit, "wrong bytes")
    assert "every whole step is in quarantine" in life.found().error, "there are no older ones"
    life.tiers.close(keep=True)


def of_another_version(data: bytes) -> bytes:
    body = seal.opened(data, 1, "it")
    return seal.sealed(body, 2)


def with_a_bit_flipped(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def damaged(vault: Vault, kind: str, step: int, damage: Callable[[bytes], bytes]) -> None:
    """What the COMMIT, or the first manifest, of a step is from now on."""
    folder = vault.keys.folder(kind)
    where = [item.key for item in vault.store.list(folder) if f"{step:010d}-" in item.key]
    key = next(key for key in where if kind == "commits" or "/manifest-" in key)
    vault.store.put(key, damage(vault.store.read(key)))


DAMAGES = [("commits", of_another_version), ("commits", with_a_bit_flipped), ("steps", with_a_bit_flipped)]


@pytest.mark.parametrize(("kind", "damage"), DAMAGES)
def test_c08_nothing_is_begun_over_a_step_that_cannot_be_read(tmp_path: Path, vault: Vault, kind, damage) -> None:
    for step in (10, 20, 30):
        damaged(vault, kind, step, damage)
    before = [item.key for item in vault.store.list("")]
    life = Life(tmp_path)
    found = life.found()
    assert found.commit is None
    assert "step 30" in found.error and "another name" in found.error and "elastic verify" in found.error
    life.tiers.close(keep=True)
    collected(open_vault(str(tmp_path / "store"), RUN), Keep(last=1))
    there = {item.key for item in vault.store.list("")}
    assert {key for key in before if "/steps/" in key or "/commits/" in key} <= there


@pytest.mark.parametrize(("kind", "damage"), DAMAGES)
def test_c08_a_step_that_cannot_be_read_is_not_collected_as_old(tmp_path: Path, vault: Vault, kind, damage) -> None:
    damaged(vault, kind, 30, damage)
    life = Life(tmp_path)
    found = life.found()
    assert found.commit is not None and found.commit.step == 20, "an older step that is whole is taken"
    life.tiers.close(keep=True)
    anew = open_vault(str(tmp_path / "store"), RUN)
    before = {item.key for item in vault.store.list("") if "0000000030-" in item.key and "/leases/" not in item.key}
    collected(anew, Keep(last=1))
    assert before <= {item.key for item in vault.store.list("")}


def test_a_damaged_commit_is_told(vault: Vault) -> None:
    damaged(vault, "commits", 30, of_another_version)
    (told,) = open_vault(vault.store.url, RUN).looked()[1].values()
    assert "the COMMIT of step 30 cannot be used" in told and "not of version 1" in told
