"""Effect. A tree of state as one shard of a commit: its manifest and its payload."""

import numpy as np
from numpy.typing import NDArray

from elastic.checkpoint import summing
from elastic.checkpoint.manifest import CHUNK_BYTES, Entry, Manifest, laid_out
from elastic.control.values import CommitId
from elastic.train import tree
from elastic.train.sharded import box


def pack_shard(
    flat: tree.Flat, run: str, commit: CommitId, shard: int = 0, shards: int = 1, chunk_bytes: int = CHUNK_BYTES
) -> tuple[Manifest, NDArray[np.uint8]]:
    """The manifest of a flattened tree, and (nbytes,) uint8, its payload."""
    wanted = []
    for slot, (path, leaf), tensor in zip(tree.slots(flat.skeleton), flat.leaves, flat.tensors, strict=True):
        whole, at = box(leaf)
        wanted.append(
            Entry(path=path, dtype=slot.dtype, shape=slot.shape, begin=0, nbytes=tensor.nbytes, whole=whole, at=at)
        )
    entries, nbytes = laid_out(wanted)
    payload = np.zeros(nbytes, dtype=np.uint8)
    for entry, tensor in zip(entries, flat.tensors, strict=True):
        if entry.nbytes:
            payload[entry.begin : entry.begin + entry.nbytes] = tree.raw_bytes(tensor)
    manifest = Manifest(
        run=run,
        commit=commit,
        shard=shard,
        shards=shards,
        layout="",
        skeleton=flat.skeleton.decode(),
        entries=entries,
        nbytes=nbytes,
        chunks=tuple(summing.value(payload[at : at + chunk_bytes]) for at in range(0, nbytes, chunk_bytes)),
        chunk_bytes=chunk_bytes,
    )
    return manifest, payload
