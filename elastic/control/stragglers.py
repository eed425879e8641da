"""Pure. Stragglers: who is slow for long, what the policy wants done, and how it is done at the end of a step.

A straggler is alive and right, so nothing is broken for its sake: where the policy wants more than a word, all are
asked to stop at the end of a step, and the next generation is formed without it, or with shares by speed.
"""

from elastic.control import events as ev
from elastic.control.copies import changed
from elastic.control.departing import keep_the_state
from elastic.control.remediation import Kind, Remediation
from elastic.control.speed import scores
from elastic.control.state import Gang, Phase, WorkerRecord
from elastic.control.turn import Turn
from elastic.control.values import IncidentClass, StepReport
from elastic.control.viewing import cluster_view

_TOLD = (Kind.CONTINUE, Kind.WAIT)  # nothing that would be worth stopping for
_LEAST_SHARE = 0.01  # of its best speed
_MARGIN = 0.05  # who is not slow is known to be as fast as this, or every step would change every record


def note_speed(turn: Turn, report: StepReport) -> None:
    """Score the members by a stable step of the running generation, and ask the policy about one slow for long."""
    state, limits = turn.state, turn.settings.limits
    is_current = state.phase is Phase.RUNNING and report.commit.generation == state.generation
    if not is_current or len(report.seconds) != state.replicas * state.width:
        return
    scored: dict[str, WorkerRecord] = {}
    for member, score in zip(turn.many(turn.tally.ranks), scores(report.seconds, state.width), strict=True):
        is_slow = score >= limits.slow_ratio
        if is_slow or member.slow_steps or abs(score - member.slowness) > _MARGIN:
            slow_steps = member.slow_steps + 1 if is_slow else 0
            scored[member.name] = changed(member, slowness=score, slow_steps=slow_steps)
    turn.put(scored)
    late = sorted((w for w in scored.values() if w.slow_steps == limits.slow_steps), key=lambda worker: worker.slowness)
    if late and not turn.is_recovering() and not state.pause_asked:
        worker = late.pop()
        took = f"took {worker.slowness:.2f} times the group's median for {limits.slow_steps} steps"
        _decide(turn, worker, took)
    for worker in late:  # one at a time: the others are late again after the next step
        turn.set_worker(worker.name, slow_steps=limits.slow_steps - 1)


def gpu_slow(turn: Turn, event: ev.GpuSlow) -> None:
    """A member whose GPU does not do its best, as its own profiler sees over many steps, is asked about once."""
    slowness = 1.0 / max(event.share, _LEAST_SHARE)
    if slowness < turn.settings.limits.slow_ratio or not turn.is_member(event.worker):
        return
    stragglers = (one for one in turn.state.incidents if one.kind is IncidentClass.STRAGGLER)
    is_known = any(event.worker in one.culprits for one in stragglers)
    if is_known or turn.is_recovering() or turn.state.pause_asked:
        return  # it is told again as long as it lasts
    turn.set_worker(event.worker, slowness=slowness)
    _decide(turn, turn.worker(event.worker), f"computes on a GPU at {event.share:.2f} of its own best speed")


def without_stragglers(turn: Turn, survivors: tuple[Gang, ...], remediation: Remediation) -> tuple[Gang, ...]:
    """Carry out what the policy decided about a straggler; returns those who stay."""
    incident = turn.open_incident()
    if incident is None or incident.kind is not IncidentClass.STRAGGLER:
        return survivors
    if remediation.kind not in (Kind.SWAP, Kind.SHRINK):
        return survivors
    staying, parting = turn.divided(survivors, incident.culprits)
    ready = turn.tally.ready.whole if remediation.kind is Kind.SWAP else 0
    if len(staying) + ready < turn.settings.scaling.bounds[0]:
        return survivors  # slow is better than too few
    if not keep_the_state(turn, staying, survivors):
        return survivors  # nobody else holds what they do
    for gang in parting:
        for worker in gang:
            turn.dismiss(worker.name, reason=f"it is {worker.slowness:.1f} times as slow as the group")
    return staying


def _decide(turn: Turn, worker: WorkerRecord, evidence: str) -> None:
    state = turn.state
    turn.signal(IncidentClass.STRAGGLER, f"{worker.name} on {worker.node} {evidence}", culprit=worker.name)
    incident = turn.open_incident()
    assert incident is not None
    remediation = turn.policy(incident, cluster_view(turn, incident, state.replicas, turn.tally.ready.whole))
    turn.decide_incident(remediation)
    is_new = remediation.kind is not Kind.REDEAL or not state.balanced
    if remediation.kind not in _TOLD and is_new:
        turn.pause(remediation.reason)  # it is carried out when all have stopped
    else:
        turn.note_new_generation(state.replicas)  # told, and that is all: the next stable step closes it
