"""Effect. The disk of a node: what is whole there, in which order it is written, and what a killed writer leaves."""

import errno
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastic.checkpoint import disk as disk_module
from elastic.checkpoint import stores
from elastic.checkpoint.arena import Arena
from elastic.checkpoint.catalog import candidates
from elastic.checkpoint.disk import Disk
from elastic.checkpoint.memory import MemorySource
from elastic.checkpoint.node import Node
from elastic.checkpoint.reach import Reach
from elastic.checkpoint.reader import check, take_inventory
from elastic.checkpoint.source import Tier
from elastic.checkpoint.store import MissingError, StoreError
from elastic.checkpoint.stores.directory import DirectoryStore
from elastic.errors import CorruptError, NoRoomError, SettingError
from elastic.settings import Checkpoint
from tests.effects.helpers import LONG_S, child, eventually
from tests.effects.shards import CHUNK_BYTES, FakeMemory, key, manifest, payload
from tests.effects.tmpfs import mounted

RUN = "night"
NBYTES = 3 * CHUNK_BYTES + 64


def written(disk: Disk, step: int, shard: int = 0, shards: int = 1) -> Any:
    of = key(step, shard, shards)
    data = payload(of, NBYTES)
    disk.write(manifest(of, data), lambda begin, end: data[begin:end])
    return data


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_what_was_written_is_found_by_another_process_and_read_to_the_byte(tmp_path: Path) -> None:
    data = {step: written(Disk(tmp_path, RUN), step) for step in (1, 2)}
    other = Disk(tmp_path, RUN, "disk of node a")
    assert (other.tier, other.where, other.known()) == (Tier.DISK, "disk of node a", [])
    assert [one.commit.step for one in other.manifests()] == [2, 1]
    assert [one.commit.step for one in other.manifests(1)] == [1]
    for begin, end in ((0, NBYTES), (5, 6), (CHUNK_BYTES - 1, 2 * CHUNK_BYTES + 1), (NBYTES, NBYTES)):
        assert bytes(other.read(key(1), begin, end)) == data[1][begin:end].tobytes()
    with pytest.raises(MissingError):
        other.read(key(1), 0, NBYTES + 1)
    with pytest.raises(MissingError, match="disk of node a holds no shard 0 of 1 of step 3"):
        other.read(key(3), 0, 1)
    assert Disk(tmp_path, "other").manifests() == []


def test_writing_again_writes_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    written(Disk(tmp_path, RUN), 1)
    before = {path: path.stat().st_ino for path in files(tmp_path)}
    written(Disk(tmp_path, RUN), 1)
    assert {path: path.stat().st_ino for path in files(tmp_path)} == before


def test_c24_each_file_and_its_folder_are_synced_and_the_manifest_comes_last(tmp_path: Path, monkeypatch: Any) -> None:
    """What counts after a power cut is whole: bytes, then name, then folder, and the manifest after all chunks."""
    told: list[tuple[str, str]] = []
    sync, link = os.fsync, os.link

    def syncing(descriptor: int) -> None:
        told.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def linking(source: Any, target: Any) -> None:
        told.append(("link", str(target)))
        link(source, target)

    monkeypatch.setattr(disk_module, "THREADS", 1)
    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "link", linking)
    written(Disk(tmp_path, RUN), 1)
    linked = [(place, path) for place, (what, path) in enumerate(told) if what == "link" and ".probe-" not in path]
    assert [Path(path).name.split("-")[0] for _, path in linked] == ["chunk"] * 4 + ["manifest"]
    for place, path in linked:
        assert told[place - 1][0] == "sync" and Path(path).name in told[place - 1][1], "its bytes are not synced"
        assert told[place + 1] == ("sync", str(Path(path).parent)), "its folder is not synced"


def test_c04_a_damaged_disk_is_seen_and_the_memory_is_not_believed_for_it(tmp_path: Path) -> None:
    disk = Disk(tmp_path, RUN)
    written(disk, 1)
    (holder,) = take_inventory([disk]).holders
    assert check(holder, is_deep=True) == []
    chunk = next(path for path in files(tmp_path) if path.name.startswith("chunk-000001"))
    spoilt = bytearray(chunk.read_bytes())
    spoilt[3] ^= 1
    chunk.write_bytes(spoilt)
    (bad,) = check(holder, is_deep=True)
    assert "chunk 1" in bad
    wrong = payload(key(2), NBYTES)
    with pytest.raises(CorruptError):
        disk.write(manifest(key(2), wrong), lambda begin, end: wrong[begin:end] ^ 1)
    assert [one.commit.step for one in Disk(tmp_path, RUN).manifests()] == [1]


