"""Effect. Reading what a plan needs: every chunk checked (C4), the next holder (C5), deadlines (C16), reports (C26)."""

import re
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.checkpoint import parallel
from elastic.checkpoint.boxes import Want, extent, plan, whole_box
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.reader import Effort, read, take_inventory
from elastic.checkpoint.source import Tier
from elastic.checkpoint.store import MissingError, StoreError
from elastic.errors import CorruptError, RefusedError
from tests.effects.helpers import ENDLESS_S, LONG_S, Running, eventually
from tests.effects.shelves import Folder, Shard, Shelf, flipped, numbers, of, shard_of
from tests.pure.test_boxes import cut, cuts, grid, tensors

CHUNK = 64


def state() -> dict[str, torch.Tensor]:
    return {"a": numbers(9, 7), "b": numbers(33, start=500), "c": numbers(3, 5, 2, dtype=torch.bfloat16)}


def all_of(manifest: Manifest) -> list[Want]:
    return [Want(path=e.path, dtype=e.dtype, whole=e.shape, box=whole_box(e.shape)) for e in manifest.entries]


def fetched(one, wants, effort=None) -> tuple[list[np.ndarray], list]:
    """Arrays of the wants, which must all be of dtypes that numpy knows or are compared as bytes, and the reports."""
    sizes = [getattr(torch, want.dtype).itemsize * int(np.prod(extent(want.box), dtype=int)) for want in wants]
    into = [np.full(size, 0xEE, dtype=np.uint8) for size in sizes]
    return into, read(one, plan(wants, one.manifests), into, effort)


def expected(tensors: dict[str, torch.Tensor]) -> list[bytes]:
    return [tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors.values()]


def assert_right(one, effort=None):
    into, reports = fetched(one, all_of(one.manifests[0]), effort)
    assert [data.tobytes() for data in into] == expected(state())
    return reports


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("chunk_bytes", [1, 50, 64, 1 << 20])
def test_what_was_written_is_read(chunk_bytes, threads):
    (report,) = assert_right(of(Shelf([shard_of(state(), chunk_bytes=chunk_bytes)]))[0], Effort(threads=threads))
    assert report.retries == 0


@settings(max_examples=120, deadline=None)
@given(tensors, st.integers(1, 4), st.integers(1, 4), cuts, st.sampled_from((16, 60, 4096)))
def test_c12_any_cut_reads_the_same_values_as_any_other(saved, before, after, dim, chunk_bytes):
    wholes = [numbers(*shape, start=10.0 * n) for n, (shape, _) in enumerate(saved)]
    (one,) = of(Shelf(cut_shards(wholes, [cut(shape, along, before) for shape, along in saved], chunk_bytes)))
    for reader in range(after):
        assert_cut_is_right(one, wholes, [cut(shape, dim, after)[reader] for shape, _ in saved])


def cut_shards(wholes, cuts, chunk_bytes) -> list[Shard]:
    """Shards of these tensors; cuts: of each tensor its box in each shard."""
    made = []
    for shard, boxes in enumerate(zip(*cuts, strict=True)):
        parts = {str(n): part(whole, box) for n, (whole, box) in enumerate(zip(wholes, boxes, strict=True))}
        manifest, payload = shard_of(parts, shard=shard, shards=len(cuts[0]), chunk_bytes=chunk_bytes)
        placed = tuple(
            replace(entry, whole=tuple(whole.shape), at=box[0])
            for entry, whole, box in zip(manifest.entries, wholes, boxes, strict=True)
        )
        made.append((replace(manifest, entries=placed), payload))
    return made


def assert_cut_is_right(one, wholes, boxes):
    """What is read of these boxes is what they hold; returns the reports."""
    wants = [
        Want(path=f"/{n}", dtype="float32", whole=tuple(whole.shape), box=box)
        for n, (whole, box) in enumerate(zip(wholes, boxes, strict=True))
    ]
    into, reports = fetched(one, wants)
    truth = [part(whole, box).numpy().tobytes() for whole, box in zip(wholes, boxes, strict=True)]
    assert [data.tobytes() for data in into] == truth
    return reports


