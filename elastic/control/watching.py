"""Pure. What host monitors tell, and what follows: hangs are broken, hosts out of reach are left behind."""

from elastic.control import events as ev
from elastic.control.flight import STOPPED, Flying, Reading
from elastic.control.forming import freeze
from elastic.control.state import OVER, Standing
from elastic.control.suspicion import WAITING, Suspicion, all_wait, stall_limit_s, suspicions
from elastic.control.turn import Turn
from elastic.control.values import IncidentClass


def heard(turn: Turn, event: ev.HostBeat) -> None:
    """Kept for the next tick: beats of several hosts are judged together."""
    readings = {reading.worker: reading for reading in event.readings if reading.worker in turn.state.workers}
    turn.change(
        heard_s={**turn.state.heard_s, event.node: turn.now_s},
        readings={**turn.state.readings, **readings},
    )


def stack_seen(turn: Turn, event: ev.StackDumped) -> None:
    """Where a suspect stood: evidence of the incident that it caused, or may yet cause."""
    turn.set_worker(event.worker, stack=event.stack)
    incident = turn.open_incident()
    if incident is not None and event.worker in incident.culprits:
        turn.signal(incident.kind, f"stack of {event.worker}:\n{event.stack}")


def watch_steps(turn: Turn) -> None:
    """While the generation trains: who hangs is fenced; who is out of sight while all others wait is a suspect."""
    visible = _visible(turn)
    stall_s = stall_limit_s(turn.state.steps_s, turn.settings.limits)
    has_victims = any(reading.phase in WAITING for reading in visible) and len(turn.state.members) > 1
    found = suspicions(visible, stall_s, turn.settings.limits, has_victims=has_victims)
    for suspicion in found:
        turn.inspect(suspicion.worker, suspicion.reason)
    dead = [suspicion for suspicion in found if suspicion.is_dead]
    if dead:
        _break(turn, dead)
    elif not found and len(turn.state.members) > 1 and all_wait(visible, stall_s):
        _break_wait(turn, visible)


def watch_forming(turn: Turn) -> None:
    """While a generation forms: who is stopped, or hangs on the way to the door, or is out of sight, will not come."""
    hung = list({one.worker: one for one in (*_lost_on_their_way(turn), *_stopped(turn))}.values())
    absent = [member.name for member in turn.state.members if not member.formed and turn.is_silent(member.node)]
    if hung:
        _break(turn, hung, survivors_only=True)
    elif absent:
        why = turn.silence(*absent)
        for name in absent:
            turn.signal(IncidentClass.HOST_SILENT, why, culprit=name)
        freeze(turn, why, survivors_only=True)


def watch_freezing(turn: Turn) -> None:
    """While a generation ends: a member that is stopped will not answer."""
    unanswered = {member.name for member in turn.state.members if member.answer is None and not member.fenced}
    for suspicion in _stopped(turn):
        if suspicion.worker in unanswered and turn.worker(suspicion.worker).standing not in OVER:
            turn.signal(IncidentClass.WORKER_HUNG, suspicion.reason, culprit=suspicion.worker)
            turn.inspect(suspicion.worker, suspicion.reason)
            turn.fence(suspicion.worker, suspicion.reason)


def _visible(turn: Turn) -> list[Reading]:
    """Readings of members whose monitor is heard and whose page shows the current generation."""
    members = [member for member in turn.state.members if member.name in turn.state.readings]
    seen = [turn.state.readings[member.name] for member in members if not turn.is_silent(member.node)]
    return [reading for reading in seen if reading.generation == turn.state.generation]


def _stopped(turn: Turn) -> list[Suspicion]:
    stopped = [reading for reading in _visible(turn) if reading.state == STOPPED]
    return suspicions(stopped, turn.settings.limits.first_steps_timeout_s, turn.settings.limits)


def _lost_on_their_way(turn: Turn) -> list[Suspicion]:
    """Members that have answered the freeze, and still stand where they stood in the last generation."""
    absent = [member.name for member in turn.state.members if not member.at_door and not turn.is_silent(member.node)]
    seen = [turn.state.readings[name] for name in absent if name in turn.state.readings]
    stall_s = stall_limit_s(turn.state.steps_s, turn.settings.limits)
    return [suspicion for suspicion in suspicions(seen, stall_s, turn.settings.limits) if suspicion.is_dead]


def _break(turn: Turn, dead: list[Suspicion], survivors_only: bool = False) -> None:
    for suspicion in dead:
        turn.signal(IncidentClass.WORKER_HUNG, suspicion.reason, culprit=suspicion.worker)
        stack = turn.worker(suspicion.worker).stack
        if stack:
            turn.signal(IncidentClass.WORKER_HUNG, f"stack of {suspicion.worker}:\n{stack}")
        turn.inspect(suspicion.worker, suspicion.reason)
        turn.fence(suspicion.worker, suspicion.reason)
    freeze(turn, dead[0].reason, survivors_only)


def _break_wait(turn: Turn, visible: list[Reading]) -> None:
    """All wait for somebody out of sight, or for nobody at all.

    A collective in which all are may be large: how long it may take is for `Limits.collective_timeout_s` to say.
    """
    silent = [member.name for member in turn.state.members if turn.is_silent(member.node)]
    if silent:
        why = turn.silence(*silent)
        for name in silent:
            turn.signal(IncidentClass.HOST_SILENT, why, culprit=name)
            turn.set_worker(name, standing=Standing.SUSPECT)
        freeze(turn, why)
    elif len(visible) == len(turn.state.members) and any(one.phase is Flying.REDUCING for one in visible):
        still_s = min(reading.still_s for reading in visible)
        why = f"all members have waited in the reduction of step {visible[0].step} for {still_s:.1f} s"
        talking = [reading.worker for reading in visible if reading.phase is Flying.TALKING]
        why += f", but for {', '.join(talking)}, in a collective that the others do not call" if talking else ""
        turn.signal(IncidentClass.COLLECTIVE_BROKEN, why, suspects=tuple(talking or [one.worker for one in visible]))
        freeze(turn, why)
