"""Each deliberate bug of the protocol is caught: the world that once showed it shows it still."""

import json

import pytest

from elastic.sim.campaign import from_plain, play
from elastic.sim.laws import Law
from tests.effects.mutants import MUTANTS, Mutant, history, hunted, played_by

QUICK, SEEDS = 12, 150
LAWS = {law.value for law in Law}  # an exception is none of them: who only crashes proves nothing


def test_there_are_enough_of_them():
    assert len(MUTANTS) >= 12 and len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, id=mutant.name, marks=pytest.mark.slow if place >= QUICK else ())
        for place, mutant in enumerate(MUTANTS)
    ],
)
def test_a_bug_breaks_a_law(mutant: Mutant, tmp_path):
    """Where the world that is kept plays differently since something was changed, another one must show it."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "anew").mkdir()
    law = played_by(mutant, tmp_path / "kept").partition("|")[0].strip()
    if law not in LAWS:
        found = hunted(mutant, tmp_path / "anew", SEEDS)
        law = json.loads(found)["law"] if found else law or "none"
    assert law in LAWS, f"{mutant.name} breaks {law}: python -m tests.effects.mutants 500"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_without_the_bug_its_world_is_sound(mutant: Mutant):
    played = play(from_plain(json.loads(history(mutant).read_text())["case"]))
    assert played.is_sound, f"{played.law}: {played.what}"


@pytest.mark.slow
def test_a_bug_is_found_again_from_nothing(tmp_path):
    found = json.loads(hunted(MUTANTS[1], tmp_path, 100))
    assert found["law"] in LAWS