@st.composite
def cut_twice(draw):
    """For each tensor its shape, its boxes on the workers that saved it, and on those that restore it."""
    before, after = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    shape = st.lists(st.sampled_from((0, 1, 2, 3, 5, 8, 13)), max_size=3).map(tuple)
    shapes = draw(st.lists(shape, min_size=1, max_size=3))
    return [(one, draw(grid(one, before)), draw(grid(one, after))) for one in shapes]


@settings(max_examples=200, deadline=None)
@given(cut_twice(), st.sampled_from((4, 16, 60, 4096)))
def test_c12_uneven_boxes_are_cut_anew_and_only_chunks_that_hold_some_of_them_are_read(drawn, chunk_bytes):
    wholes = [numbers(*shape, start=1.0 + 10_000 * n) for n, (shape, _, _) in enumerate(drawn)]
    shelf = Shelf(cut_shards(wholes, [before for _, before, _ in drawn], chunk_bytes))
    (one,) = of(shelf)
    for reader in range(len(drawn[0][2])):
        boxes = [after[reader] for _, _, after in drawn]
        shelf.reads.clear()
        reports = assert_cut_is_right(one, wholes, boxes)
        assert len(set(shelf.reads)) == len(shelf.reads), "a chunk was read twice"
        assert sum(report.nbytes for report in reports) == sum(end - begin for _, begin, end in shelf.reads)
        parts = [part(whole, box) for whole, box in zip(wholes, boxes, strict=True)]
        needed = {value for data in parts for value in data.flatten().tolist()}
        for shard, begin, end in shelf.reads:
            assert needed & set(shelf.shards[shard][1][begin:end].view(np.float32).tolist()), (shard, begin)


def part(whole: torch.Tensor, box) -> torch.Tensor:
    return whole[tuple(slice(low, high) for low, high in zip(*box, strict=True))].contiguous()


def kinds_of_damage(data: np.ndarray):
    """Every byte once with a flipped bit; cut off, grown, zeroed, another chunk's bytes."""
    for byte in range(len(data)):
        yield f"bit in byte {byte}", flipped(data, 8 * byte + byte % 8)
    yield "cut off", data[:-1]
    yield "empty", data[:0]
    yield "grown", np.concatenate([data, data[:1]])
    yield "zeroed", np.zeros_like(data)
    yield "moved", np.roll(data, 4)
    yield "as bytes, cut off", data[:-1].tobytes()


def test_c04_no_damage_to_a_payload_passes():
    """Each byte of each chunk, padding included, in what any kind of read returns."""
    good = shard_of(state(), chunk_bytes=CHUNK)
    manifest, payload = good
    tried = 0
    for number in range(len(manifest.chunks)):
        begin, end = manifest.chunk(number)
        for what, wrong in kinds_of_damage(payload[begin:end]):
            if bytes(wrong) == payload[begin:end].tobytes():
                continue  # zeroed padding
            fired = []

            def spoil(key, low, high, data, begin=begin, wrong=wrong, fired=fired):
                if low != begin:
                    return data
                fired.append(low)
                return wrong

            shelf = Shelf([good], spoil=spoil)
            with pytest.raises(RefusedError, match=f"chunk {number} "):
                fetched(of(shelf)[0], all_of(manifest), Effort(threads=1))
            assert fired, what
            tried += 1
    assert tried > len(payload)


@pytest.mark.parametrize(
    ("near", "far", "is_bad"),
    [
        (CorruptError("other bytes"), CorruptError("other bytes"), True),
        (MissingError("gone"), MissingError("cut off"), True),
        (CorruptError("other bytes"), StoreError("no answer"), False),
        (StoreError("no answer"), CorruptError("other bytes"), False),
        (CorruptError("other bytes"), None, False),
    ],
    ids=["both bad", "both gone", "the far one out of reach", "the near one out of reach", "in memory alone"],
)
def test_c05_a_refusal_says_whether_the_bytes_are_bad_for_good(near, far, is_bad):
    def raises(error):
        def spoil(key, begin, end, data):
            raise error

        return spoil

    good = shard_of(state(), chunk_bytes=CHUNK)
    held = [Shelf([good], Tier.PEER, "near", raises(near))]
    held += [Shelf([good], Tier.PERSISTENT, "far", raises(far))] if far is not None else []
    with pytest.raises(RefusedError) as caught:
        fetched(of(*held)[0], all_of(good[0]), Effort(threads=1))
    assert caught.value.is_bad is is_bad


