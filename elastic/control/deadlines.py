"""Pure. Time passes: the deadline of each phase, and what follows when it is over."""

from itertools import takewhile

from elastic.control import events as ev
from elastic.control.commands import Fence, Finish, Freeze, Restore
from elastic.control.departing import consider_departure
from elastic.control.forming import freeze, harden, settle, start_if_ready, try_form
from elastic.control.growth import consider_growth
from elastic.control.holding import consider_hold
from elastic.control.knocking import knock_at_the_silent
from elastic.control.leaving import expire_leaving
from elastic.control.outcome import Ending
from elastic.control.restoring import consider_restore, expire_restores
from elastic.control.retuning import consider_tuning
from elastic.control.starts import count_start_failure, give_time_again
from elastic.control.state import Phase, Standing, WorkerRecord
from elastic.control.turn import Turn
from elastic.control.values import IncidentClass
from elastic.control.watching import fence_the_stopped, gets_on, watch_forming, watch_freezing, watch_steps

_COUNTS_S = 0.1  # of a longer pause: so waits end, too, where each of many turns comes late
LATE_S = 1.0  # ticks come more often, so a longer silence is the controller's own
_ASKED_AFTER_S = 1.0
_WAITS_FOR_CONTACT = (Phase.FREEZING, Phase.WAITING, Phase.FINISHING)
_TOLD_S = 200e-6  # what it takes a driver to ask one more member, and to hear its answer


def discount_absence(turn: Turn) -> None:
    """Waits last only while the controller looks: nobody is late because its host stood still, or its clock jumped."""
    state, now_s = turn.state, turn.now_s
    elapsed_s = 0.0 if state.seen_s is None else now_s - state.seen_s
    turn.change(seen_s=now_s)
    if 0.0 <= elapsed_s <= LATE_S:
        return
    # Hardly any of it counts: what was said meanwhile is taken in with the next turns, and its sender is not silent.
    absent_s = elapsed_s - min(max(elapsed_s, 0.0), _COUNTS_S)
    turn.change(absent_s=state.absent_s + absent_s, phase_since_s=state.phase_since_s + absent_s)
    turn.change(heard_s=turn.tally.hosts.shift(absent_s), care=state.care.moved_by(absent_s))
    turn.change(answered={node: at_s + absent_s for node, at_s in state.answered.items()})


def tick_starting(turn: Turn, event: ev.Tick) -> None:
    _expire_loading(turn)
    _expire_restore(turn)
    if turn.state.phase is Phase.STARTING:
        start_if_ready(turn)
    if turn.state.phase is Phase.STARTING:
        give_time_again(turn)
    if turn.state.phase is Phase.STARTING and turn.waited_s() > turn.settings.limits.start_timeout_s:
        if turn.tally.ready.whole >= turn.settings.scaling.bounds[0]:
            try_form(turn)
        elif not _is_restoring(turn) and turn.state.care.hold is None:  # else all were there, and one has been lost
            turn.fail_not_enough_slots()


def _is_restoring(turn: Turn) -> bool:
    """Somebody loads a checkpoint, which has a deadline of its own."""
    return any(worker.is_restoring for worker in turn.standing(Standing.PARKED))


def _expire_loading(turn: Turn) -> None:
    limit_s = turn.settings.limits.load_timeout_s
    loading = map(turn.worker, turn.tally.standings[Standing.LOADING])
    for worker in list(takewhile(lambda worker: turn.attended_s - worker.since_s > limit_s, loading)):
        still = "not at its first step" if worker.restoring is None else f"has not loaded step {worker.restoring.step}"
        why = f"{still} after Limits.load_timeout_s={limit_s}"
        turn.fence(worker.name, why)
        if worker.restoring is None:
            count_start_failure(turn, worker.name, why)


def _expire_the_left(turn: Turn) -> None:
    """Who is lost, and no member: nobody asks for proof, and where its host is gone there will be none."""
    limits = turn.settings.limits
    limit_s = limits.freeze_timeout_s + limits.lease_s
    for name in [name for name in turn.tally.standings[Standing.SUSPECT] if name not in turn.tally.ranks]:
        worker = turn.worker(name)
        if turn.attended_s - worker.since_s <= limit_s:
            continue
        if worker.fenced:
            turn.set_worker(name, standing=Standing.DEAD)
        else:
            _give_up(turn, worker)


