"""Effect. The driver's loop: events in, supervisor asked, commands carried out. It numbers generations alone."""

import contextlib
import logging
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from elastic.actors.fleet import Fleet
from elastic.actors.journal import Journal
from elastic.callbacks import Callback
from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.goodput import Goodput
from elastic.control.outcome import Outcome
from elastic.control.state import Phase, RunState
from elastic.control.values import StepReport

log = logging.getLogger("elastic")

_TICK_S = 0.5
_BUSY_TICK_S = 0.02  # while members are waited for

# The commands that go to several workers, and to one; EndRun is the driver's own.
_TO_MANY: dict[type[cmd.Command], Callable[[Fleet, str, Any], None]] = {
    cmd.Freeze: lambda fleet, worker, c: fleet.freeze(worker, c.generation),
    cmd.Go: lambda fleet, worker, c: fleet.go(worker, c.generation),
    cmd.Finish: lambda fleet, worker, c: fleet.finish(worker),
    cmd.Dismiss: lambda fleet, worker, c: fleet.dismiss(worker),
}
_TO_ONE: dict[type[cmd.Command], Callable[[Fleet, Any], None]] = {
    cmd.StartWorker: lambda fleet, c: fleet.start(c.worker),
    cmd.Pause: lambda fleet, c: fleet.pause(c.worker, c.generation),
    cmd.ProveDead: lambda fleet, c: fleet.prove_dead(c.worker),
    cmd.Fence: lambda fleet, c: fleet.fence(c.worker),
}

Observed = list[tuple[float, ev.Event]]


class Brain(Protocol):
    """Whoever decides: a supervisor actor, or a supervisor in this process."""

    def observe(self, events: Observed) -> tuple[tuple[cmd.Command, ...], RunState]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How the loop ended, and what it counted on the way."""

    outcome: Outcome
    state: RunState
    goodput: Goodput
    last_report: dict[str, float]
    value: Any


class Driver:
    """Runs one run to its end, in the calling thread.

    Args:
        brain: decides; fleet: acts. Whatever the fleet emits, from any thread, goes through `emit`.
        clock: seconds of the wall clock.
    """

    def __init__(
        self,
        brain: Brain,
        journal: Journal,
        callbacks: Sequence[Callback],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._brain, self._journal, self._callbacks, self._clock = brain, journal, callbacks, clock
        self._inbox: queue.SimpleQueue[tuple[float, ev.Event | Exception]] = queue.SimpleQueue()
        self._state: RunState | None = None
        self._issued_generation = 0
        self._goodput = Goodput()
        self._last_report: dict[str, float] = {}
        self._ticked_s = clock()
        self._told = -1
        self._untold: dict[int, StepReport] = {}

    def emit(self, event: ev.Event) -> None:
        """Called by the fleet, from any thread."""
        self._inbox.put((self._clock(), event))

    def crash(self, error: Exception) -> None:
        """A thread of the fleet has failed: `run` raises its error, rather than wait for what will not come."""
        self._inbox.put((self._clock(), error))

    def run(self, fleet: Fleet, value_timeout_s: float = 60.0) -> Finished:
        """Start the run and stay until it ends; the fleet is still up then."""
        self.emit(ev.RunStarted())
        while True:
            events = self._take()
            commands, state = self._brain.observe(events)
            for at_s, event in events:
                self._journal.event(at_s, event)
            for command in commands:
                self._journal.command(self._clock(), command)
                self._carry_out(fleet, command)
            self._tell(events, state)
            if state.phase is Phase.ENDED and state.outcome is not None:
                value = self._value(fleet, state.outcome, value_timeout_s)
                return Finished(
                    outcome=state.outcome,
                    state=state,
                    goodput=self._goodput,
                    last_report=self._last_report,
                    value=value,
                )

    def _value(self, fleet: Fleet, outcome: Outcome, timeout_s: float) -> Any:
        """What train_fn returned; a run that has finished does not fail because it can not be fetched."""
        source = outcome.details.get("value_from")
        if not source:
            return None
        try:
            return fleet.value(source, timeout_s)
        except Exception as error:
            log.warning("the value of train_fn on %s could not be fetched, Result.value is None: %s", source, error)
            return None

    def _take(self) -> Observed:
        """What has come since, or a tick."""
        is_busy = self._state is not None and self._state.phase in (Phase.FREEZING, Phase.FORMING)
        period_s = _BUSY_TICK_S if is_busy else _TICK_S
        taken: list[tuple[float, ev.Event | Exception]] = []
        with contextlib.suppress(queue.Empty):
            taken.append(self._inbox.get(timeout=period_s))
        while not self._inbox.empty():
            taken.append(self._inbox.get())
        events: Observed = []
        for at_s, news in taken:
            if isinstance(news, Exception):
                raise news
            events.append((at_s, news))
        if self._clock() - self._ticked_s >= period_s or not events:  # deadlines pass however much is going on
            self._ticked_s = self._clock()
            events.append((self._ticked_s, ev.Tick()))
        return events

    def _carry_out(self, fleet: Fleet, command: cmd.Command) -> None:
        kind = type(command)
        if isinstance(command, cmd.Form):
            self._issue(command.view.generation)
            for member in command.view.members:
                fleet.form(member.worker, command.view)
        elif kind in _TO_ONE:
            _TO_ONE[kind](fleet, command)
        elif isinstance(command, cmd.Freeze | cmd.Go | cmd.Finish | cmd.Dismiss):
            for worker in command.workers:
                _TO_MANY[kind](fleet, worker, command)

    def _issue(self, generation: int) -> None:
        """No number is given out twice, and none is left out, whatever a supervisor asks for."""
        if generation not in (self._issued_generation, self._issued_generation + 1):
            raise RuntimeError(f"generation {generation} was asked for after {self._issued_generation}")
        self._issued_generation = generation

    def _tell(self, events: Observed, state: RunState) -> None:
        """Callbacks, in the order in which things happened; steps without gaps, unless the run is over."""
        before, self._state = self._state, state
        for _, event in events:
            if isinstance(event, ev.StepStable) and event.report.commit.step > self._told:
                self._untold[event.report.commit.step] = event.report
        for step in sorted(self._untold):
            if step <= state.published or state.phase is Phase.ENDED:
                self._tell_step(self._untold.pop(step), state)
        if before is not None:
            self._tell_changes(before, state)

    def _tell_step(self, report: StepReport, state: RunState) -> None:
        self._told = report.commit.step
        self._goodput = self._goodput.after(report)
        self._last_report = report.metrics
        for callback in self._callbacks:
            callback.on_step(report, state, self._goodput.share)

    def _tell_changes(self, before: RunState, state: RunState) -> None:
        for callback in self._callbacks:
            for incident in state.incidents[len(before.incidents) :]:
                callback.on_incident(incident)
            for old, new in zip(before.incidents, state.incidents, strict=False):
                if old.resumed_at_s is None and new.resumed_at_s is not None:
                    callback.on_resume(new)
            if len(state.world_sizes) > len(before.world_sizes) and state.view is not None:
                callback.on_generation(state.view)
            if state is not before:
                callback.on_state(state)
