"""Pure. Notice: a worker or node that will be lost leaves at the end of a step, before it is taken away."""

from elastic.control import events as ev
from elastic.control.ahead import pause_connected
from elastic.control.doubt import deserted_by
from elastic.control.exiting import begin_exit
from elastic.control.remediation import Kind
from elastic.control.starts import count_start_failure
from elastic.control.state import OVER, Gang, Phase, Standing, State, WorkerRecord
from elastic.control.turn import Turn
from elastic.control.values import Incident, IncidentClass
from elastic.control.viewing import cluster_view
from elastic.control.xid import worst

UNHEALTHY = "it fails its health check: "  # the next one may be passed
AT_HOME = (Standing.REQUESTED, Standing.LOADING, Standing.PARKED)
_SOON_S = 0.8  # a process that starts competes with the others for processors while they form without the leaving ones
_HOLD_S = 1.0  # notices come seconds before the end; a stand-in needs tenths of one
_ASKED_S = 1.25  # monitors ask the cloud every second, each at its own time, and the driver asks Ray more often


def worker_noticed(turn: Turn, event: ev.WorkerNotice) -> None:
    notice(turn, event.worker, event.reason)


def node_noticed(turn: Turn, event: ev.NodeNotice) -> None:
    """Whoever is there, or is placed there later, will be lost; a failed check takes no other reason's place."""
    is_passing, known = event.reason.startswith(UNHEALTHY), turn.state.leaving.get(event.node, "")
    if not (is_passing and known and not known.startswith(UNHEALTHY)):
        turn.change(leaving={**turn.state.leaving, event.node: event.reason})
    for name in turn.tally.by_start(turn.tally.nodes.get(event.node, ())):
        notice(turn, name, event.reason)


def notice_if_leaving(turn: Turn, name: str) -> None:
    """A worker was placed: on a node that is about to leave, or in quarantine, it has no future."""
    worker = turn.worker(name)
    if worker.node in turn.state.leaving:
        notice(turn, name, turn.state.leaving[worker.node])
    elif worker.node in turn.state.care.quarantine and worker.standing in AT_HOME:
        why = f"{worker.node} is in quarantine"
        if worker.node in worker.avoid:
            count_start_failure(turn, name, f"it was placed on {worker.node}, which it was to avoid")
        notice(turn, name, why)


def consider_departure(turn: Turn) -> None:
    """Have all stop at the end of a step once those who stay are enough; notices that come together leave together."""
    leaving = _leaving(turn)
    if not leaving or turn.state.care.leaving is not None:
        return
    waited_s, window_s = turn.attended_s - min(member.notice_s for member in leaving), _window_s(turn, leaving)
    if waited_s >= window_s + _SOON_S:
        turn.replenish(f"{leaving[0].name} will be lost: {leaving[0].notice}")
    if turn.state.pause_asked or waited_s < window_s:
        return
    if waited_s < _HOLD_S and _one_stands_in(turn, leaving):
        return
    if not _is_to_exit(turn, leaving) and not _are_enough(turn):
        _stage_the_last_copy(turn, leaving)
        return
    for member in leaving:
        turn.signal(IncidentClass.DEPARTURE, f"{member.name} will be lost: {member.notice}", culprit=member.name)
    names = ", ".join(member.name for member in leaving)
    pause_connected(turn, f"{names} will be lost: {leaving[0].notice}")


def _window_s(turn: Turn, leaving: tuple[WorkerRecord, ...]) -> float:
    """For how long more notices may come that belong to the first one.

    Machines that are taken away together are heard of when each is asked; one whose own sensors give it up is alone.
    """
    window_s, taken = turn.settings.limits.notice_window_s, turn.state.leaving
    is_asked = any(member.node in taken and member.severity is None for member in leaving)
    return max(window_s, _ASKED_S) if is_asked else window_s


def _stage_the_last_copy(turn: Turn, leaving: tuple[WorkerRecord, ...]) -> None:
    """All who hold the state may be lost before somebody comes: they stop for it once, since that stages it."""
    is_news = max(member.notice_s for member in leaving) > turn.state.care.stopped_s
    is_last = len(leaving) == len(turn.tally.ranks)
    if is_news and is_last and turn.settings.checkpoint is not None:
        turn.pause(f"all who hold the state will be lost, and it is saved before: {leaving[0].notice}")


