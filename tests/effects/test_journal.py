"""Effect. Rungs of checkpoints in the journal."""

import json
import logging

from elastic.actors import journal as journals
from elastic.actors.journal import Journal
from elastic.checkpoint.rungs import CheckpointRung, Degraded, Rung
from tests.effects.shards import key
from tests.effects.tmpfs import mounted
from tests.lines import whole_lines


def test_a_rung_is_a_line_with_its_reason(tmp_path):
    journal = Journal(tmp_path)
    rung = CheckpointRung(
        commit=key(7).commit, shards=1, rung=Rung.REPLICATED, copies=1, degraded="1 nodes for 2 copies", reason="said"
    )
    journal.checkpoint(12.5, rung)
    journal.checkpoint(13.0, Degraded(reason="1 nodes for 2 copies"))
    journal.close()
    journal.checkpoint(14.0, Degraded(reason=""))
    first, second = whole_lines(journal.path)
    assert (first["t"], first["checkpoint"], first["rung"], first["commit"]["step"]) == (
        12.5,
        "CheckpointRung",
        "replicated",
        7,
    )
    assert second == {"t": 13.0, "checkpoint": "Degraded", "reason": "1 nodes for 2 copies", "rung": "replicated"}


def test_a_loss_that_is_no_number_is_a_line_that_any_program_reads(tmp_path):
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    journal = Journal(tmp_path)
    journal.write([{"t": 1.0, "metrics": {"loss": float("nan"), "norm": 2.0}, "for_s": [float("inf")]}])
    journal.close()
    (line,) = [json.loads(text, parse_constant=refuse) for text in journal.path.read_text().splitlines()]
    assert line == {"t": 1.0, "metrics": {"loss": None, "norm": 2.0}, "for_s": [None]}


def lines(count: int) -> list[dict[str, object]]:
    return [{"t": float(number), "life": "Noted", "text": "x" * 100} for number in range(count)]


def test_a_full_disk_ends_no_run_and_what_was_to_be_written_comes_later(tmp_path, caplog):
    """Once there is room, all of it is there, in order, each line once."""
    caplog.set_level(logging.WARNING, "elastic")
    with mounted(tmp_path, "256k") as tiny:
        filler, journal, said = tiny / "filler", Journal(tiny), lines(510)
        journal.write(said[:10])
        filler.write_bytes(b"x" * 200_000)
        assert not journal.is_behind
        for line in said[10:500]:
            journal.write([line])
        assert journal.is_behind, "the disk is full"
        assert journal.path.read_text().count("\n") < 500
        filler.unlink()
        journal.write([])
        assert not journal.is_behind and whole_lines(journal.path) == said[:500]
        journal.write(said[500:])
        assert whole_lines(journal.path) == said
        journal.close()
        warned = [one.getMessage() for one in caplog.records]
        assert len(warned) == 1 and "No space left on device" in warned[0] and "make room there" in warned[0]


def test_what_can_not_be_written_to_the_end_is_told(tmp_path, caplog):
    with mounted(tmp_path, "16k") as tiny:
        journal = Journal(tiny)
        journal.write(lines(400))
        assert journal.is_behind
        journal.close()
        assert "lacks its last" in caplog.text


def test_what_waits_is_bounded_and_who_reads_is_told_of_the_gap(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(journals, "_WAITING_BYTES", 20_000)
    with mounted(tmp_path, "64k") as tiny:
        (tiny / "filler").write_bytes(b"x" * 48_000)
        journal = Journal(tiny)
        for line in lines(400):
            journal.write([line])
        (tiny / "filler").unlink()
        assert caplog.text.count("are lost: too many wait") == 1
        journal.close()
        found = [line["t"] for line in map(json.loads, (tiny / "journal.jsonl").read_text().splitlines()[:-1])]
        assert found == [float(number) for number in range(len(found))] and 100 < len(found) < 400
        assert journal.is_behind, "not all is there, and never will be"
