"""Effect. How the bench's observer sees that a fault took place which hits nobody who trains."""

import contextlib
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import hosts, scenarios, stage
from benchmarks.rows import Fault
from benchmarks.scenarios import STRIKES
from benchmarks.stage import RunEndedError, Stage
from benchmarks.turns import misfire
from elastic.demo.steplog import collect

DEADLINE_S = 30.0
SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


class Hosts:
    """Three, of whom these answer the head, one answer after the other."""

    def __init__(self, *answers: list[str]) -> None:
        self.hosts, self.slots = dict.fromkeys("abc"), dict[str, int]()
        self._answers = iter(answers)
        self.parted = False

    def answering(self) -> list[str]:
        return next(self._answers)

    def silence(self, senders: list[str], receivers: list[str]) -> None:
        self.parted = True

    def unite(self) -> None:
        self.parted = False


@contextlib.contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEPS) as process:
        yield process
        process.kill()


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUT_S", "WATCHED_S", "DRIVER_S"):
        monkeypatch.setattr(scenarios, name, 0.0)
    monkeypatch.setattr(Stage, "_start_driver", lambda self: None)


def staged(folder: Path, driver: Any, on: Any = None) -> Stage:
    made = Stage(
        system=SimpleNamespace(supervisor="guard", monitor=""),  # type: ignore[arg-type]
        hosts=on or Hosts(),  # type: ignore[arg-type]
        job=SimpleNamespace(hosts_file=folder / "hosts.json"),  # type: ignore[arg-type]
        size=4,
        deadline_s=time.monotonic() + DEADLINE_S,
        chance=random.Random(0),
    )
    members = {rank: rank + 1 for rank in range(4)}
    made.watch = SimpleNamespace(look=lambda: None, members=members)  # type: ignore[assignment]
    made._driver = driver
    return made


def unseen(fault: Fault | None) -> str:
    assert fault is not None
    return misfire(collect([]), fault)


@pytest.mark.parametrize("ends_before", [False, True])
def test_a_driver_was_struck_if_it_was_killed(ends_before: bool, tmp_path: Path) -> None:
    with sleeper() as driver:
        if ends_before:
            driver.terminate()
            driver.wait(DEADLINE_S)
        made = staged(tmp_path, driver)
        with contextlib.suppress(RunEndedError):
            STRIKES["driver"](made)
    assert bool(unseen(made.struck)) == ends_before


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("takes_the_run_along", [False, True])
def test_who_coordinates_was_struck_if_it_is_gone_whatever_becomes_of_the_run(
    dies: bool, takes_the_run_along: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = SimpleNamespace(poll=lambda: 1 if takes_the_run_along else None, returncode=1)
    with sleeper() as guard:
        monkeypatch.setattr(Stage, "titled", lambda self, title: [guard.pid])
        if not dies:
            monkeypatch.setattr(Stage, "signal", lambda self, pid, number: None)
            monkeypatch.setattr(stage, "_END_S", 0.1)
        made = staged(tmp_path, driver)
        with contextlib.suppress(RunEndedError):
            STRIKES["coordinator"](made)
    assert bool(unseen(made.struck)) == (not dies)


@pytest.mark.parametrize(
    ("before", "after", "is_seen"),
    [("abc", "", True), ("abc", "b", False), ("", "", False)],
    ids=["cut off", "one still answers", "nobody ever answered"],
)
def test_the_head_was_cut_off_if_hosts_answer_it_no_more(
    before: str, after: str, is_seen: bool, tmp_path: Path
) -> None:
    on = Hosts(list(before), list(after))
    made = staged(tmp_path, SimpleNamespace(poll=lambda: None), on)
    fault = STRIKES["headless"](made)
    assert fault == made.struck
    assert bool(unseen(fault)) == (not is_seen)
    assert not on.parted


def test_a_refusal_is_an_answer_and_silence_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hosts.answers("127.0.0.1")

    def silent(*_: Any, **__: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", silent)
    assert not hosts.answers("127.0.0.1")
