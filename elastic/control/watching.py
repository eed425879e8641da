"""Pure. What host monitors tell, and what follows: hangs are broken, hosts out of reach are left behind."""

from collections.abc import Iterable

from elastic.control import events as ev
from elastic.control.flight import STOPPED, Flying, Reading
from elastic.control.forming import freeze
from elastic.control.state import OVER, Standing
from elastic.control.suspicion import IN_STEP, Suspicion, all_wait, some_warm_up, stall_limit_s, suspicions
from elastic.control.turn import Turn
from elastic.control.values import IncidentClass


def heard(turn: Turn, event: ev.HostBeat | ev.HostsHeard) -> None:
    """Kept for the next tick: beats of several hosts are judged together."""
    nodes = (event.node,) if isinstance(event, ev.HostBeat) else event.nodes
    workers, hosts = turn.state.workers, turn.tally.hosts
    readings = {reading.worker: reading for reading in event.readings if reading.worker in workers}
    turn.hear_of(nodes)
    if readings:
        turn.change(readings=hosts.read(readings))


def stack_seen(turn: Turn, event: ev.StackDumped) -> None:
    """Where a suspect stood: evidence of the incident that it caused, or may yet cause."""
    turn.set_worker(event.worker, stack=event.stack)
    turn.add_stack(event.worker, event.stack)


def watch_steps(turn: Turn) -> None:
    """While the generation trains: who hangs is fenced; who is out of sight while all others wait is a suspect."""
    stall_s = stall_limit_s(turn.state.steps_s, turn.settings.limits)
    hosts, members = turn.tally.hosts, turn.tally.ranks
    hosts.expect(stall_s)
    found: list[Suspicion] = []
    if hosts.still:
        waited_s = _waited_s(turn) if len(members) > 1 else None
        found = suspicions(_visible(turn, hosts.still), stall_s, turn.settings.limits, waited_s=waited_s)
    if len(members) == 1 and not found:
        found = _never_went(turn)
    for suspicion in found:
        turn.inspect(suspicion.worker, suspicion.reason)
    dead = [suspicion for suspicion in found if suspicion.is_dead]
    if dead:
        _break(turn, dead)
    elif not found and len(members) > 1 and hosts.waiting_long and _only_waiting_are_visible(turn):
        visible = _visible(turn, members)
        if all_wait(visible, stall_s):
            _break_wait(turn, visible)


def watch_forming(turn: Turn) -> None:
    """While a generation forms: who is stopped, or hangs on the way to the door, or is out of sight, will not come."""
    hung = list({one.worker: one for one in (*_lost_on_their_way(turn), *_stopped(turn))}.values())
    absent = [name for name in _silent(turn) if name in turn.tally.unformed]
    if hung:
        _break(turn, hung, survivors_only=True)
    elif absent:
        why = turn.silence(*absent)
        for name in absent:
            turn.signal(IncidentClass.HOST_SILENT, why, culprit=name)
        freeze(turn, why, survivors_only=True)


def watch_freezing(turn: Turn) -> None:
    """While a generation ends: a member that is stopped will not answer, nor will one of which no thread runs."""
    for suspicion in (*_stopped(turn), *_deaf(turn)):
        member = turn.worker(suspicion.worker)
        if not member.has_answered(turn.state.generation) and not member.fenced and member.standing not in OVER:
            turn.signal(IncidentClass.WORKER_HUNG, suspicion.reason, culprit=suspicion.worker)
            turn.inspect(suspicion.worker, suspicion.reason)
            turn.fence(suspicion.worker, suspicion.reason)


def fence_the_stopped(turn: Turn) -> None:
    """After the last step, once one has returned: a member that is stopped will not."""
    stopped = _stopped(turn)
    if not stopped or all(member.standing is not Standing.GONE for member in turn.state.members):
        return
    for suspicion in stopped:
        member = turn.worker(suspicion.worker)
        if member.standing in (Standing.MEMBER, Standing.FINISHED) and not member.fenced:
            turn.inspect(suspicion.worker, suspicion.reason)
            turn.fence(suspicion.worker, suspicion.reason)


def gets_on(turn: Turn, within_s: float) -> bool:
    """Whether somebody who forms was seen to do something so lately."""
    forming = (one for one in _visible(turn, turn.tally.unformed) if one.phase is Flying.FORMING)
    return any(one.still_s <= within_s for one in forming)


def _never_went(turn: Turn) -> list[Suspicion]:
    """The only member was told to go, and still stands where it has formed: nobody waits for it, and would say so."""
    limits = turn.settings.limits
    limit_s = limits.hang_floor_s + limits.first_steps_timeout_s
    found = []
    for one in _visible(turn, turn.tally.ranks):
        waited_s = min(one.still_s, turn.waited_s())
        if one.phase is Flying.FORMING and waited_s >= limit_s:
            why = f"{one.worker} was told to go {waited_s:.1f} s ago, and has not begun its first step"
            told = f"limit: Limits.hang_floor_s + first_steps_timeout_s={limit_s:g}"
            found.append(Suspicion(worker=one.worker, is_dead=True, reason=f"{why}; {told}"))
    return found


