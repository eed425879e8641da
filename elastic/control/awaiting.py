"""Pure. Answers that no phase waits for, since nothing depends on them: each comes, or its deadline does.

A host monitor that is lost, or hangs, with what it was asked tells nobody; whoever reads the incident, or has asked for
the fault, is told that. An answer that comes later is taken in like any other.
"""

from elastic.control import events as ev
from elastic.control.commands import DropFault, Inspect
from elastic.control.completions import COMPLETIONS
from elastic.control.turn import Turn
from elastic.control.watching import stack_seen


def answered(turn: Turn, event: ev.FaultInjected | ev.FaultRefused) -> None:
    """What came of a fault that was asked for."""
    turn.heed_answer(lambda command: not isinstance(command, Inspect) and command.fault == event.fault)


def stack_dumped(turn: Turn, event: ev.StackDumped) -> None:
    turn.heed_answer(lambda command: isinstance(command, Inspect) and command.worker == event.worker)
    stack_seen(turn, event)


def expire_answers(turn: Turn) -> None:
    """Once a tick: what was not answered in time is told of."""
    for one in turn.state.care.awaited:
        command, limit_s = one.command, COMPLETIONS[type(one.command)].answer_s
        if turn.attended_s - one.since_s <= limit_s:
            continue
        turn.heed_answer(lambda other: other == command)  # noqa: B023 - called at once
        why = f"no answer within {limit_s:g} s"
        if not isinstance(command, Inspect):
            turn.do(DropFault(fault=command.fault, reason=f"{why}; it may yet strike"))
        elif command.worker in turn.state.workers:
            stack_seen(turn, ev.StackDumped(worker=command.worker, stack=f"no stacks: {why}"))
