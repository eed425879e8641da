"""Pure. The controller: one step function over a table of (phase, event).

    step(state, event, now_s, policy) -> Decision(state, commands)

A generation is replaced in four moves. *Freeze*: every member stops for good and names the commit it holds; a member
that cannot answer must be proven dead, or its lease must run out. *Decide*: the highest commit that a live, healed
member holds is the one all resume from. *Form*: the leader hosts the store, the group connects, those behind receive
the state. *Go*. Whatever fails on the way leads back to freeze, with the next generation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elastic.control import events as ev
from elastic.control.ahead import note_connected
from elastic.control.awaiting import answered, stack_dumped
from elastic.control.bequest import taken_on
from elastic.control.care import KEPT
from elastic.control.commands import Command, Finish, Form, Freeze, Go, Restore
from elastic.control.corruption import condemn, corrupt, note_vote
from elastic.control.deadlines import (
    ask_again,
    discount_absence,
    nodes_missing,
    tick_finishing,
    tick_forming,
    tick_freezing,
    tick_running,
    tick_starting,
    tick_waiting,
)
from elastic.control.departing import departs_soon, may_be_needed, node_noticed, notice_if_leaving, worker_noticed
from elastic.control.exiting import exit_asked
from elastic.control.forming import (
    freeze,
    harden,
    is_of_old,
    may_be_enough,
    outdate_the_left,
    settle,
    start_if_ready,
    try_form,
)
from elastic.control.growth import consider_growth
from elastic.control.hardware_faults import hardware_found
from elastic.control.holding import pause_asked, resume_asked
from elastic.control.injecting import fault_asked
from elastic.control.knocking import knocked
from elastic.control.leaving import HAS_LEFT, note_left
from elastic.control.outcome import Ending
from elastic.control.poison import after, noted
from elastic.control.pruning import note_trained, prune
from elastic.control.remediation import Kind, Policy
from elastic.control.restored import found, go_on, refused, restored
from elastic.control.restoring import come_late, consider_restore, note_progress, rewind_asked
from elastic.control.retuning import consider_tuning, note_tuning, tune_asked
from elastic.control.room import crowded
from elastic.control.saving import save_again
from elastic.control.starts import count_start_failure, note_start
from elastic.control.state import IN_STEP, NOTHING_SAID, OVER, Phase, RunState, Standing
from elastic.control.stragglers import gpu_slow, note_speed
from elastic.control.suspicion import KEPT_STEPS
from elastic.control.taking_over import begin_from_tiers, dismiss_surplus, is_left_of_a_rewind, taken_over
from elastic.control.tending import gpu_reset, rung_reached, tend
from elastic.control.turn import Turn
from elastic.control.values import IncidentClass
from elastic.control.watching import heard


class IllegalEventError(Exception):
    """An event that cannot happen in this phase; a bug of the caller, never of a user."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The next state and what is to be done."""

    state: RunState
    commands: tuple[Command, ...]


def step(state: RunState, event: ev.Event, now_s: float, policy: Policy) -> Decision:
    """Take one event in.

    Raises:
        IllegalEventError: the table holds no entry for this phase and event.
    """
    handler = TABLE.get((state.phase, type(event)))
    if handler is None:
        raise IllegalEventError(f"{type(event).__name__} in phase {state.phase.value}: {event}")
    turn = Turn(state, now_s, policy)
    discount_absence(turn)
    if not isinstance(event, ev.WorkerEvent) or event.worker in state.workers:  # else of an earlier incarnation
        if isinstance(event, HAS_LEFT):
            note_left(turn, event.worker)
        handler(turn, event)
        if isinstance(event, ev.Tick) and turn.state.phase not in (Phase.FINISHING, Phase.ENDED):
            tend(turn)
        if isinstance(event, ev.Tick):
            ask_again(turn)
        prune(turn)
    return Decision(turn.state, tuple(turn.commands))


# --- workers come -----------------------------------------------------------------------------------------------------


def _started(turn: Turn, event: ev.RunStarted) -> None:
    turn.enter(Phase.STARTING, **taken_on(turn.state, event.left, turn.now_s))
    turn.replenish("the run starts")
    begin_from_tiers(turn, event.left)


