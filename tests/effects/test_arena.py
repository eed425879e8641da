"""The arena: what is sealed can be read, whoever dies when; what is read is not written; what is full is said."""

import fcntl
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

from elastic.checkpoint import memory, seal
from elastic.checkpoint.arena import (
    HEADER_BYTES,
    PAGE_BYTES,
    Arena,
    Header,
    Slot,
    SlotState,
    free_bytes,
    needed_bytes,
    opened,
    try_lock,
)
from elastic.checkpoint.manifest import CHUNK_BYTES, Entry, Manifest, chunk_count
from elastic.checkpoint.store import MissingError
from elastic.control.values import CommitId
from elastic.errors import NoRoomError, SettingError
from elastic.policies.sizing import MARGIN, SLOTS, slots_for
from tests.effects.helpers import LONG_S, child, hear
from tests.effects.tmpfs import mounted

NBYTES = 4096
RUN = "run-a"


def commit_of(step: int, incarnation: int = 1, generation: int = 1) -> CommitId:
    return CommitId(incarnation, generation, 1, step, f"lineage{step}")


def payload_of(step: int, nbytes: int = NBYTES) -> np.ndarray[Any, Any]:
    return np.full(nbytes, step % 251, dtype=np.uint8)


def manifest_of(payload: Any, step: int, run: str = RUN, shard: int = 0, shards: int = 1, **commit: int) -> Manifest:
    bounds = [(n * CHUNK_BYTES, min(len(payload), (n + 1) * CHUNK_BYTES)) for n in range(chunk_count(len(payload)))]
    return Manifest(
        run=run,
        commit=commit_of(step, **commit),
        shard=shard,
        shards=shards,
        layout="l",
        skeleton="{}",
        entries=(Entry(path="/x", dtype="uint8", shape=(len(payload),), begin=0, nbytes=len(payload)),),
        nbytes=len(payload),
        chunks=tuple(google_crc32c.value(payload[begin:end]) for begin, end in bounds),
    )


def stage(arena: Arena, step: int, nbytes: int = NBYTES, **facts: Any) -> Slot | None:
    """Write and seal one step."""
    slot = arena.begin(nbytes)
    if slot is not None:
        slot.payload[:nbytes] = payload_of(step, nbytes)
        arena.seal(slot, manifest_of(slot.payload[:nbytes], step, **facts))
    return slot


def steps_in(directory: Path, run: str = RUN) -> list[int]:
    return [one.manifest.commit.step for one in memory.scan(directory, run)]


def assert_holds(directory: Path, step: int, nbytes: int = NBYTES) -> None:
    """What is read of this step is what was written, to the byte, and fits its sums."""
    source = memory.MemorySource(directory, RUN)
    manifest = next(one for one in source.manifests() if one.commit.step == step)
    read = source.read(manifest.key, 0, nbytes)
    assert bytes(read) == bytes(payload_of(step, nbytes))
    manifest.verify(0, read)


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    one = Arena(tmp_path, RUN, 1, "w0")
    yield one
    one.close()


# --- writing and reading ----------------------------------------------------------------------------------------------


def test_the_newest_steps_are_there_in_full(arena: Arena, tmp_path: Path) -> None:
    for step in range(7):
        stage(arena, step)
    assert steps_in(tmp_path) == [6, 5, 4]
    for step in (4, 5, 6):
        assert_holds(tmp_path, step)


