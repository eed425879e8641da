"""Pure. A manifest survives its encoding, and nothing else does; lines of history; names."""

import json
from dataclasses import replace

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.checkpoint.manifest import Entry, Fork, Manifest, checked_name, chunk_count, is_visible, laid_out
from elastic.control.values import AS_BEFORE, NONE_LEFT_OUT, CommitId, is_left_out
from elastic.errors import CorruptError, SettingError

COMMIT = CommitId(incarnation=2, generation=3, attempt=0, step=41, lineage="ab12")


def manifest(payload: bytes, chunk_bytes: int = 64) -> Manifest:
    cut = range(0, len(payload), chunk_bytes)
    return Manifest(
        run="night-1",
        commit=COMMIT,
        shard=1,
        shards=2,
        layout="f00d",
        skeleton='{"dict":[]}',
        entries=laid_out([Entry(path="/m/w", dtype="float32", shape=(3,), begin=0, nbytes=12, whole=(6,), at=(3,))])[0],
        nbytes=len(payload),
        chunk_bytes=chunk_bytes,
        chunks=tuple(google_crc32c.value(payload[at : at + chunk_bytes]) for at in cut),
        forks=(Fork(incarnation=2, generation=1, step=30),),
    )


@given(st.binary(min_size=12, max_size=300), st.integers(1, 100))
def test_it_comes_back_as_it_was_written(payload, chunk_bytes):
    written = manifest(payload, chunk_bytes)
    read = Manifest.decode(written.encode())
    assert read == written
    for number in range(chunk_count(len(payload), chunk_bytes)):
        begin, end = read.chunk(number)
        read.verify(number, payload[begin:end])


def test_every_flipped_bit_is_refused_or_harmless():
    written = manifest(bytes(range(64)))
    data = written.encode()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            assert Manifest.decode(bytes(flipped)) == written
        except CorruptError:
            continue


@pytest.mark.parametrize("cut", [0, 1, 10, -2])
def test_a_part_of_it_is_refused(cut):
    with pytest.raises(CorruptError):
        Manifest.decode(manifest(bytes(64)).encode()[:cut])


def resummed(**changes: object) -> bytes:
    """A manifest of somebody who can compute sums."""
    body = json.loads(json.loads(manifest(bytes(64)).encode())["body"]) | changes
    text = json.dumps(body)
    return json.dumps({"crc32c": google_crc32c.value(text.encode()), "body": text}).encode()


def entry(**changes: object) -> dict[str, object]:
    """Three of six numbers, and what is wrong with them."""
    good = {"path": "/m/w", "dtype": "float32", "shape": [3], "begin": 0, "nbytes": 12, "whole": [6], "at": [3]}
    return good | changes


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"chunks": []},
        {"nbytes": 8},
        {"shard": 2},
        {"shard": -1},
        {"chunk_bytes": 0},
        {"run": "../x"},
        {"commit": 1},
        {"more": 1},
        {"entries": [entry(nbytes=13)]},
        {"entries": [entry(nbytes=0)]},
        {"entries": [entry(begin=-1)]},
        {"entries": [entry(shape=[-3])]},
        {"entries": [entry(at=[4])]},
        {"entries": [entry(at=[-1])]},
        {"entries": [entry(whole=[6, 1])]},
        {"entries": [entry(shape=[0])]},
    ],
)
def test_what_contradicts_itself_is_refused(changes):
    assert Manifest.decode(resummed(entries=[entry()])).entries
    with pytest.raises((CorruptError, SettingError)):
        Manifest.decode(resummed(**changes))


def test_a_wrong_chunk_is_named():
    written = manifest(bytes(130))
    with pytest.raises(CorruptError, match=r"step 41, shard 1 of 2, of run night-1: chunk 2"):
        written.verify(2, b"\0\1")
    with pytest.raises(CorruptError):
        written.verify(2, b"\0")


@pytest.mark.parametrize("name", ["", ".a", "../a", "a/b", "a..b", "a" * 129, "a b", "ä", "a\n", "-a", "/a"])
def test_names_that_could_leave_their_folder_are_refused(name):
    with pytest.raises(SettingError, match="the run"):
        checked_name(name, "the run")
    assert checked_name("a.b-c_9", "the run") == "a.b-c_9"


def test_tensors_are_aligned():
    sizes = (1, 64, 0, 65)
    placed, nbytes = laid_out([Entry(path="/x", dtype="uint8", shape=(n,), begin=0, nbytes=n) for n in sizes])
    assert [entry.begin for entry in placed] == [0, 64, 128, 128]
    assert nbytes == 256


def test_a_box_lies_in_the_whole():
    assert manifest(bytes(64)).entries[0].box == ((3,), (6,))


def test_steps_past_a_fork_are_void_unless_made_after_it():
    def made(incarnation: int, generation: int, step: int) -> CommitId:
        return CommitId(incarnation=incarnation, generation=generation, attempt=0, step=step, lineage="")

    forks = (Fork(incarnation=1, generation=4, step=30), Fork(incarnation=2, generation=1, step=50))
    assert is_visible(made(1, 3, 30), forks)
    assert not is_visible(made(1, 3, 31), forks)
    assert is_visible(made(1, 4, 31), forks)
    assert not is_visible(made(1, 4, 51), forks)
    assert is_visible(made(2, 1, 51), forks)


def test_shards_are_the_same_when_they_hold_the_same_part_of_the_same_state():
    """Whatever the attempt that made it; another shard, another count or another history is something else."""
    one = manifest(bytes(12)).key
    again = replace(one, commit=replace(COMMIT, attempt=5))
    assert one.is_same(again)
    others = replace(one, shard=0), replace(one, shards=3), replace(one, commit=replace(COMMIT, lineage="cd34"))
    assert not any(one.is_same(other) for other in others)


def test_the_newest_fork_that_says_so_decides_which_steps_were_left_out():
    forks = tuple(
        Fork(incarnation=1, generation=number, step=10 * number, skip=skip)
        for number, skip in enumerate([(12, 14), AS_BEFORE, NONE_LEFT_OUT], start=1)
    )
    assert [step for step in range(40) if is_left_out(step, forks[:2])] == [12, 13]
    assert not is_left_out(12, ()) and not is_left_out(10, forks)
    assert is_left_out(12, forks), "what the third says is of steps past its own"
    later = (*forks[:1], Fork(incarnation=1, generation=2, step=11, skip=NONE_LEFT_OUT))
    assert not any(is_left_out(step, later) for step in range(40))
