"""Effect. Rungs of checkpoints in the journal."""

import json

from elastic.actors.journal import Journal
from elastic.checkpoint.rungs import CheckpointRung, Degraded, Rung
from tests.effects.shards import key


def test_a_rung_is_a_line_with_its_reason(tmp_path):
    journal = Journal(tmp_path)
    rung = CheckpointRung(
        commit=key(7).commit, shards=1, rung=Rung.REPLICATED, copies=1, degraded="1 nodes for 2 copies", reason="said"
    )
    journal.checkpoint(12.5, rung)
    journal.checkpoint(13.0, Degraded(reason="1 nodes for 2 copies"))
    journal.close()
    journal.checkpoint(14.0, Degraded(reason=""))
    first, second = [json.loads(line) for line in journal.path.read_text().splitlines()]
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
