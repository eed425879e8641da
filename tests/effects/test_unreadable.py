"""Effect. A durable step that is there and cannot be read: nobody begins anew over it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.actors.tiers import Tiers
from elastic.checkpoint import seal
from elastic.checkpoint.reach import Reach
from elastic.checkpoint.vault import Vault, open_vault
from elastic.control import events as ev
from elastic.settings import Checkpoint
from tests.effects.helpers import eventually
from tests.effects.vault_parts import made_durable

RUN = "night-1"


def found(store: Path, memory: Path) -> ev.RestoreFound:
    """What the tiers tell the controller of a new life."""
    told = list[ev.Event]()
    checkpoint = Checkpoint(memory=str(memory), persistent=str(store))
    tiers = Tiers(RUN, Reach(RUN, checkpoint), told.append, timeout_s=30.0)
    tiers.begin()
    tiers.find(None, ())
    eventually(lambda: told, "the tiers have answered")
    tiers.close(keep=False)
    (answer,) = told
    assert isinstance(answer, ev.RestoreFound)
    return answer


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def of_another_release(path: Path) -> None:
    path.write_bytes(seal.sealed({"kind": "commit"}, 99))


def object_of(store: Path, kind: str) -> Path:
    return min(one for one in (store / RUN).rglob("*") if one.is_file() and kind in str(one.relative_to(store)))


@pytest.mark.parametrize("spoil", [flipped, of_another_release])
@pytest.mark.parametrize("kind", ["commits/", "manifest"])
def test_c25_what_is_durable_and_cannot_be_read_is_an_error_and_no_beginning(
    tmp_path: Path, kind: str, spoil: Callable[[Path], None]
) -> None:
    store = tmp_path / "store"
    vault: Vault = open_vault(str(store), RUN, incarnation=1)
    vault.register("the first life")
    made_durable(vault, 3)
    assert found(store, tmp_path / "memory").commit is not None
    spoil(object_of(store, kind))
    answer = found(store, tmp_path / "memory")
    assert answer.commit is None
    assert "step 3" in answer.error and "under another name to begin anew" in answer.error


def test_an_older_step_that_can_be_read_is_taken(tmp_path: Path) -> None:
    store = tmp_path / "store"
    vault = open_vault(str(store), RUN, incarnation=1)
    vault.register("the first life")
    made_durable(vault, 3)
    before = {one for one in (store / RUN).rglob("*") if "commits/" in str(one)}
    made_durable(vault, 4)
    (newest,) = {one for one in (store / RUN).rglob("*") if "commits/" in str(one) and one.is_file()} - before
    flipped(newest)
    answer = found(store, tmp_path / "memory")
    assert answer.commit is not None and answer.commit.step == 3
