"""The crash matrix has no cell without a test or a reason, and the page shows it as it is."""

from pathlib import Path

from tests import crash_matrix
from tests.crash_matrix import POINTS, PROCESS, RAY, VICTIMS, WHY_NOT, why_not

PAGE = Path(__file__).parents[2] / "docs" / "checkpointing.md"


def test_each_cell_is_played_or_has_a_reason_why_it_is_not():
    cells = {(point, victim) for point in POINTS for victim in VICTIMS}
    assert cells >= PROCESS | RAY
    assert {cell for cell in cells if not why_not(*cell)} == PROCESS | RAY
    assert {why_not(*cell) for cell in cells} - {""} == set(WHY_NOT)


def test_the_page_shows_the_matrix():
    """python -m tests.crash_matrix prints what is to be there."""
    assert crash_matrix.render() in PAGE.read_text()
