"""Effect. The driver's loop: events in, supervisor asked, commands carried out. It numbers generations alone."""

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from elastic.actors.carrier import Carrier, Errand
from elastic.actors.errands import LEAVES_BEHIND, Errands
from elastic.actors.fleet import Fleet
from elastic.actors.journal import Journal, Written
from elastic.actors.machines import Machines, NoMachines
from elastic.actors.teller import Teller
from elastic.actors.tiers import NoTiers, Tiers
from elastic.callbacks.base import Callback
from elastic.checkpoint.rungs import CheckpointRung, Degraded
from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.backlog import Backlog
from elastic.control.knocking import doubted_after_s
from elastic.control.outcome import Outcome
from elastic.control.silences import Silences
from elastic.control.state import Phase, RunState, Standing
from elastic.control.suspicion import presses
from elastic.errors import SupersededError
from elastic.ledger.lines import Line, broken_off, happened, line_of

log = logging.getLogger("elastic")

_TICK_S = 0.25
_BUSY_TICK_S = 0.02  # while members are waited for, or somebody that others wait for is looked for
_LATE_TICK_S = 0.05  # while a host may just have fallen silent
_JUDGED_AFTER = 2.0  # times as long as a host may be silent
_PRESSED_S = 1.0  # beats of all hosts come within this
_LOOK_S = 0.1  # from one look that is asked for to the next, in this time
_MOST = 256  # events taken at once, so that a flood of answers keeps nothing else waiting
_STOP_S = 30.0
_ABSENT_S = 4.0  # a driver that has stood still for a little longer may be taken for dead

Observed = list[tuple[float, ev.Event]]
_OPENING = ev.RunStarted()
News = tuple[Observed, RunState, Any, list[Line]] | CheckpointRung | Degraded | BaseException


class Brain(Protocol):
    """Whoever decides: a supervisor actor, or a supervisor in this process."""

    def observe(self, events: Observed) -> tuple[tuple[cmd.Command, ...], RunState]: ...

    def asked(self) -> list[ev.Event]:
        """What somebody outside of the run has asked for since the last time, as far as the last turn brought it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How the loop ended, and what it counted on the way."""

    outcome: Outcome
    state: RunState
    goodput: float
    last_report: dict[str, float]
    value: Any


