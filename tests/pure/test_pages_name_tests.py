"""What a page calls shown is shown: the tests that it names are there, and each feature of the supervisor has one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
NAMED = re.compile(r"`((?:tests/\w+/)?test_\w+\.py)(?:::(test_\w+))?`")
ALL_OF = "all of `tests/cluster`"


def missing(file: str, function: str) -> str:
    """What is not there, empty if all is; a file may be named without its folder."""
    paths = [ROOT / file] if "/" in file else list((ROOT / "tests").rglob(file))
    if not any(path.is_file() for path in paths):
        return file
    is_there = not function or any(f"def {function}(" in path.read_text() for path in paths)
    return "" if is_there else f"{file}::{function}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_test_that_a_page_names_is_there(page):
    absent = [missing(file, function) for file, function in NAMED.findall(page.read_text())]
    assert [one for one in absent if one] == []


def test_each_feature_of_the_supervisor_names_a_test():
    table = (ROOT / "docs" / "supervisor.md").read_text().partition("## Feature by feature")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20 and all(len(row) == 3 for row in rows)
    assert [row[0] for row in rows if not NAMED.search(row[2]) and ALL_OF not in row[2]] == []


def test_what_is_not_there_is_missed():
    assert missing("tests/pure/test_nothing.py", "") == "tests/pure/test_nothing.py"
    assert missing("test_pages_name_tests.py", "test_nothing") == "test_pages_name_tests.py::test_nothing"
    assert missing("test_pages_name_tests.py", "test_what_is_not_there_is_missed") == ""
