"""Effect. The supervisor: takes events in, asks the pure controller, hands commands out.

The driver keeps the state it was answered with, so a supervisor that dies is replaced by one that starts from there:
what the dead one decided and could not tell has never happened. What it is answered with is what has changed since the
last answer, for the state of a large run is large.
"""

import gc
import pickle

from elastic.control import events as ev
from elastic.control.change import change_between
from elastic.control.commands import Command
from elastic.control.controller import step
from elastic.control.remediation import Policy
from elastic.control.restoring import why_no_rewind
from elastic.control.retuning import refusal
from elastic.control.state import RunState

_YOUNG = 100_000  # values, by which Python looks for cycles: ours have none, and a look at all of them takes a second


class Supervisor:
    """One run's controller, hosted; an actor in a cluster.

    Args:
        state: where the run stands.
        policy: decides incidents.
    """

    def __init__(self, state: RunState, policy: Policy) -> None:
        self._state = self._answered = state
        self._policy = policy
        self._asked: list[ev.Event] = []

    def observe(self, events: list[tuple[float, ev.Event]]) -> tuple[tuple[Command, ...], RunState]:
        """Take in events with the times at which they were seen; returns what is to be done, and the new state."""
        commands: list[Command] = []
        for at_s, event in events:
            decision = step(self._state, event, at_s, self._policy)
            self._state = decision.state
            commands += decision.commands
        return tuple(commands), self._state

    def answer(self, packed: bytes) -> bytes:
        """`observe` for who keeps a copy of the state: packed (time, event) pairs in; out (commands, StateChange).

        Plain pickle, which makes of 100,000 small values a third less work than Ray's own does.
        """
        gc.set_threshold(_YOUNG, 100, 100)
        commands, state = self.observe(pickle.loads(packed))
        change, self._answered = change_between(self._answered, state), state
        return pickle.dumps((commands, change), protocol=pickle.HIGHEST_PROTOCOL)

    def ask(self, wish: ev.TuneAsked | ev.RewindAsked) -> str:
        """Somebody outside of the run wants something of it; returns why it is refused, empty if it is passed on."""
        if isinstance(wish, ev.TuneAsked):
            why_not = refusal(self._state, wish.tuning)
        else:
            why_not = why_no_rewind(self._state, wish)
        if not why_not:
            self._asked.append(wish)
        return why_not

    def asked(self) -> list[ev.Event]:
        """What was asked since the last time: the driver takes it for an event like any other, and journals it."""
        asked, self._asked = self._asked, []
        return asked

    def state(self) -> RunState:
        """Where the run stands, for whoever asks."""
        return self._state
