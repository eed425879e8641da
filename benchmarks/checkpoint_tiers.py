"""What restores and uploads cost beside the training: a shard read back from this node's slots, and made durable.

restore    every byte of a sealed shard, read through the library's reader, verified, into memory that was touched
persistent upload and COMMIT of a shard into a directory; all files are synced
dcp        torch.distributed.checkpoint.save of the same tensors into the same directory, with sync_files=True
"""

import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import torch
import torch.distributed.checkpoint as dcp

from elastic.checkpoint.arena import Arena
from elastic.checkpoint.boxes import Want, plan
from elastic.checkpoint.catalog import candidates
from elastic.checkpoint.manifest import Entry, Manifest, chunk_count, laid_out
from elastic.checkpoint.memory import MemorySource
from elastic.checkpoint.reader import read, take_inventory
from elastic.checkpoint.vault import open_vault
from elastic.control.values import CommitId
from elastic.policies.sizing import SLOTS

RUN = "benchmark-tiers"
TENSORS = 16


def measure(directory: Path, disk: Path | None, nbytes: int, repeats: int) -> dict[str, float]:
    """Medians over the repetitions, the first of which warms up and is left out.

    Args:
        directory: a ramdisk. disk: where durable files go; None: where temporary files do.
    """
    with (
        tempfile.TemporaryDirectory(dir=directory, prefix=RUN) as slots,
        tempfile.TemporaryDirectory(dir=disk, prefix=RUN) as store,
    ):
        arena = Arena(Path(slots), RUN, 1, "w0", SLOTS)
        source = MemorySource(Path(slots), RUN)
        sealed(arena, nbytes)
        rows = [_repetition(source, Path(store), number) for number in range(1 + repeats)][1:]
        arena.close()
    median = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    return {
        "restore_local_bytes_per_s": nbytes / median["restore"],
        "persistent_vs_dcp": statistics.median(row["persistent"] / row["dcp"] for row in rows),
        "persistent_s": median["persistent"],
        "persistent_dcp_s": median["dcp"],
    }


def sealed(arena: Arena, nbytes: int) -> None:
    """One shard of so many bytes."""
    elements = nbytes // 4 // TENSORS
    shape = {"dtype": "float32", "shape": (elements,), "begin": 0, "nbytes": 4 * elements}
    entries, length = laid_out([Entry(path=f"/model/{number}", **shape) for number in range(TENSORS)])
    slot = arena.begin(length)
    assert slot is not None
    slot.payload[:length] = np.random.default_rng(0).integers(0, 256, length, dtype=np.uint8)
    manifest = Manifest(
        run=RUN,
        commit=CommitId(incarnation=1, generation=1, attempt=0, step=1, lineage="bench"),
        shard=0,
        shards=1,
        layout="",
        skeleton="{}",
        entries=entries,
        nbytes=length,
        chunks=(0,) * chunk_count(length),
    )
    bounds = [manifest.chunk(number) for number in range(len(manifest.chunks))]
    chunks = tuple(google_crc32c.value(slot.payload[begin:end]) for begin, end in bounds)
    arena.seal(slot, Manifest(**{name: getattr(manifest, name) for name in Manifest.__slots__} | {"chunks": chunks}))


def _repetition(source: MemorySource, store: Path, number: int) -> dict[str, float]:
    (candidate,) = candidates(take_inventory([source]).holders, RUN)
    (manifest,) = candidate.manifests
    wants = [Want(path=one.path, dtype=one.dtype, whole=one.shape, box=one.box) for one in manifest.entries]
    into = [np.ones(one.nbytes, dtype=np.uint8) for one in manifest.entries]
    tensors = {str(at): torch.from_numpy(array.view(np.float32)) for at, array in enumerate(into)}
    variants: dict[str, Callable[[], Any]] = {
        "restore": lambda: read(candidate, plan(wants, candidate.manifests, own=0), into),
        "persistent": partial(_make_durable, source, manifest, store / f"vault-{number}"),
        "dcp": partial(_save, tensors, store / f"dcp-{number}"),
    }
    names = list(variants)
    seconds = {}
    for name in names[number % len(names) :] + names[: number % len(names)]:
        started_s = time.perf_counter()
        variants[name]()
        seconds[name] = time.perf_counter() - started_s
    for folder in store.iterdir():
        shutil.rmtree(folder)
    return seconds


def _make_durable(source: MemorySource, manifest: Manifest, folder: Path) -> None:
    vault = open_vault(str(folder), RUN, incarnation=1)
    vault.register("a benchmark")
    vault.commit(manifest.commit, [vault.upload(manifest, partial(source.read, manifest.key))])
    vault.close()


def _save(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    with warnings.catch_warnings(action="ignore"):  # of one process without a process group
        dcp.save(dict(tensors), storage_writer=dcp.FileSystemWriter(folder, sync_files=True), no_dist=True)