def test_what_is_being_written_is_not_seen_and_the_newest_is_not_written(arena: Arena, tmp_path: Path) -> None:
    stage(arena, 0)
    slots = [arena.begin(NBYTES), arena.begin(NBYTES)]
    assert None not in slots
    assert arena.begin(NBYTES) is None, "the newest sealed slot was given away"
    assert steps_in(tmp_path) == [0]
    for slot in slots:
        slot.abandon()
    assert steps_in(tmp_path) == [0]
    assert arena.begin(NBYTES) in slots


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps whose manifests were decoded."""
    steps: list[int] = []
    decode = Manifest.decode

    def counted(data: bytes) -> Manifest:
        found = decode(data)
        steps.append(found.commit.step)
        return found

    monkeypatch.setattr(Manifest, "decode", staticmethod(counted))
    return steps


def test_a_manifest_is_decoded_once_for_each_seal(arena: Arena, tmp_path: Path, decoded: list[int]) -> None:
    source = memory.MemorySource(tmp_path, RUN)
    for step in range(3):
        stage(arena, step)
    for _ in range(4):
        assert [one.commit.step for one in source.manifests()] == [2, 1, 0]
    stage(arena, 3)
    assert [one.commit.step for one in source.manifests()] == [3, 2, 1]
    assert sorted(decoded) == [0, 1, 2, 3]


def test_a_slot_that_was_cut_off_is_gone_for_who_has_known_it_too(arena: Arena, tmp_path: Path) -> None:
    source = memory.MemorySource(tmp_path, RUN)
    stage(arena, 0)
    ((key, path),) = [(one.manifest.key, one.path) for one in memory.scan(tmp_path, RUN)]
    assert len(source.manifests()) == 1
    os.truncate(path, PAGE_BYTES)
    assert source.manifests() == []
    with pytest.raises(MissingError):
        source.read(key, 0, 8)


def test_who_wants_one_step_decodes_no_other(arena: Arena, tmp_path: Path, decoded: list[int]) -> None:
    source = memory.MemorySource(tmp_path, RUN)
    for step in range(3):
        stage(arena, step)
    assert [one.commit.step for one in source.manifests(1)] == [1]
    assert bytes(source.read(manifest_of(payload_of(0), 0).key, 0, 8)) == bytes(payload_of(0)[:8])
    assert decoded == [1, 0]
    assert source.manifests(7) == []


def test_a_step_back_in_time_after_a_restore_is_the_newest(arena: Arena, tmp_path: Path) -> None:
    for step in (8, 9, 10):
        stage(arena, step)
    stage(arena, 5, generation=2)
    stage(arena, 6, generation=2)
    assert steps_in(tmp_path) == [10, 6, 5]
    stage(arena, 7, generation=2)
    assert steps_in(tmp_path) == [7, 6, 5]


def test_a_larger_state_gets_larger_slots_and_loses_nothing_meanwhile(arena: Arena, tmp_path: Path) -> None:
    for step in range(4):
        stage(arena, step)
    slot = arena.begin(5 * NBYTES)
    assert slot is not None
    assert steps_in(tmp_path) == [3], "the newest went before it was replaced"
    slot.payload[: 5 * NBYTES] = payload_of(4, 5 * NBYTES)
    arena.seal(slot, manifest_of(slot.payload[: 5 * NBYTES], 4))
    assert steps_in(tmp_path) == [4]
    assert_holds(tmp_path, 4, 5 * NBYTES)
    assert len(list(tmp_path.iterdir())) == 3


def test_what_somebody_reads_survives_the_growth_of_the_state(arena: Arena, tmp_path: Path) -> None:
    """As what an earlier worker has left: the step may have no other copy."""
    for step in range(2):
        stage(arena, step)
    (path,) = [one.path for one in memory.scan(tmp_path, RUN) if one.manifest.commit.step == 0]
    with opened(path) as fd:
        assert fd is not None and try_lock(fd, fcntl.LOCK_SH)
        stage(arena, 2, 5 * NBYTES)
        assert steps_in(tmp_path) == [2, 0]
        assert_holds(tmp_path, 0)


def test_slots_that_are_being_written_survive_the_growth_of_the_state(arena: Arena, tmp_path: Path) -> None:
    stage(arena, 0)
    slot = arena.begin(NBYTES)
    assert slot is not None
    arena.reserve(5 * NBYTES)
    slot.payload[:NBYTES] = payload_of(1)
    arena.seal(slot, manifest_of(slot.payload[:NBYTES], 1))
    assert steps_in(tmp_path) == [1, 0]
    assert_holds(tmp_path, 1)
    stage(arena, 2, 5 * NBYTES)
    assert steps_in(tmp_path) == [2]
    assert len(list(tmp_path.iterdir())) == 3


def test_runs_do_not_see_or_remove_each_other(tmp_path: Path) -> None:
    """One name may be the beginning of another."""
    ours, theirs = Arena(tmp_path, RUN, 1, "w0"), Arena(tmp_path, f"{RUN}-1", 1, "w0")
    stage(ours, 1)
    stage(theirs, 2, run=f"{RUN}-1")
    assert (steps_in(tmp_path), steps_in(tmp_path, f"{RUN}-1")) == ([1], [2])
    memory.remove(tmp_path, RUN)
    assert (steps_in(tmp_path), steps_in(tmp_path, f"{RUN}-1")) == ([], [2])
    ours.close()
    theirs.close()


def test_a_name_that_leaves_the_directory_is_refused(tmp_path: Path) -> None:
    for run, worker in (("../run", "w0"), (RUN, "../w0"), ("a/b", "w0"), ("", "w0")):
        with pytest.raises(SettingError):
            Arena(tmp_path, run, 1, worker)


def test_slots_that_somebody_removed_are_made_again(arena: Arena, tmp_path: Path) -> None:
    stage(arena, 0)
    memory.remove(tmp_path, RUN)
    stage(arena, 1)
    assert steps_in(tmp_path) == [1]
    assert_holds(tmp_path, 1)


# --- readers ----------------------------------------------------------------------------------------------------------


def test_a_slot_is_not_written_while_somebody_holds_what_was_read(arena: Arena, tmp_path: Path) -> None:
    for step in range(3):
        stage(arena, step)
    source = memory.MemorySource(tmp_path, RUN)
    oldest = source.manifests()[-1]
    held = source.read(oldest.key, 100, 300)
    for step in range(3, 9):
        stage(arena, step)
    assert bytes(held) == bytes(payload_of(0)[100:300])
    assert steps_in(tmp_path) == [8, 7, 0]
    del held
    stage(arena, 9)
    assert steps_in(tmp_path) == [9, 8, 7]
    with pytest.raises(MissingError, match="shard 0 of 1 of step 0"):
        source.read(oldest.key, 0, 1)


def test_chunks_that_are_in_use_at_one_time_share_a_map(arena: Arena, tmp_path: Path) -> None:
    """So one that was begun can be read to its end, though its file was taken away; not though it was cut off."""
    stage(arena, 0)
    source = memory.MemorySource(tmp_path, RUN)
    (manifest,) = source.manifests()
    first = source.read(manifest.key, 0, 8)
    memory.remove(tmp_path, RUN)
    second = source.read(manifest.key, 8, NBYTES)
    assert bytes(first) + bytes(second) == bytes(payload_of(0))
    del first, second
    with pytest.raises(MissingError, match="holds no shard 0 of 1 of step 0"):
        source.read(manifest.key, 0, 8)
    stage(arena, 1)
    (later,) = memory.scan(tmp_path, RUN)
    held = source.read(later.manifest.key, 0, 8)
    os.truncate(later.path, PAGE_BYTES + 8)
    with pytest.raises(MissingError, match="cut off"):
        source.read(later.manifest.key, 8, NBYTES)
    assert bytes(held) == bytes(payload_of(1)[:8])


def test_where_all_slots_are_held_a_snapshot_is_left_out(arena: Arena, tmp_path: Path) -> None:
    for step in range(3):
        stage(arena, step)
    source = memory.MemorySource(tmp_path, RUN)
    held = [source.read(manifest.key, 0, 1) for manifest in source.manifests()]
    assert stage(arena, 3) is None
    assert steps_in(tmp_path) == [2, 1, 0]
    del held
    assert stage(arena, 4) is not None


def test_a_pull_that_takes_for_ever_costs_no_snapshot(tmp_path: Path) -> None:
    """The ladder pins two steps at most, the one to fall back to and the one on its way; all others are staged yet."""
    slots, staged = slots_for(peers=1), []
    arena, source = Arena(tmp_path, RUN, 1, "w0", slots=slots), memory.MemorySource(tmp_path, RUN)
    for step in range(2):
        stage(arena, step)
    pinned = [source.read(manifest.key, 0, NBYTES) for manifest in source.manifests()]
    for step in range(2, 12):
        staged.append(stage(arena, step) is not None)
        assert_holds(tmp_path, step)
    assert staged == [True] * 10
    assert_holds(tmp_path, 0)
    assert_holds(tmp_path, 1)
    del pinned
    arena.close()


def hold(pipe: Any, directory: Path) -> None:
    source = memory.MemorySource(directory, RUN)
    held = source.read(source.manifests()[-1].key, 0, NBYTES)
    pipe.send("held")
    pipe.recv()
    pipe.send(int(held[0]))


def test_a_reader_that_dies_lets_go(arena: Arena, tmp_path: Path) -> None:
    for step in range(3):
        stage(arena, step)
    with child(hold, tmp_path) as (process, pipe):
        assert hear(pipe) == "held"
        for step in range(3, 6):
            stage(arena, step)
        assert steps_in(tmp_path) == [5, 4, 0]
        process.kill()
        process.join(LONG_S)
    stage(arena, 6)
    assert steps_in(tmp_path) == [6, 5, 4]


def test_ranges_outside_of_a_shard_are_refused(arena: Arena, tmp_path: Path) -> None:
    stage(arena, 0)
    source = memory.MemorySource(tmp_path, RUN)
    (manifest,) = source.manifests()
    assert len(source.read(manifest.key, 10, 10)) == 0
    with pytest.raises(MissingError):
        source.read(manifest.key, 0, NBYTES + 1)


def test_what_was_read_cannot_be_written(arena: Arena, tmp_path: Path) -> None:
    stage(arena, 0)
    source = memory.MemorySource(tmp_path, RUN)
    with pytest.raises(ValueError, match="read-only"):
        source.read(source.manifests()[0].key, 0, 10)[0] = 1


# --- killed at each point, and torn -----------------------------------------------------------------------------------

POINTS = {
    # where the writer of step 3 is killed -> what is sealed afterwards
    "before begin": ("begin", "before", [2, 1, 0]),
    "after begin": ("begin", "after", [2, 1]),
    "before the manifest": ("write_manifest", "before", [2, 1]),
    "after the manifest, before the header": ("write_manifest", "after", [2, 1]),
    "after the header": ("seal", "after", [3, 2, 1]),
}


def write_and_die(pipe: Any, directory: Path, method: str, when: str) -> None:
    arena = Arena(directory, RUN, 1, "w0")
    for step in range(3):
        stage(arena, step)
    original = getattr(Slot, method)

    def dying(self: Slot, *args: Any) -> Any:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(self, *args)
        os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(Slot, method, dying)
    stage(arena, 3)


@pytest.mark.parametrize(("method", "when", "sealed"), POINTS.values(), ids=POINTS.keys())
def test_c02_c09_killed_and_the_step_is_saved_again(method: str, when: str, sealed: list[int], tmp_path: Path) -> None:
    """What was sealed stays whole; what was not is nothing, goes, and the same step can be saved again (C9)."""
    with child(write_and_die, tmp_path, method, when) as (process, _):
        process.join(LONG_S)
        assert process.exitcode == -signal.SIGKILL
    assert steps_in(tmp_path) == sealed
    for step in sealed:
        assert_holds(tmp_path, step)
    unsealed = len(list(tmp_path.iterdir())) - len(sealed)
    assert len(memory.reclaim(tmp_path, RUN, kept=3)) == unsealed
    assert steps_in(tmp_path) == sealed
    again = Arena(tmp_path, RUN, 1, "w1")
    stage(again, 3)
    assert steps_in(tmp_path)[0] == 3
    assert_holds(tmp_path, 3)
    again.close()


@pytest.mark.parametrize("byte", range(HEADER_BYTES))
def test_a_torn_header_is_no_slot(byte: int, arena: Arena, tmp_path: Path) -> None:
    slot = stage(arena, 0)
    assert slot is not None
    with slot.path.open("r+b") as file:
        file.seek(byte)
        (was,) = file.read(1)
        file.seek(byte)
        file.write(bytes([was ^ 1]))
    assert steps_in(tmp_path) == []


@pytest.mark.parametrize("at", [0, 40, -2])
def test_a_torn_manifest_is_no_slot(at: int, arena: Arena, tmp_path: Path) -> None:
    slot = stage(arena, 0)
    assert slot is not None
    begin = PAGE_BYTES + slot.capacity
    with slot.path.open("r+b") as file:
        data = bytearray(slot.path.read_bytes()[begin:])
        data[at] ^= 1
        file.seek(begin)
        file.write(data)
    assert steps_in(tmp_path) == []


def test_files_that_are_none_of_ours_are_left_alone(arena: Arena, tmp_path: Path) -> None:
    stage(arena, 0)
    for name, data in ((f"elastic-{RUN}@1-w9-0.slot", b"short"), (f"elastic-{RUN}-1-w0", b"page"), ("other.slot", b"")):
        (tmp_path / name).write_bytes(data)
    (tmp_path / f"elastic-{RUN}@gone.slot").symlink_to(tmp_path / "nowhere")
    assert steps_in(tmp_path) == [0]
    memory.remove(tmp_path, RUN)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"elastic-{RUN}-1-w0", "other.slot"]


# --- reclaiming -------------------------------------------------------------------------------------------------------


def test_what_has_an_owner_is_not_reclaimed(arena: Arena, tmp_path: Path) -> None:
    for step in range(2):
        stage(arena, step)
    assert arena.begin(NBYTES) is not None
    assert memory.reclaim(tmp_path, RUN, kept=0) == []


def test_what_nobody_has_goes_when_nobody_comes(tmp_path: Path) -> None:
    owned, left, read = (Arena(tmp_path, RUN, 1, name) for name in ("w0", "w1", "w2"))
    for step, one in enumerate((owned, left, read)):
        stage(one, step)
    source = memory.MemorySource(tmp_path, RUN)
    array = source.read(source.manifests()[0].key, 0, 8)
    left.close()
    read.close()
    memory.reclaim(tmp_path, RUN, kept=0)
    assert steps_in(tmp_path) == [2, 0]
    del array
    memory.reclaim(tmp_path, RUN, kept=0)
    assert steps_in(tmp_path) == [0]
    owned.close()


def test_sealed_slots_of_the_dead_go_when_newer_ones_are_here(tmp_path: Path) -> None:
    first, second = Arena(tmp_path, RUN, 1, "w0"), Arena(tmp_path, RUN, 1, "w1")
    for step in (0, 1, 2):
        stage(first, step)
    first.close()  # the end of its process does the same
    assert memory.reclaim(tmp_path, RUN) == [tmp_path / f"elastic-{RUN}@1-w0-0.slot"]
    stage(second, 3, generation=2)
    memory.reclaim(tmp_path, RUN)
    assert steps_in(tmp_path) == [3, 2]
    stage(second, 1, generation=3)  # the steps after a restore are newer than all before it
    memory.reclaim(tmp_path, RUN)
    assert steps_in(tmp_path) == [3, 1]
    second.close()


def test_shards_are_counted_apart(tmp_path: Path) -> None:
    first, second = Arena(tmp_path, RUN, 1, "w0"), Arena(tmp_path, RUN, 1, "w1")
    stage(first, 0, shard=0, shards=2)
    for step in (1, 2, 3):
        stage(second, step, shard=1, shards=2)
    first.close()
    memory.reclaim(tmp_path, RUN)
    assert steps_in(tmp_path) == [3, 2, 1, 0]
    second.close()


# --- no room ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB."""
    with mounted(tmp_path, "1m") as directory:
        yield directory