def _expire_restore(turn: Turn) -> None:
    if not expire_restores(turn):
        limit_s = turn.settings.limits.restore_timeout_s
        why = f"nobody could say within Limits.restore_timeout_s={limit_s} which checkpoints there are"
        turn.fail(Ending.REPLICAS_LOST, why)


def tick_running(turn: Turn, event: ev.Tick) -> None:
    _expire_loading(turn)
    _expire_the_left(turn)
    consider_departure(turn)
    consider_growth(turn)
    consider_restore(turn)
    consider_tuning(turn)
    consider_hold(turn)
    knock_at_the_silent(turn)
    watch_steps(turn)


def tick_freezing(turn: Turn, event: ev.Tick) -> None:
    limits = turn.settings.limits
    knock_at_the_silent(turn)
    watch_freezing(turn)
    if turn.state.planned and turn.waited_s() > limits.pause_timeout_s:
        harden(turn, "some are still busy with what follows their step")  # the clock starts again: they were not asked
    waited_s = turn.waited_s() - _TOLD_S * len(turn.tally.late)
    if not turn.state.planned and waited_s > min(limits.doubt_after_s, limits.freeze_timeout_s):
        for member in turn.many(turn.tally.by_rank(turn.tally.late)):
            _press(turn, member, waited_s)
    settle(turn, is_tick=True)


def ask_again(turn: Turn) -> None:
    """Contact that comes back is known by an answer, and what was asked when it was lost may have reached nobody.

    More and more rarely: whoever is gone for good is proven dead, or left behind, by and by. Comes at the end of a
    tick, which may have formed the next generation.
    """
    lost = [member for member in turn.out_of_contact() if member.restoring is None or member.is_restoring]
    if not lost or turn.state.phase not in _WAITS_FOR_CONTACT:
        return
    state, oldest_s = turn.state, min(member.since_s for member in lost)
    if turn.attended_s - max(state.asked_s, oldest_s) < max(_ASKED_AFTER_S, (turn.attended_s - oldest_s) / 4):
        return
    turn.change(asked_s=turn.attended_s)
    reason = "contact may be back"
    _ask_to_load(turn, [member for member in lost if member.restoring is not None], reason)
    names = tuple(member.name for member in lost if member.restoring is None)
    if not names:
        return
    if state.phase is Phase.FINISHING:
        turn.do(Finish(workers=names, reason=reason))
    else:
        turn.do(Freeze(workers=names, generation=state.generation, reason=reason))


def _ask_to_load(turn: Turn, lost: list[WorkerRecord], reason: str) -> None:
    """What counts now, whatever they were told before: an order that was answered is only answered again."""
    restore = turn.state.restore
    if not lost or turn.state.phase is not Phase.WAITING or restore is None or restore.commit is None:
        return
    others = [member.name for member in lost if member.restoring != restore.commit]
    turn.set_workers(others, restoring=restore.commit, restoring_s=turn.attended_s)
    names = tuple(member.name for member in lost)
    turn.do(Restore(workers=names, commit=restore.commit, number=restore.number, reason=reason))


def _press(turn: Turn, member: WorkerRecord, waited_s: float) -> None:
    """It has not answered the freeze: look for a sign of death, then kill it, then let its lease run out."""
    limits = turn.settings.limits
    if waited_s > limits.doubt_after_s:
        turn.doubt(member.name, f"no answer to the freeze after {limits.doubt_after_s} s")
    if waited_s > limits.freeze_timeout_s and not member.fenced:
        why = f"{member.name} has not answered the freeze within Limits.freeze_timeout_s={limits.freeze_timeout_s}"
        if member.standing is not Standing.SUSPECT:
            turn.signal(IncidentClass.WORKER_UNRESPONSIVE, why, culprit=member.name)
        turn.fence(member.name, why)
    if waited_s > limits.freeze_timeout_s + limits.lease_s:
        turn.set_worker(member.name, standing=Standing.DEAD)
        turn.signal(IncidentClass.WORKER_LOST, f"the lease of {member.name} has run out", culprit=member.name)


