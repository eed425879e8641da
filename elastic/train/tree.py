"""Effect. State as a tree: a JSON skeleton and a list of tensors, no pickle.

    flatten({"model": ..., "optimizer": ...}) -> Flat(skeleton, tensors)

Dicts keep their keys' types (optimizers key by integers), tuples stay tuples. Leaves are tensors and JSON scalars, as
which their subclasses travel, numpy's float64 for one; anything else is refused with its path.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from elastic.checkpoint import summing
from elastic.errors import StateError
from elastic.train.sharded import local

_LENGTH_BYTES = 8
_SCALARS = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor goes: its path, and the keys that it is made of, dtype and shape."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    keys: tuple[str, ...] = ()

    def empty(self) -> torch.Tensor:
        """Memory for it, on the CPU."""
        return torch.empty(self.shape, dtype=getattr(torch, self.dtype))


@dataclass(frozen=True, slots=True)
class Flat:
    """A flattened tree.

    Attributes:
        tensors: the tree's own, not copies; of a DTensor the part that is here.
        leaves: the same as the tree holds them: with their paths, and whole DTensors.
    """

    skeleton: bytes
    tensors: list[torch.Tensor]
    leaves: list[tuple[str, torch.Tensor]] = field(default_factory=list)


def flatten(tree: Any) -> Flat:
    """Split a tree into its skeleton and its tensors.

    Raises:
        StateError: a leaf is neither a tensor nor a JSON scalar; names its path.
    """
    leaves: list[tuple[str, torch.Tensor]] = []
    node = _encode(tree, "", leaves)
    text = json.dumps(node, separators=(",", ":")).encode()
    return Flat(text, [local(leaf) for _, leaf in leaves], leaves)


def slots(skeleton: bytes) -> list[Slot]:
    """The tensors that a skeleton expects, in order."""
    return list(_slots(json.loads(skeleton), ()))


def keys(skeleton: bytes) -> tuple[str, ...]:
    """The keys of the outermost dict."""
    return tuple(key for key, _ in json.loads(skeleton)["dict"])


def reshaped(skeleton: bytes, shapes: list[tuple[int, ...]]) -> bytes:
    """The same skeleton for tensors of these shapes, in order."""
    node, rest = json.loads(skeleton), iter(shapes)
    for body in _tensor_nodes(node):
        body[1] = list(next(rest))
    return json.dumps(node, separators=(",", ":")).encode()


def unflatten(skeleton: bytes, tensors: list[torch.Tensor]) -> Any:
    """The tree again, holding these very tensors."""
    return _decode(json.loads(skeleton), iter(tensors))


def pack(tree: Any) -> bytes:
    """A tree in one piece: length of the skeleton, skeleton, bytes of the tensors.

    Raises:
        StateError: see `flatten`.
    """
    flat = flatten(tree)
    parts = [bytes(raw_bytes(tensor)) for tensor in flat.tensors]
    return b"".join([len(flat.skeleton).to_bytes(_LENGTH_BYTES, "big"), flat.skeleton, *parts])


def unpack(data: Any) -> Any:
    """The tree of `pack`, with tensors of its own."""
    view = memoryview(data)
    size = int.from_bytes(view[:_LENGTH_BYTES], "big")
    skeleton, at, tensors = bytes(view[_LENGTH_BYTES : _LENGTH_BYTES + size]), _LENGTH_BYTES + size, []
    for slot in slots(skeleton):
        tensor = slot.empty()
        if tensor.numel():
            mine = torch.frombuffer(bytearray(view[at : at + tensor.nbytes]), dtype=tensor.dtype)
            tensor.copy_(mine.view(slot.shape))
        at += tensor.nbytes
        tensors.append(tensor)
    return unflatten(skeleton, tensors)


def digest(flat: Flat) -> int:
    """64 bits over skeleton and tensor bytes (crc32c of each tensor, blake2b over all)."""
    return digest_of(flat.skeleton, map(summed, flat.tensors))


def digest_of(skeleton: bytes, sums: Iterable[int]) -> int:
    """The same, of tensors that were `summed` before."""
    whole = hashlib.blake2b(skeleton, digest_size=8)
    for one in sums:
        whole.update(one.to_bytes(4, "big"))
    return int.from_bytes(whole.digest(), "big")


def summed(tensor: torch.Tensor) -> int:
    """crc32c of its bytes."""
    return summing.value(raw_bytes(tensor))


def raw_bytes(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor: no copy if it is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy() if flat.numel() else b""


def _encode(value: Any, path: str, leaves: list[tuple[str, torch.Tensor]]) -> Any:
    if isinstance(value, torch.Tensor):
        leaf = value.detach()
        leaves.append((path, leaf))
        part = local(leaf)
        return {"tensor": [str(part.dtype).removeprefix("torch."), list(part.shape)]}
    if isinstance(value, Mapping):
        return {"dict": [[_key(k, path), _encode(v, f"{path}/{k}", leaves)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(v, f"{path}/{i}", leaves) for i, v in enumerate(value)]}
    if type(value) in _SCALARS:
        return {"value": value}
    if isinstance(value, int | float):  # a rate that numpy has computed is a float64 from some step on
        return {"value": int(value) if isinstance(value, int) else float(value)}
    raise StateError(
        f"state at {path or '/'} is a {type(value).__name__}: only tensors, numbers, strings and containers travel"
    )


def _key(key: Any, path: str) -> Any:
    if type(key) in (int, str, bool, float):
        return key
    raise StateError(f"a key of the state at {path or '/'} is a {type(key).__name__}: only strings and numbers travel")


def _slots(node: Any, keys: tuple[str, ...]) -> Iterator[Slot]:
    ((kind, body),) = node.items()
    if kind == "tensor":
        yield Slot("".join(f"/{key}" for key in keys), body[0], tuple(body[1]), keys)
    elif kind == "dict":
        for key, child in body:
            yield from _slots(child, (*keys, str(key)))
    elif kind in ("list", "tuple"):
        for i, child in enumerate(body):
            yield from _slots(child, (*keys, str(i)))


def _tensor_nodes(node: Any) -> Iterator[list[Any]]:
    ((kind, body),) = node.items()
    if kind == "tensor":
        yield body
    elif kind != "value":
        for child in body:
            yield from _tensor_nodes(child[1] if kind == "dict" else child)


def _decode(node: Any, tensors: Iterator[torch.Tensor]) -> Any:
    ((kind, body),) = node.items()
    if kind == "tensor":
        return next(tensors)
    if kind == "dict":
        return {key: _decode(child, tensors) for key, child in body}
    if kind == "value":
        return body
    items = [_decode(child, tensors) for child in body]
    return items if kind == "list" else tuple(items)
