"""Pure. C12: any sharding that consists of boxes can be read by any other, each element once."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elastic.checkpoint import boxes
from elastic.checkpoint.boxes import Want, byte_span, extent, is_one_run, overlap, plan, span, whole_box, without
from elastic.checkpoint.manifest import Entry, Manifest, laid_out
from elastic.control.values import CommitId
from elastic.errors import StateError

COMMIT = CommitId(incarnation=1, generation=1, attempt=0, step=7, lineage="a")


def cells(box):
    return set(itertools.product(*(range(low, high) for low, high in zip(*box, strict=True))))


@st.composite
def box_in(draw, shape):
    low = tuple(draw(st.integers(0, size)) for size in shape)
    return low, tuple(draw(st.integers(start, size)) for start, size in zip(low, shape, strict=True))


@st.composite
def two_boxes(draw):
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    return shape, draw(box_in(shape)), draw(box_in(shape))


@given(two_boxes())
@example(((4,), ((0,), (4,)), ((2,), (3,))))
def test_overlap_and_rest_are_those_of_sets(drawn):
    _, one, other = drawn
    common = overlap(one, other)
    assert cells(common) == cells(one) & cells(other) if common else not cells(one) & cells(other)
    if common:
        rest = without(one, common)
        assert sum(len(cells(box)) for box in rest) == len(set().union(*map(cells, rest), set()))
        assert set().union(*map(cells, rest), set()) == cells(one) - cells(common)


@given(two_boxes())
def test_a_span_is_the_shortest_run_that_holds_a_box(drawn):
    shape, inner, _ = drawn
    if not cells(inner):
        return
    order = sorted(cells(whole_box(shape)))
    places = sorted(order.index(cell) for cell in cells(inner))
    assert span(inner, whole_box(shape)) == (places[0], places[-1] + 1)
    assert is_one_run(inner, whole_box(shape)) == (places == list(range(places[0], places[-1] + 1)))


def chunked(size: int, parts: int) -> list[tuple[int, int]]:
    """(begin, end) of each part, as torch.chunk cuts: the last ones may be shorter, or empty."""
    step = -(-size // parts)
    return [(min(part * step, size), min((part + 1) * step, size)) for part in range(parts)]


def cut(shape, dim, parts):
    """Boxes of an even-as-can-be cut along one dimension; along none, each part is all of it."""
    if dim is None or not shape:
        return [whole_box(shape)] * parts
    rows = chunked(shape[dim % len(shape)], parts)
    at = dim % len(shape)
    low, high = whole_box(shape)
    return [((*low[:at], b, *low[at + 1 :]), (*high[:at], e, *high[at + 1 :])) for b, e in rows]


@st.composite
def grid(draw, shape, parts):
    """A box for each part, of a grid along one dimension or two; they may differ in size, and be empty."""
    along = draw(st.permutations(range(len(shape))))[:2]
    rows = draw(st.sampled_from([n for n in range(1, parts + 1) if parts % n == 0])) if len(along) > 1 else parts
    counts = dict(zip(along, (rows, parts // rows), strict=False))
    edges = []
    for dim, size in enumerate(shape):
        inner = draw(st.lists(st.integers(0, size), min_size=counts.get(dim, 1) - 1, max_size=counts.get(dim, 1) - 1))
        edges.append(list(itertools.pairwise([0, *sorted(inner), size])))
    boxes = [tuple(zip(*cell, strict=True)) for cell in itertools.product(*edges)]
    return boxes if shape else [whole_box(shape)] * parts


def sharded(tensors, parts, chunk_bytes=64):
    """A manifest for each shard; tensors: (shape, dimension it is cut along)."""
    rows = [cut(shape, dim, parts) for shape, dim in tensors]
    made = []
    for shard in range(parts):
        entries, nbytes = laid_out(
            [
                Entry(
                    path=f"/m/{number}",
                    dtype="float32",
                    shape=extent(rows[number][shard]),
                    begin=0,
                    nbytes=4 * math.prod(extent(rows[number][shard])),
                    whole=shape,
                    at=rows[number][shard][0],
                )
                for number, (shape, _) in enumerate(tensors)
            ]
        )
        made.append(
            Manifest(
                run="r",
                commit=COMMIT,
                shard=shard,
                shards=parts,
                layout="",
                skeleton='{"dict":[]}',
                entries=entries,
                nbytes=nbytes,
                chunk_bytes=chunk_bytes,
                chunks=(0,) * -(-nbytes // chunk_bytes),
            )
        )
    return made


sizes = st.sampled_from((1, 2, 3, 4, 5, 7, 0))
shapes = st.sampled_from((2, 3, 1, 0)).flatmap(lambda dims: st.tuples(*[sizes] * dims))
cuts = st.sampled_from((0, 1, 2, None))
tensors = st.lists(st.tuples(shapes, cuts), min_size=1, max_size=4)


@given(tensors, st.integers(1, 5), st.integers(1, 5), cuts, st.data())
def test_c12_each_element_of_a_want_comes_from_one_shard(saved, before, after, dim, data):
    manifests = sharded(saved, before)
    reader = data.draw(st.integers(0, after - 1))
    wants = [
        Want(path=f"/m/{n}", dtype="float32", whole=shape, box=cut(shape, dim, after)[reader])
        for n, (shape, _) in enumerate(saved)
    ]
    found = plan(wants, manifests, own=data.draw(st.none() | st.integers(0, before - 1)))
    for number, want in enumerate(wants):
        mine = [piece for piece in found.pieces if piece.want == number]
        assert sum(len(cells(piece.box)) for piece in mine) == len(cells(want.box))
        assert set().union(*(cells(piece.box) for piece in mine), set()) == cells(want.box)
    for piece in found.pieces:
        entry = manifests[piece.shard].entries[piece.entry]
        assert cells(piece.box) <= cells(entry.box)
        begin, end = byte_span(piece, manifests[piece.shard])
        assert entry.begin <= begin < end <= entry.begin + entry.nbytes
        touched = found.chunks(manifests)[piece.shard]
        assert {begin // 64, (end - 1) // 64} <= set(touched)
    if before == after and dim is not None and all(cut_along == dim for _, cut_along in saved):
        same = plan(wants, manifests, own=reader)
        assert {piece.shard for piece in same.pieces} <= {reader}, "the same cut is read from the own shard alone"


def test_what_several_shards_hold_is_read_from_the_own_one():
    want = Want(path="/m/0", dtype="float32", whole=(3,), box=((0,), (3,)))
    manifests = sharded([((3,), None)], 4)
    assert [{piece.shard for piece in plan([want], manifests, own).pieces} for own in (2, None)] == [{2}, {0}]


def test_only_what_overlaps_is_read():
    manifests = sharded([((64, 4), 0)], 4)  # 16 rows of 16 bytes for each shard: 4 chunks
    box = ((12, 0), (20, 4))
    found = plan([Want(path="/m/0", dtype="float32", whole=(64, 4), box=box)], manifests)
    assert found.chunks(manifests) == {0: (3,), 1: (0,)}


def test_what_lies_between_the_rows_of_a_piece_is_not_read():
    """Three matrices of 256 bytes, of which each reader needs 16 rows of 4 bytes: one chunk of four."""
    manifests = sharded([((3, 64, 1), None)], 1)
    want = Want(path="/m/0", dtype="float32", whole=(3, 64, 1), box=((0, 16, 0), (3, 32, 1)))
    assert plan([want], manifests).chunks(manifests) == {0: (1, 5, 9)}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"path": "/m/x"}, "nothing at /m/x"),
        ({"dtype": "bfloat16"}, "is float32 of shape .* and bfloat16"),
        ({"whole": (9,), "box": ((0,), (9,))}, r"shape \(4,\) in the checkpoint, and .* \(9,\) here"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes, sentence):
    want = {"path": "/m/0", "dtype": "float32", "whole": (4,), "box": ((0,), (4,))} | changes
    with pytest.raises(StateError, match=sentence):
        plan([Want(**want)], sharded([((4,), 0)], 2))


def test_a_hole_is_refused():
    with pytest.raises(StateError, match=r"no shard of the checkpoint holds /m/0 from \(2,\) to \(4,\)"):
        plan([Want(path="/m/0", dtype="float32", whole=(4,), box=((1,), (4,)))], sharded([((4,), 0)], 2)[:1])


def undeclared(manifest):
    """The same, of somebody who does not say that the first tensor is on all shards on purpose."""
    return replace(manifest, entries=(replace(manifest.entries[0], whole=(), at=()), *manifest.entries[1:]))


def test_readers_share_the_comparison_of_copies():
    manifests = [undeclared(one) for one in sharded([((3,), None), ((4,), 0)], 5)]
    seen = [(reader, piece.shard) for reader in range(2) for _, piece in boxes.copies(manifests, reader, 2)]
    assert sorted(shard for _, shard in seen) == [1, 2, 3, 4]
    assert all(shard % 2 == reader for reader, shard in seen)


def test_tensors_that_cannot_be_told_apart_by_their_path_are_refused():
    """Keys 1 and "1" of one dict look the same in a path."""
    (made,) = sharded([((4,), None)], 1)
    twice = replace(made, entries=(*made.entries, made.entries[0]))
    with pytest.raises(StateError, match="two tensors of the checkpoint are at /m/0"):
        plan([Want(path="/m/0", dtype="float32", whole=(4,), box=whole_box((4,)))], [twice])
