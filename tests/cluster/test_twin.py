"""Effect. One small scenario on a real cluster and in the simulator: the same decisions, in about the same time."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.callbacks import Callback
from elastic.control import commands as cmd
from elastic.control.state import RunState
from elastic.control.values import StepReport
from elastic.sim.calibration import fitted
from elastic.sim.fleet import Fleet
from elastic.sim.scenario import Cluster, Job, Scenario, parse
from elastic.sim.study import median
from tests.chaos.ledger_checks import booked
from tests.cluster.training import regression

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

REPLICAS, KILLS, WHOLE_STEPS, STEPS = 3, 4, 30, 3000
FACTOR = 1.5


class Kills(Callback):
    """Kills the second member, each time that all have been together for some steps."""

    def __init__(self, is_over: Path) -> None:
        self.struck_s: list[float] = []
        self._is_over, self._generation, self._steps = is_over, 0, 0

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        if report.commit.generation != self._generation:
            self._generation, self._steps = report.commit.generation, 0
        self._steps += 1
        if report.replicas < REPLICAS or state.generation != self._generation or self._steps != WHOLE_STEPS:
            return
        if len(self.struck_s) == KILLS:
            self._is_over.touch()
            return
        self.struck_s.append(time.time())
        os.kill(state.members[1].pid, signal.SIGKILL)


class Twin(Fleet):
    """A simulated run, broken by the same rule.

    Attributes:
        commands: with their times. struck_s: when somebody was killed.
    """

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario, 0)
        self.commands: list[tuple[float, cmd.Command]] = []
        self.struck_s: list[float] = []

    def carry_out(self, command: cmd.Command) -> None:
        self.commands.append((self.now_s, command))
        super().carry_out(command)
        if isinstance(command, cmd.Go) and len(command.workers) == REPLICAS and len(self.struck_s) < KILLS:
            self.later(WHOLE_STEPS * self.scenario.job.step_s, self.break_one)

    def break_one(self) -> None:
        self.struck_s.append(self.now_s)
        self.kill(self.view.members[1].worker, "kill")


def decided(forms: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """What was decided, and how many replicas went on, from when all were there for the first time."""
    first = next(number for number, (_, size) in enumerate(forms) if size == REPLICAS)
    return [(reason.partition(":")[0], size) for reason, size in forms[first + 1 :]]


def resumed_s(struck_s: list[float], goes_s: list[float]) -> list[float]:
    """From each kill until the others went on."""
    return [next(at_s for at_s in goes_s if at_s > one) - one for one in struck_s]


def test_a_run_and_its_twin_decide_the_same_and_resume_as_fast(hosts: Any, tmp_path: Path) -> None:
    """The twin's times come from the run's journal: medians over all kills, so the sum of parts must make the whole."""
    is_over = tmp_path / "over"
    kills = Kills(is_over)
    elastic.fit(
        regression(tmp_path, STEPS, until=is_over),
        scaling=elastic.Scaling(num_dp_replicas=(REPLICAS - 1, REPLICAS)),
        limits=elastic.Limits(start_timeout_s=120),
        callbacks=[kills],
        run_dir=tmp_path / "run",
    )
    journal = tmp_path / "run" / "journal.jsonl"
    booked(journal)
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert len(kills.struck_s) == KILLS, "a kill did not strike"
    lines += [{"t": at_s, "event": "FaultInjected", "at_s": at_s} for at_s in kills.struck_s]
    lines.sort(key=lambda line: line["t"])

    blank = Scenario(name="twin", cluster=Cluster(gpus=REPLICAS, gpus_per_node=1), job=Job(hours=1.0))
    scenario = parse({**fitted(lines), "job": {**fitted(lines)["job"], "minimum_replicas": REPLICAS - 1}}, blank)
    twin = Twin(scenario)
    twin.run()

    forms = [(line["reason"], len(line["view"]["members"])) for line in lines if line.get("command") == "Form"]
    ours = decided(forms)
    its = decided([(one.reason, len(one.view.members)) for _, one in twin.commands if isinstance(one, cmd.Form)])
    assert ours == its[: len(ours)] and len(ours) == 2 * KILLS
    real_s = resumed_s(kills.struck_s, [line["t"] for line in lines if line.get("command") == "Go"])
    its_s = resumed_s(twin.struck_s, [at_s for at_s, one in twin.commands if isinstance(one, cmd.Go)])
    assert len(its_s) == KILLS
    assert 1 / FACTOR < median(real_s) / median(its_s) < FACTOR, (real_s, its_s, scenario.times)
