"""A controller and nothing else: tests feed it events and read its commands; all laws are checked after each event."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from elastic.control import events as ev
from elastic.control.commands import Command
from elastic.control.controller import step
from elastic.control.flight import Flying, Reading
from elastic.control.state import Phase
from elastic.control.values import NOTHING_COMMITTED, CommitId, StepReport
from elastic.sim.brain import Brain

_TICK_S = 0.5  # the driver ticks more often; after a longer pause the controller takes itself for absent


def commit(number: int, generation: int = 1, lineage: str = "") -> CommitId:
    """The state after step `number`."""
    if number < 0:
        return NOTHING_COMMITTED
    return CommitId(incarnation=1, generation=generation, attempt=1, step=number, lineage=lineage or f"s{number}")


def report(number: int, generation: int = 1, committed_at_s: float = 0.0) -> StepReport:
    return StepReport(
        commit=commit(number, generation),
        metrics={},
        replicas=1,
        samples=8,
        started_at_s=committed_at_s - 1.0,
        committed_at_s=committed_at_s,
    )


class BareController(Brain):
    """A controller and nothing else, with the stretches of a story that tests tell."""

    # --- one event ---

    def feed(self, *events: ev.Event, after_s: float = 0.0) -> tuple[Command, ...]:
        """Take events in, `after_s` later, with ticks on the way as the driver sends them; returns their commands."""
        told: tuple[Command, ...] = ()
        for _ in range(math.ceil(after_s / _TICK_S) - 1):
            self.now_s, after_s = self.now_s + _TICK_S, after_s - _TICK_S
            told += self.take(ev.Tick())
        self.now_s += after_s
        self.commands = told + self.take(*events)
        return self.commands

    def sleep(self, absent_s: float) -> None:
        """The controller, or its host, stands still for so long."""
        self.now_s += absent_s

    def tick(self, after_s: float) -> tuple[Command, ...]:
        return self.feed(ev.Tick(), after_s=after_s)

    def given(self, kind: type[Command]) -> list[Command]:
        """The last commands of one kind."""
        return [command for command in self.commands if type(command) is kind]

    def addressees(self, kind: type[Command]) -> set[str]:
        """Who the last commands of one kind were for."""
        return {name for command in self.given(kind) for name in getattr(command, "workers", None) or (command.worker,)}

    # --- what is so now ---

    @property
    def members(self) -> list[str]:
        return [member.worker for member in self.view.members]

    def names(self, ranks: Iterable[int]) -> list[str]:
        return [self.members[rank] for rank in ranks]

    # --- stretches of the usual story ---

    def start(self) -> tuple[Command, ...]:
        return self.feed(ev.RunStarted())

    def place(self, *workers: str, node: str = "") -> None:
        """Each on a node of its own, unless one is named."""
        self.feed(*(ev.WorkerPlaced(worker=worker, node=node or f"node-{worker}") for worker in workers))

    def park(self, *workers: str) -> tuple[Command, ...]:
        told: dict[str, Any] = {"host": "h", "port": 1, "pid": 1, "layout": "l", "plan": self.plan}
        return self.feed(*(ev.WorkerParked(worker=worker, **told) for worker in workers))

    def join(self, *workers: str, node: str = "") -> tuple[Command, ...]:
        """Placed, loaded, at the door."""
        self.place(*workers, node=node)
        return self.park(*workers)

    def arrive(self, *workers: str) -> tuple[Command, ...]:
        """These members have come to the door of the current generation."""
        return self.feed(*(ev.AtDoor(worker=worker, generation=self.generation) for worker in workers))

    def form(self, *workers: str) -> tuple[Command, ...]:
        """These members, or all, have formed the current generation."""
        names = workers or self.members
        return self.feed(*(ev.Formed(worker=worker, generation=self.generation) for worker in names))

    def run(self) -> "BareController":
        """From nothing to the first generation's steps, all spares parked."""
        self.start()
        names = list(self.state.workers)
        self.place(*names)
        self.park(*names)
        self.form()
        assert self.phase is Phase.RUNNING
        return self

    def stable(self, number: int, after_s: float = 1.0, skipped: str = "") -> tuple[Command, ...]:
        """The leader tells that step `number` is stable."""
        self.now_s += after_s
        told = replace(report(number, self.generation, self.now_s), skipped=skipped)
        return self.feed(ev.StepStable(worker=self.members[0], report=told))

    def beat(self, worker: str, phase: Flying, still_s: float = 0.0, **seen: Any) -> tuple[Command, ...]:
        """The monitor of a worker's node, a node of its own, tells what it sees of it."""
        return self.feed(ev.HostBeat(node=f"node-{worker}", readings=(self.reading(worker, phase, still_s, **seen),)))

    def reading(self, worker: str, phase: Flying, still_s: float = 0.0, **seen: Any) -> Reading:
        usual = {"generation": self.generation, "step": 5, "micro_batch": -1, "commits": 5, "state": "S"}
        return Reading(worker=worker, phase=phase, still_s=still_s, **{**usual, **seen})

    def answer(
        self,
        worker: str,
        number: int,
        *,
        healed: bool = True,
        lineage: str = "",
        generation: int | None = None,
        prepared: bool = False,
        missed: tuple[str, ...] = (),
    ) -> tuple[Command, ...]:
        """A worker has frozen and holds step `number`; it may be prepared for the next one."""
        held, after = commit(number, lineage=lineage), commit(number + 1) if prepared else None
        at = self.generation if generation is None else generation
        told = {"commit": held, "healed": healed, "prepared": after, "missed": missed}
        return self.feed(ev.FreezeAnswered(worker=worker, generation=at, **told))

    def lose(self, worker: str) -> tuple[Command, ...]:
        return self.feed(ev.WorkerLost(worker=worker, evidence="its pipe closed"))

    def die(self, *workers: str) -> tuple[Command, ...]:
        return self.feed(*(ev.WorkerDead(worker=worker, proof="pid 1 is gone") for worker in workers))

    def break_(self, worker: str) -> tuple[Command, ...]:
        return self.feed(ev.CollectiveBroken(worker=worker, generation=self.generation, error="reset by peer"))

    def fail_forming(self, worker: str) -> tuple[Command, ...]:
        return self.feed(ev.FormingFailed(worker=worker, generation=self.generation, error="timed out"))

    def end_loop(self, worker: str, number: int = 9) -> tuple[Command, ...]:
        return self.feed(ev.LoopEnded(worker=worker, generation=self.generation, commit=commit(number)))

    def leave(self, worker: str, dismissed: bool = False) -> tuple[Command, ...]:
        return self.feed(ev.TrainFnReturned(worker=worker, dismissed=dismissed))

    def raise_(self, worker: str) -> tuple[Command, ...]:
        return self.feed(ev.TrainFnRaised(worker=worker, summary="ValueError: no", traceback="line 1"))

    def is_unchanged_by(self, *events: ev.Event) -> bool:
        """Whether each of these events, fed now, would change nothing and command nothing."""
        decisions = [step(self.state, event, self.now_s, self.policy) for event in events]
        return all(decision.state == self.state and not decision.commands for decision in decisions)


