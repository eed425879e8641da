"""Pure. Why nothing of what the tiers hold may be what a run goes on from; or that it may begin anew."""

from dataclasses import replace
from typing import Any

import pytest

from elastic.checkpoint.catalog import Candidate, Choice
from elastic.checkpoint.seen import Seen, left_for_an_older_one, why_nothing
from elastic.control.values import CommitId, Fork

STATE = CommitId(incarnation=1, generation=1, attempt=0, step=9, lineage="a")
WHOLE = Candidate(commit=STATE, shards=())
NOWHERE, SILENT = ("of step 9, shard 1 of 2 is nowhere", "of step 4, shard 1 of 2 is nowhere"), ("node n2 is silent",)


def why(bad: tuple[tuple[int, str], ...] = (), story: str = "", **there: Any) -> str:
    nothing: dict[str, Any] = dict.fromkeys(("candidates", "forks", "starts", "silent", "quarantined"), ())
    seen = Seen(**nothing | there, incarnation=1, is_durable_heard=True)
    return why_nothing(seen, Choice(candidate=None, reason="", bad=bad), story, tries=3)


def test_a_run_of_which_nothing_is_there_begins_anew() -> None:
    assert why() == ""


@pytest.mark.parametrize(
    ("there", "begins", "ends"),
    [
        ({"silent": SILENT}, "node n2 is silent", ""),
        ({"silent": SILENT, "candidates": (WHOLE,), "broken": NOWHERE}, "node n2 is silent", ""),
        ({"quarantined": ("step 9: nan",)}, "every whole step is in quarantine", "(step 9: nan)"),
        ({"unread": ("step 9: no manifest",), "silent": SILENT}, "steps are there, and none can be read", ""),
        ({"broken": NOWHERE}, "of step 9, shard 1 of 2 is nowhere: start the run again when", "to begin anew"),
        ({"void": (300, 200)}, "all durable steps are void, since the run went back to an older one", "begin anew"),
        ({"void": (300,), "silent": SILENT}, "all durable steps are void", "to begin anew"),
        ({"broken": NOWHERE, "void": (300,)}, "of step 9, shard 1 of 2 is nowhere: start the run again", "anew"),
        ({"broken": NOWHERE, "silent": SILENT}, "of step 9, shard 1 of 2 is nowhere; node n2 is silent: start", ""),
    ],
)
def test_why_nothing_of_it_may_be_taken(there: dict[str, Any], begins: str, ends: str) -> None:
    told = why(**there)
    assert told.startswith(begins) and told.endswith(ends)


def test_void_are_durable_steps_that_were_left_for_an_older_one_but_not_those_of_before_a_beginning() -> None:
    steps = [replace(STATE, step=step) for step in (290, 300, 298)]
    went_back = Fork(incarnation=2, generation=1, step=295)
    assert left_for_an_older_one(steps, ()) == ()
    assert left_for_an_older_one(steps, [went_back]) == (300, 298)
    assert left_for_an_older_one(steps, [went_back, Fork(incarnation=3, generation=1, step=-1)]) == ()
    first = Fork(incarnation=1, generation=1, step=-1)
    assert left_for_an_older_one(steps, [first, went_back]) == (300, 298), "they were made since the run began"


def test_states_that_failed_come_first() -> None:
    told = why(bad=((9, "a"),), story="step 9: nan", candidates=(WHOLE,), silent=SILENT)
    assert (
        told == "training failed 3 times soon after each step: choose one with elastic rewind --to-step (step 9: nan)"
    )
