"""Seeded worlds that keep a journal: the lines that a driver would write, with steps that take their time."""

from dataclasses import replace
from typing import Any

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.state import RunState
from elastic.control.values import CommitId, StepReport, StepTimes
from elastic.control.worker_protocol import Signal, Verdict
from elastic.ledger.lines import Line, happened, line_of
from elastic.sim.brain import Brain
from elastic.sim.gangs import GangWorld
from elastic.sim.parts import SimWorker
from elastic.sim.succession import Succession
from elastic.sim.tiers import TierWorld
from elastic.sim.world import World


class Scribe(Brain):
    """Writes a line for whatever a driver would."""

    lines: list[Line]

    def take(self, *events: ev.Event) -> tuple[cmd.Command, ...]:
        told: tuple[cmd.Command, ...] = ()
        for event in events:
            before = None if isinstance(event, ev.RunStarted | ev.RunTakenOver) else self.state
            commands = super().take(event)
            is_new = before is None or _is_new(before, event)
            self.lines += happened(before, self.state, [(self.now_s, event)] if is_new else [])
            self.lines += [line_of("command", self.now_s, command) for command in commands]
            told += commands
        self.commands = told
        return told


def _is_new(before: RunState, event: ev.Event) -> bool:
    """A driver writes each stable step once, however often it is told."""
    if not isinstance(event, ev.StepStable) or event.report.skipped:
        return True
    step = event.report.commit.step
    return step > before.published and step not in before.published_ahead


class Journalled(World):
    """Mixed into a world; `lines`: its journal so far."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.since_s: dict[str, float] = {}
        self.when_s: dict[tuple[int, int, str], tuple[float, float]] = {}
        self.sizes: dict[int, int] = {}
        super().__init__(*arguments, **options)
        self.ws.__class__ = Scribe  # the world has made it, and replaces it by copies
        self.ws.lines = []

    @property
    def lines(self) -> list[Line]:
        return self.ws.lines

    def carry_out(self, command: cmd.Command) -> None:
        if isinstance(command, cmd.Form):
            self.sizes[command.view.generation] = command.view.replicas
        super().carry_out(command)

    def signal(self, worker: SimWorker, signal: Signal, **details: Any) -> Verdict:
        verdict = super().signal(worker, signal, **details)
        if signal is Signal.GO and verdict is Verdict.DONE:
            self.since_s[worker.name] = self.now_s
        elif signal is Signal.LEAVE_APPLY:
            self.committed(worker, details["commit"])
        return verdict

    def committed(self, worker: SimWorker, commit: CommitId) -> None:
        since_s = self.since_s.get(worker.name, self.now_s)
        self.when_s.setdefault((commit.generation, commit.step, commit.lineage), (since_s, self.now_s))
        self.since_s[worker.name] = self.now_s

    def report_of(self, commit: CommitId) -> StepReport:
        since_s, at_s = self.when_s.get((commit.generation, commit.step, commit.lineage), (self.now_s, self.now_s))
        when = {"started_at_s": since_s, "committed_at_s": at_s, "times": StepTimes(since_s=since_s)}
        return replace(super().report_of(commit), replicas=self.sizes.get(commit.generation, 1), **when)


class JournalledWorld(Journalled, World):
    """Live replicas are all there is."""


class JournalledTiers(Journalled, TierWorld):
    """With checkpoints below them."""


class JournalledGangs(Journalled, GangWorld):
    """With replicas of several workers."""


class JournalledLives(Journalled, Succession, World):
    """With drivers that die."""
