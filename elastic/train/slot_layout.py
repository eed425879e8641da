"""Effect. How a state lies in a slot: where each tensor goes, what is between them, and the sums of its chunks."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from elastic.checkpoint import summing
from elastic.checkpoint.manifest import CHUNK_BYTES, Entry, Manifest, chunk_count, laid_out
from elastic.train.sharded import box
from elastic.train.tree import Flat


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each tensor of a state goes; the same object as long as nothing changes its shape."""

    signature: tuple[Any, ...]
    entries: tuple[Entry, ...]
    nbytes: int


def laid_out_as(flat: Flat, before: Layout) -> Layout:
    """The layout of a state; the one before where it fits.

    Raises:
        StateError: a DTensor's part is no single box.
    """
    signature = tuple(
        (path, tensor.dtype, tensor.shape) for (path, _), tensor in zip(flat.leaves, flat.tensors, strict=True)
    )
    if signature == before.signature:
        return before
    entries = []
    for (path, leaf), tensor in zip(flat.leaves, flat.tensors, strict=True):
        whole, at = box(leaf)
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        entries.append(Entry(path=path, dtype=dtype, shape=shape, begin=0, nbytes=tensor.nbytes, whole=whole, at=at))
    placed, nbytes = laid_out(entries)
    return Layout(signature, placed, nbytes)


def targets(payload: Any, layout: Layout, tensors: list[torch.Tensor]) -> Iterable[torch.Tensor]:
    """Views into a payload, (nbytes,) uint8, one for each tensor."""
    whole = torch.from_numpy(payload)
    for entry, tensor in zip(layout.entries, tensors, strict=True):
        yield whole[entry.begin : entry.begin + entry.nbytes].view(tensor.dtype).view(tensor.shape)


def clear_gaps(payload: Any, layout: Layout) -> None:
    """Zeros between tensors: equal states are equal bytes, whatever the slot has held before."""
    ends = [entry.begin + entry.nbytes for entry in layout.entries]
    for end, begin in zip(ends, [*(entry.begin for entry in layout.entries[1:]), layout.nbytes], strict=False):
        payload[end:begin] = 0


class RunningSums:
    """crc32c of a payload's chunks, taken while it is copied in order, since what was just written is in the cache.

    Attributes:
        done: of the first chunks. is_stopped: no more is summed; somebody waits for the copies.
    """

    def __init__(self, payload: Any, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._payload, self._chunk_bytes = payload, chunk_bytes
        self.address = payload.ctypes.data
        self.done: list[int] = []
        self.is_stopped = False
        self._at = self._crc = 0

    def reach(self, end: int) -> None:
        """All bytes before `end` are as they will be; lets go of the GIL."""
        while self._at < end and not self.is_stopped:
            edge = (len(self.done) + 1) * self._chunk_bytes
            stop = min(end, edge)
            self._crc = summing.extend(self._crc, self._payload[self._at : stop])
            self._at = stop
            if stop == edge:
                self.done.append(self._crc)
                self._crc = 0


def sums(payload: Any, manifest: Manifest, known: Sequence[int] = ()) -> tuple[int, ...]:
    """crc32c of each chunk of a payload, the first of which are known; lets go of the GIL in each."""
    count = chunk_count(manifest.nbytes, manifest.chunk_bytes)
    bounds = (manifest.chunk(number) for number in range(len(known), count))
    return (*known, *(summing.value(payload[begin:end]) for begin, end in bounds))


def model_layout(model: torch.nn.Module | None) -> str:
    """Digest of the parameters' names, shapes and dtypes, the same however they are sharded."""
    lines = [f"{name} {tuple(p.shape)} {p.dtype}" for name, p in model.named_parameters()] if model is not None else []
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()
