"""Pure. What the controller has ordered and waits for: each order ends, or its deadline passes and something follows.

What ends an order, and how long that may take, is the table of `control/completions.py`; that somebody waits for it is
seen in the state. Time in which the controller did not look does not count.
"""

import math
from collections.abc import Callable
from typing import Any

from elastic.control import commands as cmd
from elastic.control.completions import COMPLETIONS
from elastic.control.flight import Flying
from elastic.control.restoring import SILENCE
from elastic.control.state import OVER, Phase, RunState, Standing
from elastic.control.tending import REMIND_S
from elastic.sim.laws import Law, must

SLACK_S = 3.0  # ticks come every half a second
_SAID_AGAIN = (cmd.Go, cmd.Pause, cmd.Finish, cmd.Restore)  # that is what follows at their deadline
_LONGER = {cmd.FindRestore: SILENCE, cmd.Restore: SILENCE}
_ANEW_WITH_ANSWERS = (cmd.Freeze, cmd.ProveDead, cmd.Fence)  # while some come in, nobody is late
_UNTIL_SAID_AGAIN_S: dict[type[cmd.Command], float] = {cmd.Pause: REMIND_S}  # the first may be lost

Waits = Callable[[RunState, Any, str], bool]


def _is_awaited_to_freeze(state: RunState, order: cmd.Freeze, worker: str) -> bool:
    record = state.workers[worker]
    is_over = record.standing in OVER or record.has_answered(state.generation)
    return state.phase in (Phase.FREEZING, Phase.WAITING) and order.generation == state.generation and not is_over


def _is_awaited_to_form(state: RunState, order: cmd.Form, worker: str) -> bool:
    return state.phase is Phase.FORMING and order.view.generation == state.generation


def _is_awaited_to_go(state: RunState, order: cmd.Go, worker: str) -> bool:
    seen, heard_s = state.readings.get(worker), state.heard_s.get(state.workers[worker].node, -math.inf)
    is_in_sight = (state.seen_s or 0.0) - heard_s <= state.settings.limits.heartbeat_timeout_s
    is_ready = seen is not None and seen.phase is Flying.FORMING and seen.generation == order.generation and is_in_sight
    return state.phase is Phase.RUNNING and order.generation == state.generation and is_ready


def _is_awaited_to_pause(state: RunState, order: cmd.Pause, worker: str) -> bool:
    return state.phase is Phase.RUNNING and state.pause_asked and order.generation == state.generation


def _is_awaited_to_finish(state: RunState, order: cmd.Finish, worker: str) -> bool:
    return state.phase is Phase.FINISHING and state.workers[worker].standing is Standing.MEMBER


def _is_proof_awaited(state: RunState, order: cmd.ProveDead, worker: str) -> bool:
    record = state.workers[worker]
    is_over = record.standing in OVER or not record.doubted
    return not is_over and state.phase in (Phase.FREEZING, Phase.FORMING, Phase.WAITING)


def _is_awaited_to_die(state: RunState, order: cmd.Fence, worker: str) -> bool:
    is_in_the_way = state.phase in (Phase.FREEZING, Phase.WAITING) and worker in {one.name for one in state.members}
    return is_in_the_way and state.workers[worker].standing is Standing.SUSPECT


def _is_awaited_to_load(state: RunState, order: cmd.Restore, worker: str) -> bool:
    record = state.workers[worker]
    return record.standing is Standing.PARKED and record.is_restoring


WAITS: dict[type[cmd.Command], Waits] = {
    cmd.StartWorker: lambda state, order, worker: state.workers[worker].standing is Standing.LOADING,
    cmd.Freeze: _is_awaited_to_freeze,
    cmd.Pause: _is_awaited_to_pause,
    cmd.Form: _is_awaited_to_form,
    cmd.Go: _is_awaited_to_go,
    cmd.Finish: _is_awaited_to_finish,
    cmd.Dismiss: lambda state, order, worker: state.workers[worker].is_dismissed,
    cmd.ProveDead: _is_proof_awaited,
    cmd.Fence: _is_awaited_to_die,
    cmd.FindRestore: lambda state, order, worker: state.restore is not None and state.restore.commit is None,
    cmd.Restore: _is_awaited_to_load,
    cmd.Inspect: lambda state, order, worker: any(one.command == order for one in state.care.awaited),
}


class Orders:
    """Those of one life of the driver that somebody may wait for.

    Attribute `longest_s`: by kind of order, the longest that one was waited for.
    """

    def __init__(self) -> None:
        self._given: dict[tuple[type[cmd.Command], str], Any] = {}
        self._since_s: dict[tuple[type[cmd.Command], str], float] = {}
        self.longest_s: dict[type[cmd.Command], float] = {}

    def give(self, commands: tuple[cmd.Command, ...]) -> None:
        """One that is given again takes the place of the first; of another generation, it is another order."""
        for command in commands:
            if type(command) not in WAITS:
                continue
            for worker in addressees(command):
                key = (type(command), worker)
                before = self._given.get(key, command)
                self._given[key] = command
                if isinstance(command, _SAID_AGAIN) or _generation(before) != _generation(command):
                    self._since_s.pop(key, None)

    def check(self, state: RunState) -> None:
        """
        Raises:
            Violation: one is waited for, and its deadline is over.
        """
        attended_s = (state.seen_s or 0.0) - state.absent_s
        for key, command in list(self._given.items()):
            kind, worker = key
            if (worker and worker not in state.workers) or not WAITS[kind](state, command, worker):
                self._since_s.pop(key, None)
                if _is_of_old(command, state.generation):
                    del self._given[key]
                continue
            waited_s = attended_s - self._since_s.setdefault(key, attended_s)
            if kind in _ANEW_WITH_ANSWERS:
                waited_s = min(waited_s, (state.seen_s or 0.0) - state.phase_since_s)
            self.longest_s[kind] = max(waited_s, self.longest_s.get(kind, 0.0))
            limit_s = deadline_s(kind, state)
            must(waited_s <= limit_s, Law.COMPLETED, lambda: f"{command} is open after {waited_s:.1f} s")  # noqa: B023


def deadline_s(kind: type[cmd.Command], state: RunState) -> float:
    """How long such an order may be waited for."""
    limits = [getattr(state.settings.limits, name) for name in COMPLETIONS[kind].within]
    return (
        SLACK_S
        + COMPLETIONS[kind].answer_s
        + _UNTIL_SAID_AGAIN_S.get(kind, 0.0)
        + _LONGER.get(kind, 1.0) * math.fsum(limits)
    )


def _is_of_old(command: Any, generation: int) -> bool:
    """Of a generation that is over: nobody will wait for it again."""
    of = _generation(command)
    return of is not None and of < generation


def _generation(command: Any) -> int | None:
    of = command.view if isinstance(command, cmd.Form) else command
    return getattr(of, "generation", None)


def addressees(command: Any) -> tuple[str, ...]:
    """Workers that are told, or told of."""
    if isinstance(command, cmd.Form):
        return command.addressees
    if isinstance(command, cmd.Connect):
        return tuple(member.worker for member in command.view.members)
    if isinstance(command, cmd.FindRestore):
        return ("",)
    return command.workers if hasattr(command, "workers") else (command.worker,)