def _placed(turn: Turn, event: ev.WorkerPlaced) -> None:
    turn.set_worker(event.worker, node=event.node)
    record = turn.worker(event.worker)
    if record.standing is Standing.REQUESTED:
        if turn.state.generation:  # the first ones find their slots free
            turn.tend(placing_s=(*turn.state.care.placing_s, turn.attended_s - record.since_s)[-KEPT:])
        turn.set_worker(event.worker, standing=Standing.LOADING)
    turn.change(monitors_lost=turn.state.monitors_lost - {event.node})
    notice_if_leaving(turn, event.worker)


def _parked(turn: Turn, event: ev.WorkerParked) -> None:
    record = turn.worker(event.worker)
    if record.standing not in (Standing.REQUESTED, Standing.LOADING) or record.restoring is not None:
        return
    if record.standing is Standing.LOADING:
        turn.tend(loading_s=(*turn.state.care.loading_s, turn.attended_s - record.since_s)[-KEPT:])
    known = {"host": event.host, "port": event.port, "pid": event.pid, "layout": event.layout, "gpus": event.gpus}
    turn.set_worker(event.worker, standing=Standing.PARKED, slot_bytes=event.slot_bytes, **known)
    turn.change(plan=event.plan or turn.state.plan)
    note_start(turn)


def _parked_at_start(turn: Turn, event: ev.WorkerParked) -> None:
    _parked(turn, event)
    if lack := event.no_room or crowded(
        turn, event
    ):  # later, a node without room costs the run a tier on that node; now it is a setting to be mended
        turn.fail(Ending.NO_ROOM, f"no snapshots can be taken on {turn.worker(event.worker).node}: {lack}")
    else:
        start_if_ready(turn)


def _parked_while_running(turn: Turn, event: ev.WorkerParked) -> None:
    _parked(turn, event)
    consider_growth(turn)


def _parked_while_waiting(turn: Turn, event: ev.WorkerParked) -> None:
    _parked(turn, event)
    if may_be_enough(turn):
        try_form(turn)


def _parked_too_late(turn: Turn, event: ev.WorkerParked) -> None:
    _parked(turn, event)
    turn.dismiss(event.worker, reason="the run is finishing")


# --- workers go -------------------------------------------------------------------------------------------------------


def _lost(turn: Turn, event: ev.WorkerLost) -> None:
    """Contact is lost: nothing may follow from it before it is known to be dead."""
    before = turn.worker(event.worker).standing
    if before in OVER or before is Standing.SUSPECT:
        return
    if before is Standing.PARKED and not turn.is_member(event.worker) and not may_be_needed(turn.worker(event.worker)):
        turn.fence(event.worker, event.evidence)  # it is replaced whatever has become of it, and its slot is needed
    else:
        turn.suspect(event.worker, event.evidence)
    _react_to_loss(turn, event.worker, before, event.evidence)


def _dead(turn: Turn, event: ev.WorkerDead) -> None:
    record = turn.worker(event.worker)
    before = record.standing
    if event.last is not None:  # it may come after another proof
        turn.change(flown=noted(turn.state.flown, event.worker, record.gang, event.last))
    if before in OVER:
        return
    turn.set_worker(event.worker, standing=Standing.DEAD)
    _react_to_loss(turn, event.worker, before, event.proof)


def _departed(turn: Turn, event: ev.WorkerDeparted) -> None:
    """It promised never to apply again: as good as a proof of death."""
    before = turn.worker(event.worker).standing
    if before in OVER:
        return
    turn.set_worker(event.worker, standing=Standing.DEAD)
    turn.dismiss(event.worker, reason=event.reason)
    _react_to_loss(turn, event.worker, before, f"{event.worker} left by itself: {event.reason}")


def _react_to_loss(turn: Turn, name: str, before: Standing, evidence: str) -> None:
    """What a loss means in each phase; `before` is the standing that was lost."""
    if before in (Standing.REQUESTED, Standing.LOADING) and turn.worker(name).restoring is None:
        count_start_failure(turn, name, evidence)
    phase = turn.state.phase
    if phase in (Phase.STARTING, Phase.WAITING):
        if phase is Phase.WAITING and before is Standing.MEMBER and turn.is_member(name):
            _lost_while_waiting(turn, name, evidence)
        if turn.worker(name).standing in OVER or not turn.is_member(name):  # a suspect may come back
            turn.replenish(f"{name} was lost")
        start_if_ready(turn) if phase is Phase.STARTING else try_form(turn)
    elif phase is Phase.FINISHING:
        turn.end_if_all_left()
    elif phase is not Phase.ENDED and turn.is_member(name):
        _member_lost(turn, name, before, evidence)
    elif phase is Phase.RUNNING:
        turn.replenish(f"{name} was lost")