@pytest.mark.parametrize("spoil", ["cut off", "gone", "renamed", "of another run", "no manifest"])
def test_what_is_not_whole_does_not_count(spoil: str, tmp_path: Path) -> None:
    disk = Disk(tmp_path, RUN)
    written(disk, 1)
    chunk = next(path for path in files(tmp_path) if path.name.startswith("chunk-000002"))
    (line,) = tmp_path.rglob("manifest-*")
    match spoil:
        case "cut off":
            chunk.write_bytes(chunk.read_bytes()[:-1])
        case "gone":
            chunk.unlink()
        case "renamed":
            line.rename(line.with_name(f"manifest-{'0' * 64}"))
        case "of another run":
            shutil.copytree(tmp_path / RUN, tmp_path / "day")
        case "no manifest":
            line.write_bytes(b"{}")
    assert Disk(tmp_path, "day" if spoil == "of another run" else RUN).manifests() == []


def test_a_manifest_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, monkeypatch: Any) -> None:
    for step in (1, 2):
        written(Disk(tmp_path, RUN), step)
    read = DirectoryStore.read

    def failing(store: DirectoryStore, key: str, *about: Any) -> bytes:
        if "/manifest-" in key and "/0000000002-" in key:
            raise StoreError("cannot read it: input/output error")
        return read(store, key, *about)

    disk = Disk(tmp_path, RUN, "disk of node a")
    with monkeypatch.context() as broken:
        broken.setattr(DirectoryStore, "read", failing)
        assert [one.commit.step for one in disk.manifests()] == [1]
        assert disk.troubles == ("disk of node a: cannot read it: input/output error",)
    assert [one.commit.step for one in disk.manifests()] == [2, 1] and disk.troubles == ()


@pytest.mark.parametrize("damaged", ["chunk-000002-*", "manifest-*"])
def test_what_is_cut_off_is_written_anew(damaged: str, tmp_path: Path) -> None:
    """Its place was taken, and the shard never whole again."""
    data = written(Disk(tmp_path, RUN), 1)
    (path,) = tmp_path.rglob(damaged)
    path.write_bytes(path.read_bytes()[:-1])
    assert Disk(tmp_path, RUN).manifests() == []
    written(Disk(tmp_path, RUN), 1)
    disk = Disk(tmp_path, RUN)
    (holder,) = take_inventory([disk]).holders
    assert check(holder, is_deep=True) == []
    assert disk.read(key(1), 0, NBYTES) == data.tobytes()


def test_a_write_that_fails_half_way_takes_back_what_it_has_written(tmp_path: Path) -> None:
    """The step is not asked for again: its chunks would take room until the disk is looked through."""
    data, landed = payload(key(1), NBYTES), []

    def read(begin: int, end: int) -> Any:
        if end == NBYTES:
            eventually(lambda: landed.extend(files(tmp_path)) or landed, "other chunks have been written")
            raise MissingError("its slot is gone")
        return data[begin:end]

    disk = Disk(tmp_path, RUN)
    with pytest.raises(MissingError):
        disk.write(manifest(key(1), data), read)
    assert landed and files(tmp_path) == []
    disk.write(manifest(key(1), data), lambda begin, end: data[begin:end])
    assert [one.commit.step for one in disk.manifests()] == [1]


def test_a_disk_that_hangs_is_told_of_though_nothing_can_be_taken_back(tmp_path: Path, monkeypatch: Any) -> None:
    disk, ever, asked = Disk(tmp_path, RUN), threading.Event(), threading.Event()

    def hang(key: str) -> None:
        asked.set()
        ever.wait(LONG_S)

    monkeypatch.setattr(disk._store, "delete", hang)
    monkeypatch.setattr(disk_module, "_TAKE_BACK_S", 0.1)
    with pytest.raises(CorruptError):
        disk.write(manifest(key(1), payload(key(1), NBYTES)), lambda begin, end: b"?" * (end - begin))
    assert asked.is_set()
    ever.set()


def test_a_mount_that_hangs_with_the_first_look_is_an_error_in_time(tmp_path: Path, monkeypatch: Any) -> None:
    """And who reads from several places does without it."""
    ever, there = threading.Event(), Path.exists
    monkeypatch.setattr(stores, "_LOOK_S", 0.1)
    monkeypatch.setattr(Path, "exists", lambda self: ever.wait(LONG_S) if self == tmp_path / "disk" else there(self))
    with pytest.raises(StoreError, match="cannot look at a directory: nothing moved for"):
        Disk(tmp_path / "disk", RUN)
    checkpoint = Checkpoint(memory=str(tmp_path / "memory"), disk=str(tmp_path / "disk"))
    assert [one.tier for one in Reach(RUN, checkpoint).sources()] == [Tier.MEMORY]
    ever.set()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE, errno.ENOTCONN])
def test_a_disk_that_cannot_be_looked_at_costs_no_other_tier(number: int, tmp_path: Path, monkeypatch: Any) -> None:
    there = Path.exists

    def look(path: Path) -> bool:
        if path == tmp_path / "disk":
            raise OSError(number, os.strerror(number))
        return there(path)

    monkeypatch.setattr(Path, "exists", look)
    with pytest.raises(StoreError, match=f"disk cannot be looked at: {os.strerror(number)}"):
        Disk(tmp_path / "disk", RUN)
    checkpoint = Checkpoint(memory=str(tmp_path / "memory"), disk=str(tmp_path / "disk"))
    assert [one.tier for one in Reach(RUN, checkpoint).sources()] == [Tier.MEMORY]


