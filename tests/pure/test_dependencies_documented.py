"""Effect. No dependency without a reason: each one in pyproject.toml has a row in docs/dependencies.md."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def declared() -> set[str]:
    """Returns the names of all dependencies: needed, optional, and for building."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = config["project"]
    lists = [config["build-system"]["requires"], project["dependencies"]]
    lists += project["optional-dependencies"].values()
    return {re.split(r"[^A-Za-z0-9._-]", requirement)[0] for names in lists for requirement in names}


def documented() -> set[str]:
    """Returns the names in the first column of the tables, each of them in backticks."""
    text = (ROOT / "docs" / "dependencies.md").read_text()
    return set(re.findall(r"^\| `([^`\[]+)", text, flags=re.MULTILINE))


@pytest.mark.parametrize("name", sorted(declared()))
def test_a_dependency_has_a_row(name):
    assert name in documented()


def test_a_row_has_a_dependency():
    assert documented() <= declared()
