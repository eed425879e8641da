"""Pure. What one shard of one commit consists of: the only description of its bytes, on every tier; JSON, no pickle.

    payload   tensors one after the other, each at a multiple of 64 bytes
    manifest  which commit, which shard, which tensor is where, and a crc32c for each chunk of the payload

A reader that checks each chunk against a manifest, and the manifest against its own sum, can take bytes from anywhere.
"""

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import google_crc32c

from elastic.checkpoint.seal import opened, sealed
from elastic.control.values import CommitId, Fork
from elastic.errors import CorruptError, SettingError

VERSION = 1
ALIGN_BYTES = 64
CHUNK_BYTES = 16 << 20

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
Box = tuple[tuple[int, ...], tuple[int, ...]]


def checked_name(name: str, what: str) -> str:
    """A name that may become part of a path or a key.

    Raises:
        SettingError: it is empty, too long, hidden, or holds anything but letters, digits, dot, dash and underscore.
    """
    if not _NAME.fullmatch(name) or ".." in name:
        raise SettingError(
            f"{what} {name!r} must be 1 to 128 letters, digits, '.', '-' or '_', begin with a letter or digit, "
            "and hold no '..'"
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor of a shard.

    Attributes:
        path: its place in the state's tree, e.g. "/model/0.weight".
        dtype: torch's name for it, e.g. "bfloat16". shape: of the part that this shard holds.
        begin, nbytes: where its bytes are in the payload.
        whole: shape of the whole tensor, of which this is a part; () and equal to `shape` alike mean all of it.
        at: where in the whole this part begins, by dimension.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    nbytes: int
    whole: tuple[int, ...] = ()
    at: tuple[int, ...] = ()

    @property
    def box(self) -> Box:
        """(begin, end) by dimension, in coordinates of the whole tensor."""
        at = self.at or (0,) * len(self.shape)
        return at, tuple(start + size for start, size in zip(at, self.shape, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One shard of one commit.

    Attributes:
        run: name of the run. commit: which update this is the state after.
        shard: which part of a replica, of `shards`.
        layout: digest of parameter names, shapes and dtypes of the model.
        skeleton: the tree without its tensors, JSON (`elastic/train/tree.py`).
        entries: its tensors, in the order in which the skeleton names them.
        nbytes: length of the payload, a multiple of ALIGN_BYTES.
        chunk_bytes, chunks: crc32c of each run of chunk_bytes of the payload; the last one may be shorter.
        forks: where the history of this commit began anew, oldest first.
        replicas: of the generation that committed it. taken_at_s: wall clock.
    """

    run: str
    commit: CommitId
    shard: int
    shards: int
    layout: str
    skeleton: str
    entries: tuple[Entry, ...]
    nbytes: int
    chunks: tuple[int, ...]
    chunk_bytes: int = CHUNK_BYTES
    forks: tuple[Fork, ...] = ()
    replicas: int = 1
    taken_at_s: float = 0.0

    def encode(self) -> bytes:
        """One line of JSON with a sum over all else in it."""
        entries = [{name: getattr(entry, name) for name in Entry.__slots__} for entry in self.entries]
        rest = asdict(replace(self, entries=()))  # asdict copies deeply: ten times slower, and there may be thousands
        forks = [{name: value for name, value in asdict(fork).items() if value != (0, 0)} for fork in self.forks]
        return sealed({**rest, "entries": entries, "forks": forks}, VERSION)

    @staticmethod
    def decode(data: bytes) -> "Manifest":
        """Read `encode`'s line.

        Raises:
            CorruptError: it is not what was written, or of a version that this code cannot read.
        """
        try:
            return _manifest(opened(data, VERSION, "a manifest"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"a manifest cannot be read: {type(error).__name__}: {error}") from error

    def chunk(self, number: int) -> tuple[int, int]:
        """(begin, end) of a chunk in the payload."""
        begin = number * self.chunk_bytes
        return begin, min(begin + self.chunk_bytes, self.nbytes)

    def verify(self, number: int, data: Any, value: Callable[[Any], int] = google_crc32c.value) -> None:
        """Check the bytes of a chunk: `bytes`, or a contiguous uint8 array (google_crc32c takes no memoryview).

        Args:
            value: crc32c of bytes. That of `elastic.checkpoint.summing` holds up no other thread.

        Raises:
            CorruptError: they are not those that were summed; names run, step, shard and chunk.
        """
        begin, end = self.chunk(number)
        if len(data) != end - begin or value(data) != self.chunks[number]:
            raise CorruptError(f"{self.name}: chunk {number} does not match its sum")

    @property
    def name(self) -> str:
        """For people."""
        return f"step {self.commit.step}, shard {self.shard} of {self.shards}, of run {self.run}"

    @property
    def key(self) -> "ShardKey":
        return ShardKey(commit=self.commit, shard=self.shard, shards=self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardKey:
    """Names one shard of one commit within a run. Copies of equal keys (`is_same`) hold the same bytes."""

    commit: CommitId
    shard: int
    shards: int

    def is_same(self, other: "ShardKey") -> bool:
        return (self.shard, self.shards) == (other.shard, other.shards) and self.commit.same_state(other.commit)


def laid_out(tensors: Sequence[Entry]) -> tuple[tuple[Entry, ...], int]:
    """Give each tensor its place in the payload; returns them and the payload's length."""
    placed, at = [], 0
    for tensor in tensors:
        placed.append(replace(tensor, begin=at))
        at += -(-tensor.nbytes // ALIGN_BYTES) * ALIGN_BYTES
    return tuple(placed), at


def chunk_count(nbytes: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    return -(-nbytes // chunk_bytes)


def is_visible(commit: CommitId, forks: Sequence[Fork]) -> bool:
    """Whether a commit belongs to the newest line of history: no later fork left it behind."""
    return not any(fork.voids(commit) for fork in forks)


def _is_sound(entry: Entry) -> bool:
    """Whether its bytes can be a tensor of that shape, and its box lies in the whole."""
    if min((entry.begin, entry.nbytes, *entry.shape, *entry.at)) < 0:
        return False
    whole, dims, items = entry.whole or entry.shape, len(entry.shape), math.prod(entry.shape)
    if len(whole) != dims or len(entry.at) not in (0, dims):
        return False
    if not items:
        return entry.nbytes == 0
    at = entry.at or (0,) * dims
    is_inside = all(map(operator.le, map(operator.add, at, entry.shape), whole))
    return is_inside and entry.nbytes % items == 0 < entry.nbytes


def _manifest(body: dict[str, Any]) -> Manifest:
    def ints(values: Any) -> tuple[int, ...]:
        return tuple(map(int, values))

    entries = tuple(
        Entry(**{**entry, "shape": ints(entry["shape"]), "whole": ints(entry["whole"]), "at": ints(entry["at"])})
        for entry in body.pop("entries")
    )
    manifest = Manifest(
        **{
            **body,
            "commit": CommitId(**body["commit"]),
            "entries": entries,
            "chunks": ints(body["chunks"]),
            "forks": tuple(Fork(**{**fork, "skip": ints(fork.get("skip", (0, 0)))}) for fork in body["forks"]),
        }
    )
    end = max((entry.begin + entry.nbytes for entry in entries), default=0)
    is_whole = manifest.chunk_bytes > 0 and chunk_count(manifest.nbytes, manifest.chunk_bytes) == len(manifest.chunks)
    is_sound = is_whole and all(map(_is_sound, entries))
    if not is_sound or end > manifest.nbytes or not 0 <= manifest.shard < manifest.shards:
        raise CorruptError("a manifest contradicts itself")
    checked_name(manifest.run, "the run of a manifest")
    return manifest