def test_what_is_erased_loses_its_manifest_first(tmp_path: Path, monkeypatch: Any) -> None:
    disk, gone = Disk(tmp_path, RUN), list[str]()
    written(disk, 1)
    written(disk, 2)
    delete = DirectoryStore.delete

    def deleting(self: DirectoryStore, path: str) -> None:
        gone.append(path.rpartition("/")[2].partition("-")[0])
        delete(self, path)

    monkeypatch.setattr(DirectoryStore, "delete", deleting)
    disk.erase(key(1))
    assert gone == ["manifest", "chunk", "chunk", "chunk", "chunk"]
    assert [one.commit.step for one in disk.known()] == [2] == [one.commit.step for one in disk.manifests()]


def test_c18_a_disk_without_room_refuses_before_a_byte_is_written(tmp_path: Path) -> None:
    with mounted(tmp_path, "64k") as directory:
        with pytest.raises(NoRoomError, match="set Checkpoint.disk to a larger one"):
            written(Disk(directory, RUN), 1)
        assert files(directory) == []


def write_and_die(pipe: Any, directory: Path, label: str) -> None:
    """Kills itself where an object of this kind is about to be linked to its place, or just was."""
    when, kind = label.split()
    link = os.link

    def linking(source: Any, target: Any) -> None:
        if when == "before" and Path(target).name.startswith(kind):
            os.kill(os.getpid(), signal.SIGKILL)
        link(source, target)
        if when == "after" and Path(target).name.startswith(kind):
            os.kill(os.getpid(), signal.SIGKILL)

    os.link = linking
    written(Disk(directory, RUN), 2)


@pytest.mark.parametrize("label", ["before chunk", "after chunk", "before manifest", "after manifest"])
def test_c02_c09_a_killed_writer_leaves_whole_shards_alone(label: str, tmp_path: Path) -> None:
    written(Disk(tmp_path, RUN), 1)
    with child(write_and_die, tmp_path, label) as (process, _):
        process.join(LONG_S)
        assert process.exitcode == -signal.SIGKILL
    disk = Disk(tmp_path, RUN)
    whole = [2, 1] if label == "after manifest" else [1]
    assert [one.commit.step for one in disk.manifests()] == whole
    assert disk.sweep() == 0, "it is new: somebody may be writing it"
    assert disk.sweep(before_s=time.time() + LONG_S) > 0
    data = written(disk, 2)
    assert [one.commit.step for one in disk.manifests()] == [2, 1]
    assert bytes(disk.read(key(2), 0, NBYTES)) == data.tobytes()


def test_a_node_serves_what_is_on_its_disk_after_its_memory_is_gone(tmp_path: Path) -> None:
    memory = FakeMemory()
    data = memory.seal(key(1), NBYTES)
    node = Node("a", memory, 10 * NBYTES, lambda array: (None, np.array(array)))
    node.disks = (Disk(tmp_path, RUN),)
    with node.lent(key(1)) as (whole, read):
        node.disks[0].write(whole, read)
    assert {one.commit.step for one in node.holding().disk} == {1} == {one.commit.step for one in node.holding().slots}
    memory.slots.clear()
    assert [one.commit.step for one in node.manifests()] == [1] and node.manifests(with_disk=False) == []
    assert np.array_equal(node.read(key(1), 1, NBYTES - 1), data[1:-1])
    with pytest.raises(MissingError):
        node.read(key(2), 0, 1)


def test_nearest_first_memory_then_disk(tmp_path: Path) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    arena = Arena(memory, RUN, 1, "w0")
    for step in (1, 2):
        slot = arena.begin(NBYTES)
        assert slot is not None
        slot.payload[:NBYTES] = payload(key(step), NBYTES)
        arena.seal(slot, manifest(key(step), slot.payload[:NBYTES]))
        written(Disk(disk, RUN), step)
    reach = Reach(RUN, Checkpoint(memory=str(memory), disk=str(disk)))
    found = candidates(take_inventory(reach.sources()).holders, RUN)
    tiers = [[holder.source.tier for holder in one.shards[0]] for one in found]
    assert [one.commit.step for one in found] == [2, 1] and tiers == [[Tier.MEMORY, Tier.DISK]] * 2
    arena.close()
    for path in memory.glob("*.slot"):
        path.unlink()
    assert MemorySource(memory, RUN).manifests() == []
    found = candidates(take_inventory(reach.sources()).holders, RUN)
    assert [holder.source.tier for holder in found[0].shards[0]] == [Tier.DISK]
    reach.close()


def test_only_an_absolute_path_is_taken() -> None:
    with pytest.raises(SettingError, match=r"Checkpoint\.disk='cache' must be an absolute path"):
        Checkpoint(disk="cache")
