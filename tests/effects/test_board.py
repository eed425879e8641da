"""Effect. Files for TensorBoard: whatever becomes of their disk, nobody waits for them."""

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from elastic.callbacks import board as boards
from elastic.callbacks.board import Board, Entry
from tests.effects.helpers import eventually
from tests.effects.test_callbacks_library import scalars_in
from tests.effects.tmpfs import mounted

QUICKLY_S = 20.0  # less than what hangs


def entry(step: int) -> Entry:
    return Entry(step=step, at_s=100.0 + step, scalars={"loss": float(step)})


def steps_in(folder: Path) -> list[int]:
    return sorted(step for step, _ in scalars_in(folder).get("loss", []))


def test_a_full_disk_holds_nobody_up_and_later_there_is_a_new_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More is put than any queue of tensorboardX takes: its own thread would be dead by then."""
    caplog.set_level(logging.WARNING, "elastic")
    monkeypatch.setattr(boards, "_FLUSH_S", 0.01)
    monkeypatch.setattr(boards, "_AGAIN_S", 0.2)
    with mounted(tmp_path, "64k") as tiny:
        made = Board(str(tiny), "scalars")
        (tiny / "filler").write_bytes(b"x" * 60_000)
        began_s = time.monotonic()
        for step in range(500):
            made.put(entry(step))
        assert time.monotonic() - began_s < QUICKLY_S
        eventually(lambda: "scalars are not written" in caplog.text, "the disk is full")
        (tiny / "filler").unlink()
        last = 500

        def is_written() -> bool:
            nonlocal last
            made.put(entry(last))
            last += 1
            newest = max(tiny.glob("events.*"), key=lambda path: path.stat().st_mtime_ns, default=None)
            return newest is not None and last > 510 and made._writer is not None

        eventually(is_written, "it is written again")
        made.close()
        assert len(list(tiny.glob("events.*"))) > 1, "the end of the first one may be torn"
        newest = max(tiny.glob("events.*"), key=lambda path: path.stat().st_mtime_ns)
        (alone := tmp_path / "alone").mkdir()
        (alone / newest.name).write_bytes(newest.read_bytes())
        assert steps_in(alone)[-1] == last - 1
        assert "No space left on device" in caplog.text


def test_two_in_one_folder_and_second_keep_what_each_has_written(tmp_path: Path) -> None:
    made = [Board(str(tmp_path), "scalars") for _ in range(2)]
    for number, one in enumerate(made):
        one.put(entry(number))
    for one in made:
        one.close()
    assert steps_in(tmp_path) == [0, 1] and len(list(tmp_path.glob("events.*"))) == 2


def test_what_comes_faster_than_it_is_written_is_left_out_and_an_end_that_hangs_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "elastic")
    monkeypatch.setattr(boards, "_MOST", 10)
    monkeypatch.setattr(boards, "_END_S", 0.2)
    gate, write = threading.Event(), Board._write

    def hanging(self: Board, told: Entry) -> Any:
        gate.wait(30)
        return write(self, told)

    monkeypatch.setattr(Board, "_write", hanging)
    made = Board(str(tmp_path), "scalars")
    began_s = time.monotonic()
    for step in range(100):
        made.put(entry(step))
    made.close()
    assert time.monotonic() - began_s < QUICKLY_S
    assert caplog.text.count("some are left out") == 1 and caplog.text.count("may lack their end") == 1
    gate.set()
    made._waiting.put(None)
    made._thread.join(30)
    assert not made._thread.is_alive() and steps_in(tmp_path)