def _is_to_exit(turn: Turn, leaving: tuple[WorkerRecord, ...]) -> bool:
    """Whether the policy wants the run to save and exit, rather than do without those who leave; asked once.

    What else it may want is done when all have stopped; but this can not wait until those who stay are enough.
    """
    names = tuple(member.name for member in leaving)
    if turn.state.care.noticed >= set(names):
        return False
    turn.tend(noticed=turn.state.care.noticed | set(names))
    told = tuple(f"{member.name} will be lost: {member.notice}" for member in leaving)
    incident = Incident(
        number=turn.state.failures,
        kind=IncidentClass.DEPARTURE,
        opened_at_s=turn.now_s,
        absent_s=turn.state.absent_s,
        culprits=names,
        evidence=told,
        severity=worst(*(member.severity for member in leaving)),
        replicas_before=turn.state.replicas,
    )
    staying = turn.state.replicas - len({member.gang for member in leaving})
    wanted = turn.policy(incident, cluster_view(turn, incident, staying, turn.tally.ready.whole))
    if wanted.kind is Kind.EXIT:
        begin_exit(turn, wanted.reason)
    return wanted.kind is Kind.EXIT


def part(turn: Turn, survivors: tuple[Gang, ...]) -> tuple[Gang, ...]:
    """Those who go on: without the leaving, unless they hold what nobody else does, or too few would be left."""
    if not turn.tally.noticed:
        return survivors
    staying, parting = turn.divided(survivors, turn.tally.noticed)
    is_held = keep_the_state(turn, staying, survivors)
    is_enough = len(staying) + turn.tally.ready.whole >= turn.settings.scaling.bounds[0]
    if not is_held or not is_enough or not staying:
        return survivors
    for gang in parting:
        for worker in gang:
            turn.dismiss(worker.name, reason=worker.notice or "the rest of its replica leaves")
    return staying


def _leaving(turn: Turn) -> tuple[WorkerRecord, ...]:
    return tuple(turn.many(turn.tally.by_rank(turn.tally.noticed)))


def _are_enough(turn: Turn) -> bool:
    """Whether the run can go on without those who were told that they will be lost."""
    staying = turn.state.replicas - len({member.gang for member in _leaving(turn)})
    return staying > 0 and staying + turn.tally.ready.whole >= turn.settings.scaling.bounds[0]


def keep_the_state(turn: Turn, staying: tuple[Gang, ...], survivors: tuple[Gang, ...]) -> bool:
    """Whether those who stay can resume from what all survivors together can.

    Replicas of several workers may hold it only together: one of them has all but one shard, and another has that one.
    """
    if len(turn.tally.holders.commits) == 1:
        return True
    return _common(turn, staying) == _common(turn, survivors)


def _common(turn: Turn, gangs: tuple[Gang, ...]) -> State | None:
    there, holders = {worker.name for gang in gangs for worker in gang}, turn.tally.holders
    return holders.resumable(but=turn.many(name for name in holders.names if name not in there))


def may_be_needed(worker: WorkerRecord) -> bool:
    """It stands at the door with state that nobody else may hold."""
    return bool(worker.held) or (worker.left_with is not None and not worker.outdated)


def notice(turn: Turn, name: str, reason: str) -> None:
    """This worker, and with it the rest of its replica, will be lost."""
    worker = turn.worker(name)
    if worker.notice or worker.standing in OVER or worker.standing is Standing.FINISHED:
        return
    for mate in turn.many(turn.tally.by_start(turn.tally.mates[worker.gang])):  # a replica goes as a whole
        if mate.notice or mate.standing in OVER or mate.standing is Standing.FINISHED:
            continue
        turn.set_worker(mate.name, notice=reason, notice_s=turn.attended_s)
        if mate.standing in AT_HOME and not may_be_needed(mate):
            turn.dismiss(mate.name, reason=reason)
    if turn.settings.scaling.stand_ins or not departs_soon(turn):
        turn.replenish(f"{name} will be lost: {reason}")


def _one_stands_in(turn: Turn, leaving: tuple[WorkerRecord, ...]) -> bool:
    """A replacement has its slot already and will be ready in a moment: leaving and joining are one stop then.

    Not so where it would not be let in at once: on a node that all members leave.
    """
    if not turn.settings.scaling.stand_ins:
        return False
    deserted = deserted_by(turn, {member.name for member in leaving}, turn.tally.ranks.keys() - turn.tally.noticed)
    return any(one.node not in deserted for one in turn.standing(Standing.LOADING))


def departs_soon(turn: Turn) -> bool:
    """Members leave in a moment, and the others go on without them: new processes are started after that."""
    return turn.state.phase is Phase.RUNNING and bool(_leaving(turn)) and _are_enough(turn)
