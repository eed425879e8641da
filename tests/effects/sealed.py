"""Effect. A sealed shard read back, by nothing but its manifest."""

from typing import Any

import torch

from elastic.checkpoint import memory
from elastic.checkpoint.manifest import Manifest
from elastic.train import tree


def flat_of(source: memory.MemorySource, manifest: Manifest) -> tree.Flat:
    """The flattened state in a slot, whose chunks are all checked."""
    payload = source.read(manifest.key, 0, manifest.nbytes)
    for number in range(len(manifest.chunks)):
        begin, end = manifest.chunk(number)
        manifest.verify(number, payload[begin:end])
    tensors = []
    for entry in manifest.entries:
        data = torch.from_numpy(payload[entry.begin : entry.begin + entry.nbytes].copy())
        tensors.append(data.view(getattr(torch, entry.dtype)).view(entry.shape))
    return tree.Flat(manifest.skeleton.encode(), tensors)


def state_of(source: memory.MemorySource, manifest: Manifest) -> Any:
    """The state as a tree."""
    flat = flat_of(source, manifest)
    return tree.unflatten(flat.skeleton, flat.tensors)


def digest_of(source: memory.MemorySource, manifest: Manifest) -> int:
    """The digest that `tree` makes of the state in a slot."""
    return tree.digest(flat_of(source, manifest))
