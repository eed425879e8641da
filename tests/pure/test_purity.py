"""Effect. The pure modules are pure: by what they import, by what they say, and by the linter's list."""

import functools
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "elastic"
KINDS = ("Pure", "Effect")
HEAVY = {"numpy", "ray", "torch"}
IMPORT_TIMEOUT_S = 60.0
IMPORT_ALL = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def contracts() -> dict[str, dict[str, list[str]]]:
    """Returns the import contracts of pyproject.toml by id."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return {contract["id"]: contract for contract in linter["contracts"]}


def is_pure(name: str) -> bool:
    """Whether the import linter holds a module to the pure contract."""
    sources = contracts()["pure"]["source_modules"]
    return any(name == source or name.startswith(f"{source}.") for source in sources)


def test_pure_modules_load_nothing_heavy():
    names = [name for name in MODULES if is_pure(name)]
    command = [sys.executable, "-W", "error", "-c", IMPORT_ALL, json.dumps(names)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False)
    assert answer.returncode == 0, answer.stderr
    loaded = set(json.loads(answer.stdout))
    assert HEAVY & loaded == set()


def test_the_linter_forbids_what_is_heavy():
    assert set(contracts()["pure"]["forbidden_modules"]) >= HEAVY


def test_every_pure_source_exists():
    assert set(contracts()["pure"]["source_modules"]) <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_the_docstring_says_which_half_a_module_is_in(name):
    quotes, _, docstring = MODULES[name].read_text().partition('"""')
    kind = docstring.partition(".")[0] if quotes in ("", "r") else ""
    assert kind in KINDS, f"{name}: the module's docstring must open with `Pure.` or `Effect.`"
    listed = "is" if is_pure(name) else "is not"
    assert (kind == "Pure") == is_pure(name), f"{name} says `{kind}.` but {listed} in the linter's pure list"
