"""Effect. Where the crash matrix strikes a replica actor on Ray, a copy, an upload and a COMMIT still come by."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elastic.checkpoint import pulling
from elastic.checkpoint.node import Node
from elastic.checkpoint.stores.bounded import BoundedStore
from elastic.checkpoint.vault import Vault, open_vault
from elastic.checkpoint.vault_cleaning import collected
from elastic.settings import Keep
from tests.cluster import crash_points
from tests.crash_matrix import SPREADING
from tests.effects import shards
from tests.effects.shards import FakeMemory, key
from tests.effects.test_node import PeerOf

PLACES = ((pulling, "_verify"), (Vault, "upload"), (Vault, "commit"), (BoundedStore, "delete"))


def test_c02_each_point_of_a_replica_actor_is_come_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those tests are slow, and each strikes within an actor: what takes a point away is seen here."""
    for owner, name in PLACES:
        monkeypatch.setattr(owner, name, getattr(owner, name))  # so that it is as it was afterwards
    came: list[str] = []

    def at(point: str, step: int = -1, by_replica: bool = False) -> None:
        assert by_replica
        came.append(point)

    strike: Any = SimpleNamespace(at=at, note=lambda *_: None, folder=tmp_path)
    crash_points.slots_of(strike, tmp_path, "night", "a node")
    memory, vault = FakeMemory(), open_vault(str(tmp_path / "store"), "night")
    giver, taker = (Node(name, memory, 1 << 20, lambda array: (None, np.array(array))) for name in "ab")
    memory.seal(key(1))
    taker.pull(key(1), [PeerOf(giver)])
    vault.register("a test")
    for step in (1, 2):
        data = shards.payload(key(step), 100)
        digest = vault.upload(shards.manifest(key(step), data), lambda begin, end, data=data: data[begin:end])
        vault.commit(key(step).commit, [digest])
    collected(vault, Keep(last=1))
    vault.close()
    assert list(dict.fromkeys(came)) == list(SPREADING)
