"""Effect. A host that the run itself cuts off, on a real cluster in namespaces, against what the ledger makes of it."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import scenarios
from benchmarks.hosts import why_not
from benchmarks.rows import Fault
from benchmarks.stage import Stage
from tests.chaos.group import read
from tests.chaos.injected import compare
from tests.chaos.ledger_checks import booked
from tests.chaos.test_partition import assert_one_line_of_training, play
from tests.lines import whole_lines

Line = dict[str, Any]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.host,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(why_not("tc")), reason=why_not("tc")),
]


def test_a_host_that_the_run_cuts_off_itself_is_in_the_ledger_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own schedule of faults, on the host that is cut off: what came of it is told when the host is back."""
    cut_s = 6.0
    monkeypatch.setenv("ELASTIC_CHAOS__ENABLE_FAULT_INJECTION", "true")
    monkeypatch.setenv("ELASTIC_CHAOS__SCHEDULE", f"25 partition rank:3 for={cut_s:g} with=eth0")
    monkeypatch.setitem(scenarios.STRIKES, "injected", injected)
    row, journal = play("injected", tmp_path, cut_s + 2.0, monkeypatch)
    assert_one_line_of_training(row)
    (path,) = tmp_path.rglob("journal.jsonl")
    account = booked(path)
    struck = next(line for line in journal if line.get("event") == "FaultInjected")
    (incident,) = [one for one in account.incidents if one.injected]
    assert [one.at_s for one in incident.injected] == [struck["at_s"]]
    committed = [line for line in read(tmp_path.rglob("steps/*.jsonl")) if line["event"] == "committed"]
    joins = [one for one in account.incidents if one.kind == "planned stop"]
    compare(committed, [(struck, incident)], joins)
    assert incident.cost_s > 1.0, "it was not felt"


def injected(stage: Stage) -> Fault:
    """Wait until the run has cut a host off, and until that is over."""
    path = Path(stage.job.folder) / "run" / "journal.jsonl"

    def ordered() -> list[Line]:
        return [line for line in whole_lines(path) if line.get("command") == "InjectFault"]

    stage.wait_for(lambda: bool(ordered()), "a fault was injected")
    (order,) = ordered()
    there = {
        line["worker"]
        for line in whole_lines(path)
        if line.get("event") == "WorkerPlaced" and line["node"] == order["node"]
    }
    pids = {
        line["pid"] for line in whole_lines(path) if line.get("event") == "WorkerParked" and line["worker"] in there
    }
    stage.spoiled |= {stage.hosts.of(pid) for pid in pids}
    fault = stage.fault("partition", pids & set(stage.watch.members.values()), returns=True)
    stage.wait_s(scenarios.CUT_S)
    return fault
