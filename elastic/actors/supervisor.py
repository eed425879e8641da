"""Effect. The supervisor: takes events in, asks the pure controller, hands commands out.

The driver keeps the state it was answered with, so a supervisor that dies is replaced by one that starts from there:
what the dead one decided and could not tell has never happened. What it is answered with is what has changed since the
last answer, for the state of a large run is large.
"""

import pickle
from collections import deque

from elastic.actors.cycles import Cycles
from elastic.actors.refusals import Refusals
from elastic.actors.timed import Timed
from elastic.control import events as ev
from elastic.control.change import change_between
from elastic.control.commands import Command
from elastic.control.controller import step
from elastic.control.holding import why_no_pause
from elastic.control.injecting import refusal as why_no_fault
from elastic.control.packing import packed
from elastic.control.refusing import admitted
from elastic.control.remediation import Policy
from elastic.control.restoring import why_no_rewind
from elastic.control.retuning import refusal
from elastic.control.state import RunState
from elastic.policies import Ladder

_KEPT_FAULTS = 256

Wish = ev.TuneAsked | ev.RewindAsked | ev.PauseAsked | ev.ResumeAsked | ev.FaultAsked


class Supervisor:
    """One run's controller, hosted; an actor in a cluster.

    Args:
        state: where the run stands.
        policy: decides incidents; the built-in ladder does, once it has not answered in time.
    """

    def __init__(self, state: RunState, policy: Policy) -> None:
        self._state = self._answered = state
        self._policy = policy if isinstance(policy, Ladder) else Timed(policy)
        self._cycles = Cycles()
        self._asked: list[ev.Event] = []
        self._refusals = Refusals()
        self._faults: deque[ev.FaultInjected | ev.FaultRefused] = deque(maxlen=_KEPT_FAULTS)

    def observe(self, events: list[tuple[float, ev.Event]]) -> tuple[tuple[Command, ...], RunState]:
        """Take in events with the times at which they were seen; returns what is to be done, and the new state."""
        commands: list[Command] = []
        for at_s, told in events:
            event, why_not = admitted(self._state, told)
            if why_not:
                sender = str(getattr(told, "worker", "") or getattr(told, "node", ""))
                self._refusals.say(sender, type(told).__name__, why_not)
            if event is not None:
                decision = step(self._state, event, at_s, self._policy)
                self._state = decision.state
                commands += decision.commands
            if isinstance(event, ev.FaultInjected | ev.FaultRefused):
                self._faults.append(event)
        return tuple(commands), self._state

    def answer(self, told: bytes) -> tuple[bytes, list[ev.Event]]:
        """`observe` and `asked` in one call, for who keeps a copy of the state.

        Args:
            told: pickled (time, event) pairs.

        Returns:
            Packed (commands, StateChange), and what was asked.
        """
        self._cycles.spare()
        commands, state = self.observe(pickle.loads(told))
        before, self._answered = self._answered, state
        return packed((commands, change_between(before, state)), before.view), self.asked()

    def ask(self, wish: Wish) -> str:
        """Somebody outside of the run wants something of it; returns why it is refused, empty if it is passed on."""
        if isinstance(wish, ev.TuneAsked):
            why_not = refusal(self._state, wish.tuning)
        elif isinstance(wish, ev.ResumeAsked):
            is_held = self._state.care.hold is not None
            why_not = "" if is_held else f"the run {self._state.settings.run} is not paused"
        elif isinstance(wish, ev.PauseAsked):
            why_not = why_no_pause(self._state, wish)
        elif isinstance(wish, ev.FaultAsked):
            why_not = why_no_fault(self._state, wish)
        else:
            why_not = why_no_rewind(self._state, wish)
        if not why_not:
            self._asked.append(wish)
        return why_not

    def asked(self) -> list[ev.Event]:
        """What was asked since the last time: the driver takes it for an event like any other, and journals it."""
        asked, self._asked = self._asked, []
        return asked

    def faults(self) -> list[ev.FaultInjected | ev.FaultRefused]:
        """What came of the last faults that were asked for, oldest first."""
        return list(self._faults)

    def state(self) -> RunState:
        """Where the run stands, for whoever asks."""
        return self._state