def _lost_while_waiting(turn: Turn, name: str, evidence: str) -> None:
    """It held the state, as those do who wait on. What a pause lasts is not what the remedy takes."""
    turn.signal(IncidentClass.WORKER_LOST, evidence, culprit=name)
    if turn.state.care.hold is not None:
        turn.tend(decided=Kind.PAUSE)


def _member_lost(turn: Turn, name: str, before: Standing, evidence: str) -> None:
    """The generation it belonged to is over; a suspect's death is only the proof that was waited for."""
    if before is not Standing.SUSPECT:
        turn.signal(IncidentClass.WORKER_LOST, evidence, culprit=name)
    why = f"{name} was lost: {evidence}"
    if turn.state.phase is not Phase.FREEZING:
        freeze(turn, why, survivors_only=turn.state.phase is Phase.FORMING)
        _doubt_those_beside(turn, name)
        return
    harden(turn, why)
    _doubt_those_beside(turn, name)
    if turn.worker(name).standing in OVER:  # lost contact decides nothing; who is out of reach is judged by ticks
        settle(turn)


def _doubt_those_beside(turn: Turn, name: str) -> None:
    """Its host may be lost with all that is there: look for proof at once, not once they have been late."""
    lost = turn.worker(name)
    if lost.standing not in OVER or turn.state.phase is not Phase.FREEZING:
        return
    beside = turn.tally.nodes.get(lost.node, {})
    for late in turn.tally.by_rank(one for one in beside if one in turn.tally.late):
        turn.doubt(late, f"no answer to the freeze yet, and {name} beside it is gone")


def _monitor_lost(turn: Turn, event: ev.MonitorLost) -> None:
    """It may have died alone or with its host: the silence that follows is judged like any other."""
    turn.change(monitors_lost=turn.state.monitors_lost | {event.node})


# --- a generation breaks and is replaced ------------------------------------------------------------------------------


def _broken(turn: Turn, event: ev.CollectiveBroken) -> None:
    if event.generation != turn.state.generation:
        return
    turn.signal(IncidentClass.COLLECTIVE_BROKEN, f"{event.worker}: {event.error}")
    freeze(turn, f"a reduction broke on {event.worker}")


def _broken_while_freezing(turn: Turn, event: ev.CollectiveBroken) -> None:
    if event.generation == turn.state.generation:
        turn.signal(IncidentClass.COLLECTIVE_BROKEN, f"{event.worker}: {event.error}")
        harden(turn, f"a reduction broke on {event.worker}")


def _froze(turn: Turn, event: ev.FreezeAnswered) -> None:
    if event.generation != turn.state.generation or not turn.is_member(event.worker):
        return
    turn.hear(event.worker)
    if turn.worker(event.worker).standing in (Standing.PARKED, Standing.LOADING):
        return  # it has answered before, and its state is being replaced
    is_void = any(fork.voids(event.commit) for fork in turn.state.forks)  # it could not restore what the others did
    is_behind = (event.prepared or event.commit).step < max((turn.state.published, *turn.state.published_ahead))
    is_old = is_behind or is_of_old(turn, event.worker, event.commit) or is_left_of_a_rewind(turn, event)
    is_healed = event.healed and not is_void and not is_old
    prepared = None if is_void else event.prepared
    record = turn.worker(event.worker)
    told = {"answer": event.commit, "healed": is_healed, "prepared": prepared, "doubted": False, "missed": event.missed}
    told |= {"answered_in": event.generation, "at_door": False, "formed": False}
    if record.standing is Standing.SUSPECT and not record.fenced:  # contact is back, and it holds its state
        told["standing"] = Standing.MEMBER
    is_first = event.worker in turn.tally.late
    turn.set_worker(event.worker, **told, **(IN_STEP if is_healed else {}))
    if "standing" in told:
        dismiss_surplus(turn)
    if event.outvoted:
        condemn(turn, event.worker, f"{event.worker} was outvoted")
    if turn.state.phase is Phase.RUNNING:  # all stop at the end of a step, as one of them was asked
        turn.enter(Phase.FREEZING, planned=True)
    elif turn.state.phase is Phase.FREEZING and is_first and not turn.state.planned:
        turn.change(phase_since_s=turn.now_s)  # while answers come in, nobody is late: theirs may be among the next
    settle(turn)