def test_c18_a_full_directory_is_said_with_the_knob_and_left_as_it_was(tiny: Path) -> None:
    arena = Arena(tiny, RUN, 1, "w0")
    before = free_bytes(tiny)
    for nbytes in (1 << 20, 600 << 10):  # not one slot fits, and one
        with pytest.raises(NoRoomError, match=r"has 1 MiB free.*take [46] MiB.*Checkpoint\.memory"):
            arena.reserve(nbytes)
        assert list(tiny.iterdir()) == []
        assert free_bytes(tiny) == before
    arena.close()


def test_c18_whether_there_is_room_is_known_before_anything_is_written(tiny: Path, tmp_path: Path) -> None:
    arena = Arena(tiny, RUN, 2, "w0")
    assert re.search(r"has 1 MiB free.*take 4 MiB.*Checkpoint\.memory", arena.room(400 << 10).lack)
    assert list(tiny.iterdir()) == []
    assert Arena(tmp_path, RUN, 2, "w0").room(400 << 10).lack == ""
    nowhere = Arena(tmp_path / "nowhere", RUN, 2, "w0")
    assert "cannot be used" in nowhere.room(1).lack
    with pytest.raises(NoRoomError, match=r"nowhere cannot be used"):
        nowhere.reserve(1)


def test_the_slots_of_an_earlier_life_count_as_room(tmp_path: Path) -> None:
    with mounted(tmp_path, "5m") as directory:
        first = Arena(directory, RUN, 1, "w0")
        first.reserve(NBYTES)
        first.close()
        (directory / "filler").write_bytes(bytes(free_bytes(directory)))
        assert Arena(directory, RUN, 2, "w0").room(NBYTES).lack == ""
        assert Arena(directory, "other", 2, "w0").room(NBYTES).lack != ""


