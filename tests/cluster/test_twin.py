"""Effect. One small scenario on a real cluster and in the simulator: the same decisions, in about the same time."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.actors.watched import LOOK_S
from elastic.callbacks import Callback
from elastic.control import commands as cmd
from elastic.control.faults import FaultKind
from elastic.control.state import RunState
from elastic.control.values import StepReport
from elastic.sim.calibration import fitted
from elastic.sim.fleet import Fleet
from elastic.sim.scenario import Cluster, Job, Scenario, Times, parse
from elastic.sim.study import median
from tests.chaos.ledger_checks import booked
from tests.cluster.training import regression
from tests.lines import whole_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

REPLICAS, WHOLE_STEPS, STEPS = 3, 30, 6000
FACTOR = 1.5
SIGNALS = {FaultKind.KILL: signal.SIGKILL, FaultKind.STOP: signal.SIGSTOP}
# The twin's times come from what happened before the first fault that it is judged by.
KNOWN = (FaultKind.KILL,) * 4
JUDGED = (FaultKind.KILL, FaultKind.KILL, FaultKind.STOP, FaultKind.KILL)
FAULTS = (*KNOWN, *JUDGED)


class Faults(Callback):
    """Strikes the second member, each time that all have been together for some steps."""

    def __init__(self, is_over: Path) -> None:
        self.struck_s: list[float] = []
        self._is_over, self._generation, self._steps = is_over, 0, 0

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        if report.commit.generation != self._generation:
            self._generation, self._steps = report.commit.generation, 0
        self._steps += 1
        if report.replicas < REPLICAS or state.generation != self._generation or self._steps != WHOLE_STEPS:
            return
        if len(self.struck_s) == len(FAULTS):
            self._is_over.touch()
            return
        kind = FAULTS[len(self.struck_s)]
        self.struck_s.append(time.time())
        os.kill(state.members[1].pid, SIGNALS[kind])


class Twin(Fleet):
    """A simulated run, broken by the same rule.

    Attributes:
        commands: with their times. struck_s: when somebody was struck.
    """

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario, 0)
        self.commands: list[tuple[float, cmd.Command]] = []
        self.struck_s: list[float] = []

    def carry_out(self, command: cmd.Command) -> None:
        self.commands.append((self.now_s, command))
        super().carry_out(command)
        if isinstance(command, cmd.Go) and len(command.workers) == REPLICAS and len(self.struck_s) < len(FAULTS):
            self.later(WHOLE_STEPS * self.scenario.job.step_s, self.break_one)

    def break_one(self) -> None:
        kind = FAULTS[len(self.struck_s)]
        self.struck_s.append(self.now_s)
        self.kill(self.view.members[1].worker, kind.value, is_hang=kind is FaultKind.STOP)


def decided(forms: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """What was decided, and how many replicas went on, from when all were there for the first time."""
    first = next(number for number, (_, size) in enumerate(forms) if size == REPLICAS)
    return [(reason.partition(":")[0], size) for reason, size in forms[first + 1 :]]


def resumed_s(struck_s: list[float], goes_s: list[float]) -> dict[FaultKind, float]:
    """From each fault that is judged until the others went on: the median of each kind."""
    after_s = [next(at_s for at_s in goes_s if at_s > one) - one for one in struck_s]
    judged = list(zip(FAULTS, after_s, strict=True))[len(KNOWN) :]
    return {kind: median(one_s for one, one_s in judged if one is kind) for kind in SIGNALS}


def scenario_of(lines: list[Any]) -> Scenario:
    """As the run is until the first fault that is judged; its settings say when a stopped process is given up."""
    times = Times(detect_hang_s=elastic.Limits().stopped_timeout_s + LOOK_S)
    blank = Scenario(name="twin", cluster=Cluster(gpus=REPLICAS, gpus_per_node=1), job=Job(hours=1.0), times=times)
    shown = fitted(lines)
    assert "detect_s" in shown["times"] and "detect_hang_s" not in shown["times"]
    return parse({**shown, "job": {**shown["job"], "minimum_replicas": REPLICAS - 1}}, blank)


def test_a_run_and_its_twin_decide_the_same_and_resume_as_fast(hosts: Any, tmp_path: Path) -> None:
    """The twin's times come from the run's first kills; it is judged by later ones, and by a hang, which it knows not.

    They are medians of parts, so the sum of parts must make the whole.
    """
    is_over = tmp_path / "over"
    faults = Faults(is_over)
    elastic.fit(
        regression(tmp_path, STEPS, until=is_over),
        scaling=elastic.Scaling(num_dp_replicas=(REPLICAS - 1, REPLICAS)),
        limits=elastic.Limits(start_timeout_s=120),
        callbacks=[faults],
        run_dir=tmp_path / "run",
    )
    journal = tmp_path / "run" / "journal.jsonl"
    booked(journal)
    lines = whole_lines(journal)
    assert len(faults.struck_s) == len(FAULTS), "a fault did not strike"
    known_s, judged_s = faults.struck_s[: len(KNOWN)], faults.struck_s[len(KNOWN)]
    told = [{"t": at_s, "event": "FaultInjected", "at_s": at_s} for at_s in known_s]
    known = [line for line in [*lines, *told] if line["t"] < judged_s]
    twin = Twin(scenario_of(sorted(known, key=lambda line: line["t"])))
    twin.run()

    forms = [(line["reason"], len(line["view"]["members"])) for line in lines if line.get("command") == "Form"]
    ours = decided(forms)
    its = decided([(one.reason, len(one.view.members)) for _, one in twin.commands if isinstance(one, cmd.Form)])
    assert ours == its[: len(ours)] and len(ours) == 2 * len(FAULTS)
    real_s = resumed_s(faults.struck_s, [line["t"] for line in lines if line.get("command") == "Go"])
    its_s = resumed_s(twin.struck_s, [at_s for at_s, one in twin.commands if isinstance(one, cmd.Go)])
    for kind in SIGNALS:
        assert 1 / FACTOR < real_s[kind] / its_s[kind] < FACTOR, (kind, real_s, its_s, twin.times)
