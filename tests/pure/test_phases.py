"""Pure. Where a pause went: an observer's two moments with the journal's between them, and nothing outside counted."""

from typing import Any

import pytest

from benchmarks.phases import PHASES, phases_s

BEHIND = {"members": [{"worker": name} for name in "abc"], "behind": [2]}


def phase(at_s: float, name: str) -> dict[str, Any]:
    return {"t": at_s, "phase": name}


def formed(at_s: float, worker: str, healing_s: float = 0.0) -> dict[str, Any]:
    return {"t": at_s, "event": "Formed", "worker": worker, "healing_s": healing_s}


JOINED = (
    phase(10.1, "freezing"),
    phase(10.2, "forming"),
    {"t": 10.25, "command": "Form", "view": BEHIND},  # a command is told once it is given
    formed(10.7, "a", 0.4),
    formed(10.75, "b", 0.4),
    formed(11.0, "c", 0.4),
    phase(11.05, "running"),
)


def test_each_phase_ends_where_the_journal_says_and_all_add_up_to_the_pause() -> None:
    found = phases_s(JOINED, 10.0, 11.2)
    assert found == pytest.approx(
        dict(zip(PHASES, (0.1, 0.1, 0.1, 0.45, 0.25, 0.05, 0.15), strict=True)),
    )
    assert sum(found.values()) == pytest.approx(1.2)


def test_what_lies_outside_of_the_pause_does_not_count() -> None:
    around = (phase(1.0, "freezing"), phase(2.0, "forming"), formed(2.5, "c"), phase(3.0, "running"))
    after = tuple({**line, "t": line["t"] + 100} for line in around)
    assert phases_s((*around, *JOINED, *after), 10.0, 11.2) == phases_s(JOINED, 10.0, 11.2)


def test_where_one_forming_failed_the_last_one_counts_and_all_before_it_is_stopping() -> None:
    failed = (phase(10.1, "freezing"), phase(10.11, "forming"), formed(10.12, "a"), phase(10.13, "freezing"))
    found = phases_s((*failed, *JOINED[1:]), 10.0, 11.2)
    assert found["stopped"] == pytest.approx(0.1)
    assert sum(found.values()) == pytest.approx(1.2)


def test_where_nobody_was_behind_nothing_is_handed_on_or_installed() -> None:
    lines = [
        phase(10.1, "freezing"),
        {"t": 10.1, "command": "Form", "view": BEHIND | {"behind": []}},
        phase(10.2, "forming"),
        formed(10.3, "a"),
        formed(10.3, "b"),
        phase(10.4, "running"),
    ]
    found = phases_s(lines, 10.0, 10.5)
    assert found["handed_on"] == found["installed"] == 0.0
    assert found["connected"] == pytest.approx(0.1)


@pytest.mark.parametrize("left_out", ["freezing", "forming", "running"])
def test_a_pause_in_which_no_generation_began_has_no_phases(left_out: str) -> None:
    assert phases_s([line for line in JOINED if line.get("phase") != left_out], 10.0, 11.2) == {}
    assert phases_s([line for line in JOINED if line.get("event") != "Formed"], 10.0, 11.2) == {}