def _at_door(turn: Turn, event: ev.AtDoor) -> None:
    """The time to form counts from when all are there: user code between two steps may take long."""
    if event.generation != turn.state.generation or not turn.is_member(event.worker):
        return
    turn.hear(event.worker)
    turn.set_worker(event.worker, at_door=True, doubted=False)
    if not turn.tally.away:
        turn.enter(Phase.FORMING)


def _formed(turn: Turn, event: ev.Formed) -> None:
    if event.generation != turn.state.generation or not turn.is_member(event.worker):
        return
    joined = {**NOTHING_SAID, "at_door": True, "formed": True, "healed": True, "tries": 0, "slow_steps": 0, **IN_STEP}
    turn.set_worker(event.worker, **joined)
    if not turn.tally.unformed:
        names = tuple(turn.tally.ranks)
        turn.enter(Phase.RUNNING, planned=False, survivors_only=False, pause_asked=False)
        outdate_the_left(turn)
        note_trained(turn)
        turn.give_up_gaps()
        turn.do(Go(workers=names, generation=turn.state.generation, reason="all members have formed"))
        consider_growth(turn)
        consider_restore(turn)
        consider_tuning(turn)
        if not turn.is_recovering():  # a worker that starts competes with the first step after a failure
            turn.replenish("the group is below its size")


def _forming_failed(turn: Turn, event: ev.FormingFailed) -> None:
    if event.generation != turn.state.generation or not turn.is_member(event.worker):
        return
    turn.signal(IncidentClass.FORMING_FAILED, f"{event.worker}: {event.error}")
    freeze(turn, f"{event.worker} could not form generation {event.generation}: {event.error}", survivors_only=True)


def _overdue(turn: Turn, event: ev.Overdue) -> None:
    """A message may have been lost: say again what was said last."""
    record, state = turn.worker(event.worker), turn.state
    if record.standing is Standing.PARKED and record.is_restoring and record.restoring is not None:
        number, why = turn.state.restores, "the restore was lost"
        turn.do(Restore(workers=(record.name,), commit=record.restoring, number=number, reason=why))
        return
    if record.standing is Standing.LOADING and record.restoring is not None:  # who waits has loaded it, or never will
        come_late(turn, record.name)
        if state.phase is Phase.WAITING:
            go_on(turn)
        return
    if state.phase is Phase.WAITING:
        save_again(turn, record)
    if event.generation > state.generation or state.view is None or not turn.is_member(record.name):
        return  # an older generation is right: whoever missed the forming does not know the new number
    if state.phase is Phase.FINISHING and record.standing is Standing.MEMBER:
        turn.do(Finish(workers=(record.name,), reason="the finish was lost"))
    elif state.phase is Phase.RUNNING:
        turn.do(Go(workers=(record.name,), generation=state.generation, reason="the go was lost"))
    elif state.phase is Phase.FORMING and not record.formed:
        turn.do(Form(view=state.view, only=(record.name,), reason="the forming was lost"))
    elif state.phase is Phase.FREEZING and not record.has_answered(state.generation):
        turn.do(Freeze(workers=(record.name,), generation=state.generation, reason="the freeze was lost"))


# --- steps, and the end -----------------------------------------------------------------------------------------------


def _stable(turn: Turn, event: ev.StepStable) -> None:
    if any(fork.voids(event.report.commit) for fork in turn.state.forks):
        return
    step_told, published, ahead = event.report.commit.step, turn.state.published, turn.state.published_ahead
    if step_told <= published or step_told in ahead:
        return
    took_s = event.report.committed_at_s - event.report.started_at_s
    flown = after(turn.state.flown, step_told)
    turn.change(published_ahead=ahead | {step_told}, without_progress=0, flown=flown)
    if not event.report.skipped:  # nobody has computed it: it says nothing of how long a step takes
        turn.change(steps_s=(*turn.state.steps_s, took_s)[-KEPT_STEPS:])
    turn.publish_from(published)
    note_progress(turn, step_told)
    note_tuning(turn, event.report)
    note_vote(turn, event.report)
    turn.resolve_incidents(event.report)
    if turn.state.phase is Phase.RUNNING and not turn.is_recovering() and not departs_soon(turn):
        turn.replenish("the group is below its size")
    note_speed(turn, event.report)


