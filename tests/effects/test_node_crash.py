"""Effect. C2: what a node's replica core leaves behind that is killed in the middle of a pull."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastic.checkpoint.arena import Arena
from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.checkpoint.memory import MemorySource
from elastic.checkpoint.node import Node
from tests.effects.helpers import LONG_S, child
from tests.effects.shards import CHUNK_BYTES, key, manifest, payload

RUN = "night"
NBYTES = 4 * CHUNK_BYTES


class Slots:
    """Another node: its slots, which this process can see."""

    gives_stored = False

    def __init__(self, directory: Path) -> None:
        self.where, self._source = "node a", MemorySource(directory, RUN)

    def manifest(self, of: ShardKey, timeout_s: float) -> Manifest:
        return next(one for one in self._source.manifests() if one.key.is_same(of))

    def fetch(self, of: ShardKey, begin: int, end: int, timeout_s: float) -> Any:
        return self._source.read(of, begin, end)


def sealed(arena: Arena, step: int) -> bool:
    """Whether there was a slot for it."""
    slot = arena.begin(NBYTES)
    if slot is None:
        return False
    slot.payload[:NBYTES] = payload(key(step), NBYTES)
    arena.seal(slot, manifest(key(step), slot.payload[:NBYTES]))
    return True


def serve_and_die(pipe: Any, here: Path, there: Path, parts: int) -> None:
    kept: list[Any] = []

    def put(array: Any) -> tuple[Any, Any]:
        kept.append(np.array(array))
        if len(kept) > parts:
            os.kill(os.getpid(), signal.SIGKILL)
        return None, kept[-1]

    node = Node("b", MemorySource(here, RUN), 10 * NBYTES, put, part_bytes=CHUNK_BYTES)
    node.pin([key(1)])
    node.pull(key(2), [Slots(there)])


@pytest.mark.parametrize("parts", [0, 2])
def test_c02_a_killed_node_core_leaves_slots_that_are_read_and_used_again(parts: int, tmp_path: Path) -> None:
    here, there = tmp_path / "b", tmp_path / "a"
    here.mkdir()
    there.mkdir()
    mine, theirs = Arena(here, RUN, 1, "w0"), Arena(there, RUN, 1, "w1")
    assert sealed(mine, 1) and sealed(theirs, 2)
    with child(serve_and_die, here, there, parts) as (process, _):
        process.join(LONG_S)
        assert process.exitcode == -signal.SIGKILL
    for directory, step in ((here, 1), (there, 2)):
        source = MemorySource(directory, RUN)
        assert np.array_equal(source.read(key(step), 0, NBYTES), payload(key(step), NBYTES))
    assert all(sealed(theirs, step) for step in (3, 4, 5)), "a lock outlived its process"
    assert all(sealed(mine, step) for step in (3, 4, 5)), "a pin outlived its process"
    again = Node("b", MemorySource(here, RUN), 10 * NBYTES, lambda array: (None, np.array(array)))
    pulled = again.pull(key(5), [Slots(there)])
    assert pulled.nbytes in (0, NBYTES) and np.array_equal(again.read(key(5), 0, NBYTES), payload(key(5), NBYTES))
    mine.close()
    theirs.close()
