"""Effect. A host of a real cluster is cut off, without a reset for anybody, and comes back: in network namespaces."""

import json
from pathlib import Path

import pytest

from benchmarks import scenarios
from benchmarks.hosts import leftovers, why_not
from benchmarks.recovery import Bench, Settings

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(bool(why_not()), reason=why_not())]


def test_a_host_that_is_cut_off_holds_nobody_up_and_comes_back_as_a_joiner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenarios, "CUT_S", 6.0)
    bench = Bench(Settings(repeats=1, deadline_s=120.0), tmp_path)
    try:
        row = bench.repetition("partition", "elastic", 0)
    finally:
        bench.close()
    assert row["note"] == ""
    (path,) = tmp_path.rglob("journal.jsonl")
    journal = [json.loads(text) for text in path.read_text().splitlines()]
    freezes = [line["reason"] for line in journal if line.get("command") == "Freeze"]
    assert any("Limits.heartbeat_timeout_s" in reason for reason in freezes), "the cut was not felt"
    assert row["t_resume_s"] < 30, "somebody waited for a lease"
    assert (row["steps_lost"], row["samples_repeated"], row["samples_skipped"]) == (0, 0, 0)
    assert row["survivors_kept"] >= 2 and row["digests_equal"]
    assert leftovers() == []
