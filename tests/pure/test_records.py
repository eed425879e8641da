"""Pure. The small records of the persistent tier, and the manifests and records of this version as golden files."""

import json
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.checkpoint.manifest import Entry, Fork, Manifest
from elastic.checkpoint.records import Committed, Keys, digest_of, name_of, opened, parse_fork, parse_name, sealed
from elastic.checkpoint.store import MissingError, advance_by_looking, checked_key, is_key
from elastic.control.values import NONE_LEFT_OUT, CommitId
from elastic.errors import CorruptError, SettingError

GOLDEN = Path(__file__).parent.parent / "golden"
COMMIT = CommitId(incarnation=2, generation=3, attempt=1, step=41, lineage="5c0ffee5c0ffee00")
MANIFEST = Manifest(
    run="night-1",
    commit=COMMIT,
    shard=1,
    shards=2,
    layout="f00d",
    skeleton='{"dict":[["model",{"tensor":0}]]}',
    entries=(
        Entry(path="/model/w", dtype="bfloat16", shape=(2, 3), begin=0, nbytes=12, whole=(4, 3), at=(2, 0)),
        Entry(path="/model/b", dtype="float32", shape=(), begin=64, nbytes=4),
    ),
    nbytes=128,
    chunk_bytes=64,
    chunks=(google_crc32c.value(bytes(64)), google_crc32c.value(b"\1" * 64)),
    forks=(Fork(incarnation=2, generation=1, step=30),),
    replicas=3,
    taken_at_s=1700000000.25,
)
RECORD = Committed(
    run="night-1",
    commit=COMMIT,
    manifests=(digest_of(b"0"), digest_of(MANIFEST.encode())),
    nbytes=256,
    metrics={"loss": 0.5},
    committed_at_s=1700000001.5,
)
GOLDENS = {"manifest-v1.json": (MANIFEST, Manifest.decode), "commit-v1.json": (RECORD, Committed.decode)}
commits = st.builds(
    CommitId,
    incarnation=st.integers(0, 10**6),
    generation=st.integers(0, 10**6),
    attempt=st.just(0),
    step=st.integers(0, 10**9),
    lineage=st.text("0123456789abcdef", max_size=16),
)


@pytest.mark.parametrize("name", GOLDENS)
def test_c25_what_this_version_wrote_stays_readable(name):
    value, decode = GOLDENS[name]
    stored = (GOLDEN / name).read_bytes()
    assert decode(stored) == value
    assert value.encode() == stored, "the format has changed: raise its VERSION, and keep reading the old one"


@pytest.mark.parametrize("name", GOLDENS)
def test_c25_another_version_is_refused(name):
    outer = json.loads((GOLDEN / name).read_bytes())
    text = outer["body"].replace('"version":1', '"version":2')
    assert text != outer["body"]
    with pytest.raises(CorruptError, match="version 1"):
        GOLDENS[name][1](json.dumps({"crc32c": google_crc32c.value(text.encode()), "body": text}).encode())


@given(commits)
def test_a_name_tells_its_commit(commit):
    assert parse_name(name_of(commit)) == commit


@given(commits, commits)
def test_names_sort_by_step(one, other):
    if one.step != other.step:
        assert (name_of(one) < name_of(other)) == (one.step < other.step)


@pytest.mark.parametrize(
    "name", ["", "x", "41-ab-1-1", "0000000041-ab-1", "0000000041-a/b-1-1", "../0000000041-ab-1-1"]
)
def test_a_name_of_nothing(name):
    assert parse_name(name) is None


@given(
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.integers(-1, 10**9),
    st.sampled_from([(0, 0), (7, 9), NONE_LEFT_OUT]),
)
def test_a_fork_is_its_key(incarnation, generation, step, skip):
    fork = Fork(incarnation=incarnation, generation=generation, step=step, skip=skip)
    assert parse_fork(Keys("night-1").fork(fork)) == fork
    assert parse_fork("night-1/forks/x") is None


def test_all_keys_are_keys():
    keys, name = Keys("night-1"), name_of(COMMIT)
    made = [keys.incarnation(1), keys.commit(name), keys.clearing(name) + "x-0", keys.quarantine(name)]
    made += [keys.failure(name, 1), keys.journal(1, 2), keys.journal(1, 2, 5), keys.latest]
    made += [keys.log(1, "supervisor", 2)]
    made += [keys.manifest(name, 1, 2, RECORD.manifests[0]), keys.chunk(MANIFEST, 1)]
    for key in made:
        assert checked_key(key) == key
    assert len(set(made)) == len(made)
    with pytest.raises(SettingError):
        name_of(CommitId(incarnation=1, generation=1, attempt=0, step=1, lineage="../../x"))


def test_a_record_is_read_as_what_it_is():
    assert opened("lease", sealed("lease", {"until_s": 2.5})) == {"until_s": 2.5}
    with pytest.raises(CorruptError, match="of kind 'pin'"):
        opened("lease", sealed("pin", {}))


def test_every_flipped_bit_is_refused_or_harmless():
    data = RECORD.encode()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            assert Committed.decode(bytes(flipped)) == RECORD
        except CorruptError:
            continue


@pytest.mark.parametrize(
    "changes",
    [
        {"manifests": []},
        {"manifests": ["x"]},
        {"manifests": 3},
        {"run": "../x"},
        {"commit": 1},
        {"commit": {"step": 1}},
        {"more": 1},
    ],
)
def test_what_contradicts_itself_is_refused(changes):
    body = json.loads(json.loads(RECORD.encode())["body"]) | changes
    with pytest.raises(CorruptError):
        Committed.decode(
            sealed("commit", {key: value for key, value in body.items() if key not in ("version", "kind")})
        )


def test_what_belongs_to_a_step_is_found_by_its_folders():
    keys, name = Keys("night-1"), name_of(COMMIT)
    assert keys.manifest(name, 1, 2, RECORD.manifests[0]).startswith(keys.step(name))
    assert keys.chunk(MANIFEST, 1).startswith(keys.step(name)) and keys.step(name).startswith(keys.folder("steps"))
    assert keys.commit(name).startswith(keys.folder("commits")) and keys.journal(1, 2).startswith(
        keys.folder("journal")
    )
    assert not keys.leases(name).startswith(keys.step(name)), "a lease is not a part of what it holds"
    assert all(folder.endswith("/") for folder in (keys.step(name), keys.leases(name), keys.folder("steps")))


@pytest.mark.parametrize(
    ("text", "is_it"), [("a/b-1/c.d", True), ("a", True), ("a//b", False), ("a/../b", False), ("", False)]
)
def test_a_key_is_told_from_what_is_none(text, is_it):
    assert is_key(text) is is_it


class Shelf(dict):
    """A store that compares nothing: what it needs to be written to."""

    put = dict.__setitem__

    def read(self, key):
        if key not in self:
            raise MissingError(key)
        return self[key]


def test_what_is_older_is_written_over_by_who_looks_first():
    shelf = Shelf()
    for number, kept in ((2, 2), (1, 2), (3, 3)):
        advance_by_looking(shelf, "newest", bytes([number]), lambda there: there < bytes([number]))  # noqa: B023
        assert shelf.read("newest") == bytes([kept])