def _loop_ended(turn: Turn, event: ev.LoopEnded) -> None:
    """One member has completed the closing reduction, so all hold the last step: nobody needs anybody any more."""
    if event.generation != turn.state.generation:
        return  # its generation was replaced, which proves it dead; the new one closes the loop again
    if turn.state.phase is Phase.WAITING and all(member.standing in OVER for member in turn.state.members):
        return  # nobody is left to return: whoever restores the last step closes the loop again
    if turn.worker(event.worker).standing is Standing.MEMBER:
        turn.set_worker(event.worker, standing=Standing.FINISHED)
    if turn.state.phase is Phase.FINISHING:
        return
    turn.enter(Phase.FINISHING)
    others = tuple(turn.tally.by_rank(turn.tally.standings[Standing.MEMBER]))
    if others:
        turn.do(Finish(workers=others, reason="a member has completed the closing reduction"))
    for worker in turn.standing(Standing.REQUESTED, Standing.LOADING, Standing.PARKED):
        turn.dismiss(worker.name, reason="the run is finishing")


def _returned(turn: Turn, event: ev.TrainFnReturned) -> None:
    record = turn.worker(event.worker)
    if event.dismissed or not turn.is_member(record.name):
        if record.standing not in OVER:
            turn.set_worker(record.name, standing=Standing.GONE)
            if turn.is_member(record.name):
                _react_to_loss(
                    turn, record.name, record.standing, f"{record.name} has left, although nobody told it to"
                )
        return
    if turn.state.phase is not Phase.FINISHING:
        turn.enter(Phase.FINISHING)
    turn.set_worker(record.name, standing=Standing.GONE, formed=True)
    turn.end_if_all_left()


def _raised(turn: Turn, event: ev.TrainFnRaised) -> None:
    record = turn.worker(event.worker)
    if turn.state.generation > 0 and not turn.is_member(record.name):
        if record.standing in (Standing.REQUESTED, Standing.LOADING, Standing.PARKED):
            _joiner_raised(turn, record.name, event.summary)
        return
    if record.fenced or record.standing in OVER:  # it was to die already: what it raises may be of that
        _departed(turn, ev.WorkerDeparted(worker=record.name, reason=f"train_fn raised {event.summary}"))
        return
    rank = turn.state.view.rank_of(record.name) if turn.state.view and turn.is_member(record.name) else None
    turn.fail_raised(record.name, rank, event.summary, event.traceback)


def _joiner_raised(turn: Turn, name: str, summary: str) -> None:
    """A run that trains is not ended by a worker that has no part in it yet."""
    turn.set_worker(name, standing=Standing.DEAD)
    turn.dismiss(name, reason="train_fn raised before its first step")
    count_start_failure(turn, name, summary)
    if turn.state.phase in (Phase.RUNNING, Phase.WAITING):
        turn.replenish(f"{name} raised before its first step")


def _stop(turn: Turn, event: ev.StopAsked) -> None:
    turn.stop(event.reason)


def _ignore(turn: Turn, event: ev.Event) -> None:
    """Nothing follows in this phase."""


Handler = Callable[[Turn, Any], None]

