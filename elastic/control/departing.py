"""Pure. Notice: a worker or node that will be lost leaves at the end of a step, before it is taken away."""

from elastic.control import events as ev
from elastic.control.state import OVER, Gang, Standing
from elastic.control.turn import Turn
from elastic.control.values import IncidentClass

_AT_HOME = (Standing.REQUESTED, Standing.LOADING, Standing.PARKED)


def worker_noticed(turn: Turn, event: ev.WorkerNotice) -> None:
    _notice(turn, event.worker, event.reason)


def node_noticed(turn: Turn, event: ev.NodeNotice) -> None:
    """Whoever is there, or is placed there later, will be lost."""
    turn.change(leaving={**turn.state.leaving, event.node: event.reason})
    for name in turn.tally.by_start(turn.tally.nodes.get(event.node, ())):
        _notice(turn, name, event.reason)


def notice_if_leaving(turn: Turn, name: str) -> None:
    """A worker was placed: on a node that is about to leave, it has no future."""
    reason = turn.state.leaving.get(turn.worker(name).node)
    if reason is not None:
        _notice(turn, name, reason)


def consider_departure(turn: Turn) -> None:
    """Have all stop at the end of a step once those who stay are enough; notices that come together leave together."""
    if not turn.tally.noticed or turn.state.pause_asked:
        return
    leaving = turn.many(turn.tally.by_rank(turn.tally.noticed))
    if not leaving:
        return
    waited_s = turn.now_s - min(member.notice_s for member in leaving)
    staying = turn.state.replicas - len({member.gang for member in leaving})
    is_enough = staying + turn.tally.ready.whole >= turn.settings.scaling.bounds[0]
    if waited_s < turn.settings.limits.notice_window_s or not staying or not is_enough:
        return
    for member in leaving:
        turn.signal(IncidentClass.DEPARTURE, f"{member.name} will be lost: {member.notice}", culprit=member.name)
    names = ", ".join(member.name for member in leaving)
    turn.pause(f"{names} will be lost: {leaving[0].notice}")


def part(turn: Turn, survivors: tuple[Gang, ...]) -> tuple[Gang, ...]:
    """Those who go on: without the leaving, unless they hold what nobody else does, or too few would be left."""
    if not turn.tally.noticed:
        return survivors
    staying = tuple(gang for gang in survivors if not any(worker.notice for worker in gang))
    is_held = newest_step(staying) == newest_step(survivors)
    is_enough = len(staying) + turn.tally.ready.whole >= turn.settings.scaling.bounds[0]
    if not is_held or not is_enough or not staying:
        return survivors
    for gang in survivors:
        if gang not in staying:
            for worker in gang:
                turn.dismiss(worker.name, reason=worker.notice or "the rest of its replica leaves")
    return staying


def newest_step(gangs: tuple[Gang, ...]) -> int:
    """The last step that one of these replicas holds in full, or can apply in full."""
    return max((min(max(one.step for one in worker.held) for worker in gang) for gang in gangs), default=-2)


def _notice(turn: Turn, name: str, reason: str) -> None:
    worker = turn.worker(name)
    if worker.notice or worker.standing in OVER or worker.standing is Standing.FINISHED:
        return
    for mate in turn.many(turn.tally.by_start(turn.tally.mates[worker.gang])):  # a replica goes as a whole
        if mate.notice or mate.standing in OVER or mate.standing is Standing.FINISHED:
            continue
        turn.set_worker(mate.name, notice=reason, notice_s=turn.now_s)
        if mate.standing in _AT_HOME:
            turn.dismiss(mate.name, reason=reason)
    turn.replenish(f"{name} will be lost: {reason}")