def test_c04_no_damage_to_a_ranged_read_passes():
    """A part of a tensor is read in whole chunks, and each of these is checked."""
    good = shard_of({"x": numbers(64)}, chunk_bytes=CHUNK)
    want = Want(path="/x", dtype="float32", whole=(64,), box=((20,), (21,)))
    for bit in range(8 * CHUNK):
        shelf = Shelf([good], spoil=lambda key, begin, end, data, bit=bit: flipped(data, bit))
        with pytest.raises(RefusedError):
            fetched(of(shelf)[0], [want])
        assert {read[1:] for read in shelf.reads} == {(64, 128)}


def test_c04_no_damage_to_a_manifest_passes(tmp_path):
    """In a directory: a manifest is as it was written, or it is not used."""
    folder = Folder(tmp_path)
    folder.put(shard_of({"x": numbers(4)}))
    (path,) = tmp_path.glob("*.manifest")
    data, (good,) = path.read_bytes(), folder.manifests()
    refused = 0
    for bit in range(8 * len(data)):
        path.write_bytes(flipped(data, bit).tobytes())
        inventory = take_inventory([folder], LONG_S)
        assert inventory.silent or [holder.manifest for holder in inventory.holders] == [good]
        refused += bool(inventory.silent)
    assert refused > 7 * len(data), "some blanks and escapes do not matter"


@pytest.mark.parametrize("kind", ["another step", "another shard", "another run"])
def test_c03_bytes_of_another_shard_or_step_are_no_substitute(kind):
    """Files that changed places, of equal size: manifests say whose bytes they are."""
    more = {k: v + 1 for k, v in state().items()}
    mine, other = shard_of(state()), shard_of(more, step=8)
    if kind == "another shard":
        mine, other = shard_of(state(), shards=2), shard_of(more, shard=1, shards=2)
        found = of(Shelf([(mine[0], other[1]), (other[0], mine[1])]))
    elif kind == "another run":
        found = of(Shelf([(replace(mine[0], run="s"), mine[1])]))
        assert found == ()
        return
    else:
        found = of(Shelf([(mine[0], other[1])]))
    with pytest.raises(RefusedError, match="shard 0"):
        assert_right(found[0])


def bad_on(*chunks: int):
    def spoil(key, begin, end, data):
        return flipped(data, 5) if begin // CHUNK in chunks else data

    return spoil


def test_c05_a_bad_chunk_comes_from_the_next_holder():
    good = shard_of(state(), chunk_bytes=CHUNK)
    near = Shelf([good], Tier.MEMORY, "near", bad_on(0, 3))
    far = Shelf([good], Tier.PERSISTENT, "far")
    (report,) = assert_right(of(near, far)[0])
    assert [(place.tier, place.where) for place in report.places] == [("memory", "near"), ("persistent", "far")]
    assert report.places[1].nbytes == 2 * CHUNK and report.retries == 2
    assert report.nbytes == good[0].nbytes
    assert all("memory near: step 7, shard 0 of 1, of run r: chunk" in told for told in report.failures)
    assert {begin for _, begin, _ in far.reads} == {0, 3 * CHUNK}, "each chunk is read from afar only if it must be"


@pytest.mark.parametrize(
    "error", [MissingError("gone"), StoreError("no route"), CorruptError("torn"), OSError("no memory")]
)
def test_c05_a_holder_that_fails_is_passed_over(error):
    good = shard_of(state(), chunk_bytes=CHUNK)

    def fail(*_):
        raise error

    near, far = Shelf([good], Tier.MEMORY, "near", fail), Shelf([good], Tier.PERSISTENT, "far")
    (report,) = assert_right(of(near, far)[0], Effort(threads=1))
    assert [place.where for place in report.places] == ["far"]
    if not isinstance(error, CorruptError):
        assert len(near.reads) == 3, "it is left alone after a few refusals"


def test_c05_what_nobody_gives_is_refused_with_what_each_said():
    good = shard_of(state(), chunk_bytes=CHUNK)
    places = [Shelf([good], Tier.PEER, "n1", bad_on(2)), Shelf([good], Tier.PERSISTENT, "far", bad_on(2))]
    with pytest.raises(
        RefusedError, match=r"shard 0 of 1, of run r: chunk 2 cannot be had: peer n1: .*persistent far: "
    ):
        assert_right(of(*places)[0], Effort(rounds=3))
    assert all(sum(begin == 2 * CHUNK for _, begin, _ in place.reads) == 3 for place in places), "tries are bounded"