def tick_forming(turn: Turn, event: ev.Tick) -> None:
    limits, tally = turn.settings.limits, turn.tally
    knock_at_the_silent(turn)
    if tally.away and turn.waited_s() > limits.door_timeout_s:
        absent = tally.by_rank(tally.away)
        why = f"{', '.join(absent)} did not come to the door within Limits.door_timeout_s={limits.door_timeout_s}"
        for name in absent:
            turn.signal(IncidentClass.WORKER_UNRESPONSIVE, why, culprit=name)
            turn.fence(name, why)
        freeze(turn, why, survivors_only=True)
    elif not tally.away and (within := _overdue(turn)):
        late = tally.by_rank(tally.unformed)
        why = f"{', '.join(late)} did not form generation {turn.state.generation} within {within}"
        turn.signal(IncidentClass.FORMING_FAILED, why, suspects=tuple(late))
        turn.change(formed_in_vain=turn.state.generation)
        freeze(turn, why, survivors_only=True)
    else:
        _doubt_absent_joiners(turn)
        watch_forming(turn)


def _overdue(turn: Turn) -> str:
    """The limit within which all who are at the door should have formed; empty as long as they may.

    A copy of the state takes as long as it takes: what counts is that it gets on.
    """
    limits, waited_s = turn.settings.limits, turn.waited_s()
    if waited_s <= limits.forming_timeout_s:
        return ""
    if not gets_on(turn, limits.forming_timeout_s):
        return f"Limits.forming_timeout_s={limits.forming_timeout_s}"
    return f"Limits.heal_timeout_s={limits.heal_timeout_s}" if waited_s > limits.heal_timeout_s else ""


def _doubt_absent_joiners(turn: Turn) -> None:
    """Nobody has asked them whether they still live, and the others wait for them at the door.

    Members have just answered a freeze; they may be busy between two steps for as long as user code takes.
    """
    tally, after_s = turn.tally, turn.settings.limits.doubt_after_s
    if not tally.away or turn.waited_s() <= after_s + _TOLD_S * len(tally.ranks):
        return
    for member in turn.many(tally.by_rank(tally.away)):
        if not member.healed and member.standing is Standing.MEMBER:
            turn.doubt(member.name, f"not at the door after {after_s} s")


def tick_finishing(turn: Turn, event: ev.Tick) -> None:
    expire_leaving(turn)
    fence_the_stopped(turn)
    limit_s = turn.settings.limits.finish_timeout_s
    is_late = turn.waited_s() > limit_s
    for member in turn.state.members if is_late else ():
        if member.standing in (Standing.MEMBER, Standing.FINISHED, Standing.SUSPECT) and not member.fenced:
            turn.fence(member.name, f"{member.name} has not returned within Limits.finish_timeout_s={limit_s}")
    # One whose host is heard may be in the midst of an export: were it dead, its host would have told.
    expired = [one for one in _past_their_lease(turn) if turn.is_silent(one.node) or one.node not in turn.state.heard_s]
    for member in expired:
        _give_up(turn, member)
    if expired or is_late or turn.out_of_contact():
        turn.end_if_all_left()


def nodes_missing(turn: Turn, event: ev.NodesMissing) -> None:
    """Where the policy waits for machines, it is asked again: these do not come soon."""
    turn.tend(nodes_missing=event.missing)
    if event.missing and turn.state.phase is Phase.WAITING:
        try_form(turn)


def tick_waiting(turn: Turn, event: ev.Tick) -> None:
    _expire_loading(turn)
    _expire_the_left(turn)
    _expire_restore(turn)
    if turn.state.phase is not Phase.WAITING:
        return
    if expired := _past_their_lease(turn):
        for member in expired:
            _give_up(turn, member)
            turn.signal(IncidentClass.WORKER_LOST, f"the lease of {member.name} has run out", culprit=member.name)
        try_form(turn)
    if turn.state.restore is not None and turn.state.phase is Phase.WAITING:
        try_form(turn)
    restore = turn.state.restore
    is_looking = restore is not None and restore.commit is None  # for an older step, if nobody could load the newest
    is_waiting = turn.state.phase is Phase.WAITING and not (is_looking or turn.state.care.hold is not None)
    if is_waiting and not _is_restoring(turn) and turn.waited_s() > turn.settings.limits.jobset_downtime_threshold_s:
        turn.fail_below_minimum()


def _past_their_lease(turn: Turn) -> list[WorkerRecord]:
    """Members that have stopped by themselves, so long ago was contact with them lost."""
    lease_s = turn.settings.limits.lease_s
    suspects = turn.many(turn.tally.by_rank(turn.tally.standings[Standing.SUSPECT]))
    return [member for member in suspects if turn.attended_s - member.since_s > lease_s]


def _give_up(turn: Turn, member: WorkerRecord) -> None:
    turn.set_worker(member.name, standing=Standing.DEAD, fenced=True)
    turn.do(Fence(worker=member.name, reason="its lease has run out"))  # its slot is needed