def test_the_slots_of_a_worker_that_is_gone_count_as_room_and_those_of_one_that_lives_do_not(tmp_path: Path) -> None:
    with mounted(tmp_path, "5m") as directory:
        first = Arena(directory, RUN, 1, "w0")
        first.reserve(NBYTES)
        (directory / "filler").write_bytes(bytes(free_bytes(directory)))
        assert Arena(directory, RUN, 1, "w1").room(NBYTES).lack != ""
        first.close()
        assert Arena(directory, RUN, 1, "w1").room(NBYTES).lack == ""


def test_c18_who_begins_beside_what_a_dead_worker_has_sealed_takes_what_room_there_is_and_later_the_rest(
    tmp_path: Path,
) -> None:
    """The ramdisk is as large as `elastic size` says: four slots and 15 %, and two of them hold the last steps."""
    nbytes = 8 << 20
    with mounted(tmp_path, f"{int(4 * nbytes * MARGIN)}") as directory:
        dead = Arena(directory, RUN, 1, "w0", slots=4)
        for step in range(4):
            stage(dead, step, nbytes)
        dead.close()
        memory.reclaim(directory, RUN)
        heir = Arena(directory, RUN, 1, "w1", slots=4)
        heir.reserve(nbytes)
        assert heir.is_short(nbytes)
        assert steps_in(directory) == [3, 2], "the last good steps gave way before there were newer ones"
        for step in (4, 5):
            assert stage(heir, step, nbytes) is not None
            memory.reclaim(directory, RUN)
        heir.reserve(nbytes)
        assert not heir.is_short(nbytes)
        assert steps_in(directory) == [5, 4]
        heir.close()


