"""Pure. A decision: the policy is asked about an incident, and what it answers is set in motion.

What can not be done now is not done: the decision then says why, and the run goes on in place. Nothing here waits; what
takes time is seen to by ticks (`tending.py`), each thing until its deadline.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf

from elastic.control.care import Hold, Reset
from elastic.control.departing import notice
from elastic.control.exiting import begin_exit
from elastic.control.poison import after, worst
from elastic.control.remediation import Kind, Remediation
from elastic.control.restoring import restart_by_choice
from elastic.control.state import OVER, WorkerRecord
from elastic.control.turn import Turn
from elastic.control.values import Incident
from elastic.control.viewing import cluster_view

# The next generation takes no joiners, unless it needs them.
ALONE = frozenset({Kind.RESTART, Kind.SHRINK, Kind.EXIT})
# No generation is formed now.
WAITS = frozenset({Kind.WAIT, Kind.PAUSE, Kind.RESTART_FROM_TIER})
_OVER_AFTER_ONCE = frozenset({Kind.PAUSE, Kind.RESTART_FROM_TIER})


def decide(turn: Turn, survivors: int, spares: int) -> Remediation:
    """Ask the policy about the incident under treatment, and begin what it wants; returns what is done in the end."""
    turn.classify_incident()
    incident = turn.open_incident()
    assert incident is not None
    wanted = turn.policy(incident, cluster_view(turn, incident, survivors, spares))
    before, done = turn.state.care.decided, _carry_out(turn, incident, wanted)
    turn.decide_incident(done)
    if before in WAITS:  # it is what took the time
        turn.tend(decided=before)
    return done


def _carry_out(turn: Turn, incident: Incident, wanted: Remediation) -> Remediation:
    """Once for each incident and kind, however often the policy is asked."""
    act, mark = _ACTS.get(wanted.kind), (incident.number, wanted.kind)
    if act is None:
        return wanted
    if mark in turn.state.care.once:
        is_over = wanted.kind in _OVER_AFTER_ONCE
        return replace(wanted, kind=Kind.CONTINUE, reason=f"{wanted.kind.value} is over") if is_over else wanted
    turn.tend(once=turn.state.care.once | {mark})
    why_not = act(turn, incident, wanted)
    if not why_not:
        return wanted
    instead = f"instead of {wanted.kind.value!r}, since {why_not}"
    return replace(wanted, kind=Kind.CONTINUE, reason=f"{instead}; {wanted.reason}")


# --- who is meant -----------------------------------------------------------------------------------------------------


def _targets(turn: Turn, incident: Incident, wanted: Remediation) -> list[WorkerRecord]:
    """Workers that are there, or were lost just now; unknown names mean nobody."""
    return [
        worker
        for worker in _named(turn, incident, wanted)
        if worker.standing not in OVER or worker.name in incident.culprits
    ]


def _nodes(turn: Turn, incident: Incident, wanted: Remediation) -> list[str]:
    """Nodes on which a worker was ever placed."""
    return sorted({worker.node for worker in _named(turn, incident, wanted) if worker.node})


def _named(turn: Turn, incident: Incident, wanted: Remediation) -> list[WorkerRecord]:
    names = wanted.targets or incident.culprits or incident.suspects
    tally = turn.tally
    meant = {name for name in names if name in turn.state.workers}
    meant.update(*(tally.nodes.get(node, ()) for node in names if node))
    return turn.many(tally.by_start(meant))


# --- what is done -----------------------------------------------------------------------------------------------------


def _redeal(turn: Turn, incident: Incident, wanted: Remediation) -> str:
    turn.change(balanced=True)
    return ""


def _grow(turn: Turn, incident: Incident, wanted: Remediation) -> str:
    turn.tend(grow_now=True)
    return ""


def _restart(turn: Turn, incident: Incident, wanted: Remediation) -> str:
    """Their places get the next workers that are started."""
    state, targets = turn.state, _targets(turn, incident, wanted)
    shunned = {*state.care.quarantine, *state.leaving, *state.monitors_lost}
    gangs = {worker.gang: worker.node for worker in targets if worker.node and worker.node not in shunned}
    if not gangs:
        return "no node is known, or left, on which to start it anew"
    turn.tend(places=(*state.care.places, *gangs.values()))
    for worker in targets:
        notice(turn, worker.name, f"it is started anew: {wanted.reason}")
    return ""


def _quarantine(turn: Turn, incident: Incident, wanted: Remediation) -> str:
    for_s = turn.settings.limits.quarantine_s if wanted.for_s is None else wanted.for_s
    return _keep_away(turn, incident, wanted, turn.now_s + for_s)


def _replace_node(turn: Turn, incident: Incident, wanted: Remediation) -> str:
    return _keep_away(turn, incident, wanted, inf)


def _keep_away(turn: Turn, incident: Incident, wanted: Remediation, until_s: float) -> str:
    """The nodes get no worker until then; whoever still is there leaves, once those who stay are enough."""
    nodes = _nodes(turn, incident, wanted)
    for node in nodes:
        turn.change(care=turn.state.care.quarantined(node, until_s))
    tally = turn.tally
    for worker in turn.many(tally.by_start(name for node in nodes for name in tally.nodes.get(node, ()))):
        notice(turn, worker.name, f"{worker.node} is in quarantine: {wanted.reason}")
    return "" if nodes else "no node is known"


def _reset_gpu(turn: Turn, incident: Incident, wanted: Remediation) -> str:
    """Sent once no worker is left on the GPUs; until it has ended, the node gets no worker."""
    limit_s, before = turn.settings.limits.gpu_reset_timeout_s, turn.state.care.resets
    for node in _nodes(turn, incident, wanted):
        gpus = {gpu for worker in _targets(turn, incident, wanted) if worker.node == node for gpu in worker.gpus}
        if not gpus:
            continue
        reset = Reset(node=node, gpus=tuple(sorted(gpus)), since_s=turn.now_s, until_s=turn.now_s + limit_s)
        turn.change(care=turn.state.care.quarantined(node, reset.until_s))
        turn.tend(resets=(*turn.state.care.resets, reset))
        for worker in on_gpus(turn, reset):
            notice(turn, worker.name, f"its GPU is reset: {wanted.reason}")
    return "" if turn.state.care.resets != before else "no GPU of it is known"


def on_gpus(turn: Turn, reset: Reset) -> list[WorkerRecord]:
    """Who may still have a process on these GPUs."""
    there = turn.many(turn.tally.by_start(turn.tally.nodes.get(reset.node, ())))
    return [worker for worker in there if worker.standing not in OVER and set(worker.gpus) & set(reset.gpus)]


def _pause(turn: Turn, incident: Incident, wanted: Remediation) -> str:
    for_s = turn.settings.limits.hold_timeout_s if wanted.for_s is None else wanted.for_s
    turn.tend(hold=Hold(reason=f"paused: {wanted.reason}", until_s=turn.now_s + for_s))
    return ""


def _restart_from_tier(turn: Turn, incident: Incident, wanted: Remediation) -> str:
    return restart_by_choice(turn, f"restart from a tier: {wanted.reason}")


def _leave_out(turn: Turn, incident: Incident, wanted: Remediation) -> str:
    """Its samples count as consumed, and no optimizer runs."""
    poison = worst(turn.state.flown)
    if poison is None:
        return "no micro-batch is known to be the cause"
    turn.change(left_out=(*turn.state.left_out, poison.step), flown=after(turn.state.flown, poison.step))
    return ""


def _exit(turn: Turn, incident: Incident, wanted: Remediation) -> str:
    begin_exit(turn, wanted.reason)
    return ""


_ACTS: dict[Kind, Callable[[Turn, Incident, Remediation], str]] = {
    Kind.REDEAL: _redeal,
    Kind.GROW: _grow,
    Kind.LEAVE_OUT: _leave_out,
    Kind.RESTART: _restart,
    Kind.QUARANTINE: _quarantine,
    Kind.REPLACE_NODE: _replace_node,
    Kind.RESET_GPU: _reset_gpu,
    Kind.PAUSE: _pause,
    Kind.RESTART_FROM_TIER: _restart_from_tier,
    Kind.EXIT: _exit,
}
