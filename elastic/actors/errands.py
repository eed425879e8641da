"""Effect. What carrying a command out means: who is told what, what it must not overtake, how long it may take.

A worker hears what is said to it in order. What its host monitor does about it goes another way, and does not wait for
a word to the worker that hangs; both wait until the worker is started.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from elastic.actors.carrier import Errand
from elastic.actors.fleet import Emit, Fleet
from elastic.actors.tiers import NoTiers, Tiers
from elastic.control import commands as cmd
from elastic.control.completions import COMPLETIONS
from elastic.settings import Limits

LEAVES_BEHIND = "who leads"  # key of what must be sure before members are told of a generation

Say = Callable[[Fleet, str, Any], None]

# What goes to workers, and what is done about one of them.
_TO_WORKERS: dict[type[cmd.Command], Say] = {
    cmd.Freeze: lambda fleet, worker, c: fleet.freeze(worker, c.generation),
    cmd.Form: lambda fleet, worker, c: fleet.form(worker, c.view),
    cmd.Go: lambda fleet, worker, c: fleet.go(worker, c.generation),
    cmd.Connect: lambda fleet, worker, c: fleet.connect(worker, c.view),
    cmd.Pause: lambda fleet, worker, c: fleet.pause(worker, c.generation, c.patience_s),
    cmd.Finish: lambda fleet, worker, c: fleet.finish(worker),
    cmd.Dismiss: lambda fleet, worker, c: fleet.dismiss(worker),
    cmd.Restore: lambda fleet, worker, c: fleet.restore(worker, c.commit, c.number),
    cmd.Save: lambda fleet, worker, c: fleet.save(worker, c.commit),
}
_ABOUT_WORKERS: dict[type[cmd.Command], Say] = {
    cmd.ProveDead: lambda fleet, worker, c: fleet.prove_dead(worker),
    cmd.Inspect: lambda fleet, worker, c: fleet.inspect(worker),
    cmd.Fence: lambda fleet, worker, c: fleet.fence(worker),
}


class Errands:
    """Of one run.

    Args:
        emit: takes what the controller is told of an order that did not get through in time.
    """

    def __init__(self, fleet: Fleet, tiers: Tiers | NoTiers, limits: Limits, emit: Emit) -> None:
        self._fleet, self._tiers, self._limits, self._emit = fleet, tiers, limits, emit

    def of(self, command: cmd.Command) -> Iterator[Errand]:
        """What is to be done; nothing for what is the driver's own."""
        fleet, kind = self._fleet, type(command)
        if kind in _TO_WORKERS:
            after = (LEAVES_BEHIND,) if kind is cmd.Form else ()
            for worker in _addressees(command):
                act = partial(_TO_WORKERS[kind], fleet, worker, command)
                yield self._errand(command, act, worker, keys=(worker,), after=after)
        elif isinstance(command, cmd.ProveDead | cmd.Inspect | cmd.Fence):
            act = partial(_ABOUT_WORKERS[kind], fleet, command.worker, command)
            yield self._errand(command, act, command.worker, keys=(_host_of(command.worker),))
        elif isinstance(command, cmd.Knock):
            yield self._errand(command, partial(fleet.knock, command.workers, command.others))
        elif isinstance(command, cmd.StartWorker):
            name, start = command.worker, command
            act = partial(fleet.start, name, start.gang, start.shard, start.avoid, start.node, start.doubted)
            late = partial(fleet.dismiss, name)
            yield self._errand(command, act, name, keys=(name, _host_of(name)), late=late, is_slow=True)
        elif isinstance(command, cmd.ResetGpu):
            act = partial(fleet.reset_gpu, command.node, command.gpus)
            yield self._errand(command, act, keys=(f"GPUs of {command.node}",), is_slow=True)
        elif isinstance(command, cmd.FindRestore):
            act = partial(self._tiers.find, command.number, command.at_most, command.without)
            yield self._errand(command, act, keys=("tiers",), is_slow=True)
        elif isinstance(command, cmd.InjectFault):
            act = partial(fleet.inject, command.fault, command.worker, command.node)
            yield self._errand(command, act, is_slow=True)

    def _errand(self, command: cmd.Command, act: Callable[[], None], worker: str = "", **how: Any) -> Errand:
        ends = COMPLETIONS[type(command)]
        within_s = float(getattr(self._limits, ends.sent_within))

        def overdue() -> None:
            why = f"the order ({command.reason}) was not given within Limits.{ends.sent_within}={within_s:g}"
            if ends.unsent is not None:
                self._emit(ends.unsent(command, worker, why))

        return Errand(act=act, within_s=within_s, overdue=overdue, **how)


def _addressees(command: Any) -> Iterable[str]:
    if isinstance(command, cmd.Form):
        return command.addressees
    if isinstance(command, cmd.Connect):
        return [member.worker for member in command.view.members]
    return (command.worker,) if isinstance(command, cmd.Pause) else command.workers


def _host_of(worker: str) -> str:
    return f"the host of {worker}"