def _is_visible(turn: Turn, name: str) -> bool:
    """A member whose monitor is heard and whose page shows the current generation."""
    reading = turn.state.readings.get(name)
    is_current = reading is not None and reading.generation == turn.state.generation
    return is_current and turn.is_member(name) and not turn.is_silent(turn.worker(name).node)


def _waited_s(turn: Turn) -> float | None:
    """How long a member has waited for others by now, of those who were seen waiting first; None: nobody waits.

    All begin to wait within a step; which of them is asked does not matter, and to ask all would cost too much.
    """
    hosts = turn.tally.hosts
    for names in (hosts.waiting_long, hosts.waiting):
        for name in names:
            if _is_visible(turn, name):
                return turn.state.readings[name].still_s
    return None


def _only_waiting_are_visible(turn: Turn) -> bool:
    """Whether everybody that can be seen has waited for long; mostly the first one has not."""
    tally = turn.tally
    return all(name in tally.hosts.waiting_long or not _is_visible(turn, name) for name in tally.ranks)


def _visible(turn: Turn, names: Iterable[str]) -> list[Reading]:
    """Readings of those of them that are visible, in rank order."""
    return [turn.state.readings[name] for name in turn.tally.by_rank(names) if _is_visible(turn, name)]


def _silent(turn: Turn) -> list[str]:
    """Members on hosts out of reach, in rank order."""
    tally = turn.tally
    nodes = turn.state.unreached.union(filter(turn.is_silent, tally.hosts.silent(turn.now_s)))
    return tally.by_rank(name for node in nodes for name in tally.nodes.get(node, ())) if nodes else []


def _stopped(turn: Turn) -> list[Suspicion]:
    still = turn.tally.hosts.still
    stopped = [reading for reading in _visible(turn, still) if reading.state == STOPPED] if still else []
    return suspicions(stopped, turn.settings.limits.first_steps_timeout_s, turn.settings.limits)


def _deaf(turn: Turn) -> list[Suspicion]:
    """Members that hang in their step, and have not answered since they were asked: not even for that a thread runs.

    Code that keeps the interpreter to itself does so. Who may hold what no other one does has the time of all.
    """
    tally, limits = turn.tally, turn.settings.limits
    if turn.state.planned or tally.holders.resumable() is None:
        return []
    stall_s = stall_limit_s(turn.state.steps_s, limits)
    tally.hosts.expect(stall_s)
    still = [name for name in tally.hosts.still if name in tally.late]
    late = [one for one in _visible(turn, still) if one.phase in IN_STEP]
    return [one for one in suspicions(late, stall_s, limits, waited_s=turn.waited_s()) if one.is_dead]


def _lost_on_their_way(turn: Turn) -> list[Suspicion]:
    """Members that have answered the freeze, and still stand where they stood in the last generation."""
    tally = turn.tally
    stall_s = stall_limit_s(turn.state.steps_s, turn.settings.limits)
    tally.hosts.expect(stall_s)
    absent = tally.by_rank(name for name in tally.hosts.still if name in tally.away)
    seen = [turn.state.readings[name] for name in absent if not turn.is_silent(turn.worker(name).node)]
    late = suspicions(seen, stall_s, turn.settings.limits, waited_s=turn.waited_s())
    return [suspicion for suspicion in late if suspicion.is_dead]


def _break(turn: Turn, dead: list[Suspicion], survivors_only: bool = False) -> None:
    for suspicion in dead:
        turn.signal(IncidentClass.WORKER_HUNG, suspicion.reason, culprit=suspicion.worker)
        stack = turn.worker(suspicion.worker).stack
        if stack:
            turn.add_stack(suspicion.worker, stack)
        turn.inspect(suspicion.worker, suspicion.reason)
        turn.fence(suspicion.worker, suspicion.reason)
    freeze(turn, dead[0].reason, survivors_only)


def _break_wait(turn: Turn, visible: list[Reading]) -> None:
    """All wait for somebody out of sight, or for nobody at all.

    A collective in which all are may be large: how long it may take is for `Limits.collective_timeout_s` to say.
    """
    silent = _silent(turn)
    if silent:
        why = turn.silence(*silent)
        for name in silent:
            turn.signal(IncidentClass.HOST_SILENT, why, culprit=name)
            turn.set_worker(name, standing=Standing.SUSPECT)
        freeze(turn, why)
        return
    is_complete = len(visible) == len(turn.tally.ranks) and not some_warm_up(visible)
    if is_complete and any(one.phase is Flying.REDUCING for one in visible):
        still_s = min(reading.still_s for reading in visible)
        why = f"all members have waited in the reduction of step {visible[0].step} for {still_s:.1f} s"
        talking = [reading.worker for reading in visible if reading.phase is Flying.TALKING]
        why += f", but for {', '.join(talking)}, in a collective that the others do not call" if talking else ""
        turn.signal(IncidentClass.COLLECTIVE_BROKEN, why, suspects=tuple(talking or [one.worker for one in visible]))
        freeze(turn, why)
