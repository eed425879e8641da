"""Effect. The safetensors format (huggingface.co/docs/safetensors): written as a stream, read with every size checked.

8 bytes   length of the header, little-endian
header    JSON: name -> {dtype, shape, data_offsets}, and "__metadata__": strings; padded with blanks
data      the tensors one after the other, without holes
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from elastic.errors import CorruptError, StateError
from elastic.train import tree

_LENGTH_BYTES = 8
_ALIGN_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # of the reference implementation
_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_DTYPES = {code: name for name, code in _CODES.items()}


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor of a file: dtype is torch's name for it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(getattr(torch, self.dtype).itemsize)


def write_header(file: IO[bytes], tensors: Sequence[Named], metadata: Mapping[str, str]) -> None:
    """Begin a file; the tensors' bytes must follow in this order.

    Raises:
        StateError: two tensors share a name, or one is of a dtype that the format does not know.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for tensor in tensors:
        if tensor.name in header:
            raise StateError(f"safetensors: two tensors would be called {tensor.name}; export with --format dcp")
        if tensor.dtype not in _CODES:
            raise StateError(
                f"safetensors: no name for {tensor.dtype}, the dtype of {tensor.name}; export with --format dcp"
            )
        header[tensor.name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN_BYTES)
    file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)


def write_tensor(file: IO[bytes], tensor: torch.Tensor) -> None:
    """The next tensor's bytes."""
    file.write(memoryview(tree.raw_bytes(tensor)))


def read_file(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file, by name; by those that `safetensors.torch.save_model` has left out as tied to others, too.

    Raises:
        CorruptError: it is no safetensors file, or not all of one.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 2 <= length <= min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
            raise CorruptError(f"{path} is no safetensors file")
        try:
            header = json.loads(file.read(length))
            told = header.pop("__metadata__", None) or {}
            tied = {name: kept for name, kept in told.items() if isinstance(kept, str)}  # names left out, and others
            placed = sorted(
                (_placed(name, row) for name, row in header.items()),
                key=lambda one: (one[0], one[1].nbytes),  # an empty one lies where another one begins
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"{path}: its header cannot be read: {type(error).__name__}: {error}") from error
        at, tensors = 0, {}
        for begin, tensor in placed:
            if begin != at:
                raise CorruptError(f"{path}: {tensor.name} does not begin where the one before it ends")
            at += tensor.nbytes
            tensors[tensor.name] = _read_tensor(file, tensor, path)
    if size != _LENGTH_BYTES + length + at:
        raise CorruptError(f"{path} has {size} bytes, and not {_LENGTH_BYTES + length + at}")
    return {name: tensors[kept] for name, kept in tied.items() if kept in tensors} | tensors


def _placed(name: str, row: Mapping[str, Any]) -> tuple[int, Named]:
    begin, end = row["data_offsets"]
    numbers = (begin, end, *row["shape"])
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"{name} is placed by what are no sizes")
    tensor = Named(name, _DTYPES[row["dtype"]], tuple(row["shape"]))
    if end - begin != tensor.nbytes:
        raise ValueError(f"{name} contradicts itself")
    return begin, tensor


def _read_tensor(file: IO[bytes], tensor: Named, path: Path) -> torch.Tensor:
    made = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
    if made.numel() and file.readinto(memoryview(tree.raw_bytes(made))) != tensor.nbytes:  # type: ignore[attr-defined]
        raise CorruptError(f"{path} ends within {tensor.name}")
    return made