def below_minimum(**limits: float) -> BareController:
    """One of two needed replicas is left; it keeps step 4."""
    ws = BareController(2, **limits).run()
    ws.stable(3)
    ws.die("w1")
    ws.answer("w0", 4)
    assert ws.phase is Phase.WAITING
    return ws


def trained(replicas: int | tuple[int, int] = (1, 3), step_s: float = 0.05, **limits: float) -> BareController:
    """A run that has learned how long its steps take."""
    ws = BareController(replicas, **limits).run()
    for number in range(8):
        told = replace(report(number, committed_at_s=ws.now_s), started_at_s=ws.now_s - step_s)
        ws.feed(ev.StepStable(worker=ws.members[0], report=told), after_s=step_s)
    return ws


def two_on_each_of_two_nodes() -> BareController:
    """w0 and w1 train on node a, w2 and w3 on node b."""
    ws = BareController((1, 4))
    ws.start()
    ws.place("w0", "w1", node="a")
    ws.place("w2", "w3", node="b")
    ws.park("w0", "w1", "w2", "w3")
    ws.form()
    return ws


def grown_to_two() -> BareController:
    """Two of three replicas train, and the third has come to the door: all are asked to stop at the end of a step."""
    ws = BareController((1, 3))
    ws.start()
    ws.place("w0", "w1")
    ws.park("w0", "w1")
    ws.form()
    ws.join("w2")
    return ws