def test_no_room_for_a_larger_state_keeps_the_last_good_one(tiny: Path) -> None:
    arena = Arena(tiny, RUN, 1, "w0")
    for step in range(4):
        stage(arena, step)
    with pytest.raises(NoRoomError):
        arena.begin(1 << 20)
    assert steps_in(tiny) == [3]
    assert_holds(tiny, 3)
    arena.close()


def test_no_room_for_the_manifest_gives_the_slot_up(tiny: Path) -> None:
    arena = Arena(tiny, RUN, 1, "w0")
    stage(arena, 0)
    slot = arena.begin(NBYTES)
    assert slot is not None
    (tiny / "filler").write_bytes(bytes(free_bytes(tiny)))
    with pytest.raises(NoRoomError):
        arena.seal(slot, manifest_of(slot.payload[:NBYTES], 1))
    assert steps_in(tiny) == [0]
    assert_holds(tiny, 0)
    arena.close()


def test_needed_bytes_is_enough(tmp_path: Path) -> None:
    for nbytes in (1, NBYTES, 3 << 20):
        directory = tmp_path / str(nbytes)
        directory.mkdir()
        arena = Arena(directory, RUN, 1, "w0")
        for step in range(4):
            stage(arena, step, nbytes)
        taken = sum(path.stat().st_blocks * 512 for path in directory.iterdir())
        assert 0 < taken <= needed_bytes(nbytes, SLOTS) < taken + (5 << 20)
        arena.close()


