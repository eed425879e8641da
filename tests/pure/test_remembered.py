"""What a journal remembers of checkpoints, for the lives of a run that has no persistent tier."""

import json

import pytest

from elastic.checkpoint.remembered import Blamed, Quarantined, Remembered
from elastic.control import commands as cmd
from elastic.control.values import CommitId, Fork, View
from elastic.ledger.lines import line_of

COMMIT = CommitId(incarnation=1, generation=2, attempt=3, step=40, lineage="ab")
FORKS = (Fork(incarnation=1, generation=1, step=-1), Fork(incarnation=2, generation=1, step=20, skip=(21, 23)))


def written(role: str, value: object) -> dict:
    """A line, as a later life reads it."""
    return json.loads(json.dumps(line_of(role, 1.0, value)))


def formed(*forks: Fork) -> dict:
    parts = {"members": (), "resume": COMMIT, "donors": (), "behind": (), "forks": forks}
    view = View(run="r", incarnation=1, generation=1, bootstrap=not forks, restored=bool(forks), **parts)
    return written("command", cmd.Form(view=view, reason="it is there"))


def test_where_history_began_anew_is_read_from_what_was_formed():
    assert Remembered().read(formed()).forks == {FORKS[0]}, "a line of its own begins"
    assert Remembered().read(formed()).read(formed(FORKS[0])).read(formed(*FORKS)).forks == set(FORKS)


def test_bad_steps_and_failed_lives_are_read():
    told = (
        Quarantined(commit=COMMIT, reason="chunk 0 does not match"),
        Blamed(commit=COMMIT, incarnation=3, reason="nan"),
    )
    known = Remembered()
    for one in told:
        known = known.read(written("checkpoint", one))
    ((commit, reason),) = known.quarantined.items()
    assert commit.same_state(COMMIT) and commit.attempt == 0 and reason == "chunk 0 does not match"
    assert known.blamed == told[1:]


def test_the_first_reason_stays():
    known = Remembered()
    for reason in ("first", "second"):
        known = known.without(Quarantined(commit=COMMIT, reason=reason))
    assert list(known.quarantined.values()) == ["first"]


@pytest.mark.parametrize(
    "line",
    [
        {"event": "StepStable"},
        {"command": "Form", "view": {"forks": [{"when": 1}], "bootstrap": False}},
        {"command": "Form", "view": {"forks": None, "bootstrap": False}},
        {"checkpoint": "Quarantined", "commit": {"step": 1}, "reason": ""},
        {"checkpoint": "Blamed", "commit": None},
    ],
)
def test_what_another_version_has_written_is_left_out(line):
    assert Remembered().read(line) == Remembered()
