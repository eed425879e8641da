"""A small run whose checkpoints lie in every tier, and the places in them that can be damaged."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from elastic.actors.peer_source import PeerSource
from elastic.checkpoint.arena import HEADER_BYTES, PAGE_BYTES, Arena, Header
from elastic.checkpoint.disk import Disk
from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.checkpoint.memory import MemorySource, scan
from elastic.checkpoint.node import Node
from elastic.checkpoint.records import Keys
from elastic.checkpoint.source import Source, Tier
from elastic.checkpoint.store import Store
from elastic.checkpoint.stores import open_store
from elastic.checkpoint.vault import Vault
from elastic.checkpoint.vault_source import VaultSource
from elastic.control.values import CommitId, Fork
from elastic.interchange.packing import pack_shard
from elastic.train import tree

RUN, OTHER_RUN = "night", "day"
OLD, NEW = 10, 20
SHARDS, CHUNK_BYTES = 2, 128
SHAPES = {"weight": (9, 7), "bias": (33,)}
Span = tuple[int, int]
Blob = tuple[str, str]  # kind of place, and its name there


class Region(Enum):
    """What is damaged: (tier, part)."""

    HEADER = (Tier.MEMORY, "header")
    SLOT_MANIFEST = (Tier.MEMORY, "manifest")
    SLOT_PAYLOAD = (Tier.MEMORY, "payload")
    SLOT_PADDING = (Tier.MEMORY, "padding")
    SLOT_FILE = (Tier.MEMORY, "file")
    SLOT_REPLY = (Tier.MEMORY, "reply")
    DISK_PAYLOAD = (Tier.DISK, "payload")
    DISK_PADDING = (Tier.DISK, "padding")
    DISK_MANIFEST = (Tier.DISK, "manifest")
    DISK_REPLY = (Tier.DISK, "reply")
    COPY_PAYLOAD = (Tier.PEER, "payload")
    COPY_PADDING = (Tier.PEER, "padding")
    COPY_REPLY = (Tier.PEER, "reply")
    COPY_MANIFEST = (Tier.PEER, "manifest")
    CHUNK_PAYLOAD = (Tier.PERSISTENT, "payload")
    CHUNK_PADDING = (Tier.PERSISTENT, "padding")
    MANIFEST = (Tier.PERSISTENT, "manifest")
    COMMIT = (Tier.PERSISTENT, "COMMIT")
    FORK = (Tier.PERSISTENT, "fork")
    INCARNATION = (Tier.PERSISTENT, "incarnation")
    LATEST = (Tier.PERSISTENT, "LATEST")
    CHUNK_REPLY = (Tier.PERSISTENT, "reply")

    @property
    def tier(self) -> Tier:
        return self.value[0]


class Damage(Enum):
    """What is done to it; SWAP: it gets what lies at that place in another generation, shard or run."""

    FLIP = "flip"
    TRUNCATE = "truncate"
    SWAP = "swap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A place that can be damaged.

    Attributes:
        spans: (begin, end) within the blob. shard: of which; None: of the run.
        donors: blobs of the same kind elsewhere.
    """

    blob: Blob
    spans: tuple[Span, ...]
    shard: int | None = None
    donors: tuple[Blob, ...] = ()


def whole_state(run: str, step: int) -> dict[str, torch.Tensor]:
    """The tensors of a step; every element differs from that of any other step or run."""
    start = step * 1000.0 + (0.5 if run == RUN else 0.25)
    made = {}
    for number, (name, shape) in enumerate(SHAPES.items()):
        count = torch.Size(shape).numel()
        made[name] = (torch.arange(count, dtype=torch.float32) + start + 300 * number).reshape(shape)
    return made


def cut(size: int, parts: int, part: int) -> Span:
    """The rows of one part, as even as it goes."""
    return part * size // parts, (part + 1) * size // parts


