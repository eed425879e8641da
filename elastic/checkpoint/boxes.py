"""Pure. Parts of tensors as boxes, and which bytes of which shards make up the parts that somebody wants.

A box is (begin, end) by dimension, in coordinates of the whole tensor; tensors lie in C order. Any sharding that
consists of boxes can be read by any other: N workers of a replica or M, evenly cut or not, with parts held twice.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from elastic.checkpoint.manifest import Box, Entry, Manifest
from elastic.errors import StateError


def extent(box: Box) -> tuple[int, ...]:
    """Its size by dimension; () for a scalar, which holds one element."""
    return tuple(end - begin for begin, end in zip(*box, strict=True))


def whole_box(shape: tuple[int, ...]) -> Box:
    """All of a tensor of that shape."""
    return (0,) * len(shape), shape


def whole_shape(entry: Entry) -> tuple[int, ...]:
    """Shape of the tensor of which the entry is a part."""
    return entry.whole or entry.shape


def overlap(one: Box, other: Box) -> Box | None:
    """What two boxes of one tensor have in common, or None if that is no element."""
    begin = tuple(map(max, one[0], other[0]))
    end = tuple(map(min, one[1], other[1]))
    return (begin, end) if all(low < high for low, high in zip(begin, end, strict=True)) else None


def without(box: Box, hole: Box) -> list[Box]:
    """Disjoint boxes that make up `box` less `hole`, which lies in it."""
    rest, (begin, end) = [], box
    for dim, (low, high) in enumerate(zip(*hole, strict=True)):
        if begin[dim] < low:
            rest.append((begin, (*end[:dim], low, *end[dim + 1 :])))
        if high < end[dim]:
            rest.append(((*begin[:dim], high, *begin[dim + 1 :]), end))
        begin, end = (*begin[:dim], low, *begin[dim + 1 :]), (*end[:dim], high, *end[dim + 1 :])
    return rest


def span(inner: Box, outer: Box) -> tuple[int, int]:
    """(first, end) of the elements of `inner` where `outer` lies in C order; others may lie between them."""
    first = last = 0
    for low, high, begin, size in zip(*inner, outer[0], extent(outer), strict=True):
        first = first * size + low - begin
        last = last * size + high - 1 - begin
    return first, last + 1


def is_one_run(inner: Box, outer: Box) -> bool:
    """Whether the elements of `inner` lie side by side where `outer` lies in C order."""
    first, end = span(inner, outer)
    return end - first == math.prod(extent(inner))


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A part of a tensor that somebody needs: `box` of the tensor at `path`, whose shape is `whole`."""

    path: str
    dtype: str
    whole: tuple[int, ...]
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Where a part of a want comes from: `box` of an entry of a shard's manifest. `want`, `entry`: their numbers."""

    want: int
    shard: int
    entry: int
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Pieces that fill each want exactly, without overlap."""

    wants: tuple[Want, ...]
    pieces: tuple[Piece, ...]

    def chunks(self, manifests: Sequence[Manifest]) -> dict[int, tuple[int, ...]]:
        """Numbers of the chunks to read, by shard: what it takes to read each of them once for several workers."""
        needed: dict[int, set[int]] = {}
        for piece in self.pieces:
            needed.setdefault(piece.shard, set()).update(chunk_numbers(piece, manifests[piece.shard]))
        return {shard: tuple(sorted(needed[shard])) for shard in sorted(needed)}


def byte_span(piece: Piece, manifest: Manifest) -> tuple[int, int]:
    """(begin, end) of the bytes of a shard's payload among which all of the piece are."""
    entry = manifest.entries[piece.entry]
    item_bytes = entry.nbytes // math.prod(entry.shape)
    first, end = span(piece.box, entry.box)
    return entry.begin + first * item_bytes, entry.begin + end * item_bytes


