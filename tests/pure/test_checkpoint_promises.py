"""Every property that docs/checkpointing.md promises of checkpoints is shown by tests that bear its number."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
COUNT = 26


def shown() -> dict[int, set[str]]:
    """Names of test functions by the numbers in them: test_c02_c09_... shows two."""
    found: dict[int, set[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name in re.findall(r"^(?:async )?def (test_(?:c\d\d_)+\w+)\(", path.read_text(), re.MULTILINE):
            for number in re.findall(r"(?<=_)c(\d\d)(?=_)", name):
                found.setdefault(int(number), set()).add(name)
    return found


def promised() -> dict[int, str]:
    """The test that the table names, by number."""
    text = (ROOT / "docs" / "checkpointing.md").read_text()
    rows = re.findall(r"^\| C(\d+) \|[^|]+\|[^|]+\| `(test_\w+)` \|$", text, re.MULTILINE)
    return {int(number): name for number, name in rows}


def test_each_property_has_its_row() -> None:
    assert sorted(promised()) == list(range(1, COUNT + 1))


def test_each_row_names_a_test_that_bears_its_number() -> None:
    tests = shown()
    wrong = {number: name for number, name in promised().items() if name not in tests.get(number, set())}
    assert wrong == {}


def test_no_test_bears_a_number_that_the_table_lacks() -> None:
    assert set(shown()) == set(promised())