def test_all_pages_are_touched_before_the_first_use(tmp_path: Path) -> None:
    arena = Arena(tmp_path, RUN, 1, "w0")
    arena.reserve(1 << 20)
    for path in tmp_path.iterdir():
        assert path.stat().st_blocks * 512 >= 1 << 20
    arena.close()
    assert len(list(tmp_path.iterdir())) == SLOTS == 3


def test_whatever_else_bears_the_name_of_a_slot_is_neither_read_nor_waited_for(arena: Arena, tmp_path: Path) -> None:
    """Everybody may write to /dev/shm: a pipe, a folder, a link to a slot of another run, a slot of another user."""
    assert stage(arena, 3) is not None
    os.mkfifo(tmp_path / f"elastic-{RUN}@x-w9-0.slot")
    (tmp_path / f"elastic-{RUN}@x-w9-1.slot").mkdir()
    (tmp_path / "elsewhere").mkdir()
    other = Arena(tmp_path / "elsewhere", RUN, 1, "w0")
    stage(other, 8)
    stage(other, 9)
    other.close()
    theirs, linked = (one.path for one in memory.scan(tmp_path / "elsewhere", RUN))
    (tmp_path / f"elastic-{RUN}@x-w9-2.slot").symlink_to(linked)
    if os.geteuid() == 0:
        stolen = theirs.rename(tmp_path / f"elastic-{RUN}@x-w9-3.slot")
        os.chown(stolen, 12345, -1)
    assert steps_in(tmp_path) == [3]
    memory.reclaim(tmp_path, RUN)
    assert steps_in(tmp_path) == [3]
    memory.remove(tmp_path, RUN)
    assert steps_in(tmp_path) == []