def chunk_numbers(piece: Piece, manifest: Manifest) -> set[int]:
    """Of the chunks that hold bytes of a piece; what lies between its rows is left out where that is a whole chunk."""
    entry, chunk_bytes = manifest.entries[piece.entry], manifest.chunk_bytes
    fixed, row_bytes = 0, entry.nbytes
    while fixed < len(entry.shape) and row_bytes // entry.shape[fixed] >= chunk_bytes:
        row_bytes //= entry.shape[fixed]
        fixed += 1
    low, high = piece.box
    found: set[int] = set()
    for at in itertools.product(*map(range, low[:fixed], high[:fixed])):
        row = replace(piece, box=((*at, *low[fixed:]), (*(place + 1 for place in at), *high[fixed:])))
        begin, end = byte_span(row, manifest)
        found.update(range(begin // chunk_bytes, -(-end // chunk_bytes)))
    return found


def plan(wants: Sequence[Want], manifests: Sequence[Manifest], own: int | None = None) -> Plan:
    """Find pieces for all wants.

    Args:
        manifests: of all shards of one commit, by shard.
        own: the shard to take from first, where several hold the same; else the lowest.

    Raises:
        StateError: something is not there, or is of another dtype or shape; names its path.
    """
    order = sorted(range(len(manifests)), key=lambda shard: (shard != own, shard))
    index: dict[int, dict[str, int]] = {}

    def holders(path: str) -> Iterator[tuple[int, int, Entry]]:
        for shard in order:
            if shard not in index:  # most workers look at no shard but their own
                index[shard] = _by_path(manifests[shard])
            place = index[shard].get(path)
            if place is not None:
                yield shard, place, manifests[shard].entries[place]

    pieces = [piece for number, want in enumerate(wants) for piece in _fill(number, want, holders(want.path))]
    return Plan(wants=tuple(wants), pieces=tuple(pieces))


def copies(manifests: Sequence[Manifest], reader: int, readers: int) -> list[tuple[Want, Piece]]:
    """Tensors that other shards hold as shard 0 does, to be compared with its own before shards are cut anew.

    A tensor that was cut by hand does not say where its part begins: each shard seems to hold all of it, and only the
    values differ. Each of `readers` compares its share of the shards.
    """
    first = {entry.path for entry in manifests[0].entries}
    found: list[tuple[Want, Piece]] = []
    for shard in range(1, len(manifests)):
        if shard % readers != reader:
            continue
        for number, entry in enumerate(manifests[shard].entries):
            whole = whole_shape(entry)
            if entry.path in first and not entry.at and entry.shape == whole and entry.nbytes:
                want = Want(path=entry.path, dtype=entry.dtype, whole=whole, box=whole_box(whole))
                found.append((want, Piece(want=len(found), shard=shard, entry=number, box=want.box)))
    return found


def _fill(number: int, want: Want, holders: Iterator[tuple[int, int, Entry]]) -> list[Piece]:
    rest, pieces, is_there = [want.box] if math.prod(extent(want.box)) else [], [], False
    for shard, place, entry in holders:
        is_there = True
        if not rest:
            break
        _same_tensor(entry, want)
        left = []
        for box in rest:
            common = overlap(box, entry.box)
            if common is None:
                left.append(box)
                continue
            pieces.append(Piece(want=number, shard=shard, entry=place, box=common))
            left += without(box, common)
        rest = left
    if not is_there:
        raise StateError(f"the checkpoint holds nothing at {want.path}: restore into the objects it was saved from")
    if rest:
        raise StateError(f"no shard of the checkpoint holds {want.path} from {rest[0][0]} to {rest[0][1]}")
    return pieces


def _same_tensor(entry: Entry, want: Want) -> None:
    if (entry.dtype, whole_shape(entry)) != (want.dtype, want.whole):
        raise StateError(
            f"{want.path} is {entry.dtype} of shape {whole_shape(entry)} in the checkpoint, and {want.dtype} of shape "
            f"{want.whole} here: restore into the objects it was saved from"
        )


def _by_path(manifest: Manifest) -> dict[str, int]:
    places: dict[str, int] = {}
    for number, entry in enumerate(manifest.entries):
        if places.setdefault(entry.path, number) != number:
            raise StateError(f"two tensors of the checkpoint are at {entry.path}: their keys differ in type only")
    return places
