"""Effect. One flipped bit in a shard, where it lies: in a slot of this node's memory, or in the persistent tier."""

import os
from collections.abc import Sequence
from pathlib import Path

from elastic.chaos.aftermath import CannotStrikeError
from elastic.checkpoint.arena import PAGE_BYTES
from elastic.checkpoint.manifest import Entry
from elastic.checkpoint.memory import scan
from elastic.checkpoint.store import Store
from elastic.control.draws import draw

_WHOLE_BYTES = 64 << 20  # of an object that is read, and written back


def flip_in_memory(directory: Path, run: str, seed: int) -> str:
    """Flip a bit of some tensor in the newest sealed step on this node; no lock is asked for, as no cosmic ray does."""
    newest = [one for one in scan(directory, run) if any(entry.nbytes for entry in one.manifest.entries)]
    newest = [one for one in newest if one.manifest.commit.step == newest[0].manifest.commit.step]
    if not newest:
        raise CannotStrikeError(f"{directory} holds no sealed snapshot of the run {run} on this node")
    one = newest[draw(seed, "slot") % len(newest)]
    at, bit = _place(one.manifest.entries, draw(seed, "bit"))
    fd = os.open(one.path, os.O_RDWR)
    try:
        before = os.pread(fd, 1, PAGE_BYTES + at)[0]
        os.pwrite(fd, bytes([before ^ 1 << bit]), PAGE_BYTES + at)
        after = os.pread(fd, 1, PAGE_BYTES + at)[0]
    finally:
        os.close(fd)
    which = f"shard {one.manifest.shard} of step {one.manifest.commit.step} in {one.path}"
    return f"{which}: byte {at} was {before:#04x} and is {after:#04x}"


def flip_in_store(store: Store, run: str, seed: int) -> str:
    """Flip a bit of some chunk of the newest step in the persistent tier."""
    chunks = [item for item in store.list(f"{run}/steps/") if "/chunk-" in item.key and 0 < item.nbytes <= _WHOLE_BYTES]
    if not chunks:
        raise CannotStrikeError(f"{store.url} holds no chunk of the run {run} yet")
    newest = max(item.key.split("/")[2] for item in chunks)
    mine = [item for item in chunks if item.key.split("/")[2] == newest]
    item = mine[draw(seed, "chunk") % len(mine)]
    data = bytearray(store.read(item.key))
    at, bit = divmod(draw(seed, "bit") % (8 * len(data)), 8)
    before = data[at]
    data[at] ^= 1 << bit
    store.delete(item.key)
    store.put(item.key, bytes(data))
    after = store.read(item.key, at, at + 1)[0]
    return f"{store.url}/{item.key}: byte {at} was {before:#04x} and is {after:#04x}"


def _place(entries: Sequence[Entry], drawn: int) -> tuple[int, int]:
    """(byte of the payload, bit) that a draw means: only what tensors take counts, not what lies between them."""
    byte, bit = divmod(drawn % (8 * sum(entry.nbytes for entry in entries)), 8)
    for entry in entries:
        if byte < entry.nbytes:
            return entry.begin + byte, bit
        byte -= entry.nbytes
    raise AssertionError("the draw is taken modulo what there is")
