"""Effect. How injected faults are compared with a ledger: every kind somewhere; and what is not right is seen."""

from dataclasses import replace
from pathlib import Path

import pytest

from elastic.control.faults import FaultKind
from elastic.control.schedules import parse
from elastic.ledger.model import Category, Incident, Injected
from tests.chaos import test_ledger as on_processes
from tests.chaos.injected import COMPARED, NAMESPACES, PROCESSES, RAY, Clocks, compare
from tests.cluster import test_ledger_faults as on_ray

DOCS = Path(__file__).parents[2] / "docs" / "chaos.md"
STEP_S, BEGAN_S, OUTAGE_S = 0.1, 1000.0, 3.0
LINE = {"fault": {"kind": "kill", "duration_s": 0.0}, "at_s": BEGAN_S + 40 * STEP_S + 0.02}
LOST = Incident(
    number=1,
    kind="worker lost",
    began_s=LINE["at_s"] + 0.08,
    opened_s=LINE["at_s"] + 0.1,
    resumed_s=BEGAN_S + 41 * STEP_S + OUTAGE_S,
    injected=(Injected(fault="kill rank:1", kind="kill", target="w1", at_s=LINE["at_s"], proof="gone"),),
    wall_seconds={Category.DETECTING: 1.0, Category.FORMING: 2.0},
)


def committed() -> list[dict[str, float]]:
    """By two workers; the 41st step takes 3 s longer."""
    times = [BEGAN_S + step * STEP_S + (OUTAGE_S if step > 40 else 0.0) for step in range(100)]
    return [{"step": step, "t": t + late_s} for step, t in enumerate(times) for late_s in (0.0, 0.004)]


def kinds(*schedules: str) -> set[FaultKind]:
    return {fault.kind for text in schedules for fault in parse(text.format(folder="/")).plan(0, 100.0)}


def test_every_kind_is_compared_where_the_table_says() -> None:
    assert set(COMPARED) == set(FaultKind) and all(one.where for one in COMPARED.values())
    struck = {
        PROCESSES: kinds(on_processes.SCHEDULE, on_processes.FULL),
        RAY: kinds(on_ray.SCHEDULE, on_ray.FULL, on_ray.LAST),
        NAMESPACES: kinds(f"0 {on_processes.CUT}", f"0 {on_processes.DELAYED}"),
    }
    for where, found in struck.items():
        assert found == {kind for kind, one in COMPARED.items() if where in one.where}, where


def test_the_table_in_the_documents_is_this_one() -> None:
    text = DOCS.read_text()
    for kind, one in COMPARED.items():
        marks = " | ".join("yes" if where in one.where else "" for where in (PROCESSES, RAY, NAMESPACES))
        row = f"| `{kind.value}` | {marks} | {one.but} |"
        assert " ".join(row.split()) in {" ".join(line.split()) for line in text.splitlines()}, row


def test_what_an_outage_cost_is_told_by_the_clocks_of_those_who_trained() -> None:
    clocks = Clocks(committed())
    assert clocks.lost_s(LINE["at_s"], LOST.resumed_s or 0.0) == pytest.approx(OUTAGE_S)
    assert clocks.lost_s(BEGAN_S, BEGAN_S + 30 * STEP_S) == 0.0
    assert clocks.ceased_s(LINE["at_s"]) == LINE["at_s"]
    assert clocks.ceased_s(LINE["at_s"] + 2.0) == pytest.approx(BEGAN_S + 41 * STEP_S)
    compare(committed(), [(LINE, LOST)])


def test_few_steps_of_fewer_workers_are_measured_by_their_own_time() -> None:
    """Of three, which take twice as long as those of two workers, the first has the outage in it."""
    alone, took_s = (41, 42, 43), [2 * STEP_S if step in (41, 42, 43) else STEP_S for step in range(100)]
    took_s[41] += OUTAGE_S
    times = [BEGAN_S + sum(took_s[: step + 1]) for step in range(100)]
    lines = [{"step": step, "t": t} for step, t in enumerate(times) for _ in range(1 if step in alone else 2)]
    assert Clocks(lines).lost_s(times[40], times[45]) == pytest.approx(OUTAGE_S)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "planned departure"},
        {"began_s": LOST.began_s + 0.5},
        {"began_s": LOST.began_s - 0.5},
        {"wall_seconds": {Category.DETECTING: 1.0, Category.FORMING: 1.5}},
        {"wall_seconds": {Category.DETECTING: 1.0, Category.FORMING: 2.5}},
    ],
    ids=["class", "later", "earlier", "cheaper", "dearer"],
)
def test_an_incident_that_is_not_what_happened_is_found(wrong: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        compare(committed(), [(LINE, replace(LOST, **wrong))])  # type: ignore[arg-type]