def with_another_header(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(b"elastic3" + data[8:])


def with_another_manifest(path: Path) -> None:
    slot = Slot(path.with_suffix(".new"), NBYTES)
    manifest = memory.Manifests()
    with memory.opened(path) as fd:
        assert fd is not None
        known = manifest.read(fd, path)
    assert known is not None
    body = seal.opened(known.encode(), 1, "it")
    line = seal.sealed(body, 2)
    slot.write_manifest(line)
    slot.stamp(Header(SlotState.SEALED, slot.capacity, len(line), google_crc32c.value(line), known.commit.step))
    slot.close()
    path.with_suffix(".new").rename(path)


@pytest.mark.parametrize("change", [with_another_header, with_another_manifest])
def test_what_another_release_has_sealed_stays_and_is_told_once(tmp_path, caplog, change):
    arena = Arena(tmp_path, RUN, 1, "w0")
    for step in (1, 2):
        stage(arena, step)
    arena.close()
    old, mine = (one.path for one in reversed(memory.scan(tmp_path, RUN)))
    change(old)
    caplog.clear()
    for _ in range(3):
        assert old not in memory.reclaim(tmp_path, RUN, kept=0)
    assert old.exists() and not mine.exists()
    told = [line for line in caplog.messages if "another release" in line]
    assert len(told) == 1 and str(old) in told[0]


@pytest.mark.parametrize("damage", [b"elastic2", b"\0" * 8, b"elastic!"])
def test_what_is_torn_goes(tmp_path, damage):
    arena = Arena(tmp_path, RUN, 1, "w0")
    stage(arena, 1)
    arena.close()
    (one,) = memory.scan(tmp_path, RUN)
    data = one.path.read_bytes()
    one.path.write_bytes(damage + bytes(HEADER_BYTES - 8) + data[HEADER_BYTES:])
    assert one.path in memory.reclaim(tmp_path, RUN)