def shard_of(run: str, step: int, shard: int) -> tuple[Manifest, Any]:
    """One shard of a step's state, cut along the first dimension."""
    wholes = whole_state(run, step)
    rows = {name: cut(len(tensor), SHARDS, shard) for name, tensor in wholes.items()}
    parts = {name: tensor[slice(*rows[name])].contiguous() for name, tensor in wholes.items()}
    commit = CommitId(incarnation=1, generation=1, attempt=0, step=step, lineage=f"{run}{step}")
    flat = tree.flatten({"model": parts})
    manifest, payload = pack_shard(flat, run, commit, shard, SHARDS, CHUNK_BYTES)
    placed = []
    for entry in manifest.entries:
        name = entry.path.rpartition("/")[2]
        at = (rows[name][0], *(0 for _ in SHAPES[name][1:]))
        placed.append(replace(entry, whole=SHAPES[name], at=at))
    return replace(manifest, entries=tuple(placed)), payload


class Wire:
    """A source at some distance, whose answers can be spoilt on their way: `spoil(key, begin, data) -> data`."""

    def __init__(self, source: Source, tier: Tier, spoil: Callable[[ShardKey, int, Any], Any]) -> None:
        self.tier, self.where, self._source, self._spoil = tier, source.where, source, spoil

    def manifests(self, step: int | None = None) -> Sequence[Manifest]:
        return self._source.manifests(step)

    def read(self, key: ShardKey, begin: int, end: int) -> Any:
        return self._spoil(key, begin, self._source.read(key, begin, end))


class PeerNode(PeerSource):
    """What another node serves of its copies; asked here, not through Ray.

    Args:
        lines: manifests as they come over the wire, by `_name`; all others come as they are.
    """

    gives_stored = False

    def __init__(self, node: Node, lines: Mapping[str, bytes] = MappingProxyType({})) -> None:
        super().__init__(None, node.name)
        self._held, self._lines = node, lines

    def _ask(self, method: str, group: str, timeout_s: float, *args: Any) -> Any:
        given = getattr(self._held, method)(*args)
        if method == "manifests":
            return [self._sent(manifest) for manifest in given]
        return self._sent(given) if method == "manifest" else given

    def _sent(self, manifest: Manifest) -> bytes:
        return self._lines.get(_name(manifest)) or manifest.encode()


