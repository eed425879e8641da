"""Effect. Whether two drivers mean the same by train_fn: equal across processes, unequal for what matters."""

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elastic.actors.code import digest_of

SCRIPT = """
import sys
from pathlib import Path
from elastic.actors.code import digest_of
import user_code
print(digest_of(user_code.make(Path("/data"), {{"lr": 0.1, "steps": 10}}), 0))
"""
CODE = """
import logging
import math
import threading
from dataclasses import dataclass

log = logging.getLogger(__name__)
lock = threading.Lock()
RATE = 0.5
NAMES = frozenset({"one", "two", "three", "four"})


@dataclass(frozen=True)
class Net:
    width: int = 3

    def forward(self, x):
        return helper(x) * self.width


def helper(x):
    return math.sin(x) * RATE


def make(folder, settings):
    def train_fn(session):
        log.info("%s %s", folder, settings)
        with lock:
            return [Net(2).forward(x) for x in range(3) if x in {"a", "b", "c"} or x in NAMES]

    return train_fn
"""
CHANGES = {
    "a number at the level of the module": ("RATE = 0.5", "RATE = 0.25"),
    "a function that it calls": ("math.sin(x)", "math.cos(x)"),
    "a method of a class that it uses": ("* self.width", "+ self.width"),
    "a field of that class": ("width: int = 3", "width: int = 4"),
    "its own body": ("range(3)", "range(4)"),
    "a set that it looks into": ('"four"', '"five"'),
}


def digest(folder: Path, code: str, seed: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "user_code.py").write_text(code)
    root = str(Path(__file__).parents[2])
    environment = {"PYTHONPATH": f"{folder}:{root}", "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"}
    script = SCRIPT.replace("{{", "{").replace("}}", "}")
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def usual(tmp_path_factory: Any) -> str:
    return digest(tmp_path_factory.mktemp("usual"), CODE, "1")


def test_it_is_the_same_in_every_process(usual: str, tmp_path: Path) -> None:
    assert digest(tmp_path, CODE, "2") == usual
    assert len(usual) == 32


def test_comments_and_places_do_not_matter(usual: str, tmp_path: Path) -> None:
    assert digest(tmp_path, CODE.replace("\nlog =", "\n\n# one more line\nlog ="), "3") == usual


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_trained_matters(usual: str, tmp_path: Path, change: str) -> None:
    old, new = CHANGES[change]
    assert old in CODE
    assert digest(tmp_path, CODE.replace(old, new), "1") != usual


def test_so_do_values() -> None:
    def make(steps: int, folder: Path) -> Any:
        def train_fn(session: Any, rate: float = 0.1) -> int:
            return steps

        return train_fn

    one = make(3, Path("/a"))
    assert digest_of(one) == digest_of(make(3, Path("/b")))  # it does not name its folder
    assert digest_of(one) != digest_of(make(4, Path("/a")))
    assert digest_of(one, 0) != digest_of(one, 1)
    assert digest_of(functools.partial(one, rate=0.2)) not in (
        digest_of(one),
        digest_of(functools.partial(one, rate=0.3)),
    )
    assert digest_of(functools.partial(one, rate=0.2)) == digest_of(functools.partial(make(3, Path("/a")), rate=0.2))


def test_what_can_not_be_told_is_never_the_same() -> None:
    here = iter([1])

    def train_fn(session: Any) -> Any:
        return (number for number in [next(here)])

    generator = (number for number in range(3))
    assert digest_of(functools.partial(train_fn, generator)) != digest_of(functools.partial(train_fn, generator))
