"""Damages what torch's own formats wrote, loads it, and counts who took wrong values for right.

As `benchmarks.corruption` does it to this library: a bit is flipped, an end cut off, or the bytes at some place are
those of another step's file. In torch.distributed.checkpoint the files are the data and the metadata, in torch.save
there is one. SILENT: it loaded, and a value is wrong. REFUSED: it raised. HARMLESS: it loaded, and all is right.
"""

import logging
import random
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

SHAPES = {"weight": (9, 7), "bias": (33,), "embedding": (40, 16)}
OLD, NEW = 10, 20
SWAPPED_BYTES = 64

State = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Writes a state into a folder, and reads it back."""

    save: Callable[[State, Path], None]
    load: Callable[[Path], State]


def state_of(step: int) -> State:
    """Every element differs from that of any other step."""
    made, start = {}, step * 10_000.0
    for name, shape in SHAPES.items():
        count = torch.Size(shape).numel()
        made[name] = torch.arange(start, start + count).reshape(shape)
        start += count
    return made


def _dcp_save(state: State, folder: Path) -> None:
    dcp.save(dict(state), storage_writer=dcp.FileSystemWriter(folder), no_dist=True)


def _dcp_load(folder: Path) -> State:
    state = {name: torch.full(shape, -1.0) for name, shape in SHAPES.items()}
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    return state


def _torch_save(state: State, folder: Path) -> None:
    folder.mkdir()
    torch.save(state, folder / "state.pt")


def _torch_load(folder: Path) -> State:
    loaded: State = torch.load(folder / "state.pt", weights_only=True)
    return loaded


FORMATS = {
    "torch.distributed.checkpoint": Format(save=_dcp_save, load=_dcp_load),
    "torch.save": Format(save=_torch_save, load=_torch_load),
}


def counts(format: Format, trials: int, seed: int = 0) -> dict[str, int]:
    """tried, silent, refused, harmless."""
    found: Counter[str] = Counter()
    with _quiet(), tempfile.TemporaryDirectory(prefix="bench-corruption-", dir="/dev/shm") as name:
        old, new = Path(name) / "old", Path(name) / "new"
        format.save(state_of(OLD), old)
        format.save(state_of(NEW), new)
        for number in range(trials):
            copy = Path(name) / "copy"
            shutil.copytree(new, copy)
            _damage(copy, old, random.Random(f"{seed}-{number}"), number)
            found[_outcome(format, copy)] += 1
            shutil.rmtree(copy)
    return {"tried": trials, **{kind: found[kind] for kind in ("silent", "refused", "harmless")}}


def _damage(folder: Path, other: Path, draw: random.Random, number: int) -> None:
    """Files and kinds of damage take turns; the place is drawn."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    path = files[number % len(files)]
    data = path.read_bytes()
    at = draw.randrange(len(data))
    kind = number // len(files) % 3
    if kind == 1:
        path.write_bytes(data[:at])
        return
    changed = bytearray(data)
    if kind == 2:
        theirs = (other / path.name).read_bytes()[at : at + SWAPPED_BYTES]
        changed[at : at + len(theirs)] = theirs
    if bytes(changed) == data:
        changed[at] ^= 1 << draw.randrange(8)
    path.write_bytes(bytes(changed))


def _outcome(format: Format, folder: Path) -> str:
    try:
        loaded = format.load(folder)
    except (Exception, dcp.CheckpointException):  # the latter is no Exception; whatever it is, it was told
        return "refused"
    return "harmless" if _is_right(loaded) else "silent"


def _is_right(loaded: Any) -> bool:
    truth = state_of(NEW)
    return loaded.keys() == truth.keys() and all(_is_equal(loaded[name], truth[name]) for name in truth)


def _is_equal(one: Any, other: torch.Tensor) -> bool:
    return isinstance(one, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)


@contextmanager
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)  # DCP tells of each refused metadata, at length
    try:
        with warnings.catch_warnings(action="ignore"):  # of one process without a process group
            yield
    finally:
        logging.disable(logging.NOTSET)