# One row an event; one column a phase. A missing entry (None) is illegal.
_PHASES = (Phase.STARTING, Phase.RUNNING, Phase.FREEZING, Phase.FORMING, Phase.WAITING, Phase.FINISHING, Phase.ENDED)
_ROWS: dict[type[ev.Event], tuple[Handler | None, ...]] = {
    ev.RunStarted: (_started, None, None, None, None, None, None),
    ev.RunTakenOver: (taken_over, None, None, None, None, None, None),
    ev.Tick: (tick_starting, tick_running, tick_freezing, tick_forming, tick_waiting, tick_finishing, _ignore),
    ev.StopAsked: (_stop, _stop, _stop, _stop, _stop, _stop, _ignore),
    ev.ExitAsked: (exit_asked,) * 5 + (_ignore, _ignore),
    ev.RewindAsked: (rewind_asked,) * 5 + (_ignore, _ignore),
    ev.PauseAsked: (pause_asked,) * 5 + (_ignore, _ignore),
    ev.ResumeAsked: (resume_asked,) * 5 + (_ignore, _ignore),
    ev.RungReached: (rung_reached,) * 5 + (_ignore, _ignore),
    ev.Knocked: (_ignore, knocked, knocked, knocked, _ignore, _ignore, _ignore),
    ev.GpuReset: (gpu_reset,) * 5 + (_ignore, _ignore),
    ev.RestoreFound: (found,) * 5 + (_ignore, _ignore),
    ev.Restored: (restored,) * 5 + (_ignore, _ignore),
    ev.RestoreRefused: (refused,) * 5 + (_ignore, _ignore),
    ev.TuneAsked: (tune_asked,) * 5 + (_ignore, _ignore),
    ev.FaultAsked: (fault_asked,) * 6 + (_ignore,),
    ev.FaultInjected: (answered,) * 6 + (_ignore,),
    ev.FaultRefused: (answered,) * 6 + (_ignore,),
    ev.MonitorLost: (_monitor_lost,) * 6 + (_ignore,),
    ev.NodeNotice: (node_noticed,) * 5 + (_ignore, _ignore),
    ev.NodesMissing: (nodes_missing,) * 5 + (_ignore, _ignore),
    ev.HostBeat: (heard,) * 6 + (_ignore,),
    ev.HostsHeard: (heard,) * 6 + (_ignore,),
    ev.HardwareFinding: (hardware_found,) * 5 + (_ignore, _ignore),
    ev.WorkerPlaced: (_placed, _placed, _placed, _placed, _placed, _ignore, _ignore),
    ev.WorkerParked: (
        _parked_at_start, _parked_while_running, _parked, _parked, _parked_while_waiting, _parked_too_late, _ignore,
    ),
    ev.WorkerLost: (_lost,) * 6 + (_ignore,),
    ev.WorkerDead: (_dead,) * 6 + (_ignore,),
    ev.WorkerDeparted: (_departed,) * 6 + (_ignore,),
    ev.WorkerNotice: (worker_noticed,) * 5 + (_ignore, _ignore),
    ev.StackDumped: (stack_dumped,) * 6 + (_ignore,),
    ev.GpuSlow: (_ignore, gpu_slow, _ignore, _ignore, _ignore, _ignore, _ignore),
    ev.CollectiveBroken: (_ignore, _broken, _broken_while_freezing, _broken, _ignore, _ignore, _ignore),
    ev.CorruptionFound: (_ignore, corrupt, corrupt, corrupt, corrupt, _ignore, _ignore),
    ev.FreezeAnswered: (_ignore, _froze, _froze, _ignore, _froze, _ignore, _ignore),
    ev.AtDoor: (_ignore, _ignore, _ignore, _at_door, _ignore, _ignore, _ignore),
    ev.Connected: (_ignore, note_connected, note_connected, _ignore, note_connected, _ignore, _ignore),
    ev.Formed: (_ignore, _ignore, _ignore, _formed, _ignore, _ignore, _ignore),
    ev.FormingFailed: (_ignore, _ignore, _ignore, _forming_failed, _ignore, _ignore, _ignore),
    ev.Overdue: (_overdue,) * 6 + (_ignore,),
    ev.StepStable: (_ignore, _stable, _stable, _stable, _stable, _stable, _ignore),
    ev.ShardStaged: (_ignore,) * 7,
    ev.TierDegraded: (_ignore,) * 7,
    ev.IntervalChosen: (_ignore,) * 7,
    ev.Noted: (_ignore,) * 7,
    ev.Logged: (_ignore,) * 7,
    ev.LoopEnded: (_ignore, _loop_ended, _loop_ended, _loop_ended, _loop_ended, _loop_ended, _ignore),
    ev.TrainFnReturned: (_returned,) * 6 + (_ignore,),
    ev.TrainFnRaised: (_raised,) * 6 + (_ignore,),
}  # fmt: skip
TABLE: dict[tuple[Phase, type[ev.Event]], Handler] = {
    (phase, event): handler
    for event, row in _ROWS.items()
    for phase, handler in zip(_PHASES, row, strict=True)
    if handler is not None
}
