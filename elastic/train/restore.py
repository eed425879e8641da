"""Effect. Restoring: the tracked objects get the state of a commit, whatever number of workers saved it.

All bytes are here, and checked, before the first object is touched; so a refusal leaves the objects as they were, and
workers can agree that each of them has all it needs before any of them installs it.
"""

import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from elastic.checkpoint.boxes import Plan, Want, copies, extent, plan, whole_box, whole_shape
from elastic.checkpoint.catalog import Candidate
from elastic.checkpoint.manifest import Box, Manifest
from elastic.checkpoint.reader import Effort, ShardReport, read
from elastic.control.values import CommitId
from elastic.errors import StateError
from elastic.train import tree
from elastic.train.heal import install
from elastic.train.landing import Landing
from elastic.train.sharded import box, local
from elastic.train.tracked import Tracked, params_of

log = logging.getLogger("elastic")


@dataclass(frozen=True, slots=True)
class Part:
    """This worker's part of a live tensor: dtype, shape of the whole, and which box of it."""

    dtype: str
    whole: tuple[int, ...]
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a worker has restored (C26).

    Attributes:
        commit: which state. shard, shards: of this worker. saved_shards: of those who saved it.
        read: by saved shard, from where, how much, how often in vain.
        seconds: reading, checking and installing.
        unused: names in the checkpoint that no tracked object has.
        missing: tracked objects that a start state (`elastic import`) has nothing for; they stay as they were built.
    """

    commit: CommitId
    shard: int
    shards: int
    saved_shards: int
    read: tuple[ShardReport, ...]
    seconds: float
    unused: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fetched:
    """State that is here, checked, and not installed yet."""

    tracked: Tracked
    skeleton: bytes
    tensors: list[torch.Tensor]
    report: Report

    def install(self) -> Report:
        """Set the objects in place.

        Raises:
            DivergenceError: an object did not take its state over; names it.
        """
        begun_s = time.monotonic()
        received = tree.unflatten(self.skeleton, self.tensors)
        names = [name for name in self.tracked.names if name in received]
        digests = {name: tree.digest(tree.flatten(received[name])) for name in names}
        install(self.tracked, self.skeleton, self.tensors, digests)
        self.tracked.freshen(received)
        return replace(self.report, seconds=self.report.seconds + time.monotonic() - begun_s)


def restore(
    tracked: Tracked, candidate: Candidate, shard: int = 0, shards: int = 1, effort: Effort | None = None
) -> Report:
    """Fetch and install at once, for who need not agree with others; see `fetch`."""
    return fetch(tracked, candidate, shard, shards, effort=effort).install()


def fetch(
    tracked: Tracked,
    candidate: Candidate,
    shard: int,
    shards: int,
    landing: Landing | None = None,
    effort: Effort | None = None,
) -> Fetched:
    """Read what this worker needs of a commit.

    Args:
        shard, shards: this worker's place in its replica, and how many they are now.
        landing: memory for it that is warm already.

    Raises:
        RefusedError: bytes cannot be had, or are bad wherever they are: take an older step. Names the shard.
        StateError: the objects are not those that were saved, or cannot be cut anew; names the path.
    """
    begun_s = time.monotonic()
    effort = effort or Effort(turn=shard)
    landing = landing or Landing()
    saved = _saved(candidate, shard, shards)
    unused, missing = _fitting_names(tracked, saved)
    found = plan_for(tracked, candidate, shard, shards)
    skeleton = tree.reshaped(saved.skeleton.encode(), [extent(want.box) for want in found.wants])
    tensors = [landing.empty(slot) for slot in tree.slots(skeleton)]
    reports = read(candidate, found, [raw(tensor) for tensor in tensors], effort)
    if len(candidate.shards) != shards:
        reports += refuse_hidden_parts(candidate, shard, shards, effort)
    return Fetched(
        tracked,
        skeleton,
        tensors,
        Report(
            commit=candidate.commit,
            shard=shard,
            shards=shards,
            saved_shards=len(candidate.shards),
            read=tuple(reports),
            seconds=time.monotonic() - begun_s,
            unused=unused,
            missing=missing,
        ),
    )


def plan_for(tracked: Tracked, candidate: Candidate, shard: int, shards: int) -> Plan:
    """What this worker has to read, by shard and chunk (`Plan.chunks`).

    Raises:
        StateError: see `fetch`.
    """
    saved, parts = _saved(candidate, shard, shards), _parts(tracked)
    _refuse_other_models(tracked, saved, parts)
    wants = list(_wants(saved, parts, is_same_cut=len(candidate.shards) == shards))
    return plan(wants, candidate.manifests, own=saved.shard)


def _saved(candidate: Candidate, shard: int, shards: int) -> Manifest:
    """Whose tree this worker takes over: its own shard's, or the first one's where shards are cut anew."""
    return candidate.manifests[shard if len(candidate.shards) == shards else 0]


def raw(tensor: torch.Tensor) -> np.ndarray:
    """(bytes,) uint8, the tensor's own memory."""
    return tree.raw_bytes(tensor) if tensor.numel() else np.empty(0, dtype=np.uint8)


