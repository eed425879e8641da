"""Effect. What a node answers to the upload of a shard: it is there, the node holds it no more, or the store failed."""

from pathlib import Path
from typing import Any

import numpy as np

from elastic.actors.uploading import Uploads
from elastic.checkpoint.node import Node
from elastic.checkpoint.store import MissingError
from elastic.checkpoint.vault import open_vault
from tests.effects.shards import FakeMemory, key


def uploads(opened: Any) -> tuple[Uploads, FakeMemory]:
    memory = FakeMemory()
    return Uploads(Node("a", memory, 0, lambda array: (None, np.array(array))), opened), memory


def test_a_slot_that_was_written_anew_is_told_apart_from_a_store_that_has_nothing(tmp_path: Path) -> None:
    def no_bucket() -> Any:
        raise MissingError("no such bucket")

    there, memory = uploads(lambda: open_vault(str(tmp_path), "night"))
    memory.seal(key(7))
    assert there.upload(key(7)).digest
    gone = there.upload(key(6))
    assert gone.is_gone and "holds no shard 0 of 1 of step 6" in gone.reason
    nowhere, memory = uploads(no_bucket)
    memory.seal(key(7))
    failed = nowhere.upload(key(7))
    assert failed.reason == "node a: no such bucket" and not failed.is_gone
