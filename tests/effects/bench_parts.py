"""Stand-ins for what the recovery benchmark plays on: hosts, and a run that is broken once."""

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.bench import Bench, Settings
from benchmarks.remains import HostsError
from benchmarks.rows import Fault
from benchmarks.stage import LateError
from benchmarks.systems import TUNED
from benchmarks.training import BATCH
from benchmarks.turns import Turn
from elastic.demo.steplog import StepLog, collect

TURN = Turn(scenario="kill", settings=TUNED, system="elastic", number=0)


class Hosts:
    """Cannot be closed so many times."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.closed = failures, 0
        self.slots = {"h": 2}

    def close(self) -> None:
        if self.failures:
            self.failures -= 1
            raise HostsError("would not die")
        self.closed += 1

    def lose(self, name: str) -> None:
        raise HostsError(f"{name} cannot be removed")


def line(event: str, at_s: float, pid: int, step: int, **facts: Any) -> dict[str, Any]:
    return {"event": event, "t": at_s, "pid": pid, "step": step, "generation": 1, "attempt": 1, **facts}


class Played:
    """Stands for a stage: a run of four that trains until 10.0, and of which one is killed then."""

    def __init__(self, last: Exception | None = None) -> None:
        self.system = SimpleNamespace(why_small=lambda kind: "", on_ray=True)
        self.job = SimpleNamespace(step_s=0.0, state_bytes=0, seed=0)
        self.chance, self.spoiled, self.last_word = random.Random(0), set[str](), "a last word"
        self.struck: Fault | None = None
        self.watch = SimpleNamespace(log=self.log, look=lambda: None, living=set[int]())
        self._last = last
        phases = {10.1: "freezing", 10.2: "forming", 10.4: "running"}
        self.journal: list[dict[str, Any]] = [{"t": at_s, "phase": phase} for at_s, phase in phases.items()]
        self.journal.append({"t": 10.3, "event": "Formed", "worker": "w1"})

    def log(self, until_s: float = math.inf) -> StepLog:
        lines = [
            line(
                event,
                at_s,
                pid,
                step,
                ids=list(range(BATCH * step, BATCH * (step + 1)))[pid - 1 :: len(pids)],
                loss=0.0,
            )
            for step, at_s in enumerate((8.0, 9.0, 10.5, 11.5))
            for pids in ((1, 2, 3, 4) if at_s < 10.0 else (1, 2, 3),)
            for pid in pids
            for event in ("consumed", "committed")
        ]
        return collect(one for one in lines if one["t"] < until_s)

    def __enter__(self) -> "Played":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def wait_until_calm(self, calm_s: float, is_prepared: bool) -> None:
        pass

    def allow_s(self, seconds: float) -> None:
        pass

    def wait_s(self, seconds: float) -> None:
        pass

    def wait_for(self, is_so: Any, what: str) -> None:
        if self._last is not None:
            raise self._last

    def member(self) -> int:
        return 4

    def signal(self, pid: int, number: int) -> None:
        pass

    def fault(self, kind: str, victims: set[int]) -> Fault:
        members = frozenset({1, 2, 3, 4})
        self.struck = Fault(kind=kind, at_s=10.0, members=members, victims=frozenset(victims), full_size=4)
        return self.struck

    def finish(self) -> int:
        raise LateError("not in time: the end of the run")


class Late(Played):
    """A run whose workers are not all there in time."""

    def wait_until_calm(self, calm_s: float, is_prepared: bool) -> None:
        raise LateError("not in time: all workers were there")


def strike(stage: Any) -> Fault:
    return stage.fault("kill", {4})  # type: ignore[no-any-return]


def on(hosts: Any, tmp_path: Path, stage: Any, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(Settings(), tmp_path)
    made._hosts = hosts

    def stage_of(*_: Any, **__: Any) -> Any:
        if isinstance(stage, Exception):
            raise stage
        return stage

    monkeypatch.setattr(made, "_stage", stage_of)
    return made
