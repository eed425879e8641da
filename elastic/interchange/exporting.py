"""Effect. A commit as files that load without this package: torch's distributed checkpoints (DCP), or safetensors.

Beside the tensors lies `state.json`: which commit it is, and the tree of all state that is no tensor.
"""

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from elastic.checkpoint.boxes import Want, extent, plan, whole_box, whole_shape
from elastic.checkpoint.catalog import Candidate
from elastic.checkpoint.manifest import Manifest, checked_name
from elastic.checkpoint.reader import Effort, ShardReport, read
from elastic.checkpoint.stores.directory import fsync
from elastic.errors import SettingError, StateError
from elastic.interchange.safetensors import Named, write_header, write_tensor
from elastic.train import tree
from elastic.train.restore import raw, refuse_hidden_parts

STATE_FILE = "state.json"
VERSION = 1
_BATCH_BYTES = 256 << 20


class Format(Enum):
    """What can be written."""

    DCP = "dcp"
    SAFETENSORS = "safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written. `whole`: as one model; otherwise each shard lies apart, since it was cut by hand."""

    to: str
    format: str
    step: int
    tensors: int
    nbytes: int
    whole: bool
    read: tuple[ShardReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """A tree to be written: all of the state, or a shard of it.

    Attributes:
        own: where to read it first. names: of tensors, by path, as the state_dict of their object has them.
    """

    prefix: str
    skeleton: bytes
    wants: tuple[Want, ...]
    own: int
    names: Mapping[str, str]


def export(candidate: Candidate, to: Path, form: Format, effort: Effort | None = None) -> Exported:
    """Write a commit into a directory, which is there in whole or not at all.

    Memory: all of the state for DCP, 256 MiB or the largest tensor for safetensors.

    Raises:
        SettingError: the directory exists and is not empty. StateError: the format cannot hold the state.
        RefusedError: bytes cannot be had. OSError.
    """
    effort, to = effort or Effort(), to.resolve()
    if to.is_mount():
        raise SettingError(f"{to} is where a file system is mounted, which no export can replace: name a folder in it")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise SettingError(f"{to} exists and is not an empty directory: export to another place (--to)")
    sections, reports = _sections(candidate, effort)
    partial = to.with_name(f"{to.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        write = _write_dcp if form is Format.DCP else _write_safetensors
        reports += write(candidate, sections, partial, effort)
        text = {
            "version": VERSION,
            "run": candidate.manifests[0].run,
            "commit": asdict(candidate.commit),
            "format": form.value,
            "trees": {section.prefix: json.loads(section.skeleton) for section in sections},
        }
        (partial / STATE_FILE).write_text(json.dumps(text, indent=1))
        for path in (*partial.rglob("*"), partial):  # before its name: whoever finds that may delete the original
            fsync(path)
        partial.replace(to)
        fsync(to.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Exported(
        to=str(to),
        format=form.value,
        step=candidate.commit.step,
        tensors=sum(len(section.wants) for section in sections),
        nbytes=sum(_named(section, want).nbytes for section in sections for want in section.wants),
        whole=len(sections) == 1,
        read=tuple(reports),
    )


def _sections(candidate: Candidate, effort: Effort) -> tuple[list[_Section], list[ShardReport]]:
    manifests = candidate.manifests
    try:
        reports = refuse_hidden_parts(candidate, 0, 1, effort) if len(manifests) > 1 else []
        return [_section("", manifests[0], is_whole=True)], reports
    except StateError:  # shards that cannot be put together are written as they are
        return [_section(f"shard-{one.shard}", one, is_whole=False) for one in manifests], []


def _section(prefix: str, manifest: Manifest, is_whole: bool) -> _Section:
    boxes = [whole_box(whole_shape(entry)) if is_whole else entry.box for entry in manifest.entries]
    wants = tuple(
        Want(path=entry.path, dtype=entry.dtype, whole=whole_shape(entry), box=box)
        for entry, box in zip(manifest.entries, boxes, strict=True)
    )
    skeleton = tree.reshaped(manifest.skeleton.encode(), [extent(box) for box in boxes])
    names = {slot.path: ".".join(slot.keys[1:]) for slot in tree.slots(skeleton)}
    return _Section(prefix=prefix, skeleton=skeleton, wants=wants, own=manifest.shard, names=names)


def _fetch(
    candidate: Candidate, section: _Section, wants: Sequence[Want], effort: Effort
) -> tuple[list[torch.Tensor], list[ShardReport]]:
    tensors = [torch.empty(extent(want.box), dtype=getattr(torch, want.dtype)) for want in wants]
    found = plan(wants, candidate.manifests, own=section.own)
    return tensors, read(candidate, found, [raw(tensor) for tensor in tensors], effort)


def _write_dcp(candidate: Candidate, sections: Sequence[_Section], folder: Path, effort: Effort) -> list[ShardReport]:
    state: dict[str, Any] = {}
    reports: list[ShardReport] = []
    for section in sections:
        tensors, told = _fetch(candidate, section, section.wants, effort)
        reports += told
        part = tree.unflatten(section.skeleton, tensors)
        state |= {section.prefix: part} if section.prefix else part
    try:
        with alone():
            dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    except dcp.CheckpointException as error:
        twice = next((one for one, _ in error.failures.values() if "duplicated flatten key" in str(one)), None)
        if twice is None:
            raise
        raise StateError(
            f"dcp: keys are joined by dots, and two would be called the same ({twice}): name one of them otherwise, or "
            "export with --format safetensors"
        ) from error
    return reports


@contextmanager
def alone() -> Iterator[None]:
    """torch warns of a checkpoint that one process saves or loads by itself, which is what is meant here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


def _write_safetensors(
    candidate: Candidate, sections: Sequence[_Section], folder: Path, effort: Effort
) -> list[ShardReport]:
    """One file for each tracked object; big items first, so that all are aligned without holes."""
    reports: list[ShardReport] = []
    commit = candidate.commit
    metadata = {"format": "pt", "run": candidate.manifests[0].run, "step": str(commit.step), "lineage": commit.lineage}
    for section in sections:
        place = folder / section.prefix
        place.mkdir(exist_ok=True)
        for name, group in groupby(section.wants, key=lambda want: want.path.split("/")[1]):
            wants = sorted(group, key=lambda want: -getattr(torch, want.dtype).itemsize)
            with (place / f"{checked_name(name, 'a tracked object')}.safetensors").open("wb") as file:
                write_header(file, [_named(section, want) for want in wants], metadata)
                for batch in _batches(wants):
                    tensors, told = _fetch(candidate, section, batch, effort)
                    reports += told
                    for tensor in tensors:
                        write_tensor(file, tensor)
    return reports


def _named(section: _Section, want: Want) -> Named:
    """The tensor under the key that its object's state_dict has for it; nested keys are joined by dots."""
    return Named(section.names[want.path], want.dtype, extent(want.box))


def _batches(wants: Sequence[Want]) -> Iterator[list[Want]]:
    batch: list[Want] = []
    total = 0
    for want in wants:
        nbytes = Named("", want.dtype, extent(want.box)).nbytes
        if batch and total + nbytes > _BATCH_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(want)
        total += nbytes
    if batch:
        yield batch