class World:
    """Two runs, of each two generations of two shards, in slots, on a disk, as copies on a node, and in a store.

    Args:
        folder: for slots; the disk is a folder in it. store: of the persistent tier.
    """

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder, self.store = folder, store
        self._disk = folder / "disk"
        self._stores = {"object": store, "disk": open_store(str(self._disk))}
        self._copies: dict[str, Any] = {}
        self._lines: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, int, int], Manifest] = {}
        self.nodes = {run: self._fill(run) for run in (RUN, OTHER_RUN)}
        self.spots = {region: tuple(self._spots(region)) for region in Region}

    def vault(self, run: str = RUN) -> Vault:
        return Vault(self.store, run, threads=2)

    def sources(self) -> dict[Tier, MemorySource | Disk | PeerNode | VaultSource]:
        """Of the run, opened anew."""
        return {
            Tier.MEMORY: MemorySource(self._folder, RUN, where="memory"),
            Tier.DISK: Disk(self._disk, RUN, "disk"),
            Tier.PEER: PeerNode(self.nodes[RUN], self._lines),
            Tier.PERSISTENT: VaultSource(self.vault()),
        }

    def get(self, blob: Blob) -> bytes:
        kind, name = blob
        if kind == "slot":
            return (self._folder / name).read_bytes()
        if kind == "line":
            return self._lines[name]
        return self._copies[name].tobytes() if kind == "copy" else self._stores[kind].read(name)

    def set(self, blob: Blob, data: bytes) -> None:
        """In place; a copy that is too short ends in zeros."""
        kind, name = blob
        if kind == "slot":
            with (self._folder / name).open("r+b") as file:
                file.write(data)
                file.truncate()
        elif kind == "copy":
            target = self._copies[name]
            target[...] = np.frombuffer(data.ljust(len(target), b"\0")[: len(target)], dtype=np.uint8)
        elif kind == "line":
            self._lines[name] = data
        else:
            self._stores[kind].put(name, data)

    # --- inside ---

    def _fill(self, run: str) -> Node:
        vault = self.vault(run)
        vault.register("benchmark")
        vault.fork(Fork(incarnation=1, generation=1, step=-1))
        local = Node("a", MemorySource(self._folder, run), 1 << 20, lambda array: (None, np.array(array)))
        disk, name = Disk(self._disk, run), ""

        def put(array: Any) -> tuple[Any, Any]:
            self._copies[name] = np.array(array)
            return None, self._copies[name]

        node = Node("b", MemorySource(self._folder / "none", run), 1 << 20, put)
        for step in (OLD, NEW):
            for shard in range(SHARDS):
                manifest, payload = shard_of(run, step, shard)
                self.manifests[run, step, shard] = manifest
                self._seal(manifest, payload)
                name = _name(manifest)
                node.pull(manifest.key, [PeerNode(local)])
                disk.write(manifest, lambda a, b, held=payload: held[a:b])
                self._lines[_name(manifest)] = manifest.encode().rstrip()  # a line end less changes nothing
            mine = [self.manifests[run, step, shard] for shard in range(SHARDS)]
            digests = [vault.upload(one, lambda a, b, one=one: node.read(one.key, a, b)) for one in mine]
            vault.commit(mine[0].commit, digests)
        return node

    def _seal(self, manifest: Manifest, payload: Any) -> None:
        arena = Arena(self._folder, manifest.run, 1, f"w{manifest.shard}-{manifest.commit.step}", slots=1)
        slot = arena.begin(manifest.nbytes)
        if slot is None:
            raise RuntimeError("a new arena has no free slot")
        slot.payload[: manifest.nbytes] = payload
        arena.seal(slot, manifest)
        arena.close()

    def _spots(self, region: Region) -> Iterator[Spot]:
        tier, part = region.value
        if part in ("fork", "incarnation", "LATEST", "COMMIT"):
            yield self._record(part)
            return
        for shard in range(SHARDS):
            manifest = self.manifests[RUN, NEW, shard]
            others = [one for one in self.manifests.values() if one is not manifest]
            if tier is Tier.MEMORY and part != "reply":
                yield self._slot(manifest, others, part)
            elif (tier, part) == (Tier.PEER, "manifest"):
                yield self._blob("line", _name(manifest), map(_name, others), shard)
            elif tier is Tier.PEER or part == "reply":
                blob, *donors = [("copy", _name(one)) for one in (manifest, *others)]
                spans = ((0, manifest.nbytes),) if part == "reply" else _spans(manifest, part)
                yield Spot(blob=blob, spans=spans, shard=shard, donors=tuple(donors))
            elif part == "manifest":
                kind = _kind(tier)
                mine, *theirs = [self._manifest_key(kind, one) for one in (manifest, *others)]
                yield self._blob(kind, mine, theirs, shard)
            else:
                yield from self._chunks(_kind(tier), manifest, others, part)

    def _record(self, part: str) -> Spot:
        if part == "LATEST":
            return self._blob("object", self.vault().keys.latest, [self.vault(OTHER_RUN).keys.latest])
        folder = {"fork": "forks", "incarnation": "incarnations", "COMMIT": "commits"}[part]
        keys = [item.key for run in (RUN, OTHER_RUN) for item in self.store.list(f"{run}/{folder}/")]
        mine = next(key for key in keys if key.startswith(RUN) and (part != "COMMIT" or f"{NEW:010d}" in key))
        donors = [key for key in keys if key != mine]
        return self._blob("object", mine, donors)

    def _blob(self, kind: str, name: str, donors: Iterable[str], shard: int | None = None) -> Spot:
        """All of it."""
        return Spot(
            blob=(kind, name),
            spans=((0, len(self.get((kind, name)))),),
            shard=shard,
            donors=tuple((kind, donor) for donor in donors),
        )

    def _manifest_key(self, kind: str, manifest: Manifest) -> str:
        keys = Keys(manifest.run)
        step = self._stores[kind].list(f"{manifest.run}/steps/")
        folder = keys.chunk(manifest, 0).rpartition("/")[0]
        return next(item.key for item in step if item.key.startswith(f"{folder}/manifest-"))

    def _chunks(self, kind: str, manifest: Manifest, others: Sequence[Manifest], part: str) -> Iterator[Spot]:
        for number in range(len(manifest.chunks)):
            first, last = manifest.chunk(number)
            spans = [(max(a, first) - first, min(b, last) - first) for a, b in _spans(manifest, part)]
            spans = [(a, b) for a, b in spans if a < b]
            theirs = [one for one in (manifest, *others) if number < len(one.chunks)]
            blob, *donors = [(kind, Keys(one.run).chunk(one, number)) for one in theirs]
            if spans:
                yield Spot(blob=blob, spans=tuple(spans), shard=manifest.shard, donors=tuple(donors))

    def _slot(self, manifest: Manifest, others: Sequence[Manifest], part: str) -> Spot:
        paths = {}
        for run in (RUN, OTHER_RUN):
            paths |= {(run, one.manifest.key): one.path for one in scan(self._folder, run)}
        blob, *donors = [("slot", paths[one.run, one.key].name) for one in (manifest, *others)]
        data = self.get(blob)
        header = Header.decode(data[:HEADER_BYTES])
        if header is None:
            raise RuntimeError("a sealed slot has no header")
        end = PAGE_BYTES + header.capacity
        inner = tuple((PAGE_BYTES + a, PAGE_BYTES + b) for a, b in _spans(manifest, part))
        spans = {
            "header": ((0, HEADER_BYTES),),
            "manifest": ((end, end + header.manifest_bytes),),
            "payload": inner,
            "padding": (*inner, (HEADER_BYTES, PAGE_BYTES), (PAGE_BYTES + manifest.nbytes, end)),
            "file": ((0, len(data)),),
        }[part]
        return Spot(blob=blob, spans=spans, shard=manifest.shard, donors=tuple(donors))