class Driver:
    """Runs one run to its end.

    Args:
        brain: decides; fleet: acts; tiers: keep checkpoints, and find them. What these two emit, from any thread,
            goes through `emit`.
        clock: seconds of the wall clock.
    """

    def __init__(
        self,
        brain: Brain,
        journal: Journal,
        callbacks: Sequence[Callback],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._brain, self._journal, self._clock = brain, journal, clock
        self._tiers: Tiers | NoTiers = NoTiers()
        self._machines: Machines | NoMachines = NoMachines()
        self._teller = Teller(callbacks)
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._is_stopped = threading.Event()
        self._inbox: queue.SimpleQueue[ev.Event | Exception] = queue.SimpleQueue()
        self._backlog = Backlog()
        self._beats: dict[str, ev.HostBeat] = {}
        self._silences: Silences[str] = Silences(time.monotonic())  # of hosts that beat, until they are judged
        self._state: RunState | None = None
        self._issued_generation = self._reported_generation = 0
        self._written = Written()
        self._left_behind: set[str] = set()
        self._pressed_s = self._asked_s = -math.inf
        self._ticked_s = time.monotonic()  # the wall clock may be set back, and ticks would stop for as long

    def emit(self, event: ev.Event) -> None:
        """Called by the fleet, from any thread. Beats wait for the next tick, unless one brings it on.

        Of a host's beats only the newest counts. Steps wait, too, but for the first of a generation.
        """
        if isinstance(event, ev.HostBeat):
            self._beats[event.node] = event
            self._silences.begin(event.node, time.monotonic())
        if not isinstance(event, ev.HostBeat) or self._presses(event):
            self._inbox.put(event)

    def crash(self, error: Exception) -> None:
        """A thread of the fleet has failed: `run` raises its error, rather than wait for what will not come."""
        self._inbox.put(error)

    def ladder(self, told: CheckpointRung | Degraded) -> None:
        """Called by the tiers, from any thread: a step has come to a rung, or a rung is not what was asked for."""
        self._news.put(told)

    def tell_late(self) -> None:
        """After `run`, in its thread: tell of the rungs that steps have come to since."""
        with contextlib.suppress(queue.Empty):
            while True:
                news = self._news.get_nowait()
                if isinstance(news, CheckpointRung | Degraded):
                    self._teller.ladder(self._clock(), news)

    def run(
        self,
        fleet: Fleet,
        tiers: Tiers | NoTiers | None = None,
        value_timeout_s: float = 60.0,
        opening: ev.RunStarted | ev.RunTakenOver = _OPENING,
        machines: Machines | NoMachines | None = None,
    ) -> Finished:
        """Start the run, or go on with it, and stay until it ends; the fleet is still up then.

        Control has a thread of its own, so that a callback that takes long, in the calling thread, holds nothing up;
        commands are carried out beside it, so that one that hangs does not either.
        """
        self._tiers = tiers or self._tiers
        self._machines = machines or self._machines
        if isinstance(opening, ev.RunTakenOver):
            self._issued_generation = opening.generation
            self._written = Written(opening.published, set(opening.ahead))
        self._teller.begin(lambda wish: self.emit(ev.TuneAsked(tuning=wish)))
        self.emit(opening)
        carrier = Carrier(self.crash)
        control = threading.Thread(
            target=self._control, args=(fleet, carrier, value_timeout_s), name="elastic-driver", daemon=True
        )
        control.start()
        broke: BaseException | None = None
        try:
            while True:
                try:
                    news = self._news.get(timeout=_TICK_S)  # in slices, so that Ctrl-C is heard
                except queue.Empty:
                    continue
                if isinstance(news, BaseException):
                    raise news
                if isinstance(news, CheckpointRung | Degraded):
                    self._teller.ladder(self._clock(), news)
                    continue
                events, state, value, lines = news
                self._teller.tell(events, state, lines)
                if state.phase is Phase.ENDED and state.outcome is not None:
                    return self._finished(state, state.outcome, value)
        except BaseException as error:
            broke = error
            raise
        finally:
            self._is_stopped.set()
            control.join(_STOP_S)
            carrier.close()
            self._break_off(broke)

    def _break_off(self, error: BaseException | None) -> None:
        """Whoever reads the journal learns that nothing more comes, unless the run goes on elsewhere."""
        if error is not None and not isinstance(error, SupersededError):
            self._journal.write(broken_off(self._state, self._clock(), error))

    def _control(self, fleet: Fleet, carrier: Carrier, value_timeout_s: float) -> None:
        turned_s = time.monotonic()
        try:
            while not self._is_stopped.is_set():
                events = self._take()
                if time.monotonic() - turned_s > _ABSENT_S:
                    fleet.confirm()  # another driver may have begun; before anything is written, or told to a worker
                turned_s = time.monotonic()
                self._ask_for_looks(fleet)
                commands, state = self._brain.observe(events)
                before, self._state = self._state, state
                for wish in self._brain.asked():
                    self.emit(wish)
                self._machines.follow(state)
                forks = (before or state).forks
                news = [told for told in events if self._written.is_new(told[1], forks)]
                lines = list(happened(before, state, news))
                self._journal.write(lines)
                for _, event in events:
                    self._tiers.heed(event, state)
                self._written.follow(state)
                if not self._journal.is_behind:  # else who dies with what waits could not be told it again
                    fleet.told(state.generation, state.published)
                for command in commands:
                    lines.append(line_of("command", self._clock(), command))
                    self._journal.write(lines[-1:])
                    carrier.hand_over(self._errands(fleet, command, state))
                value = self._value(fleet, state.outcome, value_timeout_s) if state.outcome is not None else None
                self._news.put((events, state, value, lines))
                if state.phase is Phase.ENDED:
                    return
        except BaseException as error:  # the calling thread raises it
            self._news.put(error)

    def _finished(self, state: RunState, outcome: Outcome, value: Any) -> Finished:
        goodput, last_report = self._teller.ledger.account().goodput, self._teller.last_report
        return Finished(outcome=outcome, state=state, goodput=goodput, last_report=last_report, value=value)

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
        """What has come since, or a tick; stamped with the time at which it is acted on."""
        period_s, wait_s = self._pace_s(time.monotonic())
        self._collect(wait_s=0.0 if self._backlog else wait_s)
        now_s = self._clock()  # not when they happened: a deadline counts from when somebody was told of it
        events = [(now_s, event) for event in self._backlog.take(_MOST)]
        turned_s = time.monotonic()
        is_due = turned_s - self._ticked_s >= period_s  # deadlines pass however much is going on
        if any(self._presses(event) for _, event in events):
            is_due, self._pressed_s = True, turned_s
        if is_due or all(isinstance(event, ev.StepStable) for _, event in events):
            self._ticked_s = turned_s
            events += [(now_s, self._beats.pop(node)) for node in list(self._beats)]
            events.append((now_s, ev.Tick()))
        return events

    def _pace_s(self, now_s: float) -> tuple[float, float]:
        """From one tick to the next; and for how long to wait for news now, so that a silent host is judged in time."""
        is_busy = self._state is not None and self._state.phase in (Phase.FREEZING, Phase.FORMING)
        if is_busy or self._is_pressed(now_s):
            return _BUSY_TICK_S, _BUSY_TICK_S
        if self._state is None:
            return _TICK_S, _TICK_S
        limits = self._state.settings.limits
        for node in self._silences.longer_than(_JUDGED_AFTER * limits.heartbeat_timeout_s, now_s):
            self._silences.forget(node)
        late_in_s = doubted_after_s(limits) - self._silences.longest_s(now_s)
        return (_LATE_TICK_S, _LATE_TICK_S) if late_in_s <= 0.0 else (_TICK_S, min(_TICK_S, late_in_s))

    def _is_pressed(self, now_s: float) -> bool:
        """Somebody is stopped, which is dead as soon as another one is seen that waits for it."""
        return now_s - self._pressed_s < _PRESSED_S

    def _ask_for_looks(self, fleet: Fleet) -> None:
        """Not to wait until all hosts have told of their own accord."""
        now_s = time.monotonic()
        if self._is_pressed(now_s) and now_s - self._asked_s >= _LOOK_S:
            self._asked_s = now_s
            fleet.look()

    def _presses(self, event: ev.Event) -> bool:
        """It is to be judged now, and not at the next tick: of a member, since nobody waits for others."""
        state = self._state
        if state is None or not isinstance(event, ev.HostBeat | ev.HostsHeard):
            return False
        readings = (reading for reading in event.readings if reading.generation == state.generation)
        return presses(readings, state.settings.limits.stopped_timeout_s)

    def _collect(self, wait_s: float) -> None:
        """What has come is sorted by how soon it is to be decided."""
        until_s = time.monotonic() + wait_s
        with contextlib.suppress(queue.Empty):
            while self._sort_in(self._inbox.get(timeout=max(0.0, until_s - time.monotonic()))):
                pass
            while True:
                self._sort_in(self._inbox.get_nowait())

    def _sort_in(self, news: ev.Event | Exception) -> bool:
        """Returns whether it can wait for the next tick, as steps can, but for the first of a generation.

        Raises:
            Exception: what was told is one.
        """
        if isinstance(news, Exception):
            raise news
        self._backlog.add(news)
        if not isinstance(news, ev.StepStable):
            return False
        before, self._reported_generation = self._reported_generation, news.report.commit.generation
        return before == self._reported_generation

    def _errands(self, fleet: Fleet, command: cmd.Command, state: RunState) -> list[Errand]:
        """What is to be carried out beside this thread; the rest is done."""
        found = list(Errands(fleet, self._tiers, state.settings.limits, self.emit).of(command))
        if isinstance(command, cmd.Form):
            if self._issue(command.view.generation):
                found.insert(0, self._opening(fleet, command, state))
        elif isinstance(command, cmd.DropFault):
            self.emit(ev.FaultRefused(fault=command.fault, reason=command.reason))
        return found

    def _opening(self, fleet: Fleet, command: cmd.Form, state: RunState) -> Errand:
        """Comes first: nobody is left behind alive while another driver may go on with them."""
        exiled = {worker.name for worker in state.workers.values() if worker.standing is Standing.EXILED}
        is_news, self._left_behind = not exiled <= self._left_behind, self._left_behind | exiled

        def act() -> None:
            if is_news:
                fleet.confirm()
            self._tiers.formed(command.view, state)

        return Errand(act=act, keys=(LEAVES_BEHIND,), within_s=state.settings.limits.lease_s)

    def _issue(self, generation: int) -> bool:
        """No number is given out twice, and none is left out, whatever a supervisor asks for.

        Returns:
            Whether this one is new; else members are told of it again.
        """
        if generation not in (before := self._issued_generation, before + 1):
            raise RuntimeError(f"generation {generation} was asked for after {before}")
        self._issued_generation = generation
        return generation > before