def _fitting_names(tracked: Tracked, saved: Manifest) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names that only the checkpoint has, and those that only the tracked objects have."""
    held = tree.keys(saved.skeleton.encode())
    unused = tuple(name for name in held if name not in tracked.names)
    missing = tracked.lacking(held)
    if missing and not is_start(saved.commit):
        raise StateError(
            f"the checkpoint of step {saved.commit.step} holds {', '.join(held)} and nothing for {', '.join(missing)}: "
            "track under the names it was saved with, or start a run of another name"
        )
    if unused:
        log.warning("the checkpoint also holds %s, which nothing here is tracked as", ", ".join(unused))
    return unused, missing


def is_start(commit: CommitId) -> bool:
    """Whether this is the state of an import, which a run begins with, and not one that a run has committed."""
    return commit.incarnation == 0


def _parts(tracked: Tracked) -> dict[str, Part]:
    """This worker's part of each live tensor; a prefix that ends in '/' stands for an optimizer's moments."""
    parts = {path: _part(leaf) for path, leaf in tracked.flatten().leaves}
    for name, optimizer in tracked.named(torch.optim.Optimizer).items():
        for index, param in enumerate(params_of(optimizer)):
            parts[f"/{name}/state/{index}/"] = _part(param.detach())
    return parts


def _part(leaf: torch.Tensor) -> Part:
    whole, at = box(leaf)
    here, dtype = tuple(local(leaf).shape), str(leaf.dtype).removeprefix("torch.")
    if not whole:
        return Part(dtype, here, whole_box(here))
    return Part(dtype, whole, (at, tuple(start + size for start, size in zip(at, here, strict=True))))


def _wants(saved: Manifest, parts: Mapping[str, Part], is_same_cut: bool) -> Iterator[Want]:
    """One for each tensor of the saved tree: the part that is live here, or what was saved."""
    for entry in saved.entries:
        whole = whole_shape(entry)
        part = parts.get(entry.path) or parts.get(f"{entry.path.rpartition('/')[0]}/")
        mine = entry.box if is_same_cut else whole_box(whole)
        if part is not None and part.whole == whole:
            mine = part.box
        yield Want(path=entry.path, dtype=entry.dtype, whole=whole, box=mine)


def _refuse_other_models(tracked: Tracked, saved: Manifest, parts: Mapping[str, Part]) -> None:
    """Other objects may make of their state what they like; a model's tensors are copied, so they must be the same.

    Raises:
        StateError: names the first path that only one of the two has, or of another shape or dtype.
    """
    held = tree.keys(saved.skeleton.encode())
    modules = tuple(f"/{name}/" for name in tracked.named(torch.nn.Module) if name in held)
    live = {path: part for path, part in parts.items() if _is_fixed(path, modules)}
    kept = {entry.path: entry for entry in saved.entries if _is_fixed(entry.path, modules)}
    for path in sorted(live.keys() ^ kept.keys()):
        where, other = ("the checkpoint", "the model here") if path in kept else ("the model here", "the checkpoint")
        raise StateError(f"{where} has {path}, and {other} has not: restore into the model it was saved from")
    for path, part in live.items():
        was = kept[path].dtype, whole_shape(kept[path])
        if was != (part.dtype, part.whole):
            raise StateError(
                f"{path} is {was[0]} of shape {was[1]} in the checkpoint, and {part.dtype} of shape {part.whole} here: "
                "restore into the model it was saved from"
            )


def _is_fixed(path: str, modules: tuple[str, ...]) -> bool:
    return path.startswith(modules) and "_extra_state" not in path


def refuse_hidden_parts(candidate: Candidate, shard: int, shards: int, effort: Effort) -> list[ShardReport]:
    """What is cut anew must say how it was cut.

    Raises:
        StateError: shards hold different objects or values without saying that these are parts; names the path.
    """
    manifests = candidate.manifests
    count = len(manifests)
    trees = {tree.reshaped(one.skeleton.encode(), [()] * len(one.entries)) for one in manifests}
    if len(trees) > 1:
        raise StateError(
            f"the {count} shards of step {candidate.commit.step} hold different objects, so they cannot be cut for "
            f"{shards} workers: restore with Scaling.workers_per_replica={count}"
        )
    pairs = copies(manifests, shard, shards)
    if not pairs:
        return []
    wants = [want for want, _ in pairs]
    theirs, first = Plan(wants=tuple(wants), pieces=tuple(piece for _, piece in pairs)), plan(wants, manifests, own=0)
    both = [[np.empty(_size(want), dtype=np.uint8) for want in wants] for _ in range(2)]
    reports = read(candidate, theirs, both[0], effort) + read(candidate, first, both[1], effort)
    for want, one, other in zip(wants, *both, strict=True):
        if not np.array_equal(one, other):
            raise StateError(
                f"shards hold different values at {want.path} without saying which part of it each is (a tensor cut by "
                f"hand, not a DTensor), so they cannot be cut for {shards} workers: restore with "
                f"Scaling.workers_per_replica={count}"
            )
    return reports


def _size(want: Want) -> int:
    return math.prod(extent(want.box)) * getattr(torch, want.dtype).itemsize
