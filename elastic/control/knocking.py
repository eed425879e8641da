"""Pure. A host that is not heard any more is knocked at: its kernel answers for it, however busy its processes are.

A beat that does not come may have many causes; that nothing at all comes back has one. So who is out of reach is known
before the time is over that a monitor may take. A host that answers is knocked at again and again, and has more time.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from elastic.control import events as ev
from elastic.control.commands import Knock
from elastic.control.state import Phase
from elastic.control.turn import Turn
from elastic.settings import Limits

_DOUBTED_AFTER = 0.3  # of what a host may be silent for
_BEATS = 1.5  # at least: between two beats every host is silent
_AT_ONCE, _OTHERS = 8, 4


def doubted_after_s(limits: Limits) -> float:
    """For how long a host may be silent before it is knocked at, while others wait."""
    return max(_DOUBTED_AFTER * limits.heartbeat_timeout_s, _BEATS * limits.heartbeat_polling_period_s)


def knock_at_the_silent(turn: Turn) -> None:
    """While members wait for others: at a member on each host that is silent, and at some that are heard.

    Once in each silence, and again where it was answered.
    """
    if turn.state.phase is Phase.RUNNING and not turn.tally.hosts.waiting:
        return
    within_s, hosts = doubted_after_s(turn.settings.limits), turn.tally.hosts
    knocked_at, answered = turn.state.knocked, turn.state.answered
    silent = (
        node
        for node in hosts.silent_for(within_s, turn.now_s)
        if node not in knocked_at or (node in answered and turn.now_s - answered[node] > within_s)
    )
    doubted = dict(islice(_one_of_each(turn, silent), _AT_ONCE))
    if not doubted:
        return
    others = tuple(name for _, name in islice(_one_of_each(turn, hosts.heard_within(within_s, turn.now_s)), _OTHERS))
    if others:  # else the driver is cut off itself
        again = {node: turn.now_s for node in doubted if node in answered}
        turn.change(knocked=knocked_at.union(doubted), answered={**answered, **again})
        why = f"nothing was heard of {', '.join(doubted)} for {within_s:g} s"
        turn.do(Knock(workers=tuple(doubted.values()), others=others, reason=why))


def knocked(turn: Turn, event: ev.Knocked) -> None:
    """What has been heard again since is not out of reach."""
    state, workers = turn.state, turn.state.workers
    out, there = (
        {workers[name].node for name in names if name in workers} & state.knocked
        for names in (event.unreached, event.answered)
    )
    answered = {node: at_s for node, at_s in state.answered.items() if node not in out}
    turn.change(unreached=state.unreached | out, answered=answered | dict.fromkeys(there, turn.now_s))


def _one_of_each(turn: Turn, nodes: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Nodes with members, and the first of each."""
    ranks = turn.tally.ranks
    for node in nodes:
        members = [name for name in turn.tally.nodes.get(node, ()) if name in ranks]
        if members:
            yield node, min(members, key=ranks.__getitem__)