def _name(manifest: Manifest) -> str:
    return f"{manifest.run}-{manifest.commit.step}-{manifest.shard}"


def _kind(tier: Tier) -> str:
    """Of blobs in a tier that keeps them in a store."""
    return "disk" if tier is Tier.DISK else "object"


def _spans(manifest: Manifest, part: str) -> tuple[Span, ...]:
    """Where tensors lie in a payload, or what lies between them."""
    tensors = [(entry.begin, entry.begin + entry.nbytes) for entry in manifest.entries]
    if part == "payload":
        return tuple(tensors)
    edges = [0, *(edge for span in tensors for edge in span), manifest.nbytes]
    return tuple((a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b)


def damaged(world: World, spot: Spot, damage: Damage, draw: random.Random) -> bytes:
    """What the blob holds afterwards; where the damage would change nothing (zeros for zeros), a bit is flipped."""
    data = world.get(spot.blob)
    begin, end = draw.choice(spot.spans)
    at = draw.randrange(begin, end)
    changed = data
    if damage is Damage.TRUNCATE:
        changed = data[:at]
    elif damage is Damage.SWAP:
        changed = _swapped(data, world.get(draw.choice(spot.donors)), spot.spans)
    is_same = spot.blob[0] == "copy" and changed.ljust(len(data), b"\0")[: len(data)] == data
    if changed == data or is_same:
        flipped = bytearray(data)
        flipped[at] ^= 1 << draw.randrange(8)
        changed = bytes(flipped)
    return changed


def _swapped(data: bytes, theirs: bytes, spans: tuple[Span, ...]) -> bytes:
    """The other's bytes in these places; all of it, whatever its length, where the spans are all."""
    if spans == ((0, len(data)),):
        return theirs
    for begin, end in spans:
        data = data[:begin] + theirs[begin:end].ljust(end - begin, b"\0") + data[end:]
    return data
