"""Pure. A seeded world that keeps a journal, as a driver writes it, and the law that its ledger adds up."""

import json
from functools import cache
from math import fsum
from typing import Any

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.state import RunState
from elastic.control.values import CommitId, StepReport, StepTimes
from elastic.control.worker_protocol import Signal, Verdict
from elastic.ledger.ledger import Ledger
from elastic.ledger.lines import Line, happened, line_of
from elastic.ledger.model import Account, Category
from elastic.sim.brain import Brain
from elastic.sim.clockwork import TICK_S
from elastic.sim.laws import Law, must
from elastic.sim.parts import SimWorker
from elastic.sim.world import World

OFF, UNKNOWN = 1e-3, 1e-2  # shares: by which sums may be off, and of time that nobody can explain
_ROUNDING_S = 1e-6
# Of these each second was lost for a reason, and belongs to one.
_LOST = (
    Category.REDONE, Category.DETECTING, Category.DECIDING, Category.FORMING, Category.HEALING, Category.WORKER_START,
    Category.RESTORE, Category.REDUCED_CAPACITY, Category.PAUSED, Category.BETWEEN_INCARNATIONS,
)  # fmt: skip


class Scribe(Brain):
    """Writes a line for whatever a driver would; attribute `lines`: so far."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.lines: list[Line] = []
        self.written = 0  # before the last events

    def take(self, *events: ev.Event) -> tuple[cmd.Command, ...]:
        told: tuple[cmd.Command, ...] = ()
        self.written = len(self.lines)
        for event in events:
            before = None if isinstance(event, ev.RunStarted | ev.RunTakenOver) else self.state
            commands = super().take(event)
            is_new = before is None or _is_new(before, event)
            self.lines += happened(before, self.state, [(self.now_s, event)] if is_new else [])
            self.lines += [line_of("command", self.now_s, command) for command in commands]
            told += commands
        self.commands = told
        return told

    def undo(self, before: RunState) -> None:
        """What it decided is told to nobody, a journal included."""
        super().undo(before)
        del self.lines[self.written :]


def _is_new(before: RunState, event: ev.Event) -> bool:
    """A driver writes each stable step once, however often it is told, and none that was left behind."""
    if not isinstance(event, ev.StepStable):
        return True
    if any(fork.voids(event.report.commit) for fork in before.forks):
        return False
    if event.report.skipped:
        return True
    step = event.report.commit.step
    return step > before.published and step not in before.published_ahead


class Journalled(World):
    """Mixed into a world; `lines`: its journal so far."""

    mind = Scribe

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.since_s: dict[str, float] = {}
        self.when_s: dict[tuple[int, int, str], tuple[float, float]] = {}
        self.sizes: dict[int, int] = {}
        super().__init__(*arguments, **options)

    @property
    def lines(self) -> list[Line]:
        assert isinstance(self.ws, Scribe)
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

    def report_of(self, commit: CommitId, **details: Any) -> StepReport:
        since_s, at_s = self.when_s.get((commit.generation, commit.step, commit.lineage), (self.now_s, self.now_s))
        when: dict[str, Any] = {"started_at_s": since_s, "committed_at_s": at_s, "times": StepTimes(since_s=since_s)}
        return super().report_of(commit, replicas=self.sizes.get(commit.generation, 1), **when, **details)

    def judge(self) -> None:
        super().judge()
        ledger = Ledger()
        for line in json.loads(json.dumps(self.lines)):
            must(ledger.feed(line), Law.ADDS_UP, lambda: f"the ledger does not know {line}")  # noqa: B023
        account = ledger.account()
        judge_account(account, TICK_S if "jump" in self.faults else 0.0)
        whole_s = self.now_s - self.lines[0]["t"]  # a clock that jumps measures nothing
        is_all = "jump" in self.faults or abs(account.wall_s - whole_s) <= OFF * whole_s + _ROUNDING_S
        must(is_all, Law.ADDS_UP, lambda: f"{account.wall_s:.3f} of {whole_s:.3f} s are in the ledger")


def judge_account(account: Account, slack_s: float = 0.0) -> None:
    """All seconds of the wall clock have a name, and so have all of the workers; what was lost points at an incident.

    Args:
        slack_s: of the wall clock that may be unknown beside its share: where the clock jumps, up to a tick is.

    Raises:
        Violation: some do not.
    """
    for what, seconds, whole_s in (
        ("wall", account.wall_seconds, account.wall_s),
        ("worker", account.worker_seconds, account.workers_s),
    ):
        named_s, unknown_s = fsum(seconds.values()), seconds.get(Category.UNKNOWN, 0.0)
        is_whole = abs(named_s - whole_s) <= OFF * whole_s + _ROUNDING_S
        must(is_whole, Law.ADDS_UP, lambda: f"{named_s:.3f} of {whole_s:.3f} {what} seconds have a name")  # noqa: B023
        slack_of_all_s = slack_s * whole_s / max(account.wall_s, slack_s, _ROUNDING_S)
        is_known = unknown_s <= UNKNOWN * whole_s + slack_of_all_s + _ROUNDING_S
        must(is_known, Law.ADDS_UP, lambda: f"{unknown_s:.3f} of {whole_s:.3f} {what} seconds are unknown")  # noqa: B023
    for category in _LOST:
        lost_s = account.wall_seconds.get(category, 0.0)
        booked_s = fsum(one.wall_seconds.get(category, 0.0) for one in account.incidents)
        why = f"{booked_s:.3f} of {lost_s:.3f} s of {category.value} belong to an incident"
        must(abs(booked_s - lost_s) <= OFF * lost_s + _ROUNDING_S, Law.ADDS_UP, lambda: why)  # noqa: B023


@cache
def journalled(kind: type[World]) -> type[World]:
    """The same world with a journal."""
    return type(f"Journalled{kind.__name__}", (Journalled, kind), {})
