"""Pure. Before a planned stop those who will probably go on connect, while all still train.

It is a guess. Where others make up the next generation, or not all of them have connected by then, they connect as they
do after a failure.
"""

from itertools import chain

from elastic.control import events as ev
from elastic.control.commands import Connect, Pause
from elastic.control.copies import changed
from elastic.control.doubt import is_doubtful
from elastic.control.state import Gang, Phase
from elastic.control.turn import Turn
from elastic.control.values import Member, View


def pause_connected(turn: Turn, reason: str) -> None:
    """Have all stop at the end of a step, soon, and those who go on connect before it."""
    if turn.state.view is None or turn.state.pause_asked:
        return
    patience_s = turn.settings.limits.connect_ahead_s
    is_worth_it = patience_s > 0 and _connect(turn, turn.state.view, reason)
    turn.pause(reason, patience_s if is_worth_it else 0.0)


def _connect(turn: Turn, last: View, reason: str) -> bool:
    """Ask them to; False where it can not be said who they are, or nobody has anybody to connect with."""
    members = _expected(turn, last)
    if last.incarnation != turn.settings.incarnation or len(members) < 2:
        return False
    view = changed(last, generation=turn.state.generation + 1, members=members, donors=(), behind=())
    turn.set_workers([member.worker for member in members], connecting=True)
    turn.change(ahead=view, unconnected=len(members))
    turn.do(Connect(view=view, reason=reason))
    return True


def _expected(turn: Turn, last: View) -> tuple[Member, ...]:
    """By rank: those who stay, in their order, then those who join them."""
    ranked = iter(turn.many(turn.tally.ranks))
    gangs = tuple(zip(*[ranked] * turn.state.width, strict=True))
    staying, _ = turn.divided(gangs, turn.tally.noticed)
    if not staying:
        return ()
    room = turn.settings.scaling.bounds[1] - len(staying)
    joining = [gang for gang in turn.joiners if _is_trusted(turn, gang)][: max(0, room)]
    known = {member.worker: member for member in last.members}
    workers = chain.from_iterable((*staying, *joining))
    return tuple([known.get(one.name) or Member(one.name, one.host, one.port) for one in workers])


def _is_trusted(turn: Turn, gang: Gang) -> bool:
    return turn.state.care.grow_now or not any(is_doubtful(turn, worker.node) for worker in gang)


def note_connected(turn: Turn, event: ev.Connected) -> None:
    """One of them has; once all have, the stop waits no longer."""
    ahead = turn.state.ahead
    if ahead is None or ahead.generation != event.generation + 1 or not turn.worker(event.worker).connecting:
        return
    turn.set_worker(event.worker, connecting=False)
    turn.change(unconnected=turn.state.unconnected - 1)
    if not turn.state.unconnected and turn.state.phase is Phase.RUNNING and turn.state.view is not None:
        leader = turn.state.view.leader.worker
        turn.do(Pause(worker=leader, generation=event.generation, reason="those who go on have connected"))


def has_connected(turn: Turn, generation: int, members: tuple[Member, ...]) -> bool:
    """Whether exactly these have connected for this generation; a stop at once cuts what they have in common."""
    ahead = turn.state.ahead
    is_as_expected = ahead is not None and (ahead.generation, ahead.members) == (generation, members)
    return turn.state.planned and is_as_expected and not turn.state.unconnected