def test_a_fault_that_passes_is_outlived():
    good = shard_of(state(), chunk_bytes=CHUNK)
    failed = set()

    def once(key, begin, end, data):
        if begin in failed:
            return data
        failed.add(begin)
        raise StoreError("try again")

    (report,) = assert_right(of(Shelf([good], spoil=once))[0])
    assert report.retries == len(good[0].chunks)


def test_holders_at_one_distance_share_the_chunks():
    good = shard_of(state(), chunk_bytes=CHUNK)
    peers = [Shelf([good], Tier.PEER, f"n{number}") for number in range(3)]
    assert_right(of(*peers)[0])
    counts = [len(peer.reads) for peer in peers]
    assert max(counts) - min(counts) <= 1
    firsts = set()
    for turn in range(3):
        for peer in peers:
            peer.reads.clear()
        assert_right(of(*peers)[0], Effort(turn=turn))
        firsts |= {peer.where for peer in peers if 0 in {begin for _, begin, _ in peer.reads}}
    assert len(firsts) == 3, "workers do not all begin with the same one"


def test_c16_a_read_that_hangs_ends_with_the_name_of_who_hangs():
    good, hanging = shard_of(state(), chunk_bytes=CHUNK), threading.Event()

    def hang(key, begin, end, data):
        hanging.wait(ENDLESS_S)
        return data

    reading = Running(lambda: assert_right(of(Shelf([good], where="n1", spoil=hang))[0], Effort(timeout_s=0.2)))
    error = reading.error()
    hanging.set()
    assert isinstance(error, RefusedError) and error.shard == 0
    assert "no answer from n1 within 0.2 s (Limits.restore_timeout_s)" in str(error)


def test_what_comes_after_a_refusal_is_dropped():
    """The caller may be reading an older step into the same memory by then."""
    good, hanging = shard_of(state(), chunk_bytes=CHUNK), threading.Event()

    def hang(key, begin, end, data):
        hanging.wait(ENDLESS_S)
        return data

    (one,) = of(Shelf([good], spoil=hang))
    wants = all_of(good[0])
    into = [np.full(entry.nbytes, 0xEE, dtype=np.uint8) for entry in good[0].entries]
    with pytest.raises(RefusedError):
        read(one, plan(wants, one.manifests), into, Effort(timeout_s=0.1))
    hanging.set()
    eventually(lambda: not any(t.name == "elastic-read" for t in threading.enumerate()), "late reads have ended")
    assert all((data == 0xEE).all() for data in into)


def test_c16_an_inventory_names_who_does_not_answer():
    hanging = threading.Event()

    class Hanging(Shelf):
        def manifests(self, step=None):
            hanging.wait(ENDLESS_S)
            return []

    class Failing(Shelf):
        def manifests(self, step=None):
            raise StoreError("no credentials")

    good = Shelf([shard_of(state())])
    inventory = take_inventory([Hanging([], where="n1"), good, Failing([], where="far")], timeout_s=5)
    hanging.set()
    assert [holder.source for holder in inventory.holders] == [good]
    assert inventory.silent == ("n1: no answer within 5 s", "far: no credentials")


def test_who_does_not_answer_is_not_waited_for_where_the_others_are_enough(monkeypatch):
    monkeypatch.setattr(parallel, "QUIET_S", 0.05)
    never, asked = threading.Event(), []

    class Hanging(Shelf):
        def manifests(self, step=None):
            never.wait(ENDLESS_S)
            return []

    good, hanging = Shelf([shard_of(state())], where="n0"), Hanging([], where="n1")

    def enough(holders, waiting):
        if not holders:  # its thread has not come to it yet
            return False
        asked.append(([one.source for one in holders], list(waiting)))
        return len(asked) == 3

    inventory = take_inventory([hanging, good], ENDLESS_S, enough=enough)
    never.set()
    assert asked == [([good], [hanging])] * 3 and [holder.source for holder in inventory.holders] == [good]
    (said,) = inventory.silent
    assert re.fullmatch(r"n1: no answer within [0-9.]+ s", said)


def test_an_error_of_ours_is_not_swallowed():
    def broken(*_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        assert_right(of(Shelf([shard_of(state())], spoil=broken))[0])
